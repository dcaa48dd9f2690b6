"""Engines are looked at before minutes are spent on measuring them."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import pytest
from aiohttp import web
from aiohttp.test_utils import TestServer

from baton.engine.simulated import LatencyProfile, SimulatedEngine
from baton.errors import BatonError, ConfigRefused, EndpointUnfit, MeasurementFailed
from baton.plan.preflight import check_secret, check_urls, look

if TYPE_CHECKING:
    from collections.abc import AsyncIterator

FAST = LatencyProfile(tpot_s=0.0)


def engine(role: str, **more: Any) -> SimulatedEngine:
    return SimulatedEngine(role=role, engine_id=role, latency=FAST, **more)  # type: ignore[arg-type]


@pytest.mark.parametrize(
    "url",
    ["", "127.0.0.1:8000", "http://", "ftp://127.0.0.1:1", "http://h:99999", "http://[::1", "x"],
)
def test_what_is_no_address_is_refused(url: str) -> None:
    """Before anybody is asked."""
    with pytest.raises(ConfigRefused, match="no address of an engine"):
        check_urls([url])


@pytest.mark.parametrize(
    "other", ["http://127.0.0.1:8000", "http://127.0.0.1:8000/", "http://localhost:8000"]
)
def test_one_engine_by_two_names_hands_nothing_over(other: str) -> None:
    """What would be measured is no handoff."""
    with pytest.raises(ConfigRefused, match="the same engine"):
        check_urls(["http://127.0.0.1:8000", other])
    check_urls(["http://127.0.0.1:8000", "http://127.0.0.1:8001"])


@pytest.mark.parametrize("secret", ["a\nb", "a\r", "ä", "\0"])
def test_a_secret_that_no_header_takes_is_refused(secret: str) -> None:
    """A file's last line end, as `$(cat secret)` of another shell leaves it."""
    with pytest.raises(ConfigRefused, match="no HTTP header takes"):
        check_secret(secret)
    check_secret("s3cret value")


async def test_a_pair_that_can_be_measured_passes() -> None:
    """Alone, and with a real handoff; nothing is left waiting at the prefill engine."""
    async with engine("prefill", secret="s") as prefill, engine("decode", secret="s") as decode:
        await look([prefill.url], "s")
        await look([prefill.url, decode.url], "s")


async def test_a_secret_is_asked_for_and_a_wrong_one_named() -> None:
    """With the option that cures it; of either engine."""
    async with engine("prefill") as prefill, engine("decode", secret="s") as decode:
        for secret, said in ((None, "wants its engine secret"), ("x", "takes another")):
            with pytest.raises(EndpointUnfit, match=said) as caught:
                await look([prefill.url, decode.url], secret)
            assert caught.value.place == decode.url
            assert "--secret-env" in str(caught.value.cure)


async def test_a_decode_engine_that_is_not_there_is_noticed_at_once() -> None:
    """And not after everything else was measured."""
    async with engine("prefill") as prefill:
        with pytest.raises(EndpointUnfit, match="cannot be reached") as caught:
            await look([prefill.url, "http://127.0.0.1:1"], None)
        assert caught.value.place == "http://127.0.0.1:1"


async def test_engines_of_two_models_make_no_pair() -> None:
    """KV of one is noise to the other."""
    async with engine("prefill", model_id="a") as prefill, engine("decode", model_id="b") as decode:
        with pytest.raises(EndpointUnfit, match="different models: a, b"):
            await look([prefill.url, decode.url], None)


PAGES = {"/v1/models": '{"data": [{"id": "m"}]}', "/version": "{}", "/metrics": ""}
STREAM = 'data: {"choices": [{"text": "a"}]}\n\ndata: [DONE]\n\n'


async def served(pages: dict[str, str], completion: str) -> AsyncIterator[str]:
    async def answer(request: web.Request) -> web.Response:
        if request.path in pages:
            return web.Response(text=pages[request.path])
        if request.path != "/v1/completions":
            return web.Response(status=404, text="<html>")
        if (await request.json()).get("stream"):
            return web.Response(text=completion)
        return web.json_response({"choices": [{"text": "a"}]})

    app = web.Application()
    app.router.add_route("*", "/{path:.*}", answer)
    async with TestServer(app) as server:
        yield str(server.make_url("")).rstrip("/")


@pytest.mark.parametrize(
    ("pages", "stream", "error", "said"),
    [
        ({}, STREAM, EndpointUnfit, "no vLLM engine: /v1/models answers 404"),
        ({**PAGES, "/v1/models": "<html>"}, STREAM, EndpointUnfit, "no vLLM engine"),
        ({**PAGES, "/v1/models": '{"data": []}'}, STREAM, EndpointUnfit, "no vLLM engine"),
        ({"/v1/models": PAGES["/v1/models"]}, STREAM, EndpointUnfit, "/version answers 404"),
        (PAGES, "", MeasurementFailed, "brought no token"),
        (PAGES, 'data: {"error": {}}\n\n', MeasurementFailed, "the stream broke"),
    ],
)
async def test_what_is_no_engine_is_named(
    pages: dict[str, str], stream: str, error: type[BatonError], said: str
) -> None:
    """A web server, an API of another kind, an engine whose streams are empty."""
    async for url in served(pages, stream):
        with pytest.raises(error, match=said):
            await look([url], None)


async def test_an_engine_without_p_d_is_noticed_before_its_prefill_is_measured() -> None:
    """It answers a prompt, and keeps no KV for anybody."""
    async with engine("decode", model_id="m") as decode:
        async for url in served(PAGES, STREAM):
            await look([url], None)
            with pytest.raises(MeasurementFailed, match="hands no KV over"):
                await look([url, decode.url], None)
