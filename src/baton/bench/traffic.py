"""What is sent, and when: a list of planned requests, made by chance or read from a trace.

Arrivals are an open loop: a request leaves when its time has come, however many are still out. So
an endpoint that is too slow shows it, instead of slowing its load down.
"""

from __future__ import annotations

import random
import re
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING

from baton.errors import LoadRefused

if TYPE_CHECKING:
    from collections.abc import Sequence

MAX_REQUESTS = 100_000
MAX_PROMPT_TOKENS = 10_000_000
"""Of all requests together; the generator holds them in memory."""


@dataclass(frozen=True)
class Block:
    """A part of a prompt. Parts with the same name hold the same tokens."""

    name: str
    tokens: int


@dataclass(frozen=True)
class Planned:
    """One request to come.

    Args:
        at_s: When it leaves, since the start.
        blocks: What its prompt is made of.
        output_tokens: How many tokens it asks for; the generator sends `ignore_eos`.
        kind: The name of its class, where the traffic has several.
    """

    at_s: float
    blocks: tuple[Block, ...]
    output_tokens: int
    kind: str = ""

    @property
    def input_tokens(self) -> int:
        return sum(block.tokens for block in self.blocks)


@dataclass(frozen=True)
class Lengths:
    """A distribution of lengths in tokens.

    Written as `512` (always), `256-1024` (uniform), `512~128` (normal: mean and deviation).
    """

    kind: str
    first: float
    second: float = 0.0

    @classmethod
    def of(cls, text: str) -> Lengths:
        """Raises LoadRefused for anything else."""
        found = re.fullmatch(r"\s*(\d+)\s*(?:([-~])\s*(\d+)\s*)?", text)
        if found is None:
            raise LoadRefused(
                f"{text!r} is no distribution of lengths",
                cure="write 512, 256-1024 (uniform) or 512~128 (normal, mean and deviation)",
            )
        first, mark, second = found.groups()
        kind = {None: "always", "-": "uniform", "~": "normal"}[mark]
        lengths = cls(kind, float(first), float(second or 0))
        if lengths.first < 1 or (kind == "uniform" and lengths.second < lengths.first):
            raise LoadRefused(f"{text!r}: lengths are 1 or more, and ranges go upwards")
        return lengths

    def draw(self, chance: random.Random) -> int:
        if self.kind == "uniform":
            return chance.randint(int(self.first), int(self.second))
        if self.kind == "normal":
            return max(1, round(chance.gauss(self.first, self.second)))
        return int(self.first)


@dataclass(frozen=True)
class Class:
    """Requests of one kind, which arrive as a Poisson process of their own.

    Args:
        rate: Requests a second.
        inputs: Lengths of prompts, the shared prefix included.
        outputs: Lengths of answers.
        prefix_tokens: The beginning that requests share.
        prefixes: How many different beginnings there are.
        name: For the report.
    """

    rate: float
    inputs: Lengths
    outputs: Lengths
    prefix_tokens: int = 0
    prefixes: int = 1
    name: str = ""


def poisson(classes: Sequence[Class], *, duration_s: float, seed: int) -> list[Planned]:
    """Requests of all classes for so long, in the order of their arrival.

    Raises:
        LoadRefused: More than can be held, or nothing at all.
    """
    expected = sum(one.rate for one in classes) * duration_s
    if expected > MAX_REQUESTS:
        raise LoadRefused(
            f"{expected:,.0f} requests are more than {MAX_REQUESTS:,}",
            cure="a lower --rate or a shorter --duration",
        )
    planned: list[Planned] = []
    for number, one in enumerate(classes):
        chance = random.Random(f"{seed}/{number}")  # noqa: S311 - load, no secret
        at_s = chance.expovariate(one.rate)
        while at_s < duration_s:
            planned.append(_draw(one, at_s, f"{number}.{len(planned)}", number, chance))
            at_s += chance.expovariate(one.rate)
    planned.sort(key=lambda request: request.at_s)
    return checked(planned)


def _draw(one: Class, at_s: float, name: str, number: int, chance: random.Random) -> Planned:
    tokens = one.inputs.draw(chance)
    shared = min(one.prefix_tokens, tokens)
    blocks = []
    if shared:
        blocks.append(Block(f"prefix{number}.{chance.randrange(one.prefixes)}", shared))
    if tokens > shared:
        blocks.append(Block(f"own{name}", tokens - shared))
    return Planned(at_s, tuple(blocks), one.outputs.draw(chance), one.name)


def checked(planned: list[Planned]) -> list[Planned]:
    """The same requests, if they can be sent at all. Raises LoadRefused."""
    if not planned:
        raise LoadRefused(
            "no request arrives in that time", cure="a higher --rate or a longer --duration"
        )
    tokens = sum(request.input_tokens for request in planned)
    if tokens > MAX_PROMPT_TOKENS:
        raise LoadRefused(
            f"{tokens:,} prompt tokens are more than {MAX_PROMPT_TOKENS:,}, which the generator "
            "holds in memory",
            cure="fewer requests (--requests N for a trace) or shorter prompts",
        )
    return planned


def fitted(planned: Sequence[Planned], context: int | None) -> tuple[list[Planned], int]:
    """Requests that fit the model's context, and how many were left out because they do not."""
    if context is None:
        return list(planned), 0
    fit = [r for r in planned if r.input_tokens + r.output_tokens <= context]
    return fit, len(planned) - len(fit)


def faster(planned: Sequence[Planned], times: float) -> list[Planned]:
    """The same requests in a fraction of the time."""
    return [replace(request, at_s=request.at_s / times) for request in planned]
