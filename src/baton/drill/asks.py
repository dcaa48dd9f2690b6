"""The requests of a drill: chat and completions, streamed and not, with all that ends an answer.

Greedy, so that an answer can be compared. Each request is asked once before anything is broken;
that answer is what it must say ever after. Stop strings are taken out of an undisturbed answer, so
that they really end it, on any model.
"""

from __future__ import annotations

import asyncio
import random
import uuid
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

from baton.errors import DrillFailed

if TYPE_CHECKING:
    from baton.drill.client import Client, Seen

CHAT = "/v1/chat/completions"
COMPLETIONS = "/v1/completions"

_WORDS = [
    "runner",
    "hands",
    "baton",
    "next",
    "crowd",
    "counts",
    "steps",
    "track",
    "lane",
    "bend",
    "café",
    "naïve",
    "relay",
    "morning",
    "quick",
    "quiet",
    "long",
    "short",
    "heavy",
    "light",
    "north",
    "river",
    "stone",
    "東京",
    "voilà",
    "señor",
    "year",
    "point",
    "world",
    "word",
    "turn",
]
_AT_ONCE = 16
_FALLBACK_TEXT = "�"
_STOP_LENGTH = 4


@dataclass(frozen=True)
class Ask:
    """One request. `body` has everything but a salt."""

    name: str
    path: str
    body: dict[str, Any]

    @property
    def streamed(self) -> bool:
        return bool(self.body.get("stream"))

    def salted(self) -> dict[str, Any]:
        """The body to send: no prefix cache may answer in the place of a handoff."""
        return {**self.body, "cache_salt": uuid.uuid4().hex}

    def with_stop(self, stop: str) -> Ask:
        return Ask(f"{self.name}-stop", self.path, {**self.body, "stop": [stop, "\u2021"]})


@dataclass(frozen=True)
class Case:
    """A request, and how it is answered when nothing is disturbed."""

    ask: Ask
    expected: Seen = field(repr=False)


def mix(
    model: str, *, count: int, seed: int, prompt_words: tuple[int, int], tokens: tuple[int, int]
) -> list[Ask]:
    """Different requests; the same for the same arguments.

    Args:
        model: The model's name.
        count: How many.
        seed: Of the choice.
        prompt_words: The shortest and the longest prompt.
        tokens: The smallest and the largest `max_tokens`.
    """
    rng = random.Random(seed)  # noqa: S311  (no secret)
    asks = []
    for number in range(count):
        words = rng.choices(_WORDS, k=rng.randint(*prompt_words))
        prompt = f"{number}: " + " ".join(words)
        chat, streamed = number % 2 == 0, number % 7 < 5  # noqa: PLR2004  (five of seven stream)
        limit = "max_completion_tokens" if chat and number % 3 == 0 else "max_tokens"
        body: dict[str, Any] = {"model": model, "temperature": 0, limit: rng.randint(*tokens)}
        if chat:
            body["messages"] = [
                {"role": "system", "content": "You count steps."},
                {"role": "user", "content": prompt},
            ]
            if number % 4 == 0:
                # Where the model thinks and a parser tells it apart, these do so aloud.
                body["chat_template_kwargs"] = {"thinking": True, "enable_thinking": True}
        else:
            body["prompt"] = prompt
        if streamed:
            body["stream"] = True
            if rng.random() < 0.6:  # noqa: PLR2004  (most, but not all)
                body["stream_options"] = {"include_usage": True}
        kind = ("chat" if chat else "text") + ("-stream" if streamed else "")
        asks.append(Ask(f"{number}-{kind}", CHAT if chat else COMPLETIONS, body))
    return asks


def stop_in(text: str) -> str | None:
    """A piece of an answer, from behind its middle, that does not stand before it."""
    for at in range(len(text) // 2, len(text) - 2 * _STOP_LENGTH):
        piece = text[at : at + _STOP_LENGTH]
        if _FALLBACK_TEXT not in piece and piece.strip() and text.find(piece) == at:
            return piece
    return None


async def undisturbed(client: Client, asks: list[Ask]) -> list[Case]:
    """Ask each once, and every third again with a stop string out of its own answer.

    Raises:
        DrillFailed: An answer is not right although nothing is broken.
    """
    cases = await _all(client, asks)
    with_stop = []
    for number, case in enumerate(cases):
        said = case.expected.text or case.expected.reasoning
        stop = stop_in(said) if number % 3 == 1 else None
        if stop is not None:
            with_stop.append((number, case.ask.with_stop(stop)))
    again = await _all(client, [ask for _, ask in with_stop])
    for (number, _), case in zip(with_stop, again, strict=True):
        cases[number] = case
    return cases


async def _all(client: Client, asks: list[Ask]) -> list[Case]:
    places = asyncio.Semaphore(_AT_ONCE)

    async def one(ask: Ask) -> Case:
        async with places:
            seen = await client.send(ask)
        if not seen.whole:
            raise DrillFailed(
                f"request {ask.name} got no whole answer before anything was broken: {seen.fault}",
                cure="make the endpoint well first: `baton status`, or one request by hand",
            )
        return Case(ask, seen)

    return list(await asyncio.gather(*(one(ask) for ask in asks)))
