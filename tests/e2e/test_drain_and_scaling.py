"""Pools that grow, shrink and are replaced under load, on Ray, with simulated engines.

Told as one story on one Ray head (`story`); each test holds it to one claim. Everything but the
engines is what `baton up` runs: gateway, edge, directory, the replica's lease, signals and drain,
and the policies in Serve's controller.
"""

from __future__ import annotations

import sys
import time
from dataclasses import dataclass, field
from typing import Any

import pytest

from baton.deploy import serve_app
from baton.deploy.processes import free_port
from baton.engine.simulated.sequence import Sampling, Sequence
from baton.engine.simulated.text import Context, encode
from tests.e2e.deployment import belonging_to
from tests.e2e.simulated_app import APP, Asked, Load, Simulated, Watch, config, ray_head

pytestmark = [pytest.mark.ray, pytest.mark.timeout(420)]

SCALING = {
    "min_replicas": 1,
    "max_replicas": 3,
    "upscale_delay_s": 1,
    "downscale_delay_s": 3,
    "look_back_period_s": 3,
    "metrics_interval_s": 1,
}
# Half a second for a long prompt; 20 ms a token, eight sequences at once.
PREFILL = {"latency": {"prefill_tokens_per_s": 2000}}
DECODE = {"latency": {"tpot_s": 0.02}, "max_num_seqs": 8}


@dataclass
class Story:
    """What was seen, in order."""

    watches: dict[str, Watch] = field(default_factory=dict)
    asked: dict[str, list[Asked]] = field(default_factory=dict)
    before_update: set[str] = field(default_factory=set)
    after_update: set[str] = field(default_factory=set)
    after_delete: list[dict[str, Any]] = field(default_factory=list)
    seconds: dict[str, float] = field(default_factory=dict)
    left_running: list[str] = field(default_factory=list)


def fixed(revision: int) -> dict[str, Any]:
    """Two engines in each role. Any change of the arguments is a new version for Serve."""
    two = {"num_replicas": 2}
    return {
        "prefill": {"deployment_config": two, "simulated": PREFILL},
        "decode": {"deployment_config": two, "simulated": DECODE | {"max_num_seqs": 64 + revision}},
    }


def ready(engines: list[dict[str, Any]], **wanted: int) -> bool:
    """Whether each role has so many ready engines, and nothing else is in the directory."""
    counts = {
        role: sum(e["role"] == role and e["state"] == "ready" for e in engines) for role in wanted
    }
    return counts == wanted and len(engines) == sum(wanted.values())


@pytest.fixture(scope="module")
def story() -> Story:
    seen = Story()
    app = Simulated()
    ports = {"port_min": free_port(), "port_max": 65_000}
    baton = {
        "engines": {**ports, "drain_timeout_s": 30},
        "slo": {"ttft_s": 1.0},
        "logging": {"format": "json"},
    }
    scaled = {"autoscaling_config": SCALING}
    began_s = time.monotonic()
    with ray_head() as head:
        app.deploy(
            config(
                app.port,
                prefill={"deployment_config": scaled, "simulated": PREFILL},
                decode={"deployment_config": scaled, "simulated": DECODE},
                **baton,
            )
        )
        app.wait_until("one of each", lambda e: ready(e, prefill=1, decode=1), seconds=150)
        wait_for_edge(app)
        seen.seconds["up"] = time.monotonic() - began_s
        scale(app, seen, "prefill", callers=8, prompt_bytes=1000, max_tokens=2)
        scale(app, seen, "decode", callers=20, prompt_bytes=20, max_tokens=100)
        update(app, seen, baton)
        delete(app, seen)
        folder = str(head.folder)
    seen.left_running = belonging_to({folder})
    seen.seconds["all"] = time.monotonic() - began_s
    for part, seconds in seen.seconds.items():
        sys.stderr.write(f"{part}: {seconds:.1f} s\n")
    for part, asked in seen.asked.items():
        sys.stderr.write(f"{part}: {len(asked)} requests\n")
    return seen


def wait_for_edge(app: Simulated) -> None:
    deadline_s = time.monotonic() + 60
    while app.ask("hello", max_tokens=1).status != 200:
        assert time.monotonic() < deadline_s, "the endpoint does not answer"
        time.sleep(0.2)


def scale(
    app: Simulated, seen: Story, role: str, *, callers: int, prompt_bytes: int, max_tokens: int
) -> None:
    """1 -> 3 -> 1 of one pool, with load that only this pool feels."""

    def prompt(number: int) -> str:
        return f"{role} {number} ".ljust(prompt_bytes, "x")

    began_s = time.monotonic()
    other = "decode" if role == "prefill" else "prefill"
    with Watch(app) as watch:
        load = Load(app, callers=callers, prompt=prompt, max_tokens=max_tokens, stream=True)
        with load:
            app.wait_until(f"three {role} engines", lambda e: ready(e, **{role: 3, other: 1}))
            seen.seconds[f"{role} 1-3"] = time.monotonic() - began_s
            # The new engines answer as well, and the first goes while callers still ask.
            time.sleep(2)
        began_s = time.monotonic()
        with Load(app, callers=1, prompt=prompt, max_tokens=2) as trickle:
            app.wait_until(f"one {role} engine", lambda e: ready(e, **{role: 1, other: 1}))
        seen.seconds[f"{role} 3-1"] = time.monotonic() - began_s
    seen.watches[role] = watch
    seen.asked[role] = load.asked + trickle.asked


