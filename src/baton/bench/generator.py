"""Has requests sent and timed by vLLM's load generator, and reads what it found.

`Generator` is what the rest of this room knows of it; tests give another one.
"""

from __future__ import annotations

import asyncio
import contextlib
import importlib.util
import json
import os
import signal
import sys
import tempfile
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any, Protocol, Self

from baton.errors import BenchFailed, EnvironmentUnfit

if TYPE_CHECKING:
    from types import TracebackType

    from baton.bench.prompts import Endpoint

_MODULE = "baton.engine.load_generator"
_IMPORT_S = 180.0
PATIENCE_S = 300.0
"""How long the last answers may take once all requests have left."""


@dataclass(frozen=True)
class Sample:
    """One request, as it went. Times are seconds.

    `total_s` is the time until the last token; `error` says why the answer is not whole.
    """

    start_s: float
    input_tokens: int
    output_tokens: int
    ttft_s: float
    itl_s: tuple[float, ...]
    error: str = ""

    @property
    def total_s(self) -> float:
        # As vLLM's generator has it: until the last piece of the stream, not its end.
        return self.ttft_s + sum(self.itl_s)


class Generator(Protocol):
    """Sends requests when their time has come."""

    async def measure(self, endpoint: Endpoint, requests: list[dict[str, Any]]) -> list[Sample]:
        """A sample for each request, in their order. Raises BenchFailed."""


class VllmGenerator:
    """vLLM's `benchmarks.serve` in a process of its own, for as long as the block lasts.

    Args:
        patience_s: How long the last answers may take once all requests have left.
    """

    def __init__(self, patience_s: float = PATIENCE_S) -> None:
        self._patience_s = patience_s
        self._process: asyncio.subprocess.Process | None = None
        self._folder = tempfile.TemporaryDirectory(prefix="baton-bench-")
        self._log = Path(self._folder.name) / "generator.log"
        self._jobs = 0

    async def __aenter__(self) -> Self:
        if importlib.util.find_spec("vllm") is None:
            raise EnvironmentUnfit(
                "the load comes from vLLM's own generator, and vllm is not installed here",
                cure="install requirements/cpu.txt, or run the bench where an engine is installed",
            )
        environment = {**os.environ, "VLLM_LOGGING_LEVEL": "ERROR", "VLLM_NO_USAGE_STATS": "1"}
        environment.pop("OPENAI_API_KEY", None)  # it would be sent to the endpoint
        with self._log.open("wb") as log:
            self._process = await asyncio.create_subprocess_exec(
                sys.executable,
                "-m",
                _MODULE,
                stdin=asyncio.subprocess.PIPE,
                stdout=asyncio.subprocess.PIPE,
                stderr=log,
                env=environment,
                start_new_session=True,
            )
        await self._line(_IMPORT_S)
        return self

    async def __aexit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        at: TracebackType | None,
    ) -> None:
        process = self._process
        if process is not None and process.returncode is None:
            with contextlib.suppress(ProcessLookupError):
                os.killpg(process.pid, signal.SIGKILL)
            await process.wait()
        self._folder.cleanup()

    async def measure(self, endpoint: Endpoint, requests: list[dict[str, Any]]) -> list[Sample]:
        """Send the requests and wait for the last answer."""
        self._jobs += 1
        job = self._log.with_name(f"job-{self._jobs}.json")
        asked = {
            "url": endpoint.url,
            "model": endpoint.model,
            "headers": dict(endpoint.headers),
            "requests": requests,
        }
        job.write_text(json.dumps(asked), encoding="utf-8")
        if self._process is None or self._process.stdin is None:
            raise BenchFailed("the generator has not been started")
        self._process.stdin.write(f"{job}\n".encode())
        await self._process.stdin.drain()
        last = max(request["at_s"] for request in requests)
        answer = job.with_suffix(".result.json")
        await self._line(last + self._patience_s)
        result = json.loads(answer.read_text(encoding="utf-8"))
        for file in (job, answer):
            file.unlink()
        if problem := result.get("problem"):
            raise BenchFailed(f"the load generator failed: {problem}", place=endpoint.url)
        return [
            _sample(one, wanted) for one, wanted in zip(result["requests"], requests, strict=True)
        ]

    async def _line(self, timeout_s: float) -> str:
        process = self._process
        if process is None or process.stdout is None:
            raise BenchFailed("the generator has not been started")
        try:
            async with asyncio.timeout(timeout_s):
                line = (await process.stdout.readline()).decode().strip()
        except TimeoutError as exc:
            raise BenchFailed(
                f"not every request was answered within {timeout_s:.0f} s",
                cure="the endpoint may hang: `baton conformance` asks it one by one; --patience S "
                "waits longer",
            ) from exc
        if not line:
            said = self._log.read_text(errors="replace").strip().splitlines()
            raise BenchFailed(f"the load generator ended: {said[-1] if said else 'no word'}")
        return line


def _sample(one: dict[str, Any], wanted: dict[str, Any]) -> Sample:
    error = one["error"]
    if not error and one["output_tokens"] != wanted["output_tokens"]:
        # The generator takes any stream with one token for a success, also one that broke off or
        # ended with an error event; usage that did not come, or says less, gives it away.
        error = f"{one['output_tokens']} tokens of {wanted['output_tokens']}: the stream broke off"
    return Sample(
        start_s=one["start_s"],
        input_tokens=one["input_tokens"],
        output_tokens=one["output_tokens"],
        ttft_s=one["ttft_s"],
        itl_s=tuple(one["itl_s"]),
        error=error,
    )
