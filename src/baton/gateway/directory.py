"""Who can be asked: the engines that are ready, as this gateway sees them.

`LeaseDirectory` polls a snapshot of leases (the directory actor, or anything that returns one) and
keeps the last known view when a poll fails: a gateway must outlive its directory. `FixedDirectory`
has a list of URLs and probes them itself. In both, an engine whose legs fail is left alone for a
while (`breaker`), so that the next request does not run into it as well.
"""

from __future__ import annotations

import asyncio
import contextlib
import logging
import time
from typing import TYPE_CHECKING, Protocol

from baton.errors import ConfigRefused, LegFailed, NoEngineAvailable
from baton.gateway.breaker import Breakers
from baton.gateway.candidates import Candidates
from baton.gateway.engine_client import EngineClient
from baton.gateway.generations import Generations, Watch
from baton.gateway.probe import Probe, model_cards
from baton.spec.lease import DirectorySnapshot, EngineLease
from baton.spec.schema import Engines

if TYPE_CHECKING:
    from collections.abc import Awaitable, Callable, Sequence

    from baton.spec.schema import Role

log = logging.getLogger("baton.gateway.directory")

SECRET_HEADER = "x-baton-engine-secret"  # noqa: S105  (the header's name)
PROBE_TIMEOUT_S = 2.0
REAPPEARS_STEP_S = 0.25
REAPPEARS_STEPS = 20
"""Five seconds: two probes of a fixed directory, as many renewals of a lease as it can miss."""
SLOW_PROBES = 3
"""A probe without an answer is how a busy engine looks as well: out after so many in a row."""


class Directory(Protocol):
    """What the gateway asks of any directory."""

    async def start(self) -> None:
        """Read once (bounded), then keep reading in the background."""

    async def close(self) -> None:
        """Stop reading."""

    def prefill_engines(self) -> Sequence[EngineLease]:
        """Prefill engines to choose from now."""

    def decode_engines(self) -> Sequence[EngineLease]:
        """Decode engines to choose from now."""

    def resting_engines(self) -> Sequence[EngineLease]:
        """Decode engines that are ready and have just failed: for when there is no other."""

    def all_engines(self) -> Sequence[EngineLease]:
        """Every engine that is known, for people to look at."""

    def model_ids(self) -> frozenset[str]:
        """Names that `model` may have. Empty while nothing is known."""

    @property
    def generations(self) -> Generations:
        """Which engines may hand KV to each other."""

    @property
    def breakers(self) -> Breakers:
        """Told how legs end, and asked who may be sent one."""

    @property
    def engine_secret(self) -> str | None:
        """What opens the engines' HTTP ports."""

    @property
    def age_s(self) -> float | None:
        """Seconds since the last good read; None before the first."""

    @property
    def failures(self) -> int:
        """Reads that failed since the start."""


async def need_decode(directory: Directory, *, after_failure: bool) -> None:
    """Some decode engine to choose from.

    Behind a failure it is waited for: an engine that froze answers its requests before its probes.

    Raises:
        NoEngineAvailable: There is none.
    """
    for _ in range(REAPPEARS_STEPS if after_failure else 0):
        if directory.decode_engines():
            return
        await asyncio.sleep(REAPPEARS_STEP_S)
    if not directory.decode_engines():
        raise NoEngineAvailable("No decode engine is ready.")


class _View:
    """What both directories share: the last snapshot, the circuit breakers, the reading task."""

    def __init__(self, interval_s: float) -> None:
        self.breakers = Breakers()
        self._interval_s = interval_s
        self._watch = Watch()
        self._see(())
        self._secret: str | None = None
        self._read_at: float | None = None
        self._task: asyncio.Task[None] | None = None
        self.failures = 0

    @property
    def engine_secret(self) -> str | None:
        return self._secret

    @property
    def age_s(self) -> float | None:
        return None if self._read_at is None else time.monotonic() - self._read_at

    def _see(self, engines: tuple[EngineLease, ...]) -> None:
        """Take over what was read, sorted once so that no request has to."""
        self._engines = engines
        self._ready: dict[Role, Candidates] = {
            role: Candidates.of(
                [e for e in engines if e.role == role and e.state == "ready"], read=engines
            )
            for role in ("prefill", "decode")
        }
        self._model_ids = frozenset(e.model_id for e in engines if e.model_id)
        self.generations = Generations(e for e in engines if e.state != "starting")
        self._watch.see(self.generations)

    def prefill_engines(self) -> Sequence[EngineLease]:
        # Without prefill there is still decode alone, so an open circuit is not worth a try.
        return self.breakers.sound(self._ready["prefill"])

    def decode_engines(self) -> Sequence[EngineLease]:
        ready = self._ready["decode"]
        # Without decode there is nothing: an engine that failed, or is about to go, is better than
        # an error.
        sound = self.breakers.sound(ready) or self.breakers.soonest(ready)
        return sound or [e for e in self._engines if still_decodes(e)]

    def resting_engines(self) -> Sequence[EngineLease]:
        return [e for e in self._ready["decode"] if not self.breakers.allows(e)]

    def all_engines(self) -> Sequence[EngineLease]:
        return self._engines

    def model_ids(self) -> frozenset[str]:
        return self._model_ids

    async def _read(self) -> None:
        raise NotImplementedError

    async def _read_forever(self) -> None:
        while True:
            await asyncio.sleep(self._interval_s)
            await self._read()

    async def start(self) -> None:
        if self._task is None:
            await self._read()
            self._task = asyncio.create_task(self._read_forever(), name="baton-directory")

    async def close(self) -> None:
        if self._task is not None:
            self._task.cancel()
            with contextlib.suppress(asyncio.CancelledError):
                await self._task
            self._task = None


