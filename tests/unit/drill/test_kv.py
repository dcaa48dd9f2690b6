"""KV blocks, by an engine's own metrics."""

from __future__ import annotations

import aiohttp
import pytest
from aiohttp import web

from baton.drill.kv import Gauges, Unreadable, blocks_in, value_in
from baton.spec.lease import EngineLease
from tests.unit.drill.answers import server

PAGE = """# TYPE vllm:kv_cache_usage_perc gauge
vllm:kv_cache_usage_perc{{engine="0",model_name="m"}} {usage}
# TYPE vllm:cache_config_info gauge
vllm:cache_config_info{{block_size="16",num_gpu_blocks="101",num_gpu_blocks_override="None"}} 1.0
"""


@pytest.mark.parametrize(("usage", "blocks"), [(0.0, 0), (0.02, 2), (1.0, 100), (0.0001, 1)])
def test_a_share_becomes_blocks_and_never_rounds_to_none(usage, blocks):
    """Without vLLM's null block."""
    assert blocks_in(PAGE.format(usage=usage)) == blocks


def test_a_share_of_an_unknown_number_is_at_least_one_block():
    """Something is held."""
    assert blocks_in("vllm:kv_cache_usage_perc 0.3\n") == 1


def test_a_metric_is_the_sum_of_its_samples_and_of_no_other_metrics():
    """Names that begin alike are others."""
    page = 'a{x="1"} 2\na{x="2"} 3\nab 7\n# HELP a 9\n'
    assert value_in(page, "a") == 5
    assert value_in(page, "b") == 0


def _lease(url):
    return EngineLease(replica_id=url, role="prefill", url=url, engine_id="p", model_id="m")


async def test_an_engine_is_poked_before_a_held_block_is_believed():
    """vLLM writes the gauge with a step; what was freed after the last one shows with the next."""
    poked = []

    async def handler(request):
        if request.method == "POST":
            poked.append(await request.json())
            return web.json_response({})
        return web.Response(text=PAGE.format(usage=0.0 if poked else 0.5))

    async with server(handler) as url, aiohttp.ClientSession() as session:
        assert await Gauges(session, {}).blocks_held([_lease(url)]) == 0
    assert poked == [{"model": "m", "prompt": "x", "max_tokens": 1}]


async def test_blocks_that_stay_held_are_counted_for_all_engines():
    """However often one asks."""

    async def handler(_):
        return web.Response(text=PAGE.format(usage=0.05))

    async with server(handler) as url, aiohttp.ClientSession() as session:
        assert await Gauges(session, {}).blocks_held([_lease(url), _lease(url)]) == 10


@pytest.mark.parametrize("status", [401, 500])
async def test_metrics_that_cannot_be_read_are_no_zero(status):
    """Unknown is not free."""

    async def handler(_):
        return web.Response(status=status)

    async with server(handler) as url, aiohttp.ClientSession() as session:
        with pytest.raises(Unreadable):
            await Gauges(session, {}).blocks_held([_lease(url)])
    async with aiohttp.ClientSession() as session:
        with pytest.raises(Unreadable):
            await Gauges(session, {}).busy(_lease("http://127.0.0.1:9"))
