"""The control of a handoff: what prefill offered, whether decode took it, and letting go of it.

Once prefill has answered, its KV blocks sit under a lease (30 s by default) until a decode engine
takes or rejects the request. So an offer that will not be used must be released through decode:
vLLM 0.29 frees the blocks when decode rejects a request that carries their params
(`_with_kv_transfer_rejection_cleanup`, vllm/entrypoints/generate/base/serving.py).
"""

from __future__ import annotations

import asyncio
import logging
from collections import Counter
from typing import TYPE_CHECKING, Any, Literal

from pydantic import BaseModel, ConfigDict, Field, ValidationError, field_validator

from baton.errors import LegFailed, PrefillFailed
from baton.gateway.request_body import encode_body

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    from baton.gateway.engine_client import EngineClient
    from baton.observe.metrics import GatewayMetrics
    from baton.spec.lease import EngineLease

log = logging.getLogger("baton.gateway.handoff")

FOR_PREFILL: dict[str, Any] = {
    "do_remote_decode": True,
    "do_remote_prefill": False,
    "remote_engine_id": None,
    "remote_block_ids": None,
    "remote_host": None,
    "remote_port": None,
}

RELEASE_TIMEOUT_S = 5.0
ABORT_SETTLES_S = 0.5
"""How long after a decode leg was closed its abort has surely reached the engine's core."""
PATIENCE_S = 10.0
IMPATIENCE_S = 0.25
"""How long a prefill leg that nobody waits for may still answer, so that its KV can be released.

vLLM reads aborts between steps. A prompt that waits in its queue, or has more chunks to come, ends
there and holds nothing. One whose last step is running finishes all the same: its blocks then wait
for the lease to end, and the answer that names them is lost if the connection was closed. So a leg
that is most likely in its only step is let finish, which costs no compute that an abort would have
saved: a prompt that fits one step, on an engine where few legs were given up. All others are
closed soon, so that a storm of hang-ups does not keep prefill busy for nobody.
"""
ONE_STEP_BYTES = 32 * 1024
"""A body smaller than this is prefilled in one step: 8,192 tokens (vLLM's usual
max_num_batched_tokens) of four bytes."""
_PATIENT_LEGS = 8
_MAX_PENDING = 1000
_RELEASE_ENGINES = 2


class KVTransferParams(BaseModel):
    """Prefill's answer to "who has the KV, and where": vLLM's own spellings, passed on whole."""

    # A newer vLLM may say more; decode must get it.
    model_config = ConfigDict(frozen=True, extra="allow")

    do_remote_prefill: Literal[True]
    do_remote_decode: Literal[False] = False
    remote_engine_id: str = Field(min_length=1)
    remote_block_ids: list[Any]
    remote_host: str
    remote_port: int

    @field_validator("remote_block_ids")
    @classmethod
    def _holds_blocks(cls, value: list[Any]) -> list[Any]:
        # vLLM 0.29 `update_state_after_alloc` asserts that params without blocks bring no tokens,
        # and the assertion ends decode's EngineCore. Such an offer must never be sent.
        if not any(group if isinstance(group, list) else True for group in value):
            raise ValueError("no KV block is offered")
        return value


class Offer:
    """KV that a prefill engine holds for one request, until it is `taken` or released."""

    __slots__ = ("open", "params", "prefill_engine", "request_id")

    def __init__(self, params: KVTransferParams, prefill_engine: str, request_id: str) -> None:
        self.params = params
        self.prefill_engine = prefill_engine
        self.request_id = request_id
        self.open = True

    def taken(self) -> None:
        """Decode has generated from it: its blocks were read, and vLLM has freed them."""
        self.open = False


def parse_offer(answer: Any, prefill_engine: str, request_id: str) -> Offer:
    """The offer in prefill's JSON answer.

    Raises:
        PrefillFailed: There is none, or not one that decode may be given.
    """
    params = answer.get("kv_transfer_params") if isinstance(answer, dict) else None
    try:
        return Offer(KVTransferParams.model_validate(params), prefill_engine, request_id)
    except ValidationError as exc:
        what = "none" if params is None else "; ".join(str(e["loc"]) for e in exc.errors())
        raise PrefillFailed(
            f"prefill's answer has no usable kv_transfer_params ({what})", place=prefill_engine
        ) from exc


