"""`baton explain` and `baton schema`, and the pages that are generated from the same source."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path

import pytest
from click.testing import CliRunner
from ruamel.yaml import YAML

from baton.cli.app import cli, main
from baton.spec.json_schema import file_schema

ROOT = Path(__file__).resolve().parents[3]


def test_explain_prints_why_and_source() -> None:
    """In any case of letters."""
    out = CliRunner().invoke(cli, ["explain", "btn-121"]).stdout
    assert out.startswith("BTN-121 (error): ")
    assert "Source: vLLM 0.29" in out


def test_explain_without_a_rule_lists_all_of_them() -> None:
    """One a line."""
    out = CliRunner().invoke(cli, ["explain"]).stdout
    assert "BTN-101" in out
    assert "BTN-301" in out


def test_explain_of_an_unknown_rule_is_an_error_with_a_hint(
    capsys: pytest.CaptureFixture[str],
) -> None:
    """Fact and cure."""
    with pytest.raises(SystemExit) as caught:
        main(["explain", "BTN-12"])
    assert caught.value.code == 1
    assert "hint: did you mean BTN-" in capsys.readouterr().err


def test_the_schema_accepts_the_examples_and_refuses_what_is_wrong_in_them() -> None:
    """Editors underline the same places."""
    jsonschema = pytest.importorskip("jsonschema")
    validator = jsonschema.Draft202012Validator(file_schema())
    for path in sorted((ROOT / "examples").glob("*/app.yaml")):
        document = YAML(typ="safe").load(path)
        assert list(validator.iter_errors(document)) == []
        engine = document["applications"][0]["args"]["decode_config"]["engine_kwargs"]
        engine["dtype"] = "bf16"
        (error,) = validator.iter_errors(document)
        assert "bf16" in error.message


def test_schema_prints_json() -> None:
    """Of the whole file."""
    schema = json.loads(CliRunner().invoke(cli, ["schema"]).stdout)
    assert {"applications", "http_options", "proxy_location"} <= set(schema["properties"])
    assert "BatonBlock" in schema["$defs"]


def test_generated_pages_are_up_to_date() -> None:
    """`docs/reference/` says what the code says."""
    done = subprocess.run(
        [sys.executable, str(ROOT / "tools" / "generate_reference.py"), "--check"],
        capture_output=True, text=True, check=False, timeout=60,
        env={"PYTHONPATH": str(ROOT / "src")},
    )  # fmt: skip
    assert done.returncode == 0, done.stderr
