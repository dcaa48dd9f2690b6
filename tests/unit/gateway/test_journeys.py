"""Whole requests through a running gateway, in front of fake engines."""

from __future__ import annotations

import asyncio
import contextlib
import json
import socket

import pytest

from baton.errors import LegFailed
from baton.gateway.engine_client import EngineClient
from baton.spec.lease import EngineLease
from baton.spec.schema import Admission, BatonBlock, Disaggregate, Recovery
from tests.unit.gateway.fakes import LONG, Behave, stack, until


async def test_a_completion_goes_through_prefill_and_then_decode():
    """Prefill gets one token to make, decode gets prefill's params, KV ends up free."""
    async with stack() as s:
        status, answer, headers = await s.complete(max_tokens=7, temperature=0)
        assert (status, answer["engine"]) == (200, "d0")
        assert headers["x-baton-route"] == "pd"
        (leg,) = s.prefill[0].seen
        assert leg.body["max_tokens"] == 1
        assert leg.body["kv_transfer_params"]["do_remote_decode"] is True
        (decode,) = s.decode[0].seen
        assert decode.body["kv_transfer_params"]["remote_engine_id"] == "p0"
        assert decode.body["max_tokens"] == 7
        assert s.kv_is_free()


async def test_a_streamed_answer_passes_through_unchanged():
    """Byte for byte what the engine wrote."""
    async with stack() as s:
        raw, headers = await s.stream()
        assert headers["content-type"] == "text/event-stream"
        assert [e.split(b'"text": ')[-1][:4] for e in raw.split(b"\n\n")[:5]] == [
            b'"t0 ', b'"t1 ', b'"t2 ', b'"t3 ', b'"t4 ',
        ]  # fmt: skip
        assert raw.endswith(b"data: [DONE]\n\n")


async def test_the_same_request_id_twice_at_once_never_crosses():
    """Legs get ids of their own; both callers get their own id back."""
    async with stack() as s:
        s.prefill[0].always = Behave(delay_s=0.05)
        body = {"prompt": LONG}
        answers = await asyncio.gather(
            *(s.post("/v1/completions", body, x_request_id="same") for _ in range(2))
        )
        assert [a[2]["x-request-id"] for a in answers] == ["same", "same"]
        ids = [x.headers["x-request-id"] for x in (*s.prefill[0].seen, *s.decode[0].seen)]
        assert len(set(ids)) == 4
        assert all(i.startswith("same-") for i in ids)


async def test_a_request_id_that_is_not_sane_is_replaced():
    """A caller cannot write into our logs or the engines' ids."""
    async with stack() as s:
        _, _, headers = await s.post("/v1/completions", {"prompt": LONG}, x_request_id="a b;c")
        assert len(headers["x-request-id"]) == 32


@pytest.mark.parametrize(
    ("behave", "kind"),
    [
        (Behave(status=500), "prefill_server_error"),
        (Behave(drop=True), "prefill_disconnected"),
        (Behave(no_params=True), "prefill_no_params"),
        (Behave(no_blocks=True), "prefill_no_params"),
        (Behave(status=401), "prefill_unauthorized"),
        (Behave(status=503), "prefill_busy"),
        (Behave(delay_s=30), "prefill_timeout"),
    ],
)
async def test_a_prefill_that_fails_means_prefill_on_decode(behave, kind):
    """No error for the caller; the header, the metric and the timeline say it."""
    settings = BatonBlock(recovery=Recovery(prefill_timeout_s=0.1 if behave.delay_s else 60))
    async with stack(settings=settings) as s:
        s.prefill[0].always = behave
        status, answer, headers = await s.complete()
        assert (status, answer["engine"]) == (200, "d0")
        assert headers["x-baton-fallback"] == kind
        assert headers["x-baton-route"] == "decode_only"
        assert "kv_transfer_params" not in s.decode[0].seen[-1].body
        _, metrics = await s.get("/metrics")
        assert f'baton_fallbacks_total{{kind="{kind}"}} 1.0'.encode() in metrics
        (line,) = json.loads((await s.get("/baton/requests"))[1])["requests"]
        assert (line["fallbacks"], line["reason"]) == ([kind], "fallback")
        assert "prefill_s" not in line["stages"]


async def test_a_prefill_that_refuses_is_left_alone_and_the_next_request_avoids_it():
    """One request finds out; the next does not try, and anybody may look."""
    async with stack() as s:
        await s.prefill[0].stop()
        assert (await s.complete())[2]["x-baton-fallback"] == "prefill_refused"
        assert (await s.complete())[2]["x-baton-fallback"] == "no_prefill_engine"
        engines = json.loads((await s.get("/baton/engines"))[1])["engines"]
        assert {e["role"]: e["circuit"] for e in engines} == {"prefill": "open", "decode": "closed"}
        metric = f'baton_engine_circuit{{engine="{s.prefill[0].url}",role="prefill"}} 2.0'
        assert metric in (await s.get("/metrics"))[1].decode()


