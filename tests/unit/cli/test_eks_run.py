"""`baton eks plan | apply | status | verify | connect | delete` as a person calls them."""

from __future__ import annotations

import json
import os
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click
import pytest
from click.testing import CliRunner, Result

from baton.cli import eks_run
from baton.cli.eks import command
from baton.deploy.eks.live.aws import AwsFailed
from baton.deploy.eks.live.commands import Done
from baton.deploy.eks.live.prices import Price, cost_of
from baton.deploy.eks.live.runbook_signing import image_commands, to_settle
from baton.deploy.eks.live.walk import Pace
from baton.errors import ChecksFailed, DeployFailed
from tests.unit.deploy.eks.live.cloud import Cloud
from tests.unit.deploy.eks.live.session import Session
from tests.unit.deploy.eks.rendered import EXAMPLES, G6, P5, changed

if TYPE_CHECKING:
    from baton.deploy.eks.live.observe import Eyes

APP = f"examples/{G6}/app.yaml"
IMAGE = "222233334444.dkr.ecr.us-west-2.amazonaws.com/baton:0.1.0-ray2.60.0"
SNAPSHOTS = Path(__file__).parent / "snapshots"
FACTS: dict[str, dict[str, Any]] = {
    "get_caller_identity": {"Account": "222233334444", "Arn": "arn:aws:iam::222233334444:role/x"},
    "describe_cluster_versions": {"clusterVersions": [
        {"clusterVersion": "1.34", "versionStatus": "STANDARD_SUPPORT"}]},
    "get_service_quota": {"Quota": {"Value": 64.0}},
    "describe_instances": {"Reservations": []},
    "describe_instance_type_offerings": {"InstanceTypeOfferings": [
        {"InstanceType": "g6.8xlarge", "Location": "us-west-2b"},
        {"InstanceType": "m7i.xlarge", "Location": "us-west-2b"}]},
    "describe_instance_types": {"InstanceTypes": [
        {"InstanceType": "g6.8xlarge", "VCpuInfo": {"DefaultVCpus": 32},
         "NetworkInfo": {"EfaInfo": {"MaximumEfaInterfaces": 1}},
         "GpuInfo": {"Gpus": [{"Count": 1, "MemoryInfo": {"SizeInMiB": 22888}}]}},
        {"InstanceType": "m7i.xlarge", "VCpuInfo": {"DefaultVCpus": 4}}]},
    "describe_subnets": {"Subnets": [{"AvailabilityZone": "us-west-2b"}]},
    "describe_nat_gateways": {"NatGateways": []},
    "describe_addresses": {"Addresses": []},
}  # fmt: skip
VERSIONS = {"aws --version": "aws-cli/2.17.1", "kubectl version": "Client Version: v1.34.1",
            "eksctl version": "0.221.0", "helm version": "v3.17.0"}  # fmt: skip


@pytest.fixture
def cloud(monkeypatch: pytest.MonkeyPatch) -> Cloud:
    """An account that every verb looks at, in a shell where no setting is exported."""
    from baton.deploy.eks.config import EksSettings, env_name

    for name in EksSettings.model_fields:
        monkeypatch.delenv(env_name(name), raising=False)
    monkeypatch.setenv("BATON_API_KEYS", "k1")
    monkeypatch.chdir(EXAMPLES.parent)
    found = Cloud()
    found.answers |= {name: lambda answer=answer: answer for name, answer in FACTS.items()}
    found.answers |= {line: lambda text=text: Done(0, text) for line, text in VERSIONS.items()}

    def eyes(call: eks_run.Call, folder: Path) -> Eyes:
        return Session(found, call.layout).eyes

    monkeypatch.setattr(eks_run, "open_eyes", eyes)

    def pace() -> Pace:
        said = partial(click.echo, err=True)
        return Pace(said, found.sleep, lambda: found.clock)

    monkeypatch.setattr(eks_run, "pace", pace)
    return found


def run(*arguments: str, given: str | None = None) -> Result:
    return CliRunner().invoke(command, list(arguments), input=given)


def ready(result: Result) -> Result:
    if result.exception is not None and not isinstance(result.exception, SystemExit):
        raise result.exception
    return result


def applied(tmp_path: Path, *more: str) -> Result:
    return run("apply", APP, "--image", IMAGE, "-o", str(tmp_path / "out"), "--yes", *more)


@pytest.mark.parametrize("name", [G6, P5])
def test_the_runbook_is_the_reviewed_one(
    name: str, monkeypatch: pytest.MonkeyPatch, cloud: Cloud
) -> None:
    """From an empty account, without asking AWS: byte by byte, as it was signed."""
    monkeypatch.delenv("BATON_API_KEYS")
    result = ready(run("plan", "--dry-run", f"examples/{name}/app.yaml"))
    assert cloud.touches == 0, "AWS was asked"
    path = SNAPSHOTS / f"runbook-{name}.md"
    if os.environ.get("BATON_WRITE_SNAPSHOTS") == "1":
        path.parent.mkdir(exist_ok=True)
        path.write_text(result.stdout, encoding="utf-8")
    assert result.stdout == path.read_text(encoding="utf-8")


