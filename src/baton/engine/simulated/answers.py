"""The bytes of an answer: vLLM's JSON, key by key and in its order.

Chunks are put together from bytes that are the same for the whole stream and the few that change:
this is the hot path when gateways are measured against simulated engines.
"""

from __future__ import annotations

import json
import time
import uuid
from functools import lru_cache
from typing import TYPE_CHECKING, Any, Protocol

from baton.engine.simulated.requests import ChatRequest, CompletionRequest, error_body
from baton.engine.simulated.text import decode

if TYPE_CHECKING:
    from baton.engine.simulated.prefix import Cached
    from baton.engine.simulated.sequence import Step

DONE = b"data: [DONE]\n\n"
FINGERPRINT = "vllm-0.29.0-simulated"
_FINGERPRINT_TAIL = f',"system_fingerprint":"{FINGERPRINT}"'.encode()
_NO_LOGPROBS = b"null"
_SURE = -0.0001
"""The log-probability that every token gets: the text is a function, there is no doubt."""


@lru_cache(maxsize=8192)
def quoted(text: str) -> bytes:
    """A JSON string, as pydantic writes it: UTF-8 stays as it is."""
    return json.dumps(text, ensure_ascii=False).encode()


def dumps(document: Any) -> bytes:
    """JSON as Starlette's JSONResponse writes it."""
    return json.dumps(document, ensure_ascii=False, separators=(",", ":")).encode(errors="replace")


def stream_error(message: str) -> bytes:
    """The events that a stream ends with when the engine has failed the request."""
    return last_event(error_body(message, kind="InternalServerError", param=None, code=500))


def last_event(body: bytes) -> bytes:
    """An error's JSON as a stream's last word."""
    return b"data: " + body + b"\n\n" + DONE


def new_request_id(header: str | None) -> str:
    """What `X-Request-Id` says, or sixteen hex digits."""
    return header or uuid.uuid4().hex[:16]


class Answer(Protocol):
    """One request's way of writing."""

    request_id: str
    cached: Cached | None
    """How much of the prompt was cached, where that is told; known once it was read."""

    def opening(self, prompt: list[int]) -> bytes:
        """What a stream sends before the first token of a prompt."""

    def chunk(self, choice: int, step: Step, written: int) -> bytes:
        """What a stream sends for a token."""

    def closing(self, prompt_tokens: int, written: int) -> bytes:
        """What a stream sends after the last token, `[DONE]` included."""

    def whole(
        self,
        prompts: list[list[int]],
        answers: list[tuple[str, list[Step]]],
        kv: dict[str, Any] | None,
    ) -> bytes:
        """The answer that is not streamed: one text and its steps for each choice."""


