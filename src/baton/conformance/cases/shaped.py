"""Answers of a given shape: tools, schemas, and the characters that tokens cut."""

from __future__ import annotations

import json
from functools import partial
from typing import TYPE_CHECKING, Any

from baton.conformance.case import Case, Fails, NotOffered, check
from baton.conformance.cases import sources
from baton.conformance.probe import LONG, OK

if TYPE_CHECKING:
    from collections.abc import Callable

    from baton.conformance.probe import Probe, Told

_CITIES = ["Zürich", "東京", "🎈ville"]
"""Names with characters of two, three and four bytes: a byte-level tokenizer cuts them all."""
_TOOL = {
    "type": "function",
    "function": {
        "name": "weather",
        "description": "The weather in a city.",
        "parameters": {
            "type": "object",
            "properties": {"city": {"type": "string", "enum": _CITIES}},
            "required": ["city"],
            "additionalProperties": False,
        },
    },
}
_FORMAT = {
    "type": "json_schema",
    "json_schema": {
        "name": "place",
        "strict": True,
        "schema": _TOOL["function"]["parameters"],  # type: ignore[index]
    },
}
_CUT = "🎈東京ü👩‍👧"
_ROOM = 220
"""Tokens for an answer of some sixty bytes, whatever the tokenizer."""


async def _shaped(
    probe: Probe, judge: Callable[[Told], None], *, stream: bool = False, **fields: Any
) -> Told:
    """An answer that `judge` is content with.

    A model that was not made for it may fill a shape with white space until it is cut: that says
    nothing of the endpoint. So it is asked again with white space forbidden.
    """
    ask = probe.stream if stream else probe.whole
    told = await ask(max_tokens=_ROOM, **fields)
    if _was_cut(told) and _begun(told) and (bias := await _no_white_space(probe)):
        told = await ask(max_tokens=_ROOM, logit_bias=bias, **fields)
    try:
        judge(told)
    except Fails as exc:
        if _was_cut(told) and _begun(told):
            raise NotOffered(f"the model does not end its answer within {_ROOM} tokens") from exc
        raise
    return told


def _begun(told: Told) -> bool:
    """Whether the answer has at least the beginning of a shape: the endpoint did ask for one."""
    return bool(_calls(told)) or told.text.lstrip()[:1] in ("{", "[", "<")


def _was_cut(told: Told) -> bool:
    # Not by finish_reason alone: a tool call that is cut may call itself `tool_calls`.
    return told.reasons[0] == "length" or (told.usage or {}).get("completion_tokens") == _ROOM


async def _no_white_space(probe: Probe) -> dict[str, int]:
    """A logit_bias against white space, where the endpoint has a tokenizer that can be asked."""
    ids: set[int] = set()
    for sign in (" ", "\n", "\t", "\r"):
        asked = {"model": probe.model, "prompt": sign, "add_special_tokens": False}
        reply = await probe.post("/tokenize", asked)
        if reply.status == OK and isinstance(reply.data, dict):
            ids.update(reply.data.get("tokens") or ())
    return {str(one): -100 for one in ids}


def _is_call(calls: dict[int, list[str]], told: Told) -> None:
    if not calls:
        raise Fails(f"no tool was called; the text is {told.text[:80]!r}")
    name, arguments = calls[0]
    check(name == "weather", f"the function is {name!r}")
    _is_place(arguments)


def _is_place(text: str) -> None:
    try:
        city = json.loads(text)["city"]
    except (ValueError, KeyError, TypeError) as exc:
        raise Fails(f"not JSON that fits: {text[:120]!r}") from exc
    check(city in _CITIES, f"the city is {city!r}")


def _calls(told: Told) -> dict[int, list[str]]:
    """Name and arguments of each call, whole or joined from deltas."""
    calls: dict[int, list[str]] = {}
    for chunk in told.chunks:
        for choice in chunk["choices"]:
            part = choice.get("delta") or choice.get("message") or {}
            for place, call in enumerate(part.get("tool_calls") or ()):
                parts = calls.setdefault(call.get("index", place), ["", ""])
                function = call.get("function") or {}
                parts[0] += function.get("name") or ""
                parts[1] += function.get("arguments") or ""
    return calls


