"""Which answers are believed: prefill's lease on the KV they were made from must have lived."""

from __future__ import annotations

import asyncio
import contextlib
import json
import re
from typing import Any

import aiohttp
import httpx
import pytest
from aiohttp import web

from baton.engine.simulated import SimulatedEngine
from baton.errors import LegFailed
from baton.gateway import lease_guard
from baton.gateway.app import build_gateway_app
from baton.gateway.directory import FixedDirectory
from baton.gateway.handoff import KVTransferParams
from baton.gateway.lease_guard import LeaseGuard, engines_guard, parse_reading
from baton.spec.lease import EngineLease, TransferEvidence
from baton.spec.schema import BatonBlock, Recovery
from tests.unit.gateway.fakes import until

LEASE_S = 30.0
SAFE_S = 25.0  # a sixth less, five seconds at most


def page(expired, process=1.5):
    return (
        f"# TYPE vllm:nixl_num_kv_expired_reqs counter\n"
        f'vllm:nixl_num_kv_expired_reqs_total{{engine="0",model_name="m"}} {expired}\n'
        f"process_start_time_seconds {process}\n"
    ).encode()


class Prefill:
    """An `EngineClient` whose engine answers with these pages, one after the other."""

    def __init__(self, *pages: bytes | None) -> None:
        self.pages = list(pages)
        self.asked = 0

    async def fetch(self, engine: EngineLease, *_: Any, **__: Any) -> tuple[int, bytes]:
        self.asked += 1
        found = self.pages.pop(0)
        if found is None:
            raise LegFailed("refused", engine.replica_id)
        return 200, found


class Case:
    """A guard, a clock that the test moves, and one offer."""

    def __init__(self, *pages: bytes | None, says_s: float = 0.0) -> None:
        self.now = 1000.0
        self.prefill = Prefill(*pages)
        self.guard = LeaseGuard(self.prefill, lambda _: {}, LEASE_S, lambda: self.now)
        self.engine = EngineLease(
            replica_id="p", role="prefill", url="http://x:1", engine_id="p", model_id="m",
            kv_lease_s=says_s,
        )  # fmt: skip
        self.watch = self.guard.begin(self.engine)

    async def offered(self) -> Case:
        leg = asyncio.ensure_future(asyncio.sleep(0))
        await leg
        self.watch.offered(leg)
        return self

    async def read_at(self, seconds: float) -> None:
        """The early reading, as its timer would begin it."""
        self.now += seconds
        self.watch._read_once()
        await self.watch._reading


@pytest.fixture(autouse=True)
def nothing_settles(monkeypatch):
    monkeypatch.setattr(lease_guard, "SETTLES_S", 0.0)


async def test_an_answer_in_time_is_believed_without_asking():
    """The usual case costs nothing."""
    case = await Case().offered()
    case.now += SAFE_S - 0.1
    assert await case.watch.trustworthy()
    assert case.prefill.asked == 0
    case.watch.close()


@pytest.mark.parametrize(
    ("early", "late", "believed"),
    [
        (page(3.0), page(3.0), True),
        (page(3.0), page(4.0), False),
        (page(0.0), page(0.0, process=9.9), False),
        (page(3.0), None, False),
        (None, page(3.0), False),
        (b"# another engine\n", b"# another engine\n", False),
    ],
    ids=["nothing expired", "one expired", "prefill was restarted", "prefill is gone",
         "not readable early", "no such counter"],
)  # fmt: skip
async def test_a_late_answer_is_believed_only_when_nothing_expired_meanwhile(early, late, believed):
    """Heartbeats may have kept the lease alive; what is not known is no pass."""
    case = await Case(early, late).offered()
    await case.read_at(LEASE_S / 2)
    case.now += LEASE_S
    assert await case.watch.trustworthy() is believed


async def test_a_late_answer_without_an_early_reading_is_not_believed():
    """The first reading must be from before the lease could end."""
    case = await Case().offered()
    case.now += LEASE_S
    assert not await case.watch.trustworthy()
    case.watch.close()


async def test_an_early_reading_that_came_late_counts_for_nothing():
    """It may have been made when the lease had ended already."""
    case = await Case(page(4.0), page(4.0)).offered()
    await case.read_at(SAFE_S)
    assert not await case.watch.trustworthy()


