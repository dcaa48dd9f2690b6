"""Which way requests go, on real engines: `auto` over a link that gets slow, and prefix affinity.

    PYTHONPATH=src:. python bench/routes_real.py [auto] [prefix] [--json FILE]

**auto**: prefill and decode in two network namespaces that a veth pair joins, KV by UCX over TCP;
long answers keep decode busy while long prompts come. The link is throttled by `tc` and let go
again; every request's route and reason are read from the gateway's timelines. Needs root.

**prefix**: two prefill engines, a decode engine, and prompts that begin in one of many ways, more
of them than one engine's KV cache holds. Two gateways, with and without `routing.prefix_affinity`,
in turn, fresh prompts each time; the share of prompt tokens found cached is vLLM's own count.
"""

from __future__ import annotations

import argparse
import json
import random
import subprocess
import sys
import tempfile
import time
import urllib.request
from concurrent.futures import ThreadPoolExecutor
from operator import itemgetter
from pathlib import Path
from statistics import median
from typing import Any

ROOT = Path(__file__).resolve().parent.parent
sys.path[:0] = [str(ROOT), str(ROOT / "tools"), str(ROOT / "bench")]

from gateway_on import gateway_on  # noqa: E402
from namespaces import Node, two_nodes  # noqa: E402
from output import spread, write  # noqa: E402
from tests.real_engines import EngineSpec, start_engines  # noqa: E402

PORT = 18810
THROTTLE = "20mbit"
"""2.5 MB/s, where the tiny model's prefill makes some tens of MB of KV a second."""
CALM_S, THROTTLED_S, AGAIN_S = 40.0, 40.0, 60.0
LOOK_S = 5.0
LONG = 400
"""Tokens."""
RUN = 8
"""So many requests in a row, 80 % of them on one way, count as turned."""
PREFIXES, PREFIX_WORDS, ASKED, CALLERS = 24, 280, 180, 3


# -- load ------------------------------------------------------------------------------------------


def words(count: int, seed: str) -> str:
    """Text of so many words that no other seed begins with."""
    draw = random.Random(seed)
    return " ".join(f"{draw.choice('bcdfgklmnprst')}{draw.randrange(1000)}" for _ in range(count))


def ask(url: str, prompt: str, tokens: int) -> float:
    """Stream one answer to its end; seconds to its first event."""
    body = {
        "model": "tiny", "prompt": prompt, "max_tokens": tokens, "stream": True,
        "ignore_eos": True, "temperature": 0,
    }  # fmt: skip
    request = urllib.request.Request(
        f"{url}/v1/completions", json.dumps(body).encode(), {"content-type": "application/json"}
    )
    began_s, first_s = time.monotonic(), None
    with urllib.request.urlopen(request, timeout=120) as answer:
        for line in answer:
            if first_s is None and line.startswith(b"data: {"):
                first_s = time.monotonic() - began_s
    if first_s is None:
        raise RuntimeError("an answer without an event")
    return first_s


def mixed_load(url: str, seconds: float) -> None:
    """Two callers with long answers, two with long prompts, for so long. Runs on the node."""
    until = time.monotonic() + seconds

    def call(name: int, prompt_words: int, tokens: int) -> None:
        count = 0
        while time.monotonic() < until:
            count += 1
            ask(url, words(prompt_words, f"{name}-{count}-{seconds}"), tokens)

    shapes = [(40, 300), (40, 300), (320, 8), (320, 8)]
    with ThreadPoolExecutor(len(shapes)) as pool:
        for done in [pool.submit(call, k, *shape) for k, shape in enumerate(shapes)]:
            done.result()


# -- auto ------------------------------------------------------------------------------------------


