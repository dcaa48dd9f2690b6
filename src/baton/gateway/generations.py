"""Which engines may hand KV to each other while two versions stand side by side.

In a rollout old and new engines are in the directory together. KV of one version in memory of
another is at best refused by vLLM's handshake, at the first request, and where the handshake looks
at nothing that changed (another NIXL, another Baton), it is read. So a gateway pairs a prefill and
a decode engine only when all that their leases say of versions is equal: a **generation**. vLLM's
own compatibility hash is part of it (model, dtype, KV heads, attention backend, push or pull;
vLLM 0.29, nixl/metadata.py `compute_nixl_compatibility_hash`), so two engines that it would refuse
never meet.

What an engine does not say is compared as well: silence beside a version is a difference, and two
silent engines are alike, as those of a fixed list are.

Each request stays within one generation: prefill's choice decides which. Only an engine that
nobody of its generation stands beside is left out: a prefill engine then gets nothing, a decode
engine does requests alone. Usually there is one generation, and nothing here costs a request
anything.
"""

from __future__ import annotations

import hashlib
import logging
from collections import Counter, defaultdict
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from baton.gateway.candidates import Candidates

if TYPE_CHECKING:
    from collections.abc import Collection, Iterable, Sequence

    from baton.spec.lease import EngineLease

log = logging.getLogger("baton.gateway.generations")

CURE = (
    "finish the rollout or take it back, so that all engines run one image; `baton status` and"
    " GET /baton/engines list each engine's versions"
)
CURE_CONFIGS = (
    "give both roles the same model, dtype, KV cache dtype, attention backend and connector: vLLM's"
    " handshake compares these"
)
_UNSAID = "not said"
MIXED = "mixed_versions"
"""Why a request is done by decode alone."""

Generation = tuple[str, str, str, str]
"""vLLM's version, Baton's, NIXL's, and vLLM's own hash of what has to be equal for KV."""


def generation_of(engine: EngineLease) -> Generation:
    """What has to be equal in both engines of a handoff."""
    return (
        engine.vllm_version,
        engine.baton_version,
        engine.evidence.nixl_version or "",
        engine.compatibility,
    )


def tag_of(generation: Generation) -> str:
    """A short name for logs and metrics: the same in every gateway."""
    return hashlib.sha256("\0".join(generation).encode()).hexdigest()[:8]


@dataclass(frozen=True)
class Mixed:
    """That generations stand side by side: fact, place and cure, for people."""

    fact: str
    place: str
    cure: str


@dataclass(frozen=True)
class Member:
    """One generation: how many engines it has in each role."""

    generation: Generation
    prefill: int
    decode: int

    @property
    def paired(self) -> bool:
        """Whether a handoff can happen in it."""
        return self.prefill > 0 and self.decode > 0

    def as_dict(self) -> dict[str, Any]:
        """For `/baton/engines`."""
        vllm, baton, nixl, compatibility = self.generation
        return {
            "generation": tag_of(self.generation),
            "vllm": vllm,
            "baton": baton,
            "nixl": nixl,
            "compatibility": compatibility,
            "prefill": self.prefill,
            "decode": self.decode,
            "paired": self.paired,
        }


class Generations:
    """The generations of one read of the directory.

    Args:
        engines: Those that can be asked: ready ones, and decode engines that drain.
    """

    def __init__(self, engines: Iterable[EngineLease] = ()) -> None:
        counts: defaultdict[Generation, Counter[str]] = defaultdict(Counter)
        for engine in engines:
            counts[generation_of(engine)][engine.role] += 1
        self.members = tuple(
            Member(generation, count["prefill"], count["decode"])
            for generation, count in sorted(counts.items())
        )

    @property
    def mixed(self) -> bool:
        """Whether there is more than one."""
        return len(self.members) > 1

    def unpaired(self, role: str) -> int:
        """Engines of a role that nobody of the other role stands beside, while mixed."""
        if not self.mixed:
            return 0
        return sum(
            member.prefill if role == "prefill" else member.decode
            for member in self.members
            if not member.paired
        )

    def finding(self) -> Mixed | None:
        """What there is to say; None while all are alike."""
        if not self.mixed:
            return None
        names = ("vLLM", "Baton", "NIXL", "KV compatibility")
        sides = zip(*(member.generation for member in self.members), strict=True)
        differ = [
            f"{name} {' and '.join(sorted({side or _UNSAID for side in said}))}"
            for name, said in zip(names, sides, strict=True)
            if len(set(said)) > 1
        ]
        shapes = "; ".join(
            f"{tag_of(member.generation)}: {member.prefill} prefill, {member.decode} decode"
            for member in self.members
        )
        # Engines that differ in their configs alone are no rollout's, and none will end it.
        only_configs = len({member.generation[:3] for member in self.members}) == 1
        return Mixed(
            f"engines of different versions are up: {'; '.join(differ)}",
            shapes,
            CURE_CONFIGS if only_configs else CURE,
        )

    def prefills(
        self,
        prefills: Sequence[EngineLease],
        decodes: Iterable[EngineLease],
        tried: Collection[str] = (),
    ) -> Sequence[EngineLease]:
        """Prefill engines that some decode engine can take KV from.

        Args:
            prefills: To choose from.
            decodes: That can be asked now.
            tried: Decode engines, by `replica_id`, that this request failed on: they count only
                when there are no others.
        """
        if not self.mixed:
            return prefills
        here = list(decodes)
        fresh = {generation_of(e) for e in here if e.replica_id not in tried}
        takers = fresh or {generation_of(e) for e in here}
        return _where(prefills, takers)

    def like(
        self, engines: Sequence[EngineLease], generation: Generation | None
    ) -> Sequence[EngineLease]:
        """Engines of one generation; all where none is asked for."""
        if generation is None:
            return engines
        if not self.mixed:
            # Nobody walks over a thousand engines that are alike.
            alike = not self.members or self.members[0].generation == generation
            return engines if alike else ()
        return _where(engines, {generation})


def _where(engines: Sequence[EngineLease], wanted: Collection[Generation]) -> Candidates:
    read = engines.read if isinstance(engines, Candidates) else None
    return Candidates.of([e for e in engines if generation_of(e) in wanted], read=read)


class Watch:
    """Says once when versions begin to be mixed, and once when that is over."""

    def __init__(self) -> None:
        self._said: Mixed | None = None

    def see(self, generations: Generations) -> None:
        """After each read of the directory."""
        finding = generations.finding()
        if finding == self._said:
            return
        if finding is None:
            log.info("all engines run the same versions again")
        elif self._said is None or finding.fact != self._said.fact:
            log.warning(
                "%s; KV is handed over only between engines of the same versions",
                finding.fact,
                extra={"fact": finding.fact, "place": finding.place, "cure": finding.cure},
            )
        self._said = finding
