"""What whoever signs a runbook wants to know beside its commands. Pure.

What still stands in the way, which image runs and how it comes to be there, what the deployment
opens to whom, and a place for the names.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from baton.deploy.eks.config import AWS_RAY_LLM_IMAGE
from baton.deploy.eks.live.checks_capacity import wanted_vcpus
from baton.deploy.eks.live.facts import QUOTA_NAMES, Facts
from baton.deploy.eks.live.image_inside import PLANNED
from baton.spec.view import RAY_IMPORT_PATH

if TYPE_CHECKING:
    from collections.abc import Iterable

    from baton.deploy.eks.layout import Layout
    from baton.deploy.eks.live.checks import Verdict
    from baton.deploy.eks.live.prices import Cost


def _is_rays(layout: Layout) -> bool:
    return layout.app.import_path == RAY_IMPORT_PATH


def what_runs(layout: Layout) -> str:
    """What is in the containers, in a sentence."""
    if not _is_rays(layout):
        return (
            "an image of yours with Baton in it: Containerfile.layer (Baton on AWS' Ray LLM"
            " container) or Containerfile.gpu of deploy/image"
        )
    builder = "Ray's own P/D builder, so without Baton's gateway"
    if layout.image == AWS_RAY_LLM_IMAGE:
        return f"AWS' public Ray LLM container, unchanged, with {builder}"
    return f"an image of yours, with {builder}"


def versions_wanted() -> str:
    """`Ray 2.60.0, vLLM 0.29.0, NIXL 1.3.2`."""
    names = {"ray": "Ray", "vllm": "vLLM", "nixl": "NIXL"}
    return ", ".join(f"{names[name]} {version}" for name, version in PLANNED.items())


def to_settle(layout: Layout, verdicts: Iterable[Verdict], cost: Cost) -> list[str]:
    """What stands in the way of a signature, a line each."""
    found = [
        f"**stops it**: {verdict.rule_id}, {verdict.text}. {_sentence(verdict.cure)}".rstrip()
        for verdict in verdicts
        if verdict.word == "fail"
    ]
    if cost.unknown:
        most = ", and are most of the bill" if _unpriced(layout, cost) else ""
        found.append(f"prices of {', '.join(cost.unknown)} are not known here{most}")
    found.append(
        "nobody has run these commands on an account yet: times are estimates, and the proof in"
        " step 5 is what shows that KV goes over EFA"
    )
    return found


def _sentence(text: str) -> str:
    return f"{text[:1].upper()}{text[1:]}." if text else ""


def _unpriced(layout: Layout, cost: Cost) -> list[str]:
    """Types of GPU instances whose price is not known."""
    kinds = dict.fromkeys(group.instance.name for group in layout.groups)
    return [kind for kind in kinds if any(kind in each for each in cost.unknown)]


def price_question(layout: Layout, cost: Cost) -> list[str]:
    """The command that asks AWS what an unknown instance type costs an hour."""
    region = layout.settings.region
    same = {
        "regionCode": region, "operatingSystem": "Linux", "tenancy": "Shared",
        "preInstalledSw": "NA", "capacitystatus": "Used",
    }  # fmt: skip
    fields = " ".join(f"Type=TERM_MATCH,Field={key},Value={value}" for key, value in same.items())
    return [
        "aws pricing get-products --service-code AmazonEC2 --region us-east-1 --filters"
        f" Type=TERM_MATCH,Field=instanceType,Value={kind} {fields}"
        " --query 'PriceList[0]' --output text | grep -oE '\"USD\":\"[0-9.]+\"' | head -1"
        for kind in _unpriced(layout, cost)
    ]


def quota_note(layout: Layout) -> str:
    """How many vCPUs of which quota: for the line that asks."""
    wanted = wanted_vcpus(layout, Facts()) or {}
    return "; ".join(
        f"{QUOTA_NAMES.get(code, code)}: {vcpus} or more" for code, vcpus in wanted.items()
    )


def image_commands(layout: Layout) -> list[str]:
    """How an image of one's own comes into the registry.

    Nothing for AWS' own, and for one that is named by its digest: that is known of a pushed one.
    """
    name = layout.image
    if name == AWS_RAY_LLM_IMAGE or "@" in name:
        return []
    registry, _, rest = name.rpartition("/")[0].partition("/")
    last, _, tag = name.rpartition("/")[2].partition(":")
    repository = f"{rest}/{last}" if rest else last
    lines = [f"buildah build -f deploy/image/Containerfile.gpu -t {name} .   # or .layer"]
    if ".dkr.ecr." in registry:
        region = registry.split(".")[3]
        lines += [
            f"aws ecr create-repository --repository-name {repository} --region {region}",
            (
                f"aws ecr get-login-password --region {region}"
                f" | buildah login --username AWS --password-stdin {registry}"
            ),
        ]
    return [
        *lines,
        f"buildah push {name}",
        f"# on any machine with a GPU: `docker run --rm --gpus all {name} baton image check`",
        *([] if tag and "ray" in tag else ["# a tag that says `ray2.60.0` is checked by EKS-110"]),
    ]


def opens(layout: Layout) -> list[str]:
    """What of it can be reached, and what it may do: for whoever answers for the account."""
    settings = layout.settings
    reached = {
        "none": "the service has no load balancer: it is reached from inside the cluster, or by"
        " `kubectl port-forward`",
        "internal": "an internal ALB: whoever is in the VPC, or connected to it",
        "internet-facing": "an **internet-facing ALB**: anybody, with a key",
    }[settings.ingress]
    keys = (
        "callers need a key"
        if layout.app.baton.auth.asks_for_keys
        else "**callers need no key**"
        if not _is_rays(layout)
        else "Ray's own endpoint asks for no key"
    )
    pods = {
        "privileged": "GPU workers are **privileged** and run as root, for EFA and locked memory,"
        " so the namespace enforces Pod Security `privileged` (`security: ipc-lock` is narrower)",
        "ipc-lock": "GPU workers run as root with IPC_LOCK, for EFA and locked memory",
    }[settings.security]
    return [
        f"{reached}; {keys}",
        "the API server of EKS has a public endpoint behind IAM, and a private one",
        f"nodes have no public address; they go out through NAT ({settings.nat_gateway})",
        pods,
        (
            "IAM roles that eksctl makes: the cluster's, each node group's, and the EBS driver's"
            " through the OIDC provider; the person who applies needs the right to make them"
        ),
        (
            "a NetworkPolicy lets only this service's pods speak to its engines; EFA is not IP and"
            " passes by it, held by the nodes' security group alone"
        ),
    ]


def nothing_left(layout: Layout) -> list[str]:
    """Commands whose answer should be empty once all of it is gone."""
    settings = layout.settings
    where = f"--region {settings.region}"
    name = settings.cluster_name
    stacks = (
        f"StackSummaries[?starts_with(StackName,'eksctl-{name}-')"
        " && StackStatus!='DELETE_COMPLETE'].[StackName,StackStatus]"
    )
    tagged = f"--tag-filters Key=baton.dev/cluster,Values={name}"
    owned = f"--filters Name=tag:kubernetes.io/cluster/{name},Values=owned"
    text = "--output text"
    return [
        f'aws cloudformation list-stacks {where} --query "{stacks}" {text}',
        (
            f"aws resourcegroupstaggingapi get-resources {where} {tagged}"
            f" --query 'ResourceTagMappingList[].ResourceARN' {text}   # lags some minutes"
        ),
        f"aws ec2 describe-volumes {where} {owned} --query 'Volumes[].VolumeId' {text}",
    ]


SIGNED = (
    "| | |",
    "| --- | --- |",
    "| account, and what `aws sts get-caller-identity` says | |",
    "| window, and who watches | |",
    "| spent at most, an hour and in all | |",
    "| taken back when, and by whom | |",
    "| reviewed by | |",
    "| applied by | |",
)
"""For the names."""
