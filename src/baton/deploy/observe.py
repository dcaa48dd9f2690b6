"""What runs: read from the state files, the processes, and the gateway's own view."""

from __future__ import annotations

import contextlib
from dataclasses import dataclass
from typing import TYPE_CHECKING

import httpx

from baton.deploy.processes import members
from baton.spec.lease import EngineLease

if TYPE_CHECKING:
    from baton.deploy import state

TIMEOUT_S = 5.0


@dataclass(frozen=True)
class DeploymentView:
    """A deployment as it is now."""

    deployment: state.Deployment
    health: str
    """`ready`, `degraded`, `starting`, `not ready`, `unreachable` or `gone`, with the reason."""
    engines: tuple[EngineLease, ...] = ()


def look(deployment: state.Deployment, *, api_key: str | None = None) -> DeploymentView:
    """Ask a deployment how it is; never raises for a deployment that does not answer."""
    if deployment.ray_pid is not None and not members(deployment.marker, deployment.folder):
        return DeploymentView(deployment, "gone: its processes have ended; `baton down` clears it")
    headers = {"authorization": f"Bearer {api_key}"} if api_key else {}
    try:
        with httpx.Client(
            base_url=deployment.endpoint, timeout=TIMEOUT_S, headers=headers, trust_env=False
        ) as client:
            ready = client.get("/ready")
            # An application whose prefix ends in /v1 has everything below it.
            below = "/v1" if ready.status_code == httpx.codes.NOT_FOUND else ""
            if below:
                ready = client.get("/v1/ready")
            own = deployment.builder == "baton"
            engines = client.get(f"{below}/baton/engines") if own else None
    except httpx.HTTPError as exc:
        if not deployment.ready:
            return DeploymentView(
                deployment,
                f"starting, or its `baton up` was ended: `baton down {deployment.name}` clears it",
            )
        return DeploymentView(deployment, f"unreachable: {type(exc).__name__}")
    leases: tuple[EngineLease, ...] = ()
    if engines is not None and engines.status_code == httpx.codes.OK:
        with contextlib.suppress(ValueError, AttributeError):
            listed = engines.json().get("engines", [])
            leases = tuple(EngineLease.model_validate(lease) for lease in listed)
    if deployment.builder != "baton":
        return DeploymentView(deployment, "ready" if deployment.ready else "not ready")
    return DeploymentView(deployment, _health(ready), leases)


def _health(ready: httpx.Response) -> str:
    """What `/ready` says, in a line."""
    missing = ready.text
    with contextlib.suppress(ValueError, AttributeError):
        said = ready.json()
        missing = ", ".join(said.get("missing", []))
        if ready.status_code == httpx.codes.OK:
            return f"degraded: {missing}" if missing else "ready"
    if ready.status_code == httpx.codes.OK:
        return "ready"
    return f"not ready: {(missing or ready.text).strip()[:200]}"
