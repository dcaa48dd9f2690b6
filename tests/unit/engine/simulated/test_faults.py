"""Faults, as they are written."""

from __future__ import annotations

import pytest

from baton.engine.simulated.faults import NO_FAULT, Faults, Plan
from baton.errors import ConfigRefused


def test_without_faults_nothing_goes_wrong():
    """The usual case costs nothing."""
    assert Faults().plan() is NO_FAULT


@pytest.mark.parametrize(
    ("spec", "plan"),
    [
        ("refuse", Plan(refuse="503")),
        ("refuse=close", Plan(refuse="close")),
        ("hang", Plan(hang=True)),
        ("hang_at=3", Plan(hang_at=3)),
        ("die_at=0", Plan(die_at=0)),
        ("drop_at=7", Plan(drop_at=7)),
        ("slow=2.5", Plan(slow=2.5)),
        ("kv_bytes_per_s=1e6", Plan(kv_bytes_per_s=1e6)),
        ("kv_delay_s=0.5", Plan(kv_delay_s=0.5)),
        ("fail_kv_load", Plan(fail_kv_load=True)),
        ("garbage", Plan(garbage=True)),
    ],
)
def test_every_fault_is_read(spec, plan):
    """By the command line, at runtime, and for one request."""
    faults = Faults()
    faults.set([spec])
    assert faults.plan() == plan
    assert Faults().plan(spec) == plan


def test_a_count_limits_a_fault_to_the_next_requests():
    """A gateway that tries again must find the engine well."""
    faults = Faults()
    faults.set(["refuse*2"])
    assert [faults.plan().refuse for _ in range(3)] == ["503", "503", None]
    assert faults.listed() == []


def test_faults_add_up_and_the_request_has_the_last_word():
    """Both sources at once."""
    faults = Faults()
    faults.set(["slow=2", "die_at=5"])
    assert faults.plan("die_at=1, garbage") == Plan(slow=2.0, die_at=1, garbage=True)
    assert faults.plan() == Plan(slow=2.0, die_at=5)


@pytest.mark.parametrize(
    "spec",
    [
        "",
        "die",
        "die_at",
        "die_at=-1",
        "die_at=x",
        "slow=0",
        "slow=x",
        "kv_bytes_per_s=0",
        "kv_bytes_per_s=inf",
        "kv_delay_s=nan",
        "refuse=500",
        "hang=3",
        "refuse*0",
        "refuse*x",
    ],
)
def test_what_cannot_be_read_is_refused_and_changes_nothing(spec):
    """A drill whose fault is misspelt must not pass."""
    faults = Faults()
    faults.set(["hang"])
    with pytest.raises(ConfigRefused, match="cannot be read"):
        faults.set(["refuse", spec])
    assert faults.listed() == ["hang"]


def test_unhealthy_is_seen_by_health_checks():
    """It concerns `/health`, no request."""
    faults = Faults()
    faults.set(["unhealthy"])
    assert faults.unhealthy
    assert faults.plan() == NO_FAULT


def test_a_throttle_makes_a_transfer_slower_and_never_faster():
    """Bytes by the throttle's rate, and the delay on top of what it takes anyway."""
    assert NO_FAULT.kv_transfer_s(1000, 0.25) == 0.25
    assert Plan(kv_bytes_per_s=100.0).kv_transfer_s(1000, 0.25) == 10.0
    assert Plan(kv_bytes_per_s=1e9, kv_delay_s=0.5).kv_transfer_s(1000, 0.25) == 0.75
