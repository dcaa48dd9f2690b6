"""What only vLLM can judge is asked of vLLM, when there is one for the hardware."""

from __future__ import annotations

import json
from dataclasses import replace
from typing import TYPE_CHECKING

import pytest

from baton.cli.ask_vllm import judged, judged_file
from baton.cli.up import checked_file
from baton.engine import arguments
from baton.engine.arguments import Question, Verdict, ask
from baton.errors import ConfigRefused
from baton.spec.check import Report, examine
from baton.spec.load import load_text
from tests.unit.spec.mutations import LAPTOP_FILE

if TYPE_CHECKING:
    from collections.abc import Sequence
    from pathlib import Path


@pytest.fixture
def report(tmp_path: Path) -> Report:
    (tmp_path / "config.json").write_text(json.dumps({"num_hidden_layers": 1}))
    text = LAPTOP_FILE.replace("Qwen/Qwen3.5-9B", str(tmp_path)).replace(
        "        dtype: bfloat16\n", "        dtype: bfloat16\n        numa_bind_nodes: [0]\n", 1
    )
    return examine(load_text(text, "app.yaml", {}))


def answer(monkeypatch: pytest.MonkeyPatch, refusal: str | None) -> list[Question]:
    """A vLLM that says this to everything; the questions it was asked."""
    asked: list[Question] = []

    def fake(questions: Sequence[Question]) -> list[Verdict]:
        asked.extend(questions)
        return [Verdict(question.role, refusal) for question in questions]

    monkeypatch.setattr(arguments, "ask", fake)
    monkeypatch.setattr(arguments, "can_judge", lambda question: question.on_cpu)
    return asked


def test_a_refusal_of_vllm_becomes_an_error_at_the_argument(
    report: Report, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Only the role that uses the argument is asked about."""
    asked = answer(monkeypatch, "numa_bind_nodes require numa_bind=True.")
    outcome = judged(report)
    assert [question.engine_kwargs["numa_bind_nodes"] for question in asked] == [[0]]
    (error,) = outcome.errors
    assert error.rule_id == "BTN-107"
    assert error.key_path.endswith("prefill_config.engine_kwargs.numa_bind_nodes")
    assert error.line > 0
    assert "numa_bind=True" in error.message
    assert outcome.checked is None


def test_what_vllm_takes_is_no_longer_remarked_on(
    report: Report, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The note was only for as long as nobody had asked."""
    answer(monkeypatch, None)
    outcome = judged(report)
    assert outcome.checked is report.checked
    assert [fault for fault in outcome.faults if fault.rule_id == "BTN-107"] == []


def test_without_a_vllm_for_the_hardware_the_note_stays(
    report: Report, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The engine's own start will say."""
    answer(monkeypatch, "never asked")
    monkeypatch.setattr(arguments, "can_judge", lambda _question: False)
    assert judged(report) is report


def test_no_question_starts_no_process() -> None:
    """Most files ask nothing."""
    assert ask([]) == []


def test_up_asks_as_well_and_refuses_what_vllm_refuses(
    report: Report, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    """Before anything starts, and not minutes later in a worker's log."""
    asked = answer(monkeypatch, "numa_bind_nodes require numa_bind=True.")
    file = tmp_path / "app.yaml"
    file.write_text(report.loaded.text)
    with pytest.raises(ConfigRefused, match="vLLM refuses it: numa_bind_nodes") as caught:
        checked_file(str(file), on=None, machine=None)
    assert len(asked) == 1
    assert [fault.rule_id for fault in caught.value.faults if fault.severity == "error"] == [
        "BTN-107"
    ]


def test_up_asks_nothing_when_there_is_nothing_to_ask(
    report: Report, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    """Importing vLLM takes ten seconds; an ordinary file does not pay them."""
    asked = answer(monkeypatch, "never asked")
    file = tmp_path / "app.yaml"
    file.write_text(report.loaded.text.replace("        numa_bind_nodes: [0]\n", ""))
    assert checked_file(str(file), on=None, machine=None).applications
    assert asked == []


def test_what_the_adaptation_removes_is_not_asked_about(
    report: Report, monkeypatch: pytest.MonkeyPatch
) -> None:
    """`--on cpu` takes GPU arguments out; vLLM is asked about what is left."""
    asked = answer(monkeypatch, None)
    assert report.checked is not None
    app = report.checked.applications[0]
    args = {**app.args, "prefill_config": {**app.args["prefill_config"], "engine_kwargs": {}}}
    adapted = replace(report.checked, applications=(replace(app, args=args),))
    assert judged_file(adapted) is adapted
    assert asked == []
