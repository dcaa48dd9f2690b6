"""`baton drill`: what is refused, what is printed, how it exits."""

from __future__ import annotations

import json

import pytest
from click.testing import CliRunner

from baton.cli import drill
from baton.drill.scenarios import ALL
from baton.drill.stage import Result
from baton.errors import DrillFailed, NotRunning


def _call(*arguments: str):
    return CliRunner().invoke(drill.command, list(arguments))


def test_list_names_every_scenario_and_starts_nothing():
    """One a line, with its story."""
    shown = _call("--list")
    assert shown.exit_code == 0
    assert [line.split()[0] for line in shown.output.splitlines()] == [one.name for one in ALL]


@pytest.mark.parametrize(
    ("arguments", "says"),
    [
        (["--scenario", "earthquake"], "earthquake"),
        (["--engines", "real"], "simulated"),
        (["name", "--engines", "simulated"], "one of"),
        (["--engines", "simulated", "--url", "http://127.0.0.1:1"], "one of"),
        (["--url", "http://127.0.0.1:1"], "--dangerous"),
        (["--url", "127.0.0.1:1", "--dangerous"], "no URL"),
        (["--engines", "simulated", "--dangerous"], "--url"),
        (["--engines", "simulated", "--streams", "0"], "streams"),
        (["--engines", "simulated", "--json", "/nowhere/at/all.json"], "no folder"),
        (["--engines", "simulated", "--api-key-env", "NO_SUCH_KEY"], "NO_SUCH_KEY"),
    ],
)
def test_a_call_that_cannot_be_is_refused_with_status_2(arguments, says):
    """Before anything starts."""
    refused = _call(*arguments)
    assert refused.exit_code == 2
    assert says in refused.output


def test_a_local_deployment_must_run(monkeypatch, tmp_path):
    """With the cure."""
    monkeypatch.setenv("BATON_STATE_DIR", str(tmp_path))
    refused = _call()
    assert isinstance(refused.exception, NotRunning)


def _good() -> Result:
    return Result("calm", requests=5, kv_blocks_left=0, recovery_s=0.0, proof=["all quiet"])


def test_a_drill_that_lost_nothing_prints_its_table_and_writes_its_json(capsys, tmp_path):
    """And raises nothing."""
    file = tmp_path / "out.json"
    drill._conclude([_good()], file)
    out = capsys.readouterr().out
    assert "held" in out
    assert "calm: all quiet" in out
    assert json.loads(file.read_text())["scenarios"][0]["requests"] == 5


@pytest.mark.parametrize(
    "bad",
    [
        Result("kill", errors=1, kv_blocks_left=0, recovery_s=1.0),
        Result("kill", broken_streams=1, kv_blocks_left=0, recovery_s=1.0),
        Result("kill", mismatched_answers=1, kv_blocks_left=0, recovery_s=1.0),
        Result("kill", kv_blocks_left=1, recovery_s=1.0),
        Result("kill", kv_blocks_left=0, problem="nobody was killed"),
    ],
)
def test_a_drill_that_lost_something_names_it_and_exits_with_1(bad, tmp_path):
    """The file is written all the same."""
    file = tmp_path / "out.json"
    with pytest.raises(DrillFailed, match="kill") as failed:
        drill._conclude([_good(), bad], file)
    assert failed.value.exit_status == 1
    assert len(json.loads(file.read_text())["scenarios"]) == 2


def test_a_drill_in_which_everything_was_skipped_is_no_success():
    """Nothing was proved."""
    with pytest.raises(DrillFailed, match="skipped"):
        drill._conclude([Result("kill", skipped="not here")], None)


def test_a_column_that_is_not_known_is_not_printed_as_zero(capsys):
    """From outside, KV is not seen."""
    drill._conclude([Result("hang-ups", requests=9, recovery_s=1.0)], None)
    assert "not seen" in capsys.readouterr().out
