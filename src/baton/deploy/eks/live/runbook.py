"""The text of a plan: what is made, what it costs, how long it takes, and every command. Pure.

Written for whoever signs it: each step says what it changes, how one sees that it is done, what to
do when it is not, and how it is taken back.
"""

from __future__ import annotations

import textwrap
from dataclasses import dataclass
from typing import TYPE_CHECKING

from baton.deploy.eks.live.commands import KUBECONFIG
from baton.deploy.eks.live.parts import STEPS, Step
from baton.deploy.eks.live.planned import nothing_there, planned_up
from baton.deploy.eks.live.status import EFA, GPU
from baton.deploy.eks.nodegroup import efa_plugin_by
from baton.deploy.eks.plain import serve_service_name
from baton.deploy.eks.rayservice import ray_version

if TYPE_CHECKING:
    from collections.abc import Iterable

    from baton.deploy.eks.layout import Layout
    from baton.deploy.eks.live.checks import Verdict
    from baton.deploy.eks.live.parts import Part
    from baton.deploy.eks.live.planned import Planned
    from baton.deploy.eks.live.prices import Cost

TITLES: dict[Step, str] = {
    "cluster": "The cluster without its GPU nodes",
    "nodes": "The GPU nodes",
    "kuberay": "Operator and device plugins",
    "app": "The service",
}


@dataclass(frozen=True)
class Naming:
    """How the person calls it: for commands that they can paste."""

    file: str
    folder: str
    settings: str = ""

    @property
    def flags(self) -> str:
        """FILE and the settings file, when it is not the one beside FILE."""
        return f"{self.file} --settings {self.settings}" if self.settings else self.file


def minutes(planned: Iterable[Planned]) -> str:
    """How long it is estimated to take; what one command makes along with another counts once."""
    listed = [each.part for each in planned if not each.with_]
    low, high = sum(p.usual_min[0] for p in listed), sum(p.usual_min[1] for p in listed)
    return f"{low} to {high} min" if low != high else f"{low} min"


def cost_lines(cost: Cost) -> list[str]:
    """What it costs an hour, each price with its date; unknown stays unknown."""
    found = []
    for line in cost.lines:
        each = "unknown" if line.price is None else f"${line.price.usd_per_hour:.4g}"
        total = "unknown" if line.usd_per_hour is None else f"${line.usd_per_hour:.4g}"
        source = "" if line.price is None else f"  [{line.price.date}] {line.price.source}"
        found.append(f"{line.count:>3} x {line.what:<42} {each:>8} {total:>8}{source}")
    known = f"${cost.known_usd_per_hour:.2f} an hour"
    if cost.unknown:
        found.append(f"Known: {known}. Not known, and on top: {'; '.join(cost.unknown)}.")
    else:
        found.append(f"In all: {known}.")
    found.append("Prices are of the region that the source names; look yours up before you sign.")
    return found


def verdict_lines(verdicts: Iterable[Verdict]) -> list[str]:
    """One line a rule, and a hint where there is one."""
    found = []
    for verdict in verdicts:
        word = f"{verdict.word} (accepted)" if verdict.accepted else verdict.word
        found.append(f"{word:<8} {verdict.rule_id}  {verdict.text}")
        if verdict.cure and verdict.word != "pass":
            found.append(f"{'':<8} hint: {verdict.cure}")
    return found


def change_lines(planned: Iterable[Planned]) -> list[str]:
    """One line a part: `+` made, `~` changed, `=` kept, `…` waited for, `!` in the way."""
    found = []
    before = ""
    for each in planned:
        text = f"{each.sign} {each.part.step:<8} {each.part.title}"
        reason = each.action.reason
        if each.action.kind in ("change", "stop", "leave", "wait") and reason:
            hint = f" (hint: {each.action.cure})" if each.action.cure else ""
            text += ": as above" if reason == before else f": {reason}{hint}"
            before = reason
        found.append(text)
    return found


