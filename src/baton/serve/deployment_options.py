"""What Baton adds to a role's `deployment_config`: time to drain, and a policy to scale by.

Needs no Ray and no vLLM, so that the simulated application takes the same way.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from baton.serve.scaling import DECODE_POLICY, PREFILL_POLICY

if TYPE_CHECKING:
    from collections.abc import Mapping

    from baton.spec.schema import BatonBlock, Role

# Serve waits this much longer than the drain before it kills a replica: for the last words with
# the directory, the listener's end and the engine's own.
DRAIN_MARGIN_S = 15.0
HEALTH_CHECK_PERIOD_S = 2.0


def deployment_options(
    config: Mapping[str, Any] | None, role: Role, settings: BatonBlock
) -> dict[str, Any]:
    """A role's `deployment_config` with what Baton needs; a copy.

    - `graceful_shutdown_timeout_s` above the drain: Serve kills what has not ended by then.
    - `health_check_period_s: 2`: Serve replaces a replica after three failed checks; with Ray Serve
      LLM's ten seconds a dead engine would be out for half a minute before it is started again.
    - `autoscaling_config.policy`: the role's own, unless the user brings one. Ray's default policy
      counts ongoing requests, of which Serve sees none here.
    """
    options = dict(config or {})
    drain_s = settings.engines.drain_timeout_s + DRAIN_MARGIN_S
    options["graceful_shutdown_timeout_s"] = max(
        drain_s, float(options.get("graceful_shutdown_timeout_s") or 0.0)
    )
    # Serve sleeps so long once before it looks for requests, of which there are none.
    options.setdefault("graceful_shutdown_wait_loop_s", 0.1)
    options.setdefault("health_check_period_s", HEALTH_CHECK_PERIOD_S)
    scaling = options.get("autoscaling_config")
    if scaling is not None or options.get("num_replicas") == "auto":
        scaling = dict(scaling or {})
        scaling.setdefault("policy", policy_of(role, settings))
        options["autoscaling_config"] = scaling
    return options


def policy_of(role: Role, settings: BatonBlock) -> dict[str, Any]:
    """The role's policy as `autoscaling_config.policy` takes it, with what `slo` promises."""
    if role == "prefill":
        promise = {"ttft_s": settings.slo.ttft_s}
        name = PREFILL_POLICY
    else:
        promise = {"tpot_s": settings.slo.tpot_s}
        name = DECODE_POLICY
    kept = {key: value for key, value in promise.items() if value is not None}
    return {"policy_function": name, "policy_kwargs": kept}
