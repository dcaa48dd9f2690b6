"""`baton eks config` and `baton eks render` as a person calls them."""

from __future__ import annotations

import json
from typing import TYPE_CHECKING

import pytest
from click.testing import CliRunner, Result

from baton.cli.app import VERBS, cli
from baton.cli.eks import command
from baton.errors import BatonError, ConfigRefused, FilesInTheWay
from tests.unit.deploy.eks.rendered import EXAMPLES, G6, files

if TYPE_CHECKING:
    from pathlib import Path

APP = EXAMPLES / G6 / "app.yaml"


@pytest.fixture
def call(monkeypatch: pytest.MonkeyPatch) -> CliRunner:
    """A shell in which none of the settings is exported."""
    from baton.deploy.eks.config import EksSettings, env_name

    for name in EksSettings.model_fields:
        monkeypatch.delenv(env_name(name), raising=False)
    return CliRunner()


def done(result: Result) -> Result:
    if result.exception is not None and not isinstance(result.exception, SystemExit):
        raise result.exception
    assert result.exit_code == 0, result.output
    return result


def test_eks_is_a_verb_of_baton() -> None:
    """It is listed, and imported only when it is called."""
    assert VERBS["eks"][0] == "baton.cli.eks"
    assert "eks" in cli.list_commands(None)  # type: ignore[arg-type]


def test_config_prints_every_value_with_its_origin(call: CliRunner) -> None:
    """Flag, environment, file beside the YAML, default."""
    result = done(
        call.invoke(
            command, ["config", str(APP), "--region", "us-west-2"], env={"NAMESPACE": "llm"}
        )
    )
    rows = {line.split()[0]: line.split() for line in result.stdout.splitlines()}
    assert rows["region"][1:] == ["us-west-2", "flag", "--region"]
    assert rows["namespace"][1:] == ["llm", "environment", "NAMESPACE"]
    assert rows["cluster_name"][1:3] == ["baton-g6", "file"]
    assert rows["cluster_name"][3].endswith("eks.yaml:2:1")
    assert rows["k8s_version"][1:] == ["1.34", "default"]


def test_config_speaks_json(call: CliRunner) -> None:
    """For scripts: value, origin, and the names by which it can be set."""
    result = done(call.invoke(command, ["config", str(APP), "--format", "json"]))
    (row,) = [r for r in json.loads(result.stdout) if r["name"] == "gpu_node_count"]
    assert (row["value"], row["origin"], row["env"]) == (2, "file", "GPU_NODE_COUNT")


def test_render_writes_the_files_and_says_what_to_read(call: CliRunner, tmp_path: Path) -> None:
    """Paths on stdout, the rest on stderr."""
    folder = tmp_path / "out"
    result = done(call.invoke(command, ["render", str(APP), "-o", str(folder)]))
    assert result.stdout.splitlines() == [str(folder / name) for name in files()]
    assert "12 files, 12 written" in result.stderr
    for name, text in files().items():
        assert (folder / name).read_text(encoding="utf-8") == text


def test_render_leaves_edited_files_alone(call: CliRunner, tmp_path: Path) -> None:
    """Without `--force` nothing is lost."""
    arguments = ["render", str(APP), "-o", str(tmp_path)]
    done(call.invoke(command, arguments))
    (tmp_path / "README.md").write_text("mine", encoding="utf-8")
    other = [*arguments, "--namespace", "other"]
    refusal = call.invoke(command, other)
    assert isinstance(refusal.exception, FilesInTheWay)
    done(call.invoke(command, [*other, "--force"]))
    assert (tmp_path / "README.md").read_text(encoding="utf-8") != "mine"


def test_render_refuses_the_yaml_and_the_settings_alike(call: CliRunner, tmp_path: Path) -> None:
    """Nothing is written, and exit status is that of a refused file."""
    wrong = call.invoke(command, ["render", str(APP), "-o", str(tmp_path / "o"), "--region", "x"])
    assert isinstance(wrong.exception, ConfigRefused)
    missing = call.invoke(
        command, ["render", str(tmp_path / "none.yaml"), "-o", str(tmp_path / "o")]
    )
    assert isinstance(missing.exception, BatonError)
    assert not (tmp_path / "o").exists()


def test_variables_of_the_yaml_come_from_settings(call: CliRunner, tmp_path: Path) -> None:
    """`${MODEL_ID}` in the file, `--model-id` or MODEL_ID outside."""
    text = APP.read_text(encoding="utf-8").replace("model_id: qwen3.5-9b", "model_id: ${MODEL_ID}")
    app = tmp_path / "app.yaml"
    app.write_text(text, encoding="utf-8")
    arguments = ["render", str(app), "-o", str(tmp_path / "out"), "--image", "mine:1"]
    unset = call.invoke(command, arguments)
    assert isinstance(unset.exception, ConfigRefused)
    assert {f.rule_id for f in unset.exception.faults if f.severity == "error"} == {"BTN-101"}
    done(call.invoke(command, [*arguments, "--model-id", "from-flag"]))
    assert "model_id: from-flag" in (tmp_path / "out/k8s/rayservice.yaml").read_text("utf-8")


def test_explain_knows_the_findings_of_eks(call: CliRunner) -> None:
    """Every id that can be printed has a reason to read."""
    from baton.cli.explain import command as explain
    from baton.deploy.eks.findings import KINDS

    assert "page cache" in done(call.invoke(explain, ["eks-014"])).stdout
    listed = done(call.invoke(explain, [])).stdout
    assert all(rule_id in listed for rule_id in KINDS)
