"""Knows how fast each prefill-decode pair hands KV over, and keeps requests off a slow one.

Every handoff of a streamed request teaches its own pair (`ways.Lesson`). A pair is slow when a
prompt's KV takes longer to hand over than the prompt takes to compute: then P/D is a loss however
the backend is called, and the pair is alerted about once. It is well again when it is clearly
faster than prefill.

One link can turn slow alone: a cable, an instance without EFA, a pod whose libfabric found no
device and took TCP. So a pair that is slow **and takes several times as long as most others** is
left alone; after `RETRY_S` a single request tries it again. What makes all pairs slow is no link:
queues before decode, prompts that are cheap to compute, the fabric as a whole. Going around such
pairs one by one would send everything to the last that is not called slow yet, so nothing is
routed around then; that is the cost model's business (`cost`, mode `auto`).
"""

from __future__ import annotations

import logging
import time
from collections import OrderedDict
from dataclasses import dataclass, field
from statistics import median_low
from typing import TYPE_CHECKING, Any

from baton.gateway.curve import SLOT_S, Curve

if TYPE_CHECKING:
    from collections.abc import Callable, Collection, Iterable, Mapping

log = logging.getLogger("baton.gateway.links")

SHORTEST = 256
"""Prompts under so many tokens say nothing of a link: their handoff is decode's first step."""
WELL = 0.8
"""A slow pair is well again below this share of what prefill takes."""
APART = 3.0
"""A slow pair takes at least so many times what the median pair takes before it is left alone."""
RETRY_S = 30.0
LOOK_S = 1.0
"""How often slow pairs are compared with the others."""
_COMPARED_AT = 1024
"""Tokens."""
MOST = 1024
"""Pairs that are remembered; the one that was used longest ago goes first."""
CURE = (
    "run `baton verify` on the endpoint: it says what this pair's transfers run on and why they are"
    " slow"
)


@dataclass
class _Link:
    curve: Curve = field(default_factory=Curve)
    tokens: float = 0.0
    slow: bool = False
    retry_at: float = 0.0
    judged_at: float = float("-inf")