class _Base:
    prefix: str
    chunk_object: str
    tells_created = False

    def __init__(
        self, request: ChatRequest | CompletionRequest, model: str, header: str | None
    ) -> None:
        self.request_id = f"{self.prefix}-{new_request_id(header)}"
        self._created = int(time.time())
        self._model = model
        self._usage_last, self._usage_always = request.usage_wanted
        self._ids = bool(request.return_token_ids)
        self._head = (
            f'data: {{"id":{json.dumps(self.request_id)},"object":"{self.chunk_object}",'
            f'"created":{self._created},"model":{json.dumps(model, ensure_ascii=False)},"choices":['
        ).encode()
        self._prompt_tokens = 0
        self.cached: Cached | None = None

    def _usage(self, completion_tokens: int, details: bytes) -> bytes:
        total = self._prompt_tokens + completion_tokens
        return b',"usage":{"prompt_tokens":%d,"total_tokens":%d,"completion_tokens":%d%b}' % (
            self._prompt_tokens,
            total,
            completion_tokens,
            details,
        )

    def closing(self, prompt_tokens: int, written: int) -> bytes:
        if not self._usage_last:
            return DONE
        self._prompt_tokens = prompt_tokens
        details = b""
        if self.cached is not None:
            details = b',"prompt_tokens_details":' + dumps(self._details())
        usage = self._usage(written, details)
        return b"%b]%b%b}\n\n%b" % (self._head, usage, _FINGERPRINT_TAIL, DONE)

    def _details(self) -> dict[str, int]:
        """What is told of the cache; vLLM counts what was created in it for chats only."""
        tokens, created = self.cached or (0, 0)
        told = {"cached_tokens": tokens}
        return told | {"created_cache_tokens": created} if self.tells_created else told

    def _end(self, step: Step) -> bytes:
        """The fingerprint stands in the last chunk, unless one with the usage follows."""
        if step.finish_reason is None or self._usage_last:
            return b"}\n\n"
        return _FINGERPRINT_TAIL + b"}\n\n"

    def _frame(self, kind: str, choices: list[Any], usage: tuple[int, int]) -> dict[str, Any]:
        prompt_tokens, written = usage
        return {
            "id": self.request_id,
            "object": kind,
            "created": self._created,
            "model": self._model,
            "choices": choices,
            "service_tier": None,
            "system_fingerprint": FINGERPRINT,
            "usage": {
                "prompt_tokens": prompt_tokens,
                "total_tokens": prompt_tokens + written,
                "completion_tokens": written,
                "prompt_tokens_details": None
                if self.cached is None
                else {"cached_tokens": 0, "created_cache_tokens": None, "multimodal_tokens": None}
                | self._details(),
                "completion_tokens_details": None,
            },
        }


def _finish(step: Step) -> bytes:
    return b'"%b","stop_reason":%b' % (
        (step.finish_reason or "").encode(),
        json.dumps(step.stop_reason, ensure_ascii=False).encode(),
    )


class ChatAnswer(_Base):
    """`/v1/chat/completions`."""

    prefix = "chatcmpl"
    tells_created = True
    chunk_object = "chat.completion.chunk"

    def __init__(self, request: ChatRequest, model: str, header: str | None) -> None:
        super().__init__(request, model, header)
        self._request = request
        self._n = request.n or 1

    def opening(self, prompt: list[int]) -> bytes:
        self._prompt_tokens = len(prompt)
        usage = self._usage(0, b',"completion_tokens_details":null') if self._usage_always else b""
        ids = dumps(prompt) if self._ids else b"null"
        role = quoted(self._request.answer_role)
        return b"".join(
            b'%b{"index":%d,"delta":{"role":%b,"content":""},"logprobs":null,"finish_reason":null}]'
            b'%b,"prompt_token_ids":%b,"prompt_text":null}\n\n'
            % (self._head, choice, role, usage, ids)
            for choice in range(self._n)
        )

    def chunk(self, choice: int, step: Step, written: int) -> bytes:
        token, text, finish_reason, _ = step
        logprobs = self._logprobs(step) if self._request.logprobs else _NO_LOGPROBS
        return b'%b{"index":%d,"delta":{"content":%b},"logprobs":%b,"finish_reason":%b,%b}]%b%b' % (
            self._head,
            choice,
            quoted(text),
            logprobs,
            b"null" if finish_reason is None else _finish(step),
            b'"token_ids":[%d]' % token if self._ids else b'"token_ids":null',
            self._usage(written, b',"completion_tokens_details":null')
            if self._usage_always
            else b"",
            self._end(step),
        )

    def _logprobs(self, step: Step) -> bytes:
        return dumps({"content": [self._logprob(step.token)]})

    def _logprob(self, token: int) -> dict[str, Any]:
        text = decode([token])
        sure = {"token": text, "logprob": _SURE, "bytes": list(text.encode())}
        return sure | {"top_logprobs": [dict(sure)] if self._request.top_logprobs else []}

    def whole(
        self,
        prompts: list[list[int]],
        answers: list[tuple[str, list[Step]]],
        kv: dict[str, Any] | None,
    ) -> bytes:
        choices = [
            {
                "index": index,
                "message": {
                    "role": self._request.answer_role,
                    "content": text,
                    "refusal": None,
                    "annotations": None,
                    "audio": None,
                    "function_call": None,
                    "reasoning": None,
                },
                "logprobs": {"content": [self._logprob(step.token) for step in steps]}
                if self._request.logprobs
                else None,
                "finish_reason": steps[-1].finish_reason,
                "stop_reason": steps[-1].stop_reason,
                "token_ids": [step.token for step in steps] if self._ids else None,
                "routed_experts": None,
            }
            for index, (text, steps) in enumerate(answers)
        ]
        written = sum(len(steps) for _, steps in answers)
        frame = self._frame("chat.completion", choices, (len(prompts[0]), written))
        frame |= {
            "prompt_logprobs": None,
            "prompt_token_ids": prompts[0] if self._ids else None,
            "prompt_text": None,
            "kv_transfer_params": kv,
            "ec_transfer_params": None,
            "metrics": None,
        }
        return dumps(frame)


