"""Three plans with their reasons: "don't", 1P1D, and a larger xPyD. Also what they cost to make.

python bench/plan_examples.py --json bench/results/plan_examples.json
"""

from __future__ import annotations

import argparse
import time
from pathlib import Path
from typing import Any

from output import write
from plan_models import LLAMA_70B, QWEN3_8B

from baton.plan.bounds import Promise
from baton.plan.devices import find_hardware
from baton.plan.judge import engine_kinds, judge, modelled_notes
from baton.plan.model import shape_from_config
from baton.plan.search import Search
from baton.plan.traffic import made_up

EXAMPLES: dict[str, dict[str, Any]] = {
    "dont": {
        "model": "Qwen3-8B", "config": QWEN3_8B, "gpus": ["g5", "g6"],
        "prompt_tokens": 1000, "output_tokens": 200, "rate_rps": 0.5, "spread": 0.5,
        "ttft_s": 2.0, "tpot_s": 0.08,
    },
    "1p1d": {
        "model": "Qwen3-8B", "config": QWEN3_8B, "gpus": ["p5.4xlarge"],
        "prompt_tokens": 16000, "output_tokens": 150, "rate_rps": 0.8, "spread": 0.3,
        "ttft_s": 3.0, "tpot_s": 0.010,
    },
    "larger": {
        "model": "Llama-3-70B shape", "config": LLAMA_70B, "gpus": ["p5.48xlarge"],
        "prompt_tokens": 8000, "output_tokens": 300, "rate_rps": 12.0, "spread": 0.3,
        "ttft_s": 2.0, "tpot_s": 0.025,
    },
}  # fmt: skip
SEEDS = (0, 1, 2)


def plan(example: dict[str, Any], seed: int) -> dict[str, Any]:
    """One plan, as `baton plan --json` prints it, and the CPU seconds that it took."""
    model = shape_from_config(example["config"], example["model"])
    keys = ("prompt_tokens", "output_tokens", "rate_rps", "spread")
    traffic = made_up(**{key: example[key] for key in keys}, seed=seed)
    promise = Promise(example["ttft_s"], example["tpot_s"])
    begun = time.process_time()
    hardware = [find_hardware(name) for name in example["gpus"]]
    kinds, refused = engine_kinds(model, hardware, traffic.longest)
    search = Search(traffic, promise, kinds)
    found = judge(search, refused, "modelled", modelled_notes(kinds, model))
    return {
        "cpu_s": round(time.process_time() - begun, 2),
        "simulations": found.simulations,
        **found.as_dict(),
    }


def main() -> None:
    """Make all three with the first seed; of the others only the answer, to see how firm it is."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--json", type=Path)
    asked = parser.parse_args()
    figures: dict[str, Any] = {}
    for name, example in EXAMPLES.items():
        first, *others = (plan(example, seed) for seed in SEEDS)
        asked_for = {key: value for key, value in example.items() if key != "config"}
        answers = [(one["disaggregate"], (one["best"] or {}).get("layout")) for one in others]
        figures[name] = {"asked": asked_for, "other_seeds": answers, **first}
    write(figures, asked.json)


if __name__ == "__main__":
    main()
