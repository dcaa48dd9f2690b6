"""What callers send wrong, where the app is mounted, and what the gateway answers itself."""

from __future__ import annotations

import asyncio
import json

import pytest

from baton.errors import ConfigRefused
from baton.gateway.app import build_gateway_app
from baton.gateway.directory import FixedDirectory
from baton.gateway.routes import TABLE
from baton.spec.schema import Admission, Auth, BatonBlock
from tests.unit.gateway.fakes import LONG, Behave, stack

DEEP = b'{"a":' * 5000 + b"1" + b"}" * 5000


async def _raw(s, raw, path="/v1/completions", **headers):
    names = {"content-type": "application/json", **headers}
    async with s.session.post(s.url + path, data=raw, headers=names) as r:
        return r.status, json.loads(await r.read())


def _is_openai(answer):
    return set(answer["error"]) == {"message", "type", "param", "code"}


WRONG = (
    [b"", b"{", b"[]", b'"x"', b'{"a": NaN}', b'{"a": Infinity}', b'{"a": "\\ud800"}', b"\xff",
     DEEP, b'{"a":' * 101 + b"1" + b"}" * 101, b'{"stream": "true"}', b'{"model": 3}']
)  # fmt: skip


async def test_a_body_that_is_wrong_is_a_400_and_no_engine_sees_it():
    """OpenAI-shaped, at once; the next request is served."""
    async with stack() as s:
        for raw in WRONG:
            status, answer = await _raw(s, raw)
            assert status == 400
            assert _is_openai(answer)
        assert s.prefill[0].seen == s.decode[0].seen == []
        assert (await s.complete())[0] == 200


async def test_kv_transfer_params_from_a_caller_are_a_400_on_every_route_at_any_depth():
    """They name a host to read memory from."""
    bodies = (
        b'{"kv_transfer_params": {}}',
        b'{"kv_transfer_params": null}',
        b'{"kv_transfer_par\\u0061ms": {}}',
        b'{"messages": [{"content": [{"x": {"kv_transfer_params": 1}}]}]}',
        b'{"vllm_xargs": {"ec_transfer_params": 1}}',
    )
    async with stack() as s:
        for route in TABLE:
            if route.kind not in {"pd", "decode_only"} or "POST" not in route.methods:
                continue
            for body in bodies:
                status, answer = await _raw(s, body, route.path.replace("{id}", "resp_1"))
                assert status == 400
                assert answer["error"]["param"] in {"kv_transfer_params", "ec_transfer_params"}
        assert s.decode[0].seen == s.prefill[0].seen == []


async def test_the_words_kv_transfer_params_in_a_prompt_are_only_words():
    """Keys are refused, not text."""
    async with stack() as s:
        assert (await s.complete(prompt=LONG + "kv_transfer_params \ud83d\ude00"))[0] == 200


@pytest.mark.parametrize("chunked", [False, True])
async def test_a_body_over_the_limit_is_a_413(chunked):
    """By its length, or as it comes in; the connection stays usable."""
    settings = BatonBlock(admission=Admission(max_body_bytes=2048))
    async with stack(settings=settings) as s:

        async def pieces():
            for _ in range(10):
                yield b"x" * 1000

        status, answer = await _raw(s, pieces() if chunked else b"x" * 10_000)
        assert (status, answer["error"]["code"]) == (413, "request_too_large")
        assert (await s.complete())[0] == 200


@pytest.mark.parametrize("chunked", [False, True])
async def test_fifty_megabytes_are_a_413_that_the_caller_can_read_and_others_are_unharmed(chunked):
    """He hears of it although he has not sent all of it; nothing of it is kept."""
    async with stack() as s:

        async def pieces():
            for _ in range(50):
                yield b" " * 1_000_000

        huge = asyncio.create_task(_raw(s, pieces() if chunked else b" " * 50_000_000))
        answers = await asyncio.gather(*(s.complete() for _ in range(5)))
        assert [a[0] for a in answers] == [200] * 5
        status, answer = await huge
        assert (status, answer["error"]["code"]) == (413, "request_too_large")
        assert s.app._bodies.held == 0