def test_only_gpus_of_unknown_price_are_called_most_of_the_bill() -> None:
    """Somebody signs it: where GPUs have a price, volumes without one are no large part."""
    unknown = changed(None, G6)
    known = {"g6.8xlarge": Price(2.0, "a page", "2026")}
    (said, _) = to_settle(unknown, [], cost_of(unknown, {}))
    assert "2 x g6.8xlarge" in said
    assert said.endswith("are most of the bill")
    (said, _) = to_settle(unknown, [], cost_of(unknown, known))
    assert "EBS" in said
    assert "most of the bill" not in said


@pytest.mark.parametrize("image", ["baton:0.1.0-ray2.60.0", IMAGE.replace("/baton", "/a/baton")])
def test_repository_and_tag_of_an_image_are_read_from_any_name(image: str) -> None:
    """Without a registry, and with a folder in it."""
    lines = image_commands(changed(None, G6, image=image))
    assert not [line for line in lines if "is checked by EKS-110" in line]
    made = [line for line in lines if "create-repository" in line]
    assert len(made) == ("ecr" in image)
    assert all("--repository-name a/baton --region us-west-2" in line for line in made)


def test_an_image_that_is_named_by_its_digest_is_not_built() -> None:
    """The digest is known once it is in the registry."""
    assert image_commands(changed(None, G6, image=f"{IMAGE}@sha256:{64 * '0'}")) == []


def test_plan_says_what_would_be_made_and_changes_nothing(cloud: Cloud) -> None:
    """Checks, parts, cost, time; no command that changes anything."""
    result = ready(run("plan", APP, "--image", IMAGE))
    assert result.exit_code == 0, result.output
    assert cloud.ran == []
    assert "+ nodes    1 x g6.8xlarge for decode in us-west-2b" in result.stdout
    assert "Deleted: nothing." in result.stdout
    assert "2 x g6.8xlarge" in result.stdout.split("Cost an hour")[1]
    assert "Estimated: " in result.stdout


def test_a_blocks_price_is_no_on_demand_price() -> None:
    """p5.48xlarge has only a Capacity Block's in the planner's table."""
    assert "p5.48xlarge" not in eks_run.gpu_prices(changed(None, P5))
    block = changed(None, P5, capacity_block="true", capacity_reservation_id="cr-1")
    assert "Capacity Block" in eks_run.gpu_prices(block)["p5.48xlarge"].source


def test_plan_without_sight_says_that_it_knows_nothing(cloud: Cloud) -> None:
    """Not that there is nothing to make."""

    def nobody() -> Any:
        raise AwsFailed("NoCredentialsError", "none")

    cloud.answers |= {"describe_cluster": nobody, "list_nodegroups": nobody}
    result = ready(run("plan", APP, "--image", IMAGE))
    assert result.exit_code == 2
    assert "Nothing to make" not in result.stdout
    assert "What is to be made is not known" in result.stdout
    assert "could not be seen (NoCredentialsError)" in result.stdout


def test_plan_exits_with_2_where_apply_would_stop(cloud: Cloud) -> None:
    """A quota of nothing."""
    cloud.answers["get_service_quota"] = lambda: {"Quota": {"Value": 0.0}}
    result = ready(run("plan", APP, "--image", IMAGE, "--format", "json"))
    assert result.exit_code == 2
    words = {c["rule"]: c["verdict"] for c in json.loads(result.stdout)["checks"]}
    assert words["EKS-104"] == "fail"


def test_apply_makes_everything_and_prints_efa_by_node(cloud: Cloud, tmp_path: Path) -> None:
    """Written files, all parts ready, and one line a node."""
    offers = {"vpc.amazonaws.com/efa": "0", "nvidia.com/gpu": "1"}
    labels = {"baton.dev/phase": "decode"}
    node = {"metadata": {"name": "n1", "labels": labels}, "status": {"allocatable": offers}}
    cloud.answers["kubectl get nodes"] = lambda: Done(0, json.dumps({"items": [node]}))
    result = ready(applied(tmp_path))
    assert result.exit_code == 0, result.output
    assert set(cloud.state().values()) == {"ready"}
    assert (tmp_path / "out/eksctl/cluster.yaml").is_file()
    assert "n1  ?  ?  decode  NotReady  GPU 0/1 taken  EFA 0/0 taken" in result.stdout
    assert "offers 0 EFA interfaces of 1" in result.stderr


def test_apply_changes_nothing_when_a_check_stands_against_it(cloud: Cloud, tmp_path: Path) -> None:
    """Not even the folder's cluster is begun; an unknown can be accepted by its id."""

    def denied() -> Any:
        raise AwsFailed("AccessDeniedException", "not you")

    cloud.answers["get_service_quota"] = denied
    result = applied(tmp_path)
    assert isinstance(result.exception, ChecksFailed)
    assert "--accept-unknown EKS-104" in str(result.exception.cure)
    assert cloud.ran == []
    assert ready(applied(tmp_path, "--accept-unknown", "EKS-104")).exit_code == 0