def auto(folder: Path) -> dict[str, Any]:
    """Both turns, in seconds after the link changed."""
    with two_nodes() as nodes:
        here, there = nodes
        specs = [
            EngineSpec(
                role,
                f"{role}-0",
                environment=(
                    ("UCX_TLS", "tcp"),
                    ("VLLM_HOST_IP", node.host),
                    ("GLOO_SOCKET_IFNAME", node.device),
                ),
                host=node.host,
                netns=node.netns,
            )
            for role, node in (("prefill", here), ("decode", there))
        ]
        with start_engines(specs, folder, own_sessions=False) as (prefill, decode):
            ends = {"prefill": [prefill.url], "decode": [decode.url]}
            with gateway_on(there, PORT, folder / "gateway.log", **ends) as url:
                return throttled(there, here, url)


def throttled(on: Node, link: Node, url: str) -> dict[str, Any]:
    """Load, while the link is throttled and let go."""
    seconds = CALM_S + THROTTLED_S + AGAIN_S
    rows: dict[str, dict[str, Any]] = {}

    def watch(seconds: float) -> None:
        # The gateway remembers a thousand: they are fetched before they are gone.
        until = time.monotonic() + seconds
        while time.monotonic() < until:
            time.sleep(max(0.0, min(LOOK_S, until - time.monotonic())))
            found = json.loads(fetch(on, f"{url}/baton/requests"))["requests"]
            rows.update({row["request_id"]: row for row in found})

    began = time.time()
    load = subprocess.Popen(
        on.inside(sys.executable, __file__, "--load", url, "--seconds", str(seconds))
    )
    try:
        watch(CALM_S)
        link.throttle(THROTTLE)
        slow_at = time.time()
        watch(THROTTLED_S)
        link.release()
        well_at = time.time()
        watch(AGAIN_S)
        if load.wait(200.0):
            raise RuntimeError("the load failed")
    finally:
        load.kill()
        load.wait()
    watch(LOOK_S)
    # Those with long prompts; the others are handed over, or not, for their own reasons.
    long = [row for row in rows.values() if (row["way"] or {}).get("prompt_tokens", 0) > LONG]
    seen = [
        (row["received_at"], row["route"], row["way"]["reason"], row["ttft_s"], row)
        for row in sorted(long, key=itemgetter("received_at"))
        if row["received_at"] >= began
    ]
    parts = {
        "calm": [one for one in seen if began + CALM_S / 2 <= one[0] < slow_at],
        "throttled": [one for one in seen if slow_at <= one[0] < well_at],
        "released": [one for one in seen if one[0] >= well_at],
    }
    return {
        "throttle": THROTTLE,
        "turned_local_after_s": turned(parts["throttled"], slow_at, pd=False),
        "turned_back_after_s": turned(parts["released"], well_at, pd=True),
        "parts": {name: summary(part) for name, part in parts.items()},
    }


def turned(part: list[tuple[Any, ...]], since: float, *, pd: bool) -> float | None:
    """After how long most of a run of requests went this way; None: never."""
    for place in range(len(part) - RUN + 1):
        run = [(one[1] == "pd") == pd for one in part[place : place + RUN]]
        if run[0] and sum(run) >= 0.8 * RUN:
            return round(part[place][0] - since, 2)
    return None


def summary(part: list[tuple[Any, ...]]) -> dict[str, Any]:
    """What became of the requests of a part."""
    reasons: dict[str, int] = {}
    for _, route, reason, *_ in part:
        reasons[f"{route}: {reason}"] = reasons.get(f"{route}: {reason}", 0) + 1
    ttfts = [one[3] for one in part if one[3] is not None]
    handed = [one[4]["stages"] for one in part if one[1] == "pd"]
    return {
        "requests": len(part),
        "share_pd": round(sum(one[1] == "pd" for one in part) / max(1, len(part)), 3),
        "ttft_s_p50": round(median(ttfts), 4) if ttfts else None,
        "reasons": reasons,
        "handed_over": {
            stage: spread([stages[stage] for stages in handed if stage in stages])
            for stage in ("prefill_s", "handoff_s")
            if any(stage in stages for stages in handed)
        },
        "last_choice": part[-1][4]["way"] if part else None,
    }


def fetch(on: Node, url: str) -> bytes:
    """What a GET on the node says; nothing when it fails."""
    code = f"import urllib.request as u, sys; sys.stdout.buffer.write(u.urlopen('{url}').read())"
    command = on.inside(sys.executable, "-c", code)
    return subprocess.run(command, capture_output=True, check=False).stdout