class LeaseDirectory(_View):
    """Polls a snapshot of leases.

    Args:
        fetch: Returns the snapshot, or raises.
        interval_s: Seconds between polls.
        timeout_s: A poll that takes longer has failed.
        lease_s: How long a lease lasts (`engines.lease_s`). A directory that has listened for
            twice as long has heard from every engine.
    """

    def __init__(
        self,
        fetch: Callable[[], Awaitable[DirectorySnapshot]],
        interval_s: float = 1.0,
        timeout_s: float = 5.0,
        lease_s: float = Engines().lease_s,
    ) -> None:
        super().__init__(interval_s)
        self._settles_s = 2 * lease_s
        self._fetch = fetch
        self._timeout_s = timeout_s
        self._lost = False

    async def _read(self) -> None:
        try:
            async with asyncio.timeout(self._timeout_s):
                snapshot = await self._fetch()
        except Exception as exc:  # noqa: BLE001  (whatever the actor raises, the old view stays)
            self.failures += 1
            if not self._lost:
                log.warning(
                    "the directory cannot be read; the last known view stays in use",
                    extra={"error": repr(exc), "engines": len(self._engines)},
                )
            self._lost = True
            return
        if self._lost:
            log.info("the directory can be read again", extra={"engines": len(snapshot.engines)})
        self._lost = False
        self._see((*snapshot.engines, *self._not_heard_of(snapshot)))
        self.breakers.keep(self._engines)
        self._secret = snapshot.engine_secret
        self._read_at = time.monotonic()

    def _not_heard_of(self, snapshot: DirectorySnapshot) -> list[EngineLease]:
        """Engines that a directory which has just woken up cannot know yet.

        One that is really gone refuses its first leg, and its circuit opens.
        """
        if snapshot.awake_s is None or snapshot.awake_s >= self._settles_s:
            return []
        known = {engine.replica_id for engine in snapshot.engines}
        return [engine for engine in self._engines if engine.replica_id not in known]


def still_decodes(engine: EngineLease) -> bool:
    """Whether it decodes for those that have nobody better, and is about to go."""
    return engine.role == "decode" and engine.state == "draining"


def checked_url(text: str) -> str:
    """An engine's URL without a trailing slash.

    Raises:
        ConfigRefused: It is not `http(s)://host[:port]`.
    """
    from urllib.parse import urlsplit  # noqa: PLC0415  (only when a person typed a URL)

    cure = "write it as http://HOST:PORT"
    try:
        parts = urlsplit(text)
        port = parts.port
    except ValueError as exc:
        raise ConfigRefused(f"{text!r} is not an engine's URL: {exc}", cure=cure) from exc
    if parts.scheme not in ("http", "https") or not parts.hostname:
        raise ConfigRefused(f"{text!r} is not an engine's URL", cure=cure)
    if parts.path not in ("", "/") or parts.query or parts.fragment or parts.username:
        raise ConfigRefused(f"{text!r} has more than a host and a port", cure=cure)
    host = f"[{parts.hostname}]" if ":" in parts.hostname else parts.hostname
    return f"{parts.scheme}://{host}" + (f":{port}" if port is not None else "")


