"""What `baton verify` asks of a deployment, through its gateway and behind its keys.

    GET  /baton/evidence          each engine's lease, what its workers say, NIXL's own counters
    POST /baton/verify/handoff    one request through a pair that is named, or on decode alone
    POST /baton/verify/raw        a transfer without engines between the same two places

A caller may name engines of the directory, a prompt and a number of tokens, and nothing else: whom
an engine reads memory from stays the gateway's to say. A handoff here is an ordinary journey whose
directory knows one pair only, so everything is let go of as it always is. It is neither admitted
nor counted as traffic, so one runs at a time.
"""

from __future__ import annotations

import asyncio
import json
import logging
import re
from dataclasses import replace
from typing import TYPE_CHECKING, Any

import msgspec

from baton.errors import (
    EngineFailed,
    GatewayError,
    LegFailed,
    NoEngineAvailable,
    RequestRefused,
    Saturated,
)
from baton.gateway.ask import Ask, Parts, leg_headers
from baton.gateway.caller import CallerGone
from baton.gateway.generations import Generations
from baton.gateway.journey import Journey
from baton.gateway.openai_errors import body_of
from baton.gateway.prefill import RequestRejected
from baton.gateway.request_body import parse_body
from baton.gateway.routes import COMPLETIONS
from baton.observe.timeline import Timeline

if TYPE_CHECKING:
    from collections.abc import Sequence

    from baton.gateway.admission import HeldBodies
    from baton.gateway.app import GatewayApp
    from baton.gateway.breaker import Breakers
    from baton.gateway.caller import Caller
    from baton.gateway.directory import Directory
    from baton.gateway.request_body import Body
    from baton.gateway.routes import Route
    from baton.spec.lease import EngineLease

log = logging.getLogger("baton.gateway.proofs")

PROOF_ROUTES = frozenset({"/baton/evidence", "/baton/verify/handoff", "/baton/verify/raw"})
EVIDENCE_TIMEOUT_S = 30.0
RAW_TIMEOUT_S = 180.0
MOST_TOKENS = 256
_MOST_LOGPROBS = 5
_LONGEST_SALT = 64
_MOVED_WITHIN_S = 1.0
_MOVED_STEP_S = 0.05
# vLLM 0.29, nixl/stats.py. The histograms' sums and counts are what adds up.
_NIXL = re.compile(
    rb"^vllm:(nixl_[a-z_]+?)(?:_total)?(?:\{[^}\n]*\})? ([0-9.e+-]+)$", re.MULTILINE | re.IGNORECASE
)
_MOVED = {
    "bytes": "nixl_bytes_transferred_sum",
    "transfers": "nixl_xfer_time_seconds_count",
    "xfer_s": "nixl_xfer_time_seconds_sum",
    "post_s": "nixl_post_time_seconds_sum",
    "descriptors": "nixl_num_descriptors_sum",
    "failed": "nixl_num_failed_transfers",
}


