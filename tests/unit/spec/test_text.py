"""What editors, web pages and YAML itself do to a text."""

from __future__ import annotations

import random
from typing import TYPE_CHECKING, Any

import pytest

from baton.spec.check import Report, examine
from baton.spec.load import load_file, load_text
from tests.unit.spec.files import BASE, line_of, report, rules_of
from tests.unit.spec.mutations import GOOD_FILES, dump, load, mutate_text, mutate_values
from tests.unit.spec.test_newcomers import manifest

if TYPE_CHECKING:
    from pathlib import Path

WRONG = BASE.replace("dtype: bfloat16", "dtype: bf16", 1)
DTYPE = "        dtype: bfloat16\n"


def place(found: Report, rule_id: str) -> tuple[int, int]:
    fault = next(f for f in found.faults if f.rule_id == rule_id)
    return fault.line, fault.column


@pytest.mark.parametrize("ending", ["\r\n", "\r"])
@pytest.mark.parametrize("mark", ["", "\ufeff"])
def test_line_endings_and_a_byte_order_mark_change_no_place(ending: str, mark: str) -> None:
    """Windows and old Macs count lines like everybody."""
    raw = (mark + WRONG.replace("\n", ending)).encode()
    found = examine(load_text(raw, "app.yaml", {}))
    assert place(found, "BTN-103") == (line_of(WRONG, "bf16"), 16)


@pytest.mark.parametrize(
    ("line", "column"),
    [
        ("\t\tdtype: bfloat16\n", 1),
        ("        dtype:\tbfloat16\n", 15),
        ("        dtype: bfloat16\t\n", 24),
    ],
)
def test_a_tab_is_called_a_tab_wherever_it_stands(line: str, column: int) -> None:
    """YAML's own words for it are about tokens."""
    text = BASE.replace(DTYPE, line, 1)
    found = report(text)
    assert rules_of(found) == ["BTN-002"]
    assert place(found, "BTN-002") == (line_of(text, "\t"), column)


def test_no_break_spaces_in_the_indentation_are_found() -> None:
    """They look like spaces; the parser stumbles a line later."""
    text = BASE.replace(DTYPE, DTYPE.replace("        ", "\u00a0" * 8), 1)
    found = report(text)
    assert rules_of(found) == ["BTN-015"]
    assert place(found, "BTN-015") == (line_of(text, "\u00a0"), 1)


@pytest.mark.parametrize("word", ["\u201cqwen\u201d", "qw\u200ben", "qwen\u00a0"])
def test_an_odd_character_in_a_word_is_a_warning(word: str) -> None:
    """It would become part of the name."""
    assert "BTN-015" in rules_of(report(BASE.replace("name: qwen", f"name: {word}")), "warning")


def test_a_word_in_another_language_is_no_odd_character() -> None:
    """Names may be in any script."""
    assert rules_of(report(BASE.replace("name: qwen", "name: modèle-千問")), "warning") == []


@pytest.mark.parametrize(("word", "value"), [("010000", "4096"), ("1:08:16", "4096")])
def test_numbers_in_base_8_and_60_are_remarked_on(word: str, value: str) -> None:
    """Ray reads YAML 1.1."""
    found = report(BASE.replace("max_model_len: 4096", f"max_model_len: {word}"))
    assert found.errors == ()
    assert rules_of(found, "warning") == ["BTN-014", "BTN-014"]
    assert value in found.warnings[0].message


def test_an_environment_variable_keeps_the_text_that_was_written() -> None:
    """`010` is not `8`, `1.10` is not `1.1`, wherever `env_vars` stood."""
    text = BASE.replace("      deployment_config", "      env_vars: {A: 010, B: 1.10, C: 1_0}\n"
                        "      deployment_config")  # fmt: skip
    found = report(text)
    assert found.checked is not None
    env = found.checked.applications[0].roles["decode"].env_vars
    assert {k: env[k] for k in "ABC"} == {"A": "010", "B": "1.10", "C": "1_0"}


def test_messages_show_what_stands_in_the_file() -> None:
    """`yes`, and not the `true` that YAML makes of it."""
    fault = report(BASE.replace("model_id: qwen3.5-9b", "model_id: yes", 1)).errors[0]
    assert fault.found == "yes (YAML reads true)"
    assert fault.cure == 'quote it: "yes"'


STYLES = ["|", "|-", "|2", "|  # the config", "|\n\n"]


