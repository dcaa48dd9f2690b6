"""`up`, `status` and `down` on this machine.

`up` starts a Ray head of its own unless it joins a cluster, deploys the file, and ends when a
handoff has really succeeded. Whatever goes wrong before that, nothing that it started stays.
"""

from __future__ import annotations

import contextlib
import os
import shutil
import time
from collections.abc import Callable
from typing import TYPE_CHECKING, Literal

from baton.deploy import serve_app, state
from baton.deploy.engine_logs import root_cause, search_logs
from baton.deploy.exposure import own_key
from baton.deploy.first_handoff import first_handoff
from baton.deploy.processes import end_all, members, port_owner, wait_until_free
from baton.deploy.ray_address import check_ray_answers
from baton.deploy.ray_head import RayHead, client_environment, start_head
from baton.deploy.timings import Timings
from baton.errors import (
    DeployFailed,
    EngineStartFailed,
    PortTaken,
    RayUnreachable,
    ServeEnded,
)

if TYPE_CHECKING:
    from pathlib import Path

    from baton.deploy.intent import AppPlan, DeployPlan
    from baton.spec.lease import EngineLease

Stage = Literal[
    "environment", "Ray", "model", "prefill engine", "decode engine", "first handoff", "transport"
]
Progress = Callable[[Stage, str], None]
# Proves what an application's KV travels on: the application, its endpoint, a key for it. Raises
# DeployFailed where that is not what the file requires. `baton.cli.up` brings it.
Prove = Callable[["AppPlan", str, "str | None"], None]

POLL_S = 0.25
# Serve's controller works for its answer, on a core that the engines need.
VIEW_S = 1.0


def up(
    plan: DeployPlan,
    *,
    progress: Progress,
    address: str | None = None,
    timeout_s: float = 1_800.0,
    timings: Timings | None = None,
    prove: Prove | None = None,
) -> state.Deployment:
    """Deploy, and return once a handoff has succeeded and, where one is required, the fabric holds.

    Args:
        plan: what to deploy.
        progress: told what happens.
        address: of a Ray cluster to join.
        timeout_s: until the engines must be up.
        timings: where the time went is noted there.
        prove: has the last word on an application whose fabric is required.

    Raises:
        PortTaken: when somebody else listens on the endpoint's port.
        DeployFailed: when Ray or the application does not come up, or `prove` refuses it; with the
            line that matters.
    """
    name = state.checked_name(plan.name)
    timings = timings or Timings()
    with state.locked(name):
        running = _alive(state.find(name))
        if running is not None:
            return _update(
                plan,
                running,
                progress=progress,
                timeout_s=timeout_s,
                timings=timings,
                prove=prove,
            )
        return _start(
            plan,
            progress=progress,
            address=address,
            timeout_s=timeout_s,
            timings=timings,
            prove=prove,
        )


def _start(
    plan: DeployPlan,
    *,
    progress: Progress,
    address: str | None,
    timeout_s: float,
    timings: Timings,
    prove: Prove | None,
) -> state.Deployment:
    progress("environment", f"endpoint {plan.endpoint}")
    if address is not None:
        check_ray_answers(address, timeout_s)
    else:
        owner = port_owner(plan.http_host, plan.http_port)
        if owner is not None:
            raise PortTaken(
                f"port {plan.http_port} belongs to {owner}",
                cure=_cure_of_taken_port(plan.http_port),
            )
    head: RayHead | None = None
    try:
        if address is None:
            progress("Ray", f"starting with {plan.cpus} logical CPUs")
            head = start_head(plan.name, cpus=plan.cpus, settings_environment=plan.environment)
        deployment = _record(plan, head, address)
        state.save(deployment)
        environment = client_environment(deployment.ray_auth_token) | plan.environment
        with serve_app.connected(deployment.ray_address, environment):
            progress("Ray", f"at {deployment.ray_address}")
            timings.mark("ray_at")
            _deploy_and_wait(
                plan, head=head, progress=progress, timeout_s=timeout_s, timings=timings
            )
            _prove(plan, prove)
    except BaseException:
        # Also on Ctrl-C: nothing that was started stays.
        if head is not None:
            head.stop()
            shutil.rmtree(head.folder, ignore_errors=True)
        elif address is not None:
            with contextlib.suppress(Exception):
                _leave_cluster(address, tuple(app.name for app in plan.apps))
        state.forget(plan.name)
        raise
    deployment = deployment.model_copy(update={"ready": True})
    state.save(deployment)
    return deployment


