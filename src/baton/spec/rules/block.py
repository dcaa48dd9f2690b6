"""What the `baton` block demands of the rest of the file."""

from __future__ import annotations

import os
from typing import TYPE_CHECKING

from baton.errors import ConfigRefused
from baton.spec.faults import shown
from baton.spec.key_file import keys_in_file, keys_in_text
from baton.spec.provider_url import sends_key_in_clear, url_fault
from baton.spec.rules.connector import NIXL_BACKENDS
from baton.spec.rules.registry import Finding, rule

if TYPE_CHECKING:
    from collections.abc import Iterator

    from baton.spec.faults import Path
    from baton.spec.view import AppView


@rule("BTN-191", "error", "EFA is required and not what the transfer would run on")
def efa(app: AppView) -> Iterator[Finding]:
    """UCX has no EFA transport: on an EFA machine it falls back to TCP, silently and slowly.

    NIXL's LIBFABRIC backend is the one that drives EFA, and both roles need it.

    Source: NIXL 1.3.2 LIBFABRIC plugin (providers `efa` and `tcp`); vLLM 0.29
    `nixl/base_worker.py`: without `backends` the agent is created with UCX alone.
    """
    if app.baton.transport.require != "efa":
        return
    related = (("required by", (*app.baton_path, "transport", "require")),)
    for role in app.roles:
        if not role.uses_nixl or not set(role.backends) <= set(NIXL_BACKENDS):
            continue  # a name that NIXL does not have is said by BTN-129
        path = role.kv_at("kv_connector_extra_config", "backends")
        if "LIBFABRIC" not in role.backends:
            asked = "backends" in role.extra
            yield Finding(
                path,
                f"{role.role} would use {', '.join(role.backends)}, which runs over TCP on an"
                " EFA machine",
                found=shown(role.extra["backends"]) if asked else "nothing (UCX)",
                allowed="[LIBFABRIC] in both roles",
                related=related,
                at_value=asked,
                cure="set kv_connector_extra_config: {backends: [LIBFABRIC]} in both roles",
            )
        elif len(role.backends) > 1:
            yield Finding(
                path,
                "with several backends NIXL chooses one itself",
                found=shown(role.backends),
                allowed="[LIBFABRIC]",
                cure="keep LIBFABRIC alone",
                severity="warning",
                related=related,
                at_value=True,
            )


@rule("BTN-192", "error", "a transport that the backends cannot provide")
def transport(app: AppView) -> Iterator[Finding]:
    """CUDA IPC and shared memory are UCX transports; NIXL's LIBFABRIC plugin has neither.

    A host buffer (`kv_buffer_device: cpu`) never uses CUDA IPC.

    Source: NIXL 1.3.2 LIBFABRIC plugin (providers `efa`, `tcp`); UCX `cuda_ipc`, `sysv`, `posix`.
    """
    require = app.baton.transport.require
    if require not in ("cuda_ipc", "shm"):
        return
    related = (("required by", (*app.baton_path, "transport", "require")),)
    for role in app.roles:
        if role.uses_nixl and "UCX" not in role.backends:
            yield Finding(
                role.kv_at("kv_connector_extra_config", "backends"),
                f"{require} is required, and {shown(role.backends)} cannot do it",
                found=shown(role.backends),
                allowed="[UCX]",
                cure="set backends: [UCX]",
                related=related,
                at_value=True,
            )
        elif (
            require == "cuda_ipc"
            and role.uses_nixl
            and (role.kv.get("kv_buffer_device") == "cpu" or role.on_cpu)
        ):
            yield Finding(
                role.kv_at("kv_buffer_device"),
                "cuda_ipc is required, and the KV lies in host memory",
                found="cpu",
                allowed="cuda",
                cure="remove kv_buffer_device",
                related=related,
            )


