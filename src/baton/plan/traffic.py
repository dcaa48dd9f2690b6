"""What is to be served: a trace (`spec/trace.py`), or one made up from a rate and lengths."""

from __future__ import annotations

import math
import random
from dataclasses import dataclass
from functools import cached_property
from typing import TYPE_CHECKING

from baton.errors import TrafficRefused
from baton.observe.percentile import percentile
from baton.plan.simulator import Request
from baton.spec.trace import trace_rows

if TYPE_CHECKING:
    from pathlib import Path

MOST_TOKENS = 1_000_000_000
_MOST_RPS, _LEAST_RPS = 1_000_000, 1e-6
_MOST_SPREAD = 100
WARM_UP = 0.1
"""Share of made-up traffic's time that is not counted: the fleet is empty at its begin. Of a trace
everything counts: its begin may be what matters."""


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

    @property
    def goes_on(self) -> bool:
        """Whether it is a sample of what never ends, and no trace."""
        return self.warm_up_s > 0

    @cached_property
    def longest_output(self) -> int:
        """Tokens of the longest answer."""
        return max(r.output_tokens for r in self.requests)

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

    def context_at(self, share: float) -> int:
        """A percentile of the tokens that a request has in decode on average over its steps."""
        middles = [r.prompt_tokens + r.output_tokens // 2 for r in self.requests]
        return int(percentile(middles, share))

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
    for name, value, most in (
        ("isl", prompt_tokens, MOST_TOKENS), ("osl", output_tokens, MOST_TOKENS),
        ("rate", rate_rps, _MOST_RPS),
    ):  # fmt: skip
        if not 0 < value <= most:
            raise TrafficRefused(
                f"--{name} is {value}", cure=f"give a number above 0, of {most:,} at most"
            )
    if rate_rps < _LEAST_RPS:
        raise TrafficRefused(f"--rate is {rate_rps:g}", cure=f"give {_LEAST_RPS:g} or more")
    if not 0 <= spread <= _MOST_SPREAD:
        raise TrafficRefused(f"--spread is {spread:g}", cure=f"give 0 to {_MOST_SPREAD}")
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
    """Read a trace. Requests that failed when it was recorded are left out.

    Raises:
        TraceRefused: It cannot be read, or a row is wrong.
        TrafficRefused: It holds fewer than two requests, or all arrive at once.
    """
    requests, failed = [], 0
    for row in trace_rows(path):
        if row.output_tokens:
            requests.append(Request(row.at_s, row.prompt_tokens, row.output_tokens))
        else:
            failed += 1
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
    left_out = f" ({failed} without an answer left out)" if failed else ""
    return Traffic(moved, f"{path.name}: {len(moved)} requests{left_out}")
