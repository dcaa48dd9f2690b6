"""From a request's JSON to the prompts it asks for, or to vLLM's refusal.

A refusal that comes after the types have been checked frees the KV that a handoff offers, one that
comes before does not: vLLM's handler, which would do it, has not been reached then.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Generic, TypeVar

from baton.engine.simulated.requests import (
    ChatRequest,
    CompletionRequest,
    DetokenizeRequest,
    Refusal,
    TokenizeRequest,
    check_before_types,
    check_sampling,
    parse,
)
from baton.engine.simulated.sequence import Sampling
from baton.engine.simulated.text import VOCAB_SIZE, decode, encode, signs

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping

    from baton.engine.simulated.settings import EngineSettings

_Request = TypeVar("_Request", ChatRequest, CompletionRequest)
_MAX_LOGPROBS = 20


@dataclass(frozen=True)
class Job(Generic[_Request]):
    """What has to be generated for one HTTP request.

    `sampling` goes with `prompts`; `numbered` says whether vLLM numbers the engine's requests.
    """

    request: _Request
    prompts: list[list[int]]
    sampling: list[Sampling]
    n: int
    kv: Mapping[str, Any]
    numbered: bool

    @property
    def stream(self) -> bool:
        return bool(self.request.stream)


def chat_job(
    found: dict[str, Any], settings: EngineSettings, reject: Callable[[Mapping[str, Any]], None]
) -> Job[ChatRequest]:
    """Read a body of `/v1/chat/completions`.

    Args:
        found: The JSON object.
        settings: The engine's limits.
        reject: Told the `kv_transfer_params` of a request that is refused.

    Raises:
        Refusal: With vLLM's status and body.
    """
    check_before_types(found)
    request = parse(ChatRequest, found)
    kv = request.kv_transfer_params or {}
    try:
        _check_model(request.model, settings)
        _check_tools(request, found)
        text = request.rendered()
        wanted, name = request.max_completion_tokens, "max_completion_tokens"
        if wanted is None:
            wanted, name = request.max_tokens, "max_tokens"
        prompt = _encoded(text, wanted, name, settings)
        n = 1 if request.n is None else request.n
        sampling = _sampling(request, prompt, wanted, n, settings)
    except Refusal as refusal:
        if not (refusal.late and request.stream):
            reject(kv)
        raise
    return Job(request, [prompt], [sampling], n, kv, numbered=False)


def completion_job(
    found: dict[str, Any], settings: EngineSettings, reject: Callable[[Mapping[str, Any]], None]
) -> Job[CompletionRequest]:
    """Read a body of `/v1/completions`; see `chat_job`."""
    check_before_types(found)
    if found.get("prompt") in (None, ""):
        raise Refusal(
            "Either prompt or prompt_embeds must be provided and non-empty.", param="prompt"
        )
    request = parse(CompletionRequest, found)
    kv = request.kv_transfer_params or {}
    try:
        _check_model(request.model, settings)
        _check_completion(request)
        wanted = 16 if request.max_tokens is None else request.max_tokens
        prompts = _prompts(request, wanted, settings)
        if request.echo and not wanted:
            wanted = 1  # only the prompt is wanted back; vLLM cannot write less than one token
        sampling = [_sampling(request, prompt, wanted, request.n, settings) for prompt in prompts]
    except Refusal as refusal:
        if not (refusal.late and request.stream):
            reject(kv)
        raise
    return Job(request, prompts, sampling, request.n, kv, numbered=True)


def tokenized(found: dict[str, Any], settings: EngineSettings) -> dict[str, Any]:
    """What `/tokenize` answers."""
    request = parse(TokenizeRequest, found)
    _check_model(request.model, settings)
    if request.prompt is not None:
        text = request.prompt
    elif request.messages is not None:
        text = ChatRequest(
            messages=request.messages,
            add_generation_prompt=request.add_generation_prompt,
            continue_final_message=request.continue_final_message,
        ).rendered()
    else:
        raise Refusal(
            "2 validation errors:\n  prompt: Field required\n  messages: Field required",
            kind="Bad Request",
            param="body.prompt",
        )
    tokens = _bytes_of(text)
    return {
        "count": len(tokens),
        "max_model_len": settings.max_model_len,
        "tokens": tokens,
        "token_strs": signs(tokens) if request.return_token_strs else None,
    }


def detokenized(found: dict[str, Any], settings: EngineSettings) -> dict[str, Any]:
    """What `/detokenize` answers."""
    request = parse(DetokenizeRequest, found)
    _check_model(request.model, settings)
    return {"prompt": decode(request.tokens)}


def _check_model(model: str | None, settings: EngineSettings) -> None:
    if model and model != settings.model_id:
        raise Refusal(
            f"The model `{model}` does not exist.", status=404, kind="NotFoundError", param="model"
        )


def _check_tools(request: ChatRequest, found: dict[str, Any]) -> None:
    if request.tools and found.get("tool_choice", "auto") == "auto":
        raise Refusal(
            '"auto" tool choice requires --enable-auto-tool-choice and --tool-call-parser to be set'
        )


def _check_completion(request: CompletionRequest) -> None:
    if request.suffix is not None:
        raise Refusal("suffix is not currently supported")
    if (request.logprobs or 0) > _MAX_LOGPROBS:
        raise Refusal(
            f"Requested sample logprobs of {request.logprobs}, which is greater than max allowed: "
            f"{_MAX_LOGPROBS}",
            param="logprobs",
            value=request.logprobs,
            late=True,
        )


def _prompts(request: CompletionRequest, wanted: int, settings: EngineSettings) -> list[list[int]]:
    given = request.prompt
    if isinstance(given, str):
        return [_encoded(given, wanted, "max_tokens", settings)]
    if not given:
        raise Refusal("You must pass at least one prompt")
    each: list[Any] = [given] if isinstance(given[0], int) else list(given)
    return [
        _encoded(one, wanted, "max_tokens", settings)
        if isinstance(one, str)
        else _checked(one, wanted, settings)
        for one in each
    ]


def _encoded(text: str, wanted: int | None, name: str, settings: EngineSettings) -> list[int]:
    wanted = wanted or 0
    if wanted > settings.max_model_len:
        limit = settings.max_model_len
        raise Refusal(
            f"{name}={wanted} cannot be greater than max_model_len=max_total_tokens={limit}. "
            "Please request fewer output tokens.",
            param=name,
            value=wanted,
        )
    tokens = _bytes_of(text)
    room = settings.max_model_len - wanted
    if len(tokens) > room:
        # vLLM's tokenizer stops at the first token too many.
        _too_long(room + 1, wanted, settings, at_least="at least ")
    return tokens


def _checked(tokens: list[int], wanted: int, settings: EngineSettings) -> list[int]:
    unknown = next((token for token in tokens if token >= VOCAB_SIZE), None)
    if unknown is not None:
        raise Refusal(f"Token id {unknown} is out of vocabulary", late=True)
    if not tokens:
        raise Refusal("The decoder prompt cannot be empty")
    if len(tokens) + wanted > settings.max_model_len:
        _too_long(len(tokens), wanted, settings, at_least="")
    return tokens


def _bytes_of(text: str) -> list[int]:
    try:
        return encode(text)
    except UnicodeEncodeError as exc:
        raise Refusal(
            "TextEncodeInput must be Union[TextInputSequence, Tuple[InputSequence, InputSequence]]"
        ) from exc


def _too_long(count: int, wanted: int, settings: EngineSettings, *, at_least: str) -> None:
    raise Refusal(
        f"This model's maximum context length is {settings.max_model_len} tokens. However, you "
        f"requested {wanted} output tokens and your prompt contains {at_least}{count} input "
        f"tokens, for a total of {at_least}{count + wanted} tokens. Please reduce the length of "
        "the input prompt or the number of requested output tokens.",
        param="input_tokens",
        value=count,
    )


def _sampling(
    request: _Request, prompt: list[int], wanted: int | None, n: int, settings: EngineSettings
) -> Sampling:
    room = settings.max_model_len - len(prompt)
    max_tokens = room if wanted is None else min(wanted, room)
    check_sampling(request, n=n, max_tokens=max_tokens)
    stop = request.stop
    return Sampling(
        max_tokens=max_tokens,
        min_tokens=request.min_tokens,
        stop=(stop,) if isinstance(stop, str) else tuple(stop or ()),
        stop_token_ids=frozenset(request.stop_token_ids or ()),
        include_stop_str_in_output=request.include_stop_str_in_output,
        ignore_eos=request.ignore_eos,
    )
