"""Whether P/D pays, which layout it is, and what would have to change where none will do."""

from __future__ import annotations

import math
from collections import Counter
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Literal

from baton.errors import ModelFitsNowhere, ProfileRefused
from baton.plan.bounds import (
    UNCOUNTED,
    alone,
    decode_work_s,
    least_engines,
    prefill_work_s,
)
from baton.plan.devices import MIB, all_gpus, find_hardware, unnamed_hardware
from baton.plan.layouts import EngineKind
from baton.plan.model import NOT_READ
from baton.plan.roofline import DEFAULTS, TP_SIZES, can_split, kv_room, kv_shape, roofline
from baton.plan.search import MAX_SEQS, PREFILL_BUDGET, Search
from baton.plan.simulator import EngineLimits
from baton.plan.tried import Tried, shown_s

if TYPE_CHECKING:
    from collections.abc import Sequence

    from baton.plan.bounds import Promise
    from baton.plan.devices import Hardware
    from baton.plan.model import ModelShape
    from baton.plan.profile_file import Profile
    from baton.plan.traffic import Traffic

CLEARLY = 0.95
"""P/D has to be at least a twentieth cheaper: it is one more thing to run."""
_OF_A_KIND = 3
"""Of layouts that fail for the same reason, so many are shown."""
_SAME = 0.1
_MACHINE_GPUS = 8
Basis = Literal["measured", "modelled"]


@dataclass(frozen=True)
class Plan:
    """The answer."""

    disaggregate: bool
    why: str
    best: Tried | None
    layouts: tuple[Tried, ...]
    basis: Basis
    notes: tuple[str, ...]
    simulations: int

    def as_dict(self) -> dict[str, Any]:
        """For `--json`."""
        return {
            "disaggregate": self.disaggregate,
            "why": self.why,
            "best": self.best.as_dict() if self.best else None,
            "layouts": [tried.as_dict() for tried in self.layouts],
            "basis": self.basis,
            "notes": list(self.notes),
        }


def engine_kinds(
    model: ModelShape, hardware: Sequence[Hardware], longest: int
) -> tuple[list[EngineKind], list[Tried]]:
    """Kinds of engine that hold the model and the longest request, and those that do not, and why.

    Raises:
        ModelFitsNowhere: None does.
    """
    kinds: list[EngineKind] = []
    refused: list[Tried] = []
    for one in hardware:
        for tp in TP_SIZES:
            if tp > max(instance.gpus for instance in one.instances) or not can_split(model, tp):
                continue
            name = f"TP{tp} on {one.gpu.name}"
            needed = kv_shape(model).of(longest)
            room = kv_room(model, one.gpu, tp)
            if room < needed:
                why = _no_room(model, one, tp, room, needed, longest)
                refused.append(Tried(None, name, False, meets=False, bound="kv_memory", why=why))
                continue
            # On GPUs vLLM schedules ahead unless it is told not to.
            limits = EngineLimits(PREFILL_BUDGET, MAX_SEQS, async_scheduling=True)
            kinds.append(EngineKind(one, tp, roofline(model, one.gpu, tp), limits))
    if not kinds:
        cure = "quantised weights or a shorter context would take less"
        others = [name for name, gpu in all_gpus().items() if any(
            can_split(model, tp) and kv_room(model, gpu, tp) >= kv_shape(model).of(longest)
            for tp in TP_SIZES)]  # fmt: skip
        if others:
            cure = f"it would fit on up to 8 GPUs of one instance with {', '.join(others)}; {cure}"
        details = "; ".join(f"{tried.name}: {tried.why}" for tried in refused)
        raise ModelFitsNowhere(f"{model.name} fits on none of the devices: {details}", cure=cure)
    return kinds, refused


def _no_room(  # noqa: PLR0917 - figures of one sentence
    model: ModelShape, one: Hardware, tp: int, room: float, needed: float, longest: int
) -> str:
    if room <= 0:
        usable = one.gpu.memory_bytes * DEFAULTS.memory_utilization - DEFAULTS.activations_bytes
        return (f"weights take {_gib(model.weights_bytes / tp)} of each GPU's usable "
                f"{_gib(usable)}")  # fmt: skip
    return (f"{_gib(room)} are left for KV, and a request of {longest:,} tokens "
            f"needs {_gib(needed)}")  # fmt: skip


