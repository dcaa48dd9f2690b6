"""Lines of many programs come in the order in which they were written."""

from __future__ import annotations

import json
import time
from datetime import UTC, datetime

import pytest
from click.testing import CliRunner

from baton.cli.app import cli
from baton.cli.logs import moment
from baton.deploy import state
from baton.deploy.log_files import LogFile, files_of, source_of
from baton.deploy.log_lines import as_json, lines_of, merged, of_request, when
from baton.errors import ConfigRefused, NotRunning

NOW = datetime(2026, 11, 30, 12, 0, 0).timestamp()  # noqa: DTZ001 - as these programs stamp
LOCAL = datetime(2026, 11, 30, 7, 10, 26).timestamp()  # noqa: DTZ001


@pytest.mark.parametrize(
    ("line", "at"),
    [
        ("INFO 2026-11-30 07:10:26,250 controller 26338 -- Deploying new app 'demo'.", 0.25),
        ("[2026-11-30 07:10:26,143 I 26226 26226] (raylet) main.cc:283: Setting cluster", 0.143),
        ("2026-11-30 07:10:26,100\tINFO worker.py:12 -- Connected", 0.1),
        ("(EngineCore pid=26839) INFO 11-30 07:10:26 [nixl_utils.py:72] NIXL is available", 0.0),
        ("\x1b[0;36m(Worker pid=1)\x1b[0;0m ERROR 11-30 07:10:26 [x.py:1] no", 0.0),
    ],
)
def test_local_stamps_of_ray_serve_and_vllm(line, at):
    """Each in its own way."""
    assert when(line, no_later_than=NOW) == pytest.approx(LOCAL + at)


@pytest.mark.parametrize(
    "line",
    [
        "2026-11-30T07:10:26.250Z info    baton.gateway GET /v1/models 200",
        '{"time":"2026-11-30T07:10:26.250+00:00","level":"info","message":"x"}',
    ],
)
def test_batons_own_stamps_are_utc(line):
    """Text and JSON."""
    at = datetime(2026, 11, 30, 7, 10, 26, 250_000, tzinfo=UTC).timestamp()
    assert when(line, no_later_than=NOW) == pytest.approx(at)


def test_vllms_stamp_takes_its_year_from_the_file():
    """A line of December in a file of January is of last year."""
    january = datetime(2027, 1, 2).timestamp()  # noqa: DTZ001
    assert when("INFO 12-31 23:00:00 [x.py:1] a", no_later_than=january) < january


@pytest.mark.parametrize(
    "line",
    [
        "  File 'x.py', line 3",
        "INFO 02-30 01:00:00 [x.py:1]",
        "",
        "x" * 130 + "2026-11-30 07:10:26",
    ],
)
def test_what_has_no_stamp_is_told_none(line):
    """Also a day that never was."""
    assert when(line, no_later_than=NOW) is None


def test_a_traceback_stays_with_its_line():
    """It has that line's time, and so its place among others."""
    one = list(
        lines_of(
            [
                "head",
                "INFO 2026-11-30 07:00:00,000 a",
                "Traceback:",
                "INFO 2026-11-30 07:00:02,000 b",
            ],
            "one",
            written_at=NOW,
        )
    )
    two = list(lines_of(["INFO 2026-11-30 07:00:01,000 c"], "two", written_at=NOW))
    assert [line.text[-1] for line in merged([one, two])] == ["d", "a", ":", "c", "b"]
    assert [line.stamped for line in one] == [False, True, False, True]


def test_lines_of_one_file_keep_their_order():
    """Threads stamp before they write."""
    texts = ["INFO 2026-11-30 07:00:02,000 b", "INFO 2026-11-30 07:00:01,000 a"]
    found = list(merged([lines_of(texts, "x", written_at=NOW)]))
    assert [line.text[-1] for line in found] == ["b", "a"]


@pytest.mark.parametrize(
    ("text", "is_its"),
    [
        ("x request_id=abc outcome=ok", True),
        ('{"request_id":"abc"}', True),
        ("Added request cmpl-abc-0123456789ab-p0-0-b08b0808.", True),
        ("Added request chatcmpl-abc-0123456789ab-d1-56e58c2e", True),
        ("detokenize abc-t", True),
        ("request_id=abcd", False),
        ("request_id=xabc", False),
        ("request_id=x-abc", False),
        ("request_id=abc-def", False),
        ("request_id=abc.d", False),
        ("nothing", False),
    ],
)
def test_a_requests_lines_are_found_by_its_id_at_every_engine(text, is_its):
    """An id that only begins or ends with it is another request."""
    (line,) = lines_of([f"INFO 2026-11-30 07:00:00,000 {text}"], "x", written_at=NOW)
    assert of_request("abc")(line) is is_its


def test_a_traceback_behind_a_requests_line_is_its_own():
    """And of no other file."""
    about = of_request("abc")
    stamp = "INFO 2026-11-30 07:00:00,000"
    one = list(lines_of([f"{stamp} abc", "ValueError", f"{stamp} b", "x"], "1", written_at=NOW))
    two = list(lines_of(["y"], "2", written_at=NOW))
    found = [about(line) for line in (one[0], two[0], *one[1:])]
    assert found == [True, False, True, False, False]


def deployment(folder, name="demo"):
    return state.Deployment(
        name=name, marker="m", ray_address="a", folder=str(folder), endpoint="http://127.0.0.1:1",
        apps=("a",), builder="baton", file="f", started_at=0.0,
    )  # fmt: skip