class Proofs:
    """This gateway's part of a verification."""

    def __init__(self, app: GatewayApp, bodies: HeldBodies) -> None:
        self._app = app
        self._bodies = bodies
        self._busy = False

    async def answer(self, caller: Caller, route: Route, parts: Parts) -> None:
        """Answer one of the three routes."""
        try:
            if route.path == "/baton/evidence":
                await caller.answer_json(200, await self._evidence(parts))
                return
            body = await self._asked(caller)
            if self._busy:
                raise Saturated("Another verification runs here.", cure="wait until it has ended")
            self._busy = True
            try:
                do = self._handoff if route.path.endswith("/handoff") else self._raw
                found = await do(parts, caller.request_id, body)
            finally:
                self._busy = False
            await caller.answer_json(200, found)
        except RequestRejected as rejected:
            await caller.answer_json(rejected.status, json.loads(rejected.body))
        except GatewayError as error:
            await caller.answer_json(error.status, body_of(error))
        except CallerGone:
            log.info("the caller of a verification went away")

    async def _asked(self, caller: Caller) -> Body:
        limits = self._app.settings.admission
        try:
            return parse_body(
                await caller.read_body(limits.max_body_bytes, limits.body_timeout_s, self._bodies)
            )
        finally:
            self._bodies.give_back(caller.held)
            caller.held = 0

    # -- evidence ------------------------------------------------------------------------------

    async def _evidence(self, parts: Parts) -> dict[str, Any]:
        engines = [e for e in parts.directory.all_engines() if e.state == "ready"]
        said = await asyncio.gather(*(self._engine(parts, engine) for engine in engines))
        return {"engines": list(said), "slow_pairs": self._app.links.as_list()}

    async def _engine(self, parts: Parts, engine: EngineLease) -> dict[str, Any]:
        facts, why_not = None, None
        try:
            facts = await _ask(parts, engine, "GET", "/baton/evidence")
        except LegFailed as failure:
            why_not = failure.place or failure.failure
        return {
            "lease": engine.model_dump(mode="json"),
            "facts": facts,
            "why_no_facts": why_not,
            "nixl": await _nixl_counters(parts, engine),
        }

    # -- one handoff ---------------------------------------------------------------------------

    async def _handoff(self, parts: Parts, request_id: str, asked: Body) -> dict[str, Any]:
        alone = asked.get("way", "pd") == "local"
        decode = self._named(parts, asked, "decode")
        prefill = None if alone else self._named(parts, asked, "prefill")
        ask = Ask(
            route=COMPLETIONS,
            method="POST",
            path=COMPLETIONS.path,
            body=_completion(asked, decode),
            streamed=False,
            headers={"content-type": "application/json"},
            why_alone="verify" if alone else None,
        )
        before = await _nixl_counters(parts, decode)
        timeline = Timeline(f"{request_id[:40]}-verify", COMPLETIONS.path)
        only = replace(parts, directory=_OnlyThese(parts.directory, prefill, decode))
        journey = Journey(only, ask, timeline)
        try:
            answer = await journey.run()
            said = msgspec.json.decode(answer.held)
            answer.close()
        finally:
            journey.close()
        choice = said["choices"][0]
        return {
            "way": "local" if timeline.route == "decode_only" else "pd",
            "text": choice["text"],
            "logprobs": choice.get("logprobs"),
            "finish_reason": choice.get("finish_reason"),
            "prompt_tokens": (said.get("usage") or {}).get("prompt_tokens"),
            "prefill_s": timeline.stages.get("prefill"),
            "decode_s": timeline.stages.get("answer"),
            "fallbacks": timeline.fallbacks,
            "attempts": timeline.attempts,
            "moved": None if alone else await _moved(parts, decode, before),
        }

    def _named(self, parts: Parts, asked: Body, role: str) -> EngineLease:
        name = asked.get(role)
        for engine in parts.directory.all_engines():
            if engine.replica_id == name and engine.role == role:
                return engine
        raise NoEngineAvailable(f"No {role} engine is called {str(name)[:200]!r} here.")

    # -- the wire alone ------------------------------------------------------------------------

    async def _raw(self, parts: Parts, _request_id: str, asked: Body) -> dict[str, Any]:
        prefill, decode = (self._named(parts, asked, role) for role in ("prefill", "decode"))
        backend, device = str(asked.get("backend", "UCX")), str(asked.get("device", "cpu"))
        what = {"backend": backend, "device": device}

        async def ask(engine: EngineLease, part: str, body: dict[str, Any]) -> dict[str, Any]:
            try:
                return await _ask(
                    parts,
                    engine,
                    "POST",
                    f"/baton/probe/{part}",
                    body=body,
                    timeout_s=RAW_TIMEOUT_S,
                )
            except LegFailed as failure:
                raise EngineFailed(
                    f"The probe beside {engine.replica_id} failed: {failure.place}"
                ) from failure

        offered = await ask(prefill, "offer", what)
        try:
            found = await ask(decode, "read", {**what, "offer": offered["offer"]})
        finally:
            await ask(prefill, "end", {"id": offered["id"]})
        return {**found, "nixl_of_prefill": offered["nixl"]}


def _completion(asked: Body, decode: EngineLease) -> Body:
    prompt = asked.get("prompt")
    ids = isinstance(prompt, list) and prompt and all(type(one) is int for one in prompt)
    if not (isinstance(prompt, str) and prompt) and not ids:
        raise RequestRefused("`prompt` must be a text or token ids.", param="prompt")
    tokens = asked.get("max_tokens", 1)
    if type(tokens) is not int or not 1 <= tokens <= MOST_TOKENS:
        raise RequestRefused(f"`max_tokens` must be 1 to {MOST_TOKENS}.", param="max_tokens")
    body: Body = {
        "model": decode.model_id,
        "prompt": prompt,
        "max_tokens": tokens,
        "temperature": 0,
    }
    salt = asked.get("cache_salt")
    if isinstance(salt, str) and 0 < len(salt) <= _LONGEST_SALT:
        # Two answers that are compared must not come from the same cached blocks.
        body["cache_salt"] = salt
    logprobs = asked.get("logprobs")
    if type(logprobs) is int and 0 < logprobs <= _MOST_LOGPROBS:
        body["logprobs"] = logprobs
    return body


