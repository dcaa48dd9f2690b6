"""Hostile requests: what a caller with time and bad intentions sends, as raw bytes.

`requests` is a Hypothesis strategy. Half of it begins with a valid body and mutates it: fields that
vLLM's own request classes have (read from their source, so that the list never ages) get wrong
types, huge numbers, NaN, lone surrogates, deep nesting, duplicates. The rest are odd methods, paths
and headers, and bytes that are no HTTP at all.
"""

from __future__ import annotations

import ast
import contextlib
import functools
import importlib.util
import json
import re
import socket
import time
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from hypothesis import strategies as st

MODEL = "tiny"
PROMPT = "the runner hands the baton to the next and goes on. " * 3
_CLASSES = {
    "/v1/chat/completions": ("openai/chat_completion/protocol.py", "ChatCompletionRequest"),
    "/v1/completions": ("openai/completion/protocol.py", "CompletionRequest"),
    "/v1/responses": ("openai/responses/protocol.py", "ResponsesRequest"),
    "/v1/messages": ("anthropic/protocol.py", "AnthropicMessagesRequest"),
}
_WITHOUT_VLLM = (
    "model",
    "messages",
    "prompt",
    "input",
    "n",
    "stream",
    "stop",
    "max_tokens",
    "seed",
)
_READ_S = 30.0
_NEVER = -1


@dataclass(frozen=True)
class Hostile:
    """One connection's worth of bytes.

    `leave` is what the caller does then: reads the answer, or closes at once, with or without a
    goodbye. `is_http` says that an answer must come.
    """

    kind: str
    raw: bytes
    leave: str = "read"
    is_http: bool = True

    def __repr__(self) -> str:
        return f"{self.kind} ({self.leave}): {self.raw[:600]!r}"


@functools.cache
def fields(path: str) -> tuple[str, ...]:
    """The fields of vLLM's request class for this path, without importing vLLM."""
    spec = importlib.util.find_spec("vllm")
    if spec is None or spec.origin is None:
        return _WITHOUT_VLLM
    file, name = _CLASSES[path]
    source = Path(spec.origin).parent / "entrypoints" / file
    for node in ast.parse(source.read_text(encoding="utf-8")).body:
        if isinstance(node, ast.ClassDef) and node.name == name:
            return tuple(
                line.target.id
                for line in node.body
                if isinstance(line, ast.AnnAssign) and isinstance(line.target, ast.Name)
            )
    raise AssertionError(f"vLLM has no {name} in {source}")


def valid_body(path: str) -> dict[str, Any]:
    """What a well-meaning caller sends there."""
    said = [{"role": "user", "content": PROMPT}]
    return {
        "/v1/chat/completions": {"model": MODEL, "messages": said, "max_tokens": 4},
        "/v1/completions": {"model": MODEL, "prompt": PROMPT, "max_tokens": 4},
        "/v1/responses": {"model": MODEL, "input": PROMPT, "max_output_tokens": 4},
        "/v1/messages": {"model": MODEL, "messages": said, "max_tokens": 4},
    }[path]


class Raw(str):
    """Goes into the JSON text as it is."""

    __slots__ = ()


def dump(value: Any) -> str:
    """JSON, or what looks like it: pairs may repeat a key, `Raw` stays raw."""
    if isinstance(value, Raw):
        return str(value)
    if isinstance(value, dict):
        value = Pairs(value.items())
    if isinstance(value, Pairs):
        return "{" + ",".join(f"{json.dumps(k)}:{dump(v)}" for k, v in value) + "}"
    if isinstance(value, list):
        return "[" + ",".join(map(dump, value)) + "]"
    return json.dumps(value)


class Pairs(list):
    """The members of an object, in order, with all their repetitions."""

    __slots__ = ()


