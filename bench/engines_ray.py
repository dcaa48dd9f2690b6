"""The deployed setups of bench/engines.py: `baton up` on one file, by Baton or by Ray Serve LLM.

Same file, same Ray head, same engine arguments as the plain engines; up, measured and down in each
round. Ray's direct streaming is a variable that its builder, controller and replicas read: set for
`baton up`, every process of its own Ray head inherits it. Whether it took effect is looked up in
the deployment itself: decode is then the ingress, answers `/version` (vLLM's own route), and there
is no process of an `OpenAiIngress`.
"""

from __future__ import annotations

import contextlib
import http.client
import json
import re
import signal
import subprocess
import sys
import urllib.error
from pathlib import Path
from typing import TYPE_CHECKING, Any

import psutil
from engines_load import MODEL
from engines_plain import (
    KV_BLOCKS,
    MAX_MODEL_LEN,
    MAX_NUM_BATCHED_TOKENS,
    MAX_NUM_SEQS,
    Endpoint,
    Parts,
    SetupFailed,
    counted,
    environment,
    fetch,
    split,
)
from engines_stats import transfers_of

from baton.deploy import local, state
from baton.deploy.processes import free_port, members
from baton.errors import BatonError

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping

UP_S = 300.0
END_S = 90.0
EXPORT_S = 12.0
DIRECT = {"RAY_SERVE_LLM_ENABLE_DIRECT_STREAMING": "1", "RAY_SERVE_ENABLE_HA_PROXY": "1"}
# As tests/real_engines.py sets it for the plain ones.
ENGINE_ENVIRONMENT = {
    "VLLM_CPU_KVCACHE_SPACE": "1",
    "VLLM_CPU_OMP_THREADS_BIND": "nobind",
    "OMP_NUM_THREADS": "1",
    "TORCHDYNAMO_DISABLE": "1",
    "HF_HUB_OFFLINE": "1",
    "VLLM_NO_USAGE_STATS": "1",
}
_DEPLOYMENT = re.compile(r"ServeReplica:[^:]+:([A-Za-z]+)")


def app(model: Path, port: int, engine_environment: Mapping[str, str]) -> dict[str, Any]:
    """The file that all deployed setups run. JSON is YAML."""

    def role(name: str, kv_role: str) -> dict[str, Any]:
        return {
            "model_loading_config": {"model_id": MODEL, "model_source": str(model)},
            "placement_group_config": {"bundles": [{"CPU": 1}]},
            "engine_kwargs": {
                "dtype": "float32",
                "enforce_eager": True,
                "max_model_len": MAX_MODEL_LEN,
                "num_gpu_blocks_override": KV_BLOCKS,
                "max_num_seqs": MAX_NUM_SEQS,
                "max_num_batched_tokens": MAX_NUM_BATCHED_TOKENS,
                "kv_transfer_config": {
                    "kv_connector": "NixlConnector",
                    "kv_role": kv_role,
                    "engine_id": name,
                    "kv_buffer_device": "cpu",
                    "kv_load_failure_policy": "fail",
                    "kv_connector_extra_config": {"kv_lease_duration": 30},
                },
            },
            "runtime_env": {"env_vars": dict(engine_environment)},
            "deployment_config": {"num_replicas": 1},
        }

    return {
        "http_options": {"host": "127.0.0.1", "port": port},
        "applications": [
            {
                "name": "bench",
                "import_path": "baton:build_pd_openai_app",
                "route_prefix": "/",
                "args": {
                    "prefill_config": role("prefill", "kv_producer"),
                    "decode_config": role("decode", "kv_consumer"),
                    "baton": {"disaggregate": {"mode": "always"}},
                },
            }
        ],
    }


@contextlib.contextmanager
def deployed(
    name: str,
    logs: Path,
    model: Path,
    *,
    options: tuple[str, ...] = (),
    variables: Mapping[str, str] | None = None,
    engine_variables: Mapping[str, str] | None = None,
) -> Iterator[Endpoint]:
    """`baton up` with the tiny model, as a person runs it; down when the block ends.

    Args:
        name: Of the setup.
        logs: For the file and what the command says.
        model: The tiny model's folder.
        options: Further ones of `baton up`.
        variables: Of the command, and so of its Ray head.
        engine_variables: Of the engines.

    Raises:
        SetupFailed: With the last thing that the command said.
    """
    port = free_port()
    file = logs / f"{name}.yaml"
    content = app(model, port, {**ENGINE_ENVIRONMENT, **(engine_variables or {})})
    file.write_text(json.dumps(content, indent=1), encoding="utf-8")
    command = [sys.executable, "-m", "baton.cli", "up", str(file), "--name", name]
    command += ["--format", "json", "--timeout", str(UP_S), *options]
    try:
        said = _run(command, logs / f"{name}.log", {**environment(), **(variables or {})})
        found = state.find(name)
        if found is None:
            raise SetupFailed(f"`baton up` left no record of {name}")
        facts = {"start_s": json.loads(said)["stages_s"]} | _facts(found)
        yield Endpoint(
            found.endpoint,
            lambda: parts_of(found.marker, found.folder),
            lambda least: counted(
                lambda: transfers_of(_page(found)), least, EXPORT_S * bool(least)
            ),
            keeps_timelines=found.builder == "baton",
            facts=facts,
        )
    finally:
        with contextlib.suppress(BatonError):
            if state.find(name) is not None:
                local.down(name)


