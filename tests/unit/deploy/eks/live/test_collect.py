"""Facts from AWS as moto emulates it, through real boto3; what moto lacks is answered by a shim."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, ClassVar

import pytest

from baton.deploy.eks.live.aws import AwsFailed, Boto
from baton.deploy.eks.live.collect import collect, tool_version
from baton.deploy.eks.live.commands import Done
from baton.deploy.eks.live.facts import G_VT, STANDARD, Known, TypeFigures, Unknown
from baton.deploy.eks.live.observe import Eyes
from baton.deploy.eks.live.parts import parts_of
from baton.deploy.eks.live.states import State
from tests.unit.deploy.eks.live.cloud import NAME
from tests.unit.deploy.eks.rendered import layout

if TYPE_CHECKING:
    from collections.abc import Iterator

REGION = "us-west-2"


CPUS = {"CpuOptions": {"CoreCount": 2, "ThreadsPerCore": 2}}
RUNNING = [
    {"InstanceType": "g5.xlarge", **CPUS},
    {"InstanceType": "g6.xlarge", **CPUS, "InstanceLifecycle": "spot"},
    {"InstanceType": "g6.xlarge", **CPUS, "Tags": [{"Key": "eks:cluster-name", "Value": NAME}]},
]


class Shimmed(Boto):
    """moto has no quotas but those of VPC, no cluster versions, add-ons and placement groups."""

    def call(self, service: str, operation: str, **arguments: Any) -> dict[str, Any]:
        if operation == "get_service_quota":
            raise AwsFailed("NoSuchResourceException", "only the default holds")
        if operation == "get_aws_default_service_quota":
            return {"Quota": {"Value": 64.0 if arguments["QuotaCode"] == G_VT else 5.0}}
        if operation == "describe_cluster_versions":
            return {"clusterVersions": [
                {"clusterVersion": "1.34", "versionStatus": "STANDARD_SUPPORT"}]}  # fmt: skip
        if operation == "describe_placement_groups":
            raise AwsFailed("InvalidPlacementGroup.Unknown", "none")
        if operation == "describe_addon":
            raise AwsFailed("ResourceNotFoundException", "none")
        if operation == "describe_stacks":  # moto's wants packages that nothing else does
            raise AwsFailed("ValidationError", "Stack with id x does not exist")
        if operation == "describe_instances":
            return {"Reservations": [{"Instances": RUNNING}]}
        return super().call(service, operation, **arguments)


class Tools:
    """What the tools answer."""

    answers: ClassVar = {
        "aws": Done(0, "aws-cli/2.17.1 Python/3.11.8 Linux/6.1"),
        "kubectl": Done(0, "Client Version: v1.35.2\nKustomize Version: v5.7.1\n"),
        "eksctl": Done(0, "0.221.0\n"),
        "helm": Done(127, err="helm: not found"),
    }

    def read(self, argv: tuple[str, ...], limit_s: float = 0.0) -> Done:
        if argv[:2] in (("aws", "eks"), ("kubectl", "get")):
            return Done(1, err="Unable to connect to the server")
        return self.answers[argv[0]]

    def change(self, command: Any, watch: Any) -> Done:
        raise AssertionError("facts change nothing")


@pytest.fixture(scope="module")
def eyes() -> Iterator[Eyes]:
    """An account with a cluster, a prefill group in the wrong zone, and an instance of others."""
    from moto import mock_aws

    patch = pytest.MonkeyPatch()
    for name in ("AWS_ACCESS_KEY_ID", "AWS_SECRET_ACCESS_KEY"):
        patch.setenv(name, "testing")
    with mock_aws():
        import boto3

        session = boto3.session.Session(region_name=REGION)
        ec2, eks = session.client("ec2"), session.client("eks")
        subnets = {
            subnet["AvailabilityZone"]: subnet["SubnetId"]
            for subnet in ec2.describe_subnets()["Subnets"]
        }
        both = [subnets["us-west-2a"], subnets["us-west-2b"]]
        role = "arn:aws:iam::123456789012:role/eks"
        eks.create_cluster(
            name=NAME, roleArn=role, resourcesVpcConfig={"subnetIds": both},
            version="1.34", tags={"baton.dev/cluster": NAME},
        )  # fmt: skip
        eks.create_nodegroup(
            clusterName=NAME, nodegroupName="prefill", nodeRole=role, subnets=both[:1],
            instanceTypes=["g6.8xlarge"], tags={"baton.dev/cluster": NAME},
            scalingConfig={"minSize": 1, "maxSize": 1, "desiredSize": 1},
        )  # fmt: skip
        yield Eyes(layout(), Shimmed(REGION), Tools())
    patch.undo()


def test_facts_are_what_the_account_says(eyes: Eyes) -> None:
    """Account, versions, quotas, what runs, offers, figures, zones."""
    facts = collect(eyes, parts_of(layout(), {}), {"BATON_API_KEYS": "k", "EMPTY": ""})
    assert isinstance(facts.account, Known)
    assert facts.account.value.startswith("123456789012 as arn:aws:")
    assert facts.versions == Known({"1.34": "STANDARD_SUPPORT"})
    assert facts.quotas == {G_VT: Known(64.0), STANDARD: Known(5.0)}
    assert facts.running_vcpus == Known({G_VT: 4}), "neither spot nor this cluster's own"
    assert isinstance(facts.types, Known)
    assert facts.types.value["g6.8xlarge"] == TypeFigures(32, 1, 22888, 1)
    assert isinstance(facts.offered, Known)
    assert facts.offered.value["g6.8xlarge"]
    assert isinstance(facts.cluster, Known)
    assert facts.cluster.value is not None
    assert facts.cluster.value.zones == {"us-west-2a", "us-west-2b"}
    assert facts.cluster.value.ours
    assert facts.group_zones == Known(frozenset({"us-west-2a"}))
    assert facts.environment == {"BATON_API_KEYS"}


def test_what_is_not_answered_is_unknown(eyes: Eyes) -> None:
    """A tool that is missing is a fact; a cluster that cannot be asked is not an empty one."""
    facts = collect(eyes, parts_of(layout(), {}), {})
    assert facts.tools["helm"] == Known(None)
    assert facts.tools["aws"] == Known((2, 17, 1))
    assert facts.tools["kubectl"] == Known((1, 35, 2))
    assert isinstance(facts.secret, Unknown)
    assert tool_version(Tools(), ("kubectl", "get")) == Unknown(
        "kubectl get: Unable to connect to the server"
    )


def test_states_are_read_from_real_answers(eyes: Eyes) -> None:
    """The shapes are boto3's own: groups, absent groups, absent stacks."""
    seen = {part.name: eyes.see(part) for part in parts_of(layout(), {})}
    assert seen["prefill"].state is State.READY
    assert seen["prefill"].ours is True
    assert seen["decode"].state is State.ABSENT
    assert seen["placement-group"].state is State.ABSENT
    assert seen["addons"].detail.startswith("missing: vpc-cni")
    assert seen["service"].state is State.UNKNOWN


def test_a_region_without_credentials_is_unknown(monkeypatch: pytest.MonkeyPatch) -> None:
    """boto3's own errors arrive as AWS' do."""
    for name in ("AWS_ACCESS_KEY_ID", "AWS_SECRET_ACCESS_KEY", "AWS_PROFILE"):
        monkeypatch.delenv(name, raising=False)
    monkeypatch.setenv("AWS_EC2_METADATA_DISABLED", "true")
    monkeypatch.setenv("AWS_SHARED_CREDENTIALS_FILE", "/nonexistent")
    monkeypatch.setenv("AWS_CONFIG_FILE", "/nonexistent")
    with pytest.raises(AwsFailed, match="NoCredentialsError"):
        Boto(REGION).call("eks", "describe_cluster", name="x")