_LEGAL_NUMBERS = (
    "0 -1 1 2 3 1e0 1.0 0.5 -0.0 1e308 2147483648 9223372036854775807 9223372036854775808 "
    "18446744073709551616 1e-400"
)
_NO_NUMBERS = "1e999 -1e999 NaN Infinity -Infinity 00 +1 .5 1. 0x10 1_000"
_NUMBERS = st.one_of(
    st.sampled_from([Raw(text) for text in _LEGAL_NUMBERS.split()]),
    st.integers(),
    st.floats(allow_nan=False, allow_infinity=False),
)
_NO_JSON = st.sampled_from([
    *(Raw(text) for text in _NO_NUMBERS.split()), Raw("9" * 400),
    Raw('"\\x"'), Raw('"\x01"'), Raw('"unclosed'), Raw("'x'"), Raw("undefined"), Raw(""),
])  # fmt: skip
_TEXTS = st.sampled_from([
    Raw('"\\u0000"'), Raw('"\\ud83d\\ude42"'), "", " ", "\u202e", "🙂" * 50, "a" * 5000, "</s><s>",
    "true", "null", "../../etc/passwd", "${jndi:ldap://127.0.0.1}", "%s%n", "stop", "auto", "none",
    "system", "data:image/png;base64,AAAA", "file:///etc/passwd", "{{ 7 * 7 }}",
])  # fmt: skip
_SURROGATES = st.sampled_from([Raw('"\\ud800"'), Raw('"\\udc00\\ud800"'), Raw('"a\\udfff"')])
_SCALARS = st.one_of(st.none(), st.booleans(), _NUMBERS, _TEXTS, st.text(max_size=20))


@st.composite
def _deep(draw: st.DrawFn) -> Raw:
    depth = draw(st.sampled_from([3, 50, 99, 100, 101, 500, 5000, 100_000]))
    opening, closing = draw(st.sampled_from([("[", "]"), ('{"a":', "}"), ('[{"a":', "}]")]))
    return Raw(opening * depth + "1" + closing * draw(st.sampled_from([depth, depth - 1])))


_VALUES = st.recursive(
    _SCALARS,
    lambda inner: st.one_of(
        st.lists(inner, max_size=4),
        st.dictionaries(
            st.sampled_from(
                ["type", "text", "role", "content", "name", "function", "image_url", "url", "id"]
            ),
            inner,
            max_size=4,
        ),
    ),
    max_leaves=8,
)
_UNKNOWN = (
    "kv_transfer_params",
    "ec_transfer_params",
    "__proto__",
    "",
    "extra_body",
    "\ud800",
    "\0",
)


@st.composite
def _bodies(draw: st.DrawFn, path: str) -> bytes:
    pairs = Pairs(valid_body(path).items())
    if draw(st.booleans()):
        pairs.append(("stream", True))
    if draw(st.integers(0, 4)) == 0:
        ruined = draw(st.sampled_from(fields(path)))
        pairs.append((ruined, draw(st.one_of(_NO_JSON, _SURROGATES, _deep()))))
    for _ in range(draw(st.integers(1, 3))):
        key = draw(st.sampled_from(fields(path) + _UNKNOWN))
        value = draw(_VALUES)
        how = draw(st.sampled_from(["set", "set", "set", "double", "drop"]))
        places = [place for place, (known, _) in enumerate(pairs) if known == key]
        if how == "double" or not places:
            pairs.append((key, value))
        elif how == "set":
            pairs[places[0]] = (key, value)
        else:
            del pairs[places[0]]
    raw = dump(pairs).encode(errors="surrogatepass")
    spoil = draw(st.sampled_from(["no"] * 24 + ["cut", "flip", "bom", "latin", "twice", "array"]))
    at = draw(st.integers(0, len(raw)))
    return {
        "no": raw,
        "cut": raw[:at],
        "flip": raw[:at] + draw(st.binary(min_size=1, max_size=4)) + raw[at + 1 :],
        "bom": b"\xef\xbb\xbf" + raw,
        "latin": raw + b"\xe9",
        "twice": raw + raw,
        "array": b"[" + raw + b"]",
    }[spoil]


