"""Simulated engines, a gateway with the console, and real requests under way: something to look at.

    make console && PYTHONPATH=src .venv/bin/python bench/console_stage.py

runs until Ctrl-C and says where the console is; `--pictures docs/console` takes the pictures of the
guide and ends.

Nothing is painted: engines without a model speak vLLM's protocol with times of their own, every
replica keeps its lease as under Ray (`baton.engine.simulated.life`), and a client sends requests
over HTTP, some of which P/D cannot do. The browser test plays on the same stage.
"""

from __future__ import annotations

import argparse
import asyncio
import contextlib
import os
import random
import socket
import sys
import threading
import time
from pathlib import Path
from typing import TYPE_CHECKING, Any, Self

import httpx
import uvicorn

from baton.engine.simulated import SimulatedEngine
from baton.engine.simulated.life import SimulatedLife
from baton.engine.simulated.settings import LatencyProfile
from baton.gateway.app import build_gateway_app
from baton.gateway.directory import LeaseDirectory
from baton.spec.lease import DirectorySnapshot, EngineLease
from baton.spec.schema import BatonBlock, Console, Disaggregate, Engines, Slo

if TYPE_CHECKING:
    from collections.abc import Coroutine, Sequence

    from baton.gateway.app import GatewayApp

HOST = "127.0.0.1"
MODEL = "simulated-8b"
BLOCK = BatonBlock(
    console=Console(enabled=True),
    disaggregate=Disaggregate(mode="always"),
    slo=Slo(ttft_s=0.5, tpot_s=0.05),
)
LATENCY = LatencyProfile(
    prefill_tokens_per_s=9_000, tpot_s=0.012, handoff_fixed_s=0.003, handoff_bytes_per_s=25e9
)
ENGINES = Engines(lease_s=2.5)
SECRET = "the-stage-alone"
WORDS = ("the", "prompt", "of", "a", "request", "that", "nobody", "reads", "and", "has", "length")


class _Leases:
    """The directory, in this process."""

    def __init__(self) -> None:
        self._kept: dict[str, tuple[EngineLease, float]] = {}

    async def renew(self, lease: dict[str, Any], lease_s: float) -> str:
        found = EngineLease.model_validate(lease)
        self._kept[found.replica_id] = (found, time.monotonic() + lease_s)
        return SECRET

    async def leave(self, replica_id: str) -> None:
        self._kept.pop(replica_id, None)

    async def snapshot(self) -> dict[str, Any]:
        return (await self.read()).model_dump()

    async def read(self) -> DirectorySnapshot:
        now = time.monotonic()
        alive = [lease for lease, ends in self._kept.values() if ends > now]
        return DirectorySnapshot(engines=tuple(alive), engine_secret=SECRET)


class _Replica:
    """One engine with its lease."""

    def __init__(self, name: str, role: str, node: str, leases: _Leases, model: str) -> None:
        self.name, self.role = name, role
        self.engine = SimulatedEngine(
            role=role,  # type: ignore[arg-type]
            engine_id=name,
            secret=SECRET + "-own",
            model_id=model,
            latency=LATENCY,
            answer_tokens=120,
            kv_blocks=1024,
        )
        self.life = SimulatedLife(self.engine, leases, ENGINES, replica_id=name, node=node)

    async def start(self) -> None:
        await self.engine.__aenter__()
        await self.life.begin(lambda: socket.create_server((HOST, 0), backlog=1024))


