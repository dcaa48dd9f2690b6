"""The arithmetic of bench/engines.py: no clock, no process, no network.

`ttft`            request sent → first token read
`itl`             between two chunks of a stream, as they came: a reader's pauses. A chunk is what
                  one read of the connection brought, and may hold several tokens
`itl_per_token`   the same pauses, each divided by the tokens that ended it and counted once for
                  each of these: what the tokens came at on average where they come in bursts
`tpot`            (last token - first token) / (tokens - 1), of each answer
`requests_per_s`  answers of the window / (first request sent → last answer complete)
"""

from __future__ import annotations

from collections import Counter
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

from baton.observe.percentile import percentile

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

Figures = dict[str, float]
# Ray's exporter writes `ray_` before names and `_` for `:`.
_TRANSFERS = ("vllm:nixl_xfer_time_seconds_count", "ray_vllm_nixl_xfer_time_seconds_count")


@dataclass
class Answer:
    """One streamed answer, as its caller saw it. Times are seconds on one clock."""

    began_s: float
    chunks: list[tuple[float, int]] = field(default_factory=list)
    """When a chunk came, and how many tokens it brought."""
    ended_s: float = 0.0
    text: str = ""
    route: str = ""
    """What the answer's headers say of the way that it took; empty where they say nothing."""

    @property
    def tokens(self) -> int:
        return sum(count for _, count in self.chunks)

    @property
    def ttft_s(self) -> float:
        return self.chunks[0][0] - self.began_s

    @property
    def tpot_s(self) -> float:
        """Nothing of the first chunk counts, however many tokens it brought."""
        later = self.tokens - self.chunks[0][1]
        return (self.chunks[-1][0] - self.chunks[0][0]) / later if later else 0.0

    def gaps(self) -> list[tuple[float, int]]:
        """Seconds between each chunk and the one before, and the tokens that it brought."""
        return [
            (at - before, count)
            for (before, _), (at, count) in zip(self.chunks, self.chunks[1:], strict=False)
        ]


def figures_of(answers: Sequence[Answer]) -> Figures:
    """What one window of one setup came to, in milliseconds and requests a second.

    Raises:
        ValueError: There are no answers, or one of them holds no token.
    """
    if not answers or not all(answer.chunks for answer in answers):
        raise ValueError("figures need answers, each with a token at least")
    ttft = [1e3 * answer.ttft_s for answer in answers]
    gaps = [gap for answer in answers for gap in answer.gaps()]
    each = [1e3 * gap for gap, _ in gaps]
    by_token = [1e3 * gap / count for gap, count in gaps for _ in range(count)]
    took_s = max(a.ended_s for a in answers) - min(a.began_s for a in answers)
    chunks = sum(len(answer.chunks) for answer in answers)
    return {
        "ttft_ms_p50": percentile(ttft, 0.5),
        "ttft_ms_p99": percentile(ttft, 0.99),
        "itl_ms_p50": percentile(each, 0.5),
        "itl_ms_p99": percentile(each, 0.99),
        "itl_per_token_ms_p50": percentile(by_token, 0.5),
        "itl_per_token_ms_p99": percentile(by_token, 0.99),
        "tpot_ms_p50": percentile([1e3 * answer.tpot_s for answer in answers], 0.5),
        "tokens_per_chunk": sum(answer.tokens for answer in answers) / chunks,
        "requests_per_s": len(answers) / took_s,
        "requests": len(answers),
    }


def stages_of(timelines: Sequence[Mapping[str, Any]]) -> dict[str, Any]:
    """Median milliseconds of each stage of these requests, and how their first tokens went.

    Args:
        timelines: As `baton.observe.timeline` writes them.
    """
    stages: dict[str, list[float]] = {}
    for timeline in timelines:
        for stage, seconds in timeline["stages"].items():
            stages.setdefault(stage.removesuffix("_s"), []).append(1e3 * seconds)
    first = Counter(str(timeline["first_token"]) for timeline in timelines)
    return {
        **{stage: round(percentile(values, 0.5), 2) for stage, values in stages.items()},
        "first_tokens": dict(first),
    }


def transfers_of(metrics: str) -> int:
    """KV transfers in vLLM's `/metrics`, over all its engines."""
    return sum(
        int(float(line.rsplit(" ", 1)[1]))
        for line in metrics.splitlines()
        if line.startswith(_TRANSFERS)
    )


def same_beginning(one: str, other: str) -> int:
    """How many characters two texts have in common before they part."""
    for place, (a, b) in enumerate(zip(one, other, strict=False)):
        if a != b:
            return place
    return min(len(one), len(other))
