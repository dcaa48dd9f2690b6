"""How the rules see a file: one application, its two roles, and what they ask for.

Every accessor copes with values of the wrong kind (they are reported by the shape check) and then
answers as if the key were not there, so that a rule never has to.
"""

from __future__ import annotations

import math
from dataclasses import dataclass, field
from functools import cached_property
from typing import TYPE_CHECKING, Any

from baton.spec.schema import BatonBlock, Role

if TYPE_CHECKING:
    from collections.abc import Mapping

    from baton.spec.faults import Path
    from baton.spec.machine import Machine
    from baton.spec.model_facts import ModelFacts

RAY_IMPORT_PATH = "ray.serve.llm:build_pd_openai_app"
BATON_IMPORT_PATH = "baton:build_pd_openai_app"
PD_IMPORT_PATHS = (BATON_IMPORT_PATH, RAY_IMPORT_PATH)

NIXL_PULL = ("NixlConnector", "NixlPullConnector")
NIXL_PUSH = ("NixlPushConnector",)


def mapping(value: Any) -> dict[Any, Any]:
    """The value if it is a mapping, else an empty one."""
    return value if isinstance(value, dict) else {}


def whole(value: Any, default: int) -> int:
    """The value if it is a whole number, else the default."""
    if isinstance(value, bool) or not isinstance(value, (int, float)):
        return default
    if not math.isfinite(value) or value != int(value):
        return default
    return int(value)


def text(value: Any) -> str | None:
    """The value if it is text, else None."""
    return value if isinstance(value, str) else None


@dataclass(frozen=True)
class RoleView:
    """`prefill_config` or `decode_config`."""

    role: Role
    path: Path
    config: dict[Any, Any]
    app_env_vars: Mapping[str, Any] = field(default_factory=dict)
    facts: ModelFacts | None = None

    @property
    def engine(self) -> dict[Any, Any]:
        """`engine_kwargs`."""
        return mapping(self.config.get("engine_kwargs"))

    @property
    def kv(self) -> dict[Any, Any]:
        """`kv_transfer_config`."""
        return mapping(self.engine.get("kv_transfer_config"))

    @property
    def extra(self) -> dict[Any, Any]:
        """`kv_connector_extra_config`."""
        return mapping(self.kv.get("kv_connector_extra_config"))

    @property
    def loading(self) -> dict[Any, Any]:
        """`model_loading_config`."""
        return mapping(self.config.get("model_loading_config"))

    @property
    def deployment(self) -> dict[Any, Any]:
        """`deployment_config`."""
        return mapping(self.config.get("deployment_config"))

    @property
    def env_vars(self) -> dict[str, Any]:
        """Environment of the engine: the role's own over the application's.

        The role's `runtime_env` hides `ray_actor_options.runtime_env` key by key (ray 2.60
        `llm_server.py`, `get_deployment_options`); Ray then merges it with the application's.
        """
        return {**self.app_env_vars, **self.own_env_vars}

    @property
    def own_env_vars(self) -> dict[str, Any]:
        """The part of it that is not the application's."""
        here: Any = self.config
        for part in self.env_where:
            here = mapping(here).get(part)
        return mapping(here)

    @property
    def env_where(self) -> Path:
        """Where below the role that part stands, or would."""
        options = mapping(self.deployment.get("ray_actor_options"))
        theirs = mapping(options.get("runtime_env"))
        if "env_vars" in theirs and "env_vars" not in mapping(self.config.get("runtime_env")):
            return ("deployment_config", "ray_actor_options", "runtime_env", "env_vars")
        return ("runtime_env", "env_vars")

    def at(self, *parts: Any) -> Path:
        """A path below this role."""
        return (*self.path, *parts)

    def engine_at(self, *parts: Any) -> Path:
        """A path below `engine_kwargs`."""
        return (*self.path, "engine_kwargs", *parts)

    def kv_at(self, *parts: Any) -> Path:
        """A path below `kv_transfer_config`."""
        return (*self.path, "engine_kwargs", "kv_transfer_config", *parts)

    def env_at(self, name: str) -> Path:
        """Where an environment variable of this role is set, or would be."""
        return (*self.path, *self.env_where, name)

    def size(self, name: str) -> int:
        """A parallel size of the engine, 1 when left out (or wrong, which is said elsewhere)."""
        return max(whole(self.engine.get(name), 1), 1)

    @property
    def tp(self) -> int:
        """Tensor parallel size."""
        return self.size("tensor_parallel_size")

    @property
    def pp(self) -> int:
        """Pipeline parallel size."""
        return self.size("pipeline_parallel_size")

    @property
    def dp(self) -> int:
        """Data parallel size."""
        return self.size("data_parallel_size")

    @property
    def num_replicas(self) -> int:
        """How many replicas are asked for; with autoscaling the most there can be."""
        scaling = self.deployment.get("autoscaling_config")
        if isinstance(scaling, dict):
            return whole(scaling.get("max_replicas"), 1)
        if self.deployment.get("num_replicas") == "auto":
            # Ray 2.60 `handle_num_replicas_auto`: up to 100.
            return 100
        return whole(self.deployment.get("num_replicas"), 1)

    @property
    def max_model_len(self) -> int | None:
        """In tokens, or None when the model's own limit holds."""
        value = whole(self.engine.get("max_model_len"), 0)
        return value if value > 0 else None

    @property
    def block_size(self) -> int | None:
        """Tokens a KV block, or None when the platform decides."""
        value = whole(self.engine.get("block_size"), 0)
        return value if value > 0 else None

    @property
    def connector(self) -> str | None:
        """`kv_connector`."""
        return text(self.kv.get("kv_connector"))

    @property
    def kv_role(self) -> str | None:
        """`kv_role`."""
        return text(self.kv.get("kv_role"))

    @property
    def uses_nixl(self) -> bool:
        """Whether the connector is one of NIXL's."""
        return self.connector in (*NIXL_PULL, *NIXL_PUSH)

    @property
    def pushes(self) -> bool:
        """Whether KV is pushed by prefill rather than pulled by decode."""
        return self.connector in NIXL_PUSH

    @property
    def backends(self) -> list[str]:
        """NIXL backends that are asked for; vLLM's default is UCX."""
        asked = self.extra.get("backends")
        if isinstance(asked, str):
            return [asked]
        if isinstance(asked, list) and asked:
            return [str(item) for item in asked]
        return ["UCX"]

    @property
    def model_id(self) -> str | None:
        """`model_loading_config.model_id`."""
        return text(self.loading.get("model_id"))

    @property
    def model_source(self) -> str | None:
        """Folder, hub name or URI of the weights."""
        source = self.loading.get("model_source")
        if isinstance(source, dict):
            return text(source.get("bucket_uri"))
        return text(source) or self.model_id

    @property
    def bundles(self) -> list[dict[str, float]]:
        """What one replica asks Ray for, one entry a worker."""
        group = mapping(self.config.get("placement_group_config"))
        workers = self.tp * self.pp
        each = group.get("bundle_per_worker")
        if isinstance(each, dict):
            return [each] * workers
        asked = group.get("bundles")
        if isinstance(asked, list):
            return [item for item in asked if isinstance(item, dict)]
        # Ray 2.60 `LLMConfig._resolve_accelerator_config`: without bundles it is a GPU deployment.
        kind = mapping(self.config.get("accelerator_config")).get("kind", "gpu")
        return [{"CPU": 1.0} if kind == "cpu" else {"GPU": 1.0}] * workers

    @property
    def on_cpu(self) -> bool:
        """Whether Ray takes this for a CPU deployment (`infer_hardware_kind_from_bundles`)."""
        kind = mapping(self.config.get("accelerator_config")).get("kind")
        if isinstance(kind, str):
            return kind == "cpu"
        return not any(_amount(b, "GPU") or _amount(b, "TPU") for b in self.bundles)

    @property
    def gpus(self) -> float:
        """GPUs that one replica asks for."""
        return sum(_amount(bundle, "GPU") for bundle in self.bundles)


