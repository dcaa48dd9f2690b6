r"""Sets predictions beside loads that they were not made from: real engines on this machine.

One engine and a P/D pair, each in turn: `baton profile` measures it, then open-loop Poisson traffic
of several lengths and rates is sent, and the very same arrivals and lengths are played in the
simulator with the profile's costs. p50 and p90 of TTFT and TPOT stand side by side. No load is used
to fit anything.

Before and after each load a few requests say how fast the machine is: where they differ from those
that were sent beside the profile, the machine has changed and not the model (`drift_percent`), and
where requests were sent late (`sent_late_ms_p99`) it stood still, real-time priority or not. Each
prediction is also made with the profile's times as much slower or faster (`at_its_speed_ms`).

    python bench/plan_validate.py --json bench/results/plan_real.json
    python bench/plan_validate.py --url http://127.0.0.1:8000 --load 300:24:2 --load 800:16:1
    python bench/plan_validate.py --table bench/results/plan_real.json
"""

from __future__ import annotations

import argparse
import asyncio
import contextlib
import json
import os
import statistics
import sys
import tempfile
from dataclasses import asdict
from pathlib import Path
from typing import TYPE_CHECKING, Any

from output import write
from plan_load import Sent, Speed, hurry, probers, send, speed

from baton.observe.percentile import percentile
from baton.plan.calibrate import played
from baton.plan.measure import Grid, measure
from baton.plan.simulator import Request
from baton.plan.traffic import made_up

ROOT = Path(__file__).resolve().parents[1]
if str(ROOT) not in sys.path:
    sys.path.insert(0, str(ROOT))

from tests.real_engines import EngineSpec, RealEngine, start_engines  # noqa: E402

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence

    from baton.plan.profile_file import Profile

MAX_SEQS, BUDGET = 64, 2048
GRID = Grid(lengths=(64, 256, 512, 1024), decode_batches=(1, 2, 4, 8, 16), rounds=5)
LONGEST = 1900
SPREAD = 0.5
ALONE = ("512:32:6", "200:24:10", "900:16:5", "300:64:4", "512:32:2")
PAIR = ("512:32:4", "200:24:6", "900:16:3", "300:64:2.5", "512:32:1.5")
AROUND_S = 0.006
"""Nearer than that, two moments are not told apart."""
SAME = 15.0
"""Percent within which a prediction counts as right."""
DRIFTED = 10.0
"""Percent of another speed at which the machine counts as another."""
STOOD_STILL_MS = 10.0
"""One request in a hundred was sent so late, by a process that comes before all others."""
ARGUMENTS = ("--max-num-seqs", str(MAX_SEQS), "--max-num-batched-tokens", str(BUDGET))


