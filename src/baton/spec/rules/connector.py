"""Each role's own `kv_transfer_config`: connector, direction, backends, buffer."""

from __future__ import annotations

from typing import TYPE_CHECKING

from baton.spec import catalog
from baton.spec.faults import shown
from baton.spec.rules.registry import Finding, rule
from baton.spec.suggest import nearest
from baton.spec.view import NIXL_PULL, NIXL_PUSH, AppView, RoleView

if TYPE_CHECKING:
    from collections.abc import Iterator

# The plugins in NIXL 1.3.2's wheel (`nixl_cu13.libs/nixl/libplugin_*.so`). The first three reach
# another engine; the others are for files and object stores.
TRANSFER_BACKENDS = ("UCX", "LIBFABRIC", "GPUNETIO")
NIXL_BACKENDS = (
    *TRANSFER_BACKENDS,
    "GDS",
    "GDS_MT",
    "POSIX",
    "OBJ",
    "INFINIA",
    "GUSLI",
    "AZURE_BLOB",
)

_FRAGMENT = "kv_transfer_config: {{kv_connector: NixlConnector, kv_role: {role}}}"
_ROLE_OF = {"prefill": "kv_producer", "decode": "kv_consumer"}


@rule("BTN-120", "error", "a KV connector that vLLM does not have")
def connector_name(app: AppView) -> Iterator[Finding]:
    """A connector is looked up by its exact name when the engine starts.

    A name that comes with `kv_connector_module_path` is the user's own class and is let through.

    Source: vLLM 0.29 `vllm/distributed/kv_transfer/kv_connector/factory.py`,
    `KVConnectorFactory.get_connector_class`: "Unsupported connector type".
    """
    known = catalog.connectors()
    for role in app.roles:
        name = role.connector
        if name is None or name in known or role.kv.get("kv_connector_module_path"):
            continue
        near = nearest(name, known)
        yield Finding(
            role.kv_at("kv_connector"),
            f"vLLM has no KV connector `{name}`",
            found=name,
            allowed=", ".join(known),
            at_value=True,
            cure=f"did you mean `{near}`?" if near else "use NixlConnector",
        )


@rule("BTN-121", "error", "a `kv_role` that goes against the role")
def kv_direction(app: AppView) -> Iterator[Finding]:
    """Prefill has to produce KV and decode has to consume it.

    `kv_both` does either (vLLM 0.29 logs that it is deprecated). With `kv_producer` on decode the
    engine starts and the first request finds no KV.

    Source: vLLM 0.29 `vllm/config/kv_transfer.py`, `KVProducer` and `KVConsumer`;
    `nixl/connector.py`, `NixlBaseConnector.__init__`.
    """
    for role in app.roles:
        wanted = _ROLE_OF[role.role]
        other = _ROLE_OF["decode" if role.role == "prefill" else "prefill"]
        if role.kv_role == other:
            yield Finding(
                role.kv_at("kv_role"),
                f"{role.role} is `{other}`",
                found=other,
                allowed=f"{wanted} or kv_both",
                cure=f"set kv_role: {wanted}",
                at_value=True,
            )


@rule("BTN-126", "error", "no KV connector is configured")
def connector_missing(app: AppView) -> Iterator[Finding]:
    """Without a KV connector in both roles there is nothing to hand over.

    vLLM wants `kv_role` beside `kv_connector`. Baton supplies the whole of it when
    `import_path` is Baton's and `kv_transfer_config` is missing (BTN-211); with Ray's own import
    path it has to be in the file.

    Source: ray 2.60 `prefill_decode/builder.py`, `_validate_kv_transfer_config`; vLLM 0.29
    `vllm/config/kv_transfer.py`, `__post_init__`; ray `llm_config.py`,
    `_setup_kv_connector_backend`: "Connector type is not specified."
    """
    for role in app.roles:
        if not role.config:
            continue
        fragment = _FRAGMENT.format(role=_ROLE_OF[role.role])
        if role.engine.get("kv_transfer_config") is None:
            yield Finding(
                role.engine_at("kv_transfer_config"),
                f"{role.role} has no `kv_transfer_config`",
                found="nothing",
                allowed="a mapping with kv_connector and kv_role",
                cure=f"add {fragment}",
            )
        elif role.kv.get("kv_connector") is None:
            yield Finding(
                role.kv_at("kv_connector"),
                "`kv_connector` is missing",
                found="nothing",
                allowed=", ".join((*NIXL_PULL, *NIXL_PUSH)),
                cure="add kv_connector: NixlConnector",
            )
        elif role.kv.get("kv_role") is None:
            yield Finding(
                role.kv_at("kv_role"),
                "`kv_role` is missing; vLLM wants it with a connector",
                found="nothing",
                allowed="kv_producer, kv_consumer, kv_both",
                cure=f"add kv_role: {_ROLE_OF[role.role]}",
            )


