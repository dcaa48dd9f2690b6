"""`baton bench` and `baton conformance`: calls, files and exit statuses."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any, ClassVar, Self
from xml.etree import ElementTree as ET

import pytest
from click.testing import CliRunner

from baton.bench.compare_file import load
from baton.bench.generator import Sample, VllmGenerator
from baton.cli import app
from baton.deploy import bench_stacks
from baton.deploy.bench_stacks import SimulatedEngines, VllmEngines, arguments
from baton.errors import ConfigRefused
from baton.spec.check import check
from baton.spec.load import load_file

EXAMPLES_PATH = Path(__file__).parents[3] / "examples" / "05-compare"
COMPARE = """
engines: simulated
prefill: 1
decode: 2
traffic:
  duration_s: 3
  warmup_s: 0
  classes: [{name: chat, rate: 4, input: 20, output: 4}]
rounds: 2
baseline: {chunk_tokens: [64]}
"""


def call(capsys: pytest.CaptureFixture[str], *words: str) -> tuple[int, str]:
    """Exit status and everything that was said."""
    try:
        app.main(list(words))
        status = 0
    except SystemExit as exc:
        status = int(exc.code or 0)
    said = capsys.readouterr()
    return status, said.out + said.err


@pytest.mark.parametrize(
    "words",
    [
        ["conformance"],
        ["conformance", "localhost:8000"],
        ["conformance", "http://x", "--case", "chat.anwser"],
        ["conformance", "http://x", "--json", "/no/such/folder/x"],
        ["conformance", "http://x", "--header", "no header"],
        ["conformance", "http://x", "--api-key-env", "NOT_SET_ANYWHERE"],
        ["conformance", "http://127.0.0.1:1"],
        ["bench", "localhost:8000"],
        ["bench", "http://x", "--input", "many"],
        ["bench", "http://x", "--sweep"],
        ["bench", "http://x", "--trace", "/not/there"],
        ["bench", "http://x", "--html", "/no/such/folder/x"],
        ["bench", "http://127.0.0.1:1"],
        ["bench", "compare", "/not/there"],
    ],
)
def test_a_call_that_cannot_be_ends_with_status_2(
    capsys: pytest.CaptureFixture[str], words: list[str]
) -> None:
    """Before anything is sent to anybody."""
    status, said = call(capsys, *words)
    assert status == 2, said


def test_a_wrong_case_is_told_the_right_one(capsys: pytest.CaptureFixture[str]) -> None:
    """And the list has all of them with their sources."""
    _, said = call(capsys, "conformance", "http://x", "--case", "chat.anwser")
    assert "did you mean chat.answer" in said
    status, said = call(capsys, "conformance", "--list", "--case", "errors")
    assert status == 0
    assert "errors.context" in said
    assert "models.list" not in said


@pytest.mark.parametrize("failing", [False, True])
def test_conformance_writes_its_reports_and_says_by_its_status_whether_a_case_failed(
    capsys: pytest.CaptureFixture[str],
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    failing: bool,
) -> None:
    """The reports are there either way."""
    from baton.conformance import run
    from baton.conformance.case import Outcome
    from baton.conformance.cases import ALL

    async def made_up(url: str, *_: Any, **__: Any) -> run.Report:
        outcome = Outcome(ALL[0], "fail" if failing else "pass", "bad" if failing else "")
        return run.Report(url, "m", [outcome])

    monkeypatch.setattr(run, "run", made_up)
    files = ["--json", str(tmp_path / "c.json"), "--junit", str(tmp_path / "c.xml")]
    status, said = call(capsys, "conformance", "http://x", "--against", "http://y", *files)
    assert status == int(failing), said
    (row,) = json.loads((tmp_path / "c.json").read_text())["cases"]
    assert row["status"] == ("fail" if failing else "pass")
    assert ET.parse(tmp_path / "c.xml").getroot().get("tests") == "1"


def test_help_of_both_verbs_is_found() -> None:
    """`compare` is a verb of its own under `bench`."""
    runner = CliRunner()
    for words, told in (
        (["bench", "--help"], "--slo-ttft"),
        (["bench", "compare", "--help"], "FILE"),
        (["conformance", "--help"], "--against"),
    ):
        result = runner.invoke(app.cli, words)
        assert result.exit_code == 0, result.output
        assert told in result.output


def test_a_comparison_file_is_read_with_its_traffic(tmp_path: Path) -> None:
    """The examples are files like that."""
    file = tmp_path / "compare.yaml"
    file.write_text(COMPARE, encoding="utf-8")
    planned, _ = load(file).planned(tmp_path)
    assert {(r.kind, r.input_tokens, r.output_tokens) for r in planned} == {("chat", 20, 4)}


@pytest.mark.parametrize(
    ("change", "told"),
    [
        (("engines: simulated", ""), "app"),
        (("rounds: 2", "rounds: 0"), "rounds"),
        (("rate: 4", "rate: -4"), "rate"),
        (("rounds: 2", "rounds: ["), "not YAML"),
        (("rounds: 2", "round: 2"), "round"),
        (("traffic:", "traffic:\n  trace: {file: x}"), "classes"),
    ],
)
def test_a_comparison_file_that_is_wrong_is_refused_with_its_key(
    tmp_path: Path, change: tuple[str, str], told: str
) -> None:
    """Before any engine starts."""
    file = tmp_path / "compare.yaml"
    file.write_text(COMPARE.replace(*change), encoding="utf-8")
    with pytest.raises(ConfigRefused, match=told):
        load(file)


def test_both_sides_have_as_many_engines() -> None:
    """The baseline's are tuned, and hand nothing over."""
    engines = SimulatedEngines(1, 2, {"tpot-ms": 5})
    together, apart = engines.of("together", 64), engines.of("disaggregated", None)
    assert [one.role for one in together] == ["decode"] * 3
    assert [one.role for one in apart] == ["prefill", "decode", "decode"]
    assert "--max-num-batched-tokens" in together[0].command
    assert "--max-num-batched-tokens" not in apart[0].command


