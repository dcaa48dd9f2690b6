"""Plays a trace against a fleet of engines: discrete events, the same for the same seed.

`job` is a request on its way; `engine` schedules as vLLM does (continuous batching, chunked
prefill, KV limits, preemption, async scheduling); `machine` lets engines that share processors slow
each other, in steps and beside them; `wires` share bandwidth among transfers; `fleet` routes, hands
over, fails and scales; `outcome` counts. Nothing here knows GPUs or models, only costs.

An engine's decode is moved from event to event in closed form, so a request costs a handful of
events however long its answer is (bench/plan_speed.py measures it).
"""

from __future__ import annotations

from baton.plan.simulator.fleet import Fleet
from baton.plan.simulator.job import Request
from baton.plan.simulator.outcome import Outcome
from baton.plan.simulator.owner import EngineLimits
from baton.plan.simulator.scaling import Scaling
from baton.plan.simulator.settings import Failure, FleetSettings, Pool

__all__ = [
    "EngineLimits", "Failure", "Fleet", "FleetSettings", "Outcome", "Pool", "Request", "Scaling",
]  # fmt: skip