async def test_an_outage_of_all_prefill_engines_makes_no_storm_of_retries():
    """400 requests at once: each gets its answer from decode, and what was tried in vain is at
    most one leg each, and the budget's 100 and a fifth of a leg for each request on top."""
    limit = BatonBlock(admission=Admission(max_inflight=400, max_queue=0))
    async with stack(prefill=3, settings=limit) as s:
        for engine in s.prefill:
            engine.always = Behave(status=500)
        answers = await asyncio.gather(*(s.complete() for _ in range(400)))
        assert {status for status, _, _ in answers} == {200}
        assert {headers["x-baton-route"] for _, _, headers in answers} == {"decode_only"}
        tried = sum(len(engine.seen) for engine in s.prefill)
        assert tried <= 400 + 100 + 80
        before = tried
        for _ in range(60):  # afterwards only probes try, fewer and fewer
            await s.complete()
        assert sum(len(engine.seen) for engine in s.prefill) - before <= 20


async def test_a_failed_prefill_is_tried_on_another_engine_first():
    """Two prefill engines, one broken: still disaggregated."""
    async with stack(prefill=2) as s:
        s.prefill[0].always = s.prefill[1].always = Behave()
        s.prefill[0].plan.append(Behave(status=500))
        s.prefill[1].plan.append(Behave(status=500))
        s.prefill[1].plan.clear()
        for _ in range(2):
            status, _, headers = await s.complete()
            assert (status, headers["x-baton-route"]) == (200, "pd")
        assert s.kv_is_free()


@pytest.mark.parametrize("status", [400, 404, 422])
async def test_a_client_error_from_prefill_is_the_callers(status):
    """Passed on with its status; nothing is tried again."""
    async with stack(prefill=2) as s:
        for engine in s.prefill:
            engine.always = Behave(status=status)
        code, answer, _ = await s.complete()
        assert code == status
        assert set(answer["error"]) == {"message", "type", "param", "code"}
        assert len(s.prefill[0].seen) + len(s.prefill[1].seen) == 1
        assert s.decode[0].seen == []


async def test_a_prompt_that_is_too_long_gets_openais_code():
    """vLLM says it in words; clients look at the code."""
    async with stack() as s:
        error = {"message": "This model's maximum context length is 9.", "type": "B", "code": 400}
        s.prefill[0].always = Behave(status=400, body={"error": error})
        assert (await s.complete())[1]["error"]["code"] == "context_length_exceeded"


async def test_a_client_error_from_decode_frees_what_prefill_holds():
    """vLLM's own clean-up does not run for what its parser refuses, so the gateway releases."""
    async with stack() as s:
        s.decode[0].plan.append(Behave(status=400))
        assert (await s.complete())[0] == 400
        await until(s.kv_is_free)


@pytest.mark.parametrize("stream", [False, True])
@pytest.mark.parametrize("behave", [Behave(status=500), Behave(drop=True), Behave(status=503)])
async def test_a_decode_that_fails_before_its_first_byte_is_replaced(behave, stream):
    """Another decode engine, with a prefill of its own."""
    async with stack(decode=2) as s:
        for engine in s.decode:
            engine.plan.append(behave)
        first, second = s.decode
        second.plan.clear()
        first.plan = type(first.plan)([behave])
        for _ in range(2):  # whichever is asked first
            if stream:
                raw, headers = await s.stream()
                assert raw.endswith(b"[DONE]\n\n")
            else:
                status, _, headers = await s.complete()
                assert status == 200
            assert headers["x-baton-route"] == "pd"
        assert len(s.prefill[0].seen) == 3
        await until(s.kv_is_free)


@pytest.mark.parametrize(
    "behave",
    [
        Behave(error_first=True),
        Behave(no_answer=True),
        Behave(die_after=0),
        Behave(die_after=0, half_event=True),
    ],
)
@pytest.mark.parametrize("path", ["/v1/completions", "/v1/chat/completions", "/v1/messages"])
async def test_a_stream_that_fails_before_it_says_anything_is_tried_again(behave, path):
    """vLLM reports a failed KV load inside a 200, or not at all: the caller never sees it."""
    async with stack() as s:
        s.decode[0].plan.append(behave)
        raw, headers = await s.stream(path, messages=[{"role": "user", "content": LONG}])
        assert b"t4 " in raw
        assert b"error" not in raw
        assert b"ha" not in raw
        assert headers["x-baton-route"] == "pd"
        await until(s.kv_is_free)


