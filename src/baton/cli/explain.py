"""`baton explain BTN-121`: why a rule exists and where it comes from."""

from __future__ import annotations

import click

from baton.deploy.eks.findings import KINDS
from baton.deploy.eks.live.checks import all_checks
from baton.deploy.image.rules import RULES
from baton.errors import BatonError
from baton.spec.rules import all_rules, find_rule
from baton.spec.suggest import nearest


@click.command()
@click.argument("rule_id", required=False, metavar="[RULE]")
def command(rule_id: str | None) -> None:
    """Say why a rule exists. Without a RULE, list all of them."""
    all_checks()
    of_images = {rule.rule_id: rule for rule in RULES}
    if rule_id is None:
        for rule in all_rules():
            click.echo(f"{rule.rule_id}  {rule.severity:<7}  {rule.title}")
        for kind in KINDS.values():
            click.echo(f"{kind.rule_id}  {'error':<7}  {kind.title}")
        for image_rule in RULES:
            click.echo(f"{image_rule.rule_id}  {'error':<7}  {image_rule.title}")
        return
    of_image = of_images.get(rule_id.upper())
    if of_image is not None:
        click.echo(f"{of_image.rule_id} (error): {of_image.title}\n\n{of_image.why}")
        return
    of_eks = KINDS.get(rule_id.upper())
    if of_eks is not None:
        click.echo(f"{of_eks.rule_id} (error): {of_eks.title}\n\n{of_eks.why}")
        return
    found = find_rule(rule_id)
    if found is None:
        near = nearest(rule_id, [*(rule.rule_id for rule in all_rules()), *KINDS, *of_images])
        guess = f"did you mean {near}? " if near else ""
        raise BatonError(
            f"there is no rule `{rule_id}`", cure=f"{guess}`baton explain` lists all rules"
        )
    click.echo(f"{found.rule_id} ({found.severity}): {found.title}\n\n{found.why}")
