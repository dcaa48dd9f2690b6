"""One run of `baton eks` against a cloud in memory, and the ways up and down."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import pytest

from baton.deploy.eks.live.apply import apply
from baton.deploy.eks.live.aws import AwsFailed
from baton.deploy.eks.live.observe import Eyes
from baton.deploy.eks.live.parts import parts_of
from baton.deploy.eks.live.teardown import delete
from baton.deploy.eks.live.walk import Pace
from baton.errors import DeployFailed
from tests.unit.deploy.eks.live.cloud import KEYS, Cloud
from tests.unit.deploy.eks.rendered import layout

if TYPE_CHECKING:
    from collections.abc import Callable

    from baton.deploy.eks.layout import Layout
    from baton.deploy.eks.live.teardown import Left


class Session:
    """One run of `baton eks` against a cloud: eyes, parts, and what was said."""

    def __init__(self, cloud: Cloud, what: Layout | None = None) -> None:
        self.cloud = cloud
        self.said: list[str] = []
        self.layout = what or layout()
        self.eyes = Eyes(self.layout, cloud, cloud, now=lambda: cloud.clock)
        self.pace = Pace(self.said.append, cloud.sleep, lambda: cloud.clock, 15.0)
        self.parts = parts_of(self.layout, KEYS)


def up(cloud: Cloud) -> Session:
    """The way up, all of it."""
    session = Session(cloud)
    apply(session.parts, session.eyes, cloud, session.pace)
    return session


def down(cloud: Cloud, *steps: str) -> list[Left]:
    """The way down, of some steps or of all."""
    session = Session(cloud)
    parts = [part for part in session.parts if not steps or part.step in steps]
    return delete(parts, session.eyes, cloud, session.pace)


def throttled() -> Any:
    """AWS' answer to who asks too often."""
    raise AwsFailed("ThrottlingException", "Rate exceeded")


def refused(function: Callable[..., Any], *arguments: Any) -> str:
    """Fact and cure of the refusal."""
    with pytest.raises(DeployFailed) as caught:
        function(*arguments)
    return f"{caught.value.fact} | {caught.value.cure}"
