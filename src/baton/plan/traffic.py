"""What is to be served: a trace, or one made up from a rate and lengths.

A trace is JSON Lines or CSV with one request a line, in one of three forms:

- `arrival_s`, `prompt_tokens`, `output_tokens` (seconds since any begin);
- `timestamp` in milliseconds, `input_length`, `output_length` (the Mooncake traces);
- `TIMESTAMP` as a date, `ContextTokens`, `GeneratedTokens` (the Azure LLM inference traces).
"""

from __future__ import annotations

import csv
import json
import math
import random
from dataclasses import dataclass
from datetime import datetime
from functools import cached_property
from typing import TYPE_CHECKING, Any

from baton.errors import TrafficRefused
from baton.plan.simulator import Request
from baton.plan.simulator.outcome import percentile

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping
    from pathlib import Path

WARM_UP = 0.1
"""Share of made-up traffic's time that is not counted: the fleet is empty at its begin. Of a trace
everything counts: its begin may be what matters."""
_FORMS = (
    ("arrival_s", "prompt_tokens", "output_tokens"),
    ("timestamp", "input_length", "output_length"),
    ("TIMESTAMP", "ContextTokens", "GeneratedTokens"),
)


@dataclass(frozen=True)
class Traffic:
    """Requests in order of arrival, the first at 0."""

    requests: tuple[Request, ...]
    source: str
    warm_up_s: float = 0.0
    """Requests that arrive before do not count."""

    @cached_property
    def span_s(self) -> float:
        """From the first to the last arrival."""
        return self.requests[-1].arrival_s

    @property
    def rate_rps(self) -> float:
        """Requests a second."""
        return (len(self.requests) - 1) / self.span_s if self.span_s > 0 else math.inf

    @cached_property
    def mean_prompt(self) -> float:
        """Tokens."""
        return sum(r.prompt_tokens for r in self.requests) / len(self.requests)

    @cached_property
    def mean_output(self) -> float:
        """Tokens."""
        return sum(r.output_tokens for r in self.requests) / len(self.requests)

    @cached_property
    def mean_prompt_squared(self) -> float:
        """What attention costs goes by it."""
        return sum(r.prompt_tokens**2 for r in self.requests) / len(self.requests)

    @cached_property
    def longest(self) -> int:
        """Prompt and answer of the longest request."""
        return max(r.prompt_tokens + r.output_tokens for r in self.requests)

    def prompt_at(self, share: float) -> int:
        """A percentile of prompt lengths."""
        return int(percentile([r.prompt_tokens for r in self.requests], share))

    @property
    def mean_context(self) -> float:
        """Tokens that a sequence has in decode on average, over all steps of all sequences."""
        steps = sum(r.output_tokens for r in self.requests)
        weighed = sum(r.output_tokens * (r.prompt_tokens + r.output_tokens / 2)
                      for r in self.requests)  # fmt: skip
        return weighed / steps


def made_up(
    *, prompt_tokens: int, output_tokens: int, rate_rps: float, spread: float = 0.0,
    count: int | None = None, seed: int = 0,
) -> Traffic:  # fmt: skip
    """Poisson arrivals; lengths of the given mean, fixed or log-normal.

    Args:
        prompt_tokens: Mean length of prompts.
        output_tokens: Mean length of answers.
        rate_rps: Requests a second.
        spread: Standard deviation of lengths over their mean; 0 for one length.
        count: How many requests; left out, enough for a minute at least.
        seed: Of the random numbers.

    Raises:
        TrafficRefused: A number that makes no traffic.
    """
    for name, value in (("isl", prompt_tokens), ("osl", output_tokens), ("rate", rate_rps)):
        if not math.isfinite(value) or value <= 0:
            raise TrafficRefused(f"--{name} is {value:g}", cure="give a number above 0")
    if not math.isfinite(spread) or spread < 0:
        raise TrafficRefused(f"--spread is {spread:g}", cure="give 0 or more")
    chance = random.Random(seed)  # noqa: S311 - a simulation, not a secret
    if count is None:
        count = min(max(int(rate_rps * 60), 600), 6000)
    now, requests = 0.0, []
    for _ in range(count):
        requests.append(
            Request(
                now,
                _length(chance, prompt_tokens, spread),
                _length(chance, output_tokens, spread),
            )
        )
        now += chance.expovariate(rate_rps)
    what = f"{rate_rps:g} requests/s (Poisson), {prompt_tokens} tokens in, {output_tokens} out"
    spread_text = f", spread {spread:g}" if spread else ""
    return Traffic(tuple(requests), what + spread_text, WARM_UP * requests[-1].arrival_s)


