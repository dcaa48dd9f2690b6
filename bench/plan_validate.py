r"""Sets predictions beside loads that they were not made from: real engines on this machine.

`baton profile` measures and calibrates two engines. Then open-loop Poisson traffic of several
lengths and rates is sent to the first alone and to both as a P/D pair, and the very same arrivals
and lengths are played in the simulator with the profile's costs. p50 and p90 of TTFT and TPOT stand
side by side. No load is used to fit anything.

Each load is sent in every round, the same arrivals and lengths with other tokens; before each round
after the first the profile is calibrated anew, with its own two short loads, because a machine that
others use is another one minutes later. The middle of the rounds' errors counts. How far single
measurements are from their middle is counted beside: no prediction can be nearer to a measurement
than that is to its own repetition. `drift_percent` says how much slower a few lone requests were
around a load than beside the profile, and where requests were sent late (`sent_late_ms_p99`) the
machine stood still, real-time priority or not.

    python bench/plan_validate.py --rounds 3 --json bench/results/plan_real.json
    python bench/plan_validate.py --url http://127.0.0.1:8000 --load 300:24:2 --load 800:16:1
    python bench/plan_validate.py --table bench/results/plan_real.json
    python bench/plan_validate.py --replay bench/results/plan_h200.json

A file keeps its profile and the requests of its first round, so that a simulator that has changed
can be set beside the same measurements (`--replay`, and tests/unit/plan/test_recorded.py).
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
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Any

from output import write
from plan_load import Sent, Speed, hurry, probers, run_load, speed

from baton.observe.percentile import percentile
from baton.plan.calibrate import played
from baton.plan.measure import Grid, in_traffic, measure
from baton.plan.profile_file import Calibration, Profile
from baton.plan.simulator import Request
from baton.plan.traffic import made_up

ROOT = Path(__file__).resolve().parents[1]
if str(ROOT) not in sys.path:
    sys.path.insert(0, str(ROOT))  # for the engines of the tests, where some are started


if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence


MAX_SEQS, BUDGET = 64, 2048
LENGTHS, BATCHES = (64, 256, 512, 1024), (1, 2, 4, 8, 16)
LONGEST = 1900
SPREAD = 0.5
ALONE = ("512:32:6", "200:24:10", "900:16:5", "300:64:4", "512:32:2")
PAIR = ("512:32:4", "200:24:6", "900:16:3", "300:64:2.5", "512:32:1.5")
LEAST = 80
"""Requests of a load: a 90th percentile of 30 is one of three requests."""
AROUND_S = 0.006
"""Nearer than that, two moments are not told apart."""
SAME = 15.0
"""Percent within which a prediction counts as right."""
CELLS = ("ttft_p50", "ttft_p90", "tpot_p50", "tpot_p90")
ARGUMENTS = ("--max-num-seqs", str(MAX_SEQS), "--max-num-batched-tokens", str(BUDGET))


@dataclass(frozen=True)
class Asked:
    """What is validated, and how."""

    loads: Sequence[str] | None
    seconds: float
    rounds: int
    raw: Path
    """Where each request's times are kept."""
    grid: Grid
    longest: int
    budget: int
    gpu: str | None


