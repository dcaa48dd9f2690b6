"""Chooses the engines of one request: who is there, who has failed it, which pairs are slow.

The choice itself is the router's (`routing`); what it may choose from is decided here.
"""

from __future__ import annotations

from collections import defaultdict
from typing import TYPE_CHECKING

from baton.errors import NoEngineAvailable, ResponseGone
from baton.gateway.decode import engine_tag
from baton.gateway.directory import still_decodes
from baton.gateway.generations import generation_of
from baton.gateway.prefixes import prompt_of

if TYPE_CHECKING:
    from collections.abc import Sequence

    from baton.gateway.ask import Ask, Parts
    from baton.gateway.generations import Generation
    from baton.gateway.handoff import Handoff
    from baton.gateway.routing import Choice
    from baton.observe.timeline import Timeline
    from baton.spec.lease import EngineLease


class NoTaker(Exception):
    """No decode engine that is here can take what prefill offers."""


class Choosing:
    """One request's choices. Notes in the timeline why, and how long it took."""

    __slots__ = ("_parts", "_prompt", "_tag", "_timeline")

    def __init__(self, parts: Parts, ask: Ask, timeline: Timeline) -> None:
        self._parts = parts
        self._timeline = timeline
        self._tag = ask.tag
        self._prompt = prompt_of(ask)

    def prefill(self, tried: set[str], tried_decodes: set[str]) -> EngineLease | None:
        """A prefill engine that was not tried yet; None when there is none.

        Args:
            tried: Prefill engines that have failed this request, by `replica_id`.
            tried_decodes: As well, of decode: their versions count only when there are no others.
        """
        started = self._timeline.now()
        pick = self._parts.router.pick
        engines = self.paired(tried_decodes)
        choice = pick(engines, tried | self._slow_prefills(engines), self._prompt)
        choice = choice or pick(engines, tried, self._prompt)
        self._timeline.add("route", self._timeline.now() - started)
        return None if choice is None else self._chosen("prefill", choice)

    def paired(self, tried_decodes: set[str]) -> Sequence[EngineLease]:
        """Prefill engines whose KV some decode engine can take."""
        directory = self._parts.directory
        engines = directory.prefill_engines()
        if not directory.generations.mixed:
            return engines
        return directory.generations.prefills(
            engines, directory.decode_engines(), tried=tried_decodes
        )

    def _takers(self, offer: Handoff, engines: Sequence[EngineLease]) -> Sequence[EngineLease]:
        """Decode engines that can take the offer.

        One of its versions that is about to go is still better than prefilling again.
        """
        directory = self._parts.directory
        takers = directory.generations.like(engines, offer.generation)
        return takers or [
            engine
            for engine in directory.all_engines()
            if still_decodes(engine) and generation_of(engine) == offer.generation
        ]

    def decode(self, tried: set[str], offer: Handoff | None, again: str | None) -> EngineLease:
        """A decode engine, one that was not tried yet if there is one.

        Args:
            tried: Engines that have failed this request, by `replica_id`.
            offer: The KV that it would read.
            again: The engine that may be asked once more.

        Raises:
            NoTaker: Nobody of the offer's versions is left, and others are there.
            ResponseGone: The only engine that could answer is not there.
            NoEngineAvailable: Nobody is there.
        """
        started = self._timeline.now()
        engines = self._parts.directory.decode_engines()
        if self._tag is not None:
            engines = [e for e in engines if engine_tag(e.replica_id) == self._tag]
            if not engines:
                raise ResponseGone("The engine that held this response is gone.")
        if offer is not None and engines:
            engines = self._takers(offer, engines)
            if not engines:
                raise NoTaker
        pick = self._parts.router.pick
        choice = pick(engines, tried | self._slow_decodes(engines, offer), self._prompt)
        choice = choice or pick(engines, tried, self._prompt)
        if choice is None:
            resting = self.resting(offer)
            once_more = [e for e in (*engines, *resting) if e.replica_id == again]
            choice = pick(once_more) or pick(resting, tried) or pick(engines)
        self._timeline.add("route", self._timeline.now() - started)
        if choice is None:
            raise NoEngineAvailable("No decode engine is ready.")
        return self._chosen("decode", choice)

    def sound(self) -> Sequence[EngineLease]:
        """Decode engines that could take it as well as the one that it has."""
        return [] if self._tag is not None else self._parts.directory.decode_engines()

    def resting(self, offer: Handoff | None = None) -> Sequence[EngineLease]:
        """Decode engines with an open circuit: better than an error.

        Args:
            offer: The KV that it would read.
        """
        if self._tag is not None:
            return []
        directory = self._parts.directory
        generation = None if offer is None else offer.generation
        return directory.generations.like(directory.resting_engines(), generation)

    def learn(self, engine: EngineLease) -> None:
        """This engine has computed, or been handed, the prompt."""
        self._parts.router.learn(engine, self._prompt)

    def _slow_prefills(self, engines: Sequence[EngineLease]) -> frozenset[str]:
        links = self._parts.links
        if links is None or not links.any_slow:
            return frozenset()
        directory = self._parts.directory
        mixed = directory.generations.mixed
        takers: defaultdict[Generation | None, list[str]] = defaultdict(list)
        for decode in directory.decode_engines():
            takers[generation_of(decode) if mixed else None].append(decode.replica_id)
        return links.slow_prefills(
            {e.replica_id: takers[generation_of(e) if mixed else None] for e in engines}
        )

    def _slow_decodes(
        self, engines: Sequence[EngineLease], offer: Handoff | None
    ) -> frozenset[str]:
        links = self._parts.links
        if links is None or not links.any_slow or offer is None:
            return frozenset()
        return links.slow_decodes(offer.prefill_engine, [e.replica_id for e in engines])

    def _chosen(self, leg: str, choice: Choice) -> EngineLease:
        self._timeline.choices[leg] = {"why": choice.why, "held": round(choice.held, 3)}
        self._parts.metrics.choices.labels(leg, choice.why).inc()
        return choice.engine
