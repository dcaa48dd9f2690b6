r"""How a CPU engine that has just started comes to its speed: first tokens by age in requests.

Kernels are built by shape, and memory comes from the system once. So `baton profile` warms engines
up before it measures. Each length is timed when nothing was asked yet (but one prompt of each), and
after so many requests of all lengths, one after the other.

    python bench/plan_young.py --json bench/results/plan_young.json
"""

from __future__ import annotations

import argparse
import asyncio
import tempfile
from pathlib import Path
from typing import Any

from output import write
from plan_load import hurry, probers
from plan_validate import LONGEST, engines, model_of, say

from baton.plan.measure import Grid, first_tokens
from baton.plan.measure_traffic import warm_up

AGES = (0, 100, 200, 400, 800, 1200)
LENGTHS = (64, 256, 512, 1024)


async def ages(url: str, model: str) -> dict[str, dict[str, float]]:
    """Milliseconds by length, by how many requests there were before."""
    found: dict[str, dict[str, float]] = {}
    grid, age = Grid(lengths=LENGTHS, prefill_batches=(1,), longest=LONGEST), 0
    async with probers([url], model) as (prober,):
        for until in AGES:
            lengths = grid.lengths_for(LONGEST)
            while age < until:  # `warm_up` ends after a while
                age += await warm_up([prober], lengths, until - age, say)
            points = await first_tokens(prober, grid, lengths, say)
            found[str(until)] = {str(p.tokens): round(1e3 * p.seconds, 1) for p in points}
            age += sum(p.samples + 1 for p in points)
    return found


def main() -> None:
    """One engine of a pair; the other has nothing to do."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--json", type=Path)
    given = parser.parse_args()
    with (
        tempfile.TemporaryDirectory() as folder,
        engines(Path(folder), hold=True) as (urls, facts),
    ):
        figures: dict[str, Any] = {**facts, **hurry()}
        figures["first_token_ms"] = asyncio.run(ages(urls[0], asyncio.run(model_of(urls[0]))))
    write(figures, given.json)


if __name__ == "__main__":
    main()
