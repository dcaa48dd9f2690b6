"""From a YAML to a handoff that succeeded: where the time goes, with cold and warm weights.

In each round the demo's file is brought up and taken down three times, in turn:

`cold`   the weight file is dropped from the page cache first (posix_fadvise, DONTNEED)
`warm`   it is there, as after any earlier start
`ray`    the same file through Ray Serve LLM's own builder, warm

Figures are medians over rounds, with the lowest and highest; `baton up --timings` gives the parts.

    python bench/start_up.py [--rounds 3] [--json bench/results/start_up.json]
"""

from __future__ import annotations

import argparse
import json
import os
import subprocess
import sys
import tempfile
import time
from pathlib import Path
from typing import Any

import psutil
from output import spread, write

from baton.demo.file import demo_file
from baton.demo.model import ensure_demo_model

WAYS = ("cold", "warm", "ray")
BATON = (sys.executable, "-m", "baton.cli")
NAME = "start-up-bench"
PORT = 18431
LONGEST_S = 400.0


def drop_from_cache(folder: Path) -> int:
    """Have the kernel forget a model's weight files; how many bytes that were."""
    size = 0
    for path in folder.glob("*.safetensors"):
        with path.open("rb") as file:
            os.fdatasync(file.fileno())
            os.posix_fadvise(file.fileno(), 0, 0, os.POSIX_FADV_DONTNEED)
        size += path.stat().st_size
    return size


def one_start(file: Path, way: str, model: Path) -> dict[str, Any]:
    """Up and down once.

    Raises:
        subprocess.CalledProcessError: `baton up` failed; its last words are on stderr.
    """
    if way == "cold":
        drop_from_cache(model)
    command = [*BATON, "up", str(file), "--name", NAME, "--port", str(PORT), "--format", "json"]
    if way == "ray":
        command += ["--builder", "ray"]
    idle, began_s = psutil.cpu_times_percent(interval=1.0).idle, time.monotonic()
    try:
        done = subprocess.run(
            command, capture_output=True, text=True, check=False,
            timeout=LONGEST_S,
        )  # fmt: skip
        took_s = time.monotonic() - began_s
        if done.returncode != 0:
            sys.stderr.write(done.stderr[-2000:])
        done.check_returncode()
    finally:
        subprocess.run([*BATON, "down", NAME], capture_output=True, check=False)
    found = json.loads(done.stdout)
    return {"ready_s": round(took_s, 2), "idle_before_percent": idle, **found["timings"]}


def report(rounds: list[dict[str, dict[str, Any]]], model: Path) -> dict[str, Any]:
    """Medians with lowest and highest, and the ratio to Ray's own application of each round."""
    ways: dict[str, Any] = {}
    for way in WAYS:
        turns = [each[way] for each in rounds if way in each]
        if not turns:
            continue
        ways[way] = {"ready_s": spread([turn["ready_s"] for turn in turns])}
        for step in turns[0]["steps_s"]:
            ways[way].setdefault("steps_s", {})[step] = spread(
                [turn["steps_s"][step] for turn in turns if step in turn["steps_s"]]
            )
        for role in turns[0]["engines"]:
            starts = [turn["engines"][role] for turn in turns if role in turn["engines"]]
            ways[way].setdefault("engines", {})[role] = {
                "phases_s": {
                    phase: spread([start["phases_s"].get(phase, 0.0) for start in starts])
                    for phase in starts[0]["phases_s"]
                },
                "weights_s": spread([start["weights_s"] for start in starts]),
                "weights_from_disk_bytes": spread(
                    [start["weights_from_disk_bytes"] or 0 for start in starts]
                ),
            }
    both = [each for each in rounds if {"warm", "ray"} <= set(each)]
    return {
        "what": "Seconds until the first handoff succeeded: the demo's file, one prefill and one "
        "decode engine",
        "rounds": len(rounds),
        "model": model.name,
        "weights_bytes": sum(path.stat().st_size for path in model.glob("*.safetensors")),
        "ways": ways,
        "warm_to_ray": spread(e["warm"]["ready_s"] / e["ray"]["ready_s"] for e in both)
        if both
        else None,
        "idle_before_percent": [
            {way: turn["idle_before_percent"] for way, turn in each.items()} for each in rounds
        ],
    }


def main() -> int:
    """Go through the rounds."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--ways", default=",".join(WAYS), help="which of %(default)s")
    parser.add_argument("--json", type=Path)
    asked = parser.parse_args()
    chosen = [way for way in WAYS if way in asked.ways.split(",")]
    model = ensure_demo_model(progress=lambda text: print(text, file=sys.stderr))
    rounds: list[dict[str, dict[str, Any]]] = []
    with tempfile.TemporaryDirectory(prefix="baton-start-up-") as folder:
        file = Path(folder) / "app.yaml"
        file.write_text(demo_file(model), encoding="utf-8")
        for number in range(asked.rounds):
            turns: dict[str, dict[str, Any]] = {}
            for way in chosen:
                turns[way] = one_start(file, way, model)
                print(f"round {number + 1} {way}: {turns[way]['ready_s']} s", file=sys.stderr)
            rounds.append(turns)
    write(report(rounds, model), asked.json)
    return 0


if __name__ == "__main__":
    sys.exit(main())