class Stage:
    """Everything, in a thread of its own: a browser's test is not asynchronous.

    Args:
        prefill: Names of prefill engines.
        decode: Names of decode engines.
        block: The gateway's settings.
        model: What the model is called.
        rate: Requests a second that are sent all the time; 0 for none.
    """

    def __init__(
        self,
        *,
        prefill: Sequence[str] = ("prefill-1", "prefill-2"),
        decode: Sequence[str] = ("decode-1", "decode-2"),
        block: BatonBlock = BLOCK,
        model: str = MODEL,
        rate: float = 5.0,
    ) -> None:
        self._block, self._rate = block, rate
        self._leases = _Leases()
        names = [("prefill", name) for name in prefill] + [("decode", name) for name in decode]
        self.replicas = {
            name: _Replica(name, role, f"node-{chr(97 + at % 8)}", self._leases, model)
            for at, (role, name) in enumerate(names)
        }
        self._model = model
        self.key = os.environ.get(block.auth.api_keys_env or "", "").partition(",")[0]
        self.app: GatewayApp
        self._port = 0
        self._server: uvicorn.Server | None = None
        self._serving: asyncio.Task[None] | None = None
        self._loading: asyncio.Task[None] | None = None
        self._loop = asyncio.new_event_loop()
        self._thread = threading.Thread(target=self._loop.run_forever, daemon=True)

    @property
    def url(self) -> str:
        return f"http://{HOST}:{self._port}"

    def __enter__(self) -> Self:
        self._thread.start()
        try:
            self.do(self._start())
        except BaseException:
            self._close()
            raise
        return self

    def __exit__(self, *_: object) -> None:
        try:
            self.do(self._end())
        finally:
            self._close()

    def _close(self) -> None:
        self._loop.call_soon_threadsafe(self._loop.stop)
        self._thread.join(timeout=10)
        self._loop.close()

    def do(self, work: Coroutine[Any, Any, Any], timeout_s: float = 60.0) -> Any:
        """Run something on the stage and wait for it."""
        return asyncio.run_coroutine_threadsafe(work, self._loop).result(timeout_s)

    async def _start(self) -> None:
        await asyncio.gather(*(replica.start() for replica in self.replicas.values()))
        await self._open()
        if self._rate:
            self._loading = asyncio.create_task(self._load())

    async def _end(self) -> None:
        if self._loading is not None:
            self._loading.cancel()
            await asyncio.wait({self._loading}, timeout=5)
        await self._shut()
        # Nothing that runs here is worth a drain.
        await asyncio.gather(*(replica.life._close() for replica in self.replicas.values()))
        for replica in self.replicas.values():
            await replica.engine.__aexit__(None, None, None)
        others = asyncio.all_tasks() - {asyncio.current_task()}
        for task in others:
            task.cancel()
        await asyncio.gather(*others, return_exceptions=True)

    # -- the gateway -------------------------------------------------------------------------------

    async def _open(self) -> None:
        self.app = build_gateway_app(self._block, LeaseDirectory(self._leases.read, interval_s=0.5))
        config = uvicorn.Config(
            self.app, http="httptools", ws="none", lifespan="on", log_config=None,
            access_log=False, timeout_graceful_shutdown=1,
        )  # fmt: skip
        self._server = uvicorn.Server(config)
        self._server.capture_signals = contextlib.nullcontext  # type: ignore[method-assign,assignment]
        listener = socket.create_server((HOST, self._port), backlog=1024)
        self._port = listener.getsockname()[1]
        self._serving = asyncio.create_task(self._server.serve(sockets=[listener]))
        while not self._server.started:  # noqa: ASYNC110  (uvicorn has a flag, and no event)
            await asyncio.sleep(0.01)

    async def _shut(self) -> None:
        if self._server is not None and self._serving is not None:
            self._server.should_exit = True
            await self._serving
            self._server = None

    def lose_gateway(self) -> None:
        """End the gateway; its address answers nobody."""
        self.do(self._shut())

    def bring_gateway_back(self) -> None:
        """Another gateway at the same address, which knows nothing of the first."""
        self.do(self._open())

    def leave(self, *names: str) -> None:
        """Drain these engines and take them out of the directory, as when a pool shrinks."""

        async def ends() -> None:
            await asyncio.gather(*(self.replicas[name].life.end() for name in names))

        self.do(ends())

    def crowd(self, **sizes: int) -> None:
        """So many engines of each role: further leases on the engines that are here."""
        for role, size in sizes.items():
            own = [replica.life.lease for replica in self.replicas.values() if replica.role == role]
            for number in range(len(own), size):
                lease = own[number % len(own)].model_copy(
                    update={"replica_id": f"{role}-{number + 1}", "node": f"node-{number // 4}"}
                )
                self.do(self._leases.renew(lease.model_dump(), 3600.0))

    # -- requests ----------------------------------------------------------------------------------

    async def _load(self) -> None:
        chance = random.Random(1)
        headers = {"authorization": f"Bearer {self.key}"} if self.key else {}
        sent: set[asyncio.Task[None]] = set()
        limits = httpx.Limits(max_connections=200)
        async with httpx.AsyncClient(
            headers=headers, timeout=60, trust_env=False, limits=limits
        ) as client:
            while True:
                task = asyncio.create_task(self._one(client, chance))
                sent.add(task)
                task.add_done_callback(sent.discard)
                await asyncio.sleep(chance.expovariate(self._rate))

    async def _one(self, client: httpx.AsyncClient, chance: random.Random) -> None:
        words = chance.choice((80, 160, 320, 640))
        text = f"{chance.random()} " + " ".join(chance.choices(WORDS, k=words))
        body: dict[str, Any] = {
            "model": self._model,
            "messages": [{"role": "user", "content": text}],
            "max_tokens": chance.choice((32, 96, 192, 256)),
            "stream": chance.random() < 0.9,  # noqa: PLR2004
        }
        if chance.random() < 0.06:  # noqa: PLR2004
            body["n"] = 2  # which P/D cannot do right: on decode alone
        with contextlib.suppress(httpx.HTTPError):
            await client.post(f"{self.url}/v1/chat/completions", json=body)


