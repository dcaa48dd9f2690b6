"""Serve keeps each phase on its own nodes: the rendered bundles, on a head and two more Ray nodes.

The bundles are those that Ray Serve LLM itself makes of the placed config (`LLMServer`, TP 2), so
that a resource which it dropped would show; the engines in them are simulated. The other phase's
node has room for everything, so that without the resource Serve would use it.
"""

from __future__ import annotations

import contextlib
import os
import subprocess
import sys
import time
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

import pytest

from baton.deploy.eks.placement import phase_resource, placed_group
from baton.deploy.processes import MARKER, free_port
from tests.e2e.simulated_app import APP, Asked, Simulated, config, ray_head

if TYPE_CHECKING:
    from collections.abc import Iterator

    from baton.deploy.ray_head import RayHead
    from baton.spec.schema import Role

pytestmark = [pytest.mark.ray, pytest.mark.timeout(420)]

ROLES: tuple[Role, ...] = ("prefill", "decode")
DRAIN_S = 1.0


@dataclass
class Story:
    """What was seen."""

    node_of: dict[str, str] = field(default_factory=dict)
    """Node by the phase whose resource it offers."""
    bundles_on: dict[str, set[str]] = field(default_factory=dict)
    """Nodes of a phase's bundles."""
    bundles: dict[str, int] = field(default_factory=dict)
    actors_on: dict[str, set[str]] = field(default_factory=dict)
    asked: Asked | None = None
    after_drain: list[dict[str, Any]] = field(default_factory=list)


def bundles_of(role: Role) -> list[dict[str, float]]:
    """What Ray Serve LLM asks Ray for, given the placed config of one role."""
    from ray.serve.llm import LLMConfig, LLMServer

    placed = placed_group({"bundle_per_worker": {"CPU": 1}}, role)
    llm = LLMConfig.model_validate(
        {
            "model_loading_config": {"model_id": "m", "model_source": "m"},
            "engine_kwargs": {"tensor_parallel_size": 2},
            "placement_group_config": placed,
        }
    )
    options = LLMServer.get_deployment_options(llm)
    assert options["placement_group_strategy"] == "STRICT_PACK"
    found: list[dict[str, float]] = options["placement_group_bundles"]
    return found


@contextlib.contextmanager
def worker_node(head: RayHead, role: Role) -> Iterator[None]:
    """A Ray node as the phase's worker group has them; it ends with the block."""
    command = [
        sys.executable, "-m", "ray.scripts.scripts", "start", "--block",
        f"--address={head.address}", "--num-cpus=8", "--disable-usage-stats",
        f'--resources={{"{phase_resource(role)}": 1}}',
        "--object-store-memory=100000000",
        # In a pod each node has this port for itself; here they share a machine.
        f"--dashboard-agent-listen-port={free_port()}",
    ]  # fmt: skip
    node = subprocess.Popen(
        command,
        env={**os.environ, **head.environment, MARKER: head.marker},
        stdin=subprocess.DEVNULL,
        stdout=subprocess.DEVNULL,
        stderr=subprocess.DEVNULL,
        start_new_session=True,
    )
    try:
        yield
    finally:
        node.terminate()
        with contextlib.suppress(subprocess.TimeoutExpired):
            node.wait(timeout=5)


def wait_for_nodes(count: int) -> None:
    import ray

    deadline_s = time.monotonic() + 120
    while time.monotonic() < deadline_s:
        if sum(node["Alive"] for node in ray.nodes()) == count:
            return
        time.sleep(0.2)
    raise AssertionError(f"{count} Ray nodes did not come up: {ray.nodes()}")


def look(story: Story) -> None:
    """Where everything is."""
    import ray
    from ray.serve.context import _get_global_client

    for role in ROLES:
        name = phase_resource(role)
        (node,) = [n["NodeID"] for n in ray.nodes() if n["Alive"] and name in n["Resources"]]
        story.node_of[role] = node
        groups = [
            group
            for group in ray.util.placement_group_table().values()
            if group["state"] == "CREATED" and name in group["bundles"][0]
        ]
        story.bundles[role] = sum(len(group["bundles"]) for group in groups)
        story.bundles_on[role] = {n for g in groups for n in g["bundles_to_node_id"].values()}
        details = _get_global_client().get_serve_details()
        deployment = details["applications"][APP]["deployments"][f"{role.capitalize()}:simulated"]
        story.actors_on[role] = {replica["node_id"] for replica in deployment["replicas"]}


def drain(head: RayHead, node: str) -> None:
    """The worker's preStop hook; here by the node's id, for all nodes have one address."""
    command = [
        sys.executable, "-m", "ray.scripts.scripts", "drain-node", f"--address={head.address}",
        f"--node-id={node}", "--reason=DRAIN_NODE_REASON_PREEMPTION",
        "--reason-message=the pod is being stopped", "--deadline-remaining-seconds=18",
    ]  # fmt: skip
    environment = {**os.environ, **head.environment}
    done = subprocess.run(command, env=environment, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr


@pytest.fixture(scope="module")
def story() -> Iterator[Story]:
    seen = Story()
    app = Simulated()
    with ray_head() as head, contextlib.ExitStack() as nodes:
        for count, role in enumerate(ROLES, 2):
            nodes.enter_context(worker_node(head, role))
            wait_for_nodes(count)
        roles = {
            role: {
                "deployment_config": {
                    "num_replicas": 2,
                    "placement_group_bundles": bundles_of(role),
                    "placement_group_strategy": "STRICT_PACK",
                    "ray_actor_options": {"num_cpus": 1},
                },
                "simulated": {},
            }
            for role in ROLES
        }
        app.deploy(
            config(
                app.port,
                prefill=roles["prefill"],
                decode=roles["decode"],
                engines={"drain_timeout_s": DRAIN_S},
            )
            # One host: only one proxy can have the port.
            | {"proxy_location": "HeadOnly"}
        )
        app.wait_until(
            "two engines of each phase",
            lambda engines: sum(e["state"] == "ready" for e in engines) == 4,
        )
        # The edge has its routes, and the gateway every lease, a moment after the directory.
        until = time.monotonic() + 30
        while time.monotonic() < until:
            seen.asked = app.ask("hello " * 40, max_tokens=4)
            if (seen.asked.status, seen.asked.route) == (200, "pd"):
                break
            time.sleep(0.5)
        look(seen)
        drain(head, seen.node_of["prefill"])
        seen.after_drain = app.wait_until(
            "prefill leaves its node",
            lambda engines: not any(e["role"] == "prefill" for e in engines),
        )
        yield seen


def test_each_phase_is_on_its_own_node_only(story: Story) -> None:
    """Every bundle of both replicas, the first with the replica's own actor and the others."""
    assert story.node_of["prefill"] != story.node_of["decode"]
    for role in ROLES:
        assert story.bundles[role] == 4  # two replicas, TP 2
        assert story.bundles_on[role] == {story.node_of[role]}
        assert story.actors_on[role] == {story.node_of[role]}


def test_the_phases_work_together_across_nodes(story: Story) -> None:
    """Prefill on one node, decode on the other."""
    assert story.asked is not None
    assert (story.asked.status, story.asked.route) == (200, "pd")


def test_a_node_that_is_drained_lets_its_engines_leave_and_the_others_stay(story: Story) -> None:
    """What the worker's preStop hook asks for, before the pod's end."""
    assert [e["role"] for e in story.after_drain] == ["decode", "decode"]
