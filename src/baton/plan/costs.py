"""What things take on one engine: the one interface between figures and the simulator.

A step of an engine reads some prompt tokens and writes one token for each running sequence:

    step = base(prompt tokens, sequences)             products, weights, collectives, launch
         + pair_s    x (query, key) pairs of prompts    attention of prefill
         + kv_byte_s x bytes of KV of the sequences     attention of decode

With the batch unchanged, KV grows by the same bytes each step, so `k` steps of decode have a closed
form (`decode_s`): the simulator moves from event to event and never from token to token.
"""

from __future__ import annotations

import math
from dataclasses import dataclass, field
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Callable


@dataclass(frozen=True)
class KvShape:
    """Bytes of KV that a sequence keeps: `per_token` for each, and what its windows and states add.

    Layers with a window count with the window's end state: what a sequence of its final length
    keeps in them. So KV grows in a line, a little early for prompts shorter than the window.
    """

    per_token: float
    window_per_token: float = 0.0
    window_tokens: int = 0
    states: float = 0.0

    def fixed(self, final_tokens: int) -> float:
        """What does not grow, for a sequence that will be so long."""
        return self.states + self.window_per_token * min(final_tokens, self.window_tokens)

    def of(self, tokens: int, final_tokens: int | None = None) -> float:
        """All of it, at so many tokens."""
        return self.per_token * tokens + self.fixed(final_tokens or tokens)


@dataclass(frozen=True)
class HandoffCost:
    """`fixed_s + bytes / bandwidth`; the bandwidth is the wire's (`simulator.wires`)."""

    fixed_s: float
    bytes_per_s: float
    """Of one transfer alone, where nothing else limits it. 0: nothing ever arrives."""
    busy_s: float = 0.0
    """More, on a decode engine that writes answers meanwhile: vLLM looks after transfers between
    its steps, so they go on at the pace of steps, and at once where there are none."""
    busy_byte_s: float = 0.0
    holds_s: float = 0.0
    """How long such an engine's answers stand still for it: part of what it takes more."""
    holds_byte_s: float = 0.0

    def held_s(self, kv_bytes: float) -> float:
        """How long answers that are being written stand still while KV is taken in."""
        return self.holds_s + self.holds_byte_s * kv_bytes

    def more_s(self, kv_bytes: float) -> float:
        """How much longer it takes into an engine that writes answers."""
        return self.busy_s + self.busy_byte_s * kv_bytes

    def waits_s(self, kv_bytes: float) -> float:
        """How long KV stays unseen by an engine that goes on writing."""
        return max(self.more_s(kv_bytes) - self.held_s(kv_bytes), 0.0)

    def held_before_s(self, kv_bytes: float) -> float:
        """How much of `held_s` is over before KV is there: it costs others, and not the request."""
        return max(self.held_s(kv_bytes) - self.more_s(kv_bytes), 0.0)

    def seconds(self, kv_bytes: float) -> float:
        """Of one transfer that has the wire to itself."""
        if kv_bytes <= 0:
            return self.fixed_s
        return self.fixed_s + kv_bytes / self.bytes_per_s if self.bytes_per_s > 0 else math.inf


@dataclass(frozen=True)
class Wake:
    """What an engine that had nothing to do takes beyond a request's usual time.

    Processors sleep, clocks fall and caches go to others: the longer the pause, the more, and all
    of a request's way is slower for it. `(pause_s, fixed_s, share)`, pauses ascending: after such a
    pause what takes `x` seconds takes `fixed_s + share x` longer. Linear in between, from nothing
    at no pause; constant beyond the last.
    """

    points: tuple[tuple[float, float, float], ...] = ()

    def extra_s(self, pause_s: float, usual_s: float) -> float:
        """How much longer than `usual_s`."""
        before = (0.0, 0.0, 0.0)
        for point in self.points:
            if pause_s < point[0]:
                along = (pause_s - before[0]) / (point[0] - before[0])
                fixed_s = before[1] + along * (point[1] - before[1])
                share = before[2] + along * (point[2] - before[2])
                return fixed_s + share * usual_s
            before = point
        return before[1] + before[2] * usual_s


NO_WAKE = Wake()


@dataclass(frozen=True)
class Beside:
    """By what share steps take longer for each other busy engine of the same machine.

    0 where engines share nothing that they compute with, as on GPUs of their own. Two engines on
    the processors of one machine slow each other. With more than two it is taken to add up.
    """

    reading: float = 0.0
    """Steps that read prompts."""
    writing: float = 0.0
    """Steps of decode."""

    def __bool__(self) -> bool:
        return self.reading > 0 or self.writing > 0


