"""What OpenAI's own client library makes of it: its types, its streams, its exceptions."""

from __future__ import annotations

import contextlib
from typing import TYPE_CHECKING, Any

from baton.conformance.case import Case, Fails, NotOffered, check
from baton.conformance.cases import sources
from baton.conformance.probe import LONG

if TYPE_CHECKING:
    from collections.abc import AsyncIterator

    from baton.conformance.probe import Probe

MISSING = "the `openai` package is not installed here: pip install 'baton[conformance]'"


@contextlib.asynccontextmanager
async def _client(probe: Probe) -> AsyncIterator[Any]:
    try:
        import openai  # noqa: PLC0415  (a second of import, and an optional package)
    except ImportError as exc:
        raise NotOffered(MISSING) from exc
    headers = dict(probe.wire.headers)
    key = headers.pop("authorization", "Bearer none").removeprefix("Bearer ")
    async with openai.AsyncOpenAI(
        base_url=f"{probe.wire.url}/v1", api_key=key, max_retries=0, default_headers=headers
    ) as client:
        try:
            yield client
        except openai.NotFoundError as exc:
            raise NotOffered(str(exc)[:200]) from exc
        except openai.OpenAIError as exc:
            raise Fails(f"{type(exc).__name__}: {str(exc)[:200]}") from exc


def _fields(probe: Probe, *, chat: bool) -> dict[str, Any]:
    prompt = {"messages": [{"role": "user", "content": LONG}]} if chat else {"prompt": LONG}
    return {"model": probe.model, "temperature": 0, "max_tokens": 12, **prompt}


async def _models(probe: Probe) -> None:
    async with _client(probe) as client:
        ids = [model.id async for model in client.models.list()]
        check(probe.model in ids, f"models are {ids}")


async def _chat(probe: Probe) -> None:
    async with _client(probe) as client:
        answer = await client.chat.completions.create(**_fields(probe, chat=True))
        usage = answer.usage
        check(usage.total_tokens == usage.prompt_tokens + usage.completion_tokens, f"{usage}")
        probe.see(text=answer.choices[0].message.content)


async def _chat_stream(probe: Probe) -> None:
    async with _client(probe) as client:
        stream = await client.chat.completions.create(
            **_fields(probe, chat=True), stream=True, stream_options={"include_usage": True}
        )
        chunks = [chunk async for chunk in stream]
    usages = [chunk.usage for chunk in chunks if chunk.usage is not None]
    check(len(usages) == 1, f"usage came {len(usages)} times")
    text = "".join(c.choices[0].delta.content or "" for c in chunks if c.choices)
    probe.see(text=text)


async def _helper(probe: Probe) -> None:
    """The library's own assembler of streams, which is stricter than reading chunks."""
    async with _client(probe) as client:
        import openai  # noqa: PLC0415

        kinds = set()
        async with client.chat.completions.stream(**_fields(probe, chat=True)) as stream:
            try:
                async for event in stream:
                    kinds.add(event.type)
                final = await stream.get_final_completion()
            except openai.LengthFinishReasonError as exc:
                final = (
                    exc.completion
                )  # whole, and cut by max_tokens: the library wants a person to know
        check("content.delta" in kinds, f"events are {sorted(kinds)}")
        probe.see(text=final.choices[0].message.content)


async def _completion_stream(probe: Probe) -> None:
    async with _client(probe) as client:
        stream = await client.completions.create(**_fields(probe, chat=False), stream=True)
        text = "".join([c.choices[0].text async for c in stream if c.choices])
        probe.see(text=text)


async def _exceptions(probe: Probe) -> None:
    async with _client(probe) as client:
        import openai  # noqa: PLC0415

        for wrong, wanted in (
            ({"model": "no-such-model"}, openai.NotFoundError),
            ({"temperature": -1}, openai.BadRequestError),
        ):
            try:
                await client.chat.completions.create(**{**_fields(probe, chat=True), **wrong})
            except wanted as exc:
                check(exc.body is not None, f"{wanted.__name__} has no body")
            except openai.OpenAIError as exc:
                raise Fails(f"{type(exc).__name__}, not {wanted.__name__}") from exc
            else:
                raise Fails(f"no {wanted.__name__} for {wrong}")


async def _responses(probe: Probe) -> None:
    async with _client(probe) as client:
        answer = await client.responses.create(
            model=probe.model, input=LONG, max_output_tokens=12, temperature=0
        )
        probe.see(text=answer.output_text)


CASES = (
    Case("client.models", "`models.list()`", sources.CLIENT, _models),
    Case("client.chat", "`chat.completions.create()`", sources.CLIENT, _chat),
    Case("client.chat_stream", "the same with `stream=True`", sources.CLIENT, _chat_stream),
    Case("client.chat_helper", "`chat.completions.stream()`, which assembles the chunks",
         sources.CLIENT, _helper),
    Case("client.completion_stream", "`completions.create(stream=True)`", sources.CLIENT,
         _completion_stream),
    Case("client.exceptions", "NotFoundError and BadRequestError where they belong",
         sources.CLIENT, _exceptions),
    Case("client.responses", "`responses.create()`", sources.CLIENT, _responses),
)  # fmt: skip
