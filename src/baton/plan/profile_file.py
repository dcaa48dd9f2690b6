"""`profile.json`: what was measured on one engine, with which versions, and the costs it comes to.

Fitted, and the misfit of each point kept beside it:

    first token of b prompts of n tokens   c + f x (b - 1) + t x b n + q x b n^2 / 2
    step of b sequences of n tokens        d(b) + s x b n         d linear between measured batches
    handoff of n tokens                    a + n x bytes a token / bandwidth
      more into a busy engine              e + g x n
    what a prompt adds to a running step   m + t x n + q x n^2 / 2

`c` beyond a step of one sequence and `m` is the request's own (HTTP, tokenizing). Where the
engine's bytes a token are not known everything is reckoned in tokens: one token is one byte, in KV
and handoff.
"""

from __future__ import annotations

import math
import statistics
from typing import TYPE_CHECKING, Self

from pydantic import Field, ValidationError, model_validator

from baton.errors import ProfileRefused
from baton.plan.costs import Beside, HandoffCost, KvShape, StepCosts, Wake
from baton.spec.matched import MATCHED
from baton.spec.schema import Frozen

if TYPE_CHECKING:
    from collections.abc import Sequence
    from pathlib import Path

FORMAT = 1
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
    """By what first tokens and steps take longer in traffic than in a row (`plan.calibrate`)."""

    first: float = Field(default=1.0, gt=0)
    step: float = Field(default=1.0, gt=0)
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
    uneven: float = Field(default=0.0, ge=0)
    """How unevenly the machine works: deviation of the logarithm of what equal answers take."""

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

    def step_costs(self) -> StepCosts:
        """Costs for the simulator."""
        sequence_s, context_s = decode_line(self.decode)
        fixed, _, token_s, pair_s = prefill_curve(self.prefill)
        first, step = self.calibration.first, self.calibration.step
        # What is fixed in a first token is a step's launch, what prompts add to it, and the
        # request's own.
        launch_s = min(fixed, sequence_s(1))
        prompt_s = min(self._prompt_s(token_s, pair_s), fixed - launch_s)

        def base(tokens: int, sequences: int) -> float:
            if not tokens:
                return step * sequence_s(sequences)
            # Weights are read once, for prompts and sequences together.
            beside = max(sequence_s(sequences), launch_s) if sequences else launch_s
            return first * (token_s * tokens + prompt_s) + step * beside

        capacity = self.engine.kv_capacity_tokens
        return StepCosts(
            base=base,
            pair_s=first * pair_s,
            kv_byte_s=step * context_s / self.bytes_per_token,
            kv=KvShape(self.bytes_per_token),
            kv_capacity_bytes=math.inf if capacity is None else capacity * self.bytes_per_token,
            request_s=first * (fixed - launch_s - prompt_s),
            wake=Wake(tuple((point.pause_s, point.fixed_s, point.share) for point in self.wake)),
            uneven=self.uneven,
            beside=Beside(_clear(self.beside.reading), _clear(self.beside.writing)),
        )

    def _prompt_s(self, token_s: float, pair_s: float) -> float:
        """What a step takes longer for having prompts at all, beside their tokens and pairs."""
        found = [
            point.seconds - token_s * point.tokens - pair_s * point.tokens**2 / 2
            for point in self.mixed
        ]
        return max(statistics.median(found), 0.0) if found else 0.0

    def handoff_cost(self) -> HandoffCost | None:
        """None when it was not measured."""
        if not self.handoff:
            return None
        tokens = [float(point.tokens) for point in self.handoff]
        seconds = [self.calibration.first * point.seconds for point in self.handoff]
        if len(set(tokens)) == 1:
            return HandoffCost(0.0, tokens[0] * self.bytes_per_token / max(seconds[0], 1e-9))
        fixed, each = _handoff_line(tokens, seconds)
        busy, busy_each = _handoff_line(tokens, [point.busy_s for point in self.handoff])
        return HandoffCost(
            fixed, self.bytes_per_token / each if each > 0 else math.inf,
            busy_s=busy, busy_byte_s=busy_each / self.bytes_per_token,
        )  # fmt: skip

    def misfits(self) -> list[tuple[str, float, float]]:
        """(point, measured, fitted) of every point."""
        in_a_row = self.model_copy(update={"calibration": Calibration()})
        costs, handoff = in_a_row.step_costs(), in_a_row.handoff_cost()
        further_s = prefill_curve(self.prefill)[1]
        rows = []
        for p in self.prefill:
            said = costs.request_s + costs.base(p.tokens * p.batch, 0) + further_s * (p.batch - 1)
            said += costs.pair_s * p.batch * p.tokens**2 / 2
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


def _handoff_line(tokens: Sequence[float], seconds: Sequence[float]) -> tuple[float, float]:
    """(fixed, seconds a token).

    Each is a difference of times, so it may come out as nothing by chance: what is below a tenth of
    the largest is missed by a share of that tenth, and not by one of itself.
    """
    least = max(seconds) / 10
    if least == 0:
        return 0.0, 0.0
    fixed, each = least_squares([[1.0] * len(tokens), list(tokens)], seconds, least)
    return fixed, each


