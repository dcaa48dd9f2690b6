"""examples/06-first-day on real engines: what people expect on the first day, through P/D."""

from __future__ import annotations

import importlib.util
from pathlib import Path
from typing import TYPE_CHECKING, Any

import openai
import pytest

from baton.demo.tiny_model import EOS_ID
from tests.integration.gateway_process import config_file, running_gateway

if TYPE_CHECKING:
    from collections.abc import Iterator

    from tests.e2e.conftest import ThinkingEngines

pytestmark = [pytest.mark.real_engine, pytest.mark.timeout(600)]

FILE = Path(__file__).parents[2] / "examples" / "06-first-day" / "first_day.py"
# Left to itself the tiny model fills a shape with white space and never ends it.
ENDS = {"logit_bias": {**{str(ord(sign)): -100 for sign in " \t\r\n"}, str(EOS_ID): 100}}
PD = {"x-baton-disaggregate": "always"}
ALONE = {"x-baton-disaggregate": "never"}


@pytest.fixture(scope="module")
def example() -> Any:
    """The file as a module."""
    spec = importlib.util.spec_from_file_location("first_day", FILE)
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


@pytest.fixture(scope="module")
def client(thinking_engines: ThinkingEngines) -> Iterator[openai.OpenAI]:
    prefill, decode, *_ = thinking_engines.running()
    folder = thinking_engines.folder
    config = config_file(folder / "gateway.yaml", kv_lease_s=thinking_engines.kv_lease_s)
    with (
        running_gateway([prefill.url], [decode.url], folder / "gateway.log", config) as url,
        openai.OpenAI(base_url=f"{url}/v1", api_key="none", max_retries=0, timeout=120) as client,
    ):
        yield client


@pytest.mark.parametrize("name", ["tool_call", "structured"])
def test_shaped_answers_come_through_pd_as_without_it(
    client: openai.OpenAI, example: Any, name: str
) -> None:
    """Whole, of the asked shape, and the same as from one engine."""
    ask = getattr(example, name)
    route, answer = ask(client, "tiny", temperature=0, extra_headers=PD, **ENDS)
    assert route == "pd"
    assert answer["city"] in ("Berlin", "Tokyo")
    assert isinstance(answer["tomorrow"], bool)
    assert ask(client, "tiny", temperature=0, extra_headers=ALONE, **ENDS) == (
        "decode_only",
        answer,
    )


def test_thinking_is_told_apart_through_pd_as_without_it(
    client: openai.OpenAI, example: Any
) -> None:
    """The tiny model says no end of thinking, so all of it is."""
    route, thought, answer = example.thinking(client, "tiny", temperature=0, extra_headers=PD)
    assert route == "pd"
    assert thought
    assert answer == ""
    alone = example.thinking(client, "tiny", temperature=0, extra_headers=ALONE)
    assert alone == ("decode_only", thought, answer)


def test_embeddings_of_a_model_that_makes_none_are_refused_with_the_reason(
    client: openai.OpenAI, example: Any
) -> None:
    """As the client library raises it."""
    with pytest.raises(openai.NotFoundError):
        example.embeddings(client, "tiny")
