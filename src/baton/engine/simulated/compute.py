"""The accelerator: one prompt at a time, and everybody else waits for its step.

Prefill takes prompts in order and in steps of `max_num_batched_tokens`, as vLLM's chunked prefill
does. Tokens of other requests that fall due within a step come when it ends: that is the stall
which disaggregation removes.
"""

from __future__ import annotations

import asyncio
import time

from baton.engine.simulated.settings import MAX_BATCHED_TOKENS, LatencyProfile


class Compute:
    """Spends the time that the profile says."""

    def __init__(self, profile: LatencyProfile, step_tokens: int = MAX_BATCHED_TOKENS) -> None:
        self._profile = profile
        self._step_tokens = step_tokens
        self._turn = asyncio.Lock()
        self._step_ends: asyncio.Event | None = None

    async def prefill(self, tokens: int, *, slow: float = 1.0) -> None:
        """Read a prompt, when it is its turn."""
        async with self._turn:
            started, spent = time.monotonic(), 0.0
            for first in range(0, tokens, self._step_tokens):
                chunk = min(self._step_tokens, tokens - first)
                spent += self._profile.prefill_s(chunk) * slow
                await self._step(started + spent - time.monotonic())

    async def _step(self, seconds: float) -> None:
        if seconds <= 0:
            return
        step_ends = self._step_ends = asyncio.Event()
        try:
            await asyncio.sleep(seconds)
        finally:
            self._step_ends = None
            step_ends.set()

    def pace(self, *, slow: float = 1.0) -> Pace:
        """The clock of one answer's tokens, from now on."""
        return Pace(self, self._profile.tpot_s * slow)

    async def stall(self) -> None:
        """Wait while a prefill step is under way."""
        while self._step_ends is not None:
            await self._step_ends.wait()


class Pace:
    """Token after token at the same distance. Late tokens do not delay those after them."""

    __slots__ = ("_compute", "_due", "_tpot_s")

    def __init__(self, compute: Compute, tpot_s: float) -> None:
        self._compute = compute
        self._tpot_s = tpot_s
        self._due = time.monotonic()

    async def next_token(self) -> None:
        """Wait until the next token is due."""
        self._due += self._tpot_s
        # Zero still lets the other requests go on.
        await asyncio.sleep(max(0.0, self._due - time.monotonic()))
        if self._compute._step_ends is not None:  # noqa: SLF001 - one attribute look-up a token
            await self._compute.stall()