class FixedDirectory(_View):
    """A list of URLs, probed by this gateway.

    An engine is ready while `/health` answers 200 and `/v1/models` lists a model; it is out at once
    when it refuses or says otherwise, and after three probes that it does not answer in time.
    What a lease would say and a probe cannot (engine_id, load, evidence) stays empty; of versions
    it learns vLLM's alone.

    Args:
        prefill_urls: Engines of the role.
        decode_urls: Engines of the role.
        engine_secret: What they want to see in each request.
        interval_s: Seconds between two probes.
        probe_timeout_s: Seconds that an answer may take.
        asks_block_size: Look into `/metrics` for the size of KV blocks (`first_token: early`).

    Raises:
        ConfigRefused: A URL is none, stands twice, or is given for both roles.
    """

    def __init__(
        self,
        prefill_urls: Sequence[str],
        decode_urls: Sequence[str],
        engine_secret: str | None = None,
        interval_s: float = 2.0,
        probe_timeout_s: float = PROBE_TIMEOUT_S,
        *,
        asks_block_size: bool = False,
    ) -> None:
        super().__init__(interval_s)
        self._asks_block_size = asks_block_size
        self._secret = engine_secret
        self._probe_timeout_s = probe_timeout_s
        self._models: dict[str, frozenset[str]] = {}
        self._slow: dict[str, int] = {}
        self._client: EngineClient | None = None
        seen: dict[str, Role] = {}
        roles: tuple[tuple[Role, Sequence[str]], ...] = (
            ("prefill", prefill_urls),
            ("decode", decode_urls),
        )
        for role, urls in roles:
            for text in urls:
                url = checked_url(text)
                if url in seen:
                    where = "twice" if seen[url] == role else f"for {seen[url]} and for {role}"
                    raise ConfigRefused(
                        f"{url} is given {where}", cure="give each engine once, in one role"
                    )
                seen[url] = role
        if not decode_urls:
            raise ConfigRefused("no decode engine is given", cure="add --decode http://HOST:PORT")
        self._see(
            tuple(
                EngineLease(
                    replica_id=url, role=role, url=url, engine_id="", model_id="", state="starting"
                )
                for url, role in seen.items()
            )
        )

    def model_ids(self) -> frozenset[str]:
        return frozenset().union(*self._models.values())

    async def _read(self) -> None:
        if self._client is None:
            self._client = EngineClient()
        client = self._client
        self._see(tuple(await asyncio.gather(*(self._probe(client, e) for e in self._engines))))
        self._read_at = time.monotonic()

    async def _probe(self, client: EngineClient, engine: EngineLease) -> EngineLease:
        headers = {} if self._secret is None else {SECRET_HEADER: self._secret}
        try:
            status, _ = await client.fetch(
                engine, "GET", "/health", timeout_s=self._probe_timeout_s, headers=headers
            )
            if status != 200:  # noqa: PLR2004
                return self._out(engine, f"/health answers {status}")
            status, raw = await client.fetch(
                engine, "GET", "/v1/models", timeout_s=self._probe_timeout_s, headers=headers
            )
        except LegFailed as exc:
            slow = self._slow.get(engine.replica_id, 0) + 1 if exc.failure == "timeout" else 0
            self._slow[engine.replica_id] = slow
            if 0 < slow < SLOW_PROBES:
                return engine
            return self._out(engine, f"{exc.failure} {exc.place or ''}".strip())
        self._slow.pop(engine.replica_id, None)
        cards = model_cards(raw) if status == 200 else []  # noqa: PLR2004
        if not cards:
            return self._out(engine, f"/v1/models answers {status} and lists no model")
        self._models[engine.replica_id] = frozenset(name for name, _ in cards)
        block_size, starts = engine.block_size, engine.times_seen_to_start
        vllm_version = engine.vllm_version
        if engine.state != "ready":
            asking = Probe(client, engine, headers, self._probe_timeout_s)
            try:
                vllm_version = await asking.vllm_version()
            except LegFailed:
                return engine  # asked again: with whom it may be paired is not known yet
            if self._asks_block_size:
                block_size = await asking.block_size()
            log.info("engine is ready", extra={"engine": engine.url, "role": engine.role})
            self.breakers.forget(engine.replica_id)
            starts += 1  # it takes longer to start than a probe takes to find it gone
        name, max_model_len = cards[0]
        return engine.model_copy(
            update={
                "state": "ready",
                "model_id": name,
                "max_model_len": max_model_len,
                "block_size": block_size,
                "times_seen_to_start": starts,
                "vllm_version": vllm_version,
            }
        )

    def _out(self, engine: EngineLease, why: str) -> EngineLease:
        if engine.state == "ready":
            self.failures += 1
            log.warning(
                "engine is out until it answers its probe",
                extra={"engine": engine.url, "role": engine.role, "error": why},
            )
        return engine.model_copy(update={"state": "starting"})

    async def close(self) -> None:
        await super().close()
        if self._client is not None:
            await self._client.close()
            self._client = None
