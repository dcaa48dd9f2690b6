"""What people try on the first day, with OpenAI's client: each function is one example.

    pip install openai
    python first_day.py http://127.0.0.1:8000 my-model

Each prints what came and the way that it took (`x-baton-route`).
"""

from __future__ import annotations

import json
import sys
from typing import Any

import openai

WEATHER = {
    "type": "function",
    "function": {
        "name": "weather",
        "description": "The weather in a city, today or tomorrow.",
        "parameters": {
            "type": "object",
            "properties": {
                "city": {"type": "string", "enum": ["Berlin", "Tokyo"]},
                "tomorrow": {"type": "boolean"},
            },
            "required": ["city", "tomorrow"],
            "additionalProperties": False,
        },
    },
}
QUESTION = (
    "I am about to travel and must decide what to pack. Look up the weather that I have to expect "
    "in one of the two cities that we spoke of, today or tomorrow, whichever suits you better."
)


def tool_call(client: openai.OpenAI, model: str, **more: Any) -> tuple[str, dict[str, Any]]:
    """A call of a tool. The engines need `enable_auto_tool_choice` and a `tool_call_parser`."""
    raw = client.chat.completions.with_raw_response.create(
        model=model,
        messages=[{"role": "user", "content": QUESTION}],
        tools=[WEATHER],
        tool_choice="required",
        max_tokens=300,
        **more,
    )
    (call, *_) = raw.parse().choices[0].message.tool_calls
    return raw.headers.get("x-baton-route", ""), json.loads(call.function.arguments)


def thinking(client: openai.OpenAI, model: str, **more: Any) -> tuple[str, str, str]:
    """What a model thinks, apart from what it answers. The engines need a `reasoning_parser`."""
    raw = client.chat.completions.with_raw_response.create(
        model=model,
        messages=[{"role": "user", "content": QUESTION}],
        extra_body={"chat_template_kwargs": {"thinking": True}},
        max_tokens=64,
        **more,
    )
    message = raw.parse().choices[0].message
    # vLLM names the field `reasoning`; OpenAI's chat API has none.
    thought = (message.model_extra or {}).get("reasoning") or ""
    return raw.headers.get("x-baton-route", ""), thought, message.content or ""


def structured(client: openai.OpenAI, model: str, **more: Any) -> tuple[str, dict[str, Any]]:
    """JSON of a given schema."""
    schema = WEATHER["function"]["parameters"]  # type: ignore[index]
    raw = client.chat.completions.with_raw_response.create(
        model=model,
        messages=[{"role": "user", "content": QUESTION}],
        response_format={
            "type": "json_schema",
            "json_schema": {"name": "trip", "schema": schema, "strict": True},
        },
        max_tokens=300,
        **more,
    )
    answer = raw.parse().choices[0].message.content or ""
    return raw.headers.get("x-baton-route", ""), json.loads(answer)


def embeddings(client: openai.OpenAI, model: str) -> list[float]:
    """A vector, where the model makes vectors.

    A model that writes answers makes none: vLLM does not serve the route for it, and the caller
    gets NotFoundError. Embedding is one pass with no decode phase, so there is nothing to hand
    over: Baton sends it to one engine as it is.
    """
    return client.embeddings.create(model=model, input="a river").data[0].embedding


def main() -> None:
    """Run them all."""
    url, model = sys.argv[1:3]
    with openai.OpenAI(base_url=f"{url}/v1", api_key="none") as client:
        for example in (tool_call, thinking, structured, embeddings):
            try:
                print(f"{example.__name__}: {example(client, model)}")
            except openai.OpenAIError as exc:
                print(f"{example.__name__}: {exc}")


if __name__ == "__main__":
    main()
