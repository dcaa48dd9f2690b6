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
from baton.deploy.eks.live.runbook_proofs import asks, proofs
from baton.deploy.eks.live.runbook_signing import (
    SIGNED,
    image_commands,
    nothing_left,
    opens,
    price_question,
    to_settle,
    versions_wanted,
    what_runs,
)
from baton.deploy.eks.plain import serve_service_name

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
    found: list[str] = []
    sources: list[str] = []
    for line in cost.lines:
        each = "unknown" if line.price is None else f"${line.price.usd_per_hour:.4g}"
        total = "unknown" if line.usd_per_hour is None else f"${line.usd_per_hour:.4g}"
        mark = ""
        if line.price is not None:
            sources.append(f"[{len(sources) + 1}] {line.price.date}: {line.price.source}")
            mark = f"  [{len(sources)}]"
        found.append(f"{line.count:>3} x {line.what:<42} {each:>8} {total:>8}{mark}")
    known = f"${cost.known_usd_per_hour:.2f} an hour, ${24 * cost.known_usd_per_hour:.2f} a day"
    if cost.unknown:
        found.append(f"Known: {known}. Not known, and on top: {'; '.join(cost.unknown)}.")
    else:
        found.append(f"In all: {known}.")
    found.append("Prices are of the region that the source names; look yours up before you sign.")
    return [*found, *sources]


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
        f"image {layout.image}: {what_runs(layout)}; {versions_wanted()} are expected in it",
        *_layout_lines(layout),
        *[f"note: {note}" for note in layout.notes],
    ]


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
        "## To settle before it is signed",
        "",
        *_items(to_settle(layout, verdicts, cost)),
        "",
        "## What it opens, and to whom",
        "",
        *_items(opens(layout)),
        "",
        "## What it costs an hour while it stands",
        "",
        *_block([f"{'':<48} {'each':>8} {'all':>8}", *cost_lines(cost)]),
        *_prices(layout, cost),
        *_before(layout, naming, verdicts),
    ]
    for number, step in enumerate(STEPS, 1):
        lines += _step(number, step, plan, layout, naming)
    lines += _after(layout, naming)
    lines += _undo(layout, parts, naming)
    return "\n".join(lines)


def _before(layout: Layout, naming: Naming, verdicts: list[Verdict]) -> list[str]:
    checks = ["| check | what it refuses | now |", "| --- | --- | --- |"]
    for verdict in verdicts:
        now = f"**{verdict.word}**: {verdict.text}"
        if verdict.word == "unknown":
            now = "asked then" if verdict.must else "asked then; told, not refused, if unknown"
        checks.append(f"| {verdict.rule_id} | {verdict.title} | {now} |")
    image = image_commands(layout)
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
        *(["The image, if it is not in the registry yet:", "", *_block(image)] if image else []),
        "By hand:",
        "",
        *_block(
            [
                *asks(layout),
                f"baton eks render {naming.flags} -o {naming.folder} && cd {naming.folder}",
                f"export KUBECONFIG=$PWD/{KUBECONFIG}   # kubectl and helm see this cluster alone",
            ]
        ),
    ]


def _step(
    number: int, step: Step, plan: list[Planned], layout: Layout, naming: Naming
) -> list[str]:
    settings = layout.settings
    names = {
        "cluster": settings.cluster_name, "region": f"--region {settings.region}",
        "namespace": settings.namespace, "name": layout.name,
    }  # fmt: skip
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
            from_file = f"{create} --from-file=token=/dev/stdin"
            commands.append(f'printf %s "$HF_TOKEN" | {from_file}   # only for gated models')
    rest = [each for each in mine if each.with_ and step == "cluster"]
    alone = [command.text for each in rest for command in each.part.create]
    back = f"`baton eks delete {naming.flags} --step {step}`"
    if step != "app":
        back += ", after the steps behind it"
    return [
        f"## {number}. {TITLES[step]} ({minutes(mine)}, estimated)",
        "",
        *[f"- makes {each.part.title}" for each in mine],
        "",
        *_block(commands),
        "Done when:",
        "",
        *_block(proofs(step, layout)),
        f"If not: {_WRONG[step].format(**names)}",
        "",
        f"Taken back by: {back}",
        *(
            ["", "If it was cut off half-way, the rest one by one:", "", *_block(alone)]
            if alone
            else [""]
        ),
    ]


def _after(layout: Layout, naming: Naming) -> list[str]:
    settings = layout.settings
    serves = serve_service_name(layout)
    asks_keys = layout.app.baton.auth.asks_for_keys
    key = ' -H "Authorization: Bearer $KEY"' if asks_keys else ""
    model = layout.app.roles["decode"].model_id
    body = (
        f'{{"model": "{model}", "messages": [{{"role": "user", "content": "Hello"}}],'
        ' "max_tokens": 16}'
    )
    return [
        "## 5. Proof",
        "",
        *_text(
            "That it answers is no proof that KV goes over EFA. This measures it, reads what every"
            " worker's NIXL really opened, and the devices' own counters:"
        ),
        "",
        *_block(
            [
                "cd -   # by hand: back from the rendered folder",
                f"baton eks verify {naming.flags}",
            ]
        ),
        "## 6. A question",
        "",
        *_block(
            [
                f"kubectl -n {settings.namespace} port-forward svc/{serves} 8000:8000 &",
                *(["export KEY=…   # what stands behind the colon"] if asks_keys else []),
                f"curl -s localhost:8000/v1/models{key}",
                (
                    f"curl -s localhost:8000/v1/chat/completions{key}"
                    f" -H 'Content-Type: application/json' -d '{body}'"
                ),
                "kill %1   # ends the port-forward",
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
        "Nothing is left when these say nothing:",
        "",
        *_block(nothing_left(layout)),
        "## Signed",
        "",
        *SIGNED,
        "",
    ]


def _prices(layout: Layout, cost: Cost) -> list[str]:
    asked = price_question(layout, cost)
    return ["What AWS says an unknown type costs:", "", *_block(asked)] if asked else []


def _items(lines: Iterable[str]) -> list[str]:
    found = []
    for line in lines:
        first, *rest = textwrap.wrap(line, 96, break_long_words=False, break_on_hyphens=False)
        found += [f"- {first}", *(f"  {more}" for more in rest)]
    return found


def _text(paragraph: str) -> list[str]:
    return textwrap.wrap(paragraph, 98, break_long_words=False, break_on_hyphens=False)


def _block(lines: list[str]) -> list[str]:
    return ["```", *lines, "```", ""]
