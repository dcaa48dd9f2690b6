"""Chooses the engines of one request: who is there, who has failed it, which pairs are slow.

The choice itself is the router's (`routing`); what it may choose from is decided here.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from baton.errors import NoEngineAvailable, ResponseGone
from baton.gateway.decode import engine_tag
from baton.gateway.prefixes import prompt_of

if TYPE_CHECKING:
    from collections.abc import Sequence

    from baton.gateway.ask import Ask, Parts
    from baton.gateway.handoff import Handoff
    from baton.gateway.routing import Choice
    from baton.observe.timeline import Timeline
    from baton.spec.lease import EngineLease


class Choosing:
    """One request's choices. Notes in the timeline why, and how long it took."""

    __slots__ = ("_parts", "_prompt", "_tag", "_timeline")

    def __init__(self, parts: Parts, ask: Ask, timeline: Timeline) -> None:
        self._parts = parts
        self._timeline = timeline
        self._tag = ask.tag
        self._prompt = prompt_of(ask)

    def prefill(self, tried: set[str]) -> EngineLease | None:
        """A prefill engine that was not tried yet; None when there is none."""
        started = self._timeline.now()
        pick = self._parts.router.pick
        engines = self._parts.directory.prefill_engines()
        choice = pick(engines, tried | self._slow_prefills(engines), self._prompt)
        choice = choice or pick(engines, tried, self._prompt)
        self._timeline.add("route", self._timeline.now() - started)
        return None if choice is None else self._chosen("prefill", choice)

    def decode(self, tried: set[str], offer: Handoff | None, again: str | None) -> EngineLease:
        """A decode engine, one that was not tried yet if there is one.

        Args:
            tried: Engines that have failed this request, by `replica_id`.
            offer: The KV that it would read.
            again: The engine that may be asked once more.

        Raises:
            ResponseGone: The only engine that could answer is not there.
            NoEngineAvailable: Nobody is there.
        """
        started = self._timeline.now()
        engines = self._parts.directory.decode_engines()
        if self._tag is not None:
            engines = [e for e in engines if engine_tag(e.replica_id) == self._tag]
            if not engines:
                raise ResponseGone("The engine that held this response is gone.")
        pick = self._parts.router.pick
        choice = pick(engines, tried | self._slow_decodes(engines, offer), self._prompt)
        choice = choice or pick(engines, tried, self._prompt)
        if choice is None:
            resting = self.resting()
            once_more = [e for e in (*engines, *resting) if e.replica_id == again]
            choice = pick(once_more) or pick(resting, tried) or pick(engines)
        self._timeline.add("route", self._timeline.now() - started)
        if choice is None:
            raise NoEngineAvailable("No decode engine is ready.")
        return self._chosen("decode", choice)

    def sound(self) -> Sequence[EngineLease]:
        """Decode engines that could take it as well as the one that it has."""
        return [] if self._tag is not None else self._parts.directory.decode_engines()

    def resting(self) -> Sequence[EngineLease]:
        """Decode engines with an open circuit: better than an error."""
        return [] if self._tag is not None else self._parts.directory.resting_engines()

    def learn(self, engine: EngineLease) -> None:
        """This engine has computed, or been handed, the prompt."""
        self._parts.router.learn(engine, self._prompt)

    def _slow_prefills(self, engines: Sequence[EngineLease]) -> frozenset[str]:
        links = self._parts.links
        if links is None or not links.any_slow:
            return frozenset()
        decodes = [e.replica_id for e in self._parts.directory.decode_engines()]
        return links.slow_prefills([e.replica_id for e in engines], decodes)

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