@rule("BTN-127", "error", "a connector whose protocol Baton's gateway does not speak")
def connector_protocol(app: AppView) -> Iterator[Finding]:
    """Baton's gateway speaks the handoff of vLLM's NIXL pull connector.

    Pull: prefill answers with `kv_transfer_params`, decode reads the blocks. `NixlPushConnector`
    wants decode registered before prefill ends, and the other connectors have protocols of their
    own; with `import_path: ray.serve.llm:build_pd_openai_app` Ray's application may run them.

    Source: vLLM 0.29 `nixl/push_scheduler.py` (decode registers its blocks first);
    ray 2.60 `kv_transfer/base.py` (`concurrent_handoff`, `requires_peer_binding`).
    """
    if app.is_rays:
        return
    for role in app.roles:
        name = role.connector
        if name is None or name in NIXL_PULL or name not in catalog.connectors():
            continue
        yield Finding(
            role.kv_at("kv_connector"),
            f"Baton's gateway cannot hand over through `{name}`",
            found=name,
            allowed="NixlConnector",
            at_value=True,
            cure="use NixlConnector, or import_path: ray.serve.llm:build_pd_openai_app",
        )


@rule("BTN-124", "warning", "settings of other connectors, without effect here")
def left_overs(app: AppView) -> Iterator[Finding]:
    """NIXL's connectors read none of these.

    `kv_rank`, `kv_parallel_size`, `kv_ip`, `kv_port` and `kv_buffer_size` belong to older
    connectors.

    Source: vLLM 0.29 `vllm/config/kv_transfer.py` (documented for the P2P and TorchDistributed
    connectors); no use of these fields below `nixl/`.
    """
    for role in app.roles:
        if not role.uses_nixl:
            continue
        for key in ("kv_rank", "kv_parallel_size", "kv_ip", "kv_port", "kv_buffer_size"):
            if key in role.kv:
                yield Finding(
                    role.kv_at(key),
                    f"`{key}` has no effect with {role.connector}",
                    found=shown(role.kv[key]),
                    cure="remove it",
                )


@rule("BTN-130", "warning", "a connector setting that nothing reads")
def extra_config(app: AppView) -> Iterator[Finding]:
    """`kv_connector_extra_config` is free-form: a misspelt key has no effect and no message.

    Source: vLLM 0.29 `nixl/*.py`, every call of `get_from_extra_config`.
    """
    known = catalog.vllm()["nixl_extra_config"]
    for role in app.roles:
        if not role.uses_nixl:
            continue
        for key in role.extra:
            if key in known or key == "enable_cross_layers_blocks":
                continue
            near = nearest(key, known)
            yield Finding(
                role.kv_at("kv_connector_extra_config", key),
                f"`{key}` has no effect: vLLM's NIXL connector does not read it",
                found=str(key),
                allowed=", ".join(known),
                cure=f"did you mean `{near}`?" if near else "remove it",
            )


@rule("BTN-125", "note", "`kv_both` is deprecated")
def deprecated_both(app: AppView) -> Iterator[Finding]:
    """At start vLLM 0.29 warns that `kv_both` will be removed for NixlConnector.

    It works today; `kv_producer` for prefill and `kv_consumer` for decode do the same.

    Source: vLLM 0.29 `nixl/connector.py`, `NixlBaseConnector.__init__`.
    """
    for role in app.roles:
        if role.uses_nixl and role.kv_role == "kv_both":
            yield Finding(
                role.kv_at("kv_role"),
                "`kv_both` is deprecated in vLLM 0.29",
                found="kv_both",
                cure=f"set kv_role: {_ROLE_OF[role.role]}",
                at_value=True,
            )


