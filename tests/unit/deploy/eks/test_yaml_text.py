"""YAML that PyYAML, ruamel (YAML 1.2, as Go's readers are nearer to) and a person read alike."""

from __future__ import annotations

from typing import Any

import pytest
import yaml
from hypothesis import given
from hypothesis import strategies as st
from ruamel.yaml import YAML

from baton.deploy.eks.yaml_text import yaml_text

# Characters that YAML allows unescaped or escaped; lone surrogates are no text.
TEXT = st.text(st.characters(exclude_categories=["Cs"]), max_size=12)


@pytest.mark.parametrize(
    "value",
    ["on", "off", "yes", "No", "y", "null", "~", "1.30", "0", "012", "1e3", "0x1f", "1:30", "1_000",
     ".5", ".inf", "", " a", "a: b", "a #b", "- a", "2026-11-30", "None", "*", "&a", "{a}", "<<"],
)  # fmt: skip
def test_text_that_some_reader_takes_for_something_else_is_quoted(value: str) -> None:
    """kubectl and Ray must read the same words."""
    text = yaml_text({"value": value})
    assert '"' in text
    assert yaml.safe_load(text) == {"value": value}
    assert YAML(typ="safe").load(text) == {"value": value}


@given(st.dictionaries(TEXT, TEXT, max_size=3))
def test_any_text_comes_back_as_it_was(value: dict[str, Any]) -> None:
    """Keys and values, whatever they hold."""
    assert yaml.safe_load(yaml_text({"v": value})) == {"v": value}


def test_lines_stay_lines() -> None:
    """serveConfigV2 must be readable in a review."""
    text = yaml_text({"config": "a: 1\nb: 2\n"}, head="why\n\nand how")
    assert text == "# why\n#\n# and how\nconfig: |\n  a: 1\n  b: 2\n"


def test_keys_keep_their_order_and_nothing_is_an_alias() -> None:
    """An anchor far above would surprise whoever edits a line."""
    shared = {"b": 1, "a": 2}
    assert yaml_text({"x": shared, "w": shared}) == "x:\n  b: 1\n  a: 2\nw:\n  b: 1\n  a: 2\n"
