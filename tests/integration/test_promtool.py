"""Prometheus' own promtool on the files that `baton dashboards` writes.

The unit tests parse each expression with a library that follows Prometheus' grammar
(tests/unit/observe/test_dashboards.py); this is the real thing, where it can be had.
"""

from __future__ import annotations

import subprocess
from typing import TYPE_CHECKING

import pytest
from tools.test_programs import find

from baton.observe.dashboards.alerts import ALERTS
from baton.observe.dashboards.files import files

if TYPE_CHECKING:
    from pathlib import Path


def promtool(folder: Path, *words: str) -> str:
    program = find("promtool")
    if program is None:
        pytest.skip("no promtool here: `make test-programs` unpacks it, as root on Debian")
    for name, text in files().items():
        (folder / name).write_text(text, encoding="utf-8")
    done = subprocess.run(
        [program, *words], cwd=folder, capture_output=True, text=True, check=False, timeout=60
    )
    assert done.returncode == 0, done.stdout + done.stderr
    return done.stdout + done.stderr


def test_promtool_takes_every_rule(tmp_path: Path) -> None:
    """Each alert and each recording rule, and none of them twice."""
    said = promtool(tmp_path, "check", "rules", "baton-rules.yaml")
    recorded = files()["baton-rules.yaml"].count("record:")
    assert f"{len(ALERTS) + recorded} rules found" in said
    assert "duplicate" not in said


def test_promtool_takes_the_scrape_config(tmp_path: Path) -> None:
    """Its syntax: the file with the key is not on this machine."""
    said = promtool(tmp_path, "check", "config", "--syntax-only", "baton-scrape.yaml")
    assert "SUCCESS" in said