def modelled_notes(kinds: Sequence[EngineKind], model: ModelShape) -> list[str]:
    """Where the figures are from."""
    modelled = (
        "modelled: published peaks times assumed shares (docs/guides/planning.md); "
        "`baton profile` measures instead"
    )
    gpus = {kind.hardware.gpu.name: kind.hardware.gpu for kind in kinds}.values()
    notes = [
        modelled,
        *(f"{gpu.name}: {gpu.source.text} (read {gpu.source.date})" for gpu in gpus),
    ]
    left_out = [str(tp) for tp in TP_SIZES if not can_split(model, tp)]
    if left_out:
        notes.append(
            f"TP {', '.join(left_out)} is not planned: vLLM splits heads, and blocks of quantised "
            "weights, evenly"
        )
    if model.quantisation.endswith(NOT_READ):
        notes.append(f"weights: {model.quantisation}: they may be smaller than is reckoned")
    prices = {
        instance.price_source for kind in kinds for instance in kind.hardware.instances
        if instance.price_source is not None
    }  # fmt: skip
    notes.extend(sorted(f"prices: {source.text} (of {source.date})" for source in prices))
    return notes


def measured_kind(
    profile: Profile, hardware: Sequence[Hardware], model: ModelShape, traffic: Traffic
) -> tuple[EngineKind, list[str]]:
    """The one kind of engine that a profile knows: measured costs on the hardware it names.

    Raises:
        ModelFitsNowhere: Its KV has no room for the longest request.
        ProfileRefused: It was measured on another GPU than is asked for.
    """
    engine = profile.engine
    named = [one.gpu.name for one in hardware]
    if engine.gpu is not None and named and engine.gpu not in named:
        raise ProfileRefused(
            f"the profile was measured on {engine.gpu}, and --gpu names {', '.join(named)}",
            cure=f"plan with --gpu {engine.gpu}, or measure on the other",
        )
    chosen = next((one for one in hardware if one.gpu.name == engine.gpu), None)
    if chosen is None and engine.gpu in all_gpus() and not hardware:
        chosen = find_hardware(engine.gpu)
    if chosen is None:
        chosen = hardware[0] if hardware else unnamed_hardware(
            max(_MACHINE_GPUS, engine.tensor_parallel_size))  # fmt: skip
    costs = profile.step_costs()
    if not costs.fits(traffic.longest):
        raise ModelFitsNowhere(
            f"the measured engine holds {engine.kv_capacity_tokens:,} tokens of KV, and the "
            f"longest request has {traffic.longest:,}",
            cure="give the engine more memory, or leave such requests out",
        )
    notes = [f"measured {profile.measured_at} on an engine of `{engine.model}` with "
             + ", ".join(f"{k} {v}" for k, v in profile.versions.items())]  # fmt: skip
    notes += [f"the profile is of another version: {text}" for text in profile.differences()]
    said, known = model.facts.kv_bytes_per_token(), engine.kv_bytes_per_token
    if known and said and abs(known / said - 1) > _SAME:
        notes.append(
            f"the profile has {known:,.0f} bytes of KV a token and the model's config {said:,}: "
            "is it of this model?"
        )
    if engine.max_model_len is not None and traffic.longest > engine.max_model_len:
        notes.append(
            f"the measured engine took {engine.max_model_len:,} tokens, and the longest request "
            f"has {traffic.longest:,}: what is beyond is extrapolated"
        )
    if not profile.handoff and chosen.gpu.name in all_gpus():
        notes.append("the handoff was not measured: it is modelled from the fabric")
    elif not profile.handoff:
        notes.append(
            "P/D was not planned: the handoff was not measured, and without a GPU's name its "
            "fabric is unknown; measure with --decode-url, or add --gpu"
        )
    if engine.async_scheduling is None:
        notes.append(
            "the profile does not say whether the engine schedules ahead (async scheduling), "
            "and is taken as if not: measure again"
        )
    limits, apart = engine.limits(MAX_SEQS), profile.step_costs(apart=True)
    return EngineKind(chosen, engine.tensor_parallel_size, costs, limits, apart), notes


def judge(search: Search, refused: Sequence[Tried], basis: Basis, notes: Sequence[str]) -> Plan:
    """Run the search and say what it means."""
    search.run()
    together, apart = search.best(disaggregated=False), search.best(disaggregated=True)
    disaggregate, why = _decide(search, together, apart)
    best = apart if disaggregate else together
    if best is None:
        why = f"{why} {_nearest(search)}"
    shown = _shown(search, refused)
    more = list(notes)
    if not search.priced:
        more.append(
            "prices are not known for all instance types: compared by GPUs that are paid for; "
            "--price NAME=USD names one"
        )
    return Plan(disaggregate, why, best, shown, basis, tuple(more), search.simulations)