def requests_of(load: str, seconds: float, seed: int, longest: int) -> list[Request]:
    """Poisson arrivals and log-normal lengths of `ISL:OSL:RATE`, within what the engine takes."""
    isl, osl, rate = load.split(":")
    traffic = made_up(
        prompt_tokens=int(isl), output_tokens=int(osl), rate_rps=float(rate), spread=SPREAD,
        count=max(int(float(rate) * seconds), LEAST), seed=seed,
    )  # fmt: skip
    found = []
    for request in traffic.requests:
        # Two tokens at least, for a time a token.
        output = min(max(request.output_tokens, 2), longest // 4)
        prompt = min(request.prompt_tokens, longest - output)
        found.append(Request(request.arrival_s, prompt, output))
    return found


def figures_of(answers: Sequence[Any]) -> dict[str, float]:
    """p50 and p90 of both times, in milliseconds."""
    return {
        f"{name}_p{100 * share:.0f}": round(
            1e3 * percentile([getattr(one, f"{name}_s") for one in answers], share), 2
        )
        for name in ("ttft", "tpot")
        for share in (0.5, 0.9)
    }


def compared(
    rounds: Sequence[dict[str, float]], said: Sequence[dict[str, float]]
) -> dict[str, Any]:
    """The middle of the rounds, and the middle of the rounds' errors."""
    rows = {}
    for cell in CELLS:
        measured, predicted = [one[cell] for one in rounds], [one[cell] for one in said]
        errors = [100 * (p / m - 1) for p, m in zip(predicted, measured, strict=True)]
        rows[cell] = {
            "measured_ms": round(statistics.median(measured), 2),
            "predicted_ms": round(statistics.median(predicted), 2),
            "error_percent": round(statistics.median(errors), 1),
            "rounds_ms": measured, "predicted_rounds_ms": predicted,
        }  # fmt: skip
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


async def model_of(url: str) -> str:
    """The name that an engine serves its model under."""
    async with probers([url], "") as (prober,):
        return str(json.loads(await prober.get("/v1/models"))["data"][0]["id"])


def profiled(urls: Sequence[str], asked: Asked) -> Profile:
    """What `baton profile` finds: one file for both ways to run the two engines."""
    profile = asyncio.run(
        measure(
            urls[0], decode_url=urls[1] if len(urls) > 1 else None, grid=asked.grid, say=say,
            max_num_batched_tokens=asked.budget, gpu=asked.gpu,
        )
    )  # fmt: skip
    (asked.raw / "profile.json").write_text(profile.model_dump_json(indent=1), encoding="utf-8")
    return profile


@dataclass
class Setup:
    """One engine or a pair, its loads, and what came of them."""

    urls: Sequence[str]
    requests: dict[str, list[Request]]
    then: Speed
    """Of the machine, beside the profile."""
    last: Speed
    calibrations: list[dict[str, Any]] = field(default_factory=list)
    figures: dict[str, list[dict[str, float]]] = field(default_factory=dict)
    said: dict[str, list[dict[str, float]]] = field(default_factory=dict)
    rounds: dict[str, list[dict[str, Any]]] = field(default_factory=dict)
    first: dict[str, list[str]] = field(default_factory=dict)

    @property
    def apart(self) -> bool:
        """Whether it is a pair."""
        return len(self.urls) > 1

    @property
    def name(self) -> str:
        """In files."""
        return "pd" if self.apart else "without_pd"

    def as_dict(self) -> dict[str, Any]:
        """For the file."""
        rows = [
            {"load": load, "requests": len(self.requests[load]),
             **compared(self.figures[load], self.said[load]), "rounds": self.rounds[load],
             "first_round": self.first[load]}
            for load in self.requests
        ]  # fmt: skip
        return {"speed": asdict(self.then), "calibrations": self.calibrations, "rows": rows}


def set_up(urls: Sequence[str], model: str, profile: Profile, asked: Asked) -> Setup:
    """Loads of as many engines."""
    loads = asked.loads or (PAIR if len(urls) > 1 else ALONE)
    longest = min(profile.engine.max_model_len or asked.longest, asked.longest)
    then = asyncio.run(speed(urls, model))
    requests = {
        load: requests_of(load, asked.seconds, 100 + number, longest)
        for number, load in enumerate(loads)
    }
    return Setup(urls, requests, then, then)


def play_round(setup: Setup, model: str, profile: Profile, asked: Asked, turn: int) -> None:
    """Calibrate, then send each load once."""
    if turn:  # the profile is as fresh
        profile = asyncio.run(calibrated_anew(setup.urls, model, profile, asked.grid))
    factors = profile.calibration_apart if setup.apart else profile.calibration
    setup.calibrations.append(factors.model_dump())
    for number, (load, those) in enumerate(setup.requests.items()):
        sent = asyncio.run(run_load(setup.urls, model, those))
        before, setup.last = setup.last, asyncio.run(speed(setup.urls, model))
        row: dict[str, Any] = {
            "drift_percent": drift((before, setup.last), setup.then),
            "sent_late_ms_p99": round(1e3 * percentile([one.late_s for one in sent], 0.99), 1),
            "load_average": round(os.getloadavg()[0], 1),
        }
        if setup.apart:
            row["first_tokens"] = beside_answers(those, sent)
        setup.rounds.setdefault(load, []).append(row)
        setup.figures.setdefault(load, []).append(figures_of(sent))
        setup.said.setdefault(load, []).append(predicted(profile, those, apart=setup.apart))
        setup.first.setdefault(load, [line_of(r, s) for r, s in zip(those, sent, strict=True)])
        say(f"{load}: measured {setup.figures[load][-1]}, predicted {setup.said[load][-1]}")
        record = [[r.arrival_s, *asdict(s).values()] for r, s in zip(those, sent, strict=True)]
        (asked.raw / f"{setup.name}_{number}_{turn}.json").write_text(
            json.dumps({"load": load, "row": row, "requests": record}), encoding="utf-8"
        )


async def calibrated_anew(urls: Sequence[str], model: str, profile: Profile, grid: Grid) -> Profile:
    """With traffic of now: a machine that others use is another one minutes later."""
    lengths = grid.lengths_for(profile.engine.max_model_len)
    async with probers(urls, model) as engines:
        return await in_traffic(profile, engines, grid, lengths, say)


def predicted(profile: Profile, requests: Sequence[Request], *, apart: bool) -> dict[str, float]:
    """What the simulator says of them."""
    return figures_of(played(profile, requests, apart=apart, max_seqs=MAX_SEQS))


def line_of(request: Request, sent: Sent) -> str:
    """When it was to be sent, how late it was, tokens in and out, first and last token: seconds."""
    return (f"{request.arrival_s:.6f} {sent.late_s:.6f} {sent.prompt_tokens} {sent.output_tokens} "
            f"{sent.times_s[0]:.6f} {sent.times_s[-1]:.6f}")  # fmt: skip


def request_of(line: str) -> Request:
    """The request of such a line."""
    arrival_s, _, prompt, output, *_ = line.split()
    return Request(float(arrival_s), int(prompt), int(output))


def replayed(figures: dict[str, Any]) -> dict[str, Any]:
    """A file's measurements, with what the simulator says today."""
    profile = Profile.model_validate(figures["profile"])
    for name, setup in figures["setups"].items():
        those = [with_factors(profile, name, factors) for factors in setup["calibrations"]]
        for row in setup["rows"]:
            requests = [request_of(line) for line in row["first_round"]]
            said = [predicted(one, requests, apart=name == "pd") for one in those]
            measured = zip(*(row[cell]["rounds_ms"] for cell in CELLS), strict=True)
            row.update(compared([dict(zip(CELLS, one, strict=True)) for one in measured], said))
    return {**figures, "counted": counted(figures["setups"])}


def with_factors(profile: Profile, setup: str, factors: dict[str, Any]) -> Profile:
    """The profile as it was calibrated for a round."""
    name = "calibration_apart" if setup == "pd" else "calibration"
    return profile.model_copy(update={name: Calibration.model_validate(factors)})


def say(line: str) -> None:
    """Progress."""
    print(f"  {line}", file=sys.stderr, flush=True)


def counted(setups: dict[str, Any]) -> dict[str, Any]:
    """How many predictions are within 15 %, and how many single rounds of the middle of all."""
    rows = [row for setup in setups.values() for row in setup["rows"]]
    found: dict[str, Any] = {}
    for cell in CELLS:
        errors = [abs(row[cell]["error_percent"]) for row in rows]
        repeats = [
            100 * abs(each / row[cell]["measured_ms"] - 1)
            for row in rows
            for each in row[cell]["rounds_ms"]
        ]
        found[cell] = {
            "predictions": len(errors),
            "within_15_percent": sum(error <= SAME for error in errors),
            "median_error_percent": round(statistics.median(errors), 1),
            "largest_error_percent": max(errors),
            "single_rounds": len(repeats),
            "single_rounds_within_15_percent": sum(error <= SAME for error in repeats),
        }
    found["all"] = {
        name: sum(found[cell][name] for cell in CELLS)
        for name in ("predictions", "within_15_percent", "single_rounds",
                     "single_rounds_within_15_percent")
    }  # fmt: skip
    return found


@contextlib.contextmanager
def engines(folder: Path) -> Iterator[list[str]]:
    """URLs of a prefill and a decode engine.

    Both in this session: Linux shares processors among sessions first, and engines in sessions of
    their own hold each other up for long (decision 0007).
    """
    from tests.real_engines import EngineSpec, start_engines  # noqa: PLC0415 - may not be here

    specs = [EngineSpec(role, role, ARGUMENTS) for role in ("prefill", "decode")]
    with start_engines(specs, folder, own_sessions=False) as started:
        yield [engine.url for engine in started]


def table(figures: dict[str, Any]) -> str:
    """For the guide: milliseconds measured / predicted (error)."""
    lines = [
        "| | tokens in, out, requests/s | TTFT p50 | TTFT p90 | TPOT p50 | TPOT p90 |",
        "| --- | --- | --- | --- | --- | --- |",
    ]
    for setup, found in figures["setups"].items():
        for row in found["rows"]:
            cells = [
                f"{cell['measured_ms']:.3g} / {cell['predicted_ms']:.3g} "
                f"({cell['error_percent']:+.0f} %)"
                for cell in (row[name] for name in CELLS)
            ]
            load = row["load"].replace(":", ", ")
            name = "P/D" if setup == "pd" else "no P/D"
            lines.append(f"| {name} | {load} | {' | '.join(cells)} |")
    return "\n".join(lines)


def options() -> argparse.ArgumentParser:
    """Of the command."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--url", help="Of an engine that runs; left out, engines are started.")
    parser.add_argument("--decode-url")
    parser.add_argument("--load", action="append", help="ISL:OSL:RATE")
    parser.add_argument("--seconds", type=float, default=15.0, help="Of each load.")
    parser.add_argument("--rounds", type=int, default=1)
    parser.add_argument("--profile-rounds", type=int, default=5)
    parser.add_argument("--lengths", type=int, nargs="+", default=LENGTHS, help="Of the profile.")
    parser.add_argument("--batches", type=int, nargs="+", default=BATCHES, help="Of the profile.")
    parser.add_argument("--longest", type=int, default=LONGEST, help="Tokens of a request.")
    parser.add_argument("--budget", type=int, default=BUDGET, help="max_num_batched_tokens.")
    parser.add_argument("--gpu", help="What the engines run on.")
    parser.add_argument("--raw", type=Path, help="Folder for each request's times.")
    parser.add_argument("--json", type=Path)
    parser.add_argument("--replay", type=Path, help="Predict the loads of this file anew.")
    parser.add_argument("--table", type=Path, help="Print the table of this file, and no more.")
    return parser


def main() -> None:
    """Each setup in turn."""
    given = options().parse_args()
    if given.table:
        print(table(json.loads(given.table.read_text(encoding="utf-8"))))
        return
    if given.replay:
        figures = replayed(json.loads(given.replay.read_text(encoding="utf-8")))
        write(figures, given.json)
        print(table(figures), file=sys.stderr)
        return
    grid = Grid(lengths=tuple(given.lengths), decode_batches=tuple(given.batches),
                rounds=given.profile_rounds)  # fmt: skip
    figures = {"cores": os.cpu_count()}
    with contextlib.ExitStack() as stack:
        raw = given.raw or Path(stack.enter_context(tempfile.TemporaryDirectory()))
        raw.mkdir(parents=True, exist_ok=True)
        asked = Asked(
            loads=given.load, seconds=given.seconds, rounds=given.rounds, raw=raw, grid=grid,
            longest=given.longest, budget=given.budget, gpu=given.gpu,
        )  # fmt: skip
        urls = [url for url in (given.url, given.decode_url) if url]
        urls = urls or stack.enter_context(engines(raw))
        figures |= hurry()
        profile = profiled(urls, asked)
        figures["profile"] = profile.model_dump(mode="json")
        model = asyncio.run(model_of(urls[0]))
        shapes = (urls[:1], urls) if len(urls) > 1 else (urls,)
        played_on = [set_up(those, model, profile, asked) for those in shapes]
        for turn in range(given.rounds):
            for setup in played_on:
                play_round(setup, model, profile, asked, turn)
        setups = {setup.name: setup.as_dict() for setup in played_on}
    write({**figures, "counted": counted(setups), "setups": setups}, given.json)


if __name__ == "__main__":
    main()