_HEADERS = st.sampled_from([
    "accept: application/xml", "accept: text/event-stream", "authorization: Bearer ",
    "authorization: Basic \xff", "x-request-id: " + "a" * 300, "x-request-id: \t\x7f",
    "x-request-id: ../../x", "x-baton-disaggregate: never", "x-baton-disaggregate: always",
    "x-baton-disaggregate: perhaps", "x-baton-timing: 1", "x-baton-engine-secret: x",
    "x-data-parallel-rank: 7", "x-sim-fault: die_at=0", "x-sim-fault: hang",
    "content-encoding: gzip", "content-type: text/plain", "content-type: text/json; charset=x",
    "content-type: multipart/form-data; boundary=x", "expect: 100-continue", "upgrade: websocket",
    "connection: upgrade, http2-settings", "cookie: a=b", "traceparent: nonsense", "te: trailers",
    "x-long: " + "b" * 9000, "host: evil.example", "range: bytes=0-1", "if-none-match: *",
])  # fmt: skip
_METHODS = ("POST",) * 12 + ("GET", "PUT", "DELETE", "PATCH", "HEAD", "OPTIONS", "TRACE", "BREW")
_PATHS = (
    "/v1/models", "/v1/models/x/y", "/v1/models/", "/health", "/ready", "/metrics",
    "/baton/requests", "/baton/engines", "/v1/responses/x", "/v1/responses/x/cancel",
    "/v1/responses//cancel", "/v1/embeddings", "/tokenize", "/detokenize", "/v1/score",
    "/v1/load_lora_adapter", "/sleep", "/sim/faults", "/inference/v1/generate", "/collective_rpc",
    "/v1/chat/completions/", "//v1/completions", "/v1/completions?x=1", "/%2e%2e/v1/completions",
    "/v1/completions%00", "/\xe9", "/" + "a" * 3000, "*", "http://evil.example/v1/completions",
    "/v1/messages/count_tokens", "/v1/audio/transcriptions", "/docs", "/openapi.json", "/",
)  # fmt: skip


def http(method: str, path: str, headers: list[str], body: bytes, *, length: str = "") -> bytes:
    """A request as it goes over the wire, closed by the server afterwards."""
    head = [f"{method} {path} HTTP/1.1", "host: x", "connection: close"]
    if body or method == "POST":
        head.append(f"content-length: {length or len(body)}")
    if not any(line.startswith("content-type") for line in headers):
        head.append("content-type: application/json")
    return "\r\n".join([*head, *headers, "", ""]).encode("latin-1", "replace") + body


@st.composite
def _requests(draw: st.DrawFn) -> Hostile:
    path = draw(st.sampled_from(sorted(_CLASSES)))
    body = draw(_bodies(path))
    headers = draw(st.lists(_HEADERS, max_size=2))
    leave = draw(st.sampled_from(["read"] * 8 + ["close", "reset"]))
    return Hostile("body", http("POST", path, headers, body), leave)


@st.composite
def _odd(draw: st.DrawFn) -> Hostile:
    path = draw(st.sampled_from((*_PATHS, *sorted(_CLASSES))))
    method = draw(st.sampled_from(_METHODS))
    known = path if path in _CLASSES else "/v1/completions"
    body = draw(st.one_of(st.just(b""), _bodies(known), st.binary(max_size=60)))
    return Hostile("odd", http(method, path, draw(st.lists(_HEADERS, max_size=3)), body))


_GOOD = json.dumps(valid_body("/v1/completions")).encode()
_CHUNKED = b"POST /v1/completions HTTP/1.1\r\nhost: x\r\ncontent-type: application/json\r\n"
_CHUNKED += b"transfer-encoding: chunked\r\n\r\n"
_PREFACE = b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n\x00\x00\x00\x04\x00\x00\x00\x00\x00"


