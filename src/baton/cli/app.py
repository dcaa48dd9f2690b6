"""`baton`: finds the verb, and turns a `BatonError` into one line, a hint and an exit status."""

from __future__ import annotations

import importlib
import importlib.util
import sys
from typing import Any

import click

from baton import __version__
from baton.errors import BatonError, ConfigRefused

# Verb, module, one line of help. The module is imported only when its verb is called: `validate`
# must not pay for Ray.
VERBS: dict[str, tuple[str, str]] = {
    "bench": ("baton.cli.bench", "Measure an endpoint under load, or P/D against plain engines."),
    "conformance": ("baton.cli.conformance", "Hold an endpoint to the OpenAI API, case by case."),
    "dashboards": ("baton.cli.dashboards", "Write Grafana dashboards and Prometheus alert rules."),
    "demo": ("baton.cli.demo", "Run the whole thing once on this machine, and prove it."),
    "doctor": ("baton.cli.doctor", "Check this machine against what Baton needs."),
    "down": ("baton.cli.down", "Stop a deployment that `baton up` started."),
    "drill": ("baton.cli.drill", "Break things under load, and count what callers lose."),
    "eks": ("baton.cli.eks", "Plan, make, check and remove a deployment on Amazon EKS."),
    "engine": ("baton.cli.engine", "Start one engine (simulated) behind vLLM's HTTP protocol."),
    "explain": ("baton.cli.explain", "Say why a rule exists and where it comes from."),
    "gateway": ("baton.cli.gateway", "Start a gateway in front of engines that already run."),
    "image": ("baton.cli.image", "Check a container image from the inside."),
    "logs": ("baton.cli.logs", "Show the lines of a deployment, or of one request, by time."),
    "plan": ("baton.cli.plan", "Say which engines, how many, and whether to disaggregate."),
    "profile": ("baton.cli.profile", "Measure a running engine, for `baton plan`."),
    "schema": ("baton.cli.schema", "Print the JSON Schema of the YAML, for editors."),
    "status": ("baton.cli.status", "List what runs: replicas, roles, backends, load, health."),
    "support-bundle": (
        "baton.cli.support_bundle",
        "Pack what helps to find a fault, without secrets and prompts.",
    ),
    "up": ("baton.cli.up", "Deploy a YAML and wait for its first real handoff."),
    "verify": ("baton.cli.verify", "Prove what KV travels on, how fast, and that answers hold."),
    "validate": ("baton.cli.validate", "Check a YAML before anything starts."),
}


class _LateGroup(click.Group):
    """A group whose verbs are imported when they are called."""

    def list_commands(self, ctx: click.Context) -> list[str]:  # noqa: ARG002
        return [verb for verb in VERBS if importlib.util.find_spec(VERBS[verb][0]) is not None]

    def get_command(self, ctx: click.Context, cmd_name: str) -> click.Command | None:  # noqa: ARG002
        if cmd_name not in VERBS:
            return None
        module = importlib.import_module(VERBS[cmd_name][0])
        command: click.Command = module.command
        return command

    def format_commands(self, ctx: click.Context, formatter: click.HelpFormatter) -> None:
        rows = [(verb, VERBS[verb][1]) for verb in self.list_commands(ctx)]
        if not rows:
            return
        with formatter.section("Commands"):
            formatter.write_dl(rows)


@click.group(cls=_LateGroup, context_settings={"help_option_names": ["-h", "--help"]})
@click.version_option(__version__, prog_name="baton")
def cli() -> None:
    """Prefill/decode disaggregated LLM serving on vLLM, Ray Serve and NIXL, from one YAML."""


def report(error: BatonError) -> None:
    """Print an error as fact, place and cure to stderr; a refused file with all of its faults."""
    if isinstance(error, ConfigRefused) and error.faults:
        from baton.cli.faults import summary, text_of

        click.echo(text_of(error.faults), err=True)
        click.echo(f"refused: {summary(error.faults, 1)}", err=True)
        return
    place = f" ({error.place})" if error.place else ""
    click.echo(f"error: {error.fact}{place}", err=True)
    if error.cure:
        click.echo(f"\nhint: {error.cure}", err=True)


def main(argv: list[str] | None = None) -> Any:
    """Entry point of the `baton` command."""
    try:
        return cli.main(args=argv, prog_name="baton")
    except BatonError as error:
        report(error)
        sys.exit(error.exit_status)


if __name__ == "__main__":
    main()
