"""`profile.json`: what was measured on one engine, with which versions, and the costs it comes to.

Fitted, and the misfit of each point kept beside it:

    first token of n tokens                c(n) + q x n^2 / 2     c linear between measured lengths
    step of b sequences of n tokens        d(b) + s x b n         d linear between measured batches
    handoff of n tokens                    a + n x bytes a token / bandwidth
      more into a busy engine              e + g x n, of which its answers stand still h + i x n
    what a prompt adds to a running step   c(n) - d(1) - r + q x n^2 / 2

`r` is the request's own (HTTP, tokenizing): what a first token takes beyond what it costs answers
beside it. A prompt longer than a step's budget is read in several. Where the engine's bytes a token
are not known everything is reckoned in tokens: one token is one byte, in KV and handoff.
"""

from __future__ import annotations

import math
import statistics
from typing import TYPE_CHECKING, Self

from pydantic import Field, ValidationError, model_validator

from baton.errors import ProfileRefused
from baton.plan.costs import Beside, HandoffCost, KvShape, StepCosts, Uneven, Wake
from baton.plan.fits import Line, PrefillCurve, ascending, decode_line, handoff_line, prefill_curve
from baton.plan.simulator.owner import EngineLimits
from baton.spec.matched import MATCHED
from baton.spec.schema import Frozen

if TYPE_CHECKING:
    from pathlib import Path

FORMAT = 2
NOISE = 0.1
"""Two engines that share nothing come out so far from each other by chance."""
COMPARED = ("vllm", "nixl")
"""Versions that change what an engine takes."""


class PrefillPoint(Frozen):
    """`batch` prompts at once: seconds until the last of them had its token."""

    tokens: int = Field(ge=1)
    batch: int = Field(ge=1)
    seconds: float = Field(gt=0)
    samples: int = Field(ge=1)


class DecodePoint(Frozen):
    """Seconds between two tokens of each of `batch` streams of about `context` tokens."""

    batch: int = Field(ge=1)
    context: int = Field(ge=1)
    step_s: float = Field(gt=0)
    samples: int = Field(ge=1)


class HandoffPoint(Frozen):
    """How much later the first token comes than without P/D, less a step of decode."""

    tokens: int = Field(ge=1)
    seconds: float = Field(ge=0)
    samples: int = Field(ge=1)
    busy_s: float = Field(default=0.0, ge=0)
    """How much longer it takes into an engine that writes answers."""
    holds_s: float = Field(default=0.0, ge=0)
    """How much longer those answers take for it."""


class MixedPoint(Frozen):
    """How much longer running answers take for a prompt of so many tokens beside them."""

    tokens: int = Field(ge=1)
    seconds: float = Field(ge=0)
    samples: int = Field(ge=1)


class WakePoint(Frozen):
    """After `pause_s` without work, what takes `x` seconds takes `fixed_s + share x` longer."""

    pause_s: float = Field(gt=0)
    fixed_s: float = Field(ge=0)
    share: float = Field(ge=0)


class BesideFound(Frozen):
    """By what share prompts and steps take longer while the other engine is busy too."""

    reading: float = Field(default=0.0, ge=0)
    writing: float = Field(default=0.0, ge=0)
    samples: int = Field(default=0, ge=0)


class Calibration(Frozen):
    """By what first tokens, steps, waking and engines beside take longer in traffic than in a row.

    `first_s` is what every first token takes more, in seconds. `uneven_*` are deviations of the
    logarithm of what equal work takes (`plan.calibrate`).
    """

    first: float = Field(default=1.0, gt=0)
    first_s: float = 0.0
    step: float = Field(default=1.0, gt=0)
    wake: float = Field(default=1.0, ge=0)
    wake_long: float = Field(default=1.0, ge=0)
    """After the longest pause that was measured, where `wake` is after the shortest; in between by
    turns."""
    beside_first: float = Field(default=1.0, ge=0)
    uneven_first: float = Field(default=0.0, ge=0)
    uneven_step: float = Field(default=0.0, ge=0)
    answers: int = Field(default=0, ge=0)


class EngineFacts(Frozen):
    """What the engine says of itself. None where it does not."""

    model: str
    max_model_len: int | None = None
    kv_capacity_tokens: int | None = None
    kv_bytes_per_token: float | None = None
    gpu: str | None = None
    tensor_parallel_size: int = Field(default=1, ge=1)
    max_num_batched_tokens: int = Field(default=2048, ge=1)
    async_scheduling: bool | None = None
    """Whether it puts a step together while the one before it runs (`plan.measure_mixed`). None
    where that was not measured, or nothing told it: taken as not."""

    def limits(self, max_seqs: int) -> EngineLimits:
        """In the simulator, with so many sequences at most: an engine does not say how many."""
        return EngineLimits(self.max_num_batched_tokens, max_seqs, bool(self.async_scheduling))


