"""Real vLLM engines for tests: the tiny model, on the CPU, with NIXL between them.

One engine takes some 20 CPU seconds to start, so tests share a pair (the fixture `real_pair` in
conftest.py); tests that break engines start their own with `start_engines`.
"""

from __future__ import annotations

import contextlib
import ctypes
import importlib.util
import json
import os
import signal
import subprocess
import sys
import time
import urllib.error
import urllib.request
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Literal

from baton.demo.tiny_model import make_tiny_model
from baton.deploy.processes import free_ports

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence
    from pathlib import Path

MODEL_ID = "tiny"
MAX_MODEL_LEN = 2048
BLOCK_SIZE = 128
"""vLLM's block size on the CPU, in tokens."""
KV_BLOCKS = 256

# What two engines on two cores need: thread pools that do not fight each other, a KV cache of one
# GiB at most, and no look at the network.
_ENVIRONMENT = {
    "VLLM_CPU_KVCACHE_SPACE": "1",
    "VLLM_CPU_OMP_THREADS_BIND": "nobind",
    "OMP_NUM_THREADS": "1",
    "TORCHDYNAMO_DISABLE": "1",  # no compiler in the middle of a test
    "HF_HUB_OFFLINE": "1",
    "VLLM_NO_USAGE_STATS": "1",
    "VLLM_NIXL_SIDE_CHANNEL_HOST": "127.0.0.1",
    "PYTHONUNBUFFERED": "1",
    # For engines that are told where spans go.
    "OTEL_EXPORTER_OTLP_TRACES_PROTOCOL": "http/protobuf",
    "OTEL_BSP_SCHEDULE_DELAY": "200",
}
TOOLS = ("--enable-auto-tool-choice", "--tool-call-parser", "hermes")
"""What `tool_choice: required` wants."""
CACHED = ("--enable-prompt-tokens-details",)
"""What `cached_tokens` wants."""
EVIDENCE = (
    "--middleware", "baton.engine.proof.Proof",
    "--worker-extension-cls", "baton.engine.evidence.WorkerEvidence",
)  # fmt: skip
"""What gives a plain vLLM server the paths that `baton verify` asks."""
_START_TIMEOUT_S = 300.0
_STOP_TIMEOUT_S = 10.0
_KV_ROLES = {"prefill": "kv_producer", "decode": "kv_consumer", "both": "kv_both"}


@dataclass(frozen=True)
class EngineSpec:
    """One engine to start: its role, its name, and what it is told beyond the usual."""

    role: Literal["prefill", "decode", "both", "plain"]
    engine_id: str
    extra_args: tuple[str, ...] = ()
    kv_lease_s: int = 30
    kv_load_failure_policy: Literal["fail", "recompute"] = "fail"
    environment: tuple[tuple[str, str], ...] = ()
    backends: tuple[str, ...] = ()
    """NIXL's; vLLM's default when empty."""
    host: str = "127.0.0.1"
    netns: str | None = None
    """A network namespace that is there already."""


@dataclass(frozen=True)
class RealEngine:
    """A running vLLM engine."""

    spec: EngineSpec
    url: str
    side_channel_port: int
    process: subprocess.Popen[bytes]
    log: Path
    model: Path
    model_id: str = MODEL_ID

    @property
    def engine_id(self) -> str:
        return self.spec.engine_id

    def freeze(self) -> None:
        """Stop all its processes where they are, until `thaw`."""
        os.killpg(self.process.pid, signal.SIGSTOP)

    def thaw(self) -> None:
        with contextlib.suppress(ProcessLookupError):
            os.killpg(self.process.pid, signal.SIGCONT)

    def kill(self) -> None:
        """End the engine and the processes that it started, at once."""
        with contextlib.suppress(ProcessLookupError):
            os.killpg(self.process.pid, signal.SIGKILL)
        self.process.wait(_STOP_TIMEOUT_S)


@dataclass(frozen=True)
class RealPair:
    """A prefill and a decode engine that hand KV over by NIXL."""

    prefill_url: str
    decode_url: str
    model_path: Path
    model_id: str
    logs: Path


class EnginesDidNotStart(Exception):
    """An engine ended, or was not ready in time; the end of its log is in the message."""


def vllm_is_installed() -> bool:
    return all(importlib.util.find_spec(name) is not None for name in ("vllm", "nixl"))


@contextlib.contextmanager
def start_engines(
    specs: Sequence[EngineSpec],
    folder: Path,
    *,
    model_id: str = MODEL_ID,
    model: Path | None = None,
    own_sessions: bool = False,
) -> Iterator[list[RealEngine]]:
    """Start engines side by side, wait until all answer, and end them when the block ends.

    Args:
        specs: The engines, each with an `engine_id` of its own.
        folder: Holds the model (`model`) and a log for each engine (`ENGINE_ID.log`).
        model_id: The name that they serve the model under.
        model: A tiny model that is there already. Engines hand KV over only where they were given
            the same path: it is part of NIXL's compatibility hash.
        own_sessions: False: all are of the caller's session, as the engines of a Ray node are of
            one, each in a process group of its own. Linux shares the processor out among sessions
            first (`sched_autogroup`): an engine of its own session that has slept for long can wait
            for hundreds of milliseconds beside a busy one.

    Raises:
        EnginesDidNotStart: With the end of the log of the engine that failed.
    """
    model = model or make_tiny_model(folder / "model")
    engines: list[RealEngine] = []
    try:
        ports = free_ports(2 * len(specs))
        for spec in specs:
            http, side = ports.pop(), ports.pop()
            engine = _start(
                spec, model=model, folder=folder, model_id=model_id, http=http, side=side,
                own_session=own_sessions,
            )  # fmt: skip
            engines.append(engine)
        deadline = time.monotonic() + _START_TIMEOUT_S
        for engine in engines:
            _wait_until_healthy(engine, deadline)
        yield engines
    finally:
        _stop(engines)


