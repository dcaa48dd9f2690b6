"""Compares Baton's verdict on mutated files with what the real classes of Ray and vLLM say.

Run as a script in a process of its own: `spec_oracle.py COUNT SEED`. Prints one JSON object.
"""

from __future__ import annotations

import copy
import functools
import json
import logging
import os
import random
import sys
import tempfile
import traceback
from pathlib import Path
from typing import Any

from baton.demo.tiny_model import make_tiny_model
from baton.engine.arguments import refusal_of
from baton.spec.check import Report, examine
from baton.spec.load import load_text
from baton.spec.view import PD_IMPORT_PATHS
from tests.unit.spec.mutations import GOOD_FILES, dump, load, mutate_text, mutate_values


@functools.cache
def pickle_each_router_once() -> None:
    """Ray pickles a request router's whole module for every config: the same bytes each time.

    ray 2.60 `serve/config.py`, `RequestRouterConfig._serialize_request_router_cls`. A router that
    cannot be imported is refused as before.
    """
    from ray.serve.config import RequestRouterConfig

    pickled: dict[str, bytes] = {}
    plain = RequestRouterConfig._serialize_request_router_cls

    def serialize(self: Any) -> None:
        path = self.request_router_class
        if isinstance(path, str) and path in pickled:
            self.set_serialized_request_router_cls(pickled[path])
            return
        plain(self)
        if isinstance(path, str):
            pickled[path] = self.get_serialized_request_router_cls()

    RequestRouterConfig._serialize_request_router_cls = serialize


def refused_by_ray(config: Any) -> str | None:
    """What Ray's own classes say to a Serve config."""
    from ray import serve
    from ray.llm._internal.serve.core.server.llm_server import (
        _merge_replica_actor_and_child_actor_bundles,
    )
    from ray.llm._internal.serve.engines.vllm.vllm_models import VLLMEngineConfig
    from ray.llm._internal.serve.serving_patterns.prefill_decode.builder import PDServingArgs
    from ray.serve.schema import ServeDeploySchema

    pickle_each_router_once()
    try:
        ServeDeploySchema.model_validate(copy.deepcopy(config))
        for app in config["applications"]:
            if app["import_path"] not in PD_IMPORT_PATHS:
                continue
            args = copy.deepcopy(app["args"])
            args.pop("baton", None)
            pair = PDServingArgs.model_validate(args)
            for role in (pair.prefill_config, pair.decode_config):
                engine = VLLMEngineConfig.from_llm_config(role)
                engine.get_initialization_kwargs()
                # As Ray Serve LLM does it: ray 2.60 `llm_server.py`, `get_deployment_options`.
                actor = role.deployment_config.get("ray_actor_options", {})
                resources = {
                    "CPU": actor.get("num_cpus", 1),
                    "GPU": actor.get("num_gpus", 0),
                    **actor.get("resources", {}),
                    **({"memory": actor["memory"]} if "memory" in actor else {}),
                }
                options = {
                    **role.deployment_config,
                    "placement_group_bundles": _merge_replica_actor_and_child_actor_bundles(
                        engine.placement_bundles, resources
                    ),
                    "placement_group_strategy": engine.placement_strategy,
                }
                serve.deployment(type("Engine", (), {}), **options)
    except Exception as exc:  # noqa: BLE001 - whatever they raise is a refusal
        return f"{type(exc).__name__}: {exc}"
    return None


def refused_by_vllm(config: Any, model: str) -> str | None:
    """What vLLM's own classes say to the engine arguments of both roles."""
    for app in config["applications"]:
        if app["import_path"] not in PD_IMPORT_PATHS:
            continue
        for role in ("prefill_config", "decode_config"):
            engine = copy.deepcopy(app["args"][role]["engine_kwargs"])
            # Names of hub models cannot be asked for here.
            for key in ("tokenizer", "revision", "tokenizer_revision", "code_revision"):
                engine.pop(key, None)
            refusal = refusal_of(engine, model, on_cpu=True)
            if refusal is not None:
                return refusal
    return None


def asks_vllm(report: Report) -> bool:
    """Whether `baton validate` would have asked vLLM itself about this file."""
    return any(fault.rule_id == "BTN-107" for fault in report.faults)


def main() -> None:
    # Before vLLM is imported, which happens with the first question.
    os.environ.update(HF_HUB_OFFLINE="1", VLLM_NO_USAGE_STATS="1", VLLM_LOGGING_LEVEL="ERROR")
    logging.disable(logging.CRITICAL)
    count, seed = int(sys.argv[1]), int(sys.argv[2])
    model = str(make_tiny_model(Path(tempfile.mkdtemp()) / "tiny"))
    files = [text.replace("Qwen/Qwen3.5-9B", model) for text in GOOD_FILES]
    values = {text: load(text) for text in files}
    outcome: dict[str, Any] = {
        "refused": 0, "agreed": 0, "asked": 0, "tracebacks": [], "missed": [], "good": [],
    }  # fmt: skip
    for text in files:
        config = examine(load_text(text, "good", {})).checked
        served = config.to_serve_config() if config is not None else None
        said = "refused" if served is None else (
            refused_by_ray(served) or refused_by_vllm(served, model)
        )  # fmt: skip
        outcome["good"].append(said)
    for number in range(count):
        rng = random.Random(seed * 1_000_000 + number)
        text = rng.choice(files)
        of_values = rng.random() < 0.8
        spoilt = dump(mutate_values(values[text], rng)) if of_values else mutate_text(text, rng)
        try:
            report = examine(load_text(spoilt, "app.yaml", {}))
            config = report.checked.to_serve_config() if report.checked is not None else None
        except Exception:  # noqa: BLE001 - that is what is looked for
            outcome["tracebacks"].append([number, traceback.format_exc()])
            continue
        if config is None:
            outcome["refused"] += 1
            continue
        by_ray = refused_by_ray(config)
        refusal = by_ray or refused_by_vllm(config, model)
        if refusal is None:
            outcome["agreed"] += 1
        elif asks_vllm(report) and by_ray is None:
            outcome["asked"] += 1
        else:
            outcome["missed"].append([number, refusal])
    sys.stdout.write("\noutcome:" + json.dumps(outcome) + "\n")


if __name__ == "__main__":
    main()