@pytest.mark.parametrize("path", ["/v1/completions", "/v1/chat/completions", "/v1/messages"])
async def test_an_answer_without_tokens_is_an_answer_when_it_says_why_it_ended(path):
    """A model may stop at once."""
    async with stack() as s:
        s.decode[0].tokens = 0
        raw, headers = await s.stream(path, messages=[{"role": "user", "content": LONG}])
        assert b'_reason":"stop"' in raw
        assert headers["x-baton-route"] == "pd"
        assert len(s.decode[0].seen) == 1


async def test_a_connection_that_is_not_made_in_time_is_tried_again(monkeypatch):
    """A network that loses a packet, or a gateway that was stopped for a moment."""
    async with stack() as s:
        (engine,) = s.decode
        send, lost = EngineClient.send, []

        async def lossy(self, to, method, path, **more):
            if to.url == engine.url and path == "/v1/completions" and not lost:
                lost.append(path)
                raise LegFailed("unreachable", to.replica_id)
            return await send(self, to, method, path, **more)

        monkeypatch.setattr(EngineClient, "send", lossy)
        status, _, headers = await s.complete()
        assert lost
        assert (status, headers["x-baton-route"]) == (200, "pd")


async def test_no_connection_in_time_is_told_from_a_refusal(monkeypatch):
    """The queue of the listening socket is full, so that the kernel answers nobody."""
    monkeypatch.setattr("baton.gateway.engine_client.CONNECT_TIMEOUT_S", 0.2)
    client = EngineClient()
    with socket.socket() as listening:
        listening.bind(("127.0.0.1", 0))
        listening.listen(0)
        host, port = listening.getsockname()
        lease = EngineLease(
            replica_id="e", role="decode", url=f"http://{host}:{port}", engine_id="e", model_id="m"
        )
        with contextlib.ExitStack() as waiting:
            for _ in range(4):
                one = waiting.enter_context(socket.socket())
                one.setblocking(False)
                one.connect_ex((host, port))
            with pytest.raises(LegFailed) as failed:
                await client.send(lease, "GET", "/health")
    assert failed.value.failure == "unreachable"
    with pytest.raises(LegFailed) as failed:
        await client.send(lease, "GET", "/health")
    assert failed.value.failure == "refused"
    await client.close()


async def test_when_nothing_works_the_error_is_openai_shaped():
    """502 within the attempts that are allowed; the last one without prefill's help."""
    async with stack() as s:
        s.decode[0].always = Behave(status=500)
        status, answer, _ = await s.complete()
        assert status == 502
        assert answer["error"]["code"] == "engine_failed"
        assert len(s.decode[0].generated) == 3
        assert "kv_transfer_params" not in s.decode[0].generated[-1].body
        await until(s.kv_is_free)


async def test_a_busy_engine_is_a_429_for_the_caller():
    """With Retry-After."""
    async with stack() as s:
        s.decode[0].always = Behave(status=503)
        status, answer, headers = await s.complete()
        assert (status, answer["error"]["code"]) == (429, "rate_limit_exceeded")
        assert int(headers["retry-after"]) > 0


async def test_no_decode_engine_is_a_503_before_any_prefill():
    """Prefill does not compute for nobody."""
    async with stack() as s:
        s.decode[0].healthy = False
        await s.app.directory._read()
        assert (await s.complete())[0] == 503
        assert s.prefill[0].seen == []


@pytest.mark.parametrize("half", [False, True])
async def test_a_stream_that_dies_in_the_middle_ends_with_an_error_event(half):
    """Never in silence, and never with half an event before it."""
    async with stack() as s:
        s.decode[0].always = Behave(die_after=2, half_event=half)
        raw, _ = await s.stream()
        *_, last, nothing = raw.split(b"\n\n")
        assert nothing == b""
        assert json.loads(last.removeprefix(b"data: "))["error"]["code"] == "engine_failed"
        assert b'"ha' not in raw
        assert b"[DONE]" not in raw
        _, metrics = await s.get("/metrics")
        assert b"baton_broken_streams_total 1.0" in metrics


async def test_an_engine_that_reports_its_own_death_in_mid_stream_counts_as_broken():
    """vLLM ends such a stream with an error event and [DONE], as if all were well."""
    async with stack() as s:
        s.decode[0].always = Behave(error_after=2)
        raw, _ = await s.stream()
        *_, tokens, last, _ = raw.split(b"\n\n")
        assert b'"last "' in tokens
        assert json.loads(last.removeprefix(b"data: "))["error"]["code"] == "engine_failed"
        assert b"EngineCore" not in raw
        (line,) = json.loads((await s.get("/baton/requests"))[1])["requests"]
        assert line["outcome"] == "broken"


