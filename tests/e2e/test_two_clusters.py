"""One process and two clusters of its own, one after the other, each with its own key."""

from __future__ import annotations

import pytest

from baton.deploy import serve_app
from tests.e2e.simulated_app import ray_head

pytestmark = [pytest.mark.ray, pytest.mark.timeout(120)]


def test_a_process_that_has_left_one_cluster_gets_into_the_next() -> None:
    """Ray keeps the first token that a process has used: the second cluster refused it."""
    seen = []
    for _ in range(2):
        with ray_head() as head:
            seen.append((head.auth_token, serve_app.logical_cpus()))
    assert [cpus for _, cpus in seen] == [8, 8]
    assert seen[0][0] != seen[1][0]
