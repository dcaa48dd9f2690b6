"""What a simulated engine is told when it starts."""

from __future__ import annotations

from typing import Literal

from pydantic import BaseModel, ConfigDict, Field

MAX_BATCHED_TOKENS = 2048
"""Tokens of a prompt that vLLM computes in one step by default; other requests wait for a step."""


class LatencyProfile(BaseModel):
    """How long things take. A rate of 0 means: no time at all."""

    model_config = ConfigDict(frozen=True, extra="forbid")

    prefill_tokens_per_s: float = Field(0.0, ge=0)
    tpot_s: float = Field(0.0, ge=0)
    handoff_fixed_s: float = Field(0.0, ge=0)
    handoff_bytes_per_s: float = Field(0.0, ge=0)

    def prefill_s(self, tokens: int) -> float:
        """Seconds that reading so many tokens takes."""
        return tokens / self.prefill_tokens_per_s if self.prefill_tokens_per_s else 0.0

    def handoff_s(self, kv_bytes: int) -> float:
        """Seconds that moving so many bytes of KV takes: `a + bytes / bandwidth`."""
        wire = kv_bytes / self.handoff_bytes_per_s if self.handoff_bytes_per_s else 0.0
        return self.handoff_fixed_s + wire


class EngineSettings(BaseModel):
    """One simulated engine. The defaults are vLLM's where vLLM has one."""

    model_config = ConfigDict(frozen=True, extra="forbid")

    role: Literal["prefill", "decode"]
    engine_id: str = Field(min_length=1)
    model_id: str = Field("simulated", min_length=1)
    max_model_len: int = Field(8192, ge=1)
    block_size: int = Field(16, ge=1)
    kv_blocks: int = Field(4096, ge=2)
    """Blocks of KV; like vLLM's, block 0 belongs to nobody."""
    kv_bytes_per_token: int = Field(147_456, ge=1)
    """What Qwen3-8B in bfloat16 needs; it counts for the time of a handoff only."""
    kv_lease_s: float = Field(30.0, gt=0)
    max_num_seqs: int = Field(256, ge=1)
    max_num_batched_tokens: int = Field(MAX_BATCHED_TOKENS, ge=1)
    """Tokens of a prompt in one step; the smaller, the shorter others wait for a step."""
    handshake_timeout_s: float = Field(5.0, gt=0)
    """How long a peer that does not answer is waited for; fixed in vLLM."""
    answer_tokens: int = Field(0, ge=0)
    """About how long an answer is that ends by itself; 0 for answers that never do."""
    prompt_tokens_details: bool = False
    """Tell in `usage` how much of a prompt was cached, as with vLLM's
    `--enable-prompt-tokens-details`."""
    vllm_version: str = "0.29.0"
    """What it calls itself; peers of another version refuse its handshake, as in vLLM."""
    latency: LatencyProfile = LatencyProfile()