class Releases:
    """Lets go of offers in the background: bounded, tracked, and finished before the gateway ends.

    Args:
        client: Sends the release.
        engines: Decode engines to release through, best first.
        headers: Headers of a leg, by its internal request id.
        metrics: Counts how releases went.
    """

    def __init__(
        self,
        client: EngineClient,
        engines: Callable[[], Sequence[EngineLease]],
        headers: Callable[[str], dict[str, str]],
        metrics: GatewayMetrics,
    ) -> None:
        self._client = client
        self._engines = engines
        self._headers = headers
        self._metrics = metrics
        self._tasks: set[asyncio.Task[None]] = set()
        self._given_up: Counter[str] = Counter()

    @property
    def pending(self) -> int:
        return len(self._tasks)

    def release(self, offer: Offer, not_through: str | None = None, delay_s: float = 0.0) -> None:
        """Release an offer in the background, once. Releasing what was taken does no harm.

        Args:
            offer: What prefill holds.
            not_through: A decode engine that has just failed: asked last.
            delay_s: Wait so long before. A decode engine that may be reading the blocks must have
                seen the abort first: blocks that prefill gives to somebody else while they are
                read would otherwise end in decode's prefix cache.
        """
        if offer.open:
            offer.open = False
            self._spawn(self._release(offer, not_through, delay_s))

    def abandon(self, leg: asyncio.Task[Offer], engine: str, size: int) -> None:
        """Give up a prefill leg: end it, or release what it still answers while we are patient.

        Args:
            leg: The leg.
            engine: `replica_id` of its engine.
            size: Bytes of its body.
        """
        self._spawn(self._abandon(leg, engine, size))

    def _spawn(self, work: Any) -> None:
        if len(self._tasks) >= _MAX_PENDING:
            work.close()
            self._metrics.kv_releases.labels("dropped").inc()
            log.error("too many KV releases are pending: this one waits for its lease to end")
            return
        task: asyncio.Task[None] = asyncio.ensure_future(work)
        self._tasks.add(task)
        task.add_done_callback(self._tasks.discard)

    async def _abandon(self, leg: asyncio.Task[Offer], engine: str, size: int) -> None:
        patient = size <= ONE_STEP_BYTES and self._given_up[engine] < _PATIENT_LEGS
        self._given_up[engine] += 1
        try:
            done, _ = await asyncio.wait({leg}, timeout=PATIENCE_S if patient else IMPATIENCE_S)
            if not done:
                leg.cancel()
                await asyncio.wait({leg}, timeout=RELEASE_TIMEOUT_S)
        finally:
            self._given_up[engine] -= 1
            leg.cancel()  # when we are cancelled ourselves, as the gateway ends
            leg.add_done_callback(_look_away)
        if leg.cancelled() or not leg.done() or leg.exception() is not None:
            return
        await self._release(leg.result(), None, 0.0)

    async def _release(self, offer: Offer, not_through: str | None, delay_s: float) -> None:
        if delay_s:
            await asyncio.sleep(delay_s)
        body = encode_body(release_body(offer.params))
        engines = sorted(self._engines(), key=lambda e: e.replica_id == not_through)
        for engine in engines[:_RELEASE_ENGINES]:
            try:
                status, _ = await self._client.fetch(
                    engine,
                    "POST",
                    "/v1/completions",
                    timeout_s=RELEASE_TIMEOUT_S,
                    body=body,
                    headers=self._headers(f"{offer.request_id}-r"),
                )
            except LegFailed as exc:
                log.warning(
                    "a KV release did not get through",
                    extra={"engine": engine.replica_id, "failure": exc.failure},
                )
                continue
            if status in (400, 404):
                self._metrics.kv_releases.labels("released").inc()
                log.debug("KV released", extra={"request_id": offer.request_id})
                return
            log.warning(
                "a KV release got an unexpected answer",
                extra={"engine": engine.replica_id, "status": status},
            )
        self._metrics.kv_releases.labels("failed").inc()
        log.warning(
            "KV stays held until its lease ends",
            extra={"engine": offer.prefill_engine, "request_id": offer.request_id},
        )

    async def close(self, timeout_s: float = 2.0) -> None:
        """Wait for what is pending, then stop it."""
        if self._tasks:
            await asyncio.wait(set(self._tasks), timeout=timeout_s)
        for task in set(self._tasks):
            task.cancel()
        if self._tasks:
            await asyncio.gather(*self._tasks, return_exceptions=True)


def _look_away(leg: asyncio.Task[Offer]) -> None:
    """Nobody waits for how it failed; asyncio would complain that nobody asked."""
    if not leg.cancelled():
        leg.exception()


NO_SUCH_MODEL = "baton-kv-release"


def release_body(params: KVTransferParams) -> dict[str, Any]:
    """A request that decode rejects at once, and so frees the blocks that its params name.

    It must never be taken: its prompt is not the one the KV belongs to. The model is not served
    (404 before anything is tokenized), and should an engine not check names
    (VLLM_SKIP_MODEL_NAME_VALIDATION), vLLM 0.29 refuses any `suffix` (400,
    renderers/online_renderer.py). Both are inside the block that notifies prefill; a body that
    pydantic refuses would not be.
    """
    return {
        "model": NO_SUCH_MODEL,
        "prompt": [0],
        "max_tokens": 1,
        "suffix": "x",
        "kv_transfer_params": params.model_dump(),
    }