def command_lines(planned: Iterable[Planned]) -> list[str]:
    """The commands of a run, in order, with what each is for."""
    found = []
    for each in planned:
        if each.action.kind == "stop":
            found.append(f"# the run ends here: {each.part.name}: {each.action.reason}")
            break
        if each.action.kind == "wait":
            found.append(f"# waits: {each.part.name}: {each.action.reason}")
        for command in each.commands:
            found += [f"# {each.part.title}", command.text]
    return found


def _layout_lines(layout: Layout) -> list[str]:
    rows = [
        f"{g.role:<8} {g.workers} worker(s) on {g.nodes} x {g.instance.name}: each {g.gpus} GPU"
        f" ({g.instance.gpu}), {g.efa} EFA, {g.cpus} CPUs, {g.memory_mib // 1024} GiB"
        for g in layout.groups
    ]
    settings = layout.settings
    system = f"{settings.system_node_count} x {settings.system_instance_type}"
    return [f"head     on {system}, no GPU", *rows]


def head_lines(layout: Layout, naming: Naming) -> list[str]:
    """What this is about."""
    settings = layout.settings
    return [
        (
            f"{layout.name} on EKS cluster {settings.cluster_name}, {settings.region},"
            f" GPU nodes in {settings.zone}"
        ),
        f"file {naming.file}; every setting and its origin: baton eks config {naming.flags}",
        f"image {layout.image}, Ray {ray_version()}",
        *_layout_lines(layout),
        *[f"note: {note}" for note in layout.notes],
    ]


def _asks(layout: Layout) -> list[str]:
    """What the checks ask AWS by themselves, as a person would."""
    settings = layout.settings
    region = f"--region {settings.region}"
    types = " ".join(sorted({group.instance.name for group in layout.groups}))
    return [
        "aws sts get-caller-identity                              # is it the right account?",
        (
            f"aws eks describe-cluster-versions {region} --query"
            " 'clusterVersions[].[clusterVersion,versionStatus]' --output text"
        ),
        (
            f"aws service-quotas list-service-quotas --service-code ec2 {region} --query"
            " \"Quotas[?contains(QuotaName,'Running On-Demand')].[QuotaCode,QuotaName,Value]\""
            " --output text"
        ),
        (
            f"aws ec2 describe-instance-type-offerings --location-type availability-zone {region}"
            f" --filters Name=instance-type,Values={types.replace(' ', ',')} --query"
            " 'InstanceTypeOfferings[].[InstanceType,Location]' --output text"
        ),
        (
            f"aws ec2 describe-instance-types --instance-types {types} {region} --query"
            " 'InstanceTypes[].[InstanceType,NetworkInfo.EfaInfo.MaximumEfaInterfaces]'"
            " --output text"
        ),
    ]


def _proofs(step: Step, layout: Layout) -> list[str]:
    """How one sees that a step is done, as commands with what they should say."""
    settings = layout.settings
    where = f"--region {settings.region}"
    space = settings.namespace
    if step == "cluster":
        name = settings.cluster_name
        access = f"aws eks update-kubeconfig --name {name} {where} --kubeconfig {KUBECONFIG}"
        asked = f"aws eks describe-cluster --name {name} {where} --query cluster.status"
        return [
            f"{access}   # eksctl did so here; for another machine",
            f"{asked}   # ACTIVE",
            f"kubectl get nodes -l role=system   # {settings.system_node_count} x Ready",
        ]
    efa = [f"{_offers('EFA', EFA)}   # {_each(layout, 'efa_interfaces')}"] if layout.efa else []
    # A plugin that comes from a chart is not there before the charts are.
    by_chart = efa_plugin_by(settings) == "helm"
    if step == "nodes":
        ready = "kubectl get nodes -l role=gpu-worker -L baton.dev/phase   # all Ready"
        return [ready, *([] if by_chart else efa)]
    if step == "kuberay":
        gpus = f"{_offers('GPU', GPU)}   # {_each(layout, 'gpus')}"
        return ["helm list -A   # each `deployed`", gpus, *(efa if by_chart else [])]
    kind = f"deployment/{layout.name}-head" if layout.plain else f"rayservice/{layout.name}"
    workers = sum(group.workers for group in layout.groups)
    return [
        f"kubectl -n {space} get pods -o wide   # a head and {workers} workers, Running",
        f"kubectl -n {space} get {kind} -o yaml   # status: application {layout.app.name} RUNNING",
    ]


