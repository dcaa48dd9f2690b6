"""Who may come in: keys of callers, their limits, and changes of them while the gateway runs.

Only hashes are kept. A caller's key is hashed, hashed again under a secret that this process made
up at its start, and looked up by that: whoever measures the time of the look-up learns about
values that he can neither know nor choose, and it takes as long for a thousand keys as for one.

The file is looked at every two seconds, and at once on SIGHUP. A new table replaces the old one
whole. A file that does not hold changes nothing and is said loudly: in the log, and in
`baton_key_reload_failures_total` and `baton_keys_stale`.
"""

from __future__ import annotations

import asyncio
import hashlib
import hmac
import logging
import math
import os
import secrets
import time
from typing import TYPE_CHECKING

from baton.errors import ConfigRefused, KeyLimited, NotAuthenticated
from baton.spec.key_file import ANONYMOUS, keys_of

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping
    from pathlib import Path

    from baton.spec.key_file import CallerKey
    from baton.spec.schema import Auth

log = logging.getLogger("baton.gateway.auth")

LOOK_EVERY_S = 2.0
SETTLES_S = 0.25
"""A file that changes within this time is still being written."""
Seen = tuple[int, int, int]


class Holder:
    """The holder of one key: what is open, what its rate leaves. Outlives a change of the file."""

    __slots__ = ("_filled_at", "_left", "limits", "name", "open")

    def __init__(self, name: str, limits: CallerKey | None) -> None:
        self.name = name
        self.limits = limits
        self.open = 0
        self._left = math.inf if limits is None else limits.burst_size
        self._filled_at = time.monotonic()

    @property
    def weight(self) -> float:
        """Its turns in the queue, for another's one."""
        return 1.0 if self.limits is None else self.limits.weight

    def change(self, limits: CallerKey) -> None:
        """New limits for the same name; what was used stays used."""
        if limits != self.limits:
            self._left = min(self._left, limits.burst_size)
            self.limits = limits

    def begin(self) -> None:
        """A request begins; `end` must follow.

        Raises:
            KeyLimited: It is one too many at once, or in this minute.
        """
        limits = self.limits
        if limits is not None:
            if limits.max_concurrency is not None and self.open >= limits.max_concurrency:
                raise KeyLimited(
                    f"This key may have {limits.max_concurrency} requests open at once.",
                    cure="wait until one of them has ended",
                )
            if limits.requests_per_min is not None:
                self._spend(limits, limits.requests_per_min / 60)
        self.open += 1

    def _spend(self, limits: CallerKey, per_s: float) -> None:
        """A token bucket: full after a rest, one token a request."""
        now = time.monotonic()
        self._left = min(limits.burst_size, self._left + (now - self._filled_at) * per_s)
        self._filled_at = now
        if self._left < 1:
            retry_after_s = max(1, math.ceil((1 - self._left) / per_s))
            raise KeyLimited(
                f"This key may send {limits.requests_per_min:g} requests a minute.",
                retry_after_s=retry_after_s,
                cure=f"try again in {retry_after_s} s",
            )
        self._left -= 1

    def end(self) -> None:
        """The request is over, also when its key was taken out of the file meanwhile."""
        self.open -= 1


