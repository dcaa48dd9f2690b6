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
from tests.real_engines import EngineSpec, start_engines
from tests.real_faults import RealFaults

if TYPE_CHECKING:
    from baton.drill.stage import Result

pytestmark = [pytest.mark.real_engine, pytest.mark.timeout(900)]

LEASE_S = 10
STREAMS = 50
# In this order: nothing is started again, and after the last kill one decode engine is alone.
PLAYED = ("calm", "hang-ups", "kill-decode-core", "kill-decode", "kill-prefill")
# So many open streams need more blocks than the tests' engines have.
ROOM = ("--num-gpu-blocks-override", "1024")
# Tells thinking from the answer where a request asks for it, as some of the drill's do.
PARSER = ("--reasoning-parser", "deepseek_v3")
# Decode engines whose worker waits for its EngineCore leave prefill more of two cores. Otherwise
# three of them answer so fast that fewer than fifty streams are open at once.
APART = (("BATON_CPU_WORKER_PROCESS", "1"),)


@pytest.fixture(scope="module")
def results(
    real_engines_wanted: None, tmp_path_factory: pytest.TempPathFactory
) -> dict[str, Result]:
    """One drill; the scenarios as they went. `BATON_DRILL_JSON` names a file for the table."""
    import asyncio

    folder = tmp_path_factory.mktemp("drill")
    specs = [
        EngineSpec("prefill", "prefill-0", (*ROOM, *PARSER), LEASE_S),
        *(
            EngineSpec("decode", f"decode-{number}", (*ROOM, *PARSER), LEASE_S, environment=APART)
            for number in range(3)
        ),
    ]
    options = Options(
        streams=STREAMS, spare=1.0, cases=24, prompt_words=(20, 40), tokens=(350, 500)
    )
    scenarios = sorted(
        (scenario for scenario in ALL if scenario.name in PLAYED),
        key=lambda scenario: PLAYED.index(scenario.name),
    )

    async def drill(engines: list) -> list[Result]:
        async with RealFaults(engines, folder, kv_lease_s=LEASE_S) as faults:
            return await run(faults, scenarios, options)

    with start_engines(specs, folder) as engines:
        found = asyncio.run(drill(engines))
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


@pytest.mark.parametrize(
    "name",
    [
        "calm",
        "hang-ups",
        "kill-decode-core",
        "kill-decode",
        "kill-prefill",
    ],
)
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
