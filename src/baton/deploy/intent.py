"""What is to be deployed: a checked file, as far as deploying needs it."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

from baton.errors import ConfigRefused
from baton.spec.schema import Auth, Transport

if TYPE_CHECKING:
    from collections.abc import Mapping

    from baton.spec.checked import CheckedApp, CheckedFile, RoleSpec

BATON_BUILDER = "baton:build_pd_openai_app"
RAY_BUILDER = "ray.serve.llm:build_pd_openai_app"
DEFAULT_PORT = 8000
# Ray Serve places each replica's own actor with one CPU beside its engine's bundles
# (ray 2.60 llm_server.py, get_deployment_options).
REPLICA_CPUS = 1
# The controller, the proxies and the directory ask for none; this is for tasks that Ray runs.
SPARE_CPUS = 2


@dataclass(frozen=True)
class AppPlan:
    """One application of the file."""

    name: str
    route_prefix: str
    model_id: str
    by_baton: bool
    replicas: dict[str, int] = field(default_factory=dict)
    """Engine replicas by role that must be ready."""
    auth: Auth = field(default_factory=Auth)
    transport: Transport = field(default_factory=Transport)
    """What its KV must travel on; proved before it is called ready, unless that is `any`."""
    console: bool = False


@dataclass(frozen=True)
class DeployPlan:
    """Everything that `up` needs to know."""

    name: str
    file: str
    serve_config: dict[str, Any]
    apps: tuple[AppPlan, ...]
    http_host: str
    http_port: int
    cpus: int
    """Logical CPUs for a Ray head of our own."""
    cpus_asked: int
    """Logical CPUs that the file's placement asks for."""
    environment: dict[str, str] = field(default_factory=dict)
    model_note: str = ""

    @property
    def endpoint(self) -> str:
        """The base URL of the first application, without `/v1`."""
        return self.endpoint_of(self.apps[0])

    def endpoint_of(self, app: AppPlan) -> str:
        """The base URL of an application, without `/v1`."""
        host = "127.0.0.1" if self.http_host in {"0.0.0.0", "::", ""} else self.http_host  # noqa: S104
        host = f"[{host}]" if ":" in host else host
        return f"http://{host}:{self.http_port}{base_of(app.route_prefix)}"


def base_of(route_prefix: str) -> str:
    """The part of a route prefix that stands before `/v1`; empty for `/` and `/v1`."""
    return route_prefix.rstrip("/").removesuffix("/v1")


def plan_of(
    checked: CheckedFile,
    *,
    name: str | None = None,
    builder: str | None = None,
    port: int | None = None,
    cores: int = 1,
) -> DeployPlan:
    """Turn a checked file into a plan.

    Args:
        checked: what passed the check.
        name: the deployment's name; the first application's when None.
        builder: `baton` or `ray` to run the P/D applications through that one, whatever the file
            says; None keeps the file's import_path.
        port: overrides `http_options.port`.
        cores: of this machine. Ray gets at least as many logical CPUs, and as many more as the
            file's placement asks for.

    Raises:
        ConfigRefused: when the file holds no application.
    """
    if not checked.applications:
        raise ConfigRefused("the file holds no application", place=checked.path)
    config = checked.to_serve_config()
    http = dict(config.get("http_options") or {})
    # With HAProxy on, Ray Serve listens on every interface by default (ray 2.60,
    # serve/_private/constants.py); without it, on loopback. Baton keeps the careful one.
    host = str(http.setdefault("host", "127.0.0.1"))
    http["port"] = port or int(http.get("port", DEFAULT_PORT))
    config["http_options"] = http
    apps = []
    for app, entry in zip(checked.applications, config["applications"], strict=True):
        path = _import_path(app, builder)
        entry["import_path"] = path
        if path == RAY_BUILDER:
            (entry.get("args") or {}).pop("baton", None)
        elif path == BATON_BUILDER and app.import_path == RAY_BUILDER:
            entry["args"] = app.args
        apps.append(_app_plan(app, by_baton=path == BATON_BUILDER))
    asked = sum(_cpus(app) for app in checked.applications)
    return DeployPlan(
        name=name or checked.applications[0].name,
        file=checked.path,
        serve_config=config,
        apps=tuple(apps),
        http_host=host,
        http_port=http["port"],
        cpus=max(cores, asked + SPARE_CPUS),
        cpus_asked=asked,
        model_note=", ".join(_model_note(app) for app in checked.applications),
    )


def _import_path(app: CheckedApp, builder: str | None) -> str:
    if builder is None or app.import_path not in {BATON_BUILDER, RAY_BUILDER}:
        return app.import_path
    return BATON_BUILDER if builder == "baton" else RAY_BUILDER


def _app_plan(app: CheckedApp, *, by_baton: bool) -> AppPlan:
    prefill = app.roles.get("prefill")
    return AppPlan(
        name=app.name,
        route_prefix=app.route_prefix or "/",
        model_id=prefill.model_id if prefill else "",
        by_baton=by_baton,
        replicas={
            role: _first_replicas(app.args.get(f"{role}_config") or {}, spec)
            for role, spec in app.roles.items()
        },
        auth=app.baton.auth,
        transport=app.baton.transport,
        console=app.baton.console.enabled,
    )


def _model_note(app: CheckedApp) -> str:
    spec = app.roles.get("prefill")
    if spec is None:
        return app.name
    if app.answering_model is not None:
        return f"{spec.model_id}, answered by {app.answering_model}"
    return f"{spec.model_id} from {spec.model_source or spec.model_id}"


def _cpus(app: CheckedApp) -> int:
    total = 0.0
    for role, spec in app.roles.items():
        config = app.args.get(f"{role}_config") or {}
        bundles = sum(float(bundle.get("CPU", 0)) for bundle in _bundles(config, spec))
        total += _most_replicas(config, spec) * (bundles + REPLICA_CPUS)
    return int(total + 0.999)


def _bundles(config: Mapping[str, Any], spec: RoleSpec) -> list[Mapping[str, Any]]:
    placement = config.get("placement_group_config") or {}
    each = placement.get("bundle_per_worker")
    if each is not None:
        return [each] * (spec.tensor_parallel_size * spec.pipeline_parallel_size)
    return list(placement.get("bundles") or [])


def _most_replicas(config: Mapping[str, Any], spec: RoleSpec) -> int:
    autoscaling = (config.get("deployment_config") or {}).get("autoscaling_config") or {}
    return max(spec.num_replicas, int(autoscaling.get("max_replicas") or 0))


def _first_replicas(config: Mapping[str, Any], spec: RoleSpec) -> int:
    """How many replicas Serve starts with: all of a fixed number, the least of a scaled pool."""
    deployment = config.get("deployment_config") or {}
    scaling = deployment.get("autoscaling_config")
    if scaling is None and deployment.get("num_replicas") != "auto":
        return spec.num_replicas
    scaling = scaling or {}
    return int(scaling.get("initial_replicas") or scaling.get("min_replicas") or 1)
