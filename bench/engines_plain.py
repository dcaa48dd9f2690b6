"""Plain vLLM engines of bench/engines.py, and what stands before them: nothing, or a router.

The engines are those of the tests (`tests/real_engines.py`): one for no P/D, and a pair that
vllm-router and `baton gateway` share. They stay up between turns, stopped by SIGSTOP, so that
whoever has its turn has the machine; gateway and router are started anew for each turn.
"""

from __future__ import annotations

import asyncio
import contextlib
import os
import sys
import time
import urllib.request
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Any, Self

import psutil
from engines_stats import transfers_of
from gateway_subjects import PATHS, Subject, start_gateway, start_router

ROOT = Path(__file__).resolve().parents[1]
if str(ROOT) not in sys.path:
    sys.path.insert(0, str(ROOT))

from tests.real_engines import (  # noqa: E402
    KV_BLOCKS,
    MAX_MODEL_LEN,
    EnginesDidNotStart,
    EngineSpec,
    RealEngine,
    start_engines,
)

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Mapping, Sequence

__all__ = ["KV_BLOCKS", "MAX_MODEL_LEN", "Endpoint", "PlainEngines", "SetupFailed"]

# What vLLM takes by default depends on who starts it; here it is the same for everybody.
MAX_NUM_SEQS = 64
MAX_NUM_BATCHED_TOKENS = 2048
NO_PLUGINS = {"VLLM_PLUGINS": ""}
"""vLLM then loads no plug-in of this environment, Baton's among them."""

Parts = dict[str, list[psutil.Process]]


class SetupFailed(Exception):
    """A setup did not come up, or did not answer as it must; the others go on."""


@dataclass
class Endpoint:
    """A setup that is up.

    Args:
        url: Without `/v1`.
        find: Its processes by part, as they are now.
        transfers: KV transfers that its decode engine has counted, given how many there must be at
            least (some counters lag); None where nobody can be asked.
        keeps_timelines: Whether it answers `/baton/requests`.
        facts: For the report.
    """

    url: str
    find: Callable[[], Parts]
    transfers: Callable[[int], int] | None = None
    keeps_timelines: bool = False
    facts: dict[str, Any] = field(default_factory=dict)


def tree(pid: int) -> list[psutil.Process]:
    """A process and all that it started."""
    first = psutil.Process(pid)
    return [first, *first.children(recursive=True)]


def split(role: str, processes: Sequence[psutil.Process]) -> Parts:
    """An engine's processes by what they do: vLLM's HTTP side, its EngineCore, its worker."""
    parts: Parts = {}
    for process in processes:
        with contextlib.suppress(psutil.Error):
            title = " ".join(process.cmdline())
            kind = next((k for k in ("EngineCore", "Worker") if f"VLLM::{k}" in title), "")
            parts.setdefault(f"{role} {kind}".rstrip(), []).append(process)
    return parts


def counted(read: Callable[[], int], at_least: int, patience_s: float) -> int:
    """A counter that lags behind, read until it has come up or the patience has ended."""
    deadline_s = time.monotonic() + patience_s
    while (found := read()) < at_least and time.monotonic() < deadline_s:
        time.sleep(0.5)
    return found


def fetch(url: str) -> str:
    """A small answer as text."""
    with urllib.request.urlopen(url, timeout=10) as got:
        return bytes(got.read()).decode()


@dataclass
class _Urls:
    """What the starters of bench/gateway_subjects.py want to know of engines."""

    prefill: str
    decode: str


class PlainEngines:
    """Starts each group of engines when it is first needed; all end with the block.

    Args:
        logs: Folder for the model and everybody's output.
        environment: Of the engines, beside the usual.
        router: The program `vllm-router`.
    """

    def __init__(self, logs: Path, environment: Mapping[str, str], router: str | None) -> None:
        self._logs = logs
        self._environment = tuple(environment.items())
        self._router = router
        self._groups: dict[str, list[RealEngine]] = {}
        self._failed: dict[str, str] = {}
        self._stack = contextlib.ExitStack()
        self.model = logs / "model"

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        for engine in self.everybody():
            engine.thaw()  # a process that is stopped does not hear SIGTERM
        self._stack.close()

    def everybody(self) -> list[RealEngine]:
        return [engine for group in self._groups.values() for engine in group]

    @contextlib.contextmanager
    def _awake(self, group: str) -> Iterator[list[RealEngine]]:
        if group in self._failed:
            raise SetupFailed(self._failed[group])
        if group not in self._groups:
            self._start(group)
        for engine in self._groups[group]:
            engine.thaw()
        try:
            yield self._groups[group]
        finally:
            for engine in self._groups[group]:
                engine.freeze()

    def _start(self, group: str) -> None:
        arguments = (
            *("--max-num-seqs", str(MAX_NUM_SEQS)),
            *("--max-num-batched-tokens", str(MAX_NUM_BATCHED_TOKENS)),
        )
        specs = {
            "pair": [
                EngineSpec("prefill", "prefill-0", arguments, environment=self._environment),
                EngineSpec("decode", "decode-0", arguments, environment=self._environment),
            ],
            "alone": [EngineSpec("plain", "alone", arguments, environment=self._environment)],
        }[group]
        try:
            self._groups[group] = self._stack.enter_context(
                start_engines(specs, self._logs, model=self.model)
            )
        except EnginesDidNotStart as exc:
            self._failed[group] = str(exc)
            raise SetupFailed(str(exc)) from exc

    @contextlib.contextmanager
    def no_pd(self) -> Iterator[Endpoint]:
        """One engine by itself."""
        with self._awake("alone") as (engine,):
            yield Endpoint(engine.url, lambda: split("engine", tree(engine.process.pid)))

    def vllm_router(self) -> contextlib.AbstractContextManager[Endpoint]:
        """The pair behind `vllm-router`."""
        if self._router is None:
            raise SetupFailed("no --router was named")
        program = self._router
        return self._behind(lambda urls, logs: start_router(program, urls, logs, None), ours=False)

    def baton_gateway(self) -> contextlib.AbstractContextManager[Endpoint]:
        """The pair behind `baton gateway`."""
        return self._behind(lambda urls, logs: start_gateway(urls, logs, None), ours=True)

    @contextlib.contextmanager
    def _behind(self, start: Callable[[Any, Path], Subject], *, ours: bool) -> Iterator[Endpoint]:
        with self._awake("pair") as (prefill, decode):
            for old in ("gateway.log", "router.log"):
                # A process adds to its log, and where it listens is looked up there.
                (self._logs / old).unlink(missing_ok=True)
            try:
                subject = start(_Urls(prefill.url, decode.url), self._logs)
            except SystemExit as exc:
                raise SetupFailed(str(exc)) from exc
            process = subject.process
            if process is None:
                raise SetupFailed("nothing was started")

            def find() -> Parts:
                return {
                    "router": tree(process.pid),
                    **split("prefill", tree(prefill.process.pid)),
                    **split("decode", tree(decode.process.pid)),
                }

            try:
                yield Endpoint(
                    subject.target.url,
                    find,
                    lambda least: counted(
                        lambda: transfers_of(fetch(f"{decode.url}/metrics")), least, 2.0
                    ),
                    keeps_timelines=ours,
                )
            finally:
                asyncio.run(process.end())
                process.end_now()


def environment() -> dict[str, str]:
    """Of everything that is started: this checkout, whatever is installed."""
    return {**os.environ, "PYTHONPATH": PATHS}
