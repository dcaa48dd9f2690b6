"""The other direction: what the real classes of Ray and vLLM accept, Baton must not refuse.

Run as a script in a process of its own: `spec_accepts.py COUNT SEED`; COUNT 0 takes all. Every
argument of the engine, every key of `LLMConfig`, every deployment option and every autoscaling key
gets values that its own type allows. Prints one JSON object.
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
from pathlib import Path
from typing import TYPE_CHECKING, Any

from baton.demo.tiny_model import make_tiny_model
from baton.engine.arguments import refusal_of
from baton.spec import catalog
from baton.spec.check import examine
from baton.spec.load import load_text
from tests.integration.spec_oracle import refused_by_ray
from tests.unit.spec.mutations import LAPTOP_FILE, dump, load

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

# Rules that refuse what config classes take, because it goes wrong later. Each cites where.
KNOWN_WRONG = frozenset(
    {
        "BTN-120", "BTN-121", "BTN-122", "BTN-123", "BTN-126", "BTN-127", "BTN-128", "BTN-129",
        "BTN-140", "BTN-141", "BTN-142", "BTN-143", "BTN-144", "BTN-145", "BTN-146", "BTN-147",
        "BTN-148", "BTN-150", "BTN-153", "BTN-163", "BTN-165", "BTN-166", "BTN-167", "BTN-170",
        "BTN-174", "BTN-180", "BTN-183", "BTN-190", "BTN-191", "BTN-192", "BTN-193", "BTN-200",
        "BTN-205", "BTN-307", "BTN-308",
    }
)  # fmt: skip


# Values that the config classes let through, and what refuses them later.
REFUSED_LATER: dict[str, tuple[Callable[[Any], bool], str]] = {
    "load_format": (
        lambda value: isinstance(value, str),
        "model_loader/__init__.py get_model_loader, when the weights are loaded",
    ),
    "model_loader_extra_config": (
        lambda value: value is None,
        "default_loader.py DefaultModelLoader, when the weights are loaded",
    ),
    "tool_call_parser": (
        lambda value: isinstance(value, str),
        "tool_parsers ToolParserManager.get_tool_parser, with enable_auto_tool_choice",
    ),
    "video_pruning_rate": (
        lambda value: value is not None and value >= 1,
        "config/multimodal.py MultiModalConfig, which a text model never builds",
    ),
    "mm_encoder_fp8_scale_save_margin": (
        lambda value: value == 0,
        "config/multimodal.py MultiModalConfig, which a text model never builds",
    ),
    "placement_group_bundles": (
        lambda _: True,
        "ray llm_server.py get_deployment_options, when the application is built",
    ),
    "placement_group_strategy": (
        lambda _: True,
        "ray llm_server.py get_deployment_options, when the application is built",
    ),
    "gang_scheduling_config": (
        lambda value: value is not None,
        "ray serve/api.py, beside the strategy that Ray Serve LLM sets",
    ),
    "ray_actor_options": (
        lambda value: not isinstance(value, dict),
        "ray llm_server.py get_deployment_options (.get), when the application is built",
    ),
}


def values_of(kind: Any) -> Iterator[Any]:  # noqa: C901, PLR0912 - one branch a kind of type
    """Values that a type of the snapshot allows, borders first."""
    if isinstance(kind, str):
        yield from {
            "bool": (True, False, "true", 1),
            "int": (1, 2, 64, 0, "4"),
            "float": (0.5, 1, 0.0, "0.25"),
            "str": ("auto", "x", "a-b/c"),
            "null": (None,),
            "any": (1, "x", {}, []),
        }[kind]
    elif "choice" in kind:
        yield from kind["choice"]
    elif "number" in kind:
        step = 1 if kind["number"] == "int" else 0.001
        for low, high in ((kind.get("ge"), kind.get("le")), (kind.get("gt"), kind.get("lt"))):
            exact = "ge" in kind or "le" in kind
            yield from (v for v in (low, high) if v is not None and exact)
            yield from (v for v in (low and low + step, high and high - step) if v is not None)
        yield from (1, 2)
    elif "list" in kind:
        yield []
        for item in values_of(kind["list"]):
            yield [item]
    elif "dict" in kind:
        yield {}
        for item in values_of(kind["dict"]):
            yield {"a": item}
    elif "object" in kind:
        yield {}
        for key, entry in catalog.objects()[kind["object"]].items():
            for item in values_of(entry["type"]):
                yield {key: item}
    elif "union" in kind:
        for part in kind["union"]:
            yield from values_of(part)


def trials() -> Iterator[tuple[tuple[str, ...], Any]]:
    """Paths below a role, each with a value."""
    objects = catalog.objects()
    places: tuple[tuple[tuple[str, ...], Any], ...] = (
        (("engine_kwargs",), catalog.engine_kwargs()),
        (("engine_kwargs", "kv_transfer_config"), objects["KVTransferConfig"]),
        ((), objects["LLMConfig"]),
        (("model_loading_config",), objects["ModelLoadingConfig"]),
        (("placement_group_config",), objects["PlacementGroupConfig"]),
        (("deployment_config",), {
            **{key: {"type": "any", "default": None} for key in catalog.deployment_options()},
            **objects["DeploymentConfig"],
        }),
        (("deployment_config", "autoscaling_config"), objects["AutoscalingConfig"]),
        (("deployment_config", "ray_actor_options"), objects["RayActorOptionsSchema"]),
    )  # fmt: skip
    for where, fields in places:
        for key, entry in fields.items():
            seen = []
            for value in [entry["default"], None, *values_of(entry["type"])]:
                if repr(value) not in seen:
                    seen.append(repr(value))
                    yield (*where, key), value


@functools.cache
def values_in(text: str) -> Any:
    """Of a text that is read again and again."""
    return load(text)


def spoilt(text: str, path: tuple[str, ...], value: Any) -> Any:
    """The good file with a value put into both roles, so that they agree."""
    document = copy.deepcopy(values_in(text))
    for role in ("prefill_config", "decode_config"):
        here = document["applications"][0]["args"][role]
        if "autoscaling_config" in path:
            here["deployment_config"].pop("num_replicas", None)
        for part in path[:-1]:
            here = here.setdefault(part, {})
        here[path[-1]] = copy.deepcopy(value)
    return document


def accepted(document: Any, path: tuple[str, ...], model: str) -> bool:
    """Whether the real classes take it."""
    if refused_by_ray(document) is not None:
        return False
    if path[0] != "engine_kwargs":
        return True
    if path[1] in catalog.vllm()["frontend_args"]:
        return False  # the engine's classes never see it: nothing here can speak for it
    engine = copy.deepcopy(document["applications"][0]["args"]["decode_config"]["engine_kwargs"])
    return refusal_of(engine, model, on_cpu=True) is None


def main() -> None:
    os.environ.update(HF_HUB_OFFLINE="1", VLLM_NO_USAGE_STATS="1", VLLM_LOGGING_LEVEL="ERROR")
    logging.disable(logging.CRITICAL)
    count, seed = int(sys.argv[1]), int(sys.argv[2])
    model = str(make_tiny_model(Path(tempfile.mkdtemp()) / "tiny"))
    text = LAPTOP_FILE.replace("Qwen/Qwen3.5-9B", model).replace("4096", "256")
    everything = list(trials())
    if count:
        everything = random.Random(seed).sample(everything, count)
    outcome: dict[str, Any] = {
        "refused_by_both": 0,
        "accepted": 0,
        "known_wrong": {},
        "refused_later": 0,
        "wronged": [],
    }
    for path, value in everything:
        document = spoilt(text, path, value)
        report = examine(load_text(dump(document), "app.yaml", {}))
        rules = {fault.rule_id for fault in report.errors}
        if not rules:
            outcome["accepted"] += 1
            continue
        if rules <= KNOWN_WRONG:
            for rule in rules:
                outcome["known_wrong"][rule] = outcome["known_wrong"].get(rule, 0) + 1
        elif path[-1] in REFUSED_LATER and REFUSED_LATER[path[-1]][0](value):
            outcome["refused_later"] += 1
        elif accepted(document, path, model):
            first = report.errors[0]
            said = f"{first.rule_id} {first.message}"
            outcome["wronged"].append([".".join(path), repr(value), said])
        else:
            outcome["refused_by_both"] += 1
    outcome["trials"] = len(everything)
    sys.stdout.write("\noutcome:" + json.dumps(outcome) + "\n")


if __name__ == "__main__":
    main()