@rule("BTN-128", "error", "a KV buffer device that NIXL does not take")
def buffer_device(app: AppView) -> Iterator[Finding]:
    """NIXL's connector takes `cuda` and `cpu` on a GPU, `cpu` alone on a CPU.

    Source: vLLM 0.29 `nixl/utils.py`, `_NIXL_SUPPORTED_DEVICE`; checked in `base_worker.py`.
    """
    for role in app.roles:
        device = role.kv.get("kv_buffer_device")
        if not role.uses_nixl or not isinstance(device, str):
            continue
        allowed = ("cpu",) if role.on_cpu else ("cuda", "cpu", "xpu")
        if device not in allowed:
            where = "a CPU engine" if role.on_cpu else "NIXL's connector"
            near = nearest(device, allowed)
            yield Finding(
                role.kv_at("kv_buffer_device"),
                f"{where} cannot use a `{device}` KV buffer",
                found=device,
                allowed=", ".join(allowed),
                at_value=True,
                cure=f"did you mean `{near}`?" if near else f"set kv_buffer_device: {allowed[0]}",
            )


@rule("BTN-129", "error", "a NIXL backend that does not exist")
def backend_names(app: AppView) -> Iterator[Finding]:
    """NIXL creates the backends in `kv_connector_extra_config.backends` by their plugin names.

    An unknown one fails when the worker starts. Both roles need one in common, or the handshake
    finds no way to the other side.

    Source: vLLM 0.29 `nixl/base_worker.py` (`backends`, default UCX, passed to
    `nixl_agent_config`); NIXL 1.3.2 plugins.
    """
    for role in app.roles:
        if not role.uses_nixl or "backends" not in role.extra:
            continue
        asked = role.extra["backends"]
        path = role.kv_at("kv_connector_extra_config", "backends")
        if not isinstance(asked, list) or not asked:
            yield Finding(
                path,
                "`backends` must be a list of NIXL backends",
                found=shown(asked),
                allowed=f"a list of {', '.join(TRANSFER_BACKENDS)}",
                cure=_backend_cure(asked, None) if asked else "write backends: [UCX]",
                at_value=True,
            )
            continue
        for index, name in enumerate(asked):
            if name in NIXL_BACKENDS or "NIXL_PLUGIN_DIR" in role.env_vars:
                continue  # a plugin of the user's own is none of our business
            near = nearest(name, NIXL_BACKENDS)
            yield Finding(
                (*path, index),
                f"NIXL has no backend `{shown(name)}`",
                found=shown(name),
                allowed=", ".join(NIXL_BACKENDS),
                at_value=True,
                cure=_backend_cure(name, near),
            )
    yield from _no_common_backend(app.prefill, app.decode)


def _backend_cure(name: object, near: str | None) -> str:
    parts = [part.strip(" '\"") for part in str(name).strip("[]").split(",")]
    if len(parts) > 1 and set(parts) <= set(NIXL_BACKENDS):
        return f"write a list: backends: [{', '.join(parts)}]"
    return f"did you mean `{near}`?" if near else "write backends: [UCX], or [LIBFABRIC]"


def _no_common_backend(prefill: RoleView, decode: RoleView) -> Iterator[Finding]:
    if not (prefill.uses_nixl and decode.uses_nixl):
        return
    ours, theirs = set(prefill.backends), set(decode.backends)
    if ours & theirs or not (ours | theirs) <= set(NIXL_BACKENDS):
        return
    path = decode.kv_at("kv_connector_extra_config", "backends")
    other = prefill.kv_at("kv_connector_extra_config", "backends")
    yield Finding(
        path,
        "prefill and decode have no NIXL backend in common",
        found=f"decode {shown(decode.backends)}, prefill {shown(prefill.backends)}",
        allowed="one backend in both",
        cure="give both roles the same backends",
        related=(("prefill", other),),
    )
