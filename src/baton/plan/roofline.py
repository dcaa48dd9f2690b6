"""Costs from published figures: products against FLOP/s, weights and KV against memory bandwidth.

The shares of the published peaks that real engines reach are assumptions, and stand here as such.
They are round figures, chosen with the H200 measurements of bench/plan_published.py at hand; how
far off they are there is in bench/results/plan_published.json. On other GPUs nobody has compared
them with anything: that is what `baton profile` is for.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

from baton.plan.costs import HandoffCost, KvShape, StepCosts

if TYPE_CHECKING:
    from baton.plan.devices import Gpu, Instance
    from baton.plan.model import ModelShape

GIB = 1024**3


@dataclass(frozen=True)
class Assumptions:
    """What no datasheet says. Shares are of published peaks."""

    product_share: float = 0.65
    """Of dense FLOP/s, in the products of a full prefill step."""
    attention_share: float = 0.5
    """Of dense FLOP/s, in prefill's attention."""
    memory_share: float = 0.8
    """Of memory bandwidth, in decode."""
    fabric_share: float = 0.5
    """Of a network's or link's bandwidth, in a transfer of KV: raw NIXL reads came to half of
    NVLink's 450 GB/s between two H200s. Over EFA nothing was measured."""
    step_s: float = 0.001
    """Launch and scheduling of each step."""
    collective_s: float = 12e-6
    """Each all-reduce of tensor parallelism beside its bytes; two a layer."""
    request_s: float = 0.006
    """HTTP, tokenizing and scheduling of a request."""
    handoff_s: float = 0.02
    """A handoff beside its bytes: descriptors, notification, decode's HTTP leg."""
    memory_utilization: float = 0.92
    """vLLM 0.29 `CacheConfig.gpu_memory_utilization`."""
    activations_bytes: float = 2.0 * GIB
    """Activations and CUDA graphs of each GPU: one to three GiB in practice."""


DEFAULTS = Assumptions()
TP_SIZES = (1, 2, 4, 8)


def kv_shape(model: ModelShape, kv_dtype: str = "auto") -> KvShape:
    """Bytes of KV over all workers."""
    facts = model.facts
    each = facts.kv_bytes_per_layer_token(kv_dtype)
    return KvShape(
        per_token=facts.full_layers * each,
        window_per_token=facts.sliding_layers * each,
        window_tokens=facts.sliding_window or 0,
        states=float(facts.mamba_layers * facts.state_bytes_per_layer),
    )


def kv_shards(model: ModelShape, tp: int) -> int:
    """Into how many parts TP cuts KV: heads are split, MLA's KV is whole on every worker."""
    return 1 if model.facts.is_mla else max(min(tp, model.facts.kv_heads), 1)


def kv_room(model: ModelShape, gpu: Gpu, tp: int, assumed: Assumptions = DEFAULTS) -> float:
    """Bytes of KV that an engine of `tp` GPUs holds, all workers together; negative: none."""
    each = gpu.memory_bytes * assumed.memory_utilization - assumed.activations_bytes
    return (each - model.weights_bytes / tp) * kv_shards(model, tp)


def can_split(model: ModelShape, tp: int) -> bool:
    """Whether vLLM takes this TP size: it divides heads and blocks of quantised weights evenly.

    KV heads are split, or where there are fewer than workers, copied evenly (vLLM 0.29
    `LlamaAttention`); MLA has none to split.
    """
    facts = model.facts
    if any(count % tp for count in (facts.attention_heads, *model.split_evenly)):
        return False
    if facts.is_mla or not facts.full_layers + facts.sliding_layers:
        return True
    return facts.kv_heads % tp == 0 or tp % facts.kv_heads == 0


def roofline(model: ModelShape, gpu: Gpu, tp: int, assumed: Assumptions = DEFAULTS) -> StepCosts:
    """Costs of one engine on `tp` GPUs of one instance."""
    peak = gpu.fp8_flops if model.computes_fp8 and gpu.fp8_flops else gpu.bf16_flops
    products = peak * assumed.product_share * tp
    memory = gpu.memory_bytes_per_s * assumed.memory_share
    head_bytes = model.embedding_bytes / (1 if _tied(model) else 2)
    activation = model.hidden_size * 2  # bfloat16
    layers = max(model.facts.layers, 1)
    link = gpu.link_bytes_per_s * assumed.fabric_share
    flops_per_token = 2.0 * model.active_parameters
    flops_per_sample = 2.0 * model.head_parameters

    def base(tokens: int, sequences: int) -> float:
        together = tokens + sequences
        # One prompt at least ends in the step, or will: its head is a small part of it.
        sampled = sequences + (1 if tokens else 0)
        compute = (flops_per_token * together + flops_per_sample * sampled) / products
        weights = (model.layer_bytes_read(together) + head_bytes) / tp / memory
        seconds = assumed.step_s + max(compute, weights)
        if tp > 1:
            # A ring all-reduce sends 2 (tp-1)/tp of its bytes over each link.
            sent = together * activation * 2 * (tp - 1) / tp / link
            seconds += 2 * layers * (assumed.collective_s + sent)
        return seconds

    return StepCosts(
        base=base,
        pair_s=model.attention_flops_per_pair / (gpu.bf16_flops * assumed.attention_share * tp),
        kv_byte_s=1.0 / (memory * kv_shards(model, tp)),
        kv=kv_shape(model),
        kv_capacity_bytes=max(kv_room(model, gpu, tp, assumed), 0.0),
        request_s=assumed.request_s,
    )


def _tied(model: ModelShape) -> bool:
    return model.embedding_parameters < 1.5 * model.head_parameters


def network_handoff(instance: Instance, assumed: Assumptions = DEFAULTS) -> HandoffCost:
    """Between two instances, over all of one's NICs together; nothing without EFA."""
    speed = instance.network_bytes_per_s * assumed.fabric_share if instance.has_efa else 0.0
    return HandoffCost(assumed.handoff_s, speed)


def link_handoff(gpu: Gpu, gpus: int, assumed: Assumptions = DEFAULTS) -> HandoffCost:
    """Between engines of `gpus` GPUs each in one instance."""
    return HandoffCost(assumed.handoff_s, gpu.link_bytes_per_s * assumed.fabric_share * gpus)