async def _required(probe: Probe, *, stream: bool) -> None:
    told = await _shaped(
        probe,
        lambda told: _is_call(_calls(told), told),
        stream=stream,
        tools=[_TOOL],
        tool_choice="required",
        parallel_tool_calls=False,
    )
    check(told.reasons[0] == "tool_calls", f"finish_reason is {told.reasons[0]!r}")
    probe.see(call=_calls(told)[0], finish_reason=told.reasons[0])


async def _named(probe: Probe) -> None:
    choice = {"type": "function", "function": {"name": "weather"}}
    told = await _shaped(
        probe, lambda told: _is_call(_calls(told), told), tools=[_TOOL], tool_choice=choice
    )
    call = told.chunks[0]["choices"][0]["message"]["tool_calls"][0]
    check(call.get("id") and call.get("type") == "function", f"a call is {call!r:.120}")
    probe.see(call=_calls(told)[0], finish_reason=told.reasons[0])


async def _none(probe: Probe) -> None:
    told = await probe.whole(tools=[_TOOL], tool_choice="none")
    check(not _calls(told), f"a tool was called: {_calls(told)!r:.120}")
    probe.see(text=told.text)


async def _result(probe: Probe) -> None:
    call = {
        "id": "call_1",
        "type": "function",
        "function": {"name": "weather", "arguments": '{"city": "Zürich"}'},
    }
    told = await probe.whole(
        messages=[
            {"role": "user", "content": LONG},
            {"role": "assistant", "content": None, "tool_calls": [call]},
            {"role": "tool", "tool_call_id": "call_1", "content": "Sunny, 24 degrees."},
        ]
    )
    probe.see(text=told.text)


async def _schema(probe: Probe, *, stream: bool) -> None:
    told = await _shaped(
        probe, lambda told: _is_place(told.text), stream=stream, response_format=_FORMAT
    )
    probe.see(text=told.text)


def _is_cut_characters(told: Told) -> None:
    check("\N{REPLACEMENT CHARACTER}" not in told.text, f"a broken character: {told.text!r:.120}")
    try:
        city = json.loads(told.text)["city"]
    except (ValueError, KeyError, TypeError) as exc:
        raise Fails(f"not JSON that fits: {told.text[:120]!r}") from exc
    check(city == _CUT, f"the text is {told.text!r:.120}")


async def _cut_characters(probe: Probe) -> None:
    schema = {"type": "object", "properties": {"city": {"const": _CUT}},
              "required": ["city"], "additionalProperties": False}  # fmt: skip
    wanted = {"type": "json_schema", "json_schema": {"name": "one", "schema": schema}}
    told = await _shaped(probe, _is_cut_characters, stream=True, response_format=wanted)
    probe.see(text=told.text)


async def _choice(probe: Probe) -> None:
    told = await probe.whole(structured_outputs={"choice": ["left", "right"]}, max_tokens=_ROOM)
    if told.text not in ("left", "right"):
        raise NotOffered(f"structured_outputs has no effect: {told.text[:60]!r}")
    probe.see(text=told.text)


CASES = (
    Case("tools.required", "`tool_choice: required` calls a tool with arguments that fit",
         sources.CHAT, partial(_required, stream=False)),
    Case("tools.required_streamed", "the same in deltas that join by their index",
         sources.CHAT_STREAM, partial(_required, stream=True)),
    Case("tools.named", "a named tool is the one that is called", sources.CHAT, _named),
    Case("tools.none", "`tool_choice: none` calls no tool", sources.CHAT, _none),
    Case("tools.result", "a tool's answer is a turn of the conversation", sources.CHAT, _result),
    Case("shaped.json_schema", "`response_format: json_schema` makes JSON that fits",
         sources.CHAT, partial(_schema, stream=False)),
    Case("shaped.json_schema_streamed", "the same in deltas", sources.CHAT_STREAM,
         partial(_schema, stream=True)),
    Case("shaped.cut_characters", "characters that tokens cut come whole in a stream",
         sources.CHAT_STREAM, _cut_characters),
    Case("shaped.choice", "vLLM's `structured_outputs.choice` picks one of the texts",
         sources.VLLM, _choice),
)  # fmt: skip
