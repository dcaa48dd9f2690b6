"""`/metrics` under vLLM's names and labels: those that gateways, dashboards and drills read."""

from __future__ import annotations

import time
from bisect import bisect_left
from collections import Counter
from dataclasses import dataclass, field
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping

_STARTED_S = time.time()
CONTENT_TYPE = b"text/plain; version=1.0.0; charset=utf-8"

# vLLM's buckets, in seconds and bytes.
_SECONDS = (0.1, 0.15, 0.2, 0.3, 0.4, 0.5, 0.75, 1, 2.5, 5, 7.5, 10, 20, 40, 80)
_TTFT = (0.001, 0.005, 0.01, 0.02, 0.04, 0.06, 0.08, 0.1, 0.25, *_SECONDS[5:], 160, 640, 2560)
_ITL = (0.01, 0.025, 0.05, 0.075, *_SECONDS)
_MINUTES = (15, 20, 30, 40, 50, 60, 120, 240, 480, 960, 1920, 7680)
_E2E = (0.3, 0.5, 0.8, 1, 1.5, 2, 2.5, 5, 10, *_MINUTES)
_XFER = (0.005, 0.01, 0.025, 0.05, 0.075, 0.1, 0.2, 0.3, 0.5, 0.75, 1, 5)
_BYTES = tuple(float(2 ** (10 + power)) for power in range(1, 25, 2))

FINISH_REASONS = ("stop", "length", "abort", "error", "repetition")
PROMPT_SOURCES = ("local_compute", "local_cache_hit", "external_kv_transfer")


class Histogram:
    """Counts of values up to each bound."""

    def __init__(self, bounds: tuple[float, ...]) -> None:
        self._bounds = bounds
        self._counts = [0] * (len(bounds) + 1)
        self._sum = 0.0

    def observe(self, value: float) -> None:
        self._counts[bisect_left(self._bounds, value)] += 1
        self._sum += value

    @property
    def sum(self) -> float:
        """All values together."""
        return self._sum

    @property
    def count(self) -> int:
        """How many values there were."""
        return sum(self._counts)

    def lines(self, name: str, labels: str) -> Iterator[str]:
        total = 0
        for bound, count in zip((*self._bounds, float("inf")), self._counts, strict=True):
            total += count
            text = "+Inf" if bound == float("inf") else repr(float(bound))
            yield f'{name}_bucket{{{labels},le="{text}"}} {float(total)}'
        yield f"{name}_count{{{labels}}} {float(total)}"
        yield f"{name}_sum{{{labels}}} {self._sum}"


@dataclass
class Counts:
    """What has happened since the start. Plain attributes: they are touched for every token."""

    running: int = 0
    waiting_capacity: int = 0
    waiting_deferred: int = 0
    prompt_tokens: Counter[str] = field(default_factory=Counter)
    generation_tokens: int = 0
    finished: Counter[str] = field(default_factory=Counter)
    preemptions: int = 0
    failed_transfers: int = 0
    failed_notifications: int = 0
    ttft: Histogram = field(default_factory=lambda: Histogram(_TTFT))
    itl: Histogram = field(default_factory=lambda: Histogram(_ITL))
    e2e: Histogram = field(default_factory=lambda: Histogram(_E2E))
    xfer_time: Histogram = field(default_factory=lambda: Histogram(_XFER))
    xfer_bytes: Histogram = field(default_factory=lambda: Histogram(_BYTES))


def exposition(
    counts: Counts, *, model_id: str, kv_usage: float, kv_expired: int, config: Mapping[str, int]
) -> bytes:
    """The page in Prometheus' text format.

    Args:
        counts: The engine's counts.
        model_id: For the label `model_name`.
        kv_usage: Share of KV blocks that are held, 0 to 1.
        kv_expired: Offers whose lease ended unread.
        config: `block_size` and `num_gpu_blocks`, for `vllm:cache_config_info`.
    """
    name = model_id.replace("\\", r"\\").replace('"', r"\"")
    labels = f'engine="0",model_name="{name}"'
    # Of the process, not of vLLM: it tells an engine from the one that was there before.
    lines = [
        "# TYPE process_start_time_seconds gauge",
        f"process_start_time_seconds {_STARTED_S}",
    ]

    def put(kind: str, metric: str, values: Mapping[str, float]) -> None:
        lines.append(f"# TYPE vllm:{metric} {kind}")
        lines.extend(
            f"vllm:{metric}{{{labels}{extra}}} {float(value)}" for extra, value in values.items()
        )

    waiting = counts.waiting_capacity + counts.waiting_deferred
    prompt_tokens = counts.prompt_tokens
    put("gauge", "num_requests_running", {"": counts.running})
    put("gauge", "num_requests_waiting", {"": waiting})
    put(
        "gauge",
        "num_requests_waiting_by_reason",
        {
            ',reason="capacity"': counts.waiting_capacity,
            ',reason="deferred"': counts.waiting_deferred,
        },
    )
    put("gauge", "kv_cache_usage_perc", {"": kv_usage})
    # No prefix cache here: every local prompt token is looked for and none is found.
    put("counter", "prefix_cache_queries_total", {"": prompt_tokens["local_compute"]})
    put("counter", "prefix_cache_hits_total", {"": 0})
    external = prompt_tokens["external_kv_transfer"]
    put("counter", "external_prefix_cache_queries_total", {"": external})
    put("counter", "external_prefix_cache_hits_total", {"": external})
    put("counter", "num_preemptions_total", {"": counts.preemptions})
    put("counter", "prompt_tokens_total", {"": sum(prompt_tokens.values())})
    by_source = {f',source="{source}"': prompt_tokens[source] for source in PROMPT_SOURCES}
    put("counter", "prompt_tokens_by_source_total", by_source)
    put("counter", "generation_tokens_total", {"": counts.generation_tokens})
    finished = {f',finished_reason="{why}"': counts.finished[why] for why in FINISH_REASONS}
    put("counter", "request_success_total", finished)
    put("counter", "nixl_num_failed_transfers_total", {"": counts.failed_transfers})
    put("counter", "nixl_num_failed_notifications_total", {"": counts.failed_notifications})
    put("counter", "nixl_num_kv_expired_reqs_total", {"": kv_expired})
    facts = "".join(f',{key}="{value}"' for key, value in config.items())
    put("gauge", "cache_config_info", {facts: 1})
    histograms = {
        "time_to_first_token_seconds": counts.ttft,
        "inter_token_latency_seconds": counts.itl,
        "e2e_request_latency_seconds": counts.e2e,
        "nixl_xfer_time_seconds": counts.xfer_time,
        "nixl_bytes_transferred": counts.xfer_bytes,
    }
    for metric, histogram in histograms.items():
        lines.append(f"# TYPE vllm:{metric} histogram")
        lines.extend(histogram.lines(f"vllm:{metric}", labels))
    return ("\n".join(lines) + "\n").encode()
