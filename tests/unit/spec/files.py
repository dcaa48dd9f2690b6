"""The good base of every case, and ways to spoil it."""

from __future__ import annotations

import io
from typing import TYPE_CHECKING, Any

from ruamel.yaml import YAML

from baton.spec.check import Report, examine
from baton.spec.load import load_text
from baton.spec.machine import Machine

if TYPE_CHECKING:
    from collections.abc import Callable

KEYS = {"BATON_API_KEYS": "ann:key", "PROVIDER_KEY": "key"}
"""What `BASE` wants of the environment in which it would run."""

BASE = """\
applications:
- name: qwen
  import_path: baton:build_pd_openai_app
  route_prefix: /
  args:
    prefill_config:
      model_loading_config: {model_id: qwen3.5-9b, model_source: Qwen/Qwen3.5-9B}
      engine_kwargs:
        max_model_len: 4096
        dtype: bfloat16
        gpu_memory_utilization: 0.90
        enforce_eager: true
        kv_transfer_config:
          kv_connector: NixlConnector
          kv_role: kv_both
          engine_id: prefill
          kv_connector_extra_config: {backends: [LIBFABRIC]}
      deployment_config: {num_replicas: 1}
    decode_config:
      model_loading_config: {model_id: qwen3.5-9b, model_source: Qwen/Qwen3.5-9B}
      engine_kwargs:
        max_model_len: 4096
        dtype: bfloat16
        gpu_memory_utilization: 0.90
        enforce_eager: true
        kv_transfer_config:
          kv_connector: NixlConnector
          kv_role: kv_both
          engine_id: decode
          kv_connector_extra_config: {backends: [LIBFABRIC]}
      deployment_config: {num_replicas: 1}
    baton:
      transport: {require: efa, tune: auto}
      disaggregate: {mode: auto}
      recovery: {prefill_timeout_s: 30, resume_streams: true}
      admission: {max_inflight: 256, max_queue: 64, queue_timeout_s: 10}
      auth: {api_keys_env: BATON_API_KEYS}
      overflow:
        base_url: https://provider.example/v1
        api_key_env: PROVIDER_KEY
        model: other-model
        when: saturated
      slo: {ttft_s: 2.0, tpot_s: 0.05}
"""

GPU_BOX = Machine(cores=64, memory_bytes=512 * 1024**3, gpus=8, gpu_memory_bytes=80 * 1024**3)
LAPTOP = Machine(cores=2, memory_bytes=24 * 1024**3)


def spoiled(change: Callable[[Any], None]) -> str:
    """The good base after `change(args)`; the callable gets the application's `args`."""
    return spoiled_app(lambda app: change(app["args"]))


def spoiled_app(change: Callable[[Any], None]) -> str:
    """The good base after `change(application)`."""
    yaml = YAML()
    yaml.width = 4096
    document = yaml.load(BASE)
    change(document["applications"][0])
    out = io.StringIO()
    yaml.dump(document, out)
    return out.getvalue()


def both(change: Callable[[Any], None]) -> Callable[[Any], None]:
    """Does `change(role_config)` in both roles."""

    def change_args(args: Any) -> None:
        change(args["prefill_config"])
        change(args["decode_config"])

    return change_args


def report(text: str, machine: Machine | None = None, **env: str) -> Report:
    """The outcome of the check of a text called `app.yaml`."""
    return examine(load_text(text, "app.yaml", env), machine=machine)


def rules_of(found: Report, severity: str = "error") -> list[str]:
    """The ids of what was found."""
    return [fault.rule_id for fault in found.faults if fault.severity == severity]


def line_of(text: str, needle: str, nth: int = 1) -> int:
    """The line that holds the nth occurrence of a text, from 1."""
    lines = [number for number, line in enumerate(text.splitlines(), 1) if needle in line]
    return lines[nth - 1]