@pytest.fixture
def session(tmp_path, monkeypatch):
    """A deployment's folder as Ray leaves it, and its record."""
    monkeypatch.setenv("BATON_STATE_DIR", str(tmp_path / "state"))
    logs = tmp_path / "ray" / "session_latest" / "logs"
    (logs / "serve").mkdir(parents=True)
    files = {
        "worker-1-01-11.err": ":job_id:01\n:actor_name:ServeReplica:demo:Gateway\n"
        "2026-11-30T07:00:00.000Z warning baton.gateway prefill on decode request_id=abc\n",
        "worker-2-01-12.out": ":job_id:01\n:actor_name:ServeReplica:demo:Decode:tiny\n"
        "INFO 11-30 07:10:26 [x.py:1] Added request cmpl-abc-0123456789ab-d1-0\n",
        "worker-3-ff-13.err": ":actor_name:ServeController\n",
        "raylet.out": "[2026-11-30 07:00:01,143 I 2 2] (raylet) main.cc:283: x\n",
        "serve/replica_demo_Gateway_x.log": "INFO 2026-11-30 07:00:00,000 twice\n",
    }
    for name, text in files.items():
        (logs / name).write_text(text)
    state.save(deployment(tmp_path / "ray"))
    return logs


def test_a_deployments_files_say_whose_they_are(session):
    """By the actor that Ray names in their first lines."""
    found = files_of(state.the_one(None))
    assert [file.source for file in found] == [
        "gateway[11]", "decode[12]", "serve[13]", "ray raylet",
    ]  # fmt: skip
    assert source_of(session / "gone-14.err") == "ray worker[14]"


def test_baton_logs_of_a_request(session):
    """Gateway and engine, and nobody else."""
    done = CliRunner().invoke(cli, ["logs", "--request", "abc", "--format", "json"])
    assert done.exit_code == 0, done.output
    found = [json.loads(line) for line in done.output.splitlines()]
    assert {line["source"] for line in found} == {"gateway[11]", "decode[12]"}
    assert all("abc" in line["line"] for line in found)


def test_baton_logs_names_the_source_of_each_line(session):
    """Text for people."""
    done = CliRunner().invoke(cli, ["logs"])
    assert "ray raylet       [2026-11-30 07:00:01,143 I 2 2]" in done.output
    assert "twice" not in done.output


def test_since_leaves_out_what_is_older(session):
    """By the lines' own time."""
    assert CliRunner().invoke(cli, ["logs", "--since", "2099-01-01"]).output == ""
    assert moment("10m", now=1000.0) == 400.0
    with pytest.raises(ConfigRefused, match=r"is no time"):
        moment("yesterday", now=0.0)


def test_files_of_other_processes_can_be_merged(tmp_path):
    """Behind `baton gateway`, which writes where it was told to."""
    (tmp_path / "g.log").write_text("2026-11-30T07:00:02.000Z info baton.gateway b\n")
    (tmp_path / "e.log").write_text("2026-11-30T07:00:01.000Z info engine a\n")
    args = ["logs", "--file", str(tmp_path / "g.log"), "--file", str(tmp_path / "e.log")]
    done = CliRunner().invoke(cli, args)
    assert [line.split()[-1] for line in done.output.splitlines()] == ["a", "b"]
    assert "e.log" in done.output


def test_a_joined_clusters_logs_lie_elsewhere():
    """It says where."""
    with pytest.raises(NotRunning, match="joined"):
        files_of(deployment(""))


def test_following_reads_whole_lines_once(tmp_path):
    """Half a line waits for its other half; a file that was cut is read anew."""
    path = tmp_path / "x.log"
    path.write_text("old\n")
    file = LogFile(path, "x")
    file.to_the_end()
    assert file.new_lines() == []
    with path.open("a") as out:
        out.write("one\ntw")
    assert [line.text for line in file.new_lines()] == ["one"]
    with path.open("a") as out:
        out.write("o\n")
    assert [line.text for line in file.new_lines()] == ["two"]
    path.write_text("new\n")
    assert [line.text for line in file.new_lines()] == ["new"]
    assert file.new_lines()[:1] == []


def test_following_shows_what_was_there_and_what_comes_each_line_once(tmp_path):
    """`--follow --since`: also a line that is written between the two looks, or half of one."""
    path = tmp_path / "x.log"
    path.write_text("2026-01-01T00:00:00Z one\n2026-01-01T00:00:01Z tw")
    file = LogFile(path, "x")
    file.to_the_end()
    with path.open("a") as more:
        more.write("o\n2026-01-01T00:00:02Z three\n")
    before = [line.text[-3:] for line in file.lines_so_far()]
    after = [line.text[-3:] for line in file.new_lines()]
    assert (before, after) == (["one"], ["two", "ree"])
    assert file.new_lines() == []


def test_the_end_of_a_log_without_a_line_is_its_beginning(tmp_path):
    """The first line is still being written, or the file is not there yet."""
    path = tmp_path / "x.log"
    file = LogFile(path, "x")
    file.to_the_end()
    path.write_text("2026-01-01T00:00:00Z o")
    file.to_the_end()
    assert list(file.lines_so_far()) == []
    with path.open("a") as more:
        more.write("ne\n")
    assert [line.text[-3:] for line in file.new_lines()] == ["one"]


def test_json_says_time_and_source():
    """For programs."""
    (line,) = lines_of(["x"], "s", written_at=0.0)
    assert json.loads(as_json(line)) == {
        "time": "1970-01-01T00:00:00.000+00:00", "source": "s", "line": "x",
    }  # fmt: skip
    assert line.at <= time.time()