def _offers(name: str, resource: str) -> str:
    escaped = resource.replace(".", "\\.")
    return (
        "kubectl get nodes -l role=gpu-worker -o custom-columns="
        f"'NODE:.metadata.name,{name}:.status.allocatable.{escaped}'"
    )


def _each(layout: Layout, what: str) -> str:
    return " and ".join(f"{getattr(g.instance, what)} for {g.role}" for g in layout.groups)


_WRONG: dict[Step, str] = {
    "cluster": "CloudFormation says why: aws cloudformation describe-stack-events --stack-name"
    " eksctl-{cluster}-cluster {region}"
    " --query \"StackEvents[?contains(ResourceStatus,'FAILED')]\"",
    "nodes": "the node group says why (quota, capacity, subnet): aws eks describe-nodegroup"
    " --cluster-name {cluster} --nodegroup-name prefill {region} --query nodegroup.health",
    "kuberay": "kubectl get pods -A | grep -E 'kuberay|nvidia|efa', then kubectl describe pod",
    "app": "kubectl -n {namespace} describe pods -l baton.dev/service={name}; Serve's own words:"
    " kubectl -n {namespace} get rayservice {name} -o jsonpath='{{.status}}'",
}


def runbook(
    layout: Layout, parts: list[Part], naming: Naming, cost: Cost, verdicts: list[Verdict]
) -> str:
    """The whole way up and down from an empty account, as it would be done by hand.

    Args:
        layout: What is to be.
        parts: Its parts.
        naming: How the person calls it.
        cost: What it costs.
        verdicts: Of the checks, with nothing asked of AWS.
    """
    settings = layout.settings
    plan = planned_up(parts, nothing_there(parts))
    lines = [
        f"# Runbook: {layout.name} on {settings.cluster_name}",
        "",
        *_text(
            "Dry run, from an empty account: AWS was asked nothing and nothing was changed."
            f" `baton eks apply {naming.flags}` does steps 0 to 4 itself, shows what goes on, and"
            " stops at the first reason not to go on; run again, it goes on where it was."
            f" `baton eks plan {naming.flags}` says what it would do in the account as it is now."
        ),
        "",
        *[f"- {line}" for line in head_lines(layout, naming)],
        "",
        *_text(
            f"Estimated: {minutes(plan)} in all (nobody measured it here). From step 1 on it costs"
            " money, most of it from step 2 on."
        ),
        "",
        "## What it costs an hour while it stands",
        "",
        *_block([f"{'':<48} {'each':>8} {'all':>8}", *cost_lines(cost)]),
        *_before(layout, naming, verdicts),
    ]
    names = {
        "cluster": settings.cluster_name, "region": f"--region {settings.region}",
        "namespace": settings.namespace, "name": layout.name,
    }  # fmt: skip
    for number, step in enumerate(STEPS, 1):
        lines += _step(number, step, plan, layout, names)
    lines += _after(layout, naming)
    lines += _undo(layout, parts, naming)
    return "\n".join(lines)


