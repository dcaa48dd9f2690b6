"""A gateway before the shared pair of real engines, and a client library before the gateway."""

from __future__ import annotations

from typing import TYPE_CHECKING

import openai
import pytest

from tests.integration.gateway_process import running_gateway

if TYPE_CHECKING:
    from collections.abc import Iterator

    from tests.real_engines import RealPair


@pytest.fixture(scope="module")
def gateway(real_pair: RealPair, tmp_path_factory: pytest.TempPathFactory) -> Iterator[str]:
    log = tmp_path_factory.mktemp("gateway") / "gateway.log"
    with running_gateway([real_pair.prefill_url], [real_pair.decode_url], log) as url:
        yield url


@pytest.fixture
def client(gateway: str) -> Iterator[openai.OpenAI]:
    with openai.OpenAI(
        base_url=f"{gateway}/v1", api_key="none", max_retries=0, timeout=120
    ) as client:
        yield client