def prefill_curve(points: Sequence[PrefillPoint]) -> tuple[float, float, float, float]:
    """(fixed, more for each further prompt, seconds a token, seconds a pair), by relative error.

    None of them negative. Prompts that come together wait for each other at the API server, and
    seldom for one step: that is neither tokens nor pairs.
    """
    tokens = [float(p.tokens * p.batch) for p in points]
    seconds = [p.seconds for p in points]
    columns = {
        "fixed": [1.0] * len(points), "further": [p.batch - 1.0 for p in points],
        "token": tokens, "pair": [p.batch * p.tokens**2 / 2 for p in points],
    }  # fmt: skip
    enough = 3
    if len(set(tokens)) < enough:
        del columns["pair"]
    if len({p.batch for p in points}) == 1 or len(points) <= len(columns):
        del columns["further"]
    found = dict(zip(columns, least_squares(list(columns.values()), seconds), strict=True))
    return found["fixed"], found.get("further", 0.0), found["token"], found.get("pair", 0.0)


def decode_line(points: Sequence[DecodePoint]) -> tuple[_Line, float]:
    """(base seconds by batch, seconds a token of context of a sequence).

    The context's part is what steps of one batch differ by between contexts.
    """
    spans = []
    for batch in sorted({p.batch for p in points}):
        same = sorted((p.context, p.step_s) for p in points if p.batch == batch)
        if same[0][0] < same[-1][0]:
            rise = (same[-1][1] - same[0][1]) / (batch * (same[-1][0] - same[0][0]))
            # The more sequences, the more of the step is context: they say most about it.
            spans.append((batch, max(rise, 0.0)))
    context_s = sum(b * rise for b, rise in spans) / sum(b for b, _ in spans) if spans else 0.0
    table: dict[int, list[float]] = {}
    for p in points:
        table.setdefault(p.batch, []).append(p.step_s - context_s * p.batch * p.context)
    knots = [(b, max(sum(v) / len(v), 0.0)) for b, v in sorted(table.items())]
    return _Line(knots), context_s


class _Line:
    """Linear between knots, and on beyond the last."""

    def __init__(self, knots: Sequence[tuple[int, float]]) -> None:
        self._knots = list(knots)

    def __call__(self, at: int) -> float:
        knots = self._knots
        if at <= knots[0][0] or len(knots) == 1:
            return knots[0][1]
        right = next((i for i, (x, _) in enumerate(knots) if x >= at), len(knots) - 1)
        (x0, y0), (x1, y1) = knots[right - 1], knots[right]
        slope = max((y1 - y0) / (x1 - x0), 0.0) if at > x1 else (y1 - y0) / (x1 - x0)
        return y0 + (y1 - y0) * (at - x0) / (x1 - x0) if at <= x1 else y1 + slope * (at - x1)


def least_squares(
    columns: Sequence[Sequence[float]], goal: Sequence[float], least: float = 0.0
) -> list[float]:
    """Coefficients of 0 or more with the least relative error; of `least` where a goal is below.

    Those that come out negative are left out one by one: there are four at most.
    """
    active = list(range(len(columns)))
    scales = [max(y, least) for y in goal]
    shares = [y / scale for y, scale in zip(goal, scales, strict=True)]
    rows = [[x / scale for x, scale in zip(column, scales, strict=True)] for column in columns]
    while True:
        found = _solve([rows[i] for i in active], shares)
        worst = min(range(len(active)), key=lambda i: found[i])
        if found[worst] >= 0 or len(active) == 1:
            break
        del active[worst]
    result = [0.0] * len(columns)
    for position, i in enumerate(active):
        result[i] = max(found[position], 0.0)
    return result


def _solve(rows: Sequence[Sequence[float]], goal: Sequence[float]) -> list[float]:
    """Normal equations, by elimination with pivots; columns are scaled first."""
    scales = [math.sqrt(sum(x * x for x in row)) or 1.0 for row in rows]
    scaled = [[x / s for x in row] for row, s in zip(rows, scales, strict=True)]
    size = len(scaled)
    matrix = [
        [sum(a * b for a, b in zip(scaled[i], scaled[j], strict=True)) for j in range(size)]
        + [sum(a * b for a, b in zip(scaled[i], goal, strict=True))]
        for i in range(size)
    ]
    for i in range(size):
        pivot = max(range(i, size), key=lambda r: abs(matrix[r][i]))
        matrix[i], matrix[pivot] = matrix[pivot], matrix[i]
        if abs(matrix[i][i]) < 1e-12:  # noqa: PLR2004 - columns are of length 1
            matrix[i][i] = 1e-12
        for r in range(size):
            if r != i:
                factor = matrix[r][i] / matrix[i][i]
                matrix[r] = [a - factor * b for a, b in zip(matrix[r], matrix[i], strict=True)]
    return [matrix[i][size] / matrix[i][i] / scales[i] for i in range(size)]