def requests_of(load: str, seconds: float, seed: int, longest: int) -> list[Request]:
    """Poisson arrivals and log-normal lengths of `ISL:OSL:RATE`, within what the engine takes."""
    isl, osl, rate = load.split(":")
    traffic = made_up(
        prompt_tokens=int(isl), output_tokens=int(osl), rate_rps=float(rate), spread=SPREAD,
        count=max(int(float(rate) * seconds), 20), seed=seed,
    )  # fmt: skip
    found = []
    for request in traffic.requests:
        # Two tokens at least, for a time a token.
        output = min(max(request.output_tokens, 2), longest // 4)
        prompt = min(request.prompt_tokens, longest - output)
        found.append(Request(request.arrival_s, prompt, output))
    return found


def at_speed(profile: Profile, percent: dict[str, float]) -> Profile:
    """The profile as it would have been on the machine as it was during a load."""
    first, step = (1 + percent[name] / 100 for name in ("first_s", "step_s"))

    def slower(points: Sequence[Any], share: float, *names: str) -> tuple[Any, ...]:
        return tuple(
            point.model_copy(update={name: getattr(point, name) * share for name in names})
            for point in points
        )

    return profile.model_copy(
        update={
            "prefill": slower(profile.prefill, first, "seconds"),
            "decode": slower(profile.decode, step, "step_s"),
            "mixed": slower(profile.mixed, first, "seconds"),
            "handoff": slower(profile.handoff, first, "seconds", "busy_s"),
            "wake": slower(profile.wake, first, "fixed_s"),
        }
    )


def compared(measured: Sequence[Sent], said: Sequence[Any]) -> dict[str, Any]:
    """p50 and p90 of both times, in milliseconds, and the error."""
    rows = {}
    for name in ("ttft", "tpot"):
        for share in (0.5, 0.9):
            real = percentile([getattr(one, f"{name}_s") for one in measured], share)
            model = percentile([getattr(one, f"{name}_s") for one in said], share)
            rows[f"{name}_p{100 * share:.0f}"] = {
                "measured_ms": round(1e3 * real, 2),
                "predicted_ms": round(1e3 * model, 2),
                "error_percent": round(100 * (model / real - 1), 1),
            }
    return rows


def beside_answers(requests: Sequence[Request], sent: Sequence[Sent]) -> dict[str, int]:
    """First tokens that came while another answer was being written, and just when all had ended.

    Two engines that run side by side give the first kind; the second says that one held the other
    up.
    """
    spans = [(r.arrival_s + s.late_s, s) for r, s in zip(requests, sent, strict=True)]
    found = {"came_beside_others": 0, "came_when_others_had_ended": 0}
    for begun, one in spans:
        first = begun + one.ttft_s
        others = [(at + o.times_s[0], at + o.times_s[-1]) for at, o in spans if o is not one]
        if any(a < first - AROUND_S and b > first + AROUND_S / 2 for a, b in others):
            found["came_beside_others"] += 1
        elif any(begun + 2 * AROUND_S < b <= first for _, b in others):
            found["came_when_others_had_ended"] += 1
    return found


def drift(now: Sequence[Speed], then: Speed) -> dict[str, float]:
    """Percent by which first tokens and steps are slower than beside the profile."""
    return {
        name: round(100 * (statistics.mean(getattr(one, name) for one in now)
                           / getattr(then, name) - 1), 1)
        for name in ("first_s", "step_s")
    }  # fmt: skip


def changed(row: dict[str, Any]) -> bool:
    """Whether the machine was another than beside the profile, or stood still in between."""
    drifted = any(abs(share) > DRIFTED for share in row["drift_percent"].values())
    return drifted or row["sent_late_ms_p99"] > STOOD_STILL_MS


async def model_of(url: str) -> str:
    """The name that an engine serves its model under."""
    async with probers([url], "") as (prober,):
        return str(json.loads(await prober.get("/v1/models"))["data"][0]["id"])


def validate(  # noqa: PLR0917 - where, what, how long
    urls: Sequence[str], loads: Sequence[str], seconds: float, rounds: int, raw: Path, name: str
) -> dict[str, Any]:
    """Profile, then each load in turn, as often as there are rounds."""
    say = lambda line: print(f"  {line}", file=sys.stderr, flush=True)  # noqa: E731
    model = asyncio.run(model_of(urls[0]))
    apart = len(urls) > 1
    profile = asyncio.run(
        measure(
            urls[0], decode_url=urls[1] if apart else None, grid=GRID, say=say,
            max_num_batched_tokens=BUDGET,
        )
    )  # fmt: skip
    (raw / f"{name}_profile.json").write_text(profile.model_dump_json(indent=1), encoding="utf-8")
    then = last = asyncio.run(speed(urls, model))
    longest = min(profile.engine.max_model_len or LONGEST, LONGEST)
    rows = []
    for number, load in enumerate(list(loads) * rounds):
        requests = requests_of(load, seconds, 100 + number, longest)
        sent = asyncio.run(send(urls, model, requests))
        before, last = last, asyncio.run(speed(urls, model))
        row = {
            "load": load,
            "requests": len(requests),
            "load_average": round(os.getloadavg()[0], 1),
            "drift_percent": drift((before, last), then),
            "sent_late_ms_p99": round(1e3 * percentile([one.late_s for one in sent], 0.99), 1),
            **compared(sent, played(profile, requests, apart=apart, max_seqs=MAX_SEQS)),
        }
        adjusted = at_speed(profile, row["drift_percent"])
        there = compared(sent, played(adjusted, requests, apart=apart, max_seqs=MAX_SEQS))
        for cell, figures in there.items():
            row[cell]["at_its_speed_ms"] = figures["predicted_ms"]
            row[cell]["at_its_speed_error_percent"] = figures["error_percent"]
        row["machine_changed"] = changed(row)
        if apart:
            row["first_tokens"] = beside_answers(requests, sent)
        rows.append(row)
        say(json.dumps(row))
        record = {"row": row, "requests": [[r.arrival_s, *asdict(s).values()]
                  for r, s in zip(requests, sent, strict=True)]}  # fmt: skip
        (raw / f"{name}_{number}.json").write_text(json.dumps(record), encoding="utf-8")
    return {"profile": profile.model_dump(mode="json"), "speed": asdict(then), "rows": rows}


def counted(setups: dict[str, Any]) -> dict[str, Any]:
    """How many predictions are within 15 %, of those whose machine stayed the same and of all."""
    rows = [row for setup in setups.values() for row in setup["rows"]]
    same = [row for row in rows if not row["machine_changed"]]
    found = {}
    for name, those, key in (
        ("all", rows, "error_percent"), ("machine_same", same, "error_percent"),
        ("all_at_its_speed", rows, "at_its_speed_error_percent"),
    ):  # fmt: skip
        errors = [abs(cell[key]) for row in those for cell in row.values()
                  if isinstance(cell, dict) and key in cell]  # fmt: skip
        found[name] = {
            "predictions": len(errors),
            "within_15_percent": sum(error <= SAME for error in errors),
            "median_error_percent": round(statistics.median(errors), 1) if errors else None,
        }
    return found


@contextlib.contextmanager
def engines(folder: Path, *, own_sessions: bool) -> Iterator[dict[str, list[RealEngine]]]:
    """One by itself, and a pair; whoever is not asked is stopped."""
    specs = [
        EngineSpec("plain", "alone", ARGUMENTS),
        EngineSpec("prefill", "prefill", ARGUMENTS),
        EngineSpec("decode", "decode", ARGUMENTS),
    ]
    with start_engines(specs, folder, own_sessions=own_sessions) as started:
        alone, prefill, decode = started
        everybody = (alone, prefill, decode)
        try:
            yield {"without_pd": [alone], "pd": [prefill, decode]}
        finally:
            for engine in everybody:
                engine.thaw()  # a process that is stopped does not hear SIGTERM


def table(figures: dict[str, Any]) -> str:
    """For the guide: milliseconds measured / predicted (error, error at the machine's speed)."""
    names = ("ttft_p50", "ttft_p90", "tpot_p50", "tpot_p90")
    lines = [
        "| | tokens in, out, requests/s | TTFT p50 | TTFT p90 | TPOT p50 | TPOT p90 | machine |",
        "| --- | --- | --- | --- | --- | --- | --- |",
    ]
    for setup, found in figures["setups"].items():
        for row in found["rows"]:
            cells = [
                f"{cell['measured_ms']:.3g} / {cell['predicted_ms']:.3g} "
                f"({cell['error_percent']:+.0f} %, {cell['at_its_speed_error_percent']:+.0f} %)"
                for cell in (row[name] for name in names)
            ]
            drifts = row["drift_percent"]
            machine = (f"{drifts['first_s']:+.0f} %, {drifts['step_s']:+.0f} %, "
                       f"{row['sent_late_ms_p99']:.0f} ms")  # fmt: skip
            load = row["load"].replace(":", ", ")
            name = "P/D" if setup == "pd" else "no P/D"
            lines.append(f"| {name} | {load} | {' | '.join(cells)} | {machine} |")
    return "\n".join(lines)


def main() -> None:
    """Each setup in turn."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--url", help="Of an engine that runs; left out, engines are started.")
    parser.add_argument("--decode-url")
    parser.add_argument("--load", action="append", help="ISL:OSL:RATE")
    parser.add_argument("--seconds", type=float, default=20.0, help="Of each load.")
    parser.add_argument("--rounds", type=int, default=1)
    parser.add_argument("--setup", choices=("without_pd", "pd"), action="append")
    parser.add_argument("--engines-first", action="store_true", help="Before other sessions.")
    parser.add_argument("--raw", type=Path, help="Folder for each request's times.")
    parser.add_argument("--json", type=Path)
    parser.add_argument("--table", type=Path, help="Print the table of this file, and no more.")
    asked = parser.parse_args()
    if asked.table:
        print(table(json.loads(asked.table.read_text(encoding="utf-8"))))
        return
    figures: dict[str, Any] = {"cores": os.cpu_count()}
    setups: dict[str, Any] = {}
    with contextlib.ExitStack() as stack:
        raw = asked.raw or Path(stack.enter_context(tempfile.TemporaryDirectory()))
        raw.mkdir(parents=True, exist_ok=True)
        if asked.url:
            urls = [url for url in (asked.url, asked.decode_url) if url]
            figures |= hurry([])
            loads = asked.load or (PAIR if len(urls) > 1 else ALONE)
            name = "pd" if len(urls) > 1 else "without_pd"
            setups[name] = validate(urls, loads, asked.seconds, asked.rounds, raw, name)
        else:
            groups = stack.enter_context(engines(raw, own_sessions=asked.engines_first))
            everybody = [engine for group in groups.values() for engine in group]
            first = [engine.process.pid for engine in everybody] if asked.engines_first else []
            figures |= hurry(first)
            for name, group in groups.items():
                if asked.setup and name not in asked.setup:
                    continue
                for engine in everybody:
                    engine.thaw() if engine in group else engine.freeze()
                loads = asked.load or (PAIR if len(group) > 1 else ALONE)
                urls = [engine.url for engine in group]
                setups[name] = validate(urls, loads, asked.seconds, asked.rounds, raw, name)
    write({**figures, "counted": counted(setups), "setups": setups}, asked.json)


if __name__ == "__main__":
    main()
