"""`baton drill --engines simulated`, as a person runs it: the table, and nothing left behind.

One drill for the whole file; each test holds it to one claim.
"""

from __future__ import annotations

import contextlib
import json
import os
import signal
import subprocess
import sys
import time
from typing import TYPE_CHECKING, Any

import psutil
import pytest

from baton.deploy.simulated_stack import SETTINGS, SimulatedStack
from baton.drill.run import Options, run
from baton.drill.scenarios import ALL

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path

    from baton.drill.stage import Result

pytestmark = [pytest.mark.slow, pytest.mark.timeout(600)]

LOSSES = ("errors", "broken_streams", "mismatched_answers", "kv_blocks_left")


@contextlib.contextmanager
def _started(folder: Path, *arguments: str) -> Iterator[subprocess.Popen[str]]:
    """A drill that makes its own folder below this one; ended with the block, however that ends."""
    process = subprocess.Popen(
        [sys.executable, "-m", "baton.cli", "drill", "--engines", "simulated", *arguments],
        env={**os.environ, "TMPDIR": str(folder)},
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
        # A run in the background of a shell ignores Ctrl-C, and so would its children.
        preexec_fn=_listen_to_ctrl_c,  # noqa: PLW1509 - it takes no lock
    )
    try:
        yield process
    finally:
        if process.poll() is None:
            process.terminate()
            process.communicate(timeout=60)


def _listen_to_ctrl_c() -> None:
    signal.signal(signal.SIGINT, signal.SIG_DFL)


@contextlib.contextmanager
def _nothing_left(folder: Path) -> Iterator[None]:
    """No folder of the drill's, however it ended."""
    yield
    assert list(folder.glob("baton-drill-*")) == []


@pytest.fixture(scope="module")
def drill(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Any]:
    """Everything, once."""
    file = tmp_path_factory.mktemp("drill") / "drill.json"
    folder = tmp_path_factory.mktemp("temporary")
    with _nothing_left(folder), _started(folder, "--json", str(file)) as process:
        children = _watch_children(process)
        out, err = process.communicate()
    left = [child for child in children if child.is_running()]
    rows = json.loads(file.read_text(encoding="utf-8"))["scenarios"] if file.exists() else []
    return {
        "rows": {row["name"]: row for row in rows},
        "status": process.returncode,
        "out": out,
        "err": err,
        "left": left,
        "seen": len(children),
    }


def _watch_children(process: subprocess.Popen[str]) -> list[psutil.Process]:
    """The processes that the drill starts first: four engines and a gateway."""
    found: list[psutil.Process] = []
    for _ in range(600):
        with contextlib.suppress(psutil.Error):
            found = psutil.Process(process.pid).children(recursive=True)
        if len(found) >= 5 or process.poll() is not None:
            break
        time.sleep(0.05)
    return found


@pytest.mark.parametrize("name", [one.name for one in ALL])
def test_nothing_is_lost(drill: dict[str, Any], name: str) -> None:
    """No error, no broken stream, no other answer, no KV block."""
    row = drill["rows"][name]
    assert {column: row[column] for column in LOSSES} == dict.fromkeys(LOSSES, 0), row


@pytest.mark.parametrize("name", [one.name for one in ALL])
def test_every_fault_really_happened(drill: dict[str, Any], name: str) -> None:
    """On simulated engines everything can be done, and nothing is skipped."""
    row = drill["rows"][name]
    assert "skipped" not in row
    assert "problem" not in row, f"{row['problem']}; proof: {row['proof']}"
    assert row["proof"]
    assert row["requests"] > 0
    assert row["recovery_s"] is not None


@pytest.mark.parametrize("name", ["kill-decode", "kill-decode-core"])
def test_fifty_streams_were_open_when_decode_was_killed(drill: dict[str, Any], name: str) -> None:
    """Fifty at least."""
    assert drill["rows"][name]["notes"]["open_streams"] >= 50


def test_the_exit_status_says_whether_anything_was_lost(drill: dict[str, Any]) -> None:
    """1 with a row that failed, 0 without."""
    bad = [name for name, row in drill["rows"].items() if row["verdict"] == "failed"]
    assert drill["status"] == (1 if bad else 0), drill["err"]
    for name in bad:
        assert name in drill["err"]


def test_the_table_has_a_row_for_each_scenario(drill: dict[str, Any]) -> None:
    """On stdout; progress goes to stderr."""
    for one in ALL:
        assert any(line.split()[:1] == [one.name] for line in drill["out"].splitlines())
        assert one.story in drill["err"]


def test_no_process_of_the_drill_is_left(drill: dict[str, Any]) -> None:
    """Neither the engines nor the gateway."""
    assert drill["seen"] >= 5
    assert drill["left"] == []


async def _played(name: str, options: Options, **recovery: object) -> Result:
    """One scenario before gateways whose `recovery` is other than the drill's."""
    block = SETTINGS.recovery.model_copy(update=recovery)
    settings = SETTINGS.model_copy(update={"recovery": block})
    async with SimulatedStack(settings=settings) as stack:
        (result,) = await run(stack, [one for one in ALL if one.name == name], options)
    return result


async def test_streams_that_do_not_go_on_are_seen_as_broken() -> None:
    """The drill can fail: the same kill before a gateway that is told not to resume streams."""
    result = await _played("kill-decode", Options(streams=10, cases=12), resume_streams=False)
    assert result.broken_streams > 0
    assert result.problem == ""
    assert result.verdict == "failed"


async def test_answers_from_somebody_elses_kv_are_seen_as_mismatched() -> None:
    """The drill can fail: leases end as before, and the gateway believes that they last longer."""
    result = await _played("lease-expiry", Options(cases=24), kv_lease_s=300.0)
    assert result.mismatched_answers > 0
    assert result.problem == ""
    assert result.verdict == "failed"


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM, signal.SIGKILL])
def test_a_drill_that_is_ended_in_the_middle_leaves_no_process(
    number: signal.Signals, tmp_path: Path
) -> None:
    """Ctrl-C, a CI time limit, and even a kill that nobody can catch."""
    with _started(tmp_path, "--scenario", "calm") as process:
        children = _watch_children(process)
        assert len(children) >= 5
        time.sleep(0.5)
        os.kill(process.pid, number)
        _, err = process.communicate(timeout=60)
        assert process.returncode == (-number if number == signal.SIGKILL else 130), err
        _, left = psutil.wait_procs(children, timeout=20)
        assert left == []
