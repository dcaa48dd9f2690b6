"""Reading a file: nothing that a file says is a traceback, and every place is right."""

from __future__ import annotations

import io
import sys
from typing import TYPE_CHECKING

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from baton.spec.load import load_file, load_text
from baton.spec.loaded import LoadedFile
from baton.spec.scalars import resolve
from baton.spec.yaml_tree import parse
from tests.unit.spec.files import BASE, line_of

if TYPE_CHECKING:
    from pathlib import Path


def loaded(text: str | bytes, **env: str) -> LoadedFile:
    return load_text(text, "app.yaml", env)


def ids(text: str | bytes) -> list[str]:
    return [fault.rule_id for fault in loaded(text).faults]


def test_every_key_has_its_line_and_column() -> None:
    """The place of a key, and the place of its value."""
    file = loaded(BASE)
    path = ("applications", 0, "args", "prefill_config", "engine_kwargs", "dtype")
    assert str(file.place(path)) == f"app.yaml:{line_of(BASE, 'dtype')}:9"
    assert str(file.value_place(path)) == f"app.yaml:{line_of(BASE, 'dtype')}:16"


def test_a_path_that_is_not_in_the_file_has_the_place_of_what_is_around_it() -> None:
    """A missing key is reported where it is missing."""
    path = ("applications", 0, "args", "decode_config", "nothing", "here")
    assert loaded(BASE).place(path).line == line_of(BASE, "decode_config")


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("", ["BTN-009"]),
        ("# only a comment\n\n", ["BTN-009"]),
        ("---\n", ["BTN-009"]),
        ("null\n", ["BTN-009"]),
        ("a: [1, 2", ["BTN-001"]),
        ('a: "open', ["BTN-001"]),
        ("a: b: c", ["BTN-001"]),
        ("a: *nowhere", ["BTN-001"]),
        ("a:\n\tb: 1\n\tc: 2\n", ["BTN-002", "BTN-002"]),
        ("a: 1\nb: 2\na: 3\n", ["BTN-003"]),
        ("a: \x01\n", ["BTN-004"]),
        (b"a: \xff\xfe\n", ["BTN-004"]),
        ("a: &a [*a]\n", ["BTN-005"]),
        ("[" * 100 + "]" * 100, ["BTN-006"]),
        ("? [a]\n: 1\n", ["BTN-007"]),
        ("a: !!python/object:os.system x\n", ["BTN-008"]),
        ("a: 1\n---\nb: 2\n", ["BTN-009"]),
    ],
)
def test_text_that_cannot_be_a_config_is_refused_by_name(
    text: str | bytes, expected: list[str]
) -> None:
    """Each kind of trouble has a rule of its own."""
    assert ids(text) == expected


def test_an_alias_bomb_is_refused_without_expanding_it() -> None:
    """Nine lines that stand for billions of values."""
    lines = ["a0: &a0 [x, x, x, x, x, x, x, x, x]"]
    lines += [f"a{n}: &a{n} [{', '.join([f'*a{n - 1}'] * 9)}]" for n in range(1, 10)]
    assert ids("\n".join(lines)) == ["BTN-005"]


def test_ordinary_anchors_and_merges_are_read() -> None:
    """Sharing engine_kwargs between the roles is good style."""
    text = "base: &b {x: 1, y: 2}\na: *b\nc:\n  <<: *b\n  y: 3\n"
    file = loaded(text)
    assert file.faults == ()
    assert file.document == {"base": {"x": 1, "y": 2}, "a": {"x": 1, "y": 2}, "c": {"x": 1, "y": 3}}
    assert file.place(("c", "x")).line == 1


def test_non_utf8_bytes_are_placed() -> None:
    """Line and column of the first bad byte."""
    (fault,) = loaded(b"ab: c\nde: \xff\n").faults
    assert (fault.line, fault.column) == (2, 5)


def test_a_byte_order_mark_is_ignored() -> None:
    """Editors on Windows write one."""
    assert loaded(b"\xef\xbb\xbfa: 1\n").document == {"a": 1}


def test_a_duplicate_key_shows_both_lines() -> None:
    """The reader sees which of them would have been lost."""
    (fault,) = loaded("a: 1\nb: 2\na: 3\n").faults
    assert fault.line == 3
    assert fault.related[0][1].line == 1


def test_files_that_are_not_there_say_so(tmp_path: Path) -> None:
    """Missing, with the nearest name; a directory, with a file in it."""
    (tmp_path / "app.yaml").write_text("a: 1\n")
    (missing,) = load_file(tmp_path / "ap.yaml").faults
    assert "no such file" in missing.message
    assert "app.yaml" in (missing.cure or "")
    (folder,) = load_file(tmp_path).faults
    assert "directory" in folder.message
    assert "app.yaml" in (folder.cure or "")


def test_a_file_too_large_to_be_a_config_is_not_read(tmp_path: Path) -> None:
    """A model file named by mistake."""
    with (tmp_path / "model.yaml").open("wb") as stream:
        stream.truncate(8 * 1024 * 1024)
    (fault,) = load_file(tmp_path / "model.yaml").faults
    assert "larger" in fault.message


