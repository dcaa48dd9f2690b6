"""`baton verify` as a person calls it: exit statuses, JSON, and what `up` makes of a verdict."""

from __future__ import annotations

import json
from typing import TYPE_CHECKING, Any

import click
import pytest
from click.testing import CliRunner

from baton.cli import verify as verb
from baton.cli.up import Progress, transport_proof
from baton.deploy.intent import AppPlan
from baton.errors import DeployFailed, NotRunning
from baton.spec.schema import Transport
from baton.verify.judge import judge
from baton.verify.run import Verification
from tests.unit.verify.situations import situation

if TYPE_CHECKING:
    from baton.verify.evidence import Requirement

URL = "http://127.0.0.1:1"


def from_recording(monkeypatch: pytest.MonkeyPatch, *names: str) -> list[Requirement]:
    """Let every endpoint answer with recorded evidence; returns what was required of it."""
    asked: list[Requirement] = []

    def verified(endpoint: str, requirement: Requirement, *_: Any, **__: Any) -> Verification:
        asked.append(requirement)
        evidence = tuple(situation(name) for name in names)
        verdicts = tuple(judge(each, requirement) for each in evidence)
        return Verification(endpoint, evidence, verdicts, 0)

    monkeypatch.setattr(verb, "verify_endpoint", verified)
    return asked


def run(*arguments: str) -> Any:
    return CliRunner().invoke(verb.command, [URL, *arguments])


@pytest.mark.parametrize(
    ("names", "require", "status"),
    [
        (["ucx-shm"], "any", 0),
        (["ucx-shm", "ucx-tcp"], "shm", 1),
        (["libfabric-tcp"], "efa", 1),
        (["namespaces-throttled"], "any", 1),
    ],
)
def test_the_exit_status_is_the_worst_pairs(
    monkeypatch: pytest.MonkeyPatch, names: list[str], require: str, status: int
) -> None:
    """0 passes, 1 fails."""
    from_recording(monkeypatch, *names)
    result = run("--require", require)
    assert result.exit_code == status, result.output


def test_an_open_question_exits_with_2(monkeypatch: pytest.MonkeyPatch) -> None:
    """Unknown is neither a pass nor a failure."""
    blind = situation("ucx-shm")
    decode = blind.decode.model_copy(update={"facts": None, "why_no_facts": "plain vLLM"})
    blind = blind.model_copy(update={"decode": decode, "raw": None})

    def verified(endpoint: str, requirement: Requirement, *_: Any, **__: Any) -> Verification:
        return Verification(endpoint, (blind,), (judge(blind, requirement),), 0)

    monkeypatch.setattr(verb, "verify_endpoint", verified)
    result = run("--require", "efa")
    assert result.exit_code == 2
    assert "plain vLLM" in result.output


def test_text_names_verdict_evidence_and_cure(monkeypatch: pytest.MonkeyPatch) -> None:
    """Readable without colour."""
    from_recording(monkeypatch, "libfabric-tcp")
    text = run("--require", "efa").output
    assert text.startswith("FAIL  ")
    assert "LIBFABRIC runs on tcp, and efa is required" in text
    assert "hint: no EFA device in the pod" in text


def test_json_holds_what_was_judged(monkeypatch: pytest.MonkeyPatch) -> None:
    """So that anybody can judge it again."""
    from_recording(monkeypatch, "ucx-tcp")
    said = json.loads(run("--json").output)
    (pair,) = said["verified"][0]["pairs"]
    assert pair["outcome"] == "PASS"
    assert pair["based_on"]["handoffs"]


def test_synthetic_evidence_is_called_unproven(monkeypatch: pytest.MonkeyPatch) -> None:
    """Nobody has run it."""
    from_recording(monkeypatch, "synthetic-libfabric-efa")
    assert "unproven" in run("--require", "efa").output


def test_min_gbps_reaches_the_judge(monkeypatch: pytest.MonkeyPatch) -> None:
    """In gigabytes a second."""
    (asked,) = [from_recording(monkeypatch, "ucx-shm")]
    assert run("--min-gbps", "100000").exit_code == 1
    assert asked[0].min_gbps == 100_000


def test_nccl_that_is_not_here_is_said_and_changes_no_verdict(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """It is beside the pairs."""
    from_recording(monkeypatch, "ucx-shm")
    monkeypatch.setenv("PATH", "")
    result = run("--nccl")
    assert result.exit_code == 0
    assert "not measured" in result.output


def test_a_file_that_is_not_deployed_is_no_deployment(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Any
) -> None:
    """A name that is neither a file nor running."""
    monkeypatch.setenv("BATON_STATE_DIR", str(tmp_path))
    result = CliRunner().invoke(verb.command, ["nothing"])
    assert isinstance(result.exception, NotRunning)


def test_up_refuses_to_call_ready_what_fails(monkeypatch: pytest.MonkeyPatch) -> None:
    """`transport.require: efa`, and LIBFABRIC took tcp."""
    from_recording(monkeypatch, "libfabric-tcp")
    app = AppPlan("a", "/", "m", by_baton=True, transport=Transport(require="efa"))
    with pytest.raises(DeployFailed) as caught:
        transport_proof(Progress(lambda _: None))(app, URL, None)
    assert "efa is required" in caught.value.fact
    assert "vpc.amazonaws.com/efa" in str(caught.value.cure)


def test_up_says_what_was_proved(monkeypatch: pytest.MonkeyPatch) -> None:
    """One line among its stages."""
    from_recording(monkeypatch, "ucx-shm")
    lines: list[str] = []
    app = AppPlan("a", "/", "m", by_baton=True, transport=Transport(require="shm"))
    transport_proof(Progress(lines.append))(app, URL, None)
    assert "proved: shm" in lines[-1]


def test_every_option_has_a_line_of_help() -> None:
    """Nobody reads the source for it."""
    for option in verb.command.params:
        assert isinstance(option, click.Argument) or option.name == "nccl_gpus" or option.help  # type: ignore[attr-defined]