@pytest.mark.parametrize("headers", [{"content-encoding": "gzip"}, {"content-type": "text/plain"}])
async def test_a_body_in_another_form_is_a_415(headers):
    """Nothing is unpacked, and no browser form is read."""
    async with stack() as s:
        status, answer = await _raw(s, b"{}", **headers)
        assert status == 415
        assert _is_openai(answer)


async def test_an_unknown_model_is_a_404_before_any_engine_is_asked():
    """`error` has all four fields."""
    async with stack() as s:
        status, answer, _ = await s.complete(model="nope")
        assert (status, answer["error"]["code"]) == (404, "model_not_found")
        assert answer["error"]["param"] == "model"
        assert s.prefill[0].seen == []
        assert (await s.complete(model="m"))[0] == 200


async def test_what_is_not_served_is_a_404():
    """An engine's controls and anything unknown, whatever the method."""
    hidden = [r.path for r in TABLE if r.kind == "never"]
    async with stack() as s:
        for path in (*hidden, "/", "/v2", "/v1", "/v1/", "//v1/models", "/v1/responses/a/b"):
            for method in ("GET", "POST"):
                async with s.session.request(method, s.url + path) as r:
                    assert r.status == 404
                    assert _is_openai(await r.json())
        assert s.decode[0].seen == []


async def test_a_wrong_method_is_a_405_that_names_the_right_one():
    """OpenAI-shaped."""
    async with stack() as s:
        async with s.session.get(s.url + "/v1/completions") as r:
            assert (r.status, r.headers["allow"]) == (405, "POST")
            assert _is_openai(await r.json())
        async with s.session.delete(s.url + "/v1/models") as r:
            assert r.status == 405


@pytest.mark.parametrize(
    ("prefix", "good", "bad"),
    [
        ("/", "/v1/completions", "/qwen/v1/completions"),
        ("/qwen", "/qwen/v1/completions", "/v1/completions"),
        ("/v1", "/v1/completions", "/v1/v1/completions"),
        ("/a/v1", "/a/v1/completions", "/a/v1/v1/completions"),
    ],
)
async def test_the_app_serves_under_its_prefix_and_v1_never_doubles(prefix, good, bad):
    """A prefix that ends in /v1 stands for the route's own /v1."""
    base = good.removesuffix("/completions")
    health = "/health" if prefix == "/" else f"{prefix}/health"
    async with stack(route_prefix=prefix) as s:
        assert (await s.post(good, {"prompt": LONG}))[0] == 200
        assert (await s.post(bad, {"prompt": LONG}))[0] == 404
        assert (await s.get(f"{base}/models"))[0] == 200
        assert (await s.get(f"{base}/models/m"))[0] == 200
        assert (await s.get(health))[0] == 200
        assert s.decode[0].seen[0].path == "/v1/completions"


async def test_the_app_also_serves_when_the_server_sets_root_path():
    """Servers disagree on whether the path still holds it."""
    async with stack(route_prefix="/qwen", root_path="/qwen") as s:
        # uvicorn puts root_path before the path it was asked for.
        assert (await s.post("/v1/completions", {"prompt": LONG}))[0] == 200


async def test_the_app_starts_without_lifespan_events():
    """With its first request."""
    async with stack(lifespan="off") as s:
        answers = await asyncio.gather(*(s.complete() for _ in range(5)))
        assert [a[0] for a in answers] == [200] * 5


async def test_ready_says_what_is_missing():
    """503 until a pair could serve; later a lost prefill engine costs latency and no more."""
    async with stack() as s:
        s.prefill[0].healthy = False
        await s.app.directory._read()
        status, raw = await s.get("/ready")
        assert status == 503
        assert json.loads(raw)["missing"] == ["no prefill engine is ready"]
        s.prefill[0].healthy = True
        await s.app.directory._read()
        assert (await s.get("/ready"))[0] == 200
        s.prefill[0].healthy = False
        await s.app.directory._read()
        status, raw = await s.get("/ready")
        assert (status, json.loads(raw)["status"]) == (200, "degraded")
        assert json.loads(raw)["missing"] == ["no prefill engine is ready"]
        s.decode[0].healthy = False
        await s.app.directory._read()
        assert (await s.get("/ready"))[0] == 503
        assert (await s.get("/health"))[0] == 200


