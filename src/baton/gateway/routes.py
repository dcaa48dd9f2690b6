"""Every HTTP route of vLLM 0.29, and what Baton does with it. Anything else is a 404.

The table was read from vLLM 0.29.0's `vllm/entrypoints/**/api_router.py`,
`entrypoints/serve/instrumentator/*.py` and `entrypoints/launchers/api_server/routers.py`. A route
that vLLM adds later is not served until it is listed here: a gateway that passed on what it does
not know would one day pass on an engine's controls.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

Kind = Literal["pd", "decode_only", "own", "never"]
Dialect = Literal["openai", "anthropic", "responses"]


@dataclass(frozen=True)
class Route:
    """One path and what happens to it.

    Args:
        path: As vLLM spells it. `{id}` stands for the rest of the path.
        methods: What is answered; anything else is a 405.
        kind: `pd` disaggregated, `decode_only` sent to a decode engine, `own` answered by the
            gateway, `never` a 404.
        reason: Why.
        dialect: How an error looks in the middle of a stream.
        terminator: The last event of a whole stream, where the protocol has a fixed one.
        preamble_events: Events that vLLM sends before anything is generated. They are held back
            together with the first event that says something, so that a failed KV load can still
            be retried: vLLM answers 200 first and reports the failure as the next event.
        finish_mark: Bytes that every answer has which came to an end, even an empty one.
        token_limits: Fields that bound the generated tokens; 1 on the prefill leg.
    """

    path: str
    methods: frozenset[str]
    kind: Kind
    reason: str
    dialect: Dialect = "openai"
    terminator: bytes | None = None
    preamble_events: int = 0
    finish_mark: bytes | None = None
    token_limits: tuple[str, ...] = ()


def _post(path: str, kind: Kind, reason: str) -> Route:
    return Route(path, frozenset({"POST"}), kind, reason)


def _get(path: str, kind: Kind, reason: str) -> Route:
    return Route(path, frozenset({"GET", "HEAD"}), kind, reason)


_POST = frozenset({"POST"})
_CONTROL = "controls an engine: an operator's business, not a caller's"
_POOLING = "one forward pass, no decode phase that could be handed anything"
_DOUBLE = "a second way in that skips the checks of the real route"

COMPLETIONS = Route(
    "/v1/completions",
    _POST,
    "pd",
    "generates",
    terminator=b"data: [DONE]",
    finish_mark=b'"finish_reason":"',
    token_limits=("max_tokens",),
)

TABLE: tuple[Route, ...] = (
    # Generation: disaggregated. What each answers as its last event: vLLM 0.29
    # openai/chat_completion/serving.py, openai/completion/serving.py, anthropic/serving.py,
    # openai/responses/api_router.py (no fixed last event there: completed, failed, incomplete).
    Route(
        "/v1/chat/completions",
        _POST,
        "pd",
        "generates",
        terminator=b"data: [DONE]",
        preamble_events=1,
        finish_mark=b'"finish_reason":"',
        token_limits=("max_tokens", "max_completion_tokens"),
    ),
    COMPLETIONS,
    Route(
        "/v1/responses",
        _POST,
        "pd",
        "generates; what lives in one engine's memory goes to that engine (decision 0005)",
        dialect="responses",
        preamble_events=2,
        token_limits=("max_output_tokens",),
    ),
    Route(
        "/v1/messages",
        _POST,
        "pd",
        "generates (decision 0005)",
        dialect="anthropic",
        terminator=b'event: message_stop\ndata: {"type":"message_stop"}',
        preamble_events=1,
        finish_mark=b'"stop_reason":"',
        token_limits=("max_tokens",),
    ),
    # Sent to a decode engine as they are.
    _post("/v1/chat/completions/batch", "decode_only", "several conversations in one request"),
    _post("/generative_scoring", "decode_only", "one token for many items; nothing to hand over"),
    _post("/v1/messages/count_tokens", "decode_only", "tokenizes, generates nothing"),
    _post("/tokenize", "decode_only", "generates nothing"),
    _post("/detokenize", "decode_only", "generates nothing"),
    _post("/v1/embeddings", "decode_only", _POOLING),
    _post("/v2/embed", "decode_only", _POOLING),
    _post("/pooling", "decode_only", _POOLING),
    _post("/classify", "decode_only", _POOLING),
    _post("/score", "decode_only", _POOLING),
    _post("/v1/score", "decode_only", _POOLING),
    _post("/rerank", "decode_only", _POOLING),
    _post("/v1/rerank", "decode_only", _POOLING),
    _post("/v2/rerank", "decode_only", _POOLING),
    Route(
        "/v1/responses/{id}",
        frozenset({"GET"}),
        "decode_only",
        "lives in the memory of the engine that made it",
        dialect="responses",
    ),
    _post("/v1/responses/{id}/cancel", "decode_only", "runs in the engine that was asked"),
    # Answered here.
    _get("/v1/models", "own", "the models of the deployment, not of one engine"),
    _get("/v1/models/{id}", "own", "the models of the deployment, not of one engine"),
    _get("/health", "own", "the gateway's process"),
    _get("/ready", "own", "whether a pair can serve"),
    _get("/metrics", "own", "the gateway's metrics"),
    _get("/baton/engines/metrics", "own", "every engine's own metrics on one page"),
    _get("/baton/requests", "own", "the last timelines"),
    _get("/baton/engines", "own", "the directory as this gateway sees it"),
    _get("/baton/evidence", "own", "what engines say of their KV transfer (proofs)"),
    _post("/baton/verify/handoff", "own", "one request through a named pair (proofs)"),
    _post("/baton/verify/raw", "own", "a transfer without engines between two places (proofs)"),
    # The console: 404 unless it is switched on.
    _get("/console", "own", "a page that holds no data (console)"),
    _get("/console/{id}", "own", "the page's files (console)"),
    _get("/baton/console", "own", "what the page shows, behind the keys (console)"),
    _post("/baton/verify/verdicts", "own", "what `baton verify` found, for the console (verdicts)"),
    # Never exposed.
    _post("/v1/load_lora_adapter", "never", "loads files named by the caller into an engine"),
    _post("/v1/unload_lora_adapter", "never", _CONTROL),
    _post("/scale_elastic_ep", "never", _CONTROL),
    _post("/is_scaling_elastic_ep", "never", _CONTROL),
    _post("/fault_tolerance/apply", "never", _CONTROL),
    _get("/fault_tolerance/status", "never", _CONTROL),
    _post("/sleep", "never", _CONTROL),
    _post("/wake_up", "never", _CONTROL),
    _get("/is_sleeping", "never", _CONTROL),
    _post("/pause", "never", _CONTROL),
    _post("/resume", "never", _CONTROL),
    _get("/is_paused", "never", _CONTROL),
    _post("/abort_requests", "never", "ends other callers' requests"),
    _post("/init_weight_transfer_engine", "never", _CONTROL),
    _post("/start_weight_update", "never", _CONTROL),
    _post("/start_draft_weight_update", "never", _CONTROL),
    _post("/update_weights", "never", _CONTROL),
    _post("/finish_weight_update", "never", _CONTROL),
    _post("/update_weight_version", "never", _CONTROL),
    _get("/weight_info", "never", _CONTROL),
    _get("/get_world_size", "never", _CONTROL),
    _post("/start_profile", "never", _CONTROL),
    _post("/stop_profile", "never", _CONTROL),
    _post("/reset_prefix_cache", "never", _CONTROL),
    _post("/reset_mm_cache", "never", _CONTROL),
    _post("/reset_encoder_cache", "never", _CONTROL),
    _post("/collective_rpc", "never", "runs any method of an engine's worker"),
    _get("/server_info", "never", "tells an engine's whole configuration"),
    _get("/tokenizer_info", "never", "tells an engine's configuration"),
    _post("/invocations", "never", _DOUBLE),
    _get("/ping", "never", "SageMaker's name for /health, of one engine"),
    _post("/inference/v1/generate", "never", _DOUBLE),
    _post("/v1/chat/completions/render", "never", "engine internals: prompts as token ids"),
    _post("/v1/completions/render", "never", "engine internals: prompts as token ids"),
    _post("/v1/messages/render", "never", "engine internals: prompts as token ids"),
    _post("/v1/chat/completions/derender", "never", "engine internals: prompts as token ids"),
    _post("/v1/completions/derender", "never", "engine internals: prompts as token ids"),
    _post("/cohere/v2/chat", "never", "needs an SDK beside vLLM and a switch; not tried here"),
    _post("/cohere/v2/chat/render", "never", "engine internals: prompts as token ids"),
    _post("/v1/audio/transcriptions", "never", "takes a form; our checks read JSON"),
    _post("/v1/audio/translations", "never", "takes a form; our checks read JSON"),
    _get("/v1/realtime", "never", "a websocket; not built"),
    _get("/load", "never", "one engine's load"),
    _get("/version", "never", "one engine's version"),
    _get("/docs", "never", "one engine's pages, which list what is not served here"),
    _get("/docs/oauth2-redirect", "never", "one engine's pages"),
    _get("/redoc", "never", "one engine's pages"),
    _get("/openapi.json", "never", "one engine's routes, which are not ours"),
)

_EXACT = {route.path: route for route in TABLE if "{" not in route.path}
_RESPONSES = "/v1/responses/"
_MODELS = "/v1/models/"
_CONSOLE = "/console/"
_PATTERNS = {route.path: route for route in TABLE if "{" in route.path}


def lookup(path: str) -> tuple[Route, str | None] | None:
    """The route of a path and its `{id}`, or None. Routes marked `never` are None as well."""
    route = _EXACT.get(path)
    if route is not None:
        return None if route.kind == "never" else (route, None)
    # A model's id may hold slashes: the rest of the path is the id.
    if path.startswith(_MODELS) and len(path) > len(_MODELS):
        return _PATTERNS["/v1/models/{id}"], path[len(_MODELS) :]
    if path.startswith(_CONSOLE):
        return _PATTERNS["/console/{id}"], path[len(_CONSOLE) :]
    if path.startswith(_RESPONSES):
        rest = path[len(_RESPONSES) :]
        name, slash, action = rest.partition("/")
        if name and not slash:
            return _PATTERNS["/v1/responses/{id}"], name
        if name and action == "cancel":
            return _PATTERNS["/v1/responses/{id}/cancel"], name
    return None


def local_path(path: str, root_path: str, prefix: str) -> str | None:
    """The path below `route_prefix`, as vLLM spells it; None when it is not below.

    Servers disagree on whether `path` still holds `root_path` (the ASGI spec says yes, some strip
    it), so both are taken; without a prefix, `root_path` is it. Under a prefix that ends in `/v1`
    callers expect `/v1/chat/completions` and not `/v1/v1/…`, so the prefix stands for the route's
    own `/v1`.
    """
    root_path = root_path.rstrip("/")
    prefix = prefix.rstrip("/") or root_path
    rest = path
    if prefix and _below(path, prefix):
        rest = path[len(prefix) :]
    elif root_path and _below(path, root_path):
        rest = path[len(root_path) :]
        if not root_path.endswith(prefix):
            if not _below(rest, prefix):
                return None
            rest = rest[len(prefix) :]
    elif prefix and not root_path.endswith(prefix):
        return None
    rest = rest or "/"
    if not prefix.endswith("/v1"):
        return rest
    if rest.startswith("/v1/") or rest == "/v1":
        return None
    return "/v1" + rest if lookup("/v1" + rest) is not None else rest


def _below(path: str, prefix: str) -> bool:
    return path == prefix or path.startswith(prefix + "/")