def _amount(bundle: Mapping[str, Any], key: str) -> float:
    value = bundle.get(key, 0)
    return float(value) if isinstance(value, (int, float)) else 0.0


@dataclass(frozen=True)
class AppView:
    """One application of the file."""

    app: dict[Any, Any]
    path: Path
    args: dict[Any, Any]
    args_path: Path
    machine: Machine | None = None
    on: str | None = None
    facts: ModelFacts | None = None
    starting: bool = False
    """Whether engines are about to start here, rather than a file being looked at."""

    @property
    def import_path(self) -> str:
        """As written, or Baton's when the builder was called with plain arguments."""
        return text(self.app.get("import_path")) or ""

    @property
    def is_rays(self) -> bool:
        """Whether Ray's own builder runs it."""
        return self.import_path == RAY_IMPORT_PATH

    @cached_property
    def prefill(self) -> RoleView:
        """The role that reads prompts."""
        return self._role("prefill")

    @cached_property
    def decode(self) -> RoleView:
        """The role that writes tokens."""
        return self._role("decode")

    @property
    def roles(self) -> tuple[RoleView, RoleView]:
        """Both."""
        return (self.prefill, self.decode)

    def _role(self, role: Role) -> RoleView:
        key = f"{role}_config"
        env_vars = mapping(mapping(self.app.get("runtime_env")).get("env_vars"))
        return RoleView(
            role, (*self.args_path, key), mapping(self.args.get(key)), env_vars, self.facts
        )

    @property
    def baton_path(self) -> Path:
        """Where the `baton` block stands."""
        return (*self.args_path, "baton")

    @cached_property
    def baton(self) -> BatonBlock:
        """The block, or its defaults when it is missing or wrong."""
        try:
            return BatonBlock.model_validate(self.args.get("baton") or {})
        except ValueError:
            return BatonBlock()
