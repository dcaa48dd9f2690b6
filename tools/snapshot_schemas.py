"""Writes `src/baton/deploy/eks/schemas.json.gz`: the schemas that rendered files are held against.

    python tools/snapshot_schemas.py WHEEL SCHEMAS

WHEEL is PyPI's `kubernetes-validate` (Kubernetes' own OpenAPI as JSON Schema), SCHEMAS a folder
with `eksctl-clusterconfig.schema.json` (eksctl's) and `ray.io_rayservices.yaml` (KubeRay's chart,
`crds/`). Kept are the kinds that Baton renders, without descriptions, unknown fields refused.
"""

from __future__ import annotations

import argparse
import gzip
import json
import sys
import zipfile
from pathlib import Path
from typing import Any

import yaml

SNAPSHOT = Path(__file__).parents[1] / "src" / "baton" / "deploy" / "eks" / "schemas.json.gz"
KUBERNETES = "v1.34.0"
KINDS = {
    "Namespace": "namespace-v1",
    "ConfigMap": "configmap-v1",
    "Service": "service-v1",
    "Deployment": "deployment-apps-v1",
    "StatefulSet": "statefulset-apps-v1",
    "NetworkPolicy": "networkpolicy-networking-v1",
    "PodDisruptionBudget": "poddisruptionbudget-policy-v1",
    "Ingress": "ingress-networking-v1",
}
_DROPPED = frozenset({"description", "x-intellij-html-description", "preferredOrder", "format"})


def slim(node: Any) -> Any:
    """A schema without its prose."""
    if isinstance(node, list):
        return [slim(item) for item in node]
    if not isinstance(node, dict):
        return node
    # Below `properties` the keys are field names, `description` and `format` among them.
    return {
        key: {name: slim(item) for name, item in value.items()}
        if key == "properties"
        else slim(value)
        for key, value in node.items()
        if key not in _DROPPED
    }


def closed(node: Any) -> Any:
    """A CRD's schema that refuses unknown fields, as `resource:` for `resources:`."""
    if isinstance(node, list):
        return [closed(item) for item in node]
    if not isinstance(node, dict):
        return node
    kept = {
        key: {name: closed(item) for name, item in value.items()}
        if key == "properties"
        else closed(value)
        for key, value in node.items()
        if not key.startswith("x-kubernetes")
    }
    if node.get("x-kubernetes-int-or-string"):
        kept["type"] = ["integer", "string"]
    if "properties" in node and not node.get("x-kubernetes-preserve-unknown-fields"):
        kept["additionalProperties"] = False
    return kept


def kubernetes(wheel: Path) -> dict[str, Any]:
    """The kinds, and every definition that they lead to."""
    base = f"kubernetes_validate/kubernetes-json-schema/{KUBERNETES}-local-strict/"
    with zipfile.ZipFile(wheel) as archive:
        definitions = json.loads(archive.read(base + "_definitions.json"))["$defs"]
        roots = {kind: json.loads(archive.read(f"{base}{n}.json")) for kind, n in KINDS.items()}
    kept: dict[str, Any] = {}

    def local(node: Any) -> Any:
        if isinstance(node, list):
            return [local(item) for item in node]
        if not isinstance(node, dict):
            return node
        if isinstance(node.get("$ref"), str):
            name = node["$ref"].rpartition("/")[2]
            if name not in kept:
                kept[name] = {}
                kept[name] = local(slim(definitions[name]))
            return {"$ref": f"#/$defs/{name}"}
        return {key: local(value) for key, value in node.items()}

    schemas = {kind: local(slim(root)) for kind, root in roots.items()}
    return {"kinds": schemas, "$defs": kept}


def ray_service(path: Path) -> Any:
    """The served version of KubeRay's RayService."""
    crd = yaml.safe_load(path.read_text(encoding="utf-8"))
    version = next(v for v in crd["spec"]["versions"] if v["name"] == "v1")
    schema = closed(slim(version["schema"]["openAPIV3Schema"]))
    # The API server has its own schema for this.
    schema["properties"]["metadata"] = {"type": "object"}
    return schema


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("wheel", type=Path)
    parser.add_argument("schemas", type=Path)
    asked = parser.parse_args()
    eksctl = asked.schemas / "eksctl-clusterconfig.schema.json"
    snapshot = {
        "sources": {
            "kubernetes": f"{asked.wheel.name}, Kubernetes {KUBERNETES}",
            "eksctl": "eksctl ClusterConfig v1alpha5, main of August 2026",
            "rayservice": "KubeRay chart v1.7.0, crds/ray.io_rayservices.yaml",
        },
        "kubernetes": kubernetes(asked.wheel),
        "eksctl": slim(json.loads(eksctl.read_text(encoding="utf-8"))),
        "rayservice": ray_service(asked.schemas / "ray.io_rayservices.yaml"),
    }
    text = json.dumps(snapshot, separators=(",", ":"), sort_keys=True)
    SNAPSHOT.write_bytes(gzip.compress(text.encode(), mtime=0))
    sys.stderr.write(f"{SNAPSHOT}: {len(text)} characters\n")
    return 0


if __name__ == "__main__":
    sys.exit(main())