class Links:
    """One gateway's pairs.

    Args:
        prefill_s: Seconds that prefill takes for so many tokens; None while that is not known.
        now: Seconds, never going back.
    """

    def __init__(
        self,
        prefill_s: Callable[[float], float | None],
        *,
        now: Callable[[], float] = time.monotonic,
    ) -> None:
        self._prefill_s = prefill_s
        self._now = now
        self._links: OrderedDict[tuple[str, str], _Link] = OrderedDict()
        self._slow: set[tuple[str, str]] = set()
        self._aside: frozenset[tuple[str, str]] = frozenset()
        self._looked_at = -LOOK_S

    def handed_over(self, prefill: str, decode: str, tokens: float, seconds: float) -> None:
        """Decode's first byte came so many seconds after it was asked, with KV from prefill."""
        if tokens < SHORTEST:
            return
        pair = (prefill, decode)
        link = self._links.get(pair)
        if link is None:
            link = self._links[pair] = _Link()
            if len(self._links) > MOST:
                gone, _ = self._links.popitem(last=False)
                self._not_slow(gone)
        self._links.move_to_end(pair)
        now = self._now()
        link.curve.add(now, tokens, seconds)
        link.tokens = tokens
        # The curve averages over as long, so that a look at each of a thousand would see no more.
        if now - link.judged_at >= SLOT_S:
            link.judged_at = now
            self._judge(pair, link)

    def _judge(self, pair: tuple[str, str], link: _Link) -> None:
        prefill_s = self._prefill_s(link.tokens)
        if prefill_s is None or not link.curve.is_known:
            return
        handoff_s = link.curve.seconds(link.tokens)
        if link.slow:
            if handoff_s < WELL * prefill_s:
                link.slow = False
                self._not_slow(pair)
                log.info("a pair hands KV over fast again", extra=self._told(pair, link, prefill_s))
            return
        if handoff_s > prefill_s:
            link.slow = True
            link.retry_at = self._now() + RETRY_S
            self._slow.add(pair)
            self._looked_at = -LOOK_S
            told = {**self._told(pair, link, prefill_s), "cure": CURE}
            told["routed_around"] = pair in self._set_aside()
            log.error("a pair hands KV over slower than prefill makes it", extra=told)

    def _not_slow(self, pair: tuple[str, str]) -> None:
        """It is well, or no longer known: it is not left alone until the next look either."""
        if pair in self._slow:
            self._slow.discard(pair)
            self._aside -= {pair}

    def _set_aside(self) -> frozenset[tuple[str, str]]:
        """The slow pairs that are left alone."""
        if not self._slow:
            return frozenset()
        if self._now() - self._looked_at >= LOOK_S:
            self._looked_at = self._now()
            takes = {
                pair: link.curve.seconds(_COMPARED_AT)
                for pair, link in self._links.items()
                if link.curve.is_known
            }
            bound = APART * median_low(takes.values()) if takes else 0.0
            self._aside = frozenset(pair for pair in self._slow if takes.get(pair, 0.0) > bound)
        return self._aside

    @staticmethod
    def _told(pair: tuple[str, str], link: _Link, prefill_s: float) -> dict[str, Any]:
        return {
            "prefill": pair[0],
            "decode": pair[1],
            "prompt_tokens": round(link.tokens),
            "handoff_s": round(link.curve.seconds(link.tokens), 4),
            "prefill_s": round(prefill_s, 4),
        }

    @property
    def any_slow(self) -> bool:
        """Whether there may be anything to route around."""
        return bool(self._slow)

    # -- routing -----------------------------------------------------------------------------------

    def slow_decodes(self, prefill: str | None, decodes: Collection[str]) -> frozenset[str]:
        """Decode engines that this prefill engine should not hand KV to; never all of `decodes`.

        One whose time has come is left out of it for this request: somebody has to find out.
        """
        if prefill is None or not (aside := self._set_aside()):
            return frozenset()
        slow = {d for p, d in aside if p == prefill and d in decodes}
        if len(slow) == len(decodes):
            return frozenset()
        for decode in slow:
            link = self._links[prefill, decode]
            if self._now() >= link.retry_at:
                link.retry_at = self._now() + RETRY_S
                return frozenset(slow - {decode})
        return frozenset(slow)

    def slow_prefills(self, takers: Mapping[str, Collection[str]]) -> frozenset[str]:
        """Prefill engines that have no fast decode engine; never all of them.

        One whose time has come is left out of it for this request, as with `slow_decodes`.

        Args:
            takers: For each prefill engine the decode engines that may take its KV.
        """
        if not (aside := self._set_aside()):
            return frozenset()
        slow = {p for p, ds in takers.items() if ds and all((p, d) in aside for d in ds)}
        due = {p for p in slow if any(self._now() >= self._links[p, d].retry_at for d in takers[p])}
        slow -= due
        for prefill in due:
            for decode in takers[prefill]:
                self._links[prefill, decode].retry_at = self._now() + RETRY_S
        return frozenset() if len(slow) == len(takers) else frozenset(slow)

    # -- showing -----------------------------------------------------------------------------------

    def keep(self, replica_ids: Collection[str]) -> None:
        """Forget pairs of engines that are gone."""
        for pair in [p for p in self._links if not (p[0] in replica_ids and p[1] in replica_ids)]:
            del self._links[pair]
            self._not_slow(pair)

    def pairs(self) -> Iterable[tuple[str, str, bool, float | None]]:
        """Prefill, decode, whether it is well, and tokens a second; None while not known."""
        for (prefill, decode), link in self._links.items():
            rate = None
            if link.curve.is_known and (seconds := link.curve.seconds(link.tokens)) > 0:
                rate = link.tokens / seconds
            yield prefill, decode, not link.slow, rate

    def as_list(self) -> list[dict[str, Any]]:
        """JSON-ready."""
        aside = self._set_aside()
        return [
            {
                "prefill": p,
                "decode": d,
                "ok": ok,
                "routed_around": (p, d) in aside,
                "tokens_per_s": rate,
            }
            for p, d, ok, rate in self.pairs()
        ]