def test_a_dash_reads_standard_input(monkeypatch: pytest.MonkeyPatch) -> None:
    """As other tools do."""
    monkeypatch.setattr(sys, "stdin", io.TextIOWrapper(io.BytesIO(b"a: 1\n")))
    file = load_file("-")
    assert (file.path, file.document) == ("<stdin>", {"a": 1})


def test_variables_are_resolved_and_read_again_as_yaml() -> None:
    """An unquoted variable can be a number; a quoted one is text."""
    file = loaded("a: ${N}\nb: '${N}'\nc: x-${N}\nd: ${M:-7}\ne: $${N}\n", N="4")
    assert file.document == {"a": 4, "b": "4", "c": "x-4", "d": 7, "e": "${N}"}


def test_variables_may_stand_in_braces() -> None:
    """`{x: ${N}}` is no YAML by the book, and everybody writes it."""
    assert loaded("a: {x: ${N}, y: [${N}]}\n", N="4").document == {"a": {"x": 4, "y": [4]}}


def test_variables_of_a_runtime_env_are_left_to_ray() -> None:
    """Ray expands them on the node where the worker starts."""
    text = "runtime_env: {env_vars: {PATH: '/x:${PATH}'}}\n"
    file = loaded(text)
    assert file.faults == ()
    assert file.document["runtime_env"]["env_vars"]["PATH"] == "/x:${PATH}"


MANIFEST = """\
apiVersion: ray.io/v1
kind: RayService
metadata: {name: qwen}
spec:
  serveConfigV2: |
    # inside
    applications:
    - name: qwen
      import_path: ${X}
  rayClusterConfig: {}
"""


def test_a_rayservice_manifest_is_read_with_the_outer_lines() -> None:
    """Places are those of the manifest, not of the text inside it."""
    file = loaded(MANIFEST)
    assert file.kind == "rayservice"
    (fault,) = file.faults
    assert (fault.line, fault.column) == (line_of(MANIFEST, "import_path"), 20)


def test_a_manifest_beside_others_is_found() -> None:
    """A file often holds a ConfigMap as well."""
    other = "apiVersion: v1\nkind: ConfigMap\nmetadata: {name: x}\n---\n"
    file = loaded(other + MANIFEST, X="baton:build_pd_openai_app")
    assert file.faults == ()
    line = file.place(("applications", 0, "name")).line
    assert line == line_of(other + MANIFEST, "name: qwen", 2)


@pytest.mark.parametrize(
    "inner", ["", "  serveConfigV2: {applications: []}\n", "  serveConfigV2:\n"]
)
def test_a_manifest_without_text_in_serveconfigv2_is_refused(inner: str) -> None:
    """KubeRay wants text there."""
    text = f"apiVersion: ray.io/v1\nkind: RayService\nspec:\n  rayClusterConfig: {{}}\n{inner}"
    assert ids(text) == ["BTN-010"]


_WORDS = (
    "yes No on OFF true ~ null 0x1F 0b11 017 0o17 1_000 1:30 1e9 1.5e+3 .5 .inf -.INF .nan +1 -0"
    " 2024-01-02 12:30:45.5 08 1. 190:20:30 = << y n"
)
_SCALARS = st.one_of(
    st.text("0123456789abcdefoxOXE+-_.:~ynYN", max_size=8), st.sampled_from(_WORDS.split(" "))
)


@given(_SCALARS)
@settings(max_examples=120, deadline=None)
def test_plain_scalars_mean_what_ray_reads(text: str) -> None:
    """Ray reads its files with PyYAML; a value must not change its type on the way."""
    yaml = pytest.importorskip("yaml")
    text = text.strip()
    try:
        theirs = yaml.safe_load(f"a: {text}\n")["a"]
    except (yaml.YAMLError, ValueError, TypeError):
        return
    (tree,) = parse(f"a: {text}\n")
    if tree.problems:
        return
    ours = tree.value["a"]
    assert type(ours) is type(theirs) or "datetime" in str(type(theirs)), (text, ours, theirs)
    assert ours == theirs or theirs != theirs or "datetime" in str(type(theirs))  # noqa: PLR0124


@given(st.text(max_size=200))
@settings(max_examples=120, deadline=None)
def test_any_text_is_a_document_or_a_fault(text: str) -> None:
    """Never an exception."""
    file = loaded(text)
    assert file.faults or file.document is not None


@given(st.binary(max_size=200))
@settings(max_examples=60, deadline=None)
def test_any_bytes_are_a_document_or_a_fault(raw: bytes) -> None:
    """Never an exception."""
    assert isinstance(loaded(raw), LoadedFile)


def test_resolve_gives_dates_a_type_of_their_own() -> None:
    """A model called 2024-01-01 has to be quoted, as for Ray."""
    assert type(resolve("2024-01-01")).__name__ == "date"