def _cure_of_taken_port(port: int) -> str:
    for other in state.everything():
        if other.endpoint.split("/", 3)[2].rpartition(":")[2] == str(port):
            return f"`baton down {other.name}` first, or choose another --port"
    return "end it, or set http_options.port in the file (or --port)"


def _update(
    plan: DeployPlan,
    running: state.Deployment,
    *,
    progress: Progress,
    timeout_s: float,
    timings: Timings,
    prove: Prove | None,
) -> state.Deployment:
    progress("environment", f"updating {running.name} in place")
    if plan.endpoint.split("/", 3)[2] != running.endpoint.split("/", 3)[2]:
        raise DeployFailed(
            f"{running.name} listens at {running.endpoint} and the file asks for {plan.endpoint}",
            cure=f"Ray Serve cannot move a running endpoint: `baton down {running.name}` first",
        )
    environment = client_environment(running.ray_auth_token) | plan.environment
    check_ray_answers(running.ray_address, timeout_s)
    with serve_app.connected(running.ray_address, environment):
        progress("Ray", f"at {running.ray_address}")
        have = serve_app.logical_cpus()
        if have < plan.cpus_asked:
            raise DeployFailed(
                f"the file asks for {plan.cpus_asked} logical CPUs and this Ray cluster has {have}",
                cure=f"`baton down {running.name}` and `baton up` start one that is large enough",
            )
        # A failed update leaves what serves now as it is: it may still answer.
        timings.mark("ray_at")
        _deploy_and_wait(plan, head=None, progress=progress, timeout_s=timeout_s, timings=timings)
        _prove(plan, prove)
    updated = running.model_copy(
        update={
            "endpoint": plan.endpoint,
            "apps": tuple(app.name for app in plan.apps),
            "file": plan.file,
            "ready": True,
        }
    )
    state.save(updated)
    return updated


def _record(plan: DeployPlan, head: RayHead | None, address: str | None) -> state.Deployment:
    return state.Deployment(
        name=plan.name,
        marker=head.marker if head else "",
        ray_address=head.address if head else str(address),
        ray_pid=head.pid if head else None,
        ray_auth_token=head.auth_token if head else None,
        folder=str(head.folder) if head else "",
        endpoint=plan.endpoint,
        apps=tuple(app.name for app in plan.apps),
        builder="baton" if all(app.by_baton for app in plan.apps) else "ray",
        file=plan.file,
        started_at=time.time(),
    )


def _deploy_and_wait(
    plan: DeployPlan,
    *,
    head: RayHead | None,
    progress: Progress,
    timeout_s: float,
    timings: Timings,
) -> None:
    progress("model", plan.model_note or ", ".join(app.model_id for app in plan.apps))
    started_at = time.time()
    deadline_s = time.monotonic() + timeout_s
    folder = head.folder if head is not None else None
    for again in (False, True):
        try:
            serve_app.deploy(plan.serve_config)
        except DeployFailed as exc:
            raise _with_log(exc, plan.name, folder, started_at) from exc
        try:
            for app in plan.apps:
                _wait_for_engines(
                    app, folder, started_at=started_at, deadline_s=deadline_s, progress=progress
                )
            break
        except ServeEnded:
            # `serve run` and `serve shutdown` return seconds before the controller is killed, and
            # who comes then is connected to the one that is dying.
            if again:
                raise
            progress("Ray", "Serve was being ended here: starting it again")
    timings.mark("engines_at")
    for app in plan.apps:
        if app.by_baton:
            timings.engines += serve_app.engines(app.name).engines
        took = first_handoff(app, plan.endpoint_of(app))
        progress("first handoff", took)
    timings.mark("handoff_at")


def _prove(plan: DeployPlan, prove: Prove | None) -> None:
    for app in plan.apps:
        if prove is not None and app.by_baton and app.transport.require != "any":
            prove(app, plan.endpoint_of(app), own_key(app.auth, os.environ))