class Profile(Frozen):
    """One engine, measured."""

    format: int
    measured_at: str
    versions: dict[str, str]
    engine: EngineFacts
    prefill: tuple[PrefillPoint, ...] = Field(min_length=2)
    decode: tuple[DecodePoint, ...] = Field(min_length=1)
    handoff: tuple[HandoffPoint, ...] = ()
    mixed: tuple[MixedPoint, ...] = ()
    wake: tuple[WakePoint, ...] = ()
    """Pauses ascending."""
    beside: BesideFound = BesideFound()
    calibration: Calibration = Calibration()
    """Of an engine that does both phases."""
    calibration_apart: Calibration = Calibration()
    """Of the two, with the handoff between them."""

    @model_validator(mode="after")
    def _lengths_differ(self) -> Self:
        least = 2
        if len({point.tokens * point.batch for point in self.prefill}) < least:
            raise ValueError("prefill was measured at one length only: no line goes through it")
        pauses = [point.pause_s for point in self.wake]
        if pauses != sorted(set(pauses)):
            raise ValueError("pauses of wake do not ascend")
        return self

    @property
    def bytes_per_token(self) -> float:
        """1 where it is not known: tokens are the unit then."""
        return self.engine.kv_bytes_per_token or 1.0

    def step_costs(self, *, apart: bool = False) -> StepCosts:
        """Costs for the simulator, of an engine of a P/D pair or of one by itself."""
        factors = self.calibration_apart if apart else self.calibration
        sequence_s, context_s = decode_line(self.decode)
        curve = self._curve(sequence_s(1))
        first, step = factors.first, factors.step
        whole_s = self._first_token_line(curve)
        # A first token is a step's launch, what prompts add to it, and the request's own.
        launch_s = sequence_s(1)
        if launch_s > whole_s(1):  # not all of it is in a step that only reads
            launch_s = min(curve.fixed_s, whole_s(1))
        request_s = self._request_s(whole_s, curve, launch_s)

        def base(tokens: int, sequences: int) -> float:
            if not tokens:
                return step * sequence_s(sequences)
            # Weights are read once, for prompts and sequences together.
            beside = max(sequence_s(sequences), launch_s) if sequences else launch_s
            return first * (whole_s(tokens) - request_s - launch_s) + step * beside

        capacity = self.engine.kv_capacity_tokens
        return StepCosts(
            base=base,
            pair_s=first * curve.pair_s,
            kv_byte_s=step * context_s / self.bytes_per_token,
            kv=KvShape(self.bytes_per_token),
            kv_capacity_bytes=math.inf if capacity is None else capacity * self.bytes_per_token,
            request_s=max(first * request_s + factors.first_s, 0.0),
            wake=self._waking(factors),
            uneven=Uneven(factors.uneven_first, factors.uneven_step),
            beside=Beside(
                factors.beside_first * _clear(self.beside.reading),
                _clear(self.beside.writing),
            ),
        )

    def _waking(self, factors: Calibration) -> Wake:
        last = max(len(self.wake) - 1, 1)
        points = []
        for turn, point in enumerate(self.wake):
            factor = factors.wake + (factors.wake_long - factors.wake) * turn / last
            points.append((point.pause_s, factor * point.fixed_s, factor * point.share))
        return Wake(tuple(points))

    def _curve(self, launch_s: float) -> PrefillCurve:
        """Of prompts as if one step read them, however long they are."""
        budget = self.engine.max_num_batched_tokens
        points = []
        for p in self.prefill:
            further = math.ceil(p.tokens * p.batch / budget) - 1
            seconds = max(p.seconds - further * launch_s, p.seconds / 2)
            points.append(p.model_copy(update={"seconds": seconds}))
        return prefill_curve(points)

    def _first_token_line(self, curve: PrefillCurve) -> Line:
        """A first token by length, alone and without its pairs; it never takes less for more.

        By the points themselves and not by a straight line: a GPU's step takes its launch however
        short the prompt is, and then grows with its tokens.
        """
        knots: dict[int, list[float]] = {}
        for p in self.prefill:
            if p.batch == 1:
                knots.setdefault(p.tokens, []).append(p.seconds - curve.pair_s * p.tokens**2 / 2)
        budget = self.engine.max_num_batched_tokens
        within = [(n, statistics.mean(v)) for n, v in sorted(knots.items()) if n <= budget]
        if len(within) < 2:  # noqa: PLR2004 - for a line
            within = [(n, curve.fixed_s + curve.token_s * n) for n in (1, budget)]
        return Line(ascending(within))

    def _request_s(self, whole_s: Line, curve: PrefillCurve, launch_s: float) -> float:
        """What a first token takes beyond what holds the engine: answers beside it tell."""
        if not self.mixed:
            # Nothing says how much a step takes for having prompts at all: taken as nothing.
            return max(min(curve.fixed_s, whole_s(1)) - launch_s, 0.0)
        found = [
            whole_s(p.tokens) - launch_s - (p.seconds - curve.pair_s * p.tokens**2 / 2)
            for p in self.mixed
        ]
        return min(max(statistics.median(found), 0.0), whole_s(1) - launch_s)

    def handoff_cost(self) -> HandoffCost | None:
        """None when it was not measured."""
        if not self.handoff:
            return None
        tokens = [float(point.tokens) for point in self.handoff]
        first = self.calibration_apart.first
        seconds = [first * point.seconds for point in self.handoff]
        if len(set(tokens)) == 1:
            return HandoffCost(0.0, tokens[0] * self.bytes_per_token / max(seconds[0], 1e-9))
        fixed, each = handoff_line(tokens, seconds)
        busy, busy_each = handoff_line(tokens, [first * point.busy_s for point in self.handoff])
        holds, holds_each = handoff_line(tokens, [first * p.holds_s for p in self.handoff])
        return HandoffCost(
            fixed, self.bytes_per_token / each if each > 0 else math.inf,
            busy_s=busy, busy_byte_s=busy_each / self.bytes_per_token,
            holds_s=holds, holds_byte_s=holds_each / self.bytes_per_token,
        )  # fmt: skip

    def misfits(self) -> list[tuple[str, float, float]]:
        """(point, measured, fitted) of every point."""
        in_a_row = self.model_copy(
            update={"calibration": Calibration(), "calibration_apart": Calibration()}
        )
        costs, handoff = in_a_row.step_costs(), in_a_row.handoff_cost()
        further_s = self._curve(costs.decode_base_s(1)).further_s
        budget = self.engine.max_num_batched_tokens
        rows = []
        for p in self.prefill:
            said = costs.request_s + costs.prefill_s(p.tokens, batch=p.batch, budget=budget)
            said += further_s * (p.batch - 1)
            rows.append((f"prefill {p.batch} x {p.tokens} tokens", p.seconds, said))
        for d in self.decode:
            kv = d.batch * costs.kv.of(d.context)
            rows.append((f"decode {d.batch} x {d.context} tokens", d.step_s,
                         costs.step_s(0, 0.0, d.batch, kv)))  # fmt: skip
        for m in self.mixed:
            said = costs.step_s(m.tokens, m.tokens**2 / 2, 1, 0.0) - costs.step_s(0, 0.0, 1, 0.0)
            rows.append((f"a prompt of {m.tokens} tokens beside answers", m.seconds, said))
        for h in self.handoff if handoff is not None else ():
            size = self.bytes_per_token * h.tokens
            rows.append((f"handoff {h.tokens} tokens", h.seconds,
                         handoff.seconds(size) if handoff else 0.0))  # fmt: skip
        return rows

    def differences(self) -> list[str]:
        """What its versions have that the set Baton was run with has not."""
        found = []
        for name in COMPARED:
            measured = self.versions.get(name)
            if measured is not None and measured != MATCHED[name]:
                found.append(f"{name} {measured} instead of {MATCHED[name]}")
        return found


