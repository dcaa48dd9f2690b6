"""The deployed gateway runs in its replica's own loop."""

from __future__ import annotations

from ray.serve._private import constants

from baton.serve.gateway import ONE_LOOP, gateway_deployment
from baton.spec.schema import BatonBlock


def test_the_gateways_replica_writes_its_own_answers() -> None:
    """Only the gateway's replica gets the variable, and Ray knows one of that name."""
    options = gateway_deployment(BatonBlock()).ray_actor_options
    assert options["runtime_env"]["env_vars"] == ONE_LOOP
    assert all(hasattr(constants, name) for name in ONE_LOOP)
