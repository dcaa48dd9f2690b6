"""A Ray head of its own with simulated engines, load on it, and what was seen meanwhile."""

from __future__ import annotations

import concurrent.futures
import contextlib
import os
import shutil
import threading
import time
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Any, Self

import httpx

from baton.deploy import serve_app
from baton.deploy.processes import free_port
from baton.deploy.ray_head import RayHead, client_environment, start_head

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

IMPORT_PATH = "baton.serve.simulated:build_simulated_app"
APP = "sim"
SRC = Path(__file__).parents[2] / "src"


def config(port: int, *, prefill: dict[str, Any], decode: dict[str, Any], **baton: Any) -> Any:
    """A Serve config; `prefill` and `decode` as `build_simulated_app` takes them."""
    return {
        "http_options": {"host": "127.0.0.1", "port": port},
        "applications": [
            {
                "name": APP,
                "import_path": IMPORT_PATH,
                "route_prefix": "/",
                "args": {
                    "prefill_config": prefill,
                    "decode_config": decode,
                    "baton": {"disaggregate": {"mode": "always"}, **baton},
                },
            }
        ],
    }


@contextlib.contextmanager
def ray_head() -> Iterator[RayHead]:
    """A head that is gone afterwards, with every process that it started."""
    paths = [str(SRC), *filter(None, [os.environ.get("PYTHONPATH")])]
    environment = {
        "PYTHONPATH": os.pathsep.join(paths),
        # How long HAProxy may still send to a gateway that stops; Ray's default is 30.
        "RAY_SERVE_DIRECT_INGRESS_MIN_DRAINING_PERIOD_S": "3",
    }
    head = start_head(APP, cpus=8, settings_environment=environment)
    try:
        with serve_app.connected(head.address, client_environment(head.auth_token)):
            yield head
    finally:
        head.stop()
        shutil.rmtree(head.folder, ignore_errors=True)


@dataclass
class Asked:
    """One request and what became of it."""

    prompt: str
    status: int
    text: str
    route: str
    finish_reason: str | None = None
    error: str = ""


@dataclass
class Simulated:
    """The running application, as its callers see it."""

    port: int = field(default_factory=free_port)

    @property
    def base(self) -> str:
        """The endpoint, without `/v1`."""
        return f"http://127.0.0.1:{self.port}"

    def deploy(self, serve_config: dict[str, Any]) -> None:
        """Deploy, or update in place; returns at once."""
        serve_app.deploy(serve_config)

    def wait_until(
        self, what: str, check: Callable[[list[dict[str, Any]]], bool], seconds: float = 90.0
    ) -> list[dict[str, Any]]:
        """Wait until the engines of the directory pass a check; returns them."""
        deadline_s = time.monotonic() + seconds
        engines: list[dict[str, Any]] = []
        while time.monotonic() < deadline_s:
            engines = self.engines()
            if check(engines):
                return engines
            time.sleep(0.2)
        lines = [f"{e['role']} {e['state']} {e['load']}" for e in engines]
        serve_says = serve_app.view(APP)
        raise AssertionError(f"waited {seconds:.0f} s in vain: {what}; {lines}; {serve_says}")

    def engines(self) -> list[dict[str, Any]]:
        """The directory's leases, whatever their state."""
        leases = serve_app.engines(APP).engines
        return [lease.model_dump(mode="json") for lease in leases]

    def ask(self, prompt: str, *, max_tokens: int, stream: bool = False) -> Asked:
        """One completion; never raises."""
        body = {"model": "simulated", "prompt": prompt, "max_tokens": max_tokens, "stream": stream}
        try:
            with httpx.Client(timeout=60) as client:
                if stream:
                    return _streamed(client, f"{self.base}/v1/completions", prompt, body)
                answer = client.post(f"{self.base}/v1/completions", json=body)
        except httpx.HTTPError as exc:
            return Asked(prompt, 0, "", "", error=repr(exc))
        route = answer.headers.get("x-baton-route", "")
        if answer.status_code != httpx.codes.OK:
            return Asked(prompt, answer.status_code, "", route, error=answer.text)
        choice = answer.json()["choices"][0]
        return Asked(prompt, 200, choice["text"], route, choice["finish_reason"])


def _streamed(client: httpx.Client, url: str, prompt: str, body: dict[str, Any]) -> Asked:
    import json

    asked = Asked(prompt, 0, "", "")
    with client.stream("POST", url, json=body) as answer:
        asked.status = answer.status_code
        asked.route = answer.headers.get("x-baton-route", "")
        done = False
        for line in answer.iter_lines():
            if line == "data: [DONE]":
                done = True
            elif line.startswith("data: "):
                event = json.loads(line.removeprefix("data: "))
                if "error" in event:
                    asked.error = line
                    break
                for choice in event.get("choices", []):
                    asked.text += choice["text"]
                    asked.finish_reason = choice["finish_reason"] or asked.finish_reason
        if not done and not asked.error:
            asked.error = "the stream ended without [DONE]"
    return asked


class Load:
    """Callers that each ask again as soon as they have an answer, until the block ends.

    Args:
        app: Whom to ask.
        callers: How many ask at once.
        prompt: The prompt of one request, by its number.
        max_tokens: Of each answer.
        stream: Whether every second request is streamed.
    """

    def __init__(
        self,
        app: Simulated,
        *,
        callers: int,
        prompt: Callable[[int], str],
        max_tokens: int,
        stream: bool = False,
    ) -> None:
        self.asked: list[Asked] = []
        self._app = app
        self._callers = callers
        self._prompt = prompt
        self._max_tokens = max_tokens
        self._stream = stream
        self._over = threading.Event()
        self._pool = concurrent.futures.ThreadPoolExecutor(callers)

    def __enter__(self) -> Self:
        for caller in range(self._callers):
            self._pool.submit(self._ask_on, caller)
        return self

    def __exit__(self, *_: object) -> None:
        self._over.set()
        self._pool.shutdown()

    def _ask_on(self, caller: int) -> None:
        number = caller
        while not self._over.is_set():
            streamed = self._stream and (number // self._callers) % 2 == 0
            asked = self._app.ask(
                self._prompt(number), max_tokens=self._max_tokens, stream=streamed
            )
            self.asked.append(asked)
            number += self._callers
            if asked.status != httpx.codes.OK:
                time.sleep(0.2)


class Watch:
    """How many engines of each role were ready and draining, for as long as the block lasts."""

    def __init__(self, app: Simulated) -> None:
        self.most_ready = {"prefill": 0, "decode": 0}
        self.least_ready = {"prefill": 99, "decode": 99}
        self.draining: set[str] = set()
        self._app = app
        self._over = threading.Event()
        self._thread = threading.Thread(target=self._look_on)

    def __enter__(self) -> Self:
        self._thread.start()
        return self

    def __exit__(self, *_: object) -> None:
        self._over.set()
        self._thread.join()

    def _look_on(self) -> None:
        while not self._over.is_set():
            engines = self._app.engines()
            for role in self.most_ready:
                ready = sum(e["role"] == role and e["state"] == "ready" for e in engines)
                self.most_ready[role] = max(self.most_ready[role], ready)
                self.least_ready[role] = min(self.least_ready[role], ready)
            self.draining |= {e["replica_id"] for e in engines if e["state"] == "draining"}
            self._over.wait(0.1)
