"""`baton.placement`: labels as Kubernetes has them, and bundles that fit their phase."""

from __future__ import annotations

from typing import Any

import pytest

from tests.unit.spec.files import report, spoiled


def selectors(**parts: Any) -> Any:
    def change(args: Any) -> None:
        args["baton"]["placement"] = parts

    return report(spoiled(change))


@pytest.mark.parametrize(
    "labels",
    [
        {"role": "gpu-worker"},
        {"node.kubernetes.io/instance-type": "p5.48xlarge", "example.com/pool": "a_b.c"},
        {"empty": ""},
    ],
)
def test_labels_that_nodes_can_have_are_accepted(labels: dict[str, str]) -> None:
    """With and without a prefix; a value may be empty."""
    assert selectors(prefill_node_selector=labels).errors == ()


@pytest.mark.parametrize(
    ("labels", "found"),
    [
        ({"my role": "a"}, "my role"),
        ({"-role": "a"}, "-role"),
        ({"UPPER.example/role": "a"}, "UPPER.example/role"),
        ({"a/b/c": "d"}, "a/b/c"),
        ({"role": "gpu worker"}, "gpu worker"),
        ({"role": "x" * 64}, "x" * 64),
    ],
)
def test_labels_that_no_node_can_have_are_refused(labels: dict[str, str], found: str) -> None:
    """At their own line, with what is allowed."""
    (fault,) = selectors(decode_node_selector=labels).errors
    assert (fault.rule_id, found in str(fault.found)) == ("BTN-197", True)
    assert fault.line > 0
    assert "decode_node_selector" in fault.key_path
    assert fault.cure


def test_a_label_that_is_no_text_is_refused() -> None:
    """`true` and 8 would be compared with nothing."""
    (fault,) = selectors(prefill_node_selector={"gpu": True}).errors
    assert fault.rule_id == "BTN-190"
    assert "string" in fault.message


def test_a_misspelt_selector_is_refused_with_the_right_name() -> None:
    """It would place nothing."""
    (fault,) = selectors(prefill_nodes_selector={"a": "b"}).errors
    assert (fault.rule_id, fault.cure) == ("BTN-190", "did you mean `prefill_node_selector`?")


def bundles(role: str, group: dict[str, Any]) -> Any:
    def change(args: Any) -> None:
        args[f"{role}_config"]["placement_group_config"] = group

    return report(spoiled(change))


def test_a_phase_may_ask_for_its_own_resource() -> None:
    """It is what `baton eks render` writes."""
    own = {"bundle_per_worker": {"GPU": 1, "baton_prefill": 0.001}}
    assert bundles("prefill", own).errors == ()


@pytest.mark.parametrize(
    "group",
    [
        {"bundle_per_worker": {"GPU": 1, "baton_prefill": 0.001}},
        {"bundles": [{"GPU": 1, "baton_decod": 0.001}]},
    ],
)
def test_the_other_phases_resource_is_refused(group: dict[str, Any]) -> None:
    """Serve would wait without end for a node that offers both."""
    (fault,) = bundles("decode", group).errors
    assert (fault.rule_id, fault.allowed) == ("BTN-198", "baton_decode")
    assert fault.line > 0
