"""Runs of pytest side by side: one result, and whoever ends it ends all in order."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import time
from typing import TYPE_CHECKING

import pytest
from tools.test_lanes import NO_TESTS, ROOT, verdict

if TYPE_CHECKING:
    from pathlib import Path

CONFTEST = """
import os, pathlib, pytest
from tests.conftest import pytest_addoption, pytest_collection_modifyitems, pytest_sessionstart
SEEN = pathlib.Path(__file__).parent
def pytest_configure(config):
    config.addinivalue_line("markers", "real_engine: as there")
@pytest.fixture(scope="session")
def engine(request):
    lane = request.config.getoption("--lane")
    (SEEN / f"{lane}.begun").touch()
    yield
    (SEEN / f"{lane}.ended").touch()
"""
TESTS = """
import os, pathlib, pytest, time
def work(request):
    with (pathlib.Path(__file__).parent / "ran").open("a") as file:
        file.write(request.node.name + "\\n")
    time.sleep(float(os.environ.get("TOY_S", "0")))
@pytest.mark.real_engine
def test_real(engine, request):
    work(request)
@pytest.mark.real_engine
def test_real_too(engine, request):
    work(request)
def test_other(engine, request):
    work(request)
    assert "TOY_FAILS" not in os.environ
"""
PROGRAM = (
    "import pathlib, sys; from tools.test_lanes import run; "
    "sys.exit(run(('engines', 'others'), sys.argv[2:], pathlib.Path(sys.argv[1])))"
)


@pytest.fixture
def toy(tmp_path: Path) -> Path:
    (tmp_path / "test_toy.py").write_text(TESTS, encoding="utf-8")
    (tmp_path / "conftest.py").write_text(CONFTEST, encoding="utf-8")
    (tmp_path / "pytest.ini").write_text("[pytest]\n", encoding="utf-8")
    return tmp_path


def start(toy: Path, *arguments: str, **environment: str) -> subprocess.Popen[str]:
    here = {
        "PYTHONPATH": os.pathsep.join([str(ROOT / "src"), str(ROOT)]),
        "PYTEST_DISABLE_PLUGIN_AUTOLOAD": "1",
    }
    return subprocess.Popen(
        [sys.executable, "-c", PROGRAM, str(toy), *arguments],
        env={**os.environ, **here, **environment},
        stdin=subprocess.DEVNULL,
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
    )


def test_each_test_is_run_once_and_a_failure_in_one_lane_is_the_whole_runs(toy: Path) -> None:
    """The other lane goes on, and the slowest tests are named."""
    process = start(toy, TOY_FAILS="1")
    told, _ = process.communicate()
    assert process.returncode == 1, told
    ran = sorted((toy / "ran").read_text().splitlines())
    assert ran == ["test_other", "test_real", "test_real_too"]
    assert " engines | " in told
    assert "slowest" in told


@pytest.mark.parametrize(
    ("statuses", "whole"),
    [([0, 5, 0], 0), ([5, 5], NO_TESTS), ([0, 2, 1], 2), ([0, -9], 9), ([0, 0], 0)],
)
def test_a_lane_without_tests_is_no_failure_and_none_at_all_is_one(
    statuses: list[int], whole: int
) -> None:
    """`-k`: what a person asks for is in one lane, perhaps, and a slip of theirs in none."""
    assert verdict(statuses) == whole


def test_sigterm_ends_both_lanes_and_their_fixtures(toy: Path) -> None:
    """A CI time limit: no test begins any more, and what fixtures started is ended."""
    process = start(toy, TOY_S="60")
    deadline_s = time.monotonic() + 60
    (toy / "ran").touch()
    while len((toy / "ran").read_text().splitlines()) < 2:
        assert time.monotonic() < deadline_s
        time.sleep(0.05)
    process.send_signal(signal.SIGTERM)
    told, _ = process.communicate(timeout=60)
    assert process.returncode == 128 + signal.SIGTERM, told
    assert sorted(path.name for path in toy.glob("*.ended")) == ["engines.ended", "others.ended"]
    assert len((toy / "ran").read_text().splitlines()) == 2