async def _ask(
    parts: Parts,
    engine: EngineLease,
    method: str,
    path: str,
    *,
    body: dict[str, Any] | None = None,
    timeout_s: float = EVIDENCE_TIMEOUT_S,
) -> dict[str, Any]:
    """An engine's answer, decoded.

    Raises:
        LegFailed: No answer, or another status than 200; `place` says what it said.
    """
    headers = leg_headers(parts.directory, {"content-type": "application/json"}, "verify")
    raw = None if body is None else msgspec.json.encode(body)
    status, answer = await parts.client.fetch(
        engine, method, path, timeout_s=timeout_s, body=raw, headers=headers
    )
    if status != 200:  # noqa: PLR2004
        raise LegFailed("server_error", engine.replica_id, _reason(status, answer))
    found: dict[str, Any] = msgspec.json.decode(answer)
    return found


def _reason(status: int, raw: bytes) -> str:
    if status == 404:  # noqa: PLR2004
        return "it does not answer /baton/evidence: not an engine of Baton's"
    try:
        return str(msgspec.json.decode(raw)["error"]["message"])
    except (msgspec.DecodeError, KeyError, TypeError):
        return f"status {status}"


async def _nixl_counters(parts: Parts, engine: EngineLease) -> dict[str, float] | None:
    """NIXL's counters of an engine's `/metrics`, added up; None when it shows none."""
    headers = leg_headers(parts.directory, {}, "verify")
    try:
        status, page = await parts.client.fetch(
            engine, "GET", "/metrics", timeout_s=10.0, headers=headers
        )
    except LegFailed:
        return None
    if status != 200:  # noqa: PLR2004
        return None
    return read_nixl_counters(page)


def read_nixl_counters(page: bytes) -> dict[str, float] | None:
    """`bytes`, `transfers`, `xfer_s`, `post_s`, `descriptors`, `failed` of a page of metrics."""
    sums: dict[str, float] = {}
    for match in _NIXL.finditer(page):
        name = match.group(1).decode()
        sums[name] = sums.get(name, 0.0) + float(match.group(2))
    if _MOVED["bytes"] not in sums:
        return None
    return {short: sums.get(name, 0.0) for short, name in _MOVED.items()}


async def _moved(
    parts: Parts, engine: EngineLease, before: dict[str, float] | None
) -> dict[str, float] | None:
    """What NIXL says it moved since: vLLM tells it with one of its next steps."""
    if before is None:
        return None
    now = before
    for _ in range(round(_MOVED_WITHIN_S / _MOVED_STEP_S)):
        now = await _nixl_counters(parts, engine) or before
        if now["transfers"] > before["transfers"] or now["failed"] > before["failed"]:
            break
        await asyncio.sleep(_MOVED_STEP_S)
    return {name: now[name] - before[name] for name in now}


class _OnlyThese:
    """A directory that knows one pair, or decode alone."""

    def __init__(
        self, directory: Directory, prefill: EngineLease | None, decode: EngineLease
    ) -> None:
        self._directory = directory
        self._prefill: Sequence[EngineLease] = () if prefill is None else (prefill,)
        self._decode: Sequence[EngineLease] = (decode,)
        self.generations = Generations(self.all_engines())

    async def start(self) -> None:
        return None

    async def close(self) -> None:
        return None

    def prefill_engines(self) -> Sequence[EngineLease]:
        return self._prefill

    def decode_engines(self) -> Sequence[EngineLease]:
        return self._decode

    def resting_engines(self) -> Sequence[EngineLease]:
        return ()

    def all_engines(self) -> Sequence[EngineLease]:
        return (*self._prefill, *self._decode)

    def model_ids(self) -> frozenset[str]:
        return self._directory.model_ids()

    @property
    def breakers(self) -> Breakers:
        return self._directory.breakers

    @property
    def engine_secret(self) -> str | None:
        return self._directory.engine_secret

    @property
    def age_s(self) -> float | None:
        return self._directory.age_s

    @property
    def failures(self) -> int:
        return self._directory.failures
