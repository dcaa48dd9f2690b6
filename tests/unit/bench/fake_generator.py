"""Speaks as `baton.engine.load_generator` does, without vLLM: a good job, a bad one, the end."""

from __future__ import annotations

import json
import sys
from pathlib import Path

if __name__ == "__main__":
    print("ready", flush=True)  # noqa: T201
    for number, line in enumerate(sys.stdin):
        job = Path(line.strip())
        asked = json.loads(job.read_text())
        if number == 2:
            print("RuntimeError: out of everything", file=sys.stderr)  # noqa: T201
            sys.exit(1)
        found = [
            {"input_tokens": one["input_tokens"], "output_tokens": one["output_tokens"],
             "ttft_s": 0.1, "itl_s": [0.1], "error": "", "start_s": 0.0}
            for one in asked["requests"]
        ]  # fmt: skip
        out = job.with_suffix(".result.json")
        out.write_text(json.dumps({"problem": "no luck"} if number else {"requests": found}))
        print(out, flush=True)  # noqa: T201
