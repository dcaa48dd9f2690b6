"""What the model itself allows. Only when its config can be read without a download."""

from __future__ import annotations

import re
from typing import TYPE_CHECKING

from baton.spec.faults import shown
from baton.spec.model_facts import find_model, is_local
from baton.spec.rules.registry import Finding, describe, rule

if TYPE_CHECKING:
    from collections.abc import Iterator

    from baton.spec.view import AppView

STATE_LAYOUT = "VLLM_SSM_CONV_STATE_LAYOUT"


@rule("BTN-200", "error", "a context longer than the model's")
def context_limit(app: AppView) -> Iterator[Finding]:
    """A `max_model_len` above what the model's config gives is refused by vLLM.

    `VLLM_ALLOW_LONG_MAX_MODEL_LEN=1` or `hf_overrides` lift it.

    Source: vLLM 0.29 `vllm/config/model.py`, `_get_and_verify_max_len`.
    """
    if app.facts is None or app.facts.max_position_embeddings is None:
        return
    limit = app.facts.max_position_embeddings
    for role in app.roles:
        asked = role.max_model_len
        if asked is None or asked <= limit or role.engine.get("hf_overrides"):
            continue
        if str(role.env_vars.get("VLLM_ALLOW_LONG_MAX_MODEL_LEN", "0")) in ("1", "true", "True"):
            continue
        yield Finding(
            role.engine_at("max_model_len"),
            f"the model takes {limit} tokens at most",
            found=str(asked),
            allowed=f"{limit} or less",
            cure=f"set max_model_len: {limit}",
            at_value=True,
        )


@rule("BTN-201", "error", "a TP size that does not divide the model's heads")
def head_split(app: AppView) -> Iterator[Finding]:
    """Attention heads are split evenly over the TP workers.

    KV heads are split, or replicated when there are fewer of them than workers.

    Source: vLLM 0.29 `vllm/config/model.py`, `verify_with_parallel_config`: "Total number of
    attention heads must be divisible by tensor parallel size"; `QKVParallelLinear`.
    """
    if app.facts is None or not app.facts.attention_heads:
        return
    heads, kv_heads = app.facts.attention_heads, app.facts.kv_heads
    for role in app.roles:
        tp = role.tp
        if tp <= 1:
            continue
        if heads % tp:
            allowed = ", ".join(str(n) for n in range(1, heads + 1) if heads % n == 0)
            yield Finding(
                role.engine_at("tensor_parallel_size"),
                f"TP {tp} does not divide the model's {heads} attention heads",
                found=str(tp),
                allowed=allowed,
                cure="choose one of these",
                at_value=True,
            )
        elif not app.facts.is_mla and max(tp, kv_heads) % min(tp, kv_heads):
            yield Finding(
                role.engine_at("tensor_parallel_size"),
                f"TP {tp} and the model's {kv_heads} KV heads: one must divide the other",
                found=str(tp),
                cure=f"use {kv_heads}, a divisor or a multiple",
                at_value=True,
            )


@rule("BTN-204", "error", "a state layout that NIXL cannot move")
def state_layout(app: AppView) -> Iterator[Finding]:
    """NIXL moves the state of Mamba and linear-attention layers only in the DS layout.

    vLLM's default is SD, so Baton supplies `VLLM_SSM_CONV_STATE_LAYOUT=DS` (BTN-213) where the file
    does not set it. On a CPU with AVX-512 BF16 vLLM itself forces SD, and such a model cannot be
    handed over there.

    Source: vLLM 0.29 `nixl/base_worker.py`: "3-read Mamba conv transfer requires DS conv state
    layout"; `platforms/cpu.py` sets `VLLM_SSM_CONV_STATE_LAYOUT` to SD.
    """
    if app.facts is None or not app.facts.has_mamba:
        return
    for role in app.roles:
        layout = role.env_vars.get(STATE_LAYOUT)
        if role.uses_nixl and layout != "DS":
            yield Finding(
                role.env_at(STATE_LAYOUT),
                "this model's state layers can be handed over in the DS layout only",
                found="nothing (SD)" if layout is None else shown(layout),
                allowed="DS",
                cure=f"set runtime_env: {{env_vars: {{{STATE_LAYOUT}: DS}}}} in both roles",
            )
        elif role.uses_nixl and role.on_cpu:
            yield Finding(
                role.path,
                "on a CPU with AVX-512 BF16 vLLM forces the SD layout, and the handoff fails",
                cure="use a model without Mamba or linear-attention layers on such a CPU",
                severity="warning",
            )