def test_real_engines_are_started_as_the_file_says(monkeypatch: pytest.MonkeyPatch) -> None:
    """KV transfer on one side only, each engine with an id of its own."""
    monkeypatch.setenv("BATON_TINY_MODEL", "/models/tiny")
    checked = check(load_file(EXAMPLES_PATH / "app.yaml"), on=None, machine=None)
    engines = VllmEngines(checked.applications[0])
    together, apart = engines.of("together", 128), engines.of("disaggregated", None)
    assert engines.side_by_side
    assert len(together) == len(apart) == 2
    words = [" ".join(one.command) for one in (*together, *apart)]
    assert [" --kv-transfer-config " in one for one in words] == [False, False, True, True]
    assert [" --max-num-batched-tokens 128" in one for one in words] == [True, True, False, False]
    assert "kv_producer" in words[2]
    assert "kv_consumer" in words[3]
    assert load(EXAMPLES_PATH / "compare.yaml").app is not None


def test_engine_arguments_are_flags_of_vllms_command_line() -> None:
    """Also those that are off, and those that are objects."""
    given = {"enforce_eager": True, "enable_prefix_caching": False, "seed": 3, "x": None,
             "kv_transfer_config": {"a": 1}}  # fmt: skip
    assert arguments(given) == [
        "--enforce-eager", "--no-enable-prefix-caching", "--seed", "3",
        "--kv-transfer-config", '{"a": 1}',
    ]  # fmt: skip


class _Fake(VllmGenerator):
    async def __aenter__(self) -> Self:
        return self

    async def measure(self, endpoint: Any, requests: list[dict[str, Any]]) -> list[Sample]:
        del endpoint
        return [Sample(r["at_s"], 20, r["output_tokens"], 0.1, (0.01,) * 3) for r in requests]


class _FakeStack:
    """Stands for engines and a gateway."""

    up: ClassVar[list[str]] = []

    def __init__(self, engines: Any, side: str) -> None:
        del engines
        self.endpoint = f"http://{side}"

    async def __aenter__(self) -> Self:
        self.up.append(self.endpoint)
        return self

    async def __aexit__(self, *_: object) -> None:
        self.up.remove(self.endpoint)


def test_a_comparison_runs_from_its_file_to_its_reports(
    capsys: pytest.CaptureFixture[str], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Tuning, rounds, sentence, files; and nothing is left running."""
    from baton.bench import generator, prompts, run
    from baton.bench.served import Counts

    async def look_at(url: str, **_: Any) -> prompts.Endpoint:
        return prompts.Endpoint(url, "m", 4096, (1, 2, 3))

    asked = {"http://together": 0, "http://disaggregated": 0}

    async def counts_at(url: str, _: Any) -> Counts:
        asked[url] += 1
        pd = float(asked[url]) if "disagg" in url else 0.0
        return Counts({"pd": pd}, {"pd: always": pd})

    async def phases_at(*_: Any) -> dict[str, Any]:
        return {}

    monkeypatch.setattr(prompts, "look_at", look_at)
    monkeypatch.setattr(run, "counts_at", counts_at)
    monkeypatch.setattr(run, "phases_at", phases_at)
    monkeypatch.setattr(generator, "VllmGenerator", _Fake)
    monkeypatch.setattr(bench_stacks, "Stack", _FakeStack)
    file = tmp_path / "compare.yaml"
    file.write_text(COMPARE, encoding="utf-8")
    outs = {name: tmp_path / f"r.{name}" for name in ("json", "html", "markdown")}
    words = [word for name, path in outs.items() for word in (f"--{name}", str(path))]
    status, said = call(capsys, "bench", "compare", str(file), *words)
    assert status == 0, said
    assert "neither wins nor loses" in said
    data = json.loads(outs["json"].read_text())
    assert [one["chunk_tokens"] for one in data["tuning"]] == [None, 64]
    assert {side: len(of) for side, of in data["rounds"].items()} == {
        "together": 2,
        "disaggregated": 2,
    }
    assert "<svg" in outs["html"].read_text()
    assert outs["markdown"].read_text().splitlines()[2] == data["sentence"]
    assert _FakeStack.up == []
