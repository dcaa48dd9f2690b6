"""Tensor, pipeline, data and context parallelism: which pairs can hand KV over."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from baton.spec.faults import shown
from baton.spec.rules.registry import Finding, rule

if TYPE_CHECKING:
    from collections.abc import Iterator

    from baton.spec.view import AppView, RoleView


@rule("BTN-142", "error", "tensor parallel sizes that cannot hand KV over")
def tensor_parallel(app: AppView) -> Iterator[Finding]:
    """Decode's workers read from prefill's; how many read from how many follows from the two sizes.

    - One size must divide the other.
    - Decode larger: several decode workers read parts of one prefill worker. Always possible.
    - Prefill larger: one decode worker reads from several. Possible for MLA (the KV is the same on
      every worker), for models with Mamba layers, and otherwise only while prefill's TP is not
      larger than the model's number of KV heads, because beyond that heads are replicated.

    Source: vLLM 0.29 `kv_connector/utils.py`, `TransferTopology.tp_ratio` and `is_kv_replicated`;
    `nixl/base_worker.py`, `_validate_remote_agent_handshake`: `assert not (tp_ratio < 0 and
    is_kv_replicated)` unless MLA or Mamba.
    """
    prefill, decode = app.roles
    reads, writes = prefill.tp, decode.tp
    if reads == writes or reads < 1 or writes < 1 or not decode.uses_nixl:
        return
    common: dict[str, Any] = {
        "found": f"prefill {reads}, decode {writes}",
        "related": (("prefill", prefill.engine_at("tensor_parallel_size")),),
        "at_value": True,
    }
    path = decode.engine_at("tensor_parallel_size")
    if max(reads, writes) % min(reads, writes):
        yield Finding(
            path,
            f"TP {reads} and {writes}: one must divide the other",
            allowed="equal sizes, or one a multiple of the other",
            cure=f"set both to {min(reads, writes)}",
            **common,
        )
        return
    if reads < writes:
        return
    facts = app.facts
    if facts is None:
        yield Finding(
            path,
            f"prefill's TP {reads} is larger than decode's {writes}: vLLM takes that only if"
            f" the model has {reads} KV heads or more, MLA or Mamba layers",
            severity="warning",
            cure="make the model's config.json readable here (a folder, the hub cache or --online)"
            ", or use equal sizes",
            **common,
        )
    elif not facts.is_mla and not facts.has_mamba and reads > facts.kv_heads:
        yield Finding(
            path,
            f"prefill's TP {reads} is larger than decode's {writes} and than the model's"
            f" {facts.kv_heads} KV heads, which are then replicated",
            allowed=f"prefill TP up to {facts.kv_heads}, or equal sizes",
            cure=f"set both to {writes}",
            **common,
        )


@rule("BTN-143", "error", "pipeline parallelism that NIXL cannot hand over")
def pipeline_parallel(app: AppView) -> Iterator[Finding]:
    """Decode cannot be pipeline parallel: completed transfers are counted per consumer rank.

    Prefill can, when KV is pushed and the model has one kind of KV layer. With pull, decode asks
    one stage, sees fewer layers than its own, and the handshake fails.

    Source: vLLM 0.29 `nixl/base_worker.py`: "consumer (decode) does not support
    pipeline_parallel_size > 1", "does not support pipeline_parallel_size > 1 with hybrid KV cache
    layouts (HMA)", "Number of KV layers must match between prefill and decode".
    """
    prefill, decode = app.roles
    if decode.pp > 1 and decode.uses_nixl:
        yield Finding(
            decode.engine_at("pipeline_parallel_size"),
            "decode cannot be pipeline parallel",
            found=str(decode.pp),
            allowed="1",
            cure="use tensor_parallel_size",
            at_value=True,
        )
    if prefill.pp <= 1 or not prefill.uses_nixl:
        return
    path = prefill.engine_at("pipeline_parallel_size")
    if not prefill.pushes:
        yield Finding(
            path,
            "prefill can be pipeline parallel only when it pushes its KV",
            found=str(prefill.pp),
            allowed="1, or NixlPushConnector in both roles",
            cure="use tensor_parallel_size",
            at_value=True,
        )
    elif app.facts is not None and app.facts.is_hybrid:
        yield Finding(
            path,
            "this model has several kinds of KV layers, which pipeline stages cannot push",
            found=str(prefill.pp),
            allowed="1",
            cure="use tensor_parallel_size",
            at_value=True,
        )


@rule("BTN-147", "error", "data parallelism inside an engine")
def data_parallel(app: AppView) -> Iterator[Finding]:
    """Baton's replicas are one engine each; `num_replicas` is how there are more of them.

    `data_parallel_size` above 1 needs Ray's `DPServer` with its gang scheduling, and a side-channel
    port for each rank. Ray's own application has those classes.

    Source: ray 2.60 `prefill_decode/builder.py` (`DPPDPrefillServer`, `DPPDDecodeServer`).
    """
    if app.is_rays:
        return
    for role in app.roles:
        if role.dp > 1:
            yield Finding(
                role.engine_at("data_parallel_size"),
                "Baton runs no data parallel engines yet",
                found=str(role.dp),
                allowed="1",
                at_value=True,
                cure=f"set deployment_config: {{num_replicas: {role.dp}}} instead",
            )
        for key in ("data_parallel_rank", "data_parallel_external_lb", "data_parallel_hybrid_lb"):
            if role.engine.get(key) not in (None, False):
                yield Finding(
                    role.engine_at(key),
                    f"`{key}` is not for an engine that Ray Serve starts",
                    found=shown(role.engine[key]),
                    allowed="nothing",
                    cure="remove it",
                )


@rule("BTN-148", "error", "context parallelism that NIXL cannot hand over")
def context_parallel(app: AppView) -> Iterator[Finding]:
    """NIXL's pull connector takes no prefill context parallelism.

    Decode context parallelism it takes for MLA models only, of size 1 or of the whole TP group;
    push takes none.

    Source: vLLM 0.29 `vllm/config/vllm.py` ("NIXL does not support prefill context parallelism.",
    "must be 1 or equal to tensor_parallel_size", "only supported for MLA models");
    `nixl/connector.py`, `NixlPushConnector.__init__`; `nixl/base_worker.py`: "DCP is not supported
    for hybrid MLA+Mamba models."
    """
    for role in app.roles:
        if role.uses_nixl:
            yield from _prefill_context(role)
            yield from _decode_context(app, role)


def _prefill_context(role: RoleView) -> Iterator[Finding]:
    size = role.size("prefill_context_parallel_size")
    if size <= 1:
        return
    if role.connector == "NixlConnector" or role.kv_role != "kv_producer":
        yield Finding(
            role.engine_at("prefill_context_parallel_size"),
            f"{role.connector} takes no prefill context parallelism here",
            found=str(size),
            allowed="1",
            cure="use tensor_parallel_size",
            at_value=True,
        )


def _decode_context(app: AppView, role: RoleView) -> Iterator[Finding]:
    size = role.size("decode_context_parallel_size")
    if size <= 1:
        return
    message = None
    if role.pushes:
        message = "NixlPushConnector takes no decode context parallelism"
    elif size != role.tp:
        message = f"decode context parallelism {size} is neither 1 nor the TP size {role.tp}"
    elif app.facts is not None and not app.facts.is_mla:
        message = "decode context parallelism with NIXL is for MLA models only"
    elif app.facts is not None and app.facts.has_mamba:
        message = "decode context parallelism is not for models with MLA and Mamba layers"
    if message is not None:
        yield Finding(
            role.engine_at("decode_context_parallel_size"),
            message,
            found=str(size),
            allowed="1" if role.tp == 1 else f"1 or {role.tp}, for MLA models",
            at_value=True,
            cure="remove it",
        )
