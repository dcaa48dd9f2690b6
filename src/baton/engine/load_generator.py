"""vLLM's own load generator as a process that takes jobs: `python -m baton.engine.load_generator`.

`vllm.benchmarks.serve.benchmark` sends the requests and takes the times. Its command line draws
arrivals and prompts itself, differently in each process, and reads a whole trace into memory; so
the plan comes from `baton.bench`, and only the sending is used. `self_timed` makes it keep the
plan's times: an open loop.

A line on standard input names a file with a job, a line on standard output the file with its
result. Importing vLLM takes seconds of CPU; so one process does all jobs of a bench.

This room is the only one that imports vLLM; `baton.bench` starts this module and imports nothing.
"""

from __future__ import annotations

import asyncio
import json
import os
import sys
from pathlib import Path
from typing import Any


def main() -> None:
    """Serve jobs until standard input ends. vLLM prints a lot; that goes to standard error."""
    answers = os.fdopen(os.dup(1), "w", encoding="utf-8")
    os.dup2(2, 1)
    from vllm.benchmarks import serve  # noqa: F401  (what takes long, before the first job)

    print("ready", file=answers, flush=True)
    for line in sys.stdin:
        job_file = Path(line.strip())
        job = json.loads(job_file.read_text(encoding="utf-8"))
        try:
            result = asyncio.run(_run(job))
        except Exception as exc:  # noqa: BLE001  (told to whoever gave the job, who decides)
            result = {"problem": f"{type(exc).__name__}: {exc}"[:2000]}
        out = job_file.with_suffix(".result.json")
        out.write_text(json.dumps(result), encoding="utf-8")
        print(out, file=answers, flush=True)


async def _run(job: dict[str, Any]) -> dict[str, Any]:
    """One job. Times are seconds; `start_s` is since the first request left."""
    from vllm.benchmarks.datasets import SampleRequest
    from vllm.benchmarks.serve import TaskType, benchmark

    requests = [
        SampleRequest(
            prompt=one["prompt"],
            prompt_len=one["input_tokens"],
            expected_output_len=one["output_tokens"],
            request_id=one["id"],
            timestamp=one["at_s"],
        )
        for one in job["requests"]
    ]
    found = await benchmark(
        task_type=TaskType.GENERATION,
        endpoint_type="openai",
        api_url=f"{job['url']}/v1/completions",
        base_url=job["url"],
        model_id=job["model"],
        model_name=job["model"],
        tokenizer=None,
        input_requests=requests,
        logprobs=None,
        request_rate=float("inf"),
        burstiness=1.0,
        disable_tqdm=True,
        num_warmups=0,
        profile=False,
        selected_percentile_metrics=[],
        selected_percentiles=[50.0],
        ignore_eos=True,
        goodput_config_dict={},
        max_concurrency=None,
        lora_modules=None,
        extra_headers=job["headers"] or None,
        extra_body={"temperature": 0},
        ready_check_timeout_sec=0,
        self_timed=True,
    )
    first = min(found["start_times"], default=0.0)
    names = ("input_lens", "output_lens", "ttfts", "itls", "errors", "start_times")
    return {
        "duration_s": found["duration"],
        "requests": [
            {
                "input_tokens": inputs,
                "output_tokens": outputs,
                "ttft_s": ttft,
                "itl_s": itl,
                "error": str(error).strip()[-300:],
                "start_s": start - first,
            }
            for inputs, outputs, ttft, itl, error, start in zip(
                *(found[name] for name in names), strict=True
            )
        ],
    }


if __name__ == "__main__":
    main()
