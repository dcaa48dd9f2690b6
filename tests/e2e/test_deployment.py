"""`baton up`, `status`, `down` with real engines under Ray: one deployment, told as a story.

Engines take a minute to start, so the story is run once (`story`) and keeps what it saw; each test
holds it to one claim.
"""

from __future__ import annotations

import concurrent.futures
import os
import signal
import socket
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

import httpx
import psutil
import pytest

from baton.demo.tiny_model import make_tiny_model
from tests.e2e.deployment import (
    PROMPT,
    Baton,
    app,
    belonging_to,
    deployment_folders,
    wait_for,
)

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path

pytestmark = [pytest.mark.ray, pytest.mark.real_engine, pytest.mark.timeout(900)]

NEVER = {"x-baton-disaggregate": "never"}


@dataclass
class Story:
    """What was seen, in order."""

    baton: Baton
    up: Any = None
    status: list[dict[str, Any]] = field(default_factory=list)
    answers: list[httpx.Response] = field(default_factory=list)
    alone: httpx.Response | None = None
    timelines: list[dict[str, Any]] = field(default_factory=list)
    without_secret: int = 0
    no_such_path: httpx.Response | None = None
    second_on_port: Any = None
    after_kill: list[httpx.Response] = field(default_factory=list)
    too_large: Any = None
    update: Any = None
    updated_status: list[dict[str, Any]] = field(default_factory=list)
    updated_answer: httpx.Response | None = None
    doubled_prefix: int = 0
    plain_prefix: int = 0
    down: Any = None
    left_running: list[str] = field(default_factory=list)
    port_is_free: bool = False


