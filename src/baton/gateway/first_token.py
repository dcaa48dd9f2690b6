"""Says a stream's first token as soon as prefill has sampled it; decode goes on behind it.

Prefill is asked for one token, and in the ordinary way nobody reads it: decode computes the last
prompt token again and samples the same place anew. Here the token goes to the caller at once, and
decode gets the prompt and that token as token ids, with prefill's KV. For the gateway that is a
stream which broke behind its first token (`resume`), so the same code goes on with it, and what
cannot be continued exactly (`resumable`) goes the ordinary way. Everything else that could make a
difference is in this file: `plan` looks at the request before prefill, `read` at prefill's answer.

| reason        | why the first token comes through decode                                      |
| ------------- | ----------------------------------------------------------------------------- |
| `off`         | `disaggregate.first_token: ordinary`                                          |
| `request`     | the answer cannot be continued by token ids (`resumable` says which field)    |
| `types`       | a field that prefill does not check, with a type that only vLLM can judge     |
| `engines`     | the engines do not say, or say no: parsers, default limits, block sizes       |
| `fallback`    | no prefill engine could do it                                                 |
| `answer`      | prefill's answer has no token ids, or more than plain text                    |
| `state`       | KV of fewer tokens than the prompt has: models with a running state (Mamba)   |
| `block`       | the prompt ends at, or one token before, the end of a KV block                |
| `text`        | the token is no text yet: the beginning of a character, or a special token    |
| `stop_string` | a stop string may begin in it                                                 |
| `length`      | what is asked for does not fit the context: decode has to refuse it           |
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from baton.gateway.prefill import prefill_body
from baton.gateway.prompt_usage import PromptUsage
from baton.gateway.resumable import COMPLETING, DEFAULT_MAX_TOKENS, continuation
from baton.gateway.transcript import write_event

if TYPE_CHECKING:
    from baton.gateway.ask import Ask
    from baton.gateway.handoff import KVTransferParams
    from baton.gateway.request_body import Body
    from baton.gateway.resumable import Means
    from baton.spec.lease import EngineLease

# Left out of an ordinary prefill leg, and needed where its token counts.
_SHAPES_THE_TOKEN = ("stop", "stop_token_ids", "include_stop_str_in_output")
_CHAT = "/v1/chat/completions"


class Ordinary(Exception):
    """The first token comes through decode. `reason` is a name of the table above."""

    def __init__(self, reason: str) -> None:
        super().__init__(reason)
        self.reason = reason


@dataclass(frozen=True)
class Plan:
    """A request whose first token may leave from prefill.

    Args:
        ask: The request.
        limit: Tokens that its answer may have; None for as many as fit.
        vouched: Engines that say nothing are taken for such that continue everything.
    """

    ask: Ask
    limit: int | None
    vouched: bool

    @property
    def body(self) -> Body:
        return self.ask.body or {}

    @property
    def is_chat(self) -> bool:
        return self.ask.route.path == _CHAT

    def prefill_body(self) -> Body:
        """The prefill leg: its token is the answer's, so it is sampled under the same rules."""
        body = self.body
        leg = prefill_body(body, self.ask.route)
        leg |= {key: body[key] for key in _SHAPES_THE_TOKEN if key in body}
        if body.get("min_tokens"):
            leg["min_tokens"] = 1  # no end-of-text yet; more than max_tokens would be refused
        leg["return_token_ids"] = True
        return leg


@dataclass(frozen=True)
class FirstToken:
    """What prefill has said.

    Args:
        events: Events for the caller, with token ids, as an engine that was asked for them writes.
        text: Their text.
        rest: The `/v1/completions` request that writes what follows; None: the answer is complete.
    """

    events: bytes
    text: str
    rest: Body | None