@contextlib.contextmanager
def start_pair(
    folder: Path, *, extra_args: tuple[str, ...] = (), kv_lease_s: int = 30
) -> Iterator[RealPair]:
    """One prefill and one decode engine."""
    specs = [
        EngineSpec("prefill", "prefill-0", (*EVIDENCE, *extra_args), kv_lease_s),
        EngineSpec("decode", "decode-0", (*EVIDENCE, *extra_args), kv_lease_s),
    ]
    with start_engines(specs, folder) as (prefill, decode):
        yield RealPair(prefill.url, decode.url, folder / "model", MODEL_ID, folder)


@contextlib.contextmanager
def start_again(dead: RealEngine) -> Iterator[RealEngine]:
    """The same engine anew, in the same place: ports, name, model. Ended when the block ends."""
    engine = _start(
        dead.spec,
        model=dead.model,
        folder=dead.log.parent,
        model_id=dead.model_id,
        http=int(dead.url.rsplit(":", 1)[1]),
        side=dead.side_channel_port,
    )
    try:
        _wait_until_healthy(engine, time.monotonic() + _START_TIMEOUT_S)
        yield engine
    finally:
        _stop([engine])


def _start(
    spec: EngineSpec,
    *,
    model: Path,
    folder: Path,
    model_id: str,
    http: int,
    side: int,
    own_session: bool = False,
) -> RealEngine:
    inside = () if spec.netns is None else ("ip", "netns", "exec", spec.netns)
    command = [
        *inside,
        *(sys.executable, "-m", "vllm.entrypoints.openai.api_server"),
        *("--model", str(model), "--served-model-name", model_id, "--dtype", "float32"),
        *("--host", spec.host, "--port", str(http), "--enforce-eager"),
        *("--max-model-len", str(MAX_MODEL_LEN), "--num-gpu-blocks-override", str(KV_BLOCKS)),
        *spec.extra_args,
    ]
    if spec.role != "plain":
        transfer: dict[str, Any] = {
            "kv_connector": "NixlConnector",
            "kv_role": _KV_ROLES[spec.role],
            "engine_id": spec.engine_id,
            "kv_buffer_device": "cpu",
            "kv_load_failure_policy": spec.kv_load_failure_policy,
            "kv_connector_extra_config": {"kv_lease_duration": spec.kv_lease_s},
        }
        if spec.backends:
            transfer["kv_connector_extra_config"]["backends"] = list(spec.backends)
        command += ["--kv-transfer-config", json.dumps(transfer)]
    environment = os.environ | _ENVIRONMENT | {"VLLM_NIXL_SIDE_CHANNEL_PORT": str(side)}
    environment["VLLM_NIXL_SIDE_CHANNEL_HOST"] = spec.host
    environment |= dict(spec.environment)
    path = folder / f"{spec.engine_id}.log"
    with path.open("ab") as log:
        process = subprocess.Popen(
            command,
            env=environment,
            stdout=log,
            stderr=subprocess.STDOUT,
            start_new_session=own_session,
            process_group=-1 if own_session else 0,
            preexec_fn=_end_with_parent,  # noqa: PLW1509 - it takes no lock
        )
    return RealEngine(spec, f"http://{spec.host}:{http}", side, process, path, model, model_id)


def _end_with_parent() -> None:
    """Ask Linux for a SIGTERM when the test run dies, however it dies (prctl PR_SET_PDEATHSIG)."""
    ctypes.CDLL(None).prctl(1, signal.SIGTERM)


def _wait_until_healthy(engine: RealEngine, deadline: float) -> None:
    while time.monotonic() < deadline:
        if engine.process.poll() is not None:
            raise EnginesDidNotStart(f"{engine.engine_id} ended:\n{_end_of(engine.log)}")
        if _is_healthy(engine):
            return
        time.sleep(0.25)
    raise EnginesDidNotStart(f"{engine.engine_id} is not ready in time:\n{_end_of(engine.log)}")


def _is_healthy(engine: RealEngine) -> bool:
    if engine.spec.netns is not None:  # its address leads nowhere from here
        ask = f"import urllib.request as u; u.urlopen('{engine.url}/health', timeout=2)"
        command = ["ip", "netns", "exec", engine.spec.netns, sys.executable, "-c", ask]
        return subprocess.run(command, capture_output=True, check=False).returncode == 0
    with (
        contextlib.suppress(urllib.error.URLError, OSError),
        urllib.request.urlopen(f"{engine.url}/health", timeout=2),
    ):
        return True
    return False


def _stop(engines: list[RealEngine]) -> None:
    for engine in engines:
        with contextlib.suppress(ProcessLookupError):
            os.killpg(engine.process.pid, signal.SIGTERM)
    deadline = time.monotonic() + _STOP_TIMEOUT_S
    for engine in engines:
        with contextlib.suppress(subprocess.TimeoutExpired):
            engine.process.wait(max(0.1, deadline - time.monotonic()))
        engine.kill()  # the group may outlive its leader


def _end_of(log: Path, lines: int = 40) -> str:
    return "\n".join(log.read_text(errors="replace").splitlines()[-lines:])
