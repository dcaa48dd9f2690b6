"""Memory that a host takes away, as a bench tells it."""

from __future__ import annotations

from typing import TYPE_CHECKING

import plan_hold
import pytest

if TYPE_CHECKING:
    from collections.abc import Mapping
    from pathlib import Path


@pytest.mark.parametrize(
    ("shown", "away"),
    [
        ({"after_0_s_ms": 7.4, "after_2_s_ms": 229.0}, True),
        ({"after_0_s_ms": 1.8, "after_2_s_ms": 2.2}, False),
    ],
)
def test_pages_that_take_long_after_a_pause_were_away(
    shown: Mapping[str, float], away: bool
) -> None:
    """Milliseconds to read a byte of each page, as two hosts had them."""
    assert plan_hold.takes_pages_away(dict(shown)) == away


def test_a_reader_that_had_to_wait_once_has_lost_no_pages(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """One of three times after a pause takes long."""
    path = tmp_path / "library"
    path.write_bytes(bytes(1 << 20))
    took = iter([0.002, 0.002, 0.002, 0.0115, 0.002, 0.002])
    monkeypatch.setattr(plan_hold, "_read_after", lambda *_: next(took))
    shown = plan_hold.show(path, pauses_s=(0.0, 2.0))
    assert not plan_hold.takes_pages_away(shown)


def test_a_mapped_file_is_read_after_each_pause(tmp_path: Path) -> None:
    """One figure for each, and the size."""
    path = tmp_path / "library"
    path.write_bytes(bytes(1 << 20))
    shown = plan_hold.show(path, pauses_s=(0.0, 0.01))
    assert set(shown) == {"file_mb", "after_0_s_ms", "after_0.01_s_ms"}
    assert shown["file_mb"] == pytest.approx(1.05, abs=0.01)
