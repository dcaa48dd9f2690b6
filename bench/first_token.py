"""What a first token that leaves from prefill saves, and what it costs.

Simulated engines (real protocol, no model) with a handoff that takes so long, and before them two
gateways, one with `first_token: early` and one with `ordinary`, asked in turn, several rounds: time
to the first token, gap to the second, time to the last. Engines, gateways and caller share one
process, so what the gateways compute is in all numbers. Beside it, in the same run: CPU for each
chunk through the gateway's own code, CPU for the token ids of a prompt, and what could be saved by
choosing decode and opening its connection earlier. Medians; the JSON on stdout goes to
bench/results/first_token.json.

    python bench/first_token.py [ROUNDS] > bench/results/first_token.json
"""

from __future__ import annotations

import asyncio
import contextlib
import json
import statistics
import sys
import time
from typing import TYPE_CHECKING, Any

import aiohttp
import msgspec
import uvicorn
import uvloop

from baton.engine.simulated import LatencyProfile, SimulatedEngine
from baton.gateway.app import build_gateway_app
from baton.gateway.ask import Ask
from baton.gateway.decode import find_error
from baton.gateway.directory import FixedDirectory
from baton.gateway.first_token import plan, read
from baton.gateway.handoff import KVTransferParams
from baton.gateway.request_body import encode_body
from baton.gateway.resumable import means_of
from baton.gateway.routes import COMPLETIONS, lookup
from baton.gateway.sources import Continued, FirstHand, Place
from baton.gateway.transcript import Transcript
from baton.spec.lease import EngineLease
from baton.spec.schema import BatonBlock, Disaggregate

if TYPE_CHECKING:
    from collections.abc import AsyncIterator

HANDOFF_S = (0.005, 0.03, 0.1)
PREFILL_TOKENS_PER_S = 100_000
TPOT_S = 0.008
PROMPT_TOKENS = 1000
ANSWER_TOKENS = 6
CHUNKS = 500
STREAMS = 10
CONNECTIONS = 20


@contextlib.asynccontextmanager
async def gateway(
    how: Any, prefill: SimulatedEngine, decode: SimulatedEngine
) -> AsyncIterator[tuple[Any, str]]:
    """A gateway with this setting, and its address."""
    view = FixedDirectory([prefill.url], [decode.url], interval_s=60.0, asks_block_size=True)
    block = BatonBlock(disaggregate=Disaggregate(mode="always", first_token=how))
    app = build_gateway_app(block, view)
    config = uvicorn.Config(app, port=0, lifespan="on", log_config=None, ws="none")
    config.load()
    server = uvicorn.Server(config)
    server.lifespan = config.lifespan_class(config)
    await server.startup()
    while not (view.decode_engines() and view.prefill_engines()):
        await view._read()
    try:
        yield app, f"http://127.0.0.1:{server.servers[0].sockets[0].getsockname()[1]}"
    finally:
        for listener in server.servers:
            listener.close()
        await server.lifespan.shutdown()
        await app.close()


async def tokens_at(
    session: aiohttp.ClientSession, url: str, path: str, body: dict[str, Any]
) -> tuple[str, list[float]]:
    """The text of a stream, and when each of its tokens came, in milliseconds."""
    text, at = "", []
    started = time.perf_counter()
    async with session.post(url + path, json={**body, "stream": True}) as answer:
        async for line in answer.content:
            if not line.startswith(b"data: {"):
                continue
            for choice in json.loads(line[6:])["choices"]:
                piece = choice["text"] if "text" in choice else choice["delta"].get("content")
                if piece:
                    text += piece
                    at.append(1e3 * (time.perf_counter() - started))
    return text, at


