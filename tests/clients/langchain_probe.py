"""langchain-openai before an endpoint: chat, stream, tools, structured output, usage, errors."""

from __future__ import annotations

from typing import Any

import openai
from common import ENDS, LIMIT, MODEL, PD, ROOM, SCHEMA, TEXT, TOOL, check, is_forecast, run
from langchain_core.messages import AIMessage, HumanMessage, SystemMessage, ToolMessage
from langchain_openai import ChatOpenAI, OpenAIEmbeddings


def _chat(url: str, **more: Any) -> ChatOpenAI:
    return ChatOpenAI(
        model=MODEL,
        base_url=f"{url}/v1",
        api_key="none",
        temperature=0,
        max_retries=0,
        timeout=120,
        **{"max_tokens": LIMIT, "default_headers": PD, **more},
    )


def _shaped(url: str) -> ChatOpenAI:
    return _chat(url, max_tokens=ROOM, logit_bias=ENDS)


def chat(url: str) -> None:
    """A conversation; usage and reason are where LangChain's users look."""
    told = _chat(url).invoke([SystemMessage("Be short."), HumanMessage(TEXT)])
    check(told.content, "no text")
    usage = told.usage_metadata
    check(usage["output_tokens"] == LIMIT, f"usage is {usage}")
    check(usage["total_tokens"] == usage["input_tokens"] + LIMIT, f"usage is {usage}")
    check(told.response_metadata["finish_reason"] == "length", str(told.response_metadata))
    check(told.id.startswith(("chatcmpl-", "lc_run-", "run-")), told.id)


def stream(url: str) -> None:
    """Chunks join to the whole answer, and one of them has the usage."""
    whole = _chat(url).invoke(TEXT)
    chunks = list(_chat(url, stream_usage=True).stream(TEXT))
    joined = chunks[0]
    for chunk in chunks[1:]:
        joined += chunk
    check(len(chunks) > 3, f"{len(chunks)} chunks")
    check(joined.content == whole.content, f"{joined.content!r} against {whole.content!r}")
    check(joined.usage_metadata["output_tokens"] == LIMIT, str(joined.usage_metadata))
    check(joined.usage_metadata["input_tokens"] == whole.usage_metadata["input_tokens"], "input")


def cached_tokens(url: str) -> None:
    """The same prompt again: what LangChain calls `cache_read` is no more than the prompt."""
    prompt = f"{id(object())} {TEXT}"
    for _ in range(2):
        usage = _chat(url).invoke(prompt).usage_metadata
        read = usage["input_token_details"].get("cache_read")
        check(read is None or 0 <= read < usage["input_tokens"], f"usage is {usage}")


def tools(url: str) -> None:
    """A tool that must be called, and its result as the next turn."""
    model = _shaped(url).bind_tools([TOOL], tool_choice="forecast")
    told = model.invoke(TEXT)
    (call,) = told.tool_calls
    check(call["name"] == "forecast", str(call))
    is_forecast(call["args"])
    turns = [HumanMessage(TEXT), told, ToolMessage("Sunny.", tool_call_id=call["id"])]
    check(isinstance(_chat(url).invoke(turns), AIMessage), "no answer to a tool's result")


def tools_streamed(url: str) -> None:
    """The call's pieces join to arguments that fit."""
    model = _shaped(url).bind_tools([TOOL], tool_choice="required")
    chunks = list(model.stream(TEXT))
    joined = chunks[0]
    for chunk in chunks[1:]:
        joined += chunk
    (call,) = joined.tool_calls
    is_forecast(call["args"])


def structured(url: str) -> None:
    """`with_structured_output`, both ways that a self-hosted model can do."""
    for method in ("json_schema", "function_calling"):
        model = _shaped(url).with_structured_output(SCHEMA, method=method)
        is_forecast(model.invoke(TEXT))


async def asynchronous(url: str) -> None:
    """`ainvoke`, `astream` and `abatch` give what the others give."""
    whole = _chat(url).invoke(TEXT).content
    check((await _chat(url).ainvoke(TEXT)).content == whole, "ainvoke")
    text = "".join([chunk.content async for chunk in _chat(url).astream(TEXT)])
    check(text == whole, f"astream: {text!r} against {whole!r}")
    both = await _chat(url).abatch([TEXT, TEXT])
    check([one.content for one in both] == [whole, whole], "abatch")


def responses_api(url: str) -> None:
    """LangChain's other way to OpenAI, `/v1/responses`."""
    told = _chat(url, use_responses_api=True, max_tokens=16).invoke(TEXT)
    check(told.text, f"content is {told.content!r:.120}")
    check(told.usage_metadata["output_tokens"] == 16, str(told.usage_metadata))


def bad_request(url: str) -> None:
    """The caller's fault is BadRequestError, and the message says what is wrong."""
    try:
        _chat(url, default_headers=PD, model_kwargs={"top_p": 7}).invoke(TEXT)
    except openai.BadRequestError as exc:
        check(exc.status_code == 400 and "top_p" in str(exc), str(exc))
        return
    check(False, "top_p 7 was answered")


def unknown_model(url: str) -> None:
    """NotFoundError, with OpenAI's code."""
    try:
        ChatOpenAI(model="nobody", base_url=f"{url}/v1", api_key="none", max_retries=0).invoke("x")
    except openai.NotFoundError as exc:
        check(exc.code == "model_not_found", str(exc.body))
        return
    check(False, "a model that nobody serves was answered")


def embeddings(url: str) -> None:
    """The tiny model makes none: refused as the library's own class."""
    model = OpenAIEmbeddings(
        model=MODEL, base_url=f"{url}/v1", api_key="none", max_retries=0,
        check_embedding_ctx_length=False,
    )  # fmt: skip
    try:
        model.embed_query("a text")
    except openai.NotFoundError:
        return
    check(False, "embeddings of a model that makes none")


if __name__ == "__main__":
    run({
        case.__name__: case
        for case in (
            chat, stream, cached_tokens, tools, tools_streamed, structured, asynchronous,
            responses_api, bad_request, unknown_model, embeddings,
        )
    })  # fmt: skip
