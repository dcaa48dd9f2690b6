"""What a request may say, and how vLLM refuses what it may not.

The models hold those fields of vLLM's own that mean something here, with the same types, so that
the same values are taken, converted or refused (0.29, openai/chat_completion/protocol.py and
openai/completion/protocol.py). The text is always greedy: temperature, seed and penalties are
checked and have no effect. Tools and grammars are accepted and have none either.
"""

from __future__ import annotations

import json
import math
import re
from typing import Annotated, Any, TypeVar

from pydantic import BaseModel, ConfigDict, Field, TypeAdapter, ValidationError, model_validator

_Model = TypeVar("_Model", bound=BaseModel)

_MAX_STOP_STRINGS = 4
_MAX_N = 16_384
_HOW_TO_RAISE_N = "To increase this limit, set the VLLM_MAX_N_SEQUENCES environment variable."
_GREEDY_BELOW = 1e-5
_INT64 = 2**63 - 1
_INTERNAL = re.compile(r"[\[\]{}()]|^(str|int|float|bool|list|dict|none)$")


class Refusal(Exception):
    """A request that vLLM would refuse, with the answer that it would give.

    vLLM writes `BadRequestError` where its own checks refuse, `Bad Request` where types do. A
    `late` one comes from the engine's door, when a stream has already been answered with 200: it
    stands inside the stream then.
    """

    def __init__(
        self,
        message: str,
        *,
        status: int = 400,
        kind: str = "BadRequestError",
        param: str | None = None,
        value: object = None,
        late: bool = False,
    ) -> None:
        if param is not None and kind == "BadRequestError":
            shown = "" if value is None else f", value={value}"
            message = f"{message} (parameter={param}{shown})"
        super().__init__(message)
        self.status = status
        self.late = late
        self.body = error_body(message, kind=kind, param=param, code=status)


def error_body(message: str, *, kind: str, param: str | None, code: int) -> bytes:
    """An error as vLLM writes it."""
    error = {"message": message, "type": kind, "param": param, "code": code}
    return json.dumps({"error": error}, ensure_ascii=False, separators=(",", ":")).encode(
        errors="replace"
    )


class _Lenient(BaseModel):
    model_config = ConfigDict(extra="ignore", frozen=True)


class StreamOptions(_Lenient):
    include_usage: bool | None = False
    continuous_usage_stats: bool | None = False


class _Request(_Lenient):
    model: str | None = None
    frequency_penalty: float | None = 0.0
    presence_penalty: float | None = 0.0
    seed: Annotated[int, Field(ge=-_INT64 - 1, le=_INT64)] | None = None
    stop: str | Annotated[list[str], Field(max_length=_MAX_STOP_STRINGS)] | None = None
    stream: bool | None = False
    stream_options: StreamOptions | None = None
    temperature: float | None = None
    top_p: float | None = None
    stop_token_ids: list[int] | None = None
    include_stop_str_in_output: bool = False
    ignore_eos: bool = False
    min_tokens: int = 0
    return_token_ids: bool | None = None
    kv_transfer_params: dict[str, Any] | None = None
    cache_salt: str | None = None

    @property
    def usage_wanted(self) -> tuple[bool, bool]:
        """Whether a last chunk, and whether every chunk, carries the usage."""
        options = self.stream_options
        last = bool(options is not None and options.include_usage)
        return last, last and bool(options is not None and options.continuous_usage_stats)


class _Part(_Lenient):
    type: str = "text"
    text: str = ""


class _Message(_Lenient):
    role: str
    content: str | list[_Part | str] | None = None

    @model_validator(mode="after")
    def _needs_content(self) -> _Message:
        if self.content is None and self.role in ("system", "developer", "user", "tool"):
            raise ValueError("Input should be a valid string")
        return self

    def text(self) -> str:
        """The content as vLLM puts it before a template that wants plain text."""
        if isinstance(self.content, list):
            return "\n".join(part if isinstance(part, str) else part.text for part in self.content)
        return self.content or ""


class ChatRequest(_Request):
    """`/v1/chat/completions`."""

    messages: list[_Message]
    logprobs: bool | None = False
    top_logprobs: int | None = 0
    max_tokens: int | None = None
    max_completion_tokens: int | None = None
    n: int | None = 1
    tools: list[dict[str, Any]] | None = None
    tool_choice: str | dict[str, Any] | None = "none"
    add_generation_prompt: bool = True
    continue_final_message: bool = False

    @property
    def answer_role(self) -> str:
        return "assistant" if self.add_generation_prompt else self.messages[-1].role

    def rendered(self) -> str:
        """The prompt, by the tiny model's chat template."""
        if not self.messages:
            raise Refusal(
                "Cannot apply chat template to an empty conversation. Provide at least one message."
            )
        lines = [f"{message.role}: {message.text()}\n" for message in self.messages]
        if self.continue_final_message:
            lines[-1] = lines[-1].rstrip()
        elif self.add_generation_prompt:
            lines.append("assistant:")
        return "".join(lines)


_Token = Annotated[int, Field(ge=0)]


class CompletionRequest(_Request):
    """`/v1/completions`."""

    prompt: list[_Token] | list[list[_Token]] | str | list[str] | None = None
    echo: bool | None = False
    logprobs: int | None = None
    max_tokens: int | None = 16
    n: int = 1
    suffix: str | None = None


class TokenizeRequest(_Lenient):
    """`/tokenize`: either a prompt or a conversation."""

    model: str | None = None
    prompt: str | None = None
    messages: list[_Message] | None = None
    add_generation_prompt: bool = True
    continue_final_message: bool = False
    return_token_strs: bool | None = False


