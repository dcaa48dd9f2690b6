"""What LangChain, LiteLLM and OpenAI's Node client see of two real engines behind the gateway.

The libraries are in an environment of their own (`make clients`, requirements/clients.txt); a probe
(`tests/clients/`) is run once by its interpreter, and each of its cases is a test here.
"""

from __future__ import annotations

import ast
import json
import os
import re
import shutil
import subprocess
from pathlib import Path

import pytest

from tests.clients.outcomes import Outcomes

pytestmark = [pytest.mark.real_engine, pytest.mark.timeout(900)]

ROOT = Path(__file__).parents[2]
PROBES = ROOT / "tests" / "clients"
CLIENTS = ROOT / ".clients"
SKIP = "BATON_SKIP_CLIENTS"
PYTHON = ("langchain", "litellm")
MOST_S = 300


def _cases_of(library: str) -> list[str]:
    """Names of a probe's cases, read from its text: its imports are not to be had here."""
    if library == "openai_node":
        text = (PROBES / "openai_probe.mjs").read_text(encoding="utf-8")
        return re.findall(r"^  async (\w+)\(\) \{$", text, re.MULTILINE)
    tree = ast.parse((PROBES / f"{library}_probe.py").read_text(encoding="utf-8"))
    functions = ast.FunctionDef | ast.AsyncFunctionDef
    names = [
        node.name
        for node in tree.body
        if isinstance(node, functions) and not node.name.startswith("_")
    ]
    if library == "langchain":
        return names
    both = [f"{provider}.{name}" for provider in ("openai", "hosted_vllm") for name in names]
    return [name for name in both if name != "hosted_vllm.completion"]


ALL = [(library, case) for library in (*PYTHON, "openai_node") for case in _cases_of(library)]


@pytest.fixture(scope="module")
def outcomes(gateway: str) -> Outcomes:
    """What the libraries' probes said."""
    return Outcomes(lambda library: _run(library, gateway))


def _run(library: str, url: str) -> dict[str, str]:
    if not (CLIENTS / ".complete").is_file():
        if os.environ.get(SKIP) == "1":
            pytest.skip(f"{SKIP}=1: no client library is put before the gateway")
        pytest.fail(
            f"{CLIENTS} is not there (hint: run `make clients`, or set {SKIP}=1 to go without)"
        )
    where, script = PROBES, None
    if library == "openai_node":
        where = CLIENTS / "node"
        if shutil.which("node") is None or not where.is_dir():
            pytest.skip("no Node on this machine")
        script = PROBES / "openai_probe.mjs"
        # From its standard input: modules are looked up where it runs, not where its text lies.
        command = ["node", "--input-type=module", "-", url]
    else:
        command = [str(CLIENTS / "bin" / "python"), f"{library}_probe.py", url]
    done = subprocess.run(
        command,
        cwd=where,
        input=None if script is None else script.read_text(encoding="utf-8"),
        capture_output=True,
        text=True,
        check=False,
        timeout=MOST_S,
        env={**os.environ, "PYTHONPATH": str(PROBES), "LANGSMITH_TRACING": "false"},
    )
    if done.returncode:
        raise RuntimeError(f"exit status {done.returncode}: {done.stderr[-3000:]}")
    found: dict[str, str] = json.loads(done.stdout.splitlines()[-1])
    return found


@pytest.mark.parametrize(("library", "case"), ALL)
def test_a_client_library_gets_what_it_expects(outcomes: Outcomes, library: str, case: str) -> None:
    """Chat, stream, tools, structured output, usage, asynchronous calls, classes of errors."""
    assert outcomes.of(library)[case] == "ok"


@pytest.mark.parametrize("library", [*PYTHON, "openai_node"])
def test_every_case_of_a_probe_is_a_test(outcomes: Outcomes, library: str) -> None:
    """Their names are read from the probes' text."""
    assert sorted(outcomes.of(library)) == sorted(_cases_of(library))
