"""An engine without a model: vLLM's protocol, P/D handoff, latency and faults, in one process.

It stands in for a vLLM 0.29 engine wherever the model does not matter: in tests of the gateway, in
drills, and where routers are measured against each other. `text` stands for the model, `kv` for
its memory, `compute` for its accelerator, `handoff` for NIXL, `core` for the scheduler;
`requests`, `prompts`, `answers` and `app` are the HTTP face; `faults` is what can go wrong.

tests/contract runs the same cases on this engine and on real ones, so that it cannot drift.
"""

from __future__ import annotations

from baton.engine.simulated.server import SimulatedEngine
from baton.engine.simulated.settings import EngineSettings, LatencyProfile

__all__ = ["EngineSettings", "LatencyProfile", "SimulatedEngine"]
