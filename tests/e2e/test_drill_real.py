"""The drill on real vLLM engines: one prefill, three decode, at least 50 streams when one dies."""

from __future__ import annotations

import json
import os
from pathlib import Path
from typing import TYPE_CHECKING

import pytest

from baton.drill.report import as_data
from baton.drill.run import Options, run
from baton.drill.scenarios import ALL
from tests.real_faults import RealFaults

if TYPE_CHECKING:
    from baton.drill.stage import Result
    from tests.e2e.conftest import ThinkingEngines

pytestmark = [pytest.mark.real_engine, pytest.mark.timeout(900)]

STREAMS = 50
# In this order: nothing is started again, and after the last kill one decode engine is alone.
PLAYED = ("calm", "hang-ups", "kill-decode-core", "kill-decode", "kill-prefill")


@pytest.fixture(scope="module")
def results(thinking_engines: ThinkingEngines) -> dict[str, Result]:
    """One drill; the scenarios as they went. `BATON_DRILL_JSON` names a file for the table."""
    import asyncio

    options = Options(
        streams=STREAMS, spare=1.0, cases=24, prompt_words=(20, 40), tokens=(350, 500)
    )
    named = {scenario.name: scenario for scenario in ALL}
    engines, lease_s = thinking_engines.running(), thinking_engines.kv_lease_s

    async def drill() -> list[Result]:
        async with RealFaults(engines, thinking_engines.folder, kv_lease_s=lease_s) as faults:
            return await run(faults, [named[name] for name in PLAYED], options)

    try:
        found = asyncio.run(drill())
    finally:
        thinking_engines.end()  # most of them are dead, and the next file wants the memory
    if wanted := os.environ.get("BATON_DRILL_JSON"):
        Path(wanted).write_text(json.dumps(as_data(found), indent=2), encoding="utf-8")
    return {result.name: result for result in found}


def _columns(result: Result) -> dict[str, int | None]:
    return {
        "errors": result.errors,
        "broken_streams": result.broken_streams,
        "mismatched_answers": result.mismatched_answers,
        "kv_blocks_left": result.kv_blocks_left,
    }


NOTHING = {"errors": 0, "broken_streams": 0, "mismatched_answers": 0, "kv_blocks_left": 0}


@pytest.mark.parametrize("name", PLAYED)
def test_nothing_is_lost(results: dict[str, Result], name: str) -> None:
    """No error, no broken stream, no other answer, no KV block left on any engine."""
    result = results[name]
    assert _columns(result) == NOTHING, result
    assert result.problem == ""


@pytest.mark.parametrize("name", PLAYED)
def test_the_fault_really_happened(results: dict[str, Result], name: str) -> None:
    """Otherwise the zeros would prove nothing."""
    result = results[name]
    assert result.skipped == ""
    assert result.problem == ""
    assert result.proof
    assert result.recovery_s is not None


@pytest.mark.parametrize("name", ["kill-decode-core", "kill-decode"])
def test_fifty_streams_were_open_when_decode_was_killed(
    results: dict[str, Result], name: str
) -> None:
    """Fifty at least, and some of them in the middle of thinking."""
    assert results[name].notes["open_streams"] >= STREAMS
    assert results[name].notes["open_thinking_streams"] > 0
