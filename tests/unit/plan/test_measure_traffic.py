"""What is sent, and in which order, as an engine sees it."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from baton.plan.measure_traffic import WARM_TOKENS, send, warm_up
from baton.plan.probe import Prober
from baton.plan.simulator import Request

if TYPE_CHECKING:
    import asyncio
    from collections.abc import Mapping


class Listening(Prober):
    """Answers at once and keeps what it was asked: tokens in and out."""

    def __init__(self) -> None:
        super().__init__(session=None, url="", model="m")  # type: ignore[arg-type]
        self.asked: list[tuple[int, int]] = []

    async def token_times(
        self, body: Mapping[str, Any], begun: asyncio.Event | None = None
    ) -> list[float]:
        """As many as were asked for, all in the same moment."""
        del begun
        self.asked.append((len(body["prompt"]), body["max_tokens"]))
        return [0.0] * (1 + body["max_tokens"])


async def test_no_request_of_traffic_has_a_length_that_was_asked_to_wake_the_engine() -> None:
    """It would be read faster: two of five requests of a short part were, and it looked faster."""
    engine = Listening()
    requests = [Request(0.0, 100, 20), Request(0.001, 1000, 20), Request(0.002, 300, 20)]
    assert len(await send([engine], requests)) == 3
    waking, traffic = engine.asked[:2], engine.asked[2:]
    assert [tokens for tokens, _ in traffic] == [100, 1000, 300]
    assert [tokens for tokens, _ in waking] == [94, 940]
    assert {answer for _, answer in waking} == {WARM_TOKENS}


async def test_an_engine_is_warmed_up_with_many_lengths() -> None:
    """As many as were asked for, all within what is measured; none where none are."""
    engine, said = Listening(), []
    assert await warm_up([engine], (64, 2048), 50, said.append) == 50
    assert said == ["warmed up with 50 requests"]
    lengths = [tokens for tokens, _ in engine.asked]
    assert 64 <= min(lengths) <= max(lengths) <= 2048
    assert len(set(lengths)) > 40
    assert await warm_up([engine], (64, 2048), 0, said.append) == 0
    assert len(engine.asked) == 50
    assert len(said) == 1