async def test_an_offer_that_is_too_old_is_not_sent():
    """Older than the lease less its margin."""
    case = await Case().offered()
    case.now += SAFE_S - 0.1
    case.watch.refuse_late_offer()
    case.now += 0.2
    with pytest.raises(LegFailed) as failed:
        case.watch.refuse_late_offer()
    assert failed.value.failure == "stale_kv"
    case.watch.close()


async def test_a_prefill_that_took_long_makes_no_old_offer():
    """While the event loop sees that there is no answer, the offer is not born."""
    case = Case()
    for _ in range(20):
        case.now += 2.5
        case.watch._timer.cancel()
        case.watch._no_answer_yet()
    await case.offered()
    assert not case.watch.late()
    case.watch.close()


async def test_a_gateway_that_was_frozen_knows_that_its_offer_is_old():
    """The answer may have lain in the socket all the while: birth is the last look, not the first
    sight."""
    case = Case()
    case.now += 28
    await case.offered()
    assert case.watch.late()
    case.watch.close()


async def test_the_engines_own_word_on_its_lease_counts_more_than_the_setting():
    """A replica says what it was started with."""
    case = await Case(says_s=6.0).offered()
    case.now += 5.5
    assert case.watch.late()
    case.watch.close()


async def test_an_answer_that_is_not_believed_is_closed():
    """Its engine must not go on writing for nobody."""
    case = await Case().offered()
    case.now += LEASE_S
    closed: list[bool] = []
    with pytest.raises(LegFailed):
        await case.watch.refuse_late_answer(lambda: closed.append(True))
    assert closed == [True]


async def test_no_reading_is_begun_for_a_leg_that_failed():
    """Nothing was offered."""
    case = Case()

    async def fail():
        raise LegFailed("refused", "p")

    leg = asyncio.ensure_future(fail())
    await asyncio.wait({leg})
    case.watch.offered(leg)
    assert case.watch._timer.cancelled()


@pytest.mark.parametrize(
    ("ends_at", "checks", "enough"),
    [(12.5, True, True), (12.5, False, False), (None, True, False)],
)
def test_engines_that_check_the_lease_themselves_are_believed(ends_at, checks, enough):
    """Prefill must have said when it ends, and decode that it looks."""
    params = KVTransferParams.model_validate({
        "do_remote_prefill": True, "remote_engine_id": "p", "remote_block_ids": [[1]],
        "remote_host": "x", "remote_port": 1, "remote_blocks_expiry_time": ends_at,
    })  # fmt: skip
    decode = EngineLease(
        replica_id="d", role="decode", url="http://x:1", engine_id="d", model_id="m",
        evidence=TransferEvidence(checks_lease=checks),
    )  # fmt: skip
    assert engines_guard(params, decode) is enough


def test_the_counters_of_all_cores_of_an_engine_are_added_up():
    """Data parallelism: one page, several engines."""
    text = b"".join(
        b'vllm:nixl_num_kv_expired_reqs_total{engine="%d"} %d.0\n' % (n, n) for n in range(4)
    )
    assert parse_reading(text) == (6.0, ())
    assert parse_reading(b"vllm:nixl_num_kv_expired_reqs_total nonsense\n") is None


# -- with engines that have leases -----------------------------------------------------------------


class SlowWay:
    """Stands before a decode engine and hands on what comes, the first handoffs late."""

    def __init__(self, target: str) -> None:
        self.target = target
        self.hold: asyncio.Event | None = None
        self.held = asyncio.Event()
        self.salts: list[str | None] = []

    async def handle(self, request: web.Request) -> web.Response:
        raw = await request.read()
        if request.path == "/v1/completions":
            self.salts.append(json.loads(raw).get("cache_salt"))
        if self.hold is not None and b"remote_block_ids" in raw:
            hold, self.hold = self.hold, None
            self.held.set()
            await hold.wait()
        async with (
            aiohttp.ClientSession() as session,
            session.request(
                request.method,
                self.target + request.path,
                data=raw,
                headers={"content-type": "application/json"},
            ) as answer,
        ):
            return web.Response(
                status=answer.status,
                body=await answer.read(),
                headers={"content-type": answer.headers.get("content-type", "text/plain")},
            )


