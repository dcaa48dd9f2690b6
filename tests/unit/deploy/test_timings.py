"""The table that says where the time of `baton up` went."""

from __future__ import annotations

import pytest

from baton.deploy.timings import Timings, timings_text
from baton.spec.lease import EngineLease, EngineStart


def _engine(role: str, name: str, began_at: float, seconds: float) -> EngineLease:
    return EngineLease.model_validate({
        "replica_id": name, "role": role, "url": "http://x", "engine_id": name, "model_id": "m",
        "start": {
            "began_at": began_at, "phases_s": {"process and imports": seconds}, "weights_s": 0.4,
            "weights_bytes": 2**30, "weights_from_disk_bytes": 0,
        },
    })  # fmt: skip


def _timings() -> Timings:
    moments = iter([105.0, 160.0, 161.0])
    timings = Timings(began_at=100.0, clock=lambda: next(moments))
    for name in ("ray_at", "engines_at", "handoff_at"):
        timings.mark(name)
    timings.engines = (
        _engine("decode", "d", 118.0, 30.0),
        _engine("prefill", "p1", 120.0, 20.0),
        _engine("prefill", "p2", 119.0, 35.0),
    )
    return timings


def test_the_steps_add_up_to_the_whole() -> None:
    """What lies between two moments belongs to exactly one step."""
    steps = _timings().steps_s()
    assert steps == {
        "Ray": 5.0, "Serve, application, placement": 13.0, "engines": 42.0, "first handoff": 1.0
    }  # fmt: skip
    assert sum(steps.values()) == pytest.approx(61.0)


def test_of_each_role_the_engine_that_was_up_last_is_shown() -> None:
    """The others waited for it."""
    slowest = _timings().slowest()
    assert list(slowest) == ["prefill", "decode"]
    assert slowest["prefill"].phases_s == {"process and imports": 35.0}


def test_engines_that_ran_before_an_update_are_not_part_of_it() -> None:
    """An update that starts nothing took no time for engines."""
    timings = _timings()
    timings.engines = (_engine("decode", "old", 10.0, 30.0),)
    assert timings.slowest() == {}
    assert timings.steps_s() == {"Ray": 5.0, "engines": 55.0, "first handoff": 1.0}


@pytest.mark.parametrize(
    ("read", "said"),
    [
        (0, "all of it from the page cache"),
        (2**29, "0.50 GiB from disk"),
        (None, "the system does not say"),
    ],
)
def test_the_table_says_where_the_weights_came_from(read: int | None, said: str) -> None:
    """Cold and warm starts can be told apart."""
    timings = _timings()
    start = EngineStart(began_at=118.0, weights_s=0.4, weights_from_disk_bytes=read)
    timings.engines = (timings.engines[0].model_copy(update={"start": start}),)
    assert said in timings_text(timings)


def test_the_table_shows_both_roles_side_by_side() -> None:
    """One row a phase, one column a role."""
    rows = [line.split() for line in timings_text(_timings()).splitlines()]
    assert ["prefill", "decode"] in rows
    assert ["process", "and", "imports", "35.0", "30.0"] in rows
    assert ["in", "all", "61.0"] in rows
