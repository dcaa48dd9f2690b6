"""A file that lost its indentation is rebuilt to the same meaning, or refused: never to another."""

from __future__ import annotations

import random
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from baton.spec import catalog
from baton.spec.load import load_text
from baton.spec.schema import BatonBlock
from tests.unit.spec.files import BASE
from tests.unit.spec.mutations import dump, load

_VALUES: tuple[Any, ...] = (
    1,
    0.5,
    True,
    "x",
    "a: b",
    "- x",
    "# y",
    "|",
    "",
    None,
    "12",
    "é",
    [1],
    {},
)


def some(rng: random.Random, keys: Any, most: int = 4) -> dict[str, Any]:
    """A few keys in any order, with plain values."""
    names = rng.sample(sorted(keys), min(len(keys), rng.randint(0, most)))
    return {name: rng.choice(_VALUES) for name in names}


def role(rng: random.Random) -> dict[str, Any]:
    objects = catalog.objects()
    kv = some(rng, objects["KVTransferConfig"])
    kv["kv_connector_extra_config"] = rng.choice(
        ({"backends": ["UCX"]}, {"backends": ["UCX", "LIBFABRIC"], "kv_lease_duration": 60}, {})
    )
    engine = some(rng, catalog.engine_kwargs(), 6)
    engine["kv_transfer_config"] = kv
    if rng.random() < 0.3:
        # Keys that are arguments of the engine as well.
        engine["speculative_config"] = some(rng, ("method", "model", "quantization", "revision"), 3)
    parts = {
        **some(rng, objects["LLMConfig"], 2),
        "model_loading_config": some(rng, objects["ModelLoadingConfig"], 3),
        "engine_kwargs": engine,
        "deployment_config": rng.choice(
            (
                {"num_replicas": 2},
                {"autoscaling_config": {"min_replicas": 1, "max_replicas": 2}},
                {"ray_actor_options": {"num_cpus": 1, "runtime_env": {"env_vars": {"A": "b"}}}},
            )
        ),
        "runtime_env": {"env_vars": {"A": "1", "HF_TOKEN": "x"}},
        "placement_group_config": rng.choice(
            ({"bundles": [{"CPU": 1}]}, {"bundles": [{"CPU": 1, "GPU": 1}, {"GPU": 1}]})
        ),
    }
    return shuffled(rng, parts)


def shuffled(rng: random.Random, parts: dict[str, Any]) -> dict[str, Any]:
    kept = [key for key in parts if rng.random() < 0.7]
    rng.shuffle(kept)
    return {key: parts[key] for key in kept}


def whole_file(rng: random.Random) -> dict[str, Any]:
    apps = []
    for number in range(rng.choice((1, 1, 1, 2))):
        block = {
            name: some(rng, getattr(field.annotation, "model_fields", {}), 2)
            for name, field in BatonBlock.model_fields.items()
            if rng.random() < 0.3
        }
        args = {"prefill_config": role(rng), "decode_config": role(rng), "baton": block}
        app = {
            "name": f"a{number}",
            "import_path": "baton:build_pd_openai_app",
            "route_prefix": f"/{number}",
            "runtime_env": {"env_vars": {"B": "c"}},
            "args": shuffled(rng, args),
        }
        apps.append(shuffled(rng, app))
    return shuffled(
        rng, {"http_options": {"port": 8000}, "applications": apps, "proxy_location": "x"}
    )


def flat(text: str) -> str:
    return "".join(line.lstrip(" ") for line in text.splitlines(keepends=True))


@given(st.integers(0, 10**9))
@settings(max_examples=150, deadline=None)
def test_a_flattened_file_keeps_its_meaning_or_is_refused(seed: int) -> None:
    """Whatever its keys, their order and their values."""
    text = dump(whole_file(random.Random(seed)))
    loaded = load_text(flat(text), "app.yaml", {})
    if loaded.rebuilt is not None:
        assert load(loaded.rebuilt) == load(text)


def test_the_usual_file_is_rebuilt() -> None:
    """Otherwise the test above would hold for a reader that refuses everything."""
    for text in (
        BASE,
        BASE.replace("{backends: [LIBFABRIC]}", "\n            backends:\n            - UCX"),
    ):
        loaded = load_text(flat(text), "app.yaml", {})
        assert loaded.rebuilt is not None
        assert load(loaded.rebuilt) == load(text)


@pytest.mark.parametrize(
    "lines",
    [
        # `model` and `quantization` are arguments of the engine, too.
        "speculative_config:\nmodel: x\nquantization: fp8\n",
        # The text of a template may look like keys.
        "chat_template: |\ndtype: half\n",
        "hf_overrides: {a: 1,\nseed: 2}\n",
    ],
)
def test_what_could_be_anything_is_refused_with_its_line(lines: str) -> None:
    """A value that goes on below its line has lost what told where it ends."""
    head, tail = flat(BASE).split("dtype: bfloat16\n", 1)
    loaded = load_text(head + lines + tail, "app.yaml", {})
    (fault,) = loaded.faults
    assert (loaded.document, fault.rule_id, fault.severity) == (None, "BTN-011", "error")
    assert head.count("\n") < fault.line <= head.count("\n") + lines.count("\n")


def test_an_anchor_is_no_value() -> None:
    """`runtime_env: &shared` opens a mapping, as in the first example."""
    text = BASE.replace(
        "      deployment_config", "      runtime_env: &env\n        env_vars: {A: b}\n"
        "      deployment_config", 1,
    )  # fmt: skip
    loaded = load_text(flat(text), "app.yaml", {})
    assert loaded.rebuilt is not None
    assert load(loaded.rebuilt) == load(text)