class DetokenizeRequest(_Lenient):
    """`/detokenize`."""

    model: str | None = None
    tokens: list[Annotated[int, Field(ge=0, le=_INT64)]]


_ADAPTERS: dict[type[BaseModel], TypeAdapter[Any]] = {
    model: TypeAdapter(model)
    for model in (ChatRequest, CompletionRequest, TokenizeRequest, DetokenizeRequest)
}


def read_json(body: bytes, content_type: str) -> dict[str, Any]:
    """The JSON object in a request's body, or vLLM's (that is, FastAPI's) refusal."""
    if content_type.partition(";")[0].strip().lower() != "application/json":
        raise _invalid([], "Unsupported Media Type: Only 'application/json' is allowed")
    if not body:
        raise _invalid(
            [{"type": "missing", "loc": ("body",), "msg": "Field required", "input": None}]
        )
    try:
        found = json.loads(body)
    except json.JSONDecodeError as exc:
        raise _invalid(
            [
                {
                    "type": "json_invalid",
                    "loc": ("body", exc.pos),
                    "msg": f"JSON decode error: {exc.msg}",
                }
            ]
        ) from exc
    except UnicodeDecodeError as exc:
        raise Refusal("There was an error parsing the body", kind="Bad Request") from exc
    if not isinstance(found, dict):
        what = "Input should be a valid dictionary or object to extract fields from"
        raise _invalid(
            [{"type": "model_attributes_type", "loc": ("body",), "msg": what, "input": found}]
        )
    return found


def parse(model: type[_Model], found: dict[str, Any]) -> _Model:
    """The typed request.

    Raises:
        Refusal: A field has the wrong type.
    """
    try:
        parsed: _Model = _ADAPTERS[model].validate_python(found)
    except ValidationError as exc:
        errors = [
            {**error, "loc": ("body", *error["loc"])}
            for error in exc.errors(include_url=False, include_context=False)
        ]
        raise _invalid(errors) from exc
    return parsed


def _invalid(errors: list[Any], plain: str = "") -> Refusal:
    count = max(1, len(errors))
    lines = [plain] if plain else [str(error) for error in errors]
    message = f"{count} validation error{'s' * (count > 1)}:\n" + "\n".join(
        f"  {line}" for line in lines
    )
    param = None
    if errors:
        named = [str(part) for part in errors[0]["loc"] if not _INTERNAL.search(str(part))]
        param = ".".join(named)
    return Refusal(message, kind="Bad Request", param=param)


def check_before_types(found: dict[str, Any]) -> None:
    """What vLLM looks at before it looks at types."""
    if found.get("stream_options") and not found.get("stream"):
        raise Refusal(
            "Stream options can only be defined when `stream=True`.", param="stream_options"
        )
    if "messages" in found and found["messages"] is None:
        # A check that runs through them stumbles before their type is looked at.
        raise Refusal("'NoneType' object is not iterable")
    if found.get("tools") == []:
        raise Refusal(
            "`tools` must not be an empty array. Either provide at least one tool or omit the "
            "field entirely.",
            param="tools",
        )


def check_sampling(request: ChatRequest | CompletionRequest, *, n: int, max_tokens: int) -> None:
    """Check sampling parameters as vLLM does, in its order.

    vLLM 0.29, vllm/sampling_params.py `_verify_args`.

    Raises:
        Refusal: With vLLM's message.
    """
    temperature = 1.0 if request.temperature is None else request.temperature
    top_p = 1.0 if request.top_p is None else request.top_p
    penalties = [
        (name, getattr(request, name) or 0.0) for name in ("presence_penalty", "frequency_penalty")
    ]
    # What must hold, the parameter that vLLM names, its value, what vLLM says otherwise.
    rules: list[tuple[bool, str | None, object, str]] = [
        (n >= 1, None, n, f"n must be at least 1, got {n}."),
        (
            n <= _MAX_N,
            None,
            n,
            f"n must be at most {_MAX_N}, got {n}. {_HOW_TO_RAISE_N}",
        ),
        *(
            (-2.0 <= value <= 2.0, None, value, f"{name} must be in [-2, 2], got {value}.")  # noqa: PLR2004
            for name, value in penalties
        ),
        (
            math.isfinite(temperature),
            "temperature",
            temperature,
            f"temperature must be a finite number, got {temperature}.",
        ),
        (
            temperature >= 0,
            "temperature",
            temperature,
            f"temperature must be non-negative, got {temperature}.",
        ),
        (
            temperature <= 2,  # noqa: PLR2004
            "temperature",
            temperature,
            f"temperature must be in [0, 2], got {temperature}.",
        ),
        (0 < top_p <= 1, "top_p", top_p, f"top_p must be in (0, 1], got {top_p}."),
        (
            max_tokens >= 1,
            "max_tokens",
            max_tokens,
            f"max_tokens must be at least 1, got {max_tokens}.",
        ),
        (
            request.min_tokens >= 0,
            None,
            request.min_tokens,
            f"min_tokens must be greater than or equal to 0, got {request.min_tokens}.",
        ),
        (
            request.min_tokens <= max_tokens,
            None,
            request.min_tokens,
            (
                f"min_tokens must be less than or equal to max_tokens={max_tokens}, "
                f"got {request.min_tokens}."
            ),
        ),
        (
            "" not in ([request.stop] if isinstance(request.stop, str) else request.stop or []),
            None,
            request.stop,
            "stop cannot contain an empty string.",
        ),
        (
            n <= 1 or temperature >= _GREEDY_BELOW,
            None,
            n,
            f"n must be 1 when using greedy sampling, got {n}.",
        ),
    ]
    for holds, param, value, message in rules:
        if not holds:
            raise Refusal(message, param=param, value=value)
