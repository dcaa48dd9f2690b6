"""Keeps what `baton verify` found last for each pair, so that the console can show it.

Whoever ran the verification tells this gateway, with a caller's key. So a verdict is what somebody
with a key said, with the time at which he said it; nothing is routed by it. What is told is read
strictly and bounded: it is shown to people.
"""

from __future__ import annotations

import time
from collections import OrderedDict
from typing import Annotated, Any, Literal

from pydantic import BaseModel, ConfigDict, Field, ValidationError

from baton.errors import RequestRefused
from baton.spec.transfer import Fabric

MOST = 1024
"""Pairs that are remembered; the one that was told of longest ago goes first."""

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


class Verdicts:
    """The last verdict of each pair."""

    def __init__(self) -> None:
        self._kept: OrderedDict[tuple[str, str], dict[str, Any]] = OrderedDict()

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
            pair = (verdict.prefill, verdict.decode)
            self._kept.pop(pair, None)
            self._kept[pair] = {**verdict.model_dump(mode="json"), "told_at": round(now, 3)}
        while len(self._kept) > MOST:
            self._kept.popitem(last=False)
        return len(told.verdicts)

    def as_list(self, replica_ids: set[str]) -> list[dict[str, Any]]:
        """Those of engines that are still here, JSON-ready."""
        return [v for (p, d), v in self._kept.items() if p in replica_ids and d in replica_ids]
