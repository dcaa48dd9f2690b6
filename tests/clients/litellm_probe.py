"""LiteLLM before an endpoint: as `openai/MODEL`, and as `hosted_vllm/MODEL`, its name for vLLM."""

from __future__ import annotations

import os
from functools import partial
from typing import Any

os.environ["LITELLM_LOCAL_MODEL_COST_MAP"] = "True"  # else it asks GitHub for prices

import litellm
from common import ENDS, LIMIT, MODEL, PD, ROOM, SCHEMA, TEXT, TOOL, check, is_forecast, run

litellm.suppress_debug_info = True
PROVIDERS = ("openai", "hosted_vllm")


def _fields(url: str, provider: str, **more: Any) -> dict[str, Any]:
    return {
        "model": f"{provider}/{MODEL}",
        "api_base": f"{url}/v1",
        "api_key": "none",
        "messages": [{"role": "user", "content": TEXT}],
        "temperature": 0,
        "max_tokens": LIMIT,
        "extra_headers": PD,
        "num_retries": 0,
        "timeout": 120,
        **more,
    }


def chat(url: str, provider: str) -> None:
    """Text, reason, usage."""
    told = litellm.completion(**_fields(url, provider))
    (choice,) = told.choices
    check(choice.message.content, "no text")
    check(choice.finish_reason == "length", choice.finish_reason)
    usage = told.usage
    check(usage.completion_tokens == LIMIT, str(usage))
    check(usage.total_tokens == usage.prompt_tokens + LIMIT, str(usage))


def stream(url: str, provider: str) -> None:
    """Deltas join to the whole answer; usage comes once, at the end."""
    whole = litellm.completion(**_fields(url, provider)).choices[0].message.content
    chunks = list(
        litellm.completion(
            **_fields(url, provider), stream=True, stream_options={"include_usage": True}
        )
    )
    text = "".join(c.choices[0].delta.content or "" for c in chunks if c.choices)
    check(text == whole, f"{text!r} against {whole!r}")
    usages = [c.usage for c in chunks if getattr(c, "usage", None)]
    check(len(usages) == 1, f"{len(usages)} usages")
    check(usages[0].completion_tokens == LIMIT, str(usages[0]))
    rebuilt = litellm.stream_chunk_builder(chunks)
    check(rebuilt.choices[0].message.content == whole, "stream_chunk_builder")


def tools(url: str, provider: str) -> None:
    """A tool that must be called."""
    told = litellm.completion(
        **_fields(
            url,
            provider,
            max_tokens=ROOM,
            tools=[TOOL],
            tool_choice={"type": "function", "function": {"name": "forecast"}},
            logit_bias=ENDS,
        )
    )
    (call,) = told.choices[0].message.tool_calls
    check(call.function.name == "forecast", str(call))
    is_forecast(call.function.arguments)


def structured(url: str, provider: str) -> None:
    """`response_format` with a schema."""
    schema = {"name": "forecast", "strict": True, "schema": SCHEMA}
    told = litellm.completion(
        **_fields(
            url,
            provider,
            max_tokens=ROOM,
            response_format={"type": "json_schema", "json_schema": schema},
            logit_bias=ENDS,
        )
    )
    is_forecast(told.choices[0].message.content)


async def asynchronous(url: str, provider: str) -> None:
    """`acompletion`, whole and streamed."""
    whole = litellm.completion(**_fields(url, provider)).choices[0].message.content
    told = await litellm.acompletion(**_fields(url, provider))
    check(told.choices[0].message.content == whole, "acompletion")
    text = ""
    async for chunk in await litellm.acompletion(**_fields(url, provider), stream=True):
        text += chunk.choices[0].delta.content or "" if chunk.choices else ""
    check(text == whole, f"streamed: {text!r} against {whole!r}")


def completion(url: str, provider: str) -> None:
    """The older route."""
    fields = _fields(url, f"text-completion-{provider}", prompt=TEXT)
    del fields["messages"]
    told = litellm.text_completion(**fields)
    check(told.choices[0].text, "no text")
    check(told.usage.completion_tokens == LIMIT, str(told.usage))


def bad_request(url: str, provider: str) -> None:
    """The caller's fault is BadRequestError."""
    try:
        litellm.completion(**_fields(url, provider, top_p=7))
    except litellm.BadRequestError as exc:
        check(exc.status_code == 400 and "top_p" in str(exc), str(exc))
        return
    check(False, "top_p 7 was answered")


def context(url: str, provider: str) -> None:
    """LiteLLM knows a prompt that is too long by OpenAI's words, and falls back by that class."""
    long = [{"role": "user", "content": TEXT * 60}]
    try:
        litellm.completion(**_fields(url, provider, messages=long))
    except litellm.ContextWindowExceededError:
        return
    check(False, "a prompt beyond the context was answered")


def unknown_model(url: str, provider: str) -> None:
    """NotFoundError."""
    try:
        litellm.completion(**_fields(url, provider, model=f"{provider}/nobody"))
    except litellm.NotFoundError:
        return
    check(False, "a model that nobody serves was answered")


def embeddings(url: str, provider: str) -> None:
    """The tiny model makes none: refused as the library's own class."""
    try:
        litellm.embedding(
            model=f"{provider}/{MODEL}", input=["a text"], api_base=f"{url}/v1", api_key="none"
        )
    except litellm.NotFoundError:
        return
    check(False, "embeddings of a model that makes none")


if __name__ == "__main__":
    BOTH = (
        chat, stream, tools, structured, asynchronous, bad_request, context, unknown_model,
        embeddings,
    )  # fmt: skip
    run(
        {
            f"{provider}.{case.__name__}": partial(case, provider=provider)
            for provider in PROVIDERS
            for case in BOTH
        }
        | {"openai.completion": partial(completion, provider="openai")}
    )