def _decide(search: Search, together: Tried | None, apart: Tried | None) -> tuple[bool, str]:
    if together is None or together.layout is None:
        if apart is None:
            return False, "No layout within the limits keeps the promise."
        near = search.nearest([t for t in search.tried if not t.disaggregated])
        reason = "nothing could be tried" if near is None else f"nearest is {near.name}: {near.why}"
        limit = f"without it nothing of up to {search.max_gpus} GPUs does, {reason}"
        return True, f"Only P/D keeps the promise: {apart.name}; {limit}."
    if apart is None or apart.layout is None:
        return False, (
            f"Don't. {together.name} keeps the promise without P/D, and no P/D layout of up to "
            f"{search.max_gpus} GPUs keeps it."
        )
    ours, theirs = search.cost(apart.layout), search.cost(together.layout)
    paid, paid_without = _paid(search, apart), _paid(search, together)
    why = (
        f"Don't. {together.name} keeps the promise without P/D with {paid_without}; "
        f"the cheapest P/D, {apart.name}, takes {paid}."
    )
    cheaper = ours[0] < CLEARLY * theirs[0]
    smaller = ours[0] <= theirs[0] and ours[2] < CLEARLY * theirs[2]
    if cheaper or smaller:
        why = f"{apart.name} does with {paid} what takes {paid_without} without P/D"
        return True, f"{why} ({together.name})."
    if together.layout.gpus == 1:
        why = f"Don't. One GPU is enough: {together.name} ({together.why}). P/D needs two engines."
    return False, why


def _paid(search: Search, tried: Tried) -> str:
    layout = tried.layout
    if layout is None:
        return "nothing"
    gpus = f"{layout.gpus} GPUs" if layout.gpus > 1 else "1 GPU"
    if layout.gpus_bought > layout.gpus:
        gpus += f" of {layout.gpus_bought} paid for"
    if search.priced and layout.usd_per_hour is not None:
        return f"{layout.usd_per_hour:.2f} USD an hour ({gpus})"
    return gpus


def _nearest(search: Search) -> str:
    """By how much the promise is missed, and what could be promised."""
    near, said = search.nearest(search.tried), []
    if near is not None:
        promise = search.promise
        ttft, tpot = near.ttft_s or math.inf, near.tpot_s or 0.0
        load = "under this load" if near.simulated else "with nobody else there"
        parts = [
            f"{name} by {shown_s(took - promised)}"
            for name, took, promised in (
                ("TTFT", ttft, promise.ttft_s), ("TPOT", tpot, promise.tpot_s))
            if took > promised
        ]  # fmt: skip
        missed = " and ".join(parts) or "nothing but the load"
        said.append(
            f"Nearest is {near.name}: it misses {missed} {load}. What it would keep there: "
            f"TTFT {shown_s(ttft)} and TPOT {shown_s(tpot)}."
        )
    if search.too_many:
        least = min(search.too_many)
        many = f"{least:,} GPUs at least" if least < UNCOUNTED else "more GPUs than can be counted"
        said.append(f"What would be in time alone takes {many} for this load, and --max-gpus is "
                    f"{search.max_gpus}.")  # fmt: skip
    return " ".join(said) or "Nothing could be tried: see the reasons of each layout."


def what_would(model: ModelShape, traffic: Traffic, promise: Promise) -> str:
    """Which GPUs of the table keep the promise for a lone request, and how many the load takes."""
    found = []
    for name, gpu in all_gpus().items():
        least: tuple[int, int] | None = None
        for tp in TP_SIZES:
            if not can_split(model, tp) or kv_room(model, gpu, tp) < kv_shape(model).of(
                traffic.longest
            ):
                continue
            costs = roofline(model, gpu, tp)
            times = alone(costs, costs, traffic, promise, PREFILL_BUDGET)
            if times.ttft_s > promise.ttft_s or times.tpot_s > promise.tpot_s:
                continue
            work = prefill_work_s(costs, traffic, PREFILL_BUDGET) + decode_work_s(
                costs, EngineLimits(PREFILL_BUDGET, MAX_SEQS), traffic, promise.tpot_s
            )
            gpus = tp * least_engines(work, traffic, promise)
            least = min(least or (gpus, tp), (gpus, tp))
        if least is not None:
            many = f"{least[0]:,} GPU{'s' if least[0] > 1 else ''} at least for the load"
            load = many if least[0] < UNCOUNTED else "no load"
            found.append(f"TP{least[1]} on {name} ({load})")
    if not found:
        return "No GPU of the table keeps it even for a request that is alone: promise less."
    return "A request that is alone would be in time with " + ", ".join(found) + "."


def _shown(search: Search, refused: Sequence[Tried]) -> tuple[Tried, ...]:
    """What keeps the promise by cost, then for each other layout why not, simulated ones first."""
    meets = sorted((t for t in search.tried if t.meets), key=search.order)
    rest = sorted(
        (t for t in search.tried if not t.meets),
        key=lambda t: (not t.simulated, *search.order(t)),
    )
    chosen: dict[str, Tried] = {t.name: t for t in meets}
    of_a_kind: Counter[tuple[str, bool]] = Counter()
    for tried in (*rest, *refused):
        kind = (tried.bound, tried.disaggregated)
        if tried.name not in chosen and of_a_kind[kind] < _OF_A_KIND:
            of_a_kind[kind] += 1
            chosen[tried.name] = tried
    return tuple(chosen.values())


def _gib(size: float) -> str:
    return f"{size / (1024 * MIB):.1f} GiB"
