"""What a fixed directory asks an engine about itself, where no lease says it."""

from __future__ import annotations

import contextlib
import re
from dataclasses import dataclass
from typing import TYPE_CHECKING

import msgspec

from baton.errors import LegFailed

if TYPE_CHECKING:
    from baton.gateway.engine_client import EngineClient
    from baton.spec.lease import EngineLease

# vLLM 0.29 `vllm:cache_config_info`.
_BLOCK_SIZE = re.compile(rb'^vllm:cache_config_info\{[^\n]*\bblock_size="(\d+)"', re.MULTILINE)


@dataclass(frozen=True)
class Probe:
    """Questions to an engine that has come (back)."""

    client: EngineClient
    engine: EngineLease
    headers: dict[str, str]
    timeout_s: float

    async def _get(self, path: str) -> bytes | None:
        """What it answers with 200; None with any other status.

        Raises:
            LegFailed: It did not answer.
        """
        status, raw = await self.client.fetch(
            self.engine, "GET", path, timeout_s=self.timeout_s, headers=self.headers
        )
        return raw if status == 200 else None  # noqa: PLR2004

    async def vllm_version(self) -> str:
        """VLLM's version; empty where it knows no such route.

        Raises:
            LegFailed: It did not answer.
        """
        raw = await self._get("/version")
        try:
            return "" if raw is None else str(msgspec.json.decode(raw)["version"])
        except (msgspec.DecodeError, KeyError, TypeError):
            return ""

    async def block_size(self) -> int:
        """Tokens in a block; 0 when it does not say."""
        with contextlib.suppress(LegFailed):
            found = _BLOCK_SIZE.search(await self._get("/metrics") or b"")
            return int(found[1]) if found else 0
        return 0


def model_cards(raw: bytes) -> list[tuple[str, int]]:
    """Names and `max_model_len` of the models that `/v1/models` lists; empty for anything else."""
    try:
        data = msgspec.json.decode(raw)["data"]
        return [(str(card["id"]), int(card.get("max_model_len") or 0)) for card in data]
    except (msgspec.DecodeError, KeyError, TypeError, ValueError, AttributeError):
        return []