async def test_a_stream_without_its_last_event_is_not_complete():
    """A body that ends properly is not enough."""
    async with stack(settings=BatonBlock(recovery=Recovery(resume_streams=False))) as s:
        s.decode[0].always = Behave(end_early=True)
        raw, _ = await s.stream()
        assert b'"error"' in raw.split(b"\n\n")[-2]


async def test_a_stream_that_falls_silent_ends_with_an_error_event():
    """Within the time that the settings allow."""
    settings = BatonBlock(recovery=Recovery(stream_idle_timeout_s=0.5, resume_streams=False))
    async with stack(settings=settings) as s:
        s.decode[0].always = Behave(hang_after=2)
        raw, _ = await s.stream()
        assert b"silent" in raw


async def test_a_decode_that_never_answers_is_a_504():
    """Its deadline is the caller's too."""
    settings = BatonBlock(recovery=Recovery(decode_first_byte_timeout_s=0.5))
    async with stack(settings=settings) as s:
        s.decode[0].always = Behave(hang_after=0)
        status, _, _ = await s.post("/v1/completions", {"prompt": LONG, "stream": True})
        assert status == 504
        await until(lambda: s.decode[0].running == 0)


async def test_twenty_of_a_hundred_streams_are_served_and_the_rest_get_429():
    """`max_inflight: 10, max_queue: 10`; none hangs."""
    settings = BatonBlock(admission=Admission(max_inflight=10, max_queue=10))
    async with stack(settings=settings) as s:
        s.decode[0].tokens = 3
        gate = s.prefill[0].gate = asyncio.Event()
        body = {"prompt": LONG, "stream": True}
        asked = [asyncio.create_task(s.post("/v1/completions", body)) for _ in range(100)]
        await until(lambda: sum(task.done() for task in asked) == 80)
        gate.set()
        answers = await asyncio.gather(*asked)
        statuses = [a[0] for a in answers]
        assert (statuses.count(200), statuses.count(429)) == (20, 80)
        assert all("retry-after" in a[2] for a in answers if a[0] == 429)
        assert s.app.admission.inflight == 0


async def test_what_pd_cannot_do_right_goes_to_decode_alone():
    """Whole and unchanged, and the timeline says why."""
    cases = [
        ({"n": 2}, "n"),
        ({"best_of": 2}, "best_of"),
        ({"echo": True}, "echo"),
        ({"prompt": ["a", "b"]}, "several_prompts"),
        ({"prompt": [[1], [2]]}, "several_prompts"),
        ({"prompt_logprobs": 0}, "prompt_logprobs"),
        ({"use_beam_search": True}, "beam_search"),
        ({"truncate_prompt_tokens": -1}, "truncation"),
    ]
    async with stack() as s:
        for extra, reason in cases:
            status, _, headers = await s.complete(**extra)
            assert (status, headers["x-baton-route"]) == (200, "decode_only")
            assert s.decode[0].seen[-1].body == {"prompt": LONG, **extra}
            lines = json.loads((await s.get("/baton/requests"))[1])["requests"]
            assert lines[-1]["reason"] == reason
        assert s.prefill[0].seen == []


async def test_routes_that_generate_nothing_go_to_decode():
    """As they are."""
    async with stack() as s:
        for route in ("/v1/embeddings", "/tokenize", "/v1/rerank"):
            status, raw, headers = await s.post(route, {"input": "x"})
            assert (status, json.loads(raw)["path"]) == (200, route)
            assert headers["x-baton-route"] == "decode_only"


async def test_mode_never_leaves_prefill_on_decode_and_the_header_overrides_it():
    """`disaggregate.mode: never`, and a caller that wants to see P/D."""
    settings = BatonBlock(disaggregate=Disaggregate(mode="never"))
    async with stack(settings=settings) as s:
        assert (await s.complete())[2]["x-baton-route"] == "decode_only"
        body = {"prompt": LONG}
        _, _, headers = await s.post("/v1/completions", body, x_baton_disaggregate="always")
        assert headers["x-baton-route"] == "pd"


async def test_a_short_prompt_is_not_handed_over_unless_asked():
    """A prefill leg would cost more than it saves."""
    async with stack() as s:
        assert (await s.complete(prompt="hi"))[2]["x-baton-route"] == "decode_only"
        body = {"prompt": "hi"}
        _, _, headers = await s.post("/v1/completions", body, x_baton_disaggregate="always")
        assert headers["x-baton-route"] == "pd"


