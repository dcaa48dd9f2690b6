"""The keys of vLLM 0.29's JSON, as a real engine was seen to write them."""

from __future__ import annotations

USAGE = {
    "prompt_tokens",
    "total_tokens",
    "completion_tokens",
    "prompt_tokens_details",
    "completion_tokens_details",
}
STREAM_USAGE = {"prompt_tokens", "total_tokens", "completion_tokens"}
LAST_USAGE = STREAM_USAGE | {"prompt_tokens_details"}
"""In a stream's last chunk, of engines that run with `--enable-prompt-tokens-details`."""

_ANSWER = {
    "id",
    "object",
    "created",
    "model",
    "choices",
    "service_tier",
    "system_fingerprint",
    "usage",
    "kv_transfer_params",
    "ec_transfer_params",
    "metrics",
}
COMPLETION = _ANSWER
COMPLETION_CHOICE = {
    "index",
    "text",
    "logprobs",
    "finish_reason",
    "stop_reason",
    "token_ids",
    "prompt_logprobs",
    "prompt_token_ids",
    "routed_experts",
}
CHAT = _ANSWER | {"prompt_logprobs", "prompt_token_ids", "prompt_text"}
CHAT_CHOICE = {
    "index",
    "message",
    "logprobs",
    "finish_reason",
    "stop_reason",
    "token_ids",
    "routed_experts",
}
CHAT_MESSAGE = {
    "role",
    "content",
    "refusal",
    "annotations",
    "audio",
    "function_call",
    "reasoning",
}

CHUNK = {"id", "object", "created", "model", "choices"}
LAST_CHUNK = CHUNK | {"system_fingerprint"}
USAGE_CHUNK = LAST_CHUNK | {"usage"}
COMPLETION_CHUNK_CHOICE = {
    "index",
    "text",
    "logprobs",
    "finish_reason",
    "stop_reason",
    "prompt_token_ids",
    "token_ids",
}
CHAT_ROLE_CHUNK = CHUNK | {"prompt_token_ids", "prompt_text"}
CHAT_ROLE_CHOICE = {"index", "delta", "logprobs", "finish_reason"}
CHAT_CHUNK_CHOICE = {"index", "delta", "logprobs", "finish_reason", "token_ids"}
CHAT_LAST_CHOICE = CHAT_CHUNK_CHOICE | {"stop_reason"}

ERROR = {"message", "type", "param", "code"}

KV_TRANSFER_PARAMS: dict[str, type] = {
    "do_remote_prefill": bool,
    "do_remote_decode": bool,
    "remote_block_ids": list,
    "remote_engine_id": str,
    "remote_request_id": str,
    "remote_host": str,
    "remote_port": int,
    "tp_size": int,
    "dcp_size": int,
    "pp_size": int,
    "remote_num_tokens": int,
    "remote_blocks_expiry_time": type(None),
    "transfer_mode": str,
}

METRICS = {
    "num_requests_running",
    "num_requests_waiting",
    "num_requests_waiting_by_reason",
    "kv_cache_usage_perc",
    "prefix_cache_queries_total",
    "prefix_cache_hits_total",
    "external_prefix_cache_queries_total",
    "external_prefix_cache_hits_total",
    "num_preemptions_total",
    "prompt_tokens_total",
    "prompt_tokens_by_source_total",
    "generation_tokens_total",
    "request_success_total",
    "nixl_num_failed_transfers_total",
    "nixl_num_failed_notifications_total",
    "nixl_num_kv_expired_reqs_total",
    "nixl_xfer_time_seconds",
    "nixl_bytes_transferred",
    "cache_config_info",
    "time_to_first_token_seconds",
    "inter_token_latency_seconds",
    "e2e_request_latency_seconds",
}
