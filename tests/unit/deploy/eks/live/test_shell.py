"""Real subprocesses: scripted eksctl, helm, kubectl and aws on PATH that record and answer."""

from __future__ import annotations

import json
import os
import sys
from typing import TYPE_CHECKING, Any

import pytest

from baton.deploy.eks.live import inside
from baton.deploy.eks.live.apply import apply
from baton.deploy.eks.live.commands import Command, Done, Shell
from baton.deploy.eks.live.observe import Eyes
from baton.deploy.eks.live.parts import parts_of
from baton.deploy.eks.live.states import State
from baton.deploy.eks.live.walk import Pace
from baton.errors import DeployFailed
from tests.unit.deploy.eks.live.cloud import KEYS, Cloud, running
from tests.unit.deploy.eks.rendered import layout

if TYPE_CHECKING:
    from pathlib import Path

FAKE = """\
#!{python} -SE
import json, os, sys, time
here = os.path.dirname(os.path.abspath(__file__))
line = " ".join([os.path.basename(sys.argv[0]), *sys.argv[1:]])
fed = sys.stdin.read() if "/dev/stdin" in line else ""
with open(here + "/calls", "a") as calls:
    calls.write(json.dumps([line, fed, os.environ.get("KUBECONFIG", "")]) + "\\n")
for start, code, out, err, wait in json.load(open(here + "/answers.json")):
    if line.startswith(start):
        time.sleep(wait)
        sys.stdout.write(out)
        sys.stderr.write(err)
        sys.exit(code)
sys.stderr.write("nobody told me what to say to " + line)
sys.exit(99)
"""


class Tools:
    """A folder on PATH with the four tools."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self.answers: list[tuple[str, int, str, str, float]] = []
        for name in ("aws", "eksctl", "helm", "kubectl"):
            path = folder / name
            path.write_text(FAKE.format(python=sys.executable))
            path.chmod(0o755)

    def say(
        self, start: str, out: Any = "", *, code: int = 0, err: str = "", wait: float = 0
    ) -> None:
        text = out if isinstance(out, str) else json.dumps(out)
        self.answers.insert(0, (start, code, text, err, wait))
        (self.folder / "answers.json").write_text(json.dumps(self.answers))

    @property
    def calls(self) -> list[list[str]]:
        return [json.loads(x) for x in (self.folder / "calls").read_text().splitlines()]


@pytest.fixture
def tools(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Tools:
    folder = tmp_path / "bin"
    folder.mkdir()
    monkeypatch.setenv("PATH", f"{folder}:{os.environ['PATH']}")
    monkeypatch.setenv("KUBECONFIG", "/home/me/.kube/production")
    found = Tools(folder)
    found.say("aws eks update-kubeconfig")
    return found


def there() -> Cloud:
    """An account with a cluster; Kubernetes is asked through the scripted tools."""
    cloud = Cloud()
    cloud.begin("cluster")
    cloud.things["cluster"]["state"] = "ready"
    return cloud


def eyes_of(cloud: Cloud, folder: Path) -> Eyes:
    return Eyes(layout(), cloud, Shell(folder, every_s=0.01), now=lambda: cloud.clock)


def test_tools_see_the_clusters_own_kubeconfig_and_never_the_persons(
    tools: Tools, tmp_path: Path
) -> None:
    """A stray context cannot send a deletion to another cluster."""
    tools.say("kubectl get namespace", code=1, err='namespaces "baton" (NotFound)')
    tools.answers[0] = (*tools.answers[0][:3], "Error from server (NotFound): x", 0)
    tools.say("helm list", [])
    eyes = eyes_of(there(), tmp_path)
    parts = {part.name: part for part in parts_of(layout(), KEYS)}
    assert eyes.see(parts["namespace"]).state is State.ABSENT
    assert eyes.see(parts["chart-kuberay-operator"]).state is State.ABSENT
    assert {kubeconfig for _, _, kubeconfig in tools.calls} == {str(tmp_path / "kubeconfig")}
    first = tools.calls[0][0]
    assert first.endswith("--name baton-g6 --region us-west-2 --kubeconfig kubeconfig")


def test_scripted_states_are_read(tools: Tools, tmp_path: Path) -> None:
    """Creating, failed, throttled, unknown: from what the tools print and how they exit."""
    eyes = eyes_of(there(), tmp_path)
    parts = {part.name: part for part in parts_of(layout(), KEYS)}
    chart = parts["chart-kuberay-operator"]
    release = {"name": "kuberay-operator", "chart": "kuberay-operator-1.7.0", "status": "failed",
               "updated": "2026-09-21 13:33:00.1 +0000 UTC"}  # fmt: skip
    tools.say("helm list", [release])
    assert eyes.see(chart).state is State.FAILED
    tools.say("helm list", code=1, err="Error: kubernetes cluster unreachable: Get …: EOF")
    seen = eyes.see(chart)
    assert (seen.state, "unreachable" in seen.detail) == (State.UNKNOWN, True)
    tools.say("helm list", "no JSON at all")
    assert eyes.see(chart).state is State.UNKNOWN
    tools.say("kubectl get namespace", code=1, err="the server has received too many requests")
    assert eyes.see(parts["namespace"]).state is State.UNKNOWN
    tools.say("kubectl get namespace", {"metadata": {}, "status": {"phase": "Terminating"}})
    assert eyes.see(parts["namespace"]).state is State.DELETING


def test_a_secret_goes_in_by_standard_input(tools: Tools, tmp_path: Path) -> None:
    """No process list shows it."""
    tools.say("kubectl -n baton create secret")
    (secret,) = [part for part in parts_of(layout(), KEYS) if part.kind == "secret"]
    done = Shell(tmp_path).change(secret.create[0], lambda: None)
    assert done.code == 0
    line, fed, _ = tools.calls[-1]
    assert fed == "BATON_API_KEYS=k1\n"
    assert "k1" not in line


def test_a_command_is_watched_and_ended_by_what_the_watch_finds(
    tools: Tools, tmp_path: Path
) -> None:
    """eksctl would go on for half an hour; the node group's health says at once why not."""
    tools.say("eksctl create nodegroup", wait=30)
    cloud = there()
    cloud.things["placement-group"] = {"state": "ready", "tags": {"baton.dev/cluster": "baton-g6"}}
    looks = iter(range(100))

    def describe() -> Any:
        if next(looks) < 3:
            return {"nodegroup": None}
        issue = {"code": "AsgInstanceLaunchFailures", "message": "vCPU limit of 0"}
        return {"nodegroup": {"status": "CREATING", "tags": {"baton.dev/cluster": "baton-g6"},
                              "health": {"issues": [issue]}}}  # fmt: skip

    cloud.answers["describe_nodegroup"] = describe
    eyes = eyes_of(cloud, tmp_path)
    nodes = [part for part in parts_of(layout(), KEYS) if part.name == "prefill"]
    with pytest.raises(DeployFailed, match="vCPU limit of 0"):
        apply(nodes, eyes, eyes.runner, Pace(sleep=cloud.sleep, now=lambda: cloud.clock))
    assert [line for line, _, _ in tools.calls if line.startswith("eksctl")]


