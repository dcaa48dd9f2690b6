"""Talks to Ray Serve: connects, hands over the config, and watches what becomes of it."""

from __future__ import annotations

import contextlib
import logging
import os
import signal
import threading
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

from baton.errors import DeployFailed, EnvironmentUnfit, RayUnreachable, ServeEnded
from baton.spec.lease import DirectorySnapshot

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping


@dataclass(frozen=True)
class AppView:
    """What Serve says of one application."""

    status: str
    message: str
    deployments: dict[str, tuple[str, str]] = field(default_factory=dict)
    """Status and message by deployment."""

    @property
    def failure(self) -> str | None:
        """Why it will not come up, as soon as one replica has failed to start; else None."""
        if self.status in {"DEPLOY_FAILED", "UNHEALTHY"}:
            details = [text for _, text in self.deployments.values() if text]
            return "\n".join([self.message, *details]).strip() or self.status
        for status, message in self.deployments.values():
            # Serve tries three times by itself. An engine that dies while it starts does so again,
            # and each try costs a minute.
            if status in {"DEPLOY_FAILED", "UNHEALTHY"} or "failed to start" in message:
                return message
        return None


@contextlib.contextmanager
def connected(address: str, environment: Mapping[str, str]) -> Iterator[None]:
    """A connection to the Ray cluster at `address`, for the time of the block.

    Raises:
        EnvironmentUnfit: when Ray is not installed.
        RayUnreachable: when Ray does not answer.
    """
    # Ray reads these when it is imported, so they come first.
    os.environ.update(environment)
    try:
        import ray  # noqa: PLC0415
        from ray._raylet import (  # type: ignore[attr-defined]  # noqa: PLC0415  # compiled
            AuthenticationTokenLoader,
        )
    except ImportError as exc:
        raise EnvironmentUnfit(
            "Ray is not installed here", cure="make env, or pip install 'baton[cpu]'"
        ) from exc
    # Ray keeps the first token that a process has used, and each cluster of ours has its own
    # (ray 2.60, src/ray/rpc/authentication/authentication_token_loader).
    AuthenticationTokenLoader.instance().reset_cache()
    logging.getLogger("ray").setLevel(logging.ERROR)
    on_sigterm = signal.getsignal(signal.SIGTERM)
    try:
        ray.init(
            address=address,
            namespace="serve",
            log_to_driver=False,
            logging_level=logging.ERROR,
            _skip_env_hook=True,
        )
    except Exception as exc:
        first = str(exc).strip().splitlines()[0] if str(exc).strip() else type(exc).__name__
        raise RayUnreachable(
            f"no Ray cluster answers at {address}: {first}",
            cure="check --address, or leave it out to start Ray on this machine",
        ) from exc
    if threading.current_thread() is threading.main_thread():
        # Connecting puts a handler of Ray's C++ core on SIGTERM (ray 2.60). It prints a stack and
        # ends the process at once, and what was started would stay.
        signal.signal(signal.SIGTERM, on_sigterm)
    try:
        yield
    finally:
        ray.shutdown()


def deploy(config: dict[str, Any]) -> None:
    """Give a Serve config to the controller; returns at once.

    Raises:
        DeployFailed: when Serve refuses it.
    """
    from ray.serve._private import api  # noqa: PLC0415  # what `serve run` itself calls
    from ray.serve.schema import ServeDeploySchema  # noqa: PLC0415

    quiet = logging.getLogger("ray.serve")
    quiet.setLevel(logging.ERROR)
    try:
        schema = ServeDeploySchema.model_validate(config)
        client = api.serve_start(
            http_options=schema.http_options.model_dump(),
            proxy_location=schema.proxy_location,
            global_logging_config=schema.logging_config,
            controller_options=schema.controller_options,
        )
        client.deploy_apps(schema, _blocking=False)
    except Exception as exc:
        lines = [line for line in str(exc).splitlines() if line.strip()]
        raise DeployFailed(f"Ray Serve refused the config: {lines[-1] if lines else exc}") from exc


def view(app: str) -> AppView:
    """What Serve says of an application now.

    Raises:
        ServeEnded: Serve itself has ended, or was ended by somebody else.
    """
    from ray import serve  # noqa: PLC0415
    from ray.exceptions import RayError  # noqa: PLC0415

    try:
        overview = serve.status().applications.get(app)
    except RayError as exc:
        raise ServeEnded(
            f"Ray Serve ended while {app} was being deployed: {type(exc).__name__}",
            cure="somebody ended Serve on this cluster; run `baton up` again",
        ) from exc
    if overview is None:
        return AppView("NOT_STARTED", "")
    return AppView(
        status=_text(overview.status),
        message=overview.message or "",
        deployments={
            name: (_text(deployment.status), deployment.message or "")
            for name, deployment in overview.deployments.items()
        },
    )


def engines(app: str) -> DirectorySnapshot:
    """The leases in an application's directory; empty while there is none."""
    import ray  # noqa: PLC0415

    from baton.serve.registry import find_directory_actor  # noqa: PLC0415  # imports Ray

    actor = find_directory_actor(app)
    if actor is None:
        return DirectorySnapshot()
    with contextlib.suppress(Exception):
        return DirectorySnapshot.model_validate(ray.get(actor.snapshot.remote(), timeout=5))
    return DirectorySnapshot()


def logical_cpus() -> int:
    """How many CPUs the cluster may hand out in all."""
    import ray  # noqa: PLC0415

    return int(ray.cluster_resources().get("CPU", 0))


def delete(apps: tuple[str, ...]) -> None:
    """Take applications off a cluster that is not ours, in good order."""
    from ray import serve  # noqa: PLC0415

    for app in apps:
        serve.delete(app)


def _text(status: Any) -> str:
    return str(getattr(status, "value", status))