@rule("BTN-202", "warning", "a model folder that is not there")
def model_folder(app: AppView) -> Iterator[Finding]:
    """A `model_source` that starts with `/`, `~` or `.` is a folder, with `config.json` in it.

    `baton up` refuses it; `validate` warns, because the file may be meant for another machine. A
    relative folder is looked for where the engine's process happens to start.

    Source: vLLM 0.29 `transformers_utils/config.py`, `get_config`; ray 2.60 starts replicas in a
    folder of its session.
    """
    for role in app.roles:
        source = role.model_source
        if source is None or not is_local(source) or "${" in source:
            continue
        path = role.at("model_loading_config", "model_source")
        if source.startswith("."):
            yield Finding(
                path,
                "a relative model folder: engines start somewhere else",
                found=source,
                allowed="a full path",
                cure="write the full path, or start it with `~/`",
                at_value=True,
            )
        elif app.machine is not None and find_model(source) is None:
            yield Finding(
                path,
                "there is no model in this folder",
                found=source,
                allowed="a folder with config.json and the weights",
                cure=_model_cure(source),
                severity="error" if app.starting and app.on is None else None,
                at_value=True,
            )


def _model_cure(source: str) -> str:
    if ".cache/baton/models" in source:
        return "`make demo` puts the demo model there"
    return "download it first, or name a hub model"


# What stands in a template until somebody fills it in; none of it can be part of a hub name.
_PLACEHOLDER = re.compile(r"\$[A-Za-z_]\w*|\{\{.*\}\}|<[^<>]+>|\$\(")


@rule("BTN-205", "error", "a model that was never filled in")
def model_placeholder(app: AppView) -> Iterator[Finding]:
    """An empty name, `$MODEL_ID`, `<your-model>` or `{{ .Values.model }}` names no model.

    Ray and vLLM take any text and look for a hub model of that name when the engine starts. Baton
    resolves `${NAME}` only (BTN-101): `$NAME` could also be meant as text. A folder of such a name
    that is really there is accepted.

    Source: vLLM 0.29 `transformers_utils/config.py`, `get_config`; names of hub models hold
    letters, digits, `-`, `_` and `.` (`huggingface_hub`, `validate_repo_id`).
    """
    for role in app.roles:
        for key in ("model_id", "model_source", "tokenizer_source"):
            value = role.loading.get(key)
            if not isinstance(value, str):
                continue
            path = role.at("model_loading_config", key)
            if not value.strip():
                yield Finding(
                    path,
                    f"`{key}` is empty",
                    found=shown(value),
                    allowed="a name",
                    cure="name the model" if key == "model_id" else f"name it, or remove {key}",
                    at_value=True,
                )
            elif _PLACEHOLDER.search(value) and _unfilled(key, value):
                yield Finding(
                    path,
                    f"`{key}` still holds a placeholder",
                    found=shown(value),
                    allowed="the name of a model, or ${NAME}",
                    cure="write the name; a variable is written ${NAME}",
                    at_value=True,
                )


def _unfilled(key: str, value: str) -> bool:
    # A variable that is not set was said (BTN-101); `$${` is text that somebody wanted.
    return "${" not in value and (key == "model_id" or find_model(value) is None)


describe(
    "BTN-203",
    "note",
    "the hub did not give the model's config",
    """
    With `--online` the model's `config.json` is read from its hub (`HF_ENDPOINT`, `HF_TOKEN`). When
    that fails, what depends on the model stays unchecked.
    """,
)
