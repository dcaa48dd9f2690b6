"""Environment variables of the engines: gone, misspelt, or one value for several replicas."""

from __future__ import annotations

from typing import TYPE_CHECKING

from baton.spec import catalog
from baton.spec.faults import Path, shown
from baton.spec.rules.registry import Finding, rule
from baton.spec.suggest import nearest
from baton.spec.typecheck import fits

if TYPE_CHECKING:
    from collections.abc import Iterator

    from baton.spec.view import AppView, RoleView

HOST = "VLLM_NIXL_SIDE_CHANNEL_HOST"
PORT = "VLLM_NIXL_SIDE_CHANNEL_PORT"

_GONE = {
    "VLLM_NIXL_ABORT_REQUEST_TIMEOUT": (
        "gone since vLLM 0.22",
        "set kv_connector_extra_config: {kv_lease_duration: 480} in kv_transfer_config (seconds)",
    ),
    "NIXL_BACKEND": (
        "never read by vLLM",
        "set kv_connector_extra_config: {backends: [UCX]} in kv_transfer_config",
    ),
    "VLLM_USE_V1": ("gone: vLLM 0.29 has one engine", "remove it"),
    "VLLM_ATTENTION_BACKEND": (
        "no longer read by vLLM 0.29",
        "set engine_kwargs: {attention_backend: …}",
    ),
}


def _env_path(app: AppView, role: RoleView, name: str) -> Path:
    """Where the variable is really set: in the role, or for the whole application."""
    if name in role.own_env_vars:
        return role.env_at(name)
    return (*app.path, "runtime_env", "env_vars", name)


@rule("BTN-150", "error", "one side-channel address for several replicas")
def side_channel_host(app: AppView) -> Iterator[Finding]:
    """Every engine tells the others where its side channel is.

    With the address fixed in the file, replicas on other nodes announce one that is not theirs.
    Left out, Ray and Baton fill in each replica's own node address.

    Source: vLLM 0.29 `nixl/base_scheduler.py` (`side_channel_host`); ray 2.60
    `kv_transfer/nixl.py`, `_set_side_channel_host` keeps what is set.
    """
    for role in app.roles:
        host = role.env_vars.get(HOST)
        if host and role.num_replicas > 1:
            yield Finding(
                _env_path(app, role, HOST),
                f"one side-channel address for {role.num_replicas} {role.role} replicas",
                found=shown(host),
                allowed="nothing: each replica announces its own node",
                cure=f"remove {HOST}",
                related=((f"{role.role} replicas", _replicas_at(role)),),
            )


def _replicas_at(role: RoleView) -> Path:
    key = "autoscaling_config" if "autoscaling_config" in role.deployment else "num_replicas"
    return role.at("deployment_config", key)


@rule("BTN-151", "warning", "one side-channel port for several engines")
def side_channel_port(app: AppView) -> Iterator[Finding]:
    """Two engines on one node cannot both listen on the port.

    Left out, Baton takes a free port of `baton.engines` for each replica, and Ray one by rank.

    Source: vLLM 0.29 `nixl/base_scheduler.py` (`side_channel_port`); ray 2.60
    `kv_transfer/nixl.py`, `_set_side_channel_port` keeps what is set.
    """
    prefill, decode = app.roles
    for role in app.roles:
        if role.env_vars.get(PORT) and role.num_replicas > 1:
            yield Finding(
                _env_path(app, role, PORT),
                f"one side-channel port for {role.num_replicas} {role.role} replicas: two on one"
                " node collide",
                found=shown(role.env_vars[PORT]),
                cure=f"remove {PORT}",
            )
    shared = prefill.env_vars.get(PORT)
    if shared and shared == decode.env_vars.get(PORT):
        yield Finding(
            _env_path(app, decode, PORT),
            "prefill and decode have the same side-channel port: on one node they collide",
            found=shown(shared),
            cure=f"remove {PORT}",
            related=(("prefill", _env_path(app, prefill, PORT)),),
        )


@rule("BTN-153", "error", "an environment variable that is no number")
def numeric_variables(app: AppView) -> Iterator[Finding]:
    """`VLLM_CPU_KVCACHE_SPACE: 1GB` ends the engine with a `ValueError` as soon as it is read.

    Only variables that vLLM turns into a number without looking are checked. What Ray expands
    (`$NAME`) is left alone.

    Source: vLLM 0.29 `vllm/envs.py`, `int(os.getenv(…))` and `float(os.getenv(…))`.
    """
    kinds: dict[str, str] = catalog.vllm()["environment_numbers"]
    seen: set[Path] = set()
    for role in app.roles:
        for name, value in role.env_vars.items():
            kind = kinds.get(name) if isinstance(name, str) else None
            path = _env_path(app, role, str(name))
            if kind is None or path in seen or not isinstance(value, str):
                continue
            if "$" in value or fits(kind, value):
                continue
            seen.add(path)
            unit = "a number of GiB" if name == "VLLM_CPU_KVCACHE_SPACE" else "a number"
            yield Finding(
                path,
                f"`{name}` must be {'a whole number' if kind == 'int' else 'a number'}",
                found=shown(value),
                allowed="a whole number" if kind == "int" else "a number",
                cure=f"write {unit} in quotes, without a unit",
                at_value=True,
            )


@rule("BTN-152", "warning", "an environment variable without effect")
def variables_without_effect(app: AppView) -> Iterator[Finding]:
    """Variables that vLLM no longer reads, or never did. A misspelt `VLLM_…` is only logged.

    Source: vLLM 0.29 `vllm/envs.py` (`environment_variables`, `validate_environ`);
    the backend comes from `kv_connector_extra_config.backends` alone (`nixl/base_worker.py`).
    """
    known = catalog.vllm()["environment"]
    seen: set[Path] = set()
    for role in app.roles:
        for name in role.env_vars:
            path = _env_path(app, role, str(name))
            if path in seen:
                continue
            seen.add(path)
            if name in _GONE:
                why, cure = _GONE[name]
                yield Finding(path, f"`{name}` has no effect: {why}", found=str(name), cure=cure)
            elif str(name).upper().startswith("VLLM_") and name not in known:
                near = nearest(name, known)
                yield Finding(
                    path,
                    f"vLLM has no environment variable `{name}`",
                    found=str(name),
                    cure=f"did you mean `{near}`?" if near else "remove it",
                    # Then vLLM raises instead of logging (`validate_environ`, `hard_fail`).
                    severity="error" if role.engine.get("fail_on_environ_validation") else None,
                )
