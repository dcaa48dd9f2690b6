"""Draws bench/results/gateway.json: `python bench/gateway_plot.py FILE.json` writes FILE.png.

Runs in the environment of requirements/bench.txt, which has matplotlib and not Baton.
"""

from __future__ import annotations

import json
import sys
from pathlib import Path
from typing import Any

import matplotlib as mpl
from bars import Bar, draw

mpl.use("Agg")
import matplotlib.pyplot as plt

COLOURS = {
    "direct": "#9aa0a6",
    "baton": "#1f6feb",
    "baton_deployed": "#79b0ff",
    "vllm_router": "#d9822b",
}
NAMES = {
    "direct": "by hand",
    "baton": "baton gateway",
    "baton_deployed": "baton deployed\n(HAProxy, Ray Serve)",
    "vllm_router": "vllm-router",
}


def of_all(found: dict[str, Any], group: str) -> dict[str, tuple[Any, Any]]:
    """Figure and spread of every subject; the deployed one from its own part."""
    parts = [found, found.get("deployed")]
    both: dict[str, tuple[Any, Any]] = {}
    for part in parts:
        if part is not None:
            for who, value in part[group].items():
                both.setdefault(who, (value, part["spread"][group][who]))
    return {who: both[who] for who in COLOURS if who in both}


def bars(found: dict[str, Any], group: str, share: str | None) -> list[Bar]:
    """Each subject that was measured; `share` where a figure has percentiles."""
    told = []
    for who, (value, spread) in of_all(found, group).items():
        height, (low, high) = (value, spread) if share is None else (value[share], spread[share])
        told.append(Bar(NAMES[who], COLOURS[who], height, low, high))
    return told


def main() -> None:
    """Read the report, write the picture."""
    source = Path(sys.argv[1])
    found = json.loads(source.read_text(encoding="utf-8"))
    figure, axes = plt.subplots(2, 3, figsize=(12, 7))
    panels = (
        ("added_ttft_ms", "added TTFT p50, ms", "p50"),
        ("added_ttft_ms", "added TTFT p99, ms", "p99"),
        ("added_way_us", "added delay of a token p50, µs", "p50"),
        ("cpu_us_per_request", "CPU µs a request", None),
        ("cpu_us_per_chunk", "CPU µs a streamed chunk", None),
        ("requests_per_s", "requests/s, 16 tokens each, one core", None),
    )
    for place, (group, title, share) in zip(axes.flat, panels, strict=True):
        draw(place, bars(found, group, share), title)
    versions = found["versions"]
    figure.suptitle(
        f"Gateways before the same engines: {found['rounds']} rounds, medians, lowest, highest. "
        f"vllm-router {versions.get('vllm_router', '-')}, Python {versions['python']}. "
        "Deployed: measured beside Ray, same run.",
        fontsize=9,
    )
    figure.tight_layout()
    figure.savefig(source.with_suffix(".png"), dpi=110)


if __name__ == "__main__":
    main()
