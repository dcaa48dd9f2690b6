"""The plan that `baton up` works by."""

from __future__ import annotations

from typing import Any

import pytest

from baton.deploy.intent import _first_replicas
from baton.spec.checked import RoleSpec


@pytest.mark.parametrize(
    ("deployment", "asked", "first"),
    [
        ({"num_replicas": 3}, 3, 3),
        ({"autoscaling_config": {"max_replicas": 4}}, 4, 1),
        ({"autoscaling_config": {"min_replicas": 2, "max_replicas": 4}}, 4, 2),
        ({"autoscaling_config": {"initial_replicas": 3, "max_replicas": 4}}, 4, 3),
        ({"num_replicas": "auto"}, 100, 1),
    ],
)
def test_up_waits_for_the_engines_that_serve_starts_with(
    deployment: dict[str, Any], asked: int, first: int
) -> None:
    """A scaled pool that may grow to four is complete with one."""
    spec = RoleSpec("decode", "m", "m", num_replicas=asked)
    assert _first_replicas({"deployment_config": deployment}, spec) == first
