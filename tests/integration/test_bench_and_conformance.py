"""`baton conformance` and `baton bench` as a person calls them, against real endpoints."""

from __future__ import annotations

import json
import subprocess
import sys
from typing import TYPE_CHECKING

import pytest

from baton.deploy.simulated_stack import SimulatedStack
from tests.real_engines import vllm_is_installed

if TYPE_CHECKING:
    from pathlib import Path

    from tests.real_engines import RealPair

BATON = [sys.executable, "-m", "baton.cli"]


def call(*words: str) -> subprocess.CompletedProcess[str]:
    return subprocess.run([*BATON, *words], capture_output=True, text=True, check=False)


@pytest.mark.real_engine
@pytest.mark.timeout(600)
def test_pd_differs_from_a_plain_engine_only_where_that_is_explained(
    gateway: str, real_pair: RealPair, tmp_path: Path
) -> None:
    """Each case asks for a handoff; the decode engine alone stands for a plain one."""
    told = tmp_path / "c.json"
    result = call(
        "conformance", gateway, "--against", real_pair.decode_url, "--json", str(told),
        "--header", "x-baton-disaggregate: always",
    )  # fmt: skip
    assert result.returncode == 0, result.stdout[-3000:] + result.stderr
    data = json.loads(told.read_text())
    assert [d["id"] for d in data["differences"] if d["why"] is None] == []
    routes = [case["notes"].get("x-baton-route") for case in data["cases"]]
    assert routes.count("pd") > len(routes) / 2


@pytest.mark.skipif(not vllm_is_installed(), reason="the load is vLLM's own generator")
@pytest.mark.timeout(300)
async def test_a_bench_of_a_gateway_measures_what_was_planned(tmp_path: Path) -> None:
    """vLLM's generator keeps the plan's times and lengths, and P/D is seen to be used."""
    import asyncio

    told, page = tmp_path / "b.json", tmp_path / "b.html"
    async with SimulatedStack(prefill=1, decode=1) as stack:
        result = await asyncio.to_thread(
            call, "bench", stack.endpoint, "--rate", "8", "--duration", "3", "--warmup", "1",
            "--input", "200", "--output", "6", "--slo-ttft", "30", "--slo-tpot", "5",
            "--json", str(told), "--html", str(page),
        )  # fmt: skip
    assert result.returncode == 0, result.stderr
    data = json.loads(told.read_text())
    count = data["requests"]
    assert count > 10
    assert (data["failed"], data["slo_attainment"]) == (0, 1.0)
    assert (data["input_tokens"], data["output_tokens"]) == (200 * count, 6 * count)
    assert data["itl"]["count"] == 5 * count
    assert data["disaggregated"] == count + data["warmup_excluded"]
    assert {"prefill", "handoff", "decode"} <= data["phases"].keys()
    assert "<svg" in page.read_text()
