"""Order of the whole run, and fixtures that several kinds of tests share."""

from __future__ import annotations

import logging
import os
import signal
from typing import TYPE_CHECKING

import pytest
from hypothesis import settings

from tests.collector import running_collector
from tests.real_engines import CACHED, TOOLS, RealPair, start_pair, vllm_is_installed

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path

    from tests.collector import Collector

SKIP_REAL = "BATON_SKIP_REAL"

# No test asserts wall-clock time, and Hypothesis' deadline would.
settings.register_profile("baton", deadline=None)
settings.load_profile("baton")

_ORDER = ("unit", "contract", "integration", "e2e", "image")


# The first leaves its engines to the second (tests/e2e/conftest.py): none may come between them.
_FIRST = ("test_first_day.py", "test_drill_real.py")


def _rank(path: Path) -> tuple[int, int]:
    folder = next((i for i, name in enumerate(_ORDER) if name in path.parts), len(_ORDER))
    return folder, _FIRST.index(path.name) if path.name in _FIRST else len(_FIRST)


def pytest_addoption(parser: pytest.Parser) -> None:
    parser.addoption(
        "--lane",
        choices=("engines", "drill", "others"),
        help="only the tests of one lane: tools/test_lanes.py runs them side by side",
    )


# Last of all: pytest-randomly shuffles in the same hook, and within a folder that order stays.
@pytest.hookimpl(trylast=True)
def pytest_collection_modifyitems(config: pytest.Config, items: list[pytest.Item]) -> None:
    items.sort(key=lambda item: _rank(item.path))
    if (lane := config.getoption("--lane")) is not None:
        ours = [item for item in items if _lane(item) == lane]
        config.hook.pytest_deselected(items=[item for item in items if item not in set(ours)])
        items[:] = ours


def _lane(item: pytest.Item) -> str:
    if item.get_closest_marker("real_engine") is not None:
        return "engines"
    return "drill" if item.path.name == "test_drill.py" else "others"


@pytest.fixture(autouse=True)
def baton_logger_as_it_was() -> Iterator[None]:
    """`observe.logs.configure` rearranges the `baton` logger; the next test gets it untouched."""
    logger = logging.getLogger("baton")
    handlers, level, propagate = list(logger.handlers), logger.level, logger.propagate
    yield
    logger.handlers[:] = handlers
    logger.setLevel(level)
    logger.propagate = propagate


@pytest.fixture(scope="session")
def real_engines_wanted() -> None:
    """Ask for this before starting real engines: skips, or fails, where there can be none."""
    if os.environ.get(SKIP_REAL) == "1":
        pytest.skip(f"{SKIP_REAL}=1: nothing is compared with real vLLM engines")
    if not vllm_is_installed():
        pytest.fail(
            "vllm and nixl are not installed, so nothing can be compared with real engines "
            f"(hint: install requirements/cpu.txt, or set {SKIP_REAL}=1 to go without)"
        )


@pytest.fixture(scope="session")
def engine_spans() -> Iterator[Collector]:
    """Where the shared pair's spans go."""
    with running_collector() as collector:
        yield collector


@pytest.fixture(scope="session")
def real_pair(
    real_engines_wanted: None,
    engine_spans: Collector,
    tmp_path_factory: pytest.TempPathFactory,
) -> Iterator[RealPair]:
    """A real prefill and a real decode engine, started once for the whole run.

    Tests leave it as they found it: no KV held, both engines alive.
    """
    traced = ("--otlp-traces-endpoint", f"{engine_spans.url}/v1/traces")
    with start_pair(
        tmp_path_factory.mktemp("real-pair"), extra_args=(*TOOLS, *CACHED, *traced)
    ) as pair:
        yield pair


def pytest_sessionstart() -> None:
    """Let SIGTERM (a CI time limit) unwind the fixtures, so that no engine is left behind.

    A SystemExit would only fail the test that runs, and the next would begin.
    """
    signal.signal(
        signal.SIGTERM, lambda *_: pytest.exit("SIGTERM", returncode=128 + signal.SIGTERM)
    )
