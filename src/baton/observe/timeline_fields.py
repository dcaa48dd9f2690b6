"""What a timeline's JSON says, field by field: `docs/reference/timeline.md` is made from this.

Times are seconds on the monotonic clock. There is no word of a prompt or an answer in it.
"""

from __future__ import annotations

from typing import Literal, get_args

Stage = Literal[
    "admit", "queue", "route", "prefill", "handoff", "first_token", "decode", "local_prefill",
    "answer", "overflow",
]  # fmt: skip

STAGES: dict[Stage, str] = {
    "admit": "Request received → understood: body read, key checked, tokens counted where a limit"
    " asks for it.",
    "queue": "Understood → let in. Absent when there was room at once.",
    "route": "Choosing engines; both choices of a request, added.",
    "prefill": "Prefill leg sent → its answer.",
    "handoff": "Decode request sent → its first body byte: KV transfer and decode's first step."
    " Streamed P/D only.",
    "first_token": "First byte of an engine that says something of the answer → first byte to the"
    " caller: events held until one is good, the check of prefill's lease. Streamed answers only."
    " The engine is prefill where the first token left early. A part of `decode` otherwise: both"
    " begin with decode's first byte.",
    "decode": "First body byte from decode → last byte. Streamed answers only.",
    "local_prefill": "Request sent to a decode engine without KV → its first body byte: prefill and"
    " the first decode step there. Streamed, decode alone.",
    "answer": "Request sent to decode → last byte, when the answer is not streamed: HTTP shows no"
    " border between handoff and decode there.",
    "overflow": "Request sent to the overflow provider → first byte of its answer, or all of it"
    " when it is not streamed.",
}
assert tuple(STAGES) == get_args(Stage)  # noqa: S101 - of this file alone

FIELDS: dict[str, str] = {
    "request_id": "The caller's `x-request-id`, or a new one. Engines see it as a prefix.",
    "trace_id": "Of the trace, where an OTLP endpoint is configured; else null.",
    "path": "The route, as vLLM spells it.",
    "received_at": "Seconds since the epoch.",
    "route": "`pd`, `decode_only` or `overflow`; null before one was chosen.",
    "reason": "Why that way.",
    "way": "What the cost model said where it was asked: `way`, `reason`, `prompt_tokens` as"
    " estimated, predicted `pd_s`, `local_s` and `stall_s`; else null.",
    "prompt_tokens": "As an engine has counted them; null when none did.",
    "completion_tokens": "As an engine has counted them; null when none did.",
    "streamed": "Whether the answer was an event stream.",
    "status": "HTTP status of the answer.",
    "outcome": "`running`, `ok`, `rejected`, `error`, `broken` or `hangup`.",
    "prefill_engine": "`replica_id` of the last prefill engine; null without one.",
    "decode_engine": "Of the last decode engine.",
    "choices": "For each leg, why the last engine was chosen (`why`), and what share of the"
    " prompt's beginning it was known to have (`held`).",
    "fallbacks": "Each time that the request left its planned way, by leg and failure.",
    "first_token": "Of streamed P/D: `early: from_prefill`, `early: complete`, or `ordinary:` and"
    " why; else null.",
    "attempts": "Legs that broke: `leg`, `engine`, `kind` of failure, `seconds`. Their time is in"
    " no stage.",
    "resumes": "Breaks of the stream that were healed: `how`, `engine` that died, `kind`,"
    " `seconds` for which the stream stood.",
    "stages": "Seconds of each stage, as `STAGE_s`. One that did not happen is absent.",
    "steps": "The stages in the order in which they ended: `stage`, `at_s` since the request was"
    " received, `seconds`. `route` stands there twice in a P/D request.",
    "steps_left_out": "Further steps, which are in `stages` and not in `steps`: 64 are kept.",
    "ttft_s": "Request received → first body byte to the caller.",
    "tpot_s": "Mean time a token behind the first; null unless streamed with tokens known.",
    "total_s": "Request received → last byte.",
    "bytes_out": "Of the answer's body.",
}
