"""`baton schema`: the JSON Schema of the YAML, for editors."""

from __future__ import annotations

import json

import click


@click.command()
def command() -> None:
    """Print the JSON Schema of the whole file.

    In a YAML file, editors find it by a first line such as
    `# yaml-language-server: $schema=app.schema.json`.
    """
    from baton.spec.json_schema import file_schema

    click.echo(json.dumps(file_schema(), indent=2))
