"""Layouts and files of the examples, made once, and ways to change a file or the settings."""

from __future__ import annotations

import gzip
import json
import os
from functools import cache
from pathlib import Path
from typing import TYPE_CHECKING, Any

import jsonschema
import yaml

from baton.deploy.eks.layout import Layout, layout_of
from baton.deploy.eks.origins import Resolved, read_settings, resolve
from baton.deploy.eks.render import plan_layout, render
from baton.errors import ConfigRefused
from baton.spec.check import examine
from baton.spec.load import load_text

if TYPE_CHECKING:
    from collections.abc import Callable

ROOT = Path(__file__).parents[4]
EXAMPLES = ROOT / "examples"
G6, P5 = "03-eks-g6", "04-eks-p5"


def settings(name: str, **flags: Any) -> Resolved:
    """An example's settings, some of them changed; nothing comes from this machine."""
    return resolve(flags, {}, read_settings(EXAMPLES / name / "eks.yaml", {}))


def app_text(name: str) -> str:
    """An example's YAML."""
    return (EXAMPLES / name / "app.yaml").read_text(encoding="utf-8")


@cache
def layout(name: str = G6) -> Layout:
    """An example as it is."""
    return plan_layout(EXAMPLES / name / "app.yaml", settings(name), {})


@cache
def files(name: str = G6) -> dict[str, str]:
    """An example's files."""
    return render(layout(name))


def changed(change: Callable[[Any], None] | None = None, name: str = G6, **flags: Any) -> Layout:
    """The layout of an example after `change(application)` and with some flags."""
    document = yaml.safe_load(app_text(name))
    if change is not None:
        change(document["applications"][0])
    text = yaml.safe_dump(document, sort_keys=False)
    report = examine(load_text(text, "app.yaml", {}), look_for_model=False)
    assert report.checked is not None, report.errors
    return layout_of(report.checked, settings(name, **flags))


def refused(change: Callable[[Any], None] | None = None, name: str = G6, **flags: Any) -> list[Any]:
    """The faults for which `changed` refuses."""
    try:
        changed(change, name, **flags)
    except ConfigRefused as refusal:
        return list(refusal.faults)
    raise AssertionError("nothing was refused")


def documents(text: str) -> list[Any]:
    """The YAML documents of a file."""
    return list(yaml.safe_load_all(text))


def document(text: str) -> Any:
    """The only one."""
    (only,) = documents(text)
    return only


def pods(service: Any) -> dict[str, Any]:
    """Pod specs of a RayService: of the head, and of each group by its name."""
    cluster = service["spec"]["rayClusterConfig"]
    found = {"head": cluster["headGroupSpec"]["template"]["spec"]}
    for group in cluster["workerGroupSpecs"]:
        found[group["groupName"]] = group["template"]["spec"]
    return found


def env(pod: Any) -> dict[str, Any]:
    """Environment of a pod's first container: values, or where they come from."""
    listed = pod["containers"][0]["env"]
    return {item["name"]: item.get("value", item.get("valueFrom")) for item in listed}


@cache
def schemas() -> dict[str, Any]:
    """The snapshot that `tools/snapshot_schemas.py` wrote."""
    raw = (ROOT / "src" / "baton" / "deploy" / "eks" / "schemas.json.gz").read_bytes()
    snapshot: dict[str, Any] = json.loads(gzip.decompress(raw))
    return snapshot


@cache
def validator(kind: str) -> Any:
    """What checks one kind: a Kubernetes kind, `ClusterConfig` or `RayService`."""
    if kind == "ClusterConfig":
        return jsonschema.Draft7Validator(schemas()["eksctl"])
    if kind == "RayService":
        return jsonschema.Draft7Validator(schemas()["rayservice"])
    known = schemas()["kubernetes"]
    return jsonschema.Draft202012Validator({**known["kinds"][kind], "$defs": known["$defs"]})


def schema_errors(value: Any) -> list[str]:
    """Where a rendered object does not keep to its published schema."""
    found = validator(value["kind"]).iter_errors(value)
    return [f"{'.'.join(map(str, e.absolute_path))}: {e.message[:200]}" for e in found]


def published_schemas() -> Path | None:
    """The folder with the published schemas, as the snapshot's tool took them; BATON_SCHEMAS."""
    own = os.environ.get("BATON_SCHEMAS")
    return Path(own) if own else None
