"""The frame of a Serve config: what stands around the applications."""

from __future__ import annotations

import datetime as dt
from typing import TYPE_CHECKING, Any

from baton.spec import catalog
from baton.spec.faults import Path, shown
from baton.spec.rules.registry import Finding
from baton.spec.rules.serving import gone_argument
from baton.spec.typecheck import check_fields, check_value, missing_key, wrong_type
from baton.spec.view import text

if TYPE_CHECKING:
    from collections.abc import Iterator

_ROLE_KEYS = {"prefill_config", "decode_config"}


def check_frame(document: Any) -> Iterator[Finding]:
    """Yields what Ray's `ServeDeploySchema` refuses, and what it ignores without a word."""
    if not isinstance(document, dict):
        yield Finding(
            (),
            "this is no Serve config",
            found=shown(document),
            allowed="a mapping with `applications`",
            cure="see examples/01-laptop-1p1d/app.yaml",
        )
        return
    yield from _dates(document, ())
    fields = catalog.objects()["ServeDeploySchema"]
    if "applications" not in document:
        yield _without_applications(document)
    # `x-…` is where people keep what anchors share, as in Compose files; Ray ignores it rightly.
    rest = {
        key: value
        for key, value in document.items()
        if key != "applications" and not str(key).startswith("x-")
    }
    manifest = "apiVersion" in document and "kind" in document
    if "applications" in document or not (manifest or _ROLE_KEYS & set(document)):
        yield from check_fields(fields, rest, (), "ServeDeploySchema")
    applications = document.get("applications")
    if "applications" not in document:
        return
    if not isinstance(applications, list):
        yield wrong_type({"list": "any"}, applications, ("applications",))
        return
    if not applications:
        yield Finding(
            ("applications",),
            "there is no application",
            found="[]",
            allowed="one or more",
            cure="see examples/01-laptop-1p1d/app.yaml",
        )
    for index, app in enumerate(applications):
        yield from _check_application(app, ("applications", index))
    yield from _taken_twice(applications, "name")
    yield from _taken_twice(applications, "route_prefix")


def _dates(value: Any, path: Path) -> Iterator[Finding]:
    """YAML reads `2024-01-02` as a date, which cannot be sent as JSON: no layer below takes one."""
    if isinstance(value, dt.date):
        yield Finding(
            path,
            f"`{value}` is read as a date",
            found=str(value),
            allowed="text in quotes",
            cure=f'write "{value}"',
            at_value=True,
        )
    elif isinstance(value, dict):
        for key, item in value.items():
            yield from _dates(item, (*path, key))
    elif isinstance(value, list):
        for index, item in enumerate(value):
            yield from _dates(item, (*path, index))


def _without_applications(document: dict[Any, Any]) -> Finding:
    if _ROLE_KEYS & set(document):
        cure = (
            "this looks like the `args` of an application; write applications: [{name: …,"
            " import_path: baton:build_pd_openai_app, args: …}]"
        )
    elif "import_path" in document:
        cure = "this looks like one application; put it into a list below `applications:`"
    elif "apiVersion" in document:
        kind = str(document.get("kind", "manifest"))
        cure = f"this is a {kind}; Baton reads a RayService, or a Serve config alone"
        if kind.lower() == "rayservice":
            cure = "write kind: RayService"
    else:
        cure = "see examples/01-laptop-1p1d/app.yaml"
    return Finding(
        ("applications",),
        "`applications` is missing",
        found=", ".join(map(str, document)) or "nothing",
        allowed="a list",
        cure=cure,
    )


def _check_application(app: Any, path: Path) -> Iterator[Finding]:
    if not isinstance(app, dict):
        yield wrong_type({"dict": "any"}, app, path)
        return
    fields = catalog.objects()["ServeApplicationSchema"]
    own = {"args", "baton", *_ROLE_KEYS}
    plain = {k: v for k, v in app.items() if k not in own and gone_argument(k) is None}
    yield from check_fields(fields, plain, path, "ServeApplicationSchema")
    if "args" in app and app["args"] is not None:
        yield from check_value({"dict": "any"}, app["args"], (*path, "args"))
    if "import_path" not in app:
        yield missing_key("import_path", path)
    elif isinstance(app["import_path"], str):
        yield from _import_path(app["import_path"], (*path, "import_path"))
    route = app.get("route_prefix")
    if isinstance(route, str):
        yield from _route(route, (*path, "route_prefix"))
    name = app.get("name")
    if name == "":
        yield Finding((*path, "name"), "an application needs a name", found="''", cure="name it")


def _import_path(value: str, path: Path) -> Iterator[Finding]:
    """Ray 2.60 `ServeApplicationSchema.import_path_format_valid`."""
    parts = value.split(":") if ":" in value else value.rsplit(".", 1)
    if len(parts) != 2 or not all(parts):  # noqa: PLR2004 - module and name
        yield Finding(
            path,
            f"`{value}` is no import path",
            found=value,
            allowed="module:name",
            cure="write baton:build_pd_openai_app",
            at_value=True,
        )


def _route(route: str, path: Path) -> Iterator[Finding]:
    """Ray 2.60 `serve/_private/utils.py`, `validate_route_prefix`."""
    problem = None
    if not route.startswith("/"):
        problem = "must start with a slash"
    elif route != "/" and route.endswith("/"):
        problem = "must not end with a slash"
    elif "{" in route or "}" in route:
        problem = "may not contain wildcards"
    if problem is not None:
        fixed = "/" + route.strip("/")
        yield Finding(
            path,
            f"`route_prefix` {problem}",
            found=route,
            allowed=fixed,
            cure=f"write {fixed}",
            at_value=True,
        )


def _taken_twice(applications: list[Any], key: str) -> Iterator[Finding]:
    """Ray 2.60 `ServeDeploySchema.application_names_unique` and `application_routes_unique`."""
    default = {"name": "default", "route_prefix": "/"}[key]
    first: dict[str, int] = {}
    for index, app in enumerate(applications):
        if not isinstance(app, dict):
            continue
        value = text(app.get(key, default))
        if value is None:
            continue
        if value in first:
            yield Finding(
                ("applications", index, key),
                f"two applications have the {key} `{value}`",
                found=value,
                allowed=f"a {key} of its own for each",
                cure=f"change one {key}",
                related=(("the first one", ("applications", first[value], key)),),
            )
        first.setdefault(value, index)