@contextlib.asynccontextmanager
async def way(kv_lease_s: float) -> Any:
    """A gateway, simulated engines with a short lease, and a slow way to decode."""
    async with contextlib.AsyncExitStack() as stack:
        prefill = await stack.enter_async_context(
            SimulatedEngine(role="prefill", kv_lease_s=0.6, kv_blocks=64, max_model_len=900)
        )
        decode = await stack.enter_async_context(SimulatedEngine(role="decode", kv_lease_s=0.6))
        slow = SlowWay(decode.url)
        server = web.Application()
        server.router.add_route("*", "/{tail:.*}", slow.handle)
        runner = web.AppRunner(server)
        await runner.setup()
        stack.push_async_callback(runner.cleanup)
        await web.TCPSite(runner, "127.0.0.1", 0).start()
        url = f"http://127.0.0.1:{runner.addresses[0][1]}"
        app = build_gateway_app(
            BatonBlock(recovery=Recovery(kv_lease_s=kv_lease_s)),
            FixedDirectory([prefill.url], [url], interval_s=60),
        )
        stack.push_async_callback(app.close)
        http = await stack.enter_async_context(
            httpx.AsyncClient(transport=httpx.ASGITransport(app=app), base_url="http://g")
        )
        direct = await stack.enter_async_context(httpx.AsyncClient())
        yield slow, http, direct, prefill, decode


PROMPT = "user: tell me of the river and of the town behind it, and take your time\nassistant:"


def asked(*, stream: bool, prompt: str = PROMPT) -> dict[str, Any]:
    return {
        "model": "simulated", "prompt": prompt, "max_tokens": 30, "temperature": 0,
        "stream": stream,
    }  # fmt: skip


def text_of(answer: httpx.Response, *, stream: bool) -> str:
    assert answer.status_code == 200, answer.text
    if not stream:
        return answer.json()["choices"][0]["text"]
    lines = [line[6:] for line in answer.text.splitlines() if line.startswith("data: {")]
    return "".join(c["text"] for line in lines for c in json.loads(line)["choices"])


async def late_answer(kv_lease_s: float, *, stream: bool) -> tuple[str, str, str]:
    """What the caller gets when decode reads long after the lease; the right text; the metrics."""
    async with way(kv_lease_s) as (slow, http, direct, prefill, decode):
        right = await direct.post(f"{decode.url}/v1/completions", json=asked(stream=False))
        hold = slow.hold = asyncio.Event()
        headers = {"x-baton-disaggregate": "always"}
        work = asyncio.create_task(
            http.post("/v1/completions", json=asked(stream=stream), headers=headers, timeout=60)
        )
        async with asyncio.timeout(30):
            await slow.held.wait()
        await until(lambda: prefill.core.pool.expired_requests > 0)
        for n in range(12):  # others write over the blocks
            body = asked(stream=False, prompt=f"{n} of other things " * 25)
            await direct.post(f"{prefill.url}/v1/completions", json={**body, "max_tokens": 1})
        hold.set()
        answer = await work
        metrics = (await http.get("/metrics")).text
        return text_of(answer, stream=stream), text_of(right, stream=False), metrics


@pytest.mark.parametrize("stream", [False, True])
async def test_a_handoff_that_was_read_too_late_is_done_again(stream):
    """The caller gets the right text, and the metrics say why it took longer."""
    text, right, metrics = await late_answer(0.6, stream=stream)
    assert text == right
    assert re.search(r'baton_retries_total\{kind="stale_kv",leg="decode"\} [1-9]', metrics)


async def test_what_a_late_read_left_in_decodes_cache_is_never_found_again() -> None:
    """The next try, and all that come later, have a salt that the late one had not."""
    async with way(0.6) as (slow, http, _, prefill, _):
        hold = slow.hold = asyncio.Event()
        headers = {"x-baton-disaggregate": "always"}
        body = asked(stream=False) | {"cache_salt": "mine"}
        work = asyncio.create_task(
            http.post("/v1/completions", json=body, headers=headers, timeout=60)
        )
        async with asyncio.timeout(30):
            await slow.held.wait()
        await until(lambda: prefill.core.pool.expired_requests > 0)
        hold.set()
        assert (await work).status_code == 200
        await http.post("/v1/completions", json=asked(stream=True), headers=headers, timeout=60)
    late, again, other = [salt for salt in slow.salts if salt != ""][-3:]
    assert late == "mine"
    assert again is not None
    assert again.startswith("mine")
    assert again == f"mine{other}"


async def test_without_the_guard_the_same_caller_gets_other_text():
    """So that the test above can fail: a guard that believes in a longer lease lets it through."""
    text, right, _ = await late_answer(1000.0, stream=False)
    assert text != right