@pytest.fixture(scope="module")
def model(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return make_tiny_model(tmp_path_factory.mktemp("model") / "tiny")


@pytest.fixture(scope="module")
def story(tmp_path_factory: pytest.TempPathFactory, model: Path) -> Iterator[Story]:
    baton = Baton(tmp_path_factory.mktemp("baton"))
    seen = Story(baton)
    base = f"http://127.0.0.1:{baton.port}"
    before, mine = deployment_folders(), set[str]()
    try:
        file = baton.write(app(model, replicas=2, port=baton.port))
        seen.up = baton.run("up", str(file))
        mine = deployment_folders() - before
        assert seen.up.returncode == 0, seen.up.stderr
        seen.status = baton.status()
        _ask(seen, base)
        _break(seen, base, model)
        _update(seen, base, model)
    finally:
        seen.down = baton.run("down")
        seen.left_running = belonging_to(mine)
        with socket.socket() as probe:
            probe.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
            seen.port_is_free = probe.connect_ex(("127.0.0.1", baton.port)) != 0
    return seen


def _ask(seen: Story, base: str) -> None:
    with concurrent.futures.ThreadPoolExecutor(8) as pool:
        asked = [pool.submit(seen.baton.complete, base, cache_salt=f"pd-{n}") for n in range(8)]
        seen.answers = [one.result() for one in asked]
    seen.alone = seen.baton.complete(base, cache_salt="alone", headers=NEVER)
    seen.timelines = httpx.get(f"{base}/baton/requests", timeout=30).json()["requests"]
    engine = seen.status[0]["engines"][0]
    seen.without_secret = httpx.get(f"{engine['url']}/v1/models", timeout=30).status_code
    seen.no_such_path = httpx.get(f"{base}/v1/nothing", timeout=30)


def _break(seen: Story, base: str, model: Path) -> None:
    other = seen.baton.write(app(model, name="other", port=seen.baton.port), "other.yaml")
    seen.second_on_port = seen.baton.run("up", str(other))
    victim = next(one for one in seen.status[0]["engines"] if one["role"] == "prefill")
    for child in psutil.Process(victim["pid"]).children():
        if "EngineCore" in " ".join(child.cmdline()):
            child.send_signal(signal.SIGKILL)
    seen.after_kill = [seen.baton.complete(base, cache_salt=f"kill-{n}") for n in range(6)]


def _update(seen: Story, base: str, model: Path) -> None:
    config = app(model, port=seen.baton.port)
    for role in ("prefill_config", "decode_config"):
        config["applications"][0]["args"][role]["placement_group_config"] = {
            "bundles": [{"CPU": 64}]
        }
    large = seen.baton.write(config, "large.yaml")
    seen.too_large = seen.baton.run("up", str(large))
    file = seen.baton.write(app(model, tp=2, route_prefix="/team/v1", port=seen.baton.port))
    seen.update = seen.baton.run("up", str(file))
    seen.updated_status = seen.baton.status()
    if seen.update.returncode == 0:
        seen.updated_answer = seen.baton.complete(f"{base}/team", cache_salt="tp2")
        seen.plain_prefix = httpx.get(f"{base}/team/v1/models", timeout=30).status_code
        seen.doubled_prefix = httpx.get(f"{base}/team/v1/v1/models", timeout=30).status_code


def test_up_ends_only_after_a_handoff_has_succeeded(story: Story) -> None:
    """Every stage is shown with its time, and the last one is a handoff over P/D."""
    for stage in ("environment", "Ray", "model", "prefill engine", "decode engine"):
        assert stage in story.up.stderr
    assert "route pd" in story.up.stderr.splitlines()[-6] or "route pd" in story.up.stderr


def test_each_replica_has_its_own_engine_id_and_address(story: Story) -> None:
    """Two prefill and two decode replicas share a node and nothing else."""
    engines = story.status[0]["engines"]
    assert sorted(one["role"] for one in engines) == ["decode", "decode", "prefill", "prefill"]
    assert len({one["engine_id"] for one in engines}) == 4
    assert len({one["url"] for one in engines}) == 4
    # Ray ends the id with the side channel's address.
    assert len({one["engine_id"].rsplit("-", 1)[1] for one in engines}) == 4


def test_status_shows_the_backend_that_the_worker_really_has(story: Story) -> None:
    """Requested and observed are two things; here they agree."""
    for one in story.status[0]["engines"]:
        assert one["evidence"]["observed_backends"] == ["UCX"]
        assert one["state"] == "ready"


def test_every_request_was_disaggregated_and_every_engine_took_part(story: Story) -> None:
    """Eight requests at once reach all four engines."""
    assert [answer.headers["x-baton-route"] for answer in story.answers] == ["pd"] * 8
    served = [one for one in story.timelines if one["route"] == "pd"]
    used = {one["prefill_engine"] for one in served} | {one["decode_engine"] for one in served}
    assert used == {one["replica_id"] for one in story.status[0]["engines"]}


def test_the_greedy_text_equals_the_text_without_pd(story: Story) -> None:
    """A salt for each request keeps a prefix cache from answering for the handoff."""
    assert story.alone is not None
    assert story.alone.headers["x-baton-route"] == "decode_only"
    expected = story.alone.json()["choices"][0]["text"]
    assert expected
    texts = [answer.json()["choices"][0]["text"] for answer in story.answers]
    assert texts == [expected] * 8


def test_an_engines_port_answers_only_to_gateways(story: Story) -> None:
    """Not even the list of models is told without the secret."""
    assert story.without_secret == 401


def test_an_unknown_path_is_an_openai_shaped_404(story: Story) -> None:
    """Through the edge, with the gateway's own words."""
    assert story.no_such_path is not None
    assert story.no_such_path.status_code == 404
    assert story.no_such_path.json()["error"]["code"] == "unknown_url"


def test_a_taken_port_is_refused_by_name_and_nothing_is_started(story: Story) -> None:
    """The message names the port and who has it."""
    assert story.second_on_port.returncode == 3
    assert f"port {story.baton.port} belongs to" in story.second_on_port.stderr
    assert "pid" in story.second_on_port.stderr


def test_a_killed_prefill_engine_costs_no_request(story: Story) -> None:
    """SIGKILL of an EngineCore: the other prefill engine, or decode, does its work."""
    assert story.alone is not None
    expected = story.alone.json()["choices"][0]["text"]
    assert [answer.status_code for answer in story.after_kill] == [200] * 6
    assert [answer.json()["choices"][0]["text"] for answer in story.after_kill] == [expected] * 6


def test_an_update_that_cannot_be_placed_is_refused_before_it_starts(story: Story) -> None:
    """Ray would wait for ever for CPUs that it does not have."""
    assert story.too_large.returncode != 0
    assert "logical CPUs" in story.too_large.stderr


def test_a_second_up_updates_in_place_to_tensor_parallel_engines(story: Story) -> None:
    """The same deployment, one endpoint, now with two workers in each role."""
    assert story.update.returncode == 0, story.update.stderr
    assert "updating tiny in place" in story.update.stderr
    sizes = [one["tensor_parallel_size"] for one in story.updated_status[0]["engines"]]
    assert set(sizes) == {2}
    assert len(story.updated_status) == 1


def test_tensor_parallel_engines_hand_over_and_give_the_same_text(story: Story) -> None:
    """Each worker pulls its own KV heads."""
    assert story.alone is not None
    assert story.updated_answer is not None
    assert story.updated_answer.headers["x-baton-route"] == "pd"
    assert (
        story.updated_answer.json()["choices"][0]["text"]
        == (story.alone.json()["choices"][0]["text"])
    )


def test_a_route_prefix_that_ends_in_v1_is_not_doubled(story: Story) -> None:
    """`/team/v1` serves `/team/v1/models`, and `/team/v1/v1/models` is nothing."""
    assert (story.plain_prefix, story.doubled_prefix) == (200, 404)


def test_down_leaves_nothing_running(story: Story) -> None:
    """No process, no listener, no record."""
    assert story.down.returncode == 0
    assert story.left_running == []
    assert story.port_is_free
    assert story.baton.run("status").returncode == 1


def test_ctrl_c_during_up_leaves_nothing_running(tmp_path: Path, model: Path) -> None:
    """Interrupted while engines start, which is where a person loses patience."""
    baton = Baton(tmp_path)
    file = baton.write(app(model, port=baton.port))
    before = deployment_folders()
    process = baton.start("up", str(file))
    try:
        mine = wait_for("a folder", lambda: deployment_folders() - before, seconds=120)
        wait_for("Ray to run", lambda: len(belonging_to(mine)) > 3, seconds=120)
    finally:
        os.kill(process.pid, signal.SIGINT)
    _, err = process.communicate(timeout=120)
    assert process.returncode == 130, err
    assert belonging_to(mine) == []
    assert list((tmp_path / "state").glob("*.json")) == []


def test_an_engine_that_dies_while_it_starts_is_explained(tmp_path: Path, model: Path) -> None:
    """One line that says why, the log that has the rest, and nothing left behind."""
    broken = tmp_path / "broken"
    make_tiny_model(broken)
    (broken / "model.safetensors").write_bytes(b"not a checkpoint")
    baton = Baton(tmp_path)
    file = baton.write(app(broken, port=baton.port))
    before = deployment_folders()
    failed = baton.run("up", str(file))
    assert failed.returncode not in (0, 130), failed.stderr
    line = next(line for line in failed.stderr.splitlines() if line.startswith("error:"))
    assert "did not start" in line
    assert "afetensor" in line or "header" in line.lower(), line
    assert ".log)" in line
    assert deployment_folders() <= before


def test_a_prompt_is_long_enough_to_fill_blocks() -> None:
    """Otherwise no KV would cross, and the story would prove nothing."""
    assert len(PROMPT.encode()) > 2 * 128
