"""`--fix` writes what has one meaning, and touches nothing else."""

from __future__ import annotations

import pytest
from hypothesis import assume, given, settings
from hypothesis import strategies as st

from baton.spec.check import examine
from baton.spec.fix import Fixed, fix
from baton.spec.load import load_text
from tests.unit.spec.files import BASE

BESIDE = """\
# A file with comments.
applications:
  - name: qwen          # the name
    import_path: baton:build_pd_openai_app
    args:
      prefill_config:
        model_loading_config: {model_id: m, model_source: org/m}
        # how KV leaves
        kv_transfer_config:   # moved
          kv_connector: NixlConnector

          kv_role: kv_producer  # produces
          kv_connector_extra_config: {backends: UCX}
        # how long
        engine_kwargs:
          max-model-len: "4096"   # tokens
          # a closing word
        deployment_config: {num_replicas: 1}
      decode_config:
        model_loading_config: { model_id: m,   model_source: org/m }
        engine_kwargs:
          max_model_len: 4096
          kv_transfer_config: '{"kv_connector": "NixlConnector", "kv_role": "kv_consumer"}'
"""

FIXED = """\
# A file with comments.
applications:
  - name: qwen          # the name
    import_path: baton:build_pd_openai_app
    args:
      prefill_config:
        model_loading_config: {model_id: m, model_source: org/m}
        # how long
        engine_kwargs:
          max_model_len: 4096   # tokens
          # how KV leaves
          kv_transfer_config:   # moved
            kv_connector: NixlConnector

            kv_role: kv_producer  # produces
            kv_connector_extra_config: {backends: [UCX]}
          # a closing word
        deployment_config: {num_replicas: 1}
      decode_config:
        model_loading_config: { model_id: m,   model_source: org/m }
        engine_kwargs:
          max_model_len: 4096
          kv_transfer_config: {kv_connector: NixlConnector, kv_role: kv_consumer}
"""


def fixed(text: str) -> Fixed:
    loaded = load_text(text, "app.yaml", {"X": "y"})
    outcome = fix(loaded, examine(loaded).changes)
    assert outcome is not None
    return outcome


def test_slips_are_written_and_every_comment_stays() -> None:
    """Lines that are not about a slip are the same to the last space."""
    assert fixed(BESIDE).text == FIXED


def test_a_fixed_file_has_nothing_left_to_fix() -> None:
    """Fixing is done after one time."""
    again = fixed(FIXED)
    assert not again.changed
    assert examine(load_text(FIXED, "app.yaml", {})).warnings == ()


def test_the_difference_is_shown() -> None:
    """As `diff -u` shows it."""
    diff = fixed(BESIDE).diff
    assert '-          max-model-len: "4096"   # tokens\n' in diff
    assert "+          max_model_len: 4096   # tokens\n" in diff


def test_a_good_file_is_left_alone() -> None:
    """Not a byte changes."""
    assert not fixed(BASE).changed


def test_defaults_are_not_written() -> None:
    """What Baton fills in is no slip."""
    text = BASE.replace("          engine_id: prefill\n", "")
    assert not fixed(text).changed


def test_a_slip_inside_braces_is_written_too() -> None:
    """Flow mappings are rewritten by ruamel.yaml's round trip."""
    text = BASE.replace(
        "model_loading_config: {model_id: qwen3.5-9b, model_source: Qwen/Qwen3.5-9B}",
        "model_loading_config: {model_id: m, model_source: '${X}', max_model_len: 1}  # why",
        1,
    ).replace("        max_model_len: 4096\n", "", 1)
    result = fixed(text)
    assert "        max_model_len: 1\n" in result.text
    assert "# why" in result.text
    assert "'${X}'" in result.text


def test_the_serve_config_inside_a_manifest_is_fixed_in_place() -> None:
    """The manifest around it stays as it is."""
    body = "".join(f"    {line}" for line in BESIDE.splitlines(keepends=True))
    manifest = (
        "apiVersion: ray.io/v1\nkind: RayService\nmetadata: {name: q}\nspec:\n"
        f"  serveConfigV2: |\n{body}  rayClusterConfig: {{}}\n"
    )
    body = "".join(
        f"    {line}" if line.strip() else line for line in FIXED.splitlines(keepends=True)
    )
    assert fixed(manifest).text == (
        "apiVersion: ray.io/v1\nkind: RayService\nmetadata: {name: q}\nspec:\n"
        f"  serveConfigV2: |\n{body}  rayClusterConfig: {{}}\n"
    )


def flat(text: str) -> str:
    return "".join(line.lstrip(" ") for line in text.splitlines(keepends=True))


def test_a_file_without_indentation_is_rebuilt() -> None:
    """Its keys allow one shape only."""
    result = fixed(flat(BASE))
    assert load_text(result.text, "x", {}).document == load_text(BASE, "x", {}).document