def _length(chance: random.Random, mean: int, spread: float) -> int:
    if not spread:
        return mean
    variance = math.log(1 + spread * spread)
    return max(1, round(chance.lognormvariate(math.log(mean) - variance / 2, math.sqrt(variance))))


def read_trace(path: Path) -> Traffic:
    """Read a trace.

    Raises:
        TrafficRefused: It cannot be read, a line is wrong, or it holds fewer than two requests.
    """
    try:
        text = path.read_text(encoding="utf-8-sig")
    except (OSError, UnicodeDecodeError) as exc:
        raise TrafficRefused(f"the trace cannot be read: {exc}", place=str(path)) from exc
    requests = []
    for line, row in _rows(text, path):
        requests.append(_request(row, f"{path}:{line}"))
    minimum = 2
    if len(requests) < minimum:
        raise TrafficRefused(
            f"the trace holds {len(requests)} requests", place=str(path),
            cure="a rate needs two requests at least",
        )  # fmt: skip
    requests.sort(key=lambda request: request.arrival_s)
    first = requests[0].arrival_s
    if requests[-1].arrival_s == first:
        raise TrafficRefused(
            "all requests of the trace arrive at once", place=str(path),
            cure="give each its arrival time",
        )  # fmt: skip
    moved = tuple(Request(r.arrival_s - first, r.prompt_tokens, r.output_tokens) for r in requests)
    return Traffic(moved, f"{path.name}: {len(moved)} requests")


def _rows(text: str, path: Path) -> Iterator[tuple[int, Mapping[str, Any]]]:
    lines = text.splitlines()
    if not lines:
        raise TrafficRefused("the trace is empty", place=str(path))
    if not lines[0].lstrip().startswith("{"):
        reader = csv.DictReader(lines)
        yield from ((reader.line_num, row) for row in reader)
        return
    for number, line in enumerate(lines, 1):
        if not line.strip():
            continue
        try:
            row = json.loads(line)
        except ValueError as exc:
            raise TrafficRefused(f"no JSON: {exc}", place=f"{path}:{number}") from exc
        if not isinstance(row, dict):
            raise TrafficRefused("a line is no mapping", place=f"{path}:{number}")
        yield number, row


def _request(row: Mapping[str, Any], place: str) -> Request:
    for when, prompt, output in _FORMS:
        if when in row and prompt in row and output in row:
            arrival = _seconds(when, row[when], place)
            return Request(
                arrival, _tokens(prompt, row[prompt], place), _tokens(output, row[output], place)
            )
    raise TrafficRefused(
        f"a line has the keys {', '.join(map(str, row)) or 'none'}", place=place,
        cure="give each request " + ", or ".join(" ".join(form) for form in _FORMS),
    )  # fmt: skip


def _seconds(name: str, value: object, place: str) -> float:
    try:
        if name == "TIMESTAMP":
            return datetime.fromisoformat(str(value)[:26].rstrip()).timestamp()
        seconds = float(str(value)) / (1000 if name == "timestamp" else 1)
    except ValueError as exc:
        raise TrafficRefused(f"{name} is `{value}`", place=place, cure="give a time") from exc
    if not math.isfinite(seconds) or seconds < 0:
        raise TrafficRefused(
            f"{name} is {value}", place=place, cure="give times of 0 or more, since any begin"
        )
    return seconds


def _tokens(name: str, value: object, place: str) -> int:
    try:
        number = float(str(value))
    except ValueError:
        number = math.nan
    if not number.is_integer() or number < 1:
        raise TrafficRefused(
            f"{name} is `{value}`", place=place, cure="give a whole number of 1 or more"
        )
    return int(number)