@pytest.mark.parametrize("style", STYLES)
def test_a_line_inside_a_manifest_is_that_of_the_outer_file(style: str) -> None:
    """Whatever follows `serveConfigV2`."""
    text = manifest(WRONG).replace("serveConfigV2: |", f"serveConfigV2: {style}")
    assert place(report(text), "BTN-103") == (line_of(text, "bf16"), 20)


@pytest.mark.parametrize("rule_id", ["BTN-002", "BTN-003", "BTN-101"])
def test_trouble_with_the_text_inside_a_manifest_has_its_outer_place(rule_id: str) -> None:
    """Tabs, keys that stand twice, variables."""
    inner, needle = {
        "BTN-002": (BASE.replace(DTYPE, "\t" + DTYPE, 1), "\t"),
        "BTN-003": (BASE.replace(DTYPE, DTYPE + "        dtype: half\n", 1), "half"),
        "BTN-101": (BASE.replace("Qwen/Qwen3.5-9B", "${UNSET}", 1), "UNSET"),
    }[rule_id]
    text = manifest(inner)
    assert place(report(text), rule_id)[0] == line_of(text, needle)


@pytest.mark.parametrize(
    ("text", "rule_id", "cure"),
    [
        (manifest(BASE).replace("V2: |", "V2: >"), "BTN-010", "`|` in place of `>`"),
        (manifest(WRONG).replace("V2: |", "V2:"), "BTN-010", "write `|` behind the colon"),
        (manifest(BASE).replace("ConfigV2", "Config"), "BTN-010", "the older key"),
        (manifest(f"{BASE}---\n{BASE}"), "BTN-009", "one Serve config"),
        (manifest("".join(line.lstrip() + "\n" for line in BASE.splitlines())), "BTN-011", "--fix"),
        (manifest(BASE).replace("kind: RayService", "kind: Rayservice"), "BTN-012", "RayService"),
        (manifest(BASE).replace("2.60.0", "{{ .Values.v }}"), "BTN-007", "helm template"),
    ],
)
def test_a_manifest_that_holds_no_text_is_told_how_it_would(
    text: str, rule_id: str, cure: str
) -> None:
    """One message with a way on."""
    found = report(text)
    fault = next(f for f in found.errors if f.rule_id == rule_id)
    assert cure in (fault.cure or "")
    assert fault.line > 0


def test_a_config_that_stands_as_a_mapping_in_a_manifest_is_checked_as_well() -> None:
    """All faults in one run."""
    text = manifest(WRONG).replace("V2: |", "V2:")
    assert rules_of(report(text)) == ["BTN-010", "BTN-103"]
    assert place(report(text), "BTN-103")[0] == line_of(text, "bf16")


@pytest.mark.parametrize("count", [0, 1, 60, 400, 2000, 100_000])
@pytest.mark.parametrize("mark", ["[", "{a: ", "- ", "? "])
def test_depth_is_refused_and_no_recursion(mark: str, count: int) -> None:
    """Closed or not."""
    if count > 2000 and mark != "[":
        pytest.skip("one kind is enough at this size")
    found = report(f"applications: {mark * count}\n")
    assert found.checked is None
    assert all(fault.line > 0 for fault in found.errors)


def test_what_is_no_file_is_refused_with_a_way_on(tmp_path: Path) -> None:
    """A device without end, a socket's folder, a name with a null byte, a large file."""
    (tmp_path / "large.yaml").write_bytes(b"#" * 10_000_000)
    for name in ("/dev/zero", str(tmp_path), "a\0b", str(tmp_path / "large.yaml"), "/dev/null"):
        (fault,) = load_file(name).faults
        assert fault.rule_id == "BTN-009", name
        assert fault.cure, name


def errors_of(text: str) -> Any:
    return examine(load_text(text, "app.yaml", {})).errors


@pytest.mark.parametrize("seed", range(2))
def test_every_error_has_a_place_what_was_found_and_a_cure(seed: int) -> None:
    """Of random mutations: whatever went wrong, the reader is told what to do."""
    for number in range(70):
        rng = random.Random(seed * 1000 + number)
        text = rng.choice(GOOD_FILES)
        spoilt = mutate_text(text, rng) if number % 4 == 0 else dump(mutate_values(load(text), rng))
        for fault in errors_of(spoilt):
            assert fault.line > 0, fault
            assert fault.cure, fault
            of_text = fault.rule_id < "BTN-010" or fault.rule_id in {"BTN-011", "BTN-015"}
            assert of_text or (fault.found is not None and fault.allowed is not None), fault