class Keys:
    """The keys that open this gateway. Without any, everybody is let in as `anonymous`."""

    def __init__(
        self,
        keys: tuple[CallerKey, ...],
        *,
        read: Callable[[], tuple[CallerKey, ...]] | None = None,
        file: Path | None = None,
    ) -> None:
        self._pepper = secrets.token_bytes(32)
        self._anonymous = Holder(ANONYMOUS, None)
        self._holders: dict[str, Holder] = {}
        self._table: dict[bytes, tuple[bytes, Holder]] = {}
        self._open = not keys
        self._read = read
        self._file = file
        self._seen: Seen | None = _look(file)
        self._task: asyncio.Task[None] | None = None
        self._lock = asyncio.Lock()
        self.failures = 0
        self.stale = False
        self.forget: Callable[[str], None] = _nothing
        """Called with the name of a key that is gone, so that its metrics go as well."""
        self._use(keys)

    @classmethod
    def from_settings(cls, auth: Auth, environ: Mapping[str, str] | None = None) -> Keys:
        """Read what `auth` names.

        Raises:
            ConfigRefused: A source is missing, empty or malformed.
        """
        environment = dict(os.environ if environ is None else environ)

        def read() -> tuple[CallerKey, ...]:
            return keys_of(auth, environment)

        return cls(read(), read=read if auth.asks_for_keys else None, file=auth.keys_path)

    def __len__(self) -> int:
        return len(self._table)

    @property
    def holders(self) -> Mapping[str, Holder]:
        """Everybody who has a key, by name."""
        return self._holders

    def _mark(self, digest: bytes) -> bytes:
        return hashlib.blake2b(digest, key=self._pepper, digest_size=32).digest()

    def _use(self, keys: tuple[CallerKey, ...]) -> None:
        holders = dict(self._holders)
        table: dict[bytes, tuple[bytes, Holder]] = {}
        for key in keys:
            holder = holders.get(key.name)
            if holder is None:
                holder = holders[key.name] = Holder(key.name, key)
            else:
                holder.change(key)
            mark = self._mark(key.digest)
            table[mark] = (mark, holder)
        names = {key.name for key in keys}
        for name in [n for n, h in holders.items() if n not in names and h.open <= 0]:
            del holders[name]
            self.forget(name)
        self._holders, self._table = holders, table

    def holder_of(self, authorization: bytes | None, api_key: bytes | None = None) -> Holder:
        """Who holds the caller's key.

        Args:
            authorization: The `Authorization` header.
            api_key: The `x-api-key` header, which Anthropic's clients send.

        Raises:
            NotAuthenticated: No key, or none that is known.
        """
        if self._open:
            return self._anonymous
        scheme, _, token = (authorization or b"").partition(b" ")
        given = token.strip() if scheme.lower() == b"bearer" else (api_key or b"").strip()
        if not given:
            raise NotAuthenticated(
                "No API key was given.", cure="send it as 'Authorization: Bearer KEY'"
            )
        mark = self._mark(hashlib.sha256(given).digest())
        known = self._table.get(mark)
        if known is None or not hmac.compare_digest(mark, known[0]):
            raise NotAuthenticated("The API key is not known here.")
        return known[1]

    @property
    def anonymous(self) -> Holder:
        """Whoever asks what needs no key."""
        return self._anonymous

    # -- changes ---------------------------------------------------------------------------------

    def start(self) -> None:
        """Look after the file, in the running loop."""
        if self._file is not None and self._task is None:
            self._task = asyncio.create_task(self._look_forever(), name="baton-keys")

    async def close(self) -> None:
        """Stop looking."""
        if self._task is not None:
            self._task.cancel()
            await asyncio.gather(self._task, return_exceptions=True)
            self._task = None

    async def _look_forever(self) -> None:
        while True:
            await asyncio.sleep(LOOK_EVERY_S)
            # In a thread: a file on a network may keep us waiting.
            seen = await asyncio.to_thread(_look, self._file)
            if seen == self._seen:
                continue
            await asyncio.sleep(SETTLES_S)
            if seen == await asyncio.to_thread(_look, self._file):
                await self.reload()

    async def reload(self) -> bool:
        """Read the keys anew. False when they do not hold: then the old ones stay."""
        if self._read is None:
            return True
        async with self._lock:  # two readers must not finish in the wrong order
            # Looked at before it is read: what changes in between is seen the next time.
            seen = await asyncio.to_thread(_look, self._file)
            try:
                keys = await asyncio.to_thread(self._read)
            except ConfigRefused as exc:
                self.failures += 1
                self.stale = True
                self._seen = seen
                log.error(  # noqa: TRY400  (the message is the whole story)
                    "the new keys do not hold; the old ones stay in use: %s",
                    exc,
                    extra={"keys": len(self._table)},
                )
                return False
            self._use(keys)
            self._seen = seen
            self.stale = False
            log.warning("keys were read anew", extra={"keys": len(self._table)})
            return True


def _look(file: Path | None) -> Seen | None:
    """What tells whether a file has changed; None when it is not there."""
    if file is None:
        return None
    try:
        found = file.stat()  # through links: Kubernetes swaps them under a mounted Secret
    except OSError:
        return None
    return (found.st_mtime_ns, found.st_size, found.st_ino)


def _nothing(_name: str) -> None:
    return