# -- prefix ----------------------------------------------------------------------------------------


def prefix(folder: Path, rounds: int) -> dict[str, Any]:
    """Hit rates and TTFT with and without affinity."""
    specs = [EngineSpec("prefill", f"prefill-{k}") for k in range(2)]
    found: dict[str, list[dict[str, float]]] = {"affinity": [], "load": []}
    specs.append(EngineSpec("decode", "decode-0"))
    with start_engines(specs, folder, own_sessions=False) as engines:
        *prefills, decode = [engine.url for engine in engines]
        for number in range(rounds):
            for way in sorted(found, reverse=bool(number % 2)):
                found[way].append(shared_prefixes(folder, way, prefills, decode, number))
    return {
        "prefixes": PREFIXES,
        "requests": ASKED,
        "ways": {
            way: {key: spread([one[key] for one in ones], 4) for key in ones[0]}
            for way, ones in found.items()
        },
    }


def shared_prefixes(
    folder: Path, way: str, prefills: list[str], decode: str, number: int
) -> dict[str, float]:
    """One round behind one gateway: `hit_rate` and `ttft_s_p50`."""
    config = folder / f"{way}.yaml"
    affinity = "true" if way == "affinity" else "false"
    config.write_text(
        f"baton:\n  disaggregate: {{mode: always}}\n  routing: {{prefix_affinity: {affinity}}}\n",
        encoding="utf-8",
    )
    more = ("--config", str(config))
    with gateway_on(
        None, PORT, folder / f"{way}.log", prefill=prefills, decode=[decode], more=more
    ) as url:
        before = cached(prefills)
        ttfts = shared_load(url, f"{way}-{number}")
        hits, queries = (b - a for a, b in zip(before, cached(prefills), strict=True))
    return {"hit_rate": hits / queries, "ttft_s_p50": median(ttfts)}


def shared_load(url: str, salt: str) -> list[float]:
    """All requests, by a few callers at once; each one's TTFT in seconds."""
    draw = random.Random(7)
    begins = [words(PREFIX_WORDS, f"{salt}-{k}") for k in range(PREFIXES)]
    asks = [f"{draw.choice(begins)} and {words(20, f'{salt}-end-{k}')}" for k in range(ASKED)]
    with ThreadPoolExecutor(CALLERS) as pool:
        return list(pool.map(lambda prompt: ask(url, prompt, 2), asks))


def cached(engines: list[str]) -> tuple[float, float]:
    """Prompt tokens found in the engines' prefix caches, and looked up there."""
    hits = queries = 0.0
    for engine in engines:
        page = urllib.request.urlopen(f"{engine}/metrics", timeout=10).read().decode()
        for line in page.splitlines():
            if line.startswith("vllm:prefix_cache_hits_total"):
                hits += float(line.rsplit(" ", 1)[1])
            elif line.startswith("vllm:prefix_cache_queries_total"):
                queries += float(line.rsplit(" ", 1)[1])
    return hits, queries


def main() -> None:
    """The bench, or the load of it that runs on a node."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("parts", nargs="*", help="auto, prefix; both when none is named")
    parser.add_argument("--rounds", type=int, default=2, help="of prefix")
    parser.add_argument("--json", type=Path, default=None)
    parser.add_argument("--load", help=argparse.SUPPRESS)
    parser.add_argument("--seconds", type=float, help=argparse.SUPPRESS)
    given = parser.parse_args()
    if given.load:
        mixed_load(given.load, given.seconds)
        return
    figures: dict[str, Any] = {}
    if given.json is not None and given.json.exists():
        figures = json.loads(given.json.read_text(encoding="utf-8"))
    for part in given.parts or ["auto", "prefix"]:
        with tempfile.TemporaryDirectory() as name:
            folder = Path(name)
            figures[part] = auto(folder) if part == "auto" else prefix(folder, given.rounds)
        write(figures, given.json)


if __name__ == "__main__":
    main()