async def test_models_are_those_of_the_deployment():
    """List and single card; an unknown id is a 404."""
    async with stack() as s:
        listed = json.loads((await s.get("/v1/models"))[1])
        assert [(c["id"], c["max_model_len"]) for c in listed["data"]] == [("m", 1000)]
        assert (await s.get("/v1/models/m"))[0] == 200
        assert (await s.get("/v1/models/no/such"))[0] == 404


async def test_engines_are_shown_without_their_secret():
    """What `baton status` reads."""
    async with stack(engine_secret="s3cret-value") as s:
        status, raw = await s.get("/baton/engines")
        assert status == 200
        assert b"s3cret" not in raw
        assert {e["role"] for e in json.loads(raw)["engines"]} == {"prefill", "decode"}


async def test_without_a_key_only_health_and_ready_answer(monkeypatch):
    """401 everywhere else, by bearer or x-api-key, and no engine is asked."""
    monkeypatch.setenv("TEST_KEYS", "ann:k-1, k-2")
    settings = BatonBlock(auth=Auth(api_keys_env="TEST_KEYS"))
    async with stack(settings=settings) as s:
        body = {"prompt": LONG}
        for headers in ({}, {"authorization": "Bearer nope"}, {"authorization": "k-1"}):
            status, raw, answer = await s.post("/v1/completions", body, **headers)
            assert (status, json.loads(raw)["error"]["code"]) == (401, "invalid_api_key")
            assert answer["www-authenticate"] == "Bearer"
        for path in ("/v1/models", "/metrics", "/baton/requests", "/baton/engines"):
            assert (await s.get(path))[0] == 401
        assert (await s.get("/health"))[0] == (await s.get("/ready"))[0] == 200
        assert s.decode[0].seen == []
        for headers in ({"authorization": "Bearer k-1"}, {"x_api_key": "k-2"}):
            assert (await s.post("/v1/completions", body, **headers))[0] == 200


async def test_anthropics_clients_find_the_error_where_they_look():
    """`type: error` beside the error."""
    async with stack() as s:
        status, raw, _ = await s.post("/v1/messages", {"model": "nope"})
        assert (status, json.loads(raw)["type"]) == (404, "error")


async def test_an_engine_error_that_is_not_openai_shaped_is_put_into_shape():
    """FastAPI says `detail`."""
    async with stack() as s:
        s.decode[0].always = Behave(status=404, body={"detail": "Not Found"})
        status, raw, _ = await s.post("/v1/embeddings", {"input": "x"})
        assert status == 404
        assert _is_openai(json.loads(raw))


async def test_an_unknown_disaggregate_header_is_a_400():
    """Never silently something else."""
    async with stack() as s:
        for value in ("sometimes", "", "ALWAYS"):
            status, _, _ = await s.post("/v1/completions", {}, x_baton_disaggregate=value)
            assert status == 400


async def test_a_fault_of_ours_is_an_openai_shaped_500(monkeypatch):
    """And the request's place is given back."""
    async with stack() as s:
        monkeypatch.setattr(s.app.router, "pick", lambda *_: 1 / 0)
        status, answer, _ = await s.complete()
        assert status == 500
        assert _is_openai(answer)
        assert s.app.admission.inflight == 0


def test_keys_that_are_not_there_are_refused_at_start(monkeypatch):
    """A gateway that should ask for keys never starts without."""
    monkeypatch.delenv("NO_SUCH_KEYS", raising=False)
    settings = BatonBlock(auth=Auth(api_keys_env="NO_SUCH_KEYS"))
    with pytest.raises(ConfigRefused, match="NO_SUCH_KEYS"):
        build_gateway_app(settings, FixedDirectory([], ["http://d:1"]))


async def test_a_server_that_cannot_send_any_more_means_a_hang_up():
    """Some say it with an OSError from `send` instead of a message."""
    async with stack() as s:
        sent = []

        async def receive():
            if not sent:
                sent.append("asked")
                return {"type": "http.request", "body": json.dumps({"prompt": LONG}).encode()}
            await asyncio.sleep(3600)
            return None

        async def send(_):
            raise BrokenPipeError

        scope = {"type": "http", "method": "POST", "path": "/v1/completions", "headers": []}
        await s.app(scope, receive, send)
        (line,) = s.app.timelines.as_list()
        assert line["outcome"] == "hangup"
        assert s.app.admission.inflight == 0
        assert s.kv_is_free()