def test_apply_asks_and_a_script_must_say_yes(cloud: Cloud, tmp_path: Path) -> None:
    """Nothing is made without a yes."""
    result = run("apply", APP, "--image", IMAGE, "-o", str(tmp_path / "out"))
    assert result.exit_code == 2
    assert "--yes" in result.stderr
    assert cloud.ran == []


def test_apply_dry_run_prints_what_is_left_to_do(cloud: Cloud, tmp_path: Path) -> None:
    """From the account as it is: the exact commands, and none is run."""
    ready(applied(tmp_path, "--step", "cluster", "--step", "nodes"))
    cloud.ran.clear()
    result = ready(run("apply", APP, "--image", IMAGE, "--dry-run"))
    lines = [x for x in result.stdout.splitlines() if x and not x.startswith("#")]
    assert [line.split()[0] for line in lines] == ["helm", "helm", "kubectl", "printf", "kubectl"]
    assert cloud.ran == []


def test_each_step_stands_alone(cloud: Cloud, tmp_path: Path) -> None:
    """`baton eks cluster` makes the cluster and no more."""
    result = run("cluster", APP, "--image", IMAGE, "-o", str(tmp_path / "o"), "--yes")
    assert ready(result).exit_code == 0
    assert "prefill" not in cloud.things
    assert cloud.state()["cluster"] == "ready"


def test_delete_wants_a_yes_and_says_what_may_still_cost(cloud: Cloud, tmp_path: Path) -> None:
    """Without one nothing goes; with one all goes."""
    ready(applied(tmp_path))
    refused = run("delete", APP, "--image", IMAGE, "-o", str(tmp_path / "out"))
    assert refused.exit_code == 2
    assert "cluster" in cloud.things
    result = run("delete", APP, "--image", IMAGE, "-o", str(tmp_path / "out"), "--yes")
    assert ready(result).exit_code == 0
    assert cloud.state() == {}
    assert "May still cost money" in result.stdout


def test_delete_dry_run_deletes_nothing(cloud: Cloud, tmp_path: Path) -> None:
    """The commands in reverse order."""
    ready(applied(tmp_path))
    cloud.ran.clear()
    result = ready(run("delete", APP, "--image", IMAGE, "--dry-run"))
    lines = [x for x in result.stdout.splitlines() if not x.startswith("#")]
    assert lines[0].startswith("kubectl delete rayservice qwen")
    assert lines[-1].startswith("eksctl delete cluster")
    assert cloud.ran == []


def test_a_stop_in_the_middle_is_told_with_its_place(cloud: Cloud, tmp_path: Path) -> None:
    """Fact, place, cure."""
    cloud.answers["eksctl create cluster"] = lambda: Done(1, err="Error: IAM says no")
    result = applied(tmp_path)
    assert isinstance(result.exception, DeployFailed)
    assert "IAM says no" in result.exception.fact
    assert result.exception.place == "eksctl create cluster -f eksctl/cluster.yaml"


def test_status_tells_ready_missing_and_unseen_apart(cloud: Cloud, tmp_path: Path) -> None:
    """0, 1, 2."""
    cloud.answers["kubectl get nodes"] = lambda: Done(0, '{"items": []}')
    assert ready(run("status", APP, "--image", IMAGE)).exit_code == 1
    ready(applied(tmp_path))
    result = ready(run("status", APP, "--image", IMAGE))
    assert result.exit_code == 0, result.output
    assert "decode   qwen-decode  on node-decode  Running" in result.stdout
    assert "Serve    qwen: RUNNING" in result.stdout
    cloud.answers["helm list"] = lambda: Done(1, err="Error: unreachable")
    assert ready(run("status", APP, "--image", IMAGE)).exit_code == 2


def test_verify_reports_all_witnesses(cloud: Cloud, tmp_path: Path) -> None:
    """Measured in the cluster; logs that say TCP fail whatever the measurement says."""
    ready(applied(tmp_path))
    cloud.answers["kubectl exec -n baton qwen-head"] = lambda: Done(0, "{}")
    for phase in ("prefill", "decode"):
        cloud.answers[f"kubectl exec -n baton qwen-{phase}"] = lambda: Done(
            0, "Created 1 rails using provider=tcp\n"
        )
    result = ready(run("verify", APP, "--image", IMAGE))
    assert result.exit_code == 1
    assert "fail     witnessed: KV does not go over EFA alone" in result.stdout
    assert "pass     measured" in result.stdout


def test_connect_prints_the_question_and_forwards_the_service(
    cloud: Cloud, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The curl line first; kubectl in the foreground until it is interrupted."""
    ready(applied(tmp_path))
    called: list[tuple[str, ...]] = []

    class Ended:
        returncode = 0

    def fake(argv: tuple[str, ...], **_: Any) -> Ended:
        called.append(argv)
        return Ended()

    monkeypatch.setattr("baton.cli.eks_look.subprocess.run", fake)
    result = ready(run("connect", APP, "--image", IMAGE, "--port", "9000"))
    assert 'http://localhost:9000/v1/chat/completions -H "Authorization: Bearer $KEY"' in (
        result.stdout
    )
    assert called[0][-2:] == ("svc/qwen-serve-svc", "9000:8000")