async def measure(handoff_s: float, rounds: int) -> dict[str, Any]:
    """Both settings in turn on one pair of engines."""
    latency = LatencyProfile(
        prefill_tokens_per_s=PREFILL_TOKENS_PER_S, tpot_s=TPOT_S, handoff_fixed_s=handoff_s
    )
    found: dict[str, dict[str, list[float]]] = {}
    routes: list[float] = []
    async with contextlib.AsyncExitStack() as stack:
        enter = stack.enter_async_context
        prefill = await enter(SimulatedEngine(role="prefill", engine_id="p", latency=latency))
        decode = await enter(SimulatedEngine(role="decode", engine_id="d", latency=latency))
        urls, apps = {}, {}
        for how in ("ordinary", "early"):
            apps[how], urls[how] = await enter(gateway(how, prefill, decode))
        session = await enter(aiohttp.ClientSession())
        for number in range(rounds + 1):
            # Letters only: the simulated tokenizer makes a token of each.
            prompt = f"{number:04d}" + "hand the baton over " * (PROMPT_TOKENS // 20)
            for path, asked in (
                ("/v1/completions", {"prompt": prompt}),
                ("/v1/chat/completions", {"messages": [{"role": "user", "content": prompt}]}),
            ):
                body = {"model": "simulated", "temperature": 0, "max_tokens": ANSWER_TOKENS}
                texts = set()
                for how in ("ordinary", "early"):
                    text, at = await tokens_at(session, urls[how], path, {**body, **asked})
                    texts.add(text)
                    if not number:
                        continue  # the first round opens connections
                    if apps[how].timelines.as_list()[-1]["first_token"] == "early: from_prefill":
                        name = f"{path} early"
                    elif how == "ordinary":
                        name = f"{path} ordinary"
                    else:
                        continue
                    numbers = found.setdefault(name, {})
                    numbers.setdefault("ttft_ms", []).append(at[0])
                    numbers.setdefault("gap_to_second_token_ms", []).append(at[1] - at[0])
                    numbers.setdefault("second_token_ms", []).append(at[1])
                    numbers.setdefault("last_token_ms", []).append(at[-1])
                if len(texts) != 1:
                    raise SystemExit(f"error: the texts differ: {texts}")
        for app in apps.values():
            routes += [t["stages"]["route_s"] for t in app.timelines.as_list()]
    return {
        **{
            name: {key: round(statistics.median(v), 2) for key, v in numbers.items()}
            | {"requests": len(numbers["ttft_ms"])}
            for name, numbers in found.items()
        },
        "choosing_both_engines_ms": round(1e3 * statistics.median(routes), 4),
    }


async def connections() -> dict[str, float]:
    """A request over a new connection against one over a kept one."""
    new, kept = [], []
    async with (
        SimulatedEngine(role="decode", engine_id="d") as engine,
        aiohttp.ClientSession() as session,
    ):
        for _ in range(CONNECTIONS):
            async with aiohttp.ClientSession() as fresh:
                started = time.perf_counter()
                await (await fresh.get(engine.url + "/health")).read()
                new.append(1e3 * (time.perf_counter() - started))
            await (await session.get(engine.url + "/health")).read()
            started = time.perf_counter()
            await (await session.get(engine.url + "/health")).read()
            kept.append(1e3 * (time.perf_counter() - started))
    return {
        "new_connection_ms": round(statistics.median(new), 3),
        "kept_connection_ms": round(statistics.median(kept), 3),
    }


class _Chunks:
    """A decode engine's answer that is there already."""

    def __init__(self, chunks: list[bytes]) -> None:
        self.held = chunks[0]
        self._left = iter(chunks[1:])
        self.engine = LEASE

    async def next_chunk(self) -> bytes:
        return next(self._left, b"")

    def close(self) -> None:
        pass


LEASE = EngineLease.model_validate({
    "replica_id": "d", "role": "decode", "url": "http://d", "engine_id": "d", "model_id": "m",
    "max_model_len": 32_768, "block_size": 16, "continues": "chat",
})  # fmt: skip


def chunk(number: int, *, chat: bool, usage: bool) -> bytes:
    """A chunk with a token id, as vLLM 0.29 writes it; the first of a completion has the prompt."""
    kind, name = ("chat.completion.chunk", "chatcmpl") if chat else ("text_completion", "cmpl")
    text = f'"delta":{{"content":" word{number % 97}"}}' if chat else f'"text":" word{number % 97}"'
    more = "" if chat else '"stop_reason":null,"prompt_token_ids":null,'
    if not chat and not number:
        more = more.replace('ids":null', 'ids":[1,2,3]')
    counts = (
        f',"usage":{{"prompt_tokens":1001,"total_tokens":{1002 + number},'
        f'"completion_tokens":{number + 1}}}'
        if usage
        else ""
    )
    return (
        f'data: {{"id":"{name}-4f9faaa1f42d4548801a704f48812c10-d1","object":"{kind}",'
        f'"created":1795996259,"model":"qwen3.5-9b","choices":[{{"index":0,{text},'
        f'"logprobs":null,"finish_reason":null,{more}"token_ids":[{1000 + number}]}}]{counts}}}\n\n'
    ).encode()


async def passed_on(source: Any) -> float:
    """Microseconds of CPU a chunk, as `relay` reads them."""
    started = time.process_time()
    while events := await source.next_events():
        find_error(events)
        events.endswith(b"data: [DONE]\n\n")
    return 1e6 * (time.process_time() - started) / CHUNKS


async def cpu(rounds: int) -> dict[str, float]:
    """CPU a chunk: a stream of one engine, and one that goes on behind a first token."""
    found: dict[str, list[float]] = {}
    for _ in range(rounds):
        for chat in (False, True):
            for usage in (False, True):
                name = ("chat" if chat else "completion") + (" with usage" if usage else "")
                sums = {"ordinary": 0.0, "early": 0.0}
                for _ in range(STREAMS):
                    own = [chunk(n, chat=chat, usage=usage) for n in range(CHUNKS)]
                    text = Transcript(asks_ids=True, shows_ids=False)
                    sums["ordinary"] += await passed_on(FirstHand(_Chunks(own), text))  # type: ignore[arg-type]
                    text = Transcript(asks_ids=True, shows_ids=False)
                    text.feed(chunk(7, chat=chat, usage=usage))
                    text.rewind(1, 6)
                    theirs = [chunk(n, chat=False, usage=usage) for n in range(CHUNKS)]
                    source = Continued(_Chunks(theirs), text, Place(1, 6, "", True), chat=chat)  # type: ignore[arg-type]
                    sums["early"] += await passed_on(source)
                    if len(text.written) != CHUNKS + 1:
                        raise SystemExit("error: the transcript lost something")
                for how, total in sums.items():
                    found.setdefault(f"{name} {how}", []).append(total / STREAMS)
    return {name: round(statistics.median(values), 2) for name, values in found.items()}


def prompt_ids(rounds: int) -> dict[str, float]:
    """CPU for a prompt's token ids: read in prefill's answer, written into decode's request."""
    route = lookup(COMPLETIONS.path)
    if route is None:
        raise SystemExit("error: no such route")
    out = {}
    for tokens in (1000, 8000, 32_000):
        said = {
            "id": "cmpl-1", "created": 1, "model": "m",
            "choices": [{
                "text": "w", "token_ids": [5], "finish_reason": "length",
                "prompt_token_ids": [100_000 + n for n in range(tokens + 1)],
            }],
        }  # fmt: skip
        raw = msgspec.json.encode(said)
        bare = msgspec.json.encode({**said, "choices": [{"text": "w"}]})
        offer = KVTransferParams.model_validate({
            "do_remote_prefill": True, "remote_engine_id": "p", "remote_host": "h",
            "remote_port": 1, "remote_num_tokens": tokens + 1,
            "remote_block_ids": [list(range(-(-(tokens + 1) // 16)))],
        })  # fmt: skip
        body = {"prompt": "some words " * (tokens // 2), "stream": True}
        ask = Ask(
            route[0], "POST", COMPLETIONS.path, body, streamed=True, headers={}, why_alone=None
        )
        planned = plan(ask, means_of(body, route[0], None), keeps_ids=True, mode="auto")
        lease = LEASE.model_copy(update={"max_model_len": 10**6})
        added = []
        for _ in range(rounds * 3):
            started = time.process_time()
            msgspec.json.decode(bare)
            encode_body(body)
            between = time.process_time()
            token = read(planned, msgspec.json.decode(raw), offer, lease, lease)
            if token.rest is None:
                raise SystemExit("error: nothing is left to write")
            encode_body(token.rest)
            added.append(1e3 * (time.process_time() - between - (between - started)))
        out[f"{tokens}_tokens"] = round(statistics.median(added), 3)
    return out


async def main() -> None:
    """Measure and print."""
    rounds = int(sys.argv[1]) if len(sys.argv) > 1 else 7
    out: dict[str, Any] = {
        "rounds": rounds,
        "prompt_tokens": PROMPT_TOKENS,
        "answer_tokens": ANSWER_TOKENS,
        "prefill_tokens_per_s": PREFILL_TOKENS_PER_S,
        "tpot_ms": 1e3 * TPOT_S,
    }
    for handoff_s in HANDOFF_S:
        out[f"handoff_{1e3 * handoff_s:g}_ms"] = await measure(handoff_s, rounds)
    out["cpu_us_per_chunk"] = await cpu(rounds)
    out["cpu_ms_for_prompt_ids"] = prompt_ids(rounds)
    out["connections"] = await connections()
    print(json.dumps(out, indent=1))


if __name__ == "__main__":
    with asyncio.Runner(loop_factory=uvloop.new_event_loop) as runner:  # as the gateway runs
        runner.run(main())
