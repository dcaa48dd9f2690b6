"""The roofline's predictions beside times that were measured on H200s, with the error of each.

The measurements were made by hand with vLLM 0.24 and NIXL 1.3.2 on a model of Qwen3-8B's shape
with dummy weights; no file here holds the runs. They were known when the shares of
`roofline.Assumptions` were chosen as round figures, so small errors in prefill and decode are no
proof that other GPUs are predicted as well. What a phase's streams looked like is taken from the
script that made the load.

    python bench/plan_published.py --json bench/results/plan_published.json
"""

from __future__ import annotations

import argparse
from pathlib import Path
from typing import TYPE_CHECKING, Any

from output import write
from plan_models import QWEN3_8B

from baton.plan.devices import find_hardware
from baton.plan.model import shape_from_config
from baton.plan.roofline import link_handoff, roofline

if TYPE_CHECKING:
    from baton.plan.costs import StepCosts

LONG = 8192
PROMPT, ANSWER = 512, 400  # of the steady streams


def prompt_in_chunks(costs: StepCosts, budget: int, streams: int, context: int) -> list[float]:
    """The steps that read a long prompt beside so many streams."""
    steps, done = [], 0
    while done < LONG:
        take = min(LONG - done, budget - streams)
        pairs = take * (done + take / 2)
        steps.append(costs.step_s(take, pairs, streams, streams * costs.kv.of(context)))
        done += take
    return steps


def after(costs: StepCosts, streams: int, seconds: float) -> int:
    """Tokens of context of streams that began together and decode undisturbed for so long."""
    steps = costs.steps_within(seconds, streams, streams * costs.kv.of(PROMPT))
    return PROMPT + steps


def rows() -> list[dict[str, Any]]:
    """What was measured, what is predicted."""
    gpu = find_hardware("H200").gpu
    costs = roofline(shape_from_config(QWEN3_8B, "qwen3-8b"), gpu, 1)
    found: list[dict[str, Any]] = []

    def row(what: str, unit: str, measured: float, predicted: float) -> None:
        found.append(
            {
                "what": what,
                "unit": unit,
                "measured": measured,
                "predicted": round(predicted, 1),
                "error_percent": round(100 * (predicted / measured - 1)),
            }
        )

    for tokens, measured in ((2048, 55.0), (8192, 221.0), (15000, 454.0)):
        alone = costs.request_s + costs.prefill_s(tokens, budget=LONG)
        row(f"first token of {tokens} tokens, alone", "ms", measured, 1e3 * alone)
    late = after(costs, 32, 16.0)
    row("ITL p99 of 32 streams alone, after 16 s", "ms", 8.7,
        1e3 * costs.step_s(0, 0.0, 32, 32 * costs.kv.of(late)))  # fmt: skip
    middle = PROMPT + ANSWER // 2
    row("ITL p50 of 16 streams of 512 + 400 tokens", "ms", 5.7,
        1e3 * costs.step_s(0, 0.0, 16, 16 * costs.kv.of(middle)))  # fmt: skip
    row("ITL p50 of 32 such streams on a decode engine", "ms", 7.3,
        1e3 * costs.step_s(0, 0.0, 32, 32 * costs.kv.of(middle)))  # fmt: skip
    whole = prompt_in_chunks(costs, LONG, 32, middle)
    row("longest gap of 32 streams, an 8,192-token prompt in one step", "ms", 197.0,
        1e3 * max(whole))  # fmt: skip
    chunks = prompt_in_chunks(costs, 2048, 32, middle)
    row("longest gap of 32 streams, 2,048 tokens a step", "ms", 92.0, 1e3 * max(chunks))
    beside = prompt_in_chunks(costs, LONG, 16, middle)
    row("first token of 8,192 tokens beside 16 streams", "ms", 233.0,
        1e3 * (costs.request_s + sum(beside)))  # fmt: skip
    row("KV between two H200s over NVLink, raw NIXL read", "GB/s", 228.0,
        link_handoff(gpu, 1).bytes_per_s / 1e9)  # fmt: skip
    return found


def main() -> None:
    """Print all rows."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--json", type=Path)
    asked = parser.parse_args()
    write({"gpu": "H200", "model": "Qwen3-8B shape", "rows": rows()}, asked.json)


if __name__ == "__main__":
    main()
