"""What a journey is about: what the caller wants of the engines, and what all journeys share."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING
from urllib.parse import quote

from baton.gateway.directory import SECRET_HEADER

if TYPE_CHECKING:
    from baton.gateway.cost import WayChoice
    from baton.gateway.directory import Directory
    from baton.gateway.eligibility import PromptSize
    from baton.gateway.engine_client import EngineClient
    from baton.gateway.lease_guard import LeaseGuard
    from baton.gateway.links import Links
    from baton.gateway.recovery import RetryBudget
    from baton.gateway.releases import Releases
    from baton.gateway.request_body import Body
    from baton.gateway.routes import Route
    from baton.gateway.routing import InFlight, Router
    from baton.observe.metrics import GatewayMetrics
    from baton.spec.schema import Recovery


@dataclass(frozen=True)
class Parts:
    """What every journey shares."""

    client: EngineClient
    directory: Directory
    inflight: InFlight
    router: Router
    releases: Releases
    metrics: GatewayMetrics
    settings: Recovery
    budget: RetryBudget
    leases: LeaseGuard
    links: Links | None = None


@dataclass(frozen=True)
class Ask:
    """What the caller wants of the engines."""

    route: Route
    method: str
    path: str
    body: Body | None
    streamed: bool
    headers: dict[str, str]
    why_alone: str | None
    """Why decode does it alone; None to disaggregate."""
    tag: str | None = None
    """The only decode engine that can answer, by its tag."""
    size: PromptSize | None = None
    """Of a prompt that could go both ways."""
    choice: WayChoice | None = None
    """What the cost model said, where it was asked."""

    @property
    def reason(self) -> str:
        """Why it goes the way that it goes."""
        if self.why_alone is not None:
            return self.why_alone
        return "mode_always" if self.choice is None else self.choice.reason


def leg_headers(directory: Directory, ask_headers: dict[str, str], leg_id: str) -> dict[str, str]:
    """Headers of one leg. The id is new for each: two callers may send the same one."""
    headers = {**ask_headers, "X-Request-Id": leg_id}
    secret = directory.engine_secret
    if secret is not None:
        headers[SECRET_HEADER] = secret
    return headers


def engine_path(route: Route, ident: str | None) -> str:
    """The path to ask an engine for."""
    return route.path if ident is None else route.path.replace("{id}", quote(ident, safe=""))