def _pictures(stage: Stage, folder: Path, seconds: float) -> None:
    """Light and dark, after so many seconds of load and an answer in the chat box."""
    from playwright.sync_api import sync_playwright  # noqa: PLC0415

    folder.mkdir(parents=True, exist_ok=True)
    with sync_playwright() as playwright:
        browser = playwright.chromium.launch(
            executable_path=os.environ.get("BATON_CHROMIUM", "/usr/bin/chromium"),
            args=["--no-sandbox", "--disable-gpu", "--disable-background-networking"],
        )
        pages = {}
        for scheme in ("light", "dark"):
            size = {"width": 1440, "height": 1500}
            pages[scheme] = browser.new_page(viewport=size, color_scheme=scheme)
            pages[scheme].goto(f"{stage.url}/console")
        pages["light"].wait_for_timeout(seconds * 1000)
        for scheme, page in pages.items():
            page.get_by_label("Your message").fill("What is handed over?")
            page.get_by_role("button", name="Send").click()
            page.get_by_text("Done:").wait_for()
            page.wait_for_timeout(1200)
            page.screenshot(path=folder / f"console-{scheme}.png", full_page=True)
        browser.close()


def main(arguments: Sequence[str] | None = None) -> int:
    """Run the stage."""
    parser = argparse.ArgumentParser(description="Simulated engines, a gateway, its console.")
    parser.add_argument("--prefill", type=int, default=2)
    parser.add_argument("--decode", type=int, default=2)
    parser.add_argument("--rate", type=float, default=5.0, help="requests a second")
    parser.add_argument("--pictures", type=Path, help="folder for pictures of the console")
    parser.add_argument("--seconds", type=float, default=75.0, help="of load before a picture")
    asked = parser.parse_args(arguments)

    def names(role: str, count: int) -> list[str]:
        return [f"{role}-{number}" for number in range(1, count + 1)]

    with Stage(
        prefill=names("prefill", asked.prefill),
        decode=names("decode", asked.decode),
        rate=asked.rate,
    ) as stage:
        print(f"console: {stage.url}/console", file=sys.stderr, flush=True)
        if asked.pictures is not None:
            _pictures(stage, asked.pictures, asked.seconds)
            return 0
        with contextlib.suppress(KeyboardInterrupt):
            threading.Event().wait()
    return 0


if __name__ == "__main__":
    sys.exit(main())
