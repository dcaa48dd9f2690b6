"""What is seen of real engines: their metrics on one page, and their spans below the gateway's."""

from __future__ import annotations

import re
import time
from typing import TYPE_CHECKING, Any

import httpx
import pytest
from prometheus_client.parser import text_string_to_metric_families

from tests.integration.gateway_process import running_gateway
from tests.unit.observe.test_dashboards import EXPRESSIONS, parsed, selectors

if TYPE_CHECKING:
    from collections.abc import Callable
    from pathlib import Path

    from tests.collector import Collector
    from tests.real_engines import RealPair

pytestmark = pytest.mark.real_engine

CALLER = "00-0af7651916cd43dd8448eb211c80319c-b7ad6b7169203331-01"
PROMPT = "The baton is handed from one runner to the next. " * 6


def ask(url: str, model: str, *, stream: bool, **headers: str) -> None:
    body: dict[str, Any] = {"model": model, "prompt": PROMPT, "max_tokens": 8, "stream": stream}
    sent = {"x-baton-disaggregate": "always", **headers}
    answer = httpx.post(f"{url}/v1/completions", json=body, headers=sent, timeout=120)
    assert answer.status_code == 200, answer.text
    assert answer.headers["x-baton-route"] == "pd"
    assert "x-baton-fallback" not in answer.headers


def until(claim: Callable[[], Any], seconds: float = 30.0) -> None:
    for _ in range(int(seconds / 0.1)):
        if claim():
            return
        time.sleep(0.1)
    raise AssertionError("it did not become so")


def test_the_page_of_engines_metrics_has_all_that_dashboards_ask_for(
    gateway: str, real_pair: RealPair
) -> None:
    """vLLM's names and labels as it writes them, and NIXL's, for both engines."""
    ask(gateway, real_pair.model_id, stream=True)
    until(lambda: "vllm:nixl_bytes_transferred_sum" in page(gateway))
    text = page(gateway)
    there: dict[str, set[str]] = {}
    roles: dict[str, set[str]] = {}
    for family in text_string_to_metric_families(text):
        for sample in family.samples:
            there.setdefault(sample.name, set()).update(sample.labels)
            roles.setdefault(sample.name, set()).add(sample.labels["role"])
    assert roles["vllm:num_requests_running"] == {"prefill", "decode"}
    asked = [s for e in EXPRESSIONS.values() for s in selectors(parsed(e))]
    for selector in asked:
        if selector.name.startswith("vllm:"):
            assert selector.name in there, selector.name
            assert {"role", "engine", "node"} <= there[selector.name]
    assert re.findall(r"baton_engine_scrape_up\{.*\} (\S+)", text) == ["1.0", "1.0"]
    assert re.findall(r"baton_engine_scrape_dropped_lines\{.*\} (\S+)", text) == ["0.0", "0.0"]


def page(gateway: str) -> str:
    answer = httpx.get(f"{gateway}/baton/engines/metrics", timeout=30)
    assert answer.status_code == 200
    return answer.text


def test_vllms_spans_are_children_of_the_gateways_legs(
    real_pair: RealPair, engine_spans: Collector, tmp_path: Path
) -> None:
    """One trace from the caller's span down to both engines' own."""
    config = tmp_path / "traced.yaml"
    config.write_text(f"baton: {{tracing: {{otlp_endpoint: '{engine_spans.url}'}}}}\n")
    log = tmp_path / "gateway.log"
    with running_gateway([real_pair.prefill_url], [real_pair.decode_url], log, config) as url:
        ask(url, real_pair.model_id, stream=True, traceparent=CALLER)

        def ours() -> list[Any]:
            return [s for s in engine_spans.spans if s.trace_id.hex() == CALLER[3:35]]

        until(lambda: sum(s.name == "llm_request" for s in ours()) == 2)
        until(lambda: any(s.name == "baton /v1/completions" for s in ours()))
    spans = {span.span_id: span for span in ours()}
    root = next(s for s in spans.values() if s.name == "baton /v1/completions")
    assert root.parent_span_id.hex() == CALLER[36:52]
    parents = [spans[s.parent_span_id] for s in spans.values() if s.name == "llm_request"]
    assert sorted(parent.name for parent in parents) == ["decode", "prefill"]
    assert all(parent.parent_span_id == root.span_id for parent in parents)
