"""What prefill and decode have to agree on."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from baton.spec import catalog
from baton.spec.faults import shown
from baton.spec.rules.registry import Finding, rule
from baton.spec.typecheck import fits
from baton.spec.view import AppView, RoleView, text

if TYPE_CHECKING:
    from collections.abc import Iterator

# vLLM 0.29 `SpeculativeConfig.use_eagle`, and the MTP spellings it turns into `mtp`.
_HIDDEN_STATE_METHODS = ("eagle", "eagle3", "mtp", "dflash", "dspark")


_SIDE_CHANNEL = ("VLLM_NIXL_SIDE_CHANNEL_HOST", "VLLM_NIXL_SIDE_CHANNEL_PORT")


@rule("BTN-122", "warning", "the same `engine_id` in both roles")
def engine_ids(app: AppView) -> Iterator[Finding]:
    """A decode engine takes a peer with its own `engine_id` for itself, and refuses it.

    Under Ray and under Baton the file's value is only the beginning of the real one, so two equal
    ones do no harm and are a warning. Ray appends the address and port of the side channel, which
    no two engines share; Baton takes a fresh id for each replica.

    One case is left, and refused: Ray's import path with the same address and the same port set for
    both roles. What Ray appends is then equal as well.

    Source: vLLM 0.29 `kv_connector/utils.py`, `TransferTopology.register_remote_engine` ("Cannot
    register local engine"); ray 2.60 `kv_transfer/nixl.py`, `setup`
    (`"-".join([engine_id, host, str(port)])`); `baton.engine.ports`.
    """
    prefill, decode = (text(role.kv.get("engine_id")) for role in app.roles)
    fixed = [tuple(role.env_vars.get(name) for name in _SIDE_CHANNEL) for role in app.roles]
    if prefill is not None and prefill == decode:
        alike = app.is_rays and all(fixed[0]) and fixed[0] == fixed[1]
        yield Finding(
            app.decode.kv_at("engine_id"),
            f"both roles are called `{decode}`, and their side channels are the same"
            if alike
            else f"both roles are called `{decode}`; each replica gets an engine_id of its own from"
            " it",
            found=decode,
            allowed="a name for each role",
            cure="use `prefill` and `decode`",
            related=(("prefill", app.prefill.kv_at("engine_id")),),
            at_value=True,
            severity="error" if alike else None,
        )


@rule("BTN-123", "error", "prefill pushes and decode pulls, or the other way round")
def transfer_mode(app: AppView) -> Iterator[Finding]:
    """Push (WRITE) and pull (READ) are two protocols; the mode is part of the handshake's hash.

    The mismatch shows at the first request, as a handshake that fails.

    Source: vLLM 0.29 `nixl/metadata.py`, `compute_nixl_compatibility_hash` (`transfer_mode`).
    """
    prefill, decode = app.roles
    if prefill.uses_nixl and decode.uses_nixl and prefill.pushes != decode.pushes:
        yield Finding(
            decode.kv_at("kv_connector"),
            f"prefill uses {prefill.connector} and decode {decode.connector}: one pushes, the other"
            " pulls",
            found=decode.connector,
            allowed="the same connector in both",
            cure=f"set kv_connector: {'NixlConnector'} in both roles",
            at_value=True,
            related=(("prefill", prefill.kv_at("kv_connector")),),
        )
    elif (
        prefill.connector in catalog.connectors()  # else BTN-120 says it
        and decode.connector in catalog.connectors()
        and prefill.uses_nixl != decode.uses_nixl
    ):
        yield Finding(
            decode.kv_at("kv_connector"),
            f"prefill uses {prefill.connector} and decode {decode.connector}",
            found=decode.connector,
            allowed=prefill.connector,
            cure="use the same connector in both roles",
            at_value=True,
            related=(("prefill", prefill.kv_at("kv_connector")),),
        )


@rule("BTN-140", "error", "decode takes shorter prompts than prefill")
def context_lengths(app: AppView) -> Iterator[Finding]:
    """A prompt that prefill accepts and decode does not is prefilled, then refused.

    Its KV is stranded until the lease runs out.

    The other way round is harmless: prefill refuses what is too long, and decode does it alone.

    Source: vLLM 0.29, each engine checks a prompt against its own `max_model_len` only; the value
    is not part of the handshake (`nixl/metadata.py`).
    """
    prefill, decode = app.roles
    longest = app.facts.max_position_embeddings if app.facts else None
    reads = prefill.max_model_len or longest
    writes = decode.max_model_len or longest
    if writes is not None and reads is not None and writes < reads:
        yield Finding(
            decode.engine_at("max_model_len"),
            f"decode takes {writes} tokens and prefill {reads}: longer prompts would strand"
            " their KV",
            found=str(writes),
            allowed=f"{reads} or more",
            cure=f"set both to {reads}, or prefill to {writes}",
            at_value=True,
            related=(("prefill", prefill.engine_at("max_model_len")),),
        )
    elif decode.max_model_len and reads is None:
        yield Finding(
            decode.engine_at("max_model_len"),
            f"decode takes {writes} tokens and prefill whatever the model allows",
            found=str(writes),
            cure=f"set max_model_len: {writes} for prefill as well",
            severity="warning",
            at_value=True,
        )


@rule("BTN-141", "error", "KV block sizes that do not go together")
def block_sizes(app: AppView) -> Iterator[Finding]:
    """Blocks may differ in size when decode's is a multiple of prefill's.

    Never with a host buffer (`kv_buffer_device: cpu` on a GPU), and never when prefill's TP is
    larger than decode's and KV heads are split.

    Source: vLLM 0.29 `kv_connector/utils.py`, `TransferTopology.block_size_ratio` (local % remote
    must be 0, and decode is local); `nixl/base_worker.py`, `_validate_remote_agent_handshake`:
    "Heterogeneous block sizes are not supported with host buffer", "… when P TP > D TP".
    """
    prefill, decode = app.roles
    if not decode.uses_nixl:
        return
    ours, theirs = (_block_size(role, app) for role in (decode, prefill))
    if ours is None or theirs is None:
        yield from _one_block_size(app)
        return
    if ours == theirs:
        return
    common: dict[str, Any] = {
        "found": f"decode {ours}, prefill {theirs}",
        "at_value": True,
        "related": (("prefill", prefill.engine_at("block_size")),),
        "cure": f"set block_size: {theirs} in both",
    }
    path = (decode if decode.block_size else prefill).engine_at("block_size")
    if any(role.kv.get("kv_buffer_device") == "cpu" and not role.on_cpu for role in app.roles):
        yield Finding(
            path,
            "block sizes differ, which NIXL cannot do through a host buffer",
            allowed="the same block_size in both roles",
            **common,
        )
    elif ours % theirs:
        yield Finding(
            path,
            f"decode's block size {ours} is not a multiple of prefill's {theirs}",
            allowed=f"a multiple of {theirs}",
            **common,
        )
    elif prefill.tp > decode.tp and not (app.facts and app.facts.is_mla):
        yield Finding(
            path,
            "block sizes differ while prefill's TP is larger than decode's",
            allowed="the same block_size in both roles",
            **common,
        )
    else:
        yield Finding(
            path,
            f"block sizes differ: KV moves in blocks of {theirs} tokens",
            severity="note",
            **common,
        )


CPU_BLOCK_SIZE = 128
"""vLLM 0.29 `platforms/cpu.py`, where neither the file nor MLA says otherwise."""


def _block_size(role: RoleView, app: AppView) -> int | None:
    """Tokens a block, also where the file leaves it to the platform and that is known."""
    if role.block_size is not None:
        return role.block_size
    return CPU_BLOCK_SIZE if role.on_cpu and app.facts and not app.facts.is_mla else None


def _one_block_size(app: AppView) -> Iterator[Finding]:
    """Only one role says it: whether the other agrees depends on what the other runs on."""
    for role in app.roles:
        if role.block_size is not None:
            yield Finding(
                role.engine_at("block_size"),
                "only one role sets `block_size`: the other's depends on its attention backend",
                found=str(role.block_size),
                allowed="decode's must be a multiple of prefill's",
                cure="set it in both roles",
                severity="note",
                at_value=True,
            )


@rule("BTN-144", "error", "the roles serve two different models")
def model_ids(app: AppView) -> Iterator[Finding]:
    """One endpoint serves one model, under one name.

    Source: ray 2.60 `prefill_decode/builder.py`, `_validate_model_ids`: "P/D model id mismatch".
    """
    prefill, decode = app.roles
    if prefill.model_id and decode.model_id and prefill.model_id != decode.model_id:
        yield Finding(
            decode.at("model_loading_config", "model_id"),
            f"decode is called `{decode.model_id}` and prefill `{prefill.model_id}`",
            found=decode.model_id,
            allowed=prefill.model_id,
            at_value=True,
            cure="give both roles the same model_id",
            related=(("prefill", prefill.at("model_loading_config", "model_id")),),
        )


@rule("BTN-146", "error", "a setting that changes the KV and differs between the roles")
def compatibility_hash(app: AppView) -> Iterator[Finding]:
    """At the first handshake the two sides compare a hash of what shapes the KV.

    In the hash: the model string, dtype, KV heads, head size, layers, attention backend, KV cache
    dtype, and whether the hybrid KV cache manager is on. A difference starts cleanly and fails
    every request. `enforce_handshake_compat: false` turns the check off.

    Source: vLLM 0.29 `nixl/metadata.py`, `compute_nixl_compatibility_hash`.
    """
    prefill, decode = app.roles
    if not (prefill.uses_nixl and decode.uses_nixl):
        return
    if prefill.extra.get("enforce_handshake_compat") is False:
        return
    for key, default in (
        ("dtype", "auto"),
        ("kv_cache_dtype", "auto"),
        ("attention_backend", None),
        ("disable_hybrid_kv_cache_manager", None),
        ("hf_overrides", None),
        ("revision", None),
    ):
        ours, theirs = decode.engine.get(key, default), prefill.engine.get(key, default)
        if _same(key, ours, theirs) or not (_valid(key, ours) and _valid(key, theirs)):
            continue
        yield Finding(
            decode.engine_at(key),
            f"`{key}` is {shown(ours)} in decode, {shown(theirs)} in prefill",
            found=shown(ours),
            allowed=shown(theirs),
            at_value=key in decode.engine,
            severity="error" if default is not None and "auto" not in (ours, theirs) else "warning",
            cure=f"use the same {key} in both roles",
            related=(("prefill", prefill.engine_at(key)),),
        )
    sources = {prefill.model_source, decode.model_source} - {None}
    if len(sources) > 1 and prefill.model_id == decode.model_id:
        path = ("model_loading_config", "model_source")
        yield Finding(
            decode.at(*path),
            f"decode loads `{decode.model_source}` and prefill `{prefill.model_source}`",
            found=decode.model_source,
            allowed=prefill.model_source,
            cure="use the same model_source in both roles",
            at_value=True,
            related=(("prefill", prefill.at(*path)),),
        )


_SYNONYMS = {"half": "float16", "float": "float32", "fp8": "fp8_e4m3"}


def _valid(key: str, value: Any) -> bool:
    """A value that vLLM does not know is reported as that (BTN-103)."""
    return value is None or fits(catalog.engine_args()[key]["type"], value)


def _same(key: str, ours: Any, theirs: Any) -> bool:
    if key == "attention_backend":
        return str(ours).lower() == str(theirs).lower()
    plain = [_SYNONYMS.get(v, v) if isinstance(v, str) else v for v in (ours, theirs)]
    return bool(plain[0] == plain[1])


@rule("BTN-145", "error", "speculative decoding that changes the KV in one role only")
def speculative(app: AppView) -> Iterator[Finding]:
    """EAGLE, MTP and their kind draft from the target's hidden states.

    Their layers are part of the KV that is handed over, and of the handshake's hash, so that both
    roles need the same.

    n-gram, suffix and Medusa drafts keep no KV and may stand in decode alone. A separate draft
    model keeps its own KV layers; vLLM counts them when it compares the two sides.

    Source: vLLM 0.29 `nixl/metadata.py`, `_get_speculative_compatibility_factors`;
    `vllm/config/speculative.py`, `use_eagle`; `nixl/base_worker.py`: "Number of KV layers must
    match".
    """
    prefill, decode = app.roles
    ours, theirs = _draft(decode), _draft(prefill)
    if ours == theirs:
        return
    holder = decode if ours is not None else prefill
    missing = prefill if holder is decode else decode
    method = (ours if ours is not None else theirs or {}).get("method")
    related = ((missing.role, missing.engine_at("speculative_config")),)
    if "eagle-like" in {(d or {}).get("kind") for d in (ours, theirs)}:
        yield Finding(
            holder.engine_at("speculative_config"),
            f"speculative decoding by `{method}` changes the KV, and the roles differ in it",
            found=shown(holder.engine.get("speculative_config")),
            allowed="the same speculative_config in both roles",
            related=related,
            cure=f"add the same speculative_config to {missing.role}",
        )
    elif "draft-model" in {(d or {}).get("kind") for d in (ours, theirs)}:
        yield Finding(
            holder.engine_at("speculative_config"),
            "a draft model brings KV layers of its own, and the roles differ in it",
            found=shown(holder.engine.get("speculative_config")),
            severity="warning",
            cure=f"add the same speculative_config to {missing.role}, or use `ngram`",
            related=related,
        )


def _draft(role: RoleView) -> dict[str, Any] | None:
    """What of a role's speculative decoding takes part in the comparison."""
    config = role.engine.get("speculative_config")
    method = role.engine.get("spec_method")
    model = role.engine.get("spec_model")
    if isinstance(config, dict):
        method = config.get("method", method)
        model = config.get("model", model)
    if method is None and model is None:
        return None
    name = str(method or "").lower()
    guessed = str(model or "").lower()
    hidden = name in _HIDDEN_STATE_METHODS or name.endswith("_mtp")
    if not name:
        hidden = any(word in guessed for word in ("eagle", "mtp", "dflash"))
    if hidden:
        kind = "eagle-like"
    elif name in {"draft_model", ""}:
        kind = "draft-model"
    else:
        return None
    return {"kind": kind, "method": method or model, "model": model}
