"""Every rule speaks up for what it is about, and is silent for the valid neighbour."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

import pytest

from baton.spec.machine import GIB, Machine
from baton.spec.model_facts import ModelFacts
from baton.spec.rules import Rule, all_rules
from baton.spec.slips import correct
from baton.spec.view import RAY_IMPORT_PATH, AppView
from tests.unit.spec.files import GPU_BOX, LAPTOP
from tests.unit.spec.mutations import GOOD_FILES, LAPTOP_FILE, load

if TYPE_CHECKING:
    from collections.abc import Callable
    from pathlib import Path

RULES = {rule.rule_id: rule for rule in all_rules() if rule.run is not None}
GQA = ModelFacts("m", layers=32, attention_heads=32, kv_heads=8, head_dim=128, dtype="bfloat16",
                 max_position_embeddings=8192, weights_bytes=16 * GIB)  # fmt: skip
HYBRID = ModelFacts("m", layers=32, attention_heads=32, kv_heads=8, head_dim=128, mamba_layers=24)
SLIDING = ModelFacts("m", layers=18, attention_heads=4, kv_heads=1, sliding_layers=15)
MLA = ModelFacts("m", layers=61, attention_heads=128, kv_heads=128, mla_dim=576)


@dataclass
class Case:
    """A setting by dotted path, and what the rule says to the wrong and to the right value."""

    rule: str
    wrong: dict[str, Any]
    right: dict[str, Any] = field(default_factory=dict)
    facts: ModelFacts | None = None
    right_facts: ModelFacts | None = None
    machine: Machine | None = None
    right_machine: Machine | None = None
    rays: bool = False
    cpu: bool = False
    severity: str | None = None


KV = "decode_config.engine_kwargs.kv_transfer_config"
ENGINE = "decode_config.engine_kwargs"
ENV = "decode_config.runtime_env.env_vars"
DEPLOY = "decode_config.deployment_config"
PUSH = {
    f"{role}_config.engine_kwargs.kv_transfer_config.kv_connector": "NixlPushConnector"
    for role in ("prefill", "decode")
}
SAME_SIDE_CHANNEL = {
    f"{role}_config.runtime_env.env_vars.VLLM_NIXL_SIDE_CHANNEL_{key}": value
    for role in ("prefill", "decode")
    for key, value in (("HOST", "10.0.0.1"), ("PORT", "5600"))
}
OWN_POLICY = {"policy_function": "mine:policy"}
RAYS_POLICY = {"policy_function": "ray.serve.autoscaling_policy:default_autoscaling_policy"}
DCP = f"{ENGINE}.decode_context_parallel_size"
PRE = "prefill_config.engine_kwargs"

CASES = [
    Case("BTN-102", {"decode_config.modle_loading_config": {}}, {}),
    Case("BTN-102", {"decode_config": "other.yaml"}),
    Case("BTN-102", {"decode_config.placement_group_config": {"bundles": [{"CPU": -1}]}},
         {"decode_config.placement_group_config": {"bundles": [{"CPU": 1, "my_disk": 1}]}}),
    Case("BTN-102", {f"{DEPLOY}.replicas": 2}, {f"{DEPLOY}.max_ongoing_requests": 2}),
    Case("BTN-102", {f"{DEPLOY}.autoscaling_config": {"target_ongoing_request": 1}},
         {f"{DEPLOY}": {"autoscaling_config": {"target_ongoing_requests": 1}}}),
    Case("BTN-103", {f"{ENGINE}.gpu_memory_utilization": 1.5},
         {f"{ENGINE}.gpu_memory_utilization": 1.0}),
    Case("BTN-103", {f"{ENGINE}.max_model_len": "4k"}, {f"{ENGINE}.max_model_len": "4096"}),
    Case("BTN-103", {f"{ENGINE}.compilation_config": {"modus": 3}},
         {f"{ENGINE}.compilation_config": {"mode": 3}}),
    Case("BTN-103", {f"{ENGINE}.quantization": "awqq"}, {f"{ENGINE}.quantization": "awq"}),
    Case("BTN-103", {f"{ENGINE}.tool_call_parser": "hermess"},
         {f"{ENGINE}.tool_call_parser": "hermes"}),
    Case("BTN-103", {f"{ENGINE}.load_format": None}, {f"{ENGINE}.quantization": None}),
    Case("BTN-106", {f"{ENGINE}.max_tokens": 3}, {f"{ENGINE}.max_num_seqs": 3}),
    Case("BTN-170", {f"{ENGINE}.worker_cls": "Mine"}, {f"{ENGINE}.worker_cls": "my.Mine"}),
    Case("BTN-170", {"decode_config.server_cls": "Mine"}, {"decode_config.server_cls": "my:Mine"}),
    Case("BTN-107", {f"{ENGINE}.numa_bind_nodes": [0]}, {f"{ENGINE}.max_num_seqs": 8}),
    Case("BTN-171", {f"{ENGINE}.max_num_batched_tokens": 64, f"{ENGINE}.max_num_seqs": 128},
         {f"{ENGINE}.max_num_batched_tokens": 128, f"{ENGINE}.max_num_seqs": 128}),
    Case("BTN-171",
         {f"{ENGINE}.max_num_batched_tokens": 2048, f"{ENGINE}.enable_chunked_prefill": False},
         {f"{ENGINE}.max_num_batched_tokens": 2048, f"{ENGINE}.enable_chunked_prefill": True}),
    Case("BTN-171", {f"{ENGINE}.long_prefill_token_threshold": 8192},
         {f"{ENGINE}.long_prefill_token_threshold": 4096}),
    Case("BTN-120", {f"{KV}.kv_connector": "NixlConector"},
         {f"{KV}.kv_connector": "NixlPullConnector"}),
    Case("BTN-120", {f"{KV}.kv_connector": "Mine"},
         {f"{KV}.kv_connector": "Mine", f"{KV}.kv_connector_module_path": "my.module"}),
    Case("BTN-121", {f"{KV}.kv_role": "kv_producer"}, {f"{KV}.kv_role": "kv_consumer"}),
    Case("BTN-121", {f"{PRE}.kv_transfer_config.kv_role": "kv_consumer"},
         {f"{PRE}.kv_transfer_config.kv_role": "kv_producer"}),
    Case("BTN-122", {f"{KV}.engine_id": "prefill"}, {f"{KV}.engine_id": "other"}),
    Case("BTN-122", {f"{KV}.engine_id": "prefill", **SAME_SIDE_CHANNEL},
         {f"{KV}.engine_id": "other", **SAME_SIDE_CHANNEL}, rays=True, severity="error"),
    Case("BTN-122", {f"{KV}.engine_id": "prefill", **SAME_SIDE_CHANNEL},
         {f"{KV}.engine_id": "other", **SAME_SIDE_CHANNEL}, severity="warning"),
    Case("BTN-123", {f"{KV}.kv_connector": "NixlPushConnector"}, PUSH),
    Case("BTN-123", {f"{KV}.kv_connector": "MooncakeConnector"}, {}),
    Case("BTN-124", {f"{KV}.kv_port": 1}, {f"{KV}.kv_load_failure_policy": "fail"}),
    Case("BTN-125", {f"{KV}.kv_role": "kv_both"},
         {f"{KV}.kv_role": "kv_consumer", f"{PRE}.kv_transfer_config.kv_role": "kv_producer"}),
    Case("BTN-126", {f"{ENGINE}.kv_transfer_config": None}, {}, rays=True),
    Case("BTN-126", {f"{KV}.kv_role": None}, {}),
    Case("BTN-126", {f"{KV}.kv_connector": None}, {}),
    Case("BTN-127", PUSH, {}),
    Case("BTN-128", {f"{KV}.kv_buffer_device": "gpu"}, {f"{KV}.kv_buffer_device": "cuda"}),
    Case("BTN-128", {f"{KV}.kv_buffer_device": "cuda"}, {f"{KV}.kv_buffer_device": "cpu"},
         cpu=True),
    Case("BTN-129", {f"{KV}.kv_connector_extra_config.backends": ["UXC", "LIBFABRIC"]},
         {f"{KV}.kv_connector_extra_config.backends": ["UCX", "LIBFABRIC"]}),
    Case("BTN-129", {f"{KV}.kv_connector_extra_config.backends": ["UCX"]}, {}),
    Case("BTN-130", {f"{KV}.kv_connector_extra_config.kv_lease": 60},
         {f"{KV}.kv_connector_extra_config.kv_lease_duration": 60}),
    Case("BTN-140", {f"{ENGINE}.max_model_len": 2048}, {f"{PRE}.max_model_len": 2048}),
    Case("BTN-140", {f"{ENGINE}.max_model_len": 2048, f"{PRE}.max_model_len": None},
         {f"{ENGINE}.max_model_len": None, f"{PRE}.max_model_len": None}, severity="warning"),
    Case("BTN-141", {f"{ENGINE}.block_size": 16, f"{PRE}.block_size": 32},
         {f"{ENGINE}.block_size": 32, f"{PRE}.block_size": 32}),
    Case("BTN-141",
         {f"{ENGINE}.block_size": 32, f"{PRE}.block_size": 16, f"{PRE}.tensor_parallel_size": 2},
         {f"{ENGINE}.block_size": 16, f"{PRE}.block_size": 16, f"{PRE}.tensor_parallel_size": 2}),
    Case("BTN-142", {f"{PRE}.tensor_parallel_size": 16}, {f"{PRE}.tensor_parallel_size": 8},
         facts=GQA),
    Case("BTN-142", {f"{PRE}.tensor_parallel_size": 16}, {f"{PRE}.tensor_parallel_size": 16},
         facts=GQA, right_facts=MLA),
    Case("BTN-143", {f"{ENGINE}.pipeline_parallel_size": 2},
         {f"{ENGINE}.tensor_parallel_size": 2}),
    Case("BTN-143", {f"{PRE}.pipeline_parallel_size": 2},
         {f"{PRE}.pipeline_parallel_size": 2, **PUSH}, rays=True),
    Case("BTN-143", {f"{PRE}.pipeline_parallel_size": 2, **PUSH},
         {f"{PRE}.pipeline_parallel_size": 2, **PUSH}, facts=SLIDING, right_facts=GQA, rays=True),
    Case("BTN-144", {"decode_config.model_loading_config.model_id": "other"}, {}),
    Case("BTN-145", {f"{ENGINE}.speculative_config": {"method": "eagle3", "model": "x/y"}},
         {f"{ENGINE}.speculative_config": {"method": "ngram"}}),
    Case("BTN-145", {f"{ENGINE}.speculative_config": {"model": "x/EAGLE3-y"}},
         {f"{ENGINE}.speculative_config": {"method": "medusa", "model": "x/y"}}),
    Case("BTN-145", {f"{ENGINE}.speculative_config": {"method": "draft_model", "model": "x/y"}}, {},
         severity="warning"),
    Case("BTN-146", {f"{ENGINE}.dtype": "float16"}, {f"{ENGINE}.dtype": "bfloat16"}),
    Case("BTN-146", {f"{ENGINE}.dtype": "float16"},
         {f"{ENGINE}.dtype": "float16", f"{PRE}.dtype": "half"}),
    Case("BTN-146", {f"{ENGINE}.kv_cache_dtype": "fp8_e5m2", f"{PRE}.kv_cache_dtype": "fp8"},
         {f"{ENGINE}.kv_cache_dtype": "fp8_e4m3", f"{PRE}.kv_cache_dtype": "fp8"}),
    Case("BTN-146", {"decode_config.model_loading_config.model_source": "x/other"},
         {"decode_config.model_loading_config.tokenizer_source": "x/other"}),
    Case("BTN-147", {f"{ENGINE}.data_parallel_size": 2}, {f"{DEPLOY}.num_replicas": 2}),
    Case("BTN-147", {f"{ENGINE}.data_parallel_rank": 1}, {f"{ENGINE}.data_parallel_rank": None}),
    Case("BTN-148", {f"{PRE}.prefill_context_parallel_size": 2}, {}),
    Case("BTN-148", {DCP: 2, f"{ENGINE}.tensor_parallel_size": 4},
         {DCP: 4, f"{ENGINE}.tensor_parallel_size": 4},
         facts=MLA),
    Case("BTN-148", {DCP: 2, f"{ENGINE}.tensor_parallel_size": 2},
         {DCP: 2, f"{ENGINE}.tensor_parallel_size": 2},
         facts=GQA, right_facts=MLA),
    Case("BTN-150", {f"{ENV}.VLLM_NIXL_SIDE_CHANNEL_HOST": "10.0.0.1", f"{DEPLOY}.num_replicas": 2},
         {f"{ENV}.VLLM_NIXL_SIDE_CHANNEL_HOST": "10.0.0.1"}),
    Case("BTN-151", {f"{ENV}.VLLM_NIXL_SIDE_CHANNEL_PORT": "5600", f"{DEPLOY}.num_replicas": 2},
         {f"{ENV}.VLLM_NIXL_SIDE_CHANNEL_PORT": "5600"}),
    Case("BTN-152", {f"{ENV}.NIXL_BACKEND": "UCX"}, {f"{ENV}.NIXL_LOG_LEVEL": "INFO"}),
    Case("BTN-152", {f"{ENV}.VLLM_CPU_KVCACHE_SPAC": "1"}, {f"{ENV}.VLLM_CPU_KVCACHE_SPACE": "1"}),
    Case("BTN-153", {f"{ENV}.VLLM_CPU_KVCACHE_SPACE": "1GB"},
         {f"{ENV}.VLLM_CPU_KVCACHE_SPACE": "${GIB}"}),
    Case("BTN-160", {"proxy_deployment_config": {}}, {"ingress_deployment_config": {}}),
    Case("BTN-160", {"decode_config.experimental_configs": {"num_router_replicas": 1}},
         {"decode_config.experimental_configs": {"num_ingress_replicas": 1}}),
    Case("BTN-161", {f"{DEPLOY}.autoscaling_config": {"max_replicas": 2}},
         {DEPLOY: {"autoscaling_config": {"max_replicas": 2}}}),
    Case("BTN-161", {f"{DEPLOY}.num_replicas": 0}, {f"{DEPLOY}.num_replicas": 3}),
    Case("BTN-161", {DEPLOY: {"autoscaling_config": {"min_replicas": 3, "max_replicas": 2}}},
         {DEPLOY: {"autoscaling_config": {"min_replicas": 2, "max_replicas": 2}}}),
    Case("BTN-161", {DEPLOY: {"autoscaling_config": {"initial_replicas": 9, "max_replicas": 2}}},
         {DEPLOY: {"autoscaling_config": {"initial_replicas": 2, "max_replicas": 2}}}),
    Case("BTN-162", {f"{DEPLOY}.placement_group_strategy": "PACK"},
         {"decode_config.placement_group_config": {"bundles": [{"GPU": 1}], "strategy": "PACK"}}),
    Case("BTN-162", {"decode_config.placement_group_config": {"strategy": "PACK"}}, {}),
    Case("BTN-163", {f"{ENGINE}.model": "x"}, {f"{ENGINE}.tokenizer": "x"}),
    Case("BTN-163", {f"{ENGINE}.distributed_executor_backend": "mp"},
         {f"{ENGINE}.distributed_executor_backend": "ray"}),
    Case("BTN-164", {"decode_config.accelerator_type": "H1000"},
         {"decode_config.accelerator_type": "H100"}),
    Case("BTN-164", {"decode_config.accelerator_type": "H100"}, {}, cpu=True),
    Case("BTN-165", {"decode_config.lora_config": {"max_num_adapters_per_replica": 1}}, {}),
    Case("BTN-165", {"decode_config.lora_config": {"dynamic_lora_loading_path": "s3://x"}},
         {f"{role}_config.lora_config": {"dynamic_lora_loading_path": "s3://x"}
          for role in ("prefill", "decode")}, rays=True),
    Case("BTN-162", {f"{DEPLOY}.placement_group_bundle_label_selector": "spot"},
         {f"{DEPLOY}.placement_group_bundle_label_selector": [{"ray.io/market-type": "spot"}]}),
    Case("BTN-162", {f"{DEPLOY}.placement_group_bundle_label_selector": [{"a": "b"}] * 3},
         {f"{DEPLOY}.placement_group_bundle_label_selector": [{"a": "b"}] * 2,
          f"{ENGINE}.tensor_parallel_size": 2}),
    Case("BTN-162", {f"{DEPLOY}.max_replicas_per_node": 2},
         {f"{DEPLOY}.max_replicas_per_node": None}),
    Case("BTN-162", {f"{DEPLOY}.ray_actor_options": {"num_cpus": None}},
         {f"{DEPLOY}.ray_actor_options": {"num_cpus": 0}}),
    Case("BTN-162", {f"{DEPLOY}.ray_actor_options": {"num_cpus": float("inf")}},
         {f"{DEPLOY}.ray_actor_options": {"num_cpus": 0.5}}),
    Case("BTN-162", {f"{DEPLOY}.ray_actor_options": {"resources": {"a": float("nan")}}},
         {f"{DEPLOY}.ray_actor_options": {"resources": {"a": 1}}}),
    Case("BTN-165", {"decode_config.lora_config": {}},
         {"decode_config.lora_config": {}, "prefill_config.lora_config": {}}),
    Case("BTN-103", {f"{ENGINE}.mamba_backend": "auto"}, {f"{ENGINE}.mamba_backend": "triton"}),
    Case("BTN-103", {f"{ENGINE}.reasoning_parser": "deepseek"},
         {f"{ENGINE}.reasoning_parser": None}),
    Case("BTN-166", {"decode_config.placement_group_config": {"bundles": [{"GPU": 1}]},
                     f"{ENGINE}.tensor_parallel_size": 2},
         {"decode_config.placement_group_config": {"bundles": [{"GPU": 1}, {"GPU": 1}]},
          f"{ENGINE}.tensor_parallel_size": 2}),
    Case("BTN-166", {"decode_config.placement_group_config": {"bundles": [{"GPU": 4}]}},
         {"decode_config.placement_group_config": {"bundles": [{"TPU": 4}]}}),
    Case("BTN-167", {f"{ENGINE}.disable_log_stats": True}, {f"{ENGINE}.disable_log_stats": False}),
    Case("BTN-168", {"ingress_deployment_config": {"num_replicas": 2}}, {}),
    Case("BTN-174", {DEPLOY: {"autoscaling_config": {"min_replicas": 0, "max_replicas": 2}}},
         {DEPLOY: {"autoscaling_config": {"min_replicas": 1, "max_replicas": 2}}}),
    Case("BTN-175", {DEPLOY: {"autoscaling_config": {"target_ongoing_requests": 4}}},
         {DEPLOY: {"autoscaling_config": {"target_ongoing_requests": 4, "policy": OWN_POLICY}}}),
    Case("BTN-175", {DEPLOY: {"autoscaling_config": {"policy": RAYS_POLICY}}},
         {DEPLOY: {"autoscaling_config": {"max_replicas": 4}}}),
    Case("BTN-176", {f"{DEPLOY}.graceful_shutdown_timeout_s": 20},
         {f"{DEPLOY}.graceful_shutdown_timeout_s": 120}, severity="note"),
    Case("BTN-176", {f"{DEPLOY}.graceful_shutdown_timeout_s": 20},
         {f"{DEPLOY}.graceful_shutdown_timeout_s": 20,
          "baton": {"engines": {"drain_timeout_s": 5}}}, severity="note"),
    Case("BTN-177", {DEPLOY: {"autoscaling_config": {"max_replicas": 2}}, "baton": {}},
         {DEPLOY: {"autoscaling_config": {"max_replicas": 2}}, "baton": {"slo": {"tpot_s": 0.05}}},
         severity="note"),
    Case("BTN-180", {"decode_config.placement_group_config": {"bundles": [{"GPU": 1}]}},
         {"decode_config.placement_group_config": {"bundles": [{"GPU": 1}]}},
         machine=LAPTOP, right_machine=GPU_BOX),
    Case("BTN-181", {f"{ENV}.VLLM_CPU_KVCACHE_SPACE": "40"}, {}, facts=SLIDING, machine=LAPTOP,
         cpu=True),
    Case("BTN-182", {"decode_config.accelerator_type": "T4"},
         {"decode_config.accelerator_type": "T4", f"{ENGINE}.tensor_parallel_size": 2}, facts=GQA),
    Case("BTN-183", {f"{ENV}.VLLM_CPU_KVCACHE_SPACE": "1", f"{ENGINE}.max_model_len": 16384},
         {f"{ENV}.VLLM_CPU_KVCACHE_SPACE": "2", f"{ENGINE}.max_model_len": 16384}, facts=GQA,
         cpu=True),
    Case("BTN-183", {f"{ENV}.VLLM_CPU_KVCACHE_SPACE": "1", f"{ENGINE}.max_model_len": 16384},
         {f"{ENV}.VLLM_CPU_KVCACHE_SPACE": "1", f"{ENGINE}.max_model_len": -1}, facts=GQA,
         cpu=True),
    Case("BTN-190", {"baton": {"admission": {"max_inflight": 0}}},
         {"baton": {"admission": {"max_inflight": 1}}}),
    Case("BTN-191", {"baton": {"transport": {"require": "efa"}},
                     f"{KV}.kv_connector_extra_config": {}}, {}),
    Case("BTN-192", {"baton": {"transport": {"require": "cuda_ipc"}}},
         {"baton": {"transport": {"require": "cuda_ipc"}},
          f"{KV}.kv_connector_extra_config": {},
          f"{PRE}.kv_transfer_config.kv_connector_extra_config": {}}),
    Case("BTN-197", {"baton": {"placement": {"decode_node_selector": {"my role": "a"}}}},
         {"baton": {"placement": {"decode_node_selector": {"my-role": "a"}}}}),
    Case("BTN-198",
         {"decode_config.placement_group_config": {"bundles": [{"GPU": 1, "baton_prefill": 1}]}},
         {"decode_config.placement_group_config": {"bundles": [{"GPU": 1, "baton_decode": 1}]}}),
    Case("BTN-193", {"baton": {"engines": {"port_min": 5, "port_max": 4}}},
         {"baton": {"engines": {"port_min": 4, "port_max": 5}}}),
    Case("BTN-193", {"baton": {"overflow": {"base_url": "provider.example"}}},
         {"baton": {"overflow": {"base_url": "http://provider.example/v1"}}}),
    Case("BTN-193", {"baton": {"overflow": {"base_url": "https://x.example/v1/completions"}}},
         {"baton": {"overflow": {"base_url": "https://provider.example/v1"}}}),
    Case("BTN-193", {"baton": {"overflow": {"base_url": "http://x.io/v1", "api_key_env": "K"}}},
         {"baton": {"overflow": {"base_url": "http://127.0.0.1/v1", "api_key_env": "K"}}}),
    Case("BTN-193", {"baton": {"auth": {"api_keys_file": "keys.yaml"}}},
         {"baton": {"auth": {"api_keys_file": "/etc/baton/keys.yaml"}}}),
    Case("BTN-199", {"baton": {"auth": {"api_keys_file": "/no/such/keys.yaml"}}},
         {"baton": {"auth": {"api_keys_env": "KEYS"}}}),
    Case("BTN-199", {"baton": {"auth": {"api_keys_file": "/dev/null"}}},
         {"baton": {"auth": {"allow_anonymous": True}}}),
    Case("BTN-190", {"baton": {"admission": {"max_body_bytes_held": 2048}}},
         {"baton": {"admission": {"max_body_bytes_held": 2**30}}}),
    Case("BTN-194", {"baton": {}}, {"baton": ...}, rays=True),
    Case("BTN-200", {f"{ENGINE}.max_model_len": 8193}, {f"{ENGINE}.max_model_len": 8192},
         facts=GQA),
    Case("BTN-200", {f"{ENGINE}.max_model_len": 8193},
         {f"{ENGINE}.max_model_len": 8193, f"{ENV}.VLLM_ALLOW_LONG_MAX_MODEL_LEN": "1"}, facts=GQA),
    Case("BTN-201", {f"{ENGINE}.tensor_parallel_size": 3}, {f"{ENGINE}.tensor_parallel_size": 16},
         facts=GQA),
    Case("BTN-202", {"decode_config.model_loading_config.model_source": "/nowhere/model"},
         {"decode_config.model_loading_config.model_source": "org/model"}, machine=GPU_BOX),
    Case("BTN-202", {"decode_config.model_loading_config.model_source": "./model"}, {}),
    Case("BTN-204", {}, {f"{role}_config.runtime_env.env_vars.VLLM_SSM_CONV_STATE_LAYOUT": "DS"
                         for role in ("prefill", "decode")}, facts=HYBRID),
    # One role alone: CPU engines take 128 where the other says nothing, unless MLA runs.
    Case("BTN-141", {f"{ENGINE}.block_size": 16}, {f"{ENGINE}.block_size": 128}, facts=GQA,
         cpu=True),
    Case("BTN-141", {f"{PRE}.block_size": 256}, {f"{PRE}.block_size": 64}, facts=GQA, cpu=True),
    Case("BTN-141", {f"{ENGINE}.block_size": 16}, {}, severity="note"),
    Case("BTN-141", {f"{ENGINE}.block_size": 16}, {}, facts=MLA, cpu=True, severity="note"),
    Case("BTN-205", {"decode_config.model_loading_config.model_source": "$MODEL"},
         {"decode_config.model_loading_config.model_source": "s3://bucket/my-model_1.5"}),
    Case("BTN-205", {"decode_config.model_loading_config.model_id": " "},
         {"decode_config.model_loading_config.model_id": "qwen3.5-9b"}),
    Case("BTN-301", {}, {}, facts=SLIDING, right_facts=GQA, rays=True),
    Case("BTN-301", {}, {f"{ENGINE}.disable_hybrid_kv_cache_manager": True}, facts=SLIDING,
         rays=True),
    Case("BTN-302", {f"{KV}.kv_load_failure_policy": "recompute"},
         {f"{KV}.kv_load_failure_policy": "recompute"}, facts=SLIDING, right_facts=GQA),
    Case("BTN-303", {f"{ENV}.PYTORCH_CUDA_ALLOC_CONF": "expandable_segments:True",
                     f"{KV}.kv_connector_extra_config.backends": ["UCX"]},
         {f"{ENV}.PYTORCH_CUDA_ALLOC_CONF": "expandable_segments:True"}),
    Case("BTN-304", {f"{ENV}.FI_TCP_IFACE": "lo"}, {f"{ENV}.FI_TCP_IFACE": "eth0"}),
    Case("BTN-305", {f"{KV}.kv_buffer_device": "cpu"}, {f"{KV}.kv_buffer_device": "cuda"}),
    Case("BTN-306", {f"{ENV}.UCX_TLS": "tcp", f"{KV}.kv_connector_extra_config.backends": ["UCX"]},
         {f"{ENV}.UCX_TLS": "all", f"{KV}.kv_connector_extra_config.backends": ["UCX"]}),
    Case("BTN-307", {f"{ENGINE}.enable_return_routed_experts": True},
         {f"{ENGINE}.enable_return_routed_experts": False}),
    Case("BTN-308", {f"{ENGINE}.use_replayssm": True}, {f"{ENGINE}.use_replayssm": False}),
    Case("BTN-309", {f"{KV}.kv_connector_extra_config.enable_cross_layers_blocks": "True"}, {}),
]  # fmt: skip


def put(args: dict[str, Any], settings: dict[str, Any]) -> dict[str, Any]:
    for where, value in settings.items():
        holder, *_ = [args]
        *parents, last = where.split(".")
        for part in parents:
            holder = holder.setdefault(part, {})
        if value is ...:
            holder.pop(last, None)
        else:
            holder[last] = value
    return args


def view(case: Case, settings: dict[str, Any], *, right: bool) -> AppView:
    args = load(LAPTOP_FILE if case.cpu else GOOD_FILES[0])["applications"][0]["args"]
    app = {"name": "x"}
    if case.rays:
        app["import_path"] = RAY_IMPORT_PATH
        args.pop("baton")
    facts = case.right_facts if right and case.right_facts else case.facts
    machine = case.right_machine if right and case.right_machine else case.machine
    corrected = correct(put(args, settings)).args
    return AppView(app, (), corrected, (), machine, None, facts)


def found_by(case: Case, app: AppView) -> list[str]:
    rule: Rule = RULES[case.rule]
    run: Callable[[AppView], Any] = rule.run  # type: ignore[assignment]
    notes = rule.severity == "note" or case.severity == "note"
    return [
        finding.severity or rule.severity
        for finding in run(app)
        if notes or finding.severity != "note"
    ]


@pytest.mark.parametrize("case", CASES, ids=lambda case: f"{case.rule}-{list(case.wrong)[-1:]}")
def test_the_rule_speaks_up_and_is_silent_for_the_valid_neighbour(case: Case) -> None:
    """One wrong value and the right one beside it."""
    wrong = found_by(case, view(case, case.wrong, right=False))
    assert wrong, "the rule missed it"
    assert case.severity in {None, *wrong}
    assert found_by(case, view(case, case.right, right=True)) == []


def test_a_file_of_keys_that_is_here_and_holds_is_nothing_to_speak_of(tmp_path: Path) -> None:
    """And what is wrong in one is told without a key."""
    file = tmp_path / "keys.yaml"
    settings = {"baton": {"auth": {"api_keys_file": str(file)}}}
    case = Case("BTN-199", settings)
    file.write_text("keys:\n- name: ann\n  key: open sesame\n")
    assert found_by(case, view(case, settings, right=False)) == []
    file.write_text("keys:\n- name: ann\n  key: open sesame\n  weight: none\n")
    (finding,) = RULES["BTN-199"].run(view(case, settings, right=False))  # type: ignore[operator]
    assert "entry 1 of keys does not hold" in finding.message
    assert "sesame" not in str(finding)


@pytest.mark.parametrize(
    ("settings", "good"),
    [
        ({"auth": {"api_keys_env": "KEYS_OF_A_TEST"}}, "ann:open sesame"),
        ({"overflow": {"base_url": "https://x.io/v1", "api_key_env": "KEYS_OF_A_TEST"}}, "sesame"),
    ],
    ids=["callers", "provider"],
)
def test_a_variable_of_keys_is_looked_for_where_the_file_would_run(
    monkeypatch: pytest.MonkeyPatch, settings: dict[str, Any], good: str
) -> None:
    """A warning: it may be set only where the gateways run. Nothing is said of another machine."""
    there = Case("BTN-199", {"baton": settings}, machine=GPU_BOX)
    monkeypatch.setenv("KEYS_OF_A_TEST", " ")
    (severity,) = found_by(there, view(there, there.wrong, right=False))
    assert severity == "warning"
    elsewhere = Case("BTN-199", {"baton": settings})
    assert found_by(elsewhere, view(elsewhere, elsewhere.wrong, right=False)) == []
    monkeypatch.setenv("KEYS_OF_A_TEST", good)
    assert found_by(there, view(there, there.wrong, right=False)) == []


def test_every_rule_has_a_case_here() -> None:
    """A rule without a test of its border is a rule that may refuse too much."""
    untested = set(RULES) - {case.rule for case in CASES} - {"BTN-169"}
    assert untested == set()


def test_every_rule_says_why_and_names_its_source() -> None:
    """`baton explain` prints it."""
    for rule in all_rules():
        assert rule.title, rule.rule_id
        assert len(rule.why) > 40, rule.rule_id
    without = [rule.rule_id for rule in RULES.values() if "Source: " not in rule.why]
    assert without == []


def test_an_application_runtime_env_must_be_remote() -> None:
    """BTN-169 looks at the application, not at `args`."""
    from tests.unit.spec.files import report, rules_of, spoiled_app

    def local(app: Any) -> None:
        app["runtime_env"] = {"working_dir": "./src"}

    def remote(app: Any) -> None:
        app["runtime_env"] = {"working_dir": "s3://bucket/src.zip"}

    assert rules_of(report(spoiled_app(local))) == ["BTN-169"]
    assert rules_of(report(spoiled_app(remote))) == []


def test_a_failed_load_on_a_hybrid_model_is_no_risk_where_baton_runs_the_engines() -> None:
    """Its plugins fail such a load; the note is for Ray's own builder."""
    case = Case("BTN-301", {}, facts=SLIDING)
    assert found_by(case, view(case, {}, right=False)) == []


@pytest.mark.parametrize(
    ("key", "value", "taken"),
    [
        ("limit_mm_per_prompt", None, True),
        ("mm_processor_cache_gb", None, True),
        ("mm_encoder_tp_mode", None, True),
        ("middleware", None, False),
        ("allowed_origins", None, False),
        ("model_loader_extra_config", None, False),
        ("load_format", "Dummy", True),
        ("load_format", "", False),
        ("reasoning_parser", "", True),
    ],
)
def test_null_and_names_are_taken_where_vllm_takes_them(
    key: str, value: Any, *, taken: bool
) -> None:
    """Multimodal settings may be null; what the HTTP app or the loader trips over may not."""
    case = Case("BTN-103", {f"{ENGINE}.{key}": value})
    assert (found_by(case, view(case, case.wrong, right=False)) == []) is taken