@rule("BTN-193", "error", "values of the block that contradict each other")
def block_values(app: AppView) -> Iterator[Finding]:
    """Ranges must not be empty, a provider needs a URL that can be called, keys a whole path.

    Source: `baton.engine.ports` takes the first free port of a range; `baton.gateway.overflow`
    posts below `base_url`; `baton.gateway.auth` reads `api_keys_file` where the gateway runs.
    """
    block, path = app.baton, app.baton_path
    engines = block.engines
    for low, high, name in (
        (engines.port_min, engines.port_max, "port_max"),
        (engines.side_channel_port_min, engines.side_channel_port_max, "side_channel_port_max"),
    ):
        if low > high:
            yield Finding(
                (*path, "engines", name),
                f"the range {low} to {high} is empty",
                found=str(high),
                allowed=f"{low} or more",
                cure=f"raise {name}",
            )
    wanted = sum(role.num_replicas for role in app.roles)
    room = engines.port_max - engines.port_min + 1
    if 0 < room < wanted <= 1000:  # noqa: PLR2004 - "auto" is no number to hold a range against
        yield Finding(
            (*path, "engines", "port_max"),
            f"{room} ports for {wanted} engine replicas: enough only if they run on several nodes",
            found=str(room),
            severity="warning",
            cure="widen engines.port_min and port_max",
        )
    if block.overflow is not None:
        url = block.overflow.base_url
        fault = url_fault(url)
        if fault is not None:
            yield Finding(
                (*path, "overflow", "base_url"),
                fault[0],
                # A URL with a password is not repeated.
                found=None if "@" in url else url,
                allowed="https://host/v1",
                at_value=True,
                cure=fault[1],
            )
        elif block.overflow.api_key_env is not None and sends_key_in_clear(url):
            yield Finding(
                (*path, "overflow", "base_url"),
                "the provider's key would cross the network unencrypted",
                found=url,
                allowed="https://…",
                at_value=True,
                severity="warning",
                cure="use the provider's https address",
            )
    file = block.auth.api_keys_file
    if file is not None and not file.startswith(("/", "~")):
        yield Finding(
            (*path, "auth", "api_keys_file"),
            "the path is relative, and gateway replicas do not run in this file's folder",
            found=file,
            allowed="an absolute path that each gateway's machine has",
            at_value=True,
            cure="write the whole path",
        )


@rule("BTN-194", "warning", "a `baton` block that Ray's own application cannot use")
def block_without_baton(app: AppView) -> Iterator[Finding]:
    """Ray's builder refuses keys that it does not know.

    So `baton up` leaves the block out when the import path is Ray's; `serve run` on the file itself
    would fail.

    Source: ray 2.60 `prefill_decode/builder.py`, `PDServingArgs` (extra keys forbidden).
    """
    if app.is_rays and "baton" in app.args:
        yield Finding(
            app.baton_path,
            "the `baton` block has no effect with Ray's own import_path and is left out",
            found="baton",
            cure="set import_path: baton:build_pd_openai_app",
            related=(("import_path", (*app.path, "import_path")),),
        )


@rule("BTN-199", "warning", "keys that this machine does not have, or that do not hold")
def keys_here(app: AppView) -> Iterator[Finding]:
    """Gateways read their keys where they run, and none starts without them.

    `auth.api_keys_file` may be on their machines only (a mounted secret), and the variables that
    `auth.api_keys_env` and `overflow.api_key_env` name may be set only there, so this is no error.
    `baton up` refuses to start without what is missing here. `--target cluster` leaves variables
    out.

    Source: `baton.spec.key_file`, which the gateway itself reads them with, and
    `baton.deploy.exposure`.
    """
    auth, overflow = app.baton.auth, app.baton.overflow
    path = auth.keys_path
    if path is not None and path.is_absolute():  # a relative one is BTN-193's
        try:
            keys_in_file(path)
        except ConfigRefused as exc:
            yield Finding(
                (*app.baton_path, "auth", "api_keys_file"),
                f"{path}, read here: {exc.fact}",
                found=auth.api_keys_file,
                at_value=True,
                cure="check the path, or take care that every gateway's machine has the file",
            )
    if app.machine is None:
        return
    if auth.api_keys_env is not None:
        try:
            keys_in_text(os.environ.get(auth.api_keys_env, ""), auth.api_keys_env)
        except ConfigRefused as exc:
            yield _not_here(app, ("auth", "api_keys_env"), auth.api_keys_env, exc.fact)
    name = None if overflow is None else overflow.api_key_env
    if name is not None and not os.environ.get(name, "").strip():
        fact = f"overflow.api_key_env names {name}, which is unset or empty"
        yield _not_here(app, ("overflow", "api_key_env"), name, fact)


def _not_here(app: AppView, where: Path, name: str, fact: str) -> Finding:
    return Finding(
        (*app.baton_path, *where),
        f"{fact} here",
        found=name,
        at_value=True,
        cure=f"set {name} before `baton up`, or take care that every gateway has it",
    )