def update(app: Simulated, seen: Story, baton: dict[str, Any]) -> None:
    """From one engine to two of each, then every replica replaced, with streams all the time."""
    began_s = time.monotonic()
    load = Load(
        app,
        callers=8,
        prompt=lambda number: f"update {number} ".ljust(200, "u"),
        max_tokens=100,
        stream=True,
    )
    with load, Watch(app) as watch:
        app.deploy(config(app.port, **fixed(1), **baton))
        found = app.wait_until("two of each", lambda e: settled(e, prefill=2, decode=2))
        seen.before_update = {e["replica_id"] for e in found}
        app.deploy(config(app.port, **fixed(2), **baton))
        found = app.wait_until(
            "every engine replaced",
            lambda e: (
                settled(e, prefill=2, decode=2)
                and not seen.before_update & {one["replica_id"] for one in e}
            ),
            seconds=120,
        )
        seen.after_update = {e["replica_id"] for e in found}
        time.sleep(1)
    seen.seconds["updates"] = time.monotonic() - began_s
    seen.watches["update"] = watch
    seen.asked["update"] = load.asked


def settled(engines: list[dict[str, Any]], **wanted: int) -> bool:
    """Ready engines as wanted, and Serve has nothing more to do."""
    return ready(engines, **wanted) and serve_app.view(APP).status == "RUNNING"


def delete(app: Simulated, seen: Story) -> None:
    """The application is deleted while streams run."""
    import concurrent.futures

    began_s = time.monotonic()
    with concurrent.futures.ThreadPoolExecutor(6) as pool:
        streams = [
            pool.submit(app.ask, f"delete {number} " * 20, max_tokens=150, stream=True)
            for number in range(6)
        ]
        app.wait_until(
            "six streams run",
            lambda e: sum(one["load"]["running"] for one in e if one["role"] == "decode") >= 6,
        )
        serve_app.delete((APP,))
        seen.asked["delete"] = [stream.result() for stream in streams]
    seen.after_delete = app.engines()
    seen.seconds["delete"] = time.monotonic() - began_s


def right_text(prompt: str, max_tokens: int) -> str:
    """What an engine writes that has read every token of the prompt."""
    context = Context().read(encode(prompt))
    sequence = Sequence(context, Sampling(max_tokens=max_tokens))
    text = ""
    while True:
        step = sequence.step()
        text += step.text
        if step.finish_reason is not None:
            return text


def wrong(asked: list[Asked], *lengths: int) -> list[Asked]:
    """Requests without the right, whole text."""
    return [
        one
        for one in asked
        if one.status != 200
        or one.error
        or one.finish_reason != "length"
        or one.text not in {right_text(one.prompt, length) for length in lengths}
    ]


@pytest.mark.parametrize("role", ["prefill", "decode"])
def test_a_pool_grows_under_its_own_load_and_shrinks_after_it(story: Story, role: str) -> None:
    """One engine, three, and one again, between the user's bounds."""
    assert story.watches[role].most_ready[role] == 3
    assert story.watches[role].least_ready[role] == 1


@pytest.mark.parametrize(("role", "other"), [("prefill", "decode"), ("decode", "prefill")])
def test_a_pool_does_not_move_with_the_others_load(story: Story, role: str, other: str) -> None:
    """Decode does not grow because prefill is slow, nor the other way round."""
    assert story.watches[role].most_ready[other] == 1
    assert story.watches[role].least_ready[other] == 1


@pytest.mark.parametrize(("role", "tokens"), [("prefill", 2), ("decode", 100)])
def test_scaling_costs_no_request(story: Story, role: str, tokens: int) -> None:
    """Every request that was sent meanwhile has its whole, right answer."""
    assert len(story.asked[role]) > 20
    assert wrong(story.asked[role], tokens, 2) == []


@pytest.mark.parametrize("role", ["prefill", "decode"])
def test_an_engine_that_goes_is_seen_draining(story: Story, role: str) -> None:
    """Two engines leave each pool, and the directory shows them until they are gone."""
    assert len(story.watches[role].draining) >= 2


def test_a_rolling_update_replaces_every_engine_and_costs_no_request(story: Story) -> None:
    """Streams of two seconds run all the time; gateways are replaced as well."""
    assert story.before_update
    assert not story.before_update & story.after_update
    assert len(story.asked["update"]) > 40
    assert wrong(story.asked["update"], 100) == []


def test_a_rolling_update_never_leaves_a_role_without_a_ready_engine(story: Story) -> None:
    """With two replicas Serve replaces one after the other."""
    assert story.watches["update"].least_ready["prefill"] >= 1
    assert story.watches["update"].least_ready["decode"] >= 1


def test_streams_outlive_the_deletion_of_their_application(story: Story) -> None:
    """Serve stops everything at once; open streams end as they should, and then all is gone."""
    assert wrong(story.asked["delete"], 150) == []
    assert story.after_delete == []


def test_nothing_is_left_running(story: Story) -> None:
    """Neither engines nor Ray."""
    assert story.left_running == []
