"""What it costs to be able to go on with a stream: per chunk, and per kind of request.

Chunks as vLLM 0.29 writes them go through the gateway's own code, in one process and in turn,
several rounds: not kept at all, kept without token ids (what a replay needs), kept with token ids
that are taken out again (what going on needs). Microseconds a chunk, medians; the JSON on stdout
goes to bench/results/stream_resume.json.

    python bench/stream_resume.py [ROUNDS] > bench/results/stream_resume.json
"""

from __future__ import annotations

import json
import statistics
import sys
import time
from typing import TYPE_CHECKING, Any

from baton.gateway.decode import find_error
from baton.gateway.sse import WholeEvents
from baton.gateway.transcript import Transcript

if TYPE_CHECKING:
    from collections.abc import Callable

CHUNKS = 500
"""Of one stream: an answer of usual length."""
STREAMS = 40


def chunk(number: int, *, ids: bool) -> bytes:
    """A chat chunk of about 230 bytes."""
    token = f"[{1000 + number}]" if ids else "null"
    return (
        'data: {"id":"chatcmpl-4f9faaa1f42d4548801a704f48812c10-d1","object":'
        '"chat.completion.chunk","created":1795996259,"model":"qwen3.5-9b","choices":[{"index":0,'
        f'"delta":{{"content":" word{number % 97}"}},"logprobs":null,"finish_reason":null,'
        f'"token_ids":{token}}}]}}\n\n'
    ).encode()


def passed_on(chunks: list[bytes], keep: Callable[[bytes], bytes] | None) -> float:
    """Microseconds a chunk."""
    whole = WholeEvents()
    started = time.perf_counter()
    for one in chunks:
        events = whole.feed(one)
        if keep is not None:
            events = keep(events)
        find_error(events)
        events.endswith(b"data: [DONE]\n\n")
    return 1e6 * (time.perf_counter() - started) / len(chunks)


def main() -> None:
    """Measure in turn and print medians and ratios."""
    rounds = int(sys.argv[1]) if len(sys.argv) > 1 else 7
    plain = [chunk(number, ids=False) for number in range(CHUNKS)]
    with_ids = [chunk(number, ids=True) for number in range(CHUNKS)]
    found: dict[str, list[float]] = {"not_kept": [], "kept": [], "kept_with_ids": []}
    resume_ms: list[float] = []
    for _ in range(rounds):
        sums = dict.fromkeys(found, 0.0)
        for _ in range(STREAMS):
            sums["not_kept"] += passed_on(plain, None)
            text = Transcript(asks_ids=False, shows_ids=False)
            sums["kept"] += passed_on(plain, text.feed)
            text = Transcript(asks_ids=True, shows_ids=False)
            sums["kept_with_ids"] += passed_on(with_ids, text.feed)
        for name, total in sums.items():
            found[name].append(total / STREAMS)
        started = time.perf_counter()
        if len(text.written) != CHUNKS or not text.said():
            raise SystemExit("error: the transcript lost something")
        resume_ms.append(1e3 * (time.perf_counter() - started))
    out: dict[str, Any] = {
        "rounds": rounds,
        "chunks": CHUNKS,
        "us_per_chunk": {name: round(statistics.median(v), 3) for name, v in found.items()},
        "added_us_per_chunk": {
            name: round(
                statistics.median(b - a for a, b in zip(found["not_kept"], v, strict=True)), 3
            )
            for name, v in found.items()
            if name != "not_kept"
        },
        f"ms_to_read_back_{CHUNKS}_tokens": round(statistics.median(resume_ms), 1),
    }
    print(json.dumps(out, indent=1))


if __name__ == "__main__":
    main()