def read_profile(path: Path, *, any_versions: bool = False) -> Profile:
    """Read a profile.

    Raises:
        ProfileRefused: It is none, or of other versions and `any_versions` is not set.
    """
    try:
        profile = Profile.model_validate_json(path.read_bytes())
    except OSError as exc:
        raise ProfileRefused(
            f"the profile cannot be read: {exc.strerror}", place=str(path)
        ) from exc
    except ValidationError as exc:
        first = exc.errors()[0]
        where = ".".join(map(str, first["loc"])) or "the file"
        raise ProfileRefused(
            f"this is no profile: {where}: {first['msg']}", place=str(path),
            cure="make one with `baton profile FILE --url http://ENGINE`",
        ) from exc  # fmt: skip
    if profile.format != FORMAT:
        raise ProfileRefused(
            f"the profile has format {profile.format}, and this Baton reads {FORMAT}",
            place=str(path), cure="measure again with `baton profile`",
        )  # fmt: skip
    differs = profile.differences()
    if differs and not any_versions:
        raise ProfileRefused(
            f"the profile is of other versions: {', '.join(differs)}", place=str(path),
            cure="measure again with `baton profile`, or add --any-versions to use it as it is",
        )  # fmt: skip
    return profile


def _clear(share: float) -> float:
    """What engines of a machine cost each other, where it is more than noise."""
    return share if share > NOISE else 0.0