def plan(ask: Ask, means: Means, *, keeps_ids: bool, mode: str) -> Plan:
    """Whether a request's first token may leave from prefill, as far as the request says.

    Args:
        ask: A request that wants a stream and goes through both phases.
        means: What its stream allows.
        keeps_ids: Whether token ids of streams are kept (`recovery.resume_streams`).
        mode: `disaggregate.first_token`.

    Raises:
        Ordinary: It may not.
    """
    body = ask.body
    if mode == "ordinary":
        raise Ordinary("off")
    if body is None or ask.route.path not in COMPLETING or not (means.continues and keeps_ids):
        raise Ordinary("request")
    limits = [body.get(key) for key in ask.route.token_limits if body.get(key) is not None]
    if (
        any(type(limit) is not int or limit < 1 for limit in limits)
        or len(set(limits)) > 1  # which of the two counts is vLLM's business
        or type(body.get("return_token_ids")) not in (bool, type(None))
        or not _plain_options(body.get("stream_options"))
    ):
        raise Ordinary("types")
    limit = limits[0] if limits else None if ask.route.path == _CHAT else DEFAULT_MAX_TOKENS
    least = body.get("min_tokens")
    if least is not None and (type(least) is not int or least < 0 or (limit and least > limit)):
        raise Ordinary("types")
    return Plan(ask, limit, vouched=mode == "early")


def _plain_options(options: Any) -> bool:
    if options is None:
        return True
    return isinstance(options, dict) and all(
        type(value) in (bool, type(None)) for value in options.values()
    )


