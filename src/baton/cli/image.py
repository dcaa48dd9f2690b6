"""`baton image`: whether a container image holds what it says. Run inside it."""

from __future__ import annotations

import json
import sys
from typing import TYPE_CHECKING

import click

if TYPE_CHECKING:
    from baton.deploy.image.facts import ImageFacts
    from baton.deploy.image.findings import Finding

_COLOURS = {"pass": "green", "warn": "yellow", "fail": "red", "unknown": "yellow"}


@click.group("image")
def command() -> None:
    """Check a container image from the inside. How they are built: deploy/image."""


@command.command("check")
@click.option(
    "--kind",
    type=click.Choice(["cpu", "gpu"]),
    help="Which set it should hold; by what is installed if absent.",
)
@click.option("--json", "as_json", is_flag=True, help="Everything that was seen and found.")
def check(kind: str | None, as_json: bool) -> None:
    """Prove the set: versions, libraries, NIXL backends, and no two copies of one library.

    Loads vLLM and Ray, so it takes some ten seconds. Exit status 1 when something is wrong, 2 when
    something could not be found out here, else 0.
    """
    from baton.deploy.image.look import look
    from baton.deploy.image.rules import as_data, judge, outcome

    facts = look(kind)  # type: ignore[arg-type]  # click has checked it
    findings = judge(facts)
    if as_json:
        click.echo(json.dumps(as_data(facts, findings), indent=2))
    else:
        _print(facts, findings)
    sys.exit(outcome(findings))


def _print(facts: ImageFacts, findings: list[Finding]) -> None:
    what = f"image {facts.image}" if facts.image else "no image of Baton's"
    click.echo(f"{what}, set {facts.kind}, pins {facts.pins_from or 'not found'}")
    for finding in findings:
        word = click.style(f"{finding.word:<7}", fg=_COLOURS[finding.word])
        place = f"  ({finding.place})" if finding.place else ""
        click.echo(f"{word} {finding.rule_id}  {finding.fact}{place}")
        if finding.cure:
            click.echo(f"{'':<7} hint: {finding.cure}")
    counts = {word: sum(f.word == word for f in findings) for word in _COLOURS}
    click.echo(", ".join(f"{n} {word}" for word, n in counts.items() if n), err=True)