def test_places_in_a_file_without_indentation_are_those_of_the_flat_lines() -> None:
    """Line and column are of the file as it is, not as it will be."""
    loaded = load_text(flat(BASE.replace("dtype: bfloat16", "dtype: bf16", 1)), "x", {})
    (fault,) = examine(loaded).errors
    assert (fault.line, fault.column) == (10, 8)


@pytest.mark.parametrize(
    ("line", "word"),
    [("runtime_env: {env_vars: {A: b}}", "more than one"), ("dtipe: bfloat16", "nowhere")],
)
def test_a_flat_file_whose_shape_is_uncertain_is_refused_with_the_line(
    line: str, word: str
) -> None:
    """`runtime_env` at the end could belong to decode or to the application."""
    text = flat(BASE.split("    baton:")[0]) + line + "\n"
    loaded = load_text(text, "x", {})
    (fault,) = loaded.faults
    assert loaded.document is None
    assert (fault.rule_id, fault.line) == ("BTN-011", len(text.splitlines()))
    assert word in fault.message


# Slips on single lines of a file in which every line has a comment.
COMMENTED = "".join(
    f"{line.rstrip()}  # {number}\n" for number, line in enumerate(BASE.splitlines())
)
SLIPS = (
    ("max_model_len: 4096", "max-model-len: 4096"),
    ("max_model_len: 4096", 'max_model_len: "4096"'),
    ("enforce_eager: true", "enforce_eager: 'yes'"),
    ("{backends: [LIBFABRIC]}", "{backends: LIBFABRIC}"),
    ("{backends: [LIBFABRIC]}", "{backends: '[\"LIBFABRIC\"]'}"),
    ("        dtype: bfloat16", "      dtype: bfloat16"),
    ("{num_replicas: 1}", "{num_replicas: '1'}"),
    ("      deployment_config", "      env_vars: {A: 010}  # new\n      deployment_config"),
)


@given(
    st.lists(st.tuples(st.sampled_from(SLIPS), st.sampled_from((1, 2))), max_size=5),
    st.sampled_from(("\n", "\r\n")),
)
@settings(max_examples=60, deadline=None)
def test_fixing_keeps_every_comment_in_order_and_is_done_after_one_time(
    slips: list[tuple[tuple[str, str], int]], ending: str
) -> None:
    """Whatever is put right together, with the line endings of the file."""
    text = COMMENTED
    for (right, wrong), count in slips:
        text = text.replace(right, wrong, count)
    text = text.replace("\n", ending)
    loaded = load_text(text, "app.yaml", {})
    found = examine(loaded)
    assume(not loaded.faults and not found.errors)  # two slips at one place can be too many
    outcome = fix(loaded, found.changes)
    assert outcome is not None
    assert comments(outcome.text) == comments(text)
    assert outcome.text.count("\r\n") == (outcome.text.count("\n") if ending == "\r\n" else 0)
    again = load_text(outcome.text, "app.yaml", {})
    assert [f for f in examine(again).warnings if f.rule_id.startswith("BTN-11")] == []
    assert not fixed(outcome.text).changed
    untouched = set(COMMENTED.splitlines()) & set(text.splitlines())
    assert untouched <= set(outcome.text.splitlines())


def comments(text: str) -> list[str]:
    return [line.partition("#")[2].strip() for line in text.splitlines() if "#" in line]


def test_an_alias_is_not_edited_for_one_of_its_users() -> None:
    """The anchor stands for both roles: what is put right in it is right for both."""
    text = BASE.replace("    prefill_config:", "    prefill_config: &role").split(
        "    decode_config"
    )[0]
    text = (
        text.replace("backends: [LIBFABRIC]", "backends: LIBFABRIC") + "    decode_config: *role\n"
    )
    loaded = load_text(text, "app.yaml", {})
    outcome = fix(loaded, examine(loaded).changes)
    assert outcome is not None
    args = load_text(outcome.text, "x", {}).document["applications"][0]["args"]
    assert args["prefill_config"] == args["decode_config"]
    assert examine(load_text(outcome.text, "x", {})).warnings[1:] == ()  # the engine_id


def test_what_one_user_of_an_anchor_needs_is_not_done_to_the_other() -> None:
    """A move out of shared lines would take them from both: nothing is written."""
    loaded = load_text(SHARED, "app.yaml", {})
    changes = examine(loaded).changes
    assert changes
    assert fix(loaded, changes) is None


SHARED = """\
applications:
- name: q
  import_path: baton:build_pd_openai_app
  args:
    prefill_config: &role
      model_loading_config: {model_id: m, model_source: org/m}
      engine_kwargs:
        max_model_len: 64
      dtype: half
    decode_config:
      <<: *role
      model_loading_config: {model_id: m, model_source: org/m}
      max_num_seqs: 4
"""
