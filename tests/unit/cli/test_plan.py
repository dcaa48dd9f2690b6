"""`baton plan`: its JSON, its file, its exit status, and what it says of bad input."""

from __future__ import annotations

import json
from typing import TYPE_CHECKING, Any

import pytest
from click.testing import CliRunner, Result
from ruamel.yaml import YAML

from baton.cli.app import cli, main
from tests.unit.plan.shapes import LLAMA_70B, QWEN3_8B
from tests.unit.plan.test_profile_file import profile

if TYPE_CHECKING:
    from pathlib import Path

LOW = ["--isl", "2000", "--osl", "100", "--rate", "0.5", "--slo-ttft", "1", "--slo-tpot", "0.05"]
# Long prompts at a pace that steps with prompts in them break.
HIGH = [
    "--isl", "8000", "--osl", "200", "--rate", "10", "--slo-ttft", "1.5", "--slo-tpot", "0.0085"
]  # fmt: skip


@pytest.fixture
def model(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> str:
    folder = tmp_path / "qwen3-8b"
    folder.mkdir()
    (folder / "config.json").write_text(json.dumps(QWEN3_8B))
    monkeypatch.chdir(tmp_path)
    return str(folder)


def plan(model: str, *args: str) -> Result:
    return CliRunner().invoke(cli, ["plan", "--model", model, *args])


def refused(model: str, capsys: pytest.CaptureFixture[str], *args: str) -> tuple[Any, str]:
    with pytest.raises(SystemExit) as caught:
        main(["plan", "--model", model, *args])
    return caught.value.code, capsys.readouterr().err


def test_json_has_the_answer_its_reason_and_each_layout(model: str) -> None:
    """The keys that scripts read."""
    result = plan(model, "--gpu", "p5.48xlarge", *LOW, "--json")
    assert result.exit_code == 0
    found = json.loads(result.stdout)
    assert found["disaggregate"] is False
    assert found["why"].startswith("Don't.")
    assert found["basis"] == "modelled"
    keys = {"layout", "gpus", "meets_slo", "ttft_s", "tpot_s", "goodput_rps",
            "usd_per_million_tokens", "bound"}  # fmt: skip
    for layout in found["layouts"]:
        assert keys <= set(layout)
    best = found["layouts"][0]
    assert best["meets_slo"] is True
    assert best["usd_per_million_tokens"] > 0


@pytest.mark.parametrize("traffic", [LOW, HIGH])
@pytest.mark.parametrize("gpu", ["H200", "p5.4xlarge"])
def test_the_written_file_passes_validation(
    model: str, tmp_path: Path, traffic: list[str], gpu: str
) -> None:
    """With P/D and without, on one instance and on several."""
    result = plan(model, "--gpu", gpu, *traffic, "-o", "app.yaml")
    assert result.exit_code == 0, result.output
    text = (tmp_path / "app.yaml").read_text()
    checked = CliRunner().invoke(
        cli, ["validate", "app.yaml", "--target", "cluster", "--format", "json"]
    )
    assert checked.exit_code == 0, checked.output
    faults = json.loads(checked.stdout)["files"][0]["faults"]
    assert {fault["severity"] for fault in faults} <= {"note"}
    apart = traffic is HIGH
    assert ("baton:build_pd_openai_app" in text) == apart
    assert ("ray.serve.llm:build_openai_app" in text) == (not apart)


def test_text_says_why_and_where_figures_are_from(model: str) -> None:
    """A table that is read without colour."""
    out = plan(model, "--gpu", "p5", *LOW).stdout
    assert out.startswith("Don't. One GPU is enough")
    assert "basis: modelled" in out
    assert "note: H100: lzwjava.github.io" in out
    assert "TTFT p90" in out


def test_a_profile_makes_the_basis_measured(model: str, tmp_path: Path) -> None:
    """No GPU need be named: the engine was measured."""
    (tmp_path / "profile.json").write_text(profile().model_dump_json())
    result = plan(model, "--profile", "profile.json", *LOW, "--json")
    found = json.loads(result.stdout)
    assert found["basis"] == "measured"
    assert found["layouts"][0]["meets_slo"] is True
    assert "measured 2026-11-30" in found["notes"][0]


def test_a_promise_that_nothing_keeps_ends_with_1(model: str, tmp_path: Path) -> None:
    """And writes no file."""
    result = plan(
        model, "--gpu", "g5", *LOW[:6], "--slo-ttft", "0.01", "--slo-tpot", "0.05", "-o", "no.yaml"
    )
    assert result.exit_code == 1
    assert "it misses TTFT by" in result.stdout
    assert "promise less" in result.stdout
    assert not (tmp_path / "no.yaml").exists()


@pytest.mark.parametrize(
    ("args", "said"),
    [
        (["--gpu", "H1000", *LOW], "did you mean `H100`?"),
        (["--gpu", "H100", "--trace", "trace.csv", *LOW[6:]], "trace.csv:3"),
        (["--gpu", "H100", "--isl", "50000", *LOW[2:]], "takes 40,960"),
        (["--gpu", "H100", "--isl", "0", *LOW[2:]], "--isl is 0"),
        (["--profile", "old.json", *LOW], "vllm 0.24.0 instead of 0.29.0"),
        (LOW, "--gpu"),
        (["--gpu", "H100", *LOW[2:]], "--isl, --osl and --rate"),
        (["--gpu", "H100", "--trace", "trace.csv", *LOW], "not both"),
        (["--gpu", "H100", "--price", "H100", *LOW], "NAME=USD"),
        (["--gpu", "H100", "--price", "p5=98", *LOW], "`p5` is a family"),
        (["--gpu", "H100", "--price", "H100=1e308", *LOW], "NAME=USD"),
        (["--gpu", "H100", *LOW, "--slo-ttft", "nan"], "nan is no number"),
        (["--gpu", "H100", *LOW, "-o", "no/such/folder/app.yaml"], "there is no folder"),
        (["--gpu", "H100", *LOW, "-o", "."], "a folder is no file"),
        (["--gpu", "H100", *LOW, "-o", "old.json"], "is there already"),
        (["--gpu", "H100", *LOW[:4], "--rate", "1e308", *LOW[6:]], "--rate is 1e+308"),
        (["--gpu", "H100", *LOW[:4], "--rate", "1e-308", *LOW[6:]], "--rate is 1e-308"),
        (["--gpu", "H100", *LOW[:4], "--rate", "inf", *LOW[6:]], "--rate is inf"),
        (["--gpu", "H100", *LOW[:4], "--rate", "nan", *LOW[6:]], "--rate is nan"),
        (["--gpu", "H100", *LOW, "--spread", "1e308"], "--spread is 1e+308"),
        (["--gpu", "H100", *LOW, "--isl", "1" + "0" * 400], "--isl is 1000"),
        (["--gpu", "H100", *LOW, "--isl", "30000", "--spread", "3"], "--spread)"),
        (["--gpu", "", *LOW], "`` is not in the table"),
        (["--gpu", "H100", *LOW, "--model", "nosuch"], "`nosuch`"),
        (["--gpu", "H100", *LOW, "--model", "./nosuch"], "there is no model"),
    ],
)
def test_bad_input_ends_with_2_and_says_what(
    model: str, tmp_path: Path, capsys: pytest.CaptureFixture[str], args: list[str], said: str
) -> None:
    """One line, a place, and a cure."""
    (tmp_path / "trace.csv").write_text("arrival_s,prompt_tokens,output_tokens\n0,1,1\n-1,1,1\n")
    (tmp_path / "old.json").write_text(profile(versions={"vllm": "0.24.0"}).model_dump_json())
    status, err = refused(model, capsys, *args)
    assert status == 2
    assert said in err


def test_a_profile_that_could_not_be_written_is_not_measured(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """Refused for its folder, before the engine (nobody is there) is asked for minutes."""
    with pytest.raises(SystemExit) as caught:
        main(["profile", str(tmp_path / "no" / "profile.json"), "--url", "http://127.0.0.1:1"])
    assert caught.value.code == 2
    assert "there is no folder" in capsys.readouterr().err


def test_a_file_that_is_there_is_kept_unless_forced(model: str, tmp_path: Path) -> None:
    """Somebody may have edited it; with --force it is this plan's, as the same bytes each time."""
    app = tmp_path / "app.yaml"
    app.write_text("mine: true\n")
    args = ["--gpu", "H100", *LOW, "-o", "app.yaml"]
    assert plan(model, *args).exception is not None
    assert app.read_text() == "mine: true\n"
    assert plan(model, *args, "--force").exit_code == 0
    first = app.read_text()
    assert first.startswith("# Planned by `baton plan`: 1x TP1 on H100")
    assert plan(model, *args, "--force").exit_code == 0
    assert app.read_text() == first
    assert [path.name for path in tmp_path.iterdir() if path.name.endswith(".part")] == []


@pytest.mark.parametrize(
    ("gpu", "traffic", "config"),
    [
        ("p5.48xlarge", ["--isl", "8000", "--osl", "300", "--rate", "5", "--slo-ttft", "2",
                         "--slo-tpot", "0.025"], LLAMA_70B),
        ("H200", HIGH, QWEN3_8B),
        ("g6e.12xlarge", [*LOW[:4], "--rate", "3", *LOW[6:]], QWEN3_8B),
    ],
)  # fmt: skip
def test_the_written_file_is_the_layout_that_was_printed(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, gpu: str, traffic: list[str],
    config: dict[str, Any],
) -> None:  # fmt: skip
    """Replicas, TP, sequences and tokens a step of each role, and a context for each request."""
    monkeypatch.chdir(tmp_path)
    (tmp_path / "config.json").write_text(json.dumps(config))
    found = plan("config.json", "--gpu", gpu, *traffic, "--json", "-o", "app.yaml")
    assert found.exit_code == 0, found.output
    best = json.loads(found.stdout)["best"]
    args = YAML(typ="safe").load(tmp_path / "app.yaml")["applications"][0]["args"]
    for engine in best["engines"]:
        role = engine["role"]
        written = args["llm_configs"][0] if role == "both" else args[f"{role}_config"]
        kwargs = written["engine_kwargs"]
        assert written["deployment_config"]["num_replicas"] == engine["replicas"]
        assert kwargs.get("tensor_parallel_size", 1) == engine["tensor_parallel_size"]
        assert kwargs["max_num_seqs"] == engine["max_num_seqs"]
        assert kwargs["max_num_batched_tokens"] >= engine["max_num_batched_tokens"]
        assert kwargs["max_model_len"] >= int(traffic[1]) + int(traffic[3])
    checked = CliRunner().invoke(cli, ["validate", "app.yaml", "--target", "cluster"])
    assert checked.exit_code == 0, checked.output


@pytest.mark.parametrize("order", [["p5.4xlarge", "p5.48xlarge"], ["p5.48xlarge", "p5.4xlarge"]])
def test_instance_types_of_one_gpu_are_all_looked_at(model: str, order: list[str]) -> None:
    """Whatever is named first: one GPU is bought alone, and eight are there for TP 8."""
    args = [part for name in order for part in ("--gpu", name)]
    layouts = json.loads(plan(model, *args, *LOW, "--json").stdout)["layouts"]
    assert layouts[0]["instances"] == [{"type": "p5.4xlarge", "count": 1}]
    assert any("p5.48xlarge" in layout["layout"] for layout in layouts)


def test_ctrl_c_ends_with_130_and_writes_nothing(
    model: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """1 would mean that nothing keeps the promise."""

    def interrupted(*_: object) -> None:
        raise KeyboardInterrupt

    monkeypatch.setattr("baton.plan.judge.judge", interrupted)
    result = plan(model, "--gpu", "H100", *LOW, "-o", "app.yaml")
    assert result.exit_code == 130
    assert "interrupted" in result.stderr
    assert not (tmp_path / "app.yaml").exists()


def test_a_long_search_says_what_it_does_on_stderr(
    model: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """And stdout is JSON still."""
    monkeypatch.setattr("baton.cli.plan._PATIENCE_S", 0.0)
    result = plan(model, "--gpu", "H100", *LOW, "--json")
    assert "simulating 600 requests on 1x TP1 on H100" in result.stderr
    assert json.loads(result.stdout)["basis"] == "modelled"


def test_a_load_that_takes_more_gpus_says_how_many(model: str) -> None:
    """Of those that were named, and of the others."""
    load = [*LOW[:4], "--rate", "500", *LOW[6:]]
    result = plan(model, "--gpu", "H100", *load, "--max-gpus", "8")
    assert result.exit_code == 1
    assert "GPUs at least for this load, and --max-gpus is 8" in result.stdout
    assert "TP1 on B200 (" in result.stdout