LUCK_STEPS = 16
"""With luck for a whole answer short ones came out too even and long ones too uneven; with luck for
each step all did (decision 0020)."""


@dataclass(frozen=True)
class Uneven:
    """How unevenly a machine works: deviations of the logarithm of what equal work takes.

    Percentiles of a busy machine are made by it as much as by queues.
    """

    reading: float = 0.0
    """Steps that read prompts, and what comes before the first step after a pause (`Wake`)."""
    writing: float = 0.0
    """Steps of decode."""

    def writing_of(self, steps: int) -> float:
        """Of so many steps together: luck lasts for `LUCK_STEPS`, and evens out over more."""
        return self.writing * math.sqrt(LUCK_STEPS / max(steps, LUCK_STEPS))


EVEN = Uneven()


@dataclass(frozen=True)
class StepCosts:
    """One kind of engine with one model. Seconds, bytes, tokens.

    Args:
        base: Seconds of a step by prompt tokens and sequences, attention left out.
        pair_s: Seconds a (query, key) pair of a prompt.
        kv_byte_s: Seconds a byte of KV that decode reads.
        kv: Bytes that a sequence keeps.
        kv_capacity_bytes: KV that the engine has room for.
        request_s: What a request takes beside its steps: HTTP, tokenizing, the first scheduling.
        wake: How much longer a request takes on an engine that had nothing to do.
        beside: What another busy engine on the same machine costs.
        uneven: How much equal work differs in what it takes.
    """

    base: Callable[[int, int], float] = field(repr=False)
    pair_s: float
    kv_byte_s: float
    kv: KvShape
    kv_capacity_bytes: float
    request_s: float = 0.0
    wake: Wake = NO_WAKE
    beside: Beside = Beside()
    uneven: Uneven = EVEN
    _decode: dict[int, float] = field(default_factory=dict, repr=False, compare=False)

    def decode_base_s(self, sequences: int) -> float:
        """`base(0, sequences)`, looked up: the simulator asks for it all the time."""
        found = self._decode.get(sequences)
        if found is None:
            found = self._decode[sequences] = self.base(0, sequences)
        return found

    def step_s(self, tokens: int, pairs: float, sequences: int, kv_bytes: float) -> float:
        """One step."""
        if not tokens:
            return self.decode_base_s(sequences) + self.kv_byte_s * kv_bytes
        return self.base(tokens, sequences) + self.pair_s * pairs + self.kv_byte_s * kv_bytes

    def decode_s(self, steps: int, sequences: int, kv_bytes: float) -> float:
        """So many steps of a batch that nobody joins or leaves."""
        first = self.decode_base_s(sequences) + self.kv_byte_s * kv_bytes
        growth = self.kv_byte_s * self.kv.per_token * sequences
        return steps * first + growth * (steps * (steps - 1) / 2)

    def steps_within(self, seconds: float, sequences: int, kv_bytes: float) -> int:
        """How many steps have begun within so many seconds: the inverse of `decode_s`, at least 1.

        The positive root of `growth/2 k^2 + (first - growth/2) k = seconds`, rounded up.
        """
        first = self.decode_base_s(sequences) + self.kv_byte_s * kv_bytes
        half = self.kv_byte_s * self.kv.per_token * sequences / 2
        linear = first - half
        square = linear * linear + 4 * half * seconds
        root = linear + math.sqrt(square) if square > 0 else 0.0
        if seconds <= 0 or root <= 0:
            return 1
        # A boundary that has just been reached must not count as one more step.
        return max(1, math.ceil(2 * seconds / root - 1e-9))

    def prefill_s(self, tokens: int, *, batch: int = 1, budget: int = 8192) -> float:
        """Reading `batch` prompts of so many tokens alone, in steps of `budget` tokens at most."""
        total, done, left = 0.0, 0, tokens * batch
        if batch > 1:
            pairs = batch * tokens * tokens / 2
            steps = math.ceil(left / budget)
            each = left // steps
            sizes = [each] * (steps - 1) + [left - each * (steps - 1)]
            return sum(self.base(size, 0) for size in sizes) + self.pair_s * pairs
        while left > 0:
            take = min(left, budget)
            total += self.base(take, 0) + self.pair_s * take * (done + take / 2)
            done, left = done + take, left - take
        return total

    def fits(self, tokens: int) -> bool:
        """Whether a sequence of so many tokens has room when it is alone."""
        return self.kv.of(tokens) <= self.kv_capacity_bytes
