"""Which way the requests really went: what the endpoint itself counts and remembers.

A Baton gateway counts its requests by route (`baton_requests_total` of `/metrics`) and keeps the
last timelines (`/baton/requests`). Another endpoint has neither; then nothing is known, which is
never taken for "all was well".
"""

from __future__ import annotations

import re
from collections import defaultdict
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

import httpx

if TYPE_CHECKING:
    from collections.abc import Mapping

_REQUESTS = re.compile(r"^baton_requests_total\{([^}]*)\}\s+(\S+)", re.MULTILINE)
_LABEL = re.compile(r'(\w+)="((?:[^"\\]|\\.)*)"')


@dataclass(frozen=True)
class Counts:
    """Requests of a gateway so far, by route and by reason."""

    by_route: Mapping[str, float]
    by_reason: Mapping[str, float]

    def since(self, before: Counts) -> Counts:
        """What came in between."""
        return Counts(
            _minus(self.by_route, before.by_route), _minus(self.by_reason, before.by_reason)
        )


@dataclass(frozen=True)
class Served:
    """How a run was served, as the gateway tells it.

    Args:
        counts: By route and reason; None where the endpoint does not tell.
        phases: Seconds of each stage of those requests whose timelines are still kept.
    """

    counts: Counts | None = None
    phases: Mapping[str, tuple[float, ...]] = field(default_factory=dict)

    @property
    def disaggregated(self) -> int | None:
        """Requests whose prompt a prefill engine computed; None where it is not known."""
        return None if self.counts is None else int(self.counts.by_route.get("pd", 0))


def _minus(now: Mapping[str, float], before: Mapping[str, float]) -> dict[str, float]:
    found = {name: value - before.get(name, 0.0) for name, value in now.items()}
    return {name: value for name, value in found.items() if value}


def counts_of(page: str) -> Counts | None:
    """The counts of a `/metrics` page; None when it is not a gateway's."""
    if "baton_requests_total" not in page and "baton_inflight" not in page:
        return None
    by_route: dict[str, float] = defaultdict(float)
    by_reason: dict[str, float] = defaultdict(float)
    for labels, value in _REQUESTS.findall(page):
        told = dict(_LABEL.findall(labels))
        by_route[told.get("route", "none")] += float(value)
        by_reason[f"{told.get('route', 'none')}: {told.get('reason', 'none')}"] += float(value)
    return Counts(dict(by_route), dict(by_reason))


async def counts_at(url: str, headers: Mapping[str, str]) -> Counts | None:
    """Ask an endpoint for its counts."""
    page = await _get(f"{url}/metrics", headers)
    return None if page is None else counts_of(page.text)


async def phases_at(
    url: str, headers: Mapping[str, str], run_id: str
) -> dict[str, tuple[float, ...]]:
    """Seconds of each stage of this run's requests, as far as the gateway remembers them."""
    page = await _get(f"{url}/baton/requests", headers)
    try:
        timelines: list[dict[str, Any]] = [] if page is None else page.json()["requests"]
    except (ValueError, LookupError, TypeError):
        return {}
    found: dict[str, list[float]] = defaultdict(list)
    for timeline in timelines:
        if str(timeline.get("request_id", "")).startswith(run_id):
            for stage, seconds in (timeline.get("stages") or {}).items():
                found[stage.removesuffix("_s")].append(float(seconds))
    return {stage: tuple(seconds) for stage, seconds in found.items()}


async def _get(url: str, headers: Mapping[str, str]) -> httpx.Response | None:
    try:
        async with httpx.AsyncClient(timeout=10.0, headers=dict(headers)) as http:
            reply = await http.get(url)
    except httpx.HTTPError:
        return None
    return reply if reply.status_code == httpx.codes.OK else None


async def has_prefill(url: str, headers: Mapping[str, str]) -> bool:
    """Whether a Baton gateway says that it has prefill engines and uses them."""
    page = await _get(f"{url}/baton/engines", headers)
    try:
        view = {} if page is None else page.json()
        roles = {engine["role"] for engine in view.get("engines", ())}
    except (ValueError, LookupError, TypeError, AttributeError):
        return False
    return "prefill" in roles and view.get("mode") != "never"
