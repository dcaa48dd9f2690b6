"""What a checked file holds: typed roles, the corrected arguments, what was put right."""

from __future__ import annotations

import copy
from dataclasses import dataclass, field, replace
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from baton.spec.faults import Change, Fault
    from baton.spec.loaded import LoadedFile
    from baton.spec.model_facts import ModelFacts
    from baton.spec.schema import BatonBlock, Role
    from baton.spec.view import AppView, RoleView


@dataclass(frozen=True)
class RoleSpec:
    """One role, as the rest of Baton needs it."""

    role: Role
    model_id: str
    model_source: str
    tensor_parallel_size: int = 1
    pipeline_parallel_size: int = 1
    num_replicas: int = 1
    max_model_len: int | None = None
    block_size: int | None = None
    kv_transfer_config: dict[str, Any] = field(default_factory=dict)
    env_vars: dict[str, str] = field(default_factory=dict)
    on_cpu: bool = False

    @classmethod
    def of(cls, view: RoleView) -> RoleSpec:
        """From a role whose file has passed the check."""
        return cls(
            role=view.role,
            model_id=view.model_id or "",
            model_source=view.model_source or "",
            tensor_parallel_size=view.tp,
            pipeline_parallel_size=view.pp,
            num_replicas=view.num_replicas,
            max_model_len=view.max_model_len,
            block_size=view.block_size,
            kv_transfer_config=copy.deepcopy(view.kv),
            env_vars={str(k): str(v) for k, v in view.env_vars.items()},
            on_cpu=view.on_cpu,
        )


@dataclass(frozen=True)
class CheckedApp:
    """One application that may start. `args` is what is deployed: corrected and complete."""

    name: str
    route_prefix: str | None
    import_path: str
    args: dict[str, Any]
    baton: BatonBlock
    roles: dict[Role, RoleSpec]
    has_rules: bool = True
    """False for an application that Baton passes on without knowing it."""
    facts: ModelFacts | None = None
    answering_model: str | None = None
    """The model that answers when it is not the one asked for (`--on cpu`)."""

    @classmethod
    def of(cls, view: AppView, facts: ModelFacts | None, *, known: bool) -> CheckedApp:
        """From an application that has passed the check."""
        route = view.app.get("route_prefix", "/")
        return cls(
            name=str(view.app.get("name", "default")),
            route_prefix=route if route is None else str(route),
            import_path=view.import_path,
            args=copy.deepcopy(view.args),
            baton=view.baton,
            roles={role.role: RoleSpec.of(role) for role in view.roles} if known else {},
            has_rules=known,
            facts=facts,
        )


@dataclass(frozen=True)
class CheckedFile:
    """A file that may start."""

    source: LoadedFile
    document: dict[str, Any]
    applications: tuple[CheckedApp, ...]
    warnings: tuple[Fault, ...] = ()
    """Warnings and notes, in the order of the file."""
    changes: tuple[Change, ...] = ()
    """What was put right or adapted, each with before and after."""

    @property
    def path(self) -> str:
        """The file's name, for messages."""
        return self.source.path

    @property
    def http_options(self) -> dict[str, Any]:
        """`http_options` of the file, as written."""
        return dict(self.document.get("http_options") or {})

    @property
    def proxy_location(self) -> str | None:
        """`proxy_location` of the file, as written."""
        return self.document.get("proxy_location")

    @property
    def logging_config(self) -> dict[str, Any] | None:
        """`logging_config` of the file, as written."""
        return self.document.get("logging_config")

    def to_serve_config(self) -> dict[str, Any]:
        """What is deployed: the corrected Serve config, with each application's checked `args`."""
        config = copy.deepcopy(self.document)
        for app, entry in zip(self.applications, config.get("applications", []), strict=True):
            if not app.has_rules:
                continue
            args = copy.deepcopy(app.args)
            if app.import_path.startswith("ray."):
                args.pop("baton", None)
            entry["args"] = args
        return config

    def with_app(self, index: int, app: CheckedApp, changes: tuple[Change, ...]) -> CheckedFile:
        """A copy with one application replaced and changes added."""
        apps = (*self.applications[:index], app, *self.applications[index + 1 :])
        return replace(self, applications=apps, changes=(*self.changes, *changes))
