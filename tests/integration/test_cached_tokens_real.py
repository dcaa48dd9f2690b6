"""What the cache had of a prompt: through both phases the figures are those of one plain engine.

The same prompt twice, on each route that generates, whole and streamed. The plain engine is the
pair's decode engine, asked itself.
"""

from __future__ import annotations

import json
import uuid
from typing import TYPE_CHECKING, Any

import httpx
import pytest

from tests.integration.gateway_process import running_gateway
from tests.real_engines import BLOCK_SIZE, MODEL_ID

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path

    from tests.real_engines import RealPair

pytestmark = [pytest.mark.real_engine, pytest.mark.timeout(600)]

PD = {"x-baton-disaggregate": "always", "x-baton-timing": "1"}
TEXT = "one runner hands the baton to the next and the crowd counts the steps. " * 5


def _bodies(salt: str) -> dict[str, dict[str, Any]]:
    text = f"{salt} {TEXT}"
    messages = [{"role": "user", "content": text}]
    return {
        "/v1/completions": {"prompt": text, "max_tokens": 6},
        "/v1/chat/completions": {"messages": messages, "max_tokens": 6},
        "/v1/responses": {"input": text, "max_output_tokens": 6},
        "/v1/messages": {"messages": messages, "max_tokens": 6},
    }


CACHED = ("cached_tokens", "cache_read_input_tokens")
ROUTES = tuple(_bodies(""))


def _figures(usage: dict[str, Any]) -> dict[str, Any]:
    """All that a usage says, less what differs by nature: a key that is null or not there."""
    flat: dict[str, Any] = {}
    for key, value in usage.items():
        if isinstance(value, dict):
            flat |= {f"{key}.{name}": one for name, one in value.items() if one is not None}
        elif value is not None:
            flat[key] = value
    return flat


def _ask(base: str, path: str, body: dict[str, Any], *, stream: bool) -> Any:
    asked = {"model": MODEL_ID, "temperature": 0, **body}
    if stream:
        asked["stream"] = True
        if path in ROUTES[:2]:
            asked["stream_options"] = {"include_usage": True}
    answer = httpx.post(base + path, json=asked, headers=PD, timeout=120)
    assert answer.status_code == 200, answer.text
    if not stream:
        return _figures(answer.json()["usage"]), answer
    found = []
    for line in answer.text.splitlines():
        if line.startswith("data: {"):
            event = json.loads(line[6:])
            told = event.get("usage") or (event.get("response") or {}).get("usage")
            found += [told] if told else []
    return _figures(found[-1]), answer


@pytest.fixture(scope="module")
def early_gateway(real_pair: RealPair, tmp_path_factory: pytest.TempPathFactory) -> Iterator[str]:
    """One whose streams begin with prefill's token."""
    folder: Path = tmp_path_factory.mktemp("early")
    config = folder / "baton.yaml"
    config.write_text("baton:\n  disaggregate: {mode: always, first_token: early}\n")
    with running_gateway(
        [real_pair.prefill_url], [real_pair.decode_url], folder / "log", config
    ) as url:
        yield url


@pytest.mark.parametrize("stream", [False, True], ids=["whole", "stream"])
@pytest.mark.parametrize("path", ROUTES)
def test_the_same_prompt_twice_gives_the_plain_engines_figures(
    gateway: str, real_pair: RealPair, path: str, stream: bool
) -> None:
    """Nothing cached at first, then the prompt's whole blocks."""
    here, there = (_bodies(uuid.uuid4().hex)[path] for _ in range(2))
    told = [_ask(gateway, path, here, stream=stream) for _ in range(2)]
    assert [answer.headers["x-baton-route"] for _, answer in told] == ["pd", "pd"]
    plain = [_ask(real_pair.decode_url, path, there, stream=stream)[0] for _ in range(2)]
    assert [figures for figures, _ in told] == plain
    cached = [sum(n for key, n in one.items() if key.endswith(CACHED)) for one in plain]
    assert cached[0] == 0
    assert cached[1] >= BLOCK_SIZE
    assert cached[1] % BLOCK_SIZE == 0


@pytest.mark.parametrize("path", ROUTES[:2])
def test_a_first_token_from_prefill_changes_no_figure(
    early_gateway: str, real_pair: RealPair, path: str
) -> None:
    """Until one's first token is a whole character: a tiny model writes any byte."""
    went = []
    for _ in range(8):
        salts = [uuid.uuid4().hex for _ in range(2)]
        told = [_ask(early_gateway, path, _bodies(salts[0])[path], stream=True) for _ in range(2)]
        plain = [
            _ask(real_pair.decode_url, path, _bodies(salts[1])[path], stream=True)[0]
            for _ in range(2)
        ]
        assert [figures for figures, _ in told] == plain
        went += ["early" in answer.text.rpartition("baton-timing")[2] for _, answer in told]
        if any(went):
            break
    assert any(went), "no first token left from prefill"