def test_a_tool_that_is_missing_says_so(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """127, as a shell would; nothing is raised."""
    monkeypatch.setenv("PATH", str(tmp_path))
    shell = Shell(tmp_path)
    assert shell.read(("eksctl", "version")) == Done(127, err="eksctl: not found")
    assert shell.change(Command(("eksctl",)), lambda: None).code == 127


def test_a_tool_that_hangs_is_not_waited_for_without_end(tools: Tools, tmp_path: Path) -> None:
    """Its silence is unknown, not an answer."""
    tools.say("kubectl get", wait=30)
    done = Shell(tmp_path).read(("kubectl", "get", "nodes"), limit_s=0.2)
    assert (done.code, "did not answer" in done.err) == (124, True)


def test_the_proof_is_gathered_from_every_worker(tools: Tools, tmp_path: Path) -> None:
    """`baton verify` on the head, logs and counters of both workers, before and after."""
    from baton.deploy.eks.live.waits import pod_view

    rails = "Backend LIBFABRIC was instantiated\nCreated 1 rails using provider=efa\n"
    counter = "/sys/class/infiniband/efa_0/ports/1/hw_counters/rx_bytes"
    tools.say("kubectl exec -n baton qwen-head -c ray-head", '{"verified": []}')
    for pod in ("prefill", "decode"):
        tools.say(f"kubectl exec -n baton qwen-{pod} -c ray-worker", f"{counter} 5\n")
        tools.say(f"kubectl exec -n baton qwen-{pod} -c ray-worker -- /bin/bash -c grep", rails)
    pods = [pod_view(running(phase), 0.0) for phase in ("head", "prefill", "decode")]
    proof = inside.prove(layout(), pods, Shell(tmp_path))
    assert proof.measured.word == "pass"
    assert {w.providers for w in proof.witnesses} == {frozenset({"efa"})}
    assert proof.witnessed.word == "fail", "no byte went through the devices"
    lines = [line for line, _, _ in tools.calls]
    assert sum("baton verify http://127.0.0.1:8000 --json --require efa" in x for x in lines) == 1
    assert sum("hw_counters" in line for line in lines) == 4