@st.composite
def _raw(draw: st.DrawFn) -> Hostile:
    noise = draw(st.binary(max_size=200))
    whole = http("POST", "/v1/completions", [], _GOOD)
    at = draw(st.integers(1, len(whole) - 1))
    raw = draw(
        st.sampled_from(
            [
                noise,
                noise + b"\r\n\r\n",
                _PREFACE,
                b"GET / HTTP/9.9\r\n\r\n",
                b"GET  /health  HTTP/1.1\r\n\r\n",
                b"\x16\x03\x01\x02\x00\x01\x00\x01\xfc\x03\x03" + noise,
                whole[:at],
                whole[:at] + noise,
                b"\r\n" * 20 + whole,
                http("POST", "/v1/completions", [], _GOOD, length="-1"),
                http("POST", "/v1/completions", [], _GOOD, length="99999999999999999999"),
                http("POST", "/v1/completions", [], _GOOD, length=str(len(_GOOD) + 5)),
                http("POST", "/v1/completions", [], _GOOD, length="1 2"),
                http("POST", "/v1/completions", ["content-length: 3"], _GOOD),
                http("POST", "/v1/completions", ["transfer-encoding: chunked"], _GOOD),
                _CHUNKED + b"zz\r\n" + _GOOD,
                _CHUNKED + b"ffffffffffffffff\r\n" + _GOOD,
                _CHUNKED + b"-5\r\n" + _GOOD + b"\r\n0\r\n\r\n",
                _CHUNKED + f"{len(_GOOD):x}\r\n".encode() + _GOOD + b"\r\n",
                _CHUNKED + f"{len(_GOOD):x};x=".encode() + b"y" * 5000 + b"\r\n" + _GOOD,
                http("GET", "/health", [], b"").replace(b"connection: close\r\n", b"") * 3 + whole,
                whole + noise,
                b"GET /health HTTP/1.1\r\n" + b"a: b\r\n" * 2000,
                b"GET /" + b"x" * 100_000,
            ]
        )
    )
    return Hostile("raw", raw, draw(st.sampled_from(["read", "close", "reset"])), is_http=False)


def requests() -> st.SearchStrategy[Hostile]:
    """Four bodies for one odd request and one piece of noise."""
    kinds = [_requests()] * 4 + [_odd(), _raw()]
    return st.integers(0, len(kinds) - 1).flatmap(kinds.__getitem__)


_STATUS = re.compile(rb"HTTP/1\.[01] (\d{3})[^\r\n]*\r\n")
_EVENT_5XX = re.compile(rb'"code": ?5\d\d[,}]')


def send(address: tuple[str, int], hostile: Hostile) -> tuple[list[int], bytes]:
    """Send it; the statuses of all answers on that connection, and what came."""
    with socket.create_connection(address, timeout=_READ_S) as connection:
        with contextlib.suppress(OSError):  # answered before we were done, and closed
            connection.sendall(hostile.raw)
        if hostile.leave == "reset":
            linger = b"\x01\x00\x00\x00\x00\x00\x00\x00"
            connection.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, linger)
            return [], b""
        if hostile.leave == "close":
            return [], b""
        if not hostile.is_http:
            connection.shutdown(socket.SHUT_WR)
        return _read(connection)


def _read(connection: socket.socket) -> tuple[list[int], bytes]:
    came = b""
    deadline = time.monotonic() + _READ_S
    try:
        while piece := connection.recv(65_536):
            came += piece
            if time.monotonic() > deadline:
                return [_NEVER], came
    except ConnectionError:
        pass
    except TimeoutError:
        return [_NEVER], came
    return [int(status) for status in _STATUS.findall(came)], came


def complaint(hostile: Hostile, statuses: list[int], came: bytes) -> str | None:
    """What is wrong with the answer; None when nothing is."""
    # 501 is vLLM's "this model cannot do that", for instance embeddings of a chat model.
    if _NEVER in statuses:
        return f"no end of the answer within {_READ_S:.0f} s"
    if any(status >= 500 and status != 501 for status in statuses):
        return f"a 5xx ({statuses})"
    if _EVENT_5XX.search(came) and 200 in statuses:
        return "a 5xx inside a stream"
    if hostile.is_http and hostile.leave == "read" and not any(s >= 200 for s in statuses):
        return "no answer"
    return None