def _run(command: list[str], log: Path, variables: Mapping[str, str]) -> str:
    """Standard output of `baton up`; interrupted, it is told so and cleans up itself."""
    with log.open("ab") as output:
        process = subprocess.Popen(
            command,
            env=dict(variables),
            stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE,
            stderr=output,
            text=True,
            start_new_session=True,  # Ctrl-C is for us; the command is told in order
        )
    try:
        said, _ = process.communicate(timeout=UP_S + END_S)
    except BaseException as exc:
        process.send_signal(signal.SIGTERM)
        with contextlib.suppress(subprocess.TimeoutExpired):
            process.communicate(timeout=END_S)
        if isinstance(exc, subprocess.TimeoutExpired):
            raise SetupFailed("`baton up` did not end in time") from exc
        raise
    if process.returncode:
        lines = log.read_text(errors="replace").strip().splitlines()
        raise SetupFailed("\n".join(lines[-6:]))
    return said


def _page(deployment: state.Deployment) -> str:
    """The engines' own metrics: Baton's gateway collects them, Ray's builder has Ray export them.

    Ray's agent is told every ten seconds, so what was counted just before may come later.
    """
    if deployment.builder == "baton":
        return fetch(f"{deployment.endpoint}/baton/engines/metrics")
    page = ""
    for file in (Path(deployment.folder) / "session_latest").glob("metrics_export_port_*"):
        with contextlib.suppress(OSError, http.client.HTTPException):
            page += fetch(f"http://127.0.0.1:{file.read_text(encoding='ascii').strip()}/metrics")
    return page


def _facts(deployment: state.Deployment) -> dict[str, Any]:
    """Who serves, and whether the endpoint is the engine's own HTTP app."""
    replicas = sorted({
        name for name, _ in _replicas(members(deployment.marker, deployment.folder)).values()
    })  # fmt: skip
    try:
        fetch(f"{deployment.endpoint}/version")
        own = True
    except urllib.error.HTTPError:
        own = False
    return {"replicas": replicas, "endpoint_is_the_engine": own}


def _replicas(processes: list[psutil.Process]) -> dict[int, tuple[str, psutil.Process]]:
    """Serve's replicas by pid, each with its deployment's name."""
    found = {}
    for process in processes:
        with contextlib.suppress(psutil.Error):
            match = _DEPLOYMENT.search(" ".join(process.cmdline()))
            if match is not None:
                found[process.pid] = (match.group(1), process)
    return found


def _kind(process: psutil.Process) -> str:
    """What a process is that is no replica: `haproxy`, `ray raylet`, `ray ServeController`."""
    title = process.cmdline()
    first = Path(title[0]).name if title else process.name()
    if first.startswith("haproxy"):
        return "haproxy"
    if first.startswith("python"):  # Ray's helpers in Python: the script says which
        scripts = [Path(part).stem for part in title if part.endswith(".py")]
        first = scripts[0] if scripts else "python"
    return f"ray {re.split('[^A-Za-z_]', first.removeprefix('ray::'))[0]}"


def parts_of(marker: str, folder: str) -> Parts:
    """A deployment's processes: the edge, each replica with what it started, and Ray itself."""
    everybody = members(marker, folder)
    parts: Parts = {}
    taken: set[int] = set()
    for name, process in _replicas(everybody).values():
        with contextlib.suppress(psutil.Error):
            own = [process, *process.children(recursive=True)]
            for part, processes in split(name.lower(), own).items():
                parts.setdefault(part, []).extend(processes)
            taken |= {one.pid for one in own}
    for process in everybody:
        if process.pid not in taken:
            with contextlib.suppress(psutil.Error):
                parts.setdefault(_kind(process), []).append(process)
    return parts
