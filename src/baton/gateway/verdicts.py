"""Keeps what `baton verify` found last for each pair, so that the console can show it.

Whoever ran the verification tells this gateway, with a caller's key. So a verdict is what somebody
with a key said, with the time at which he said it; nothing is routed by it. What is told is read
strictly and bounded: it is shown to people.
"""

from __future__ import annotations

import sys
import time
from collections import OrderedDict
from typing import TYPE_CHECKING, Annotated, Any, Literal, NamedTuple

from pydantic import BaseModel, ConfigDict, Field, ValidationError

from baton.errors import RequestRefused
from baton.spec.transfer import Fabric

if TYPE_CHECKING:
    from collections.abc import Iterable

MOST = 1024
"""Pairs that are remembered; the one that was told of longest ago goes first."""
MOST_BYTES = 8 * 1024 * 1024
"""The same for what all of them hold in memory: reasons are texts of whoever has a key."""

_Name = Annotated[str, Field(min_length=1, max_length=300)]
_Text = Annotated[str, Field(max_length=2000)]
_Speed = Annotated[float, Field(ge=0, allow_inf_nan=False)] | None


class _Part(BaseModel):
    model_config = ConfigDict(frozen=True, extra="ignore")


class ToldReason(_Part):
    """One reason of a verdict."""

    weight: Literal["fail", "unknown", "note", "good"]
    fact: _Text
    cure: _Text = ""


class ToldNumbers(_Part):
    """Gigabytes a second."""

    gb_per_s: _Speed = None
    least_gb_per_s: _Speed = None
    raw_gb_per_s: _Speed = None
    needed_gb_per_s: _Speed = None


class ToldVerdict(_Part):
    """What is kept of `baton.verify.evidence.Verdict`, under the same names."""

    prefill: _Name
    decode: _Name
    outcome: Literal["PASS", "FAIL", "INCONCLUSIVE"]
    required: Annotated[str, Field(max_length=20)] = "any"
    observed_backends: Annotated[tuple[_Name, ...], Field(max_length=8)] = ()
    observed_fabric: Fabric | None = None
    numbers: ToldNumbers = ToldNumbers()
    reasons: Annotated[tuple[ToldReason, ...], Field(max_length=32)] = ()


class _Told(_Part):
    verdicts: Annotated[tuple[ToldVerdict, ...], Field(max_length=MOST)]


class _Kept(NamedTuple):
    shown: dict[str, Any]
    size: int


class Verdicts:
    """The last verdict of each pair."""

    def __init__(self) -> None:
        self._kept: OrderedDict[tuple[str, str], _Kept] = OrderedDict()
        self._bytes = 0

    def take(self, body: dict[str, Any]) -> int:
        """Keep what a body says; returns of how many pairs.

        Raises:
            RequestRefused: It is not what `baton verify` sends.
        """
        try:
            told = _Told.model_validate(body)
        except ValidationError as exc:
            first = exc.errors(include_url=False, include_input=False)[0]
            where = ".".join(str(part) for part in first["loc"])
            raise RequestRefused(f"These are no verdicts: {where}: {first['msg']}") from exc
        now = time.time()
        for verdict in told.verdicts:
            shown = {**verdict.model_dump(mode="json"), "told_at": round(now, 3)}
            self._keep((verdict.prefill, verdict.decode), _Kept(shown, _bytes_of(shown)))
        return len(told.verdicts)

    def _keep(self, pair: tuple[str, str], told: _Kept) -> None:
        before = self._kept.pop(pair, None)
        self._bytes += told.size - (before.size if before is not None else 0)
        self._kept[pair] = told
        while len(self._kept) > MOST or self._bytes > MOST_BYTES:
            _, gone = self._kept.popitem(last=False)
            self._bytes -= gone.size

    def as_list(self, replica_ids: set[str]) -> list[dict[str, Any]]:
        """Those of engines that are still here, JSON-ready."""
        return [
            kept.shown
            for (prefill, decode), kept in self._kept.items()
            if prefill in replica_ids and decode in replica_ids
        ]


def _bytes_of(value: Any) -> int:
    """What a JSON-ready value holds in memory: a letter is one byte, or four beside an emoji."""
    parts: Iterable[Any] = ()
    if isinstance(value, dict):
        parts = value.values()
    elif isinstance(value, list):
        parts = value
    return sys.getsizeof(value) + sum(map(_bytes_of, parts))
