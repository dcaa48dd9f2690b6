"""Watches silences of a streamed answer: a sign for the caller, a look at the engine.

Load balancers cut connections on which nothing moves for a minute or less, and a prefill of a long
prompt, a full batch or an engine's death are silent. So a caller who waits gets an SSE comment now
and then, which clients skip; the first of them opens the answer with status 200. And an engine that
says nothing more is given up when it has left the directory, or after `idle_s`.

One timer a stream, which fires every few seconds: a chunk costs two assignments, and the note of
its time.
"""

from __future__ import annotations

import asyncio
from typing import TYPE_CHECKING

from baton.gateway.caller import CallerGone
from baton.gateway.sse import KEEP_ALIVE

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    from baton.gateway.caller import Caller, Header
    from baton.gateway.sources import Source
    from baton.observe.gaps import Gaps

LOOK_EVERY_S = 2.0
GONE_AFTER_S = 4.0
"""A silent stream whose engine has left the directory for that long is over."""


class Attention:
    """One stream's silences.

    Args:
        caller: Gets the signs.
        headers: Of the answer, in case a sign has to open it.
        keep_alive_s: Silence after which the caller gets a sign; 0 for never.
        idle_s: Silence after which a stream that had begun is given up.
        lives: Whether an engine, by `replica_id`, is known as ready now.
        gaps: Is told when pieces come.
    """

    __slots__ = (
        "_caller", "_gaps", "_headers", "_idle_s", "_keep_alive_s", "_lives", "_loop", "_sign",
        "_signs", "_since", "_source", "_timer", "_waiting", "given_up",
    )  # fmt: skip

    def __init__(
        self,
        caller: Caller,
        headers: Sequence[Header],
        *,
        keep_alive_s: float,
        idle_s: float,
        lives: Callable[[str], bool],
        gaps: Gaps,
    ) -> None:
        self._caller, self._headers, self._lives = caller, headers, lives
        self._keep_alive_s, self._idle_s, self._gaps = keep_alive_s, idle_s, gaps
        self._loop = asyncio.get_running_loop()
        self._source: Source | None = None
        self._waiting = False
        self._since = 0.0
        self._signs = 0
        self._sign: asyncio.Task[None] | None = None
        self.given_up: str | None = None
        """Why the source was closed by us."""
        self._timer = self._loop.call_later(self._tick_s, self._look)

    @property
    def _tick_s(self) -> float:
        return min(LOOK_EVERY_S, self._idle_s / 4, self._keep_alive_s or LOOK_EVERY_S)

    def wait_for(self, source: Source | None) -> None:
        """Somebody is waited for from now on: a source that has begun, or one to come (None)."""
        self._source = source
        self._since = self._loop.time()
        self._signs = 0
        self._waiting = True

    def heard(self) -> asyncio.Task[None] | None:
        """A piece came. A sign that is being sent must be awaited before anything is written."""
        self._gaps.note(self._loop.time())
        return self._heard()

    def _heard(self) -> asyncio.Task[None] | None:
        self._waiting = False
        sign, self._sign = self._sign, None
        return sign

    @property
    def gives_sign(self) -> bool:
        """Whether a sign may be on its way, which must be awaited before anything is written."""
        return self._sign is not None

    def passed(self) -> None:
        """A piece came and was passed on at once: the next one is waited for."""
        now = self._since = self._loop.time()
        self._signs = 0
        self._gaps.note(now)

    async def pause(self) -> None:
        """Nobody is waited for until `wait_for`; a sign that is being sent goes out first."""
        sign = self._heard()
        if sign is not None:
            await sign

    async def close(self) -> None:
        """No more signs."""
        self._timer.cancel()
        await self.pause()

    def _look(self) -> None:
        self._timer = self._loop.call_later(self._tick_s, self._look)
        if not self._waiting or self.given_up is not None:
            return  # the caller reads slowly: that is nobody's silence
        silent_s = self._loop.time() - self._since
        if self._source is not None:
            if silent_s >= self._idle_s:
                self.given_up = f"silent for {self._idle_s:g} s"
            elif silent_s >= GONE_AFTER_S and not self._lives(self._source.engine_id):
                self.given_up = "the engine has left the directory"
            if self.given_up is not None:
                self._source.close()  # whoever reads from it sees a broken stream
                return
        if self._keep_alive_s and silent_s >= (self._signs + 1) * self._keep_alive_s:
            self._signs += 1
            if self._sign is None or self._sign.done():
                self._sign = self._loop.create_task(self._give_sign())

    async def _give_sign(self) -> None:
        try:
            if not self._caller.started:
                await self._caller.start(200, self._headers)
            await self._caller.body(KEEP_ALIVE, more=True)
        except CallerGone:
            return  # the request's own task hears of it as well