class CompletionAnswer(_Base):
    """`/v1/completions`."""

    prefix = "cmpl"
    chunk_object = "text_completion"

    def __init__(self, request: CompletionRequest, model: str, header: str | None) -> None:
        super().__init__(request, model, header)
        self._request = request
        self._prompt: list[int] = []
        self._told: set[int] = set()

    def opening(self, prompt: list[int]) -> bytes:
        self._prompt, self._prompt_tokens = prompt, len(prompt)
        return b""

    def chunk(self, choice: int, step: Step, written: int) -> bytes:
        token, text, finish_reason, _ = step
        ids = b"null"
        if (self._ids or self._request.echo) and choice not in self._told:
            self._told.add(choice)
            ids = dumps(self._prompt)
            text = self._echoed(self._prompt, text)
        logprobs = _NO_LOGPROBS
        if self._request.logprobs is not None:
            logprobs = dumps(self._logprobs([token], len(self._told) and written - 1))
        return (
            b'%b{"index":%d,"text":%b,"logprobs":%b,"finish_reason":%b,"prompt_token_ids":%b,'
            b'"token_ids":%b}]%b%b'
        ) % (
            self._head,
            choice,
            quoted(text),
            logprobs,
            b'null,"stop_reason":null' if finish_reason is None else _finish(step),
            ids,
            b"[%d]" % token if self._ids else b"null",
            self._usage(written, b"") if self._usage_always else b"",
            self._end(step),
        )

    def _echoed(self, prompt: list[int], text: str) -> str:
        """Prompt and answer, where that is wanted; token ids leave the prompt's text out."""
        if not self._request.echo or self._ids:
            return text
        return decode(prompt) + ("" if self._request.max_tokens == 0 else text)

    def _logprobs(self, tokens: list[int], offset: int) -> dict[str, Any]:
        texts = [decode([token]) for token in tokens]
        return {
            "text_offset": [offset + place for place in range(len(texts))],
            "token_logprobs": [_SURE] * len(texts),
            "tokens": texts,
            "top_logprobs": [{text: _SURE} for text in texts],
        }

    def whole(
        self,
        prompts: list[list[int]],
        answers: list[tuple[str, list[Step]]],
        kv: dict[str, Any] | None,
    ) -> bytes:
        n = self._request.n
        choices = [
            {
                "index": index,
                "text": self._echoed(prompts[index // n], text),
                "logprobs": self._logprobs([step.token for step in steps], 0)
                if self._request.logprobs is not None
                else None,
                "finish_reason": steps[-1].finish_reason,
                "stop_reason": steps[-1].stop_reason,
                "token_ids": [step.token for step in steps] if self._ids else None,
                "prompt_logprobs": None,
                "prompt_token_ids": prompts[index // n] if self._ids else None,
                "routed_experts": None,
            }
            for index, (text, steps) in enumerate(answers)
        ]
        written = sum(len(steps) for _, steps in answers)
        frame = self._frame("text_completion", choices, (sum(map(len, prompts)), written))
        frame |= {"kv_transfer_params": kv, "ec_transfer_params": None, "metrics": None}
        return dumps(frame)