def _wait_for_engines(
    app: AppPlan,
    folder: Path | None,
    *,
    started_at: float,
    deadline_s: float,
    progress: Progress,
) -> None:
    told: dict[str, str] = {}
    looked_s = -VIEW_S
    while True:
        all_ready = False
        if app.by_baton:
            leases = serve_app.engines(app.name).engines
            all_ready = bool(leases) and all(lease.state == "ready" for lease in leases)
            for role, wanted in app.replicas.items():
                stage: Stage = "prefill engine" if role == "prefill" else "decode engine"
                text = _role_text([lease for lease in leases if lease.role == role], wanted)
                if text and told.get(role) != text:
                    told[role] = text
                    progress(stage, text)
        if all_ready or time.monotonic() - looked_s >= VIEW_S:
            looked_s = time.monotonic()
            seen = serve_app.view(app.name)
            if seen.failure is not None:
                raise _engine_failure(app, seen.failure, folder, started_at)
            if seen.status == "RUNNING":
                return
        if time.monotonic() > deadline_s:
            raise DeployFailed(
                f"{app.name} is still {seen.status} after the time limit",
                place=str(folder / "session_latest" / "logs") if folder else None,
                cure="raise --timeout if the model is large",
            )
        time.sleep(POLL_S)


def _role_text(leases: list[EngineLease], wanted: int) -> str:
    ready = [lease for lease in leases if lease.state == "ready"]
    if len(ready) >= wanted > 0:
        backends = {"+".join(lease.evidence.observed_backends) or "?" for lease in ready}
        return f"{len(ready)} ready, NIXL backend {', '.join(sorted(backends))}"
    if leases:
        return f"starting, {len(ready)} of {wanted} ready"
    return ""


def _engine_failure(
    app: AppPlan, message: str, folder: Path | None, started_at: float
) -> EngineStartFailed:
    found = search_logs(folder, newer_than_s=started_at) if folder is not None else None
    line = found.line if found else root_cause(message.splitlines())
    if line is None:
        lines = [text for text in message.splitlines() if text.strip()]
        line = lines[-1].strip() if lines else "no reason was given"
    place: str | None = None
    if found is not None and found.file is not None:
        # Ray's folder goes away with the failed deployment; the log stays.
        place = str(state.keep_log(found.file, app.name))
    return EngineStartFailed(f"an engine of {app.name} did not start: {line}", place=place)


def _with_log(
    failure: DeployFailed, name: str, folder: Path | None, started_at: float
) -> DeployFailed:
    found = search_logs(folder, newer_than_s=started_at) if folder is not None else None
    if found is None or found.file is None:
        return failure
    kept = state.keep_log(found.file, name)
    return DeployFailed(f"{failure.fact}: {found.line}", place=str(kept), cure=failure.cure)


def _alive(deployment: state.Deployment | None) -> state.Deployment | None:
    """The deployment if it still runs; a stale record and its leftovers are cleared."""
    if deployment is None:
        return None
    if deployment.ray_pid is None:
        return deployment
    own = members(deployment.marker, deployment.folder)
    if any(process.pid == deployment.ray_pid for process in own):
        return deployment
    end_all(deployment.marker, folder=deployment.folder)
    state.forget(deployment.name)
    return None


def _leave_cluster(address: str, apps: tuple[str, ...]) -> None:
    check_ray_answers(address)
    with serve_app.connected(address, client_environment(None)):
        serve_app.delete(apps)


def down(name: str | None) -> state.Deployment:
    """Stop a deployment and everything that it started.

    Raises:
        NotRunning: when there is none of that name.
    """
    deployment = state.the_one(name)
    with state.locked(deployment.name):
        if deployment.ray_pid is None:
            try:
                _leave_cluster(deployment.ray_address, deployment.apps)
            except (DeployFailed, RayUnreachable) as exc:
                # The cluster is gone, or out of reach: its record would otherwise stay for ever.
                state.forget(deployment.name)
                raise DeployFailed(
                    f"{deployment.name} is forgotten, but nothing was stopped: {exc.fact}",
                    place=deployment.ray_address,
                    cure="if that cluster still runs, delete the application there (serve delete)",
                ) from exc
        else:
            end_all(deployment.marker, first_pid=deployment.ray_pid, folder=deployment.folder)
            if deployment.folder:
                shutil.rmtree(deployment.folder, ignore_errors=True)
            port = int(deployment.endpoint.split("/", 3)[2].rpartition(":")[2])
            wait_until_free("127.0.0.1", port, patience_s=5.0)
        state.forget(deployment.name)
    return deployment
