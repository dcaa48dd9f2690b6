"""Which part of a role each key belongs to: for slips that are moved, and for what to say else."""

from __future__ import annotations

from functools import cache
from typing import TYPE_CHECKING

from baton.spec import catalog
from baton.spec.suggest import nearest

if TYPE_CHECKING:
    from baton.spec.faults import Path

OWNERS: dict[str, Path] = {
    "role": (),
    "loading": ("model_loading_config",),
    "deployment": ("deployment_config",),
    "engine": ("engine_kwargs",),
    "kv": ("engine_kwargs", "kv_transfer_config"),
    "kv_extra": ("engine_kwargs", "kv_transfer_config", "kv_connector_extra_config"),
    "runtime": ("runtime_env",),
    "placement": ("placement_group_config",),
}


@cache
def known_keys() -> dict[str, set[str]]:
    """The keys that only make sense in each part."""
    objects = catalog.objects()
    return {
        "role": set(objects["LLMConfig"]),
        "loading": set(objects["ModelLoadingConfig"]),
        "deployment": set(catalog.deployment_options()),
        "engine": set(catalog.engine_kwargs()),
        "kv": set(objects["KVTransferConfig"]),
        # Only what vLLM's NIXL connector reads by these names and nothing else could mean.
        "kv_extra": {
            "backends",
            "kv_lease_duration",
            "enforce_handshake_compat",
            "enable_cross_layers_blocks",
        },
        "runtime": {"env_vars"},
        "placement": {"bundles", "bundle_per_worker"},
    }


def belongs(key: object) -> str | None:
    """Where in a role a key that stands in the wrong place belongs, as a cure; None if nowhere."""
    if not isinstance(key, str):
        return None
    name = key.lstrip("-").replace("-", "_")
    known = known_keys()
    places = [where for owner, where in OWNERS.items() if name in known[owner]]
    if places:
        return "it belongs in " + " or ".join(f"`{_dotted(where)}`" for where in places)
    near = nearest(name, sorted(set().union(*known.values())), cutoff=_CLOSE)
    if near is None:
        return None
    where = next(where for owner, where in OWNERS.items() if near in known[owner])
    return f"did you mean `{near}`? It belongs in `{_dotted(where)}`"


_CLOSE = 0.85
"""Nearer than for a misspelt key: the key may as well be something else."""


def _dotted(where: Path) -> str:
    return ".".join(map(str, where)) or "prefill_config` or `decode_config"
