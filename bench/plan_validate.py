r"""Sets predictions beside loads that they were not made from: real engines on this machine.

`baton profile` measures and calibrates two engines. Then open-loop Poisson traffic of several
lengths and rates is sent to the first alone and to both as a P/D pair, and the very same arrivals
and lengths are played in the simulator with the profile's costs. p50 and p90 of TTFT and TPOT stand
side by side. No load is used to fit anything.

Each load is sent in every round, the same arrivals and lengths with other tokens. A machine that
others use is another one a minute later, and what is set side by side has to meet the same one: so
a load is sent in four pieces, in turn with traffic of its own that the profile is calibrated with
anew (`--pieces 1` where a machine stays as it is). The middle of the rounds' errors counts. How far
single measurements are from their middle is counted beside: no prediction can be nearer to a
measurement than that is to its own repetition. `drift_percent` says how much slower a few lone
requests were around a load than beside the profile, and where requests were sent late
(`sent_late_ms_p99`) the machine stood still, real-time priority or not. On a virtual
machine whose host takes idle pages away no figure repeats, so there engines that it starts have
their memory kept in place (bench/plan_hold.py; `--let-go` does not).

    python bench/plan_validate.py --rounds 3 --json bench/results/plan_real.json
    python bench/plan_validate.py --url http://127.0.0.1:8000 --load 300:24:2 --load 800:16:1
    python bench/plan_validate.py --table bench/results/plan_real.json
    python bench/plan_validate.py --replay bench/results/plan_h200.json

A file keeps its profile and the requests of its first round, so that a simulator that has changed
can be set beside the same measurements (`--replay`, and tests/unit/bench/test_plan_recorded.py).
"""

from __future__ import annotations

import argparse
import asyncio
import contextlib
import itertools
import json
import os
import sys
import tempfile
import time
from dataclasses import asdict, dataclass, field, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

from output import write
from plan_figures import (
    CELLS,
    beside_answers,
    compared,
    counted,
    drift,
    figures_of,
    line_of,
    pieces_in,
    table,
)  # fmt: skip
from plan_hold import held, largest_file, show, takes_pages_away
from plan_load import Speed, hurry, probers, run_load, speed

from baton.observe.percentile import percentile
from baton.plan.calibrate import DRAWS, played
from baton.plan.measure import Grid, measure
from baton.plan.measure_traffic import Part, TrafficAsked, part_of, told
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
    pieces: int = 4
    """Of each load."""

    @property
    def traffic(self) -> TrafficAsked:
        """To calibrate a load's prediction with: a part before each piece, and one at the end."""
        return TrafficAsked(seconds=10.0, answers=(24, 40), rare=10, parts=self.pieces + 1)


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