def read(
    plan: Plan, said: Any, params: KVTransferParams, prefill: EngineLease, decode: EngineLease
) -> FirstToken:
    """The first token in prefill's answer, and what is left to do.

    Args:
        plan: Of the request.
        said: Prefill's JSON answer.
        params: Its offer of KV.
        prefill: Who has answered.
        decode: Who will go on.

    Raises:
        Ordinary: Decode has to say it.
    """
    _check_engines(plan, prefill, decode)
    answer = _Answer.of(plan, said)
    room = decode.max_model_len - len(answer.prompt)
    if plan.limit is not None and plan.limit > room:
        raise Ordinary("length")
    if answer.finish_reason == "stop" or 1 in (plan.limit, room):
        return FirstToken(answer.events(plan, complete=True), answer.text, None)
    if params.prompt_tokens != len(answer.prompt):
        # vLLM 0.29 (nixl/base_scheduler.py `_truncate_mamba_request_for_prefill`) takes the last
        # prompt token off, and the token that is sampled then is not the answer's first.
        raise Ordinary("state")
    size = decode.block_size
    # Too many blocks kill the engine that asks for them: what was offered has to agree. And that
    # decode reads a longer prompt than was offered was tried where decode pulls, not where
    # prefill pushes.
    mode = (params.model_extra or {}).get("transfer_mode", "pull")
    if mode != "pull" or params.most_blocks != -(-len(answer.prompt) // size):
        raise Ordinary("engines")
    if not ends_inside_a_block(len(answer.prompt), size):
        raise Ordinary("block")
    if not answer.text or answer.text.endswith("\ufffd"):
        raise Ordinary("text")
    if _may_begin_a_stop_string(answer.text, plan.body.get("stop")):
        raise Ordinary("stop_string")
    rest = continuation(
        plan.body,
        plan.ask.route,
        answer.prompt,
        [answer.token],
        max_model_len=decode.max_model_len,
    )
    if rest is None:
        raise Ordinary("length")
    return FirstToken(answer.events(plan, complete=False), answer.text, rest)


def _check_engines(plan: Plan, prefill: EngineLease, decode: EngineLease) -> None:
    """Both must continue such answers exactly, cut KV alike, and say how long a context may be."""
    good = ("chat",) if plan.is_chat else ("chat", "completions")
    if plan.vouched:
        good = (*good, "unknown")
    if (
        prefill.continues not in good
        or decode.continues not in good
        or decode.block_size < 1
        or prefill.block_size != decode.block_size
        or decode.max_model_len < 1
    ):
        raise Ordinary("engines")


def ends_inside_a_block(prompt_tokens: int, block_size: int) -> bool:
    """Whether one more token neither needs another KV block nor fills the last one.

    Another block: decode has one more than prefill offers, and an assertion ends its EngineCore
    (vLLM 0.29, nixl/base_worker.py `_apply_prefix_caching`). A full one: vLLM puts blocks into its
    prefix cache when they have come, before it takes the last token back to compute it
    (v1/core/sched/scheduler.py `_update_waiting_for_remote_kv`). That token's KV was never sent:
    were the request aborted in between, somebody else would read what is not there.
    """
    return (prompt_tokens + 1) % block_size > 1


def _may_begin_a_stop_string(text: str, stop: Any) -> bool:
    """Whether a stop string stands in the text, or begins at its end.

    Decode would not see the beginning: for it this text is prompt.
    """
    stops = [stop] if isinstance(stop, str) else stop or ()
    return any(
        one in text or any(text.endswith(one[:length]) for length in range(1, len(one)))
        for one in stops
    )


@dataclass(frozen=True)
class _Answer:
    """Prefill's answer, checked."""

    head: dict[str, Any]
    fingerprint: str | None
    role: str
    prompt: list[int]
    token: int
    text: str
    finish_reason: str
    stop_reason: Any
    prompt_details: dict[str, Any] | None

    @classmethod
    def of(cls, plan: Plan, said: Any) -> _Answer:
        try:
            (choice,) = said["choices"]
            (token,) = choice["token_ids"]
            message = choice["message"] if plan.is_chat else {"content": choice["text"]}
            prompt = (said if plan.is_chat else choice)["prompt_token_ids"]
            head = {key: said[key] for key in ("id", "created", "model")}
            finish_reason = choice["finish_reason"]
        except (KeyError, TypeError, ValueError) as exc:
            raise Ordinary("answer") from exc
        text = message.get("content")
        # A reasoning or tool parser had its hand in it.
        parsed = any(message.get(key) for key in ("reasoning", "tool_calls", "function_call"))
        if parsed or not isinstance(text, str) or not isinstance(prompt, list) or not prompt:
            raise Ordinary("answer")
        if type(token) is not int or finish_reason not in ("stop", "length"):
            raise Ordinary("answer")
        return cls(
            head,
            said.get("system_fingerprint"),
            message.get("role") or "assistant",
            prompt,
            token,
            text,
            finish_reason,
            choice.get("stop_reason"),
            PromptUsage.of(said, plan.ask.route.dialect).details,
        )

    def events(self, plan: Plan, *, complete: bool) -> bytes:
        """The events that a stream begins with, in vLLM's words and order.

        vLLM 0.29, openai/completion/serving.py and openai/chat_completion/serving.py.
        """
        kind = "chat.completion.chunk" if plan.is_chat else "text_completion"
        head = {"id": self.head["id"], "object": kind, **_without_id(self.head)}
        options = plan.body.get("stream_options") or {}
        usage_last = bool(options.get("include_usage"))
        usage_always = usage_last and bool(options.get("continuous_usage_stats"))

        def usage(written: int, *, chunk: bool = True) -> dict[str, Any]:
            if chunk and not usage_always:
                return {}
            counts: dict[str, Any] = {
                "prompt_tokens": len(self.prompt),
                "total_tokens": len(self.prompt) + written,
                "completion_tokens": written,
            }
            if not chunk and self.prompt_details is not None:
                counts["prompt_tokens_details"] = self.prompt_details
            if chunk and plan.is_chat:
                counts["completion_tokens_details"] = None
            return {"usage": counts}

        stamp = {} if self.fingerprint is None else {"system_fingerprint": self.fingerprint}
        end = {"finish_reason": self.finish_reason, "stop_reason": self.stop_reason}
        documents: list[dict[str, Any]] = []
        if plan.is_chat:
            choice = {
                "index": 0,
                "delta": {"role": self.role, "content": ""},
                "logprobs": None,
                "finish_reason": None,
            }
            ids = {"prompt_token_ids": self.prompt, "prompt_text": None}
            documents.append({"choices": [choice], **usage(0), **ids})
            choice = {
                "index": 0,
                "delta": {"content": self.text},
                "logprobs": None,
                **(end if complete else {"finish_reason": None}),
                "token_ids": [self.token],
            }
        else:
            choice = {
                "index": 0,
                "text": self.text,
                "logprobs": None,
                **(end if complete else {"finish_reason": None, "stop_reason": None}),
                "prompt_token_ids": self.prompt,
                "token_ids": [self.token],
            }
        last = stamp if complete and not usage_last else {}
        documents.append({"choices": [choice], **usage(1), **last})
        if complete and usage_last:
            documents.append({"choices": [], **usage(1, chunk=False), **stamp})
        events = b"".join(write_event({**head, **document}) for document in documents)
        return events + b"data: [DONE]\n\n" if complete else events


def _without_id(head: dict[str, Any]) -> dict[str, Any]:
    return {key: value for key, value in head.items() if key != "id"}
