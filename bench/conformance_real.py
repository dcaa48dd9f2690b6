"""The conformance cases on real engines: P/D behind the gateway against one plain vLLM engine.

Writes `bench/results/conformance_real.json`, which docs/guides/compatibility.md explains. Three
engines of the tiny model on this machine's CPU, started for it and ended with it.

    PYTHONPATH=src:. python bench/conformance_real.py
"""

from __future__ import annotations

import subprocess
import sys
import tempfile
from pathlib import Path

sys.path[:0] = [str(Path(__file__).parents[1])]

from tests.integration.gateway_process import running_gateway  # noqa: E402
from tests.real_engines import TOOLS, EngineSpec, start_engines  # noqa: E402

ARGUMENTS = (*TOOLS, "--enable-prompt-tokens-details")  # without it no cached_tokens
_RESULT = Path(__file__).parent / "results" / "conformance_real.json"


def main() -> int:
    """The exit status of `baton conformance`."""
    specs = [
        EngineSpec("prefill", "prefill-0", ARGUMENTS),
        EngineSpec("decode", "decode-0", ARGUMENTS),
        EngineSpec("plain", "plain-0", ARGUMENTS),
    ]
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        with (
            start_engines(specs, folder) as (prefill, decode, plain),
            running_gateway([prefill.url], [decode.url], folder / "gateway.log") as gateway,
        ):
            return subprocess.run(
                [
                    *(sys.executable, "-m", "baton.cli", "conformance", gateway),
                    *("--against", plain.url, "--json", str(_RESULT)),
                    # Where it is left to the gateway, short prompts stay on decode.
                    *("--header", "x-baton-disaggregate: always"),
                ],
                check=False,
            ).returncode


if __name__ == "__main__":
    sys.exit(main())