def _before(layout: Layout, naming: Naming, verdicts: list[Verdict]) -> list[str]:
    checks = []
    for verdict in verdicts:
        if verdict.word == "unknown":
            note = "" if verdict.must else " (only told when it stays unknown)"
            checks.append(f"- {verdict.rule_id} asked then; refused: {verdict.title}{note}")
        else:
            hint = f" ({verdict.cure})" if verdict.cure and verdict.word != "pass" else ""
            checks.append(f"- {verdict.rule_id} **{verdict.word}**: {verdict.text}{hint}")
    return [
        "## 0. Before anything is changed",
        "",
        *_text(
            "The file and its settings are in order: names, versions, networks, memory, GPUs, EFA"
            " and nodes were checked when they were read. What `baton eks apply` asks beyond that,"
            " and changes nothing when one of it fails or is unknown:"
        ),
        "",
        *checks,
        "",
        "By hand:",
        "",
        *_block(
            [
                *_asks(layout),
                f"baton eks render {naming.flags} -o {naming.folder} && cd {naming.folder}",
                f"export KUBECONFIG=$PWD/{KUBECONFIG}   # kubectl and helm see this cluster alone",
            ]
        ),
    ]


def _step(
    number: int, step: Step, plan: list[Planned], layout: Layout, names: dict[str, str]
) -> list[str]:
    mine = [each for each in plan if each.part.step == step]
    commands: list[str] = []
    for each in mine:
        if each.part.missing:
            commands.append(f"{each.part.missing}   # your part")
        creates = each.part.create if each.action.kind == "stop" else each.commands
        commands += [command.text for command in creates]
        token = layout.settings.hf_token_secret
        if each.part.kind == "namespace" and token is not None:
            create = f"kubectl -n {layout.settings.namespace} create secret generic {token}"
            commands.append(f"{create} --from-literal=token=…   # only for gated models")
    rest = [each for each in mine if each.with_ and step == "cluster"]
    alone = [command.text for each in rest for command in each.part.create]
    return [
        f"## {number}. {TITLES[step]} ({minutes(mine)}, estimated)",
        "",
        *[f"- makes {each.part.title}" for each in mine],
        "",
        *_block(commands),
        "Done when:",
        "",
        *_block(_proofs(step, layout)),
        f"If not: {_WRONG[step].format(**names)}",
        *(
            ["", "If it was cut off half-way, the rest one by one:", "", *_block(alone)]
            if alone
            else [""]
        ),
    ]


def _after(layout: Layout, naming: Naming) -> list[str]:
    settings = layout.settings
    serves = serve_service_name(layout)
    key = ' -H "Authorization: Bearer $KEY"' if layout.app.baton.auth.asks_for_keys else ""
    return [
        "## 5. Proof",
        "",
        *_text(
            "That it answers is no proof that KV goes over EFA. This measures it, reads what every"
            " worker's NIXL really opened, and the devices' own counters:"
        ),
        "",
        *_block([f"baton eks verify {naming.flags}"]),
        "## 6. A question",
        "",
        *_block(
            [
                f"kubectl -n {settings.namespace} port-forward svc/{serves} 8000:8000 &",
                f"curl -s localhost:8000/v1/models{key}",
            ]
        ),
    ]


def _undo(layout: Layout, parts: list[Part], naming: Naming) -> list[str]:
    commands = [c.text for part in reversed(parts) for c in part.delete]
    reservation = layout.settings.capacity_reservation_id
    costs = f" The reservation {reservation} costs until it ends." if reservation else ""
    return [
        "## Back to nothing",
        "",
        *_text(
            f"`baton eks delete {naming.flags}` does this, in this order, and touches nothing that"
            " does not carry Baton's tag. By hand, look first whether anybody else uses the"
            " cluster: `kubectl get rayservices -A`, `kubectl get all -A`."
        ),
        "",
        *_block(commands),
        *_text(
            "What may still cost: volumes of PersistentVolumeClaims, load balancers made by hand,"
            f" images in ECR, logs in CloudWatch, capacity reservations.{costs}"
        ),
        "",
    ]


def _text(paragraph: str) -> list[str]:
    return textwrap.wrap(paragraph, 98, break_long_words=False, break_on_hyphens=False)


def _block(lines: list[str]) -> list[str]:
    return ["```", *lines, "```", ""]