async def test_timing_is_a_header_when_not_streamed():
    """The stages under their own names; the legs' borders that HTTP does not show are absent."""
    async with stack() as s:
        _, _, headers = await s.post("/v1/completions", {"prompt": LONG}, x_baton_timing="1")
        line = json.loads(headers["x-baton-timing"])
        assert list(line["stages"]) == ["admit_s", "route_s", "prefill_s", "answer_s"]
        assert headers["x-baton-prefill-engine"] == s.prefill[0].url
        assert headers["x-baton-decode-engine"] == s.decode[0].url


@pytest.mark.parametrize("split", [0, 1, 3, 7])
async def test_timing_is_a_comment_before_the_last_event_however_the_bytes_are_split(split):
    """`: baton-timing {…}`, then `data: [DONE]`; the rest is untouched."""
    async with stack() as s:
        plain, _ = await s.stream()
        s.decode[0].always = Behave(split=split)
        body = {"prompt": LONG, "stream": True}
        _, raw, _ = await s.post("/v1/completions", body, x_baton_timing="1")
        comment, last = raw.split(b"\n\n")[-3:-1]
        assert last == b"data: [DONE]"
        line = json.loads(comment.removeprefix(b": baton-timing "))
        assert list(line["stages"]) == [
            "admit_s", "route_s", "prefill_s", "handoff_s", "first_token_s", "decode_s",
        ]  # fmt: skip
        assert raw.replace(comment + b"\n\n", b"") == plain


async def test_decode_alone_has_no_stage_called_handoff():
    """Prefill on decode has a name of its own."""
    async with stack() as s:
        body = {"prompt": LONG, "stream": True, "n": 2}
        _, raw, _ = await s.post("/v1/completions", body, x_baton_timing="1")
        line = json.loads(raw.split(b"\n\n")[-3].removeprefix(b": baton-timing "))
        assert list(line["stages"]) == [
            "admit_s", "route_s", "local_prefill_s", "first_token_s", "decode_s",
        ]  # fmt: skip


async def test_engines_get_the_secret_and_none_of_the_callers_credentials():
    """Nor anything else that steers an engine."""
    async with stack(engine_secret="s3") as s:
        status, _, _ = await s.post(
            "/v1/completions",
            {"prompt": LONG},
            authorization="Bearer k",
            cookie="a=b",
            x_data_parallel_rank="1",
            traceparent="00-1",
        )
        assert status == 200
        for leg in (s.prefill[0].seen[0], s.decode[0].seen[0]):
            assert leg.headers["x-baton-engine-secret"] == "s3"
            assert leg.headers["traceparent"] == "00-1"
            assert not {"authorization", "x-data-parallel-rank", "cookie"} & set(leg.headers)


async def test_a_response_is_found_again_on_the_engine_that_made_it():
    """The engine is in the id; any gateway can read it there."""
    async with stack(decode=3) as s:
        await s.post("/v1/responses", {"input": LONG, "background": True, "store": True})
        (made_by,) = [d for d in s.decode if d.seen]
        rid = made_by.seen[0].body["request_id"]
        for _ in range(3):
            assert (await s.get(f"/v1/responses/{rid}"))[0] == 200
            await s.post("/v1/responses", {"input": "and?", "previous_response_id": rid})
        assert len(made_by.seen) == 7


async def test_responses_and_messages_are_disaggregated():
    """Each with its own token limit on the prefill leg."""
    async with stack() as s:
        for path, body, limit in (
            ("/v1/responses", {"input": LONG}, "max_output_tokens"),
            ("/v1/messages", {"messages": [{"role": "user", "content": LONG}]}, "max_tokens"),
        ):
            status, _, headers = await s.post(path, {**body, limit: 50})
            assert (status, headers["x-baton-route"]) == (200, "pd")
            assert s.prefill[0].seen[-1].body[limit] == 1
            assert s.decode[0].seen[-1].body[limit] == 50


@pytest.mark.parametrize("end_early", [False, True])
async def test_a_messages_stream_ends_whole_or_with_an_anthropic_error(end_early):
    """Its own last event, its own kind of error."""
    async with stack() as s:
        s.decode[0].always = Behave(end_early=end_early)
        body = {"messages": [{"role": "user", "content": LONG}], "stream": True}
        _, raw, _ = await s.post("/v1/messages", body)
        last = raw.split(b"\n\n")[-2]
        assert last.startswith(b"event: error\ndata: {" if end_early else b"event: message_stop\n")