def pieces_of(requests: Sequence[Request], count: int) -> list[list[Request]]:
    """As many, one after the other.

    Each begins as long before its first request as that came after the one before.
    """
    found, size = [], -(-len(requests) // count)
    for begin in range(0, len(requests), size):
        since_s = requests[begin - 1].arrival_s if begin else 0.0
        found.append([
            replace(one, arrival_s=one.arrival_s - since_s)
            for one in requests[begin : begin + size]
        ])  # fmt: skip
    return found


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
    requests: dict[str, list[list[Request]]]
    """Of each load, in pieces."""
    then: Speed
    """Of the machine, beside the profile."""
    last: Speed
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

    def factors(self, profile: Profile) -> Calibration:
        """Its own."""
        return profile.calibration_apart if self.apart else profile.calibration

    def as_dict(self) -> dict[str, Any]:
        """For the file."""
        rows = [
            {"load": load, "requests": sum(map(len, self.requests[load])),
             "pieces": [len(piece) for piece in self.requests[load]],
             **compared(self.figures[load], self.said[load]), "rounds": self.rounds[load],
             "first_round": self.first[load]}
            for load in self.requests
        ]  # fmt: skip
        return {"speed": asdict(self.then), "rows": rows}


def set_up(urls: Sequence[str], model: str, profile: Profile, asked: Asked) -> Setup:
    """Loads of as many engines."""
    loads = asked.loads or (PAIR if len(urls) > 1 else ALONE)
    longest = min(profile.engine.max_model_len or asked.longest, asked.longest)
    then = asyncio.run(speed(urls, model))
    requests = {
        load: pieces_of(requests_of(load, asked.seconds, 100 + number, longest), asked.pieces)
        for number, load in enumerate(loads)
    }
    return Setup(urls, requests, then, then)


def play_round(setup: Setup, model: str, measured: Profile, asked: Asked, turn: int) -> None:
    """Send each load once, its pieces in turn with traffic that its prediction is calibrated with.

    Each time anew, as `baton profile` does it.
    """
    for number, (load, pieces) in enumerate(setup.requests.items()):
        parts, sent = [], []
        # Lengths of their own each time: what an engine has seen often it reads faster.
        begin = (turn * len(setup.requests) + number) * asked.traffic.parts
        for order in range(len(pieces) + 1):
            parts.append(asyncio.run(part(setup.urls, model, measured, asked, begin + order)))
            if order < len(pieces):
                sent += asyncio.run(run_load(setup.urls, model, pieces[order]))
        before, setup.last = setup.last, asyncio.run(speed(setup.urls, model))
        profile = told(measured, parts, apart=setup.apart, say=say)
        row: dict[str, Any] = {
            "drift_percent": drift((before, setup.last), setup.then),
            "sent_late_ms_p99": round(1e3 * percentile([one.late_s for one in sent], 0.99), 1),
            "load_average": round(os.getloadavg()[0], 1),
            "calibration": setup.factors(profile).model_dump(),
        }
        if setup.apart:
            row["first_tokens"] = beside_answers(pieces, sent)
        setup.rounds.setdefault(load, []).append(row)
        setup.figures.setdefault(load, []).append(figures_of(sent))
        setup.said.setdefault(load, []).append(predicted(profile, pieces, apart=setup.apart))
        lines = [line_of(r, s) for r, s in zip(itertools.chain(*pieces), sent, strict=True)]
        setup.first.setdefault(load, lines)
        say(f"{load}: measured {setup.figures[load][-1]}, predicted {setup.said[load][-1]}")
        record = {"load": load, "row": row, "traffic": [asdict(one) for one in parts],
                  "requests": [asdict(one) for one in sent]}  # fmt: skip
        (asked.raw / f"{setup.name}_{number}_{turn}.json").write_text(
            json.dumps(record), encoding="utf-8"
        )


async def part(
    urls: Sequence[str], model: str, profile: Profile, asked: Asked, number: int
) -> Part:
    """Of the traffic that a prediction is calibrated with."""
    lengths = asked.grid.lengths_for(profile.engine.max_model_len)
    async with probers(urls, model) as engines:
        for engine in engines:
            engine.chance.seed(time.time_ns())  # no prompt that an earlier one has sent
        return await part_of(profile, engines, lengths, asked.traffic, number)


def predicted(
    profile: Profile, pieces: Sequence[Sequence[Request]], *, apart: bool
) -> dict[str, float]:
    """What the simulator says of them."""
    said = (played(profile, piece, apart=apart, max_seqs=MAX_SEQS, draws=DRAWS) for piece in pieces)
    return figures_of(list(itertools.chain(*said)))


def replayed(figures: dict[str, Any]) -> dict[str, Any]:
    """A file's measurements, with what the simulator says today."""
    profile = Profile.model_validate(figures["profile"])
    for name, setup in figures["setups"].items():
        for row in setup["rows"]:
            pieces = pieces_in(row)
            said = [
                predicted(
                    with_factors(profile, name, one["calibration"]), pieces, apart=name == "pd"
                )
                for one in row["rounds"]
            ]
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


@contextlib.contextmanager
def engines(folder: Path, *, hold: bool) -> Iterator[tuple[list[str], dict[str, Any]]]:
    """URLs of a prefill and a decode engine, and what is known of their memory.

    Both in this session: Linux shares processors among sessions first, and engines in sessions of
    their own hold each other up for long (decision 0007).
    """
    from tests.real_engines import EngineSpec, start_engines  # noqa: PLC0415 - may not be here

    specs = [EngineSpec(role, role, ARGUMENTS) for role in ("prefill", "decode")]
    with start_engines(specs, folder, own_sessions=False) as started:
        pids = [engine.process.pid for engine in started]
        reading = show(largest_file(pids[0]))
        hold = hold and takes_pages_away(reading)
        facts = {"pages_held": hold, "reading_a_byte_of_each_page": reading}
        with held(pids) if hold else contextlib.nullcontext():
            yield [engine.url for engine in started], facts


def options() -> argparse.ArgumentParser:
    """Of the command."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--url", help="Of an engine that runs; left out, engines are started.")
    parser.add_argument("--decode-url")
    parser.add_argument("--load", action="append", help="ISL:OSL:RATE")
    parser.add_argument("--seconds", type=float, default=15.0, help="Of each load.")
    parser.add_argument("--rounds", type=int, default=1)
    parser.add_argument("--pieces", type=int, default=4, help="Of each load.")
    parser.add_argument("--profile-rounds", type=int, default=5)
    parser.add_argument("--lengths", type=int, nargs="+", default=LENGTHS, help="Of the profile.")
    parser.add_argument("--batches", type=int, nargs="+", default=BATCHES, help="Of the profile.")
    parser.add_argument("--longest", type=int, default=LONGEST, help="Tokens of a request.")
    parser.add_argument("--budget", type=int, default=BUDGET, help="max_num_batched_tokens.")
    parser.add_argument("--let-go", action="store_true", help="Of engines' memory, in any case.")
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
                rounds=given.profile_rounds, traffic=TrafficAsked(seconds=0.0))  # fmt: skip
    figures: dict[str, Any] = {"cores": os.cpu_count()}
    with contextlib.ExitStack() as stack:
        raw = given.raw or Path(stack.enter_context(tempfile.TemporaryDirectory()))
        raw.mkdir(parents=True, exist_ok=True)
        asked = Asked(
            loads=given.load, seconds=given.seconds, rounds=given.rounds, raw=raw, grid=grid,
            longest=given.longest, budget=given.budget, gpu=given.gpu,
            pieces=given.pieces,
        )  # fmt: skip
        urls = [url for url in (given.url, given.decode_url) if url]
        if not urls:
            urls, facts = stack.enter_context(engines(raw, hold=not given.let_go))
            figures |= facts
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
