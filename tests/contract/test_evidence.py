"""What engines say of their KV transfer, in one form whatever kind they are."""

from __future__ import annotations

from typing import TYPE_CHECKING

from baton.spec.transfer import EngineFacts
from tests.contract.conftest import PROMPT

if TYPE_CHECKING:
    from tests.contract.conftest import Pair


async def test_both_engines_say_what_their_workers_hold(pair: Pair) -> None:
    """`/baton/evidence`: an engine, its workers, and what a token's KV takes."""
    for url in (pair.prefill_url, pair.decode_url):
        answer = await pair.http.get(f"{url}/baton/evidence")
        assert answer.status_code == 200, answer.text
        facts = EngineFacts.model_validate_json(answer.content)
        assert facts.engine_id
        assert facts.connector
        assert facts.simulated is (pair.kind == "simulated")
        (worker,) = facts.workers
        assert worker.device == worker.kv_buffer_device == "cpu"
        assert worker.kv_bytes_per_token > 0


async def test_after_a_handoff_a_real_engine_names_its_transport(pair: Pair) -> None:
    """What UCX chose for the real memory, seen in the worker that moved it; simulated: nothing."""
    params = await pair.prefill(prompt=PROMPT * 2)
    await pair.complete(prompt=PROMPT * 2, max_tokens=1, kv_transfer_params=params)
    answer = await pair.http.get(f"{pair.decode_url}/baton/evidence")
    (worker,) = EngineFacts.model_validate_json(answer.content).workers
    reads = {row.transport for row in worker.ucx if row.operation == "get"}
    if pair.kind == "simulated":
        assert worker.observed_backends == ()
        assert reads == set()
    else:
        assert worker.observed_backends == ("UCX",)
        assert worker.notes_ucx
        assert reads, worker.ucx


async def test_what_is_no_path_of_ours_stays_unknown(pair: Pair) -> None:
    """A 404, as from vLLM."""
    answer = await pair.http.get(f"{pair.decode_url}/baton/nothing")
    assert answer.status_code == 404
