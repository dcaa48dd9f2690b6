"""What draining and autoscaling ask of a role's `deployment_config`."""

from __future__ import annotations

from typing import TYPE_CHECKING

from baton.spec.faults import shown
from baton.spec.rules.registry import Finding, rule
from baton.spec.view import mapping

if TYPE_CHECKING:
    from collections.abc import Iterator

    from baton.spec.view import AppView, RoleView

_RAYS_POLICY = "ray.serve.autoscaling_policy"
# `baton.serve.deployment_options` adds this to the drain.
_MARGIN_S = 15.0
_PROMISES = {
    "prefill": ("ttft_s", "its queue is kept below a share of 2 s"),
    "decode": ("tpot_s", "it grows with sequences and KV only, not with the gap between tokens"),
}


def _scaled(app: AppView) -> Iterator[tuple[RoleView, dict[object, object]]]:
    """Roles that Baton's own replicas scale, each with its `autoscaling_config`."""
    if app.is_rays:
        return
    for role in app.roles:
        scaling = role.deployment.get("autoscaling_config")
        if scaling is not None or role.deployment.get("num_replicas") == "auto":
            yield role, mapping(scaling)


@rule("BTN-174", "error", "a pool that can shrink to nothing")
def scale_to_zero(app: AppView) -> Iterator[Finding]:
    """An engine pool of zero replicas never wakes up.

    Ray Serve starts the first replica when requests wait for it in a handle. Baton's gateways send
    requests to engines over HTTP and need one to send them to, so nothing ever waits there.

    Source: ray 2.60 `serve/autoscaling_policy.py`, `_get_cold_start_scale_up_replicas`
    (`total_num_requests > 0`); `baton.gateway.directory`.
    """
    for role, scaling in _scaled(app):
        least = scaling.get("min_replicas")
        if least == 0 and not isinstance(least, bool):
            yield Finding(
                role.at("deployment_config", "autoscaling_config", "min_replicas"),
                f"with no {role.role} engine left nothing would start one again",
                found="0",
                allowed="1 or more",
                cure="set min_replicas: 1",
                at_value=True,
            )


@rule("BTN-175", "warning", "a scaling measure that Baton's engines do not give")
def ongoing_requests(app: AppView) -> Iterator[Finding]:
    """Ray Serve's default policy counts ongoing requests; engines are reached over HTTP, past it.

    Baton scales prefill by queued prompt tokens against `slo.ttft_s`, and decode by sequences, KV
    and the gap between tokens against `slo.tpot_s`. `min_replicas`, `max_replicas`, the delays,
    factors, `look_back_period_s` and `aggregation_function` mean what Ray's docs say. A policy of
    your own is used as it is; what engines report to it is listed in `baton.engine.signals`.

    Source: ray 2.60 `serve/autoscaling_policy.py`, `_core_replica_queue_length_policy`;
    `serve/_private/replica.py`, `record_autoscaling_stats`; `baton.serve.scaling`.
    """
    for role, scaling in _scaled(app):
        policy = mapping(scaling.get("policy"))
        name = str(policy.get("policy_function", ""))
        place = ("deployment_config", "autoscaling_config")
        if scaling.get("policy") is not None and (not name or name.startswith(_RAYS_POLICY)):
            yield Finding(
                role.at(*place, "policy"),
                "Ray's own policy sees Baton's engines idle and keeps them at min_replicas",
                found=name or shown(scaling["policy"]),
                cure="remove policy; Baton brings one for each role",
            )
        elif not name and scaling.get("target_ongoing_requests") is not None:
            goal, which = _PROMISES[role.role][0], role.role
            yield Finding(
                role.at(*place, "target_ongoing_requests"),
                f"`target_ongoing_requests` has no effect: {which} is scaled by its own signals",
                found=shown(scaling["target_ongoing_requests"]),
                cure=f"set baton: {{slo: {{{goal}: …}}}}",
            )


@rule("BTN-176", "note", "less time to stop than to drain")
def time_to_stop(app: AppView) -> Iterator[Finding]:
    """Serve kills a replica after `graceful_shutdown_timeout_s`, whatever it still serves.

    An engine that is stopped waits up to `engines.drain_timeout_s` for open streams and for KV that
    decode has yet to pull. Baton raises Serve's limit to that and 15 s.

    Source: ray 2.60 `serve/_private/deployment_state.py`, `DeploymentReplica.stop`;
    `baton.serve.deployment_options`.
    """
    if app.is_rays:
        return
    wanted_s = app.baton.engines.drain_timeout_s + _MARGIN_S
    for role in app.roles:
        limit_s = role.deployment.get("graceful_shutdown_timeout_s")
        if isinstance(limit_s, (int, float)) and limit_s < wanted_s:
            yield Finding(
                role.at("deployment_config", "graceful_shutdown_timeout_s"),
                f"{limit_s:g} s is raised to {wanted_s:g}: an engine may drain for"
                f" {app.baton.engines.drain_timeout_s:g} s",
                found=shown(limit_s),
                allowed=f"{wanted_s:g} or more",
                cure="set baton: {engines: {drain_timeout_s: …}} to what a stop may take",
                at_value=True,
            )


@rule("BTN-177", "note", "autoscaling without a promise to keep")
def promises(app: AppView) -> Iterator[Finding]:
    """The policies scale towards what `slo` promises; without it they have less to go by.

    Source: `baton.serve.scaling`.
    """
    for role, scaling in _scaled(app):
        goal, instead = _PROMISES[role.role]
        if scaling.get("policy") is None and getattr(app.baton.slo, goal) is None:
            key = "autoscaling_config" if scaling else "num_replicas"
            yield Finding(
                role.at("deployment_config", key),
                f"{role.role} scales and no `slo.{goal}` is promised: {instead}",
                found="nothing",
                cure=f"set baton: {{slo: {{{goal}: …}}}}",
            )
