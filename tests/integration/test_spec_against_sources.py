"""The check against the real classes of the installed vLLM and Ray.

`baton validate` imports neither, so something has to hold its snapshot and its rules to what they
really do.
"""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from baton.demo.tiny_model import make_tiny_model
from baton.engine.arguments import Question, ask, can_judge

pytest.importorskip("vllm")

ROOT = Path(__file__).resolve().parents[2]
ENV = {**os.environ, "PYTHONPATH": os.pathsep.join([str(ROOT / "src"), str(ROOT)])}

pytestmark = [pytest.mark.slow, pytest.mark.timeout(900)]


def test_the_snapshot_is_that_of_the_installed_vllm_and_ray() -> None:
    """A new version has to be looked at before its arguments are let through."""
    done = subprocess.run(
        [sys.executable, str(ROOT / "tools" / "snapshot_engine_args.py"), "--check"],
        capture_output=True,
        text=True,
        check=False,
        env=ENV,
    )
    assert done.returncode == 0, done.stderr[-400:]


def _outcome(script: str, *args: str) -> dict[str, Any]:
    """What a comparison says, run in a process of its own."""
    done = subprocess.run(
        [sys.executable, str(ROOT / "tests" / "integration" / script), *args],
        capture_output=True,
        text=True,
        check=False,
        env=ENV,
    )
    lines = [line for line in done.stdout.splitlines() if line.startswith("outcome:")]
    assert lines, done.stderr[-2000:]
    found: dict[str, Any] = json.loads(lines[0].removeprefix("outcome:"))
    return found


@pytest.fixture(scope="module")
def outcome() -> dict[str, Any]:
    """Mutations of good files, judged by Baton and by the real classes in one process.

    The same 2,000 in each run; `BATON_MUTATIONS=COUNT,SEED` draws others.
    """
    count, seed = os.environ.get("BATON_MUTATIONS", "2000,44").split(",")
    return _outcome("spec_oracle.py", count, seed)


def test_the_good_files_are_good_for_ray_and_vllm_too(outcome: dict[str, Any]) -> None:
    """Otherwise the comparison would compare nothing."""
    assert outcome["good"] == [None, None, None]


def test_no_mutation_ends_in_a_traceback(outcome: dict[str, Any]) -> None:
    """A person's slip is answered with a fault."""
    assert outcome["tracebacks"] == []


def test_nothing_passes_that_ray_or_vllm_would_refuse(outcome: dict[str, Any]) -> None:
    """Unless `baton validate` asks vLLM itself about it."""
    assert outcome["missed"] == []
    # Neither verdict for nearly everything: otherwise the comparison would compare nothing.
    count = outcome["agreed"] + outcome["asked"] + outcome["refused"]
    assert outcome["agreed"] > 0.1 * count
    assert outcome["refused"] > 0.5 * count


@pytest.fixture(scope="module")
def other_direction() -> dict[str, Any]:
    """Values that their own types allow, judged by Baton and, where it refuses, by Ray and vLLM.

    A sample here; `BATON_ACCEPTS=0` takes every argument with every value (2,900).
    """
    return _outcome("spec_accepts.py", os.environ.get("BATON_ACCEPTS", "150"), "11")


def test_nothing_is_refused_that_ray_and_vllm_accept(other_direction: dict[str, Any]) -> None:
    """Unless a rule cites where it goes wrong later (`KNOWN_WRONG` there)."""
    assert other_direction["wronged"] == []
    # Neither all accepted nor all refused: otherwise the comparison would compare nothing.
    assert other_direction["accepted"] > 0.3 * other_direction["trials"]
    assert other_direction["refused_by_both"] > 0


def test_vllm_is_asked_about_what_only_it_can_judge(tmp_path: Path) -> None:
    """Its own message comes back, without pydantic's frame."""
    model = str(make_tiny_model(tmp_path / "tiny"))
    right = {"max_model_len": 256, "numa_bind": True, "numa_bind_nodes": [0]}
    wrong = {"max_model_len": 256, "numa_bind_nodes": [0]}
    questions = [Question("a", right, model, on_cpu=True), Question("b", wrong, model, on_cpu=True)]
    if not can_judge(questions[0]):
        pytest.skip("the vLLM that is installed is not for CPUs")
    verdicts = {verdict.role: verdict.refusal for verdict in ask(questions)}
    assert verdicts["b"] == "numa_bind_nodes and numa_bind_cpus require numa_bind=True."
    assert verdicts["a"] is None or "numa" in verdicts["a"].lower()
