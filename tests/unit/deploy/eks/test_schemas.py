"""Every rendered object keeps to the published schema of its kind."""

from __future__ import annotations

import json
from typing import Any

import jsonschema
import pytest
import yaml

from baton.deploy.eks.render import render
from tests.unit.deploy.eks.rendered import (
    G6,
    P5,
    changed,
    document,
    documents,
    files,
    layout,
    published_schemas,
    schema_errors,
    validator,
)

# No published schema of these is at hand: Kustomize's is its own binary (tests/integration), the
# Prometheus operator's CRD is not carried.
UNSCHEMED = {"Kustomization", "ServiceMonitor"}


def every_object(made: dict[str, str]) -> list[Any]:
    found = []
    for name, text in made.items():
        if name.startswith(("eksctl/", "k8s/")):
            found += documents(text)
    return found


@pytest.mark.parametrize("name", [G6, P5])
def test_every_object_of_the_examples_keeps_to_its_schema(name: str) -> None:
    """eksctl's ClusterConfig, KubeRay's RayService with unknown fields refused, Kubernetes 1.34."""
    checked = [o for o in every_object(files(name)) if o["kind"] not in UNSCHEMED]
    assert {"ClusterConfig", "RayService", "NetworkPolicy"} <= {o["kind"] for o in checked}
    assert [error for o in checked for error in schema_errors(o)] == []


def test_every_option_keeps_to_the_schemas() -> None:
    """What the examples leave off: ALB, Redis, a claim, taints, a capacity block, IPC_LOCK."""
    everything = changed(
        ingress="internal",
        ingress_host="llm.example.com",
        ingress_certificate_arn="arn:aws:acm:us-west-2:111122223333:certificate/1",
        gcs_fault_tolerance="redis",
        redis_address="redis:6379",
        redis_password_secret="redis",
        model_cache="claim",
        model_cache_claim="models",
        gpu_taint="nvidia.com/gpu",
        capacity_reservation_id="cr-0123456789abcdef0",
        capacity_block="true",
        security="ipc-lock",
    )
    made = render(everything)
    checked = [o for o in every_object(made) if o["kind"] not in UNSCHEMED]
    assert "Ingress" in {o["kind"] for o in checked}
    assert [error for o in checked for error in schema_errors(o)] == []


def test_the_plain_flavour_keeps_to_the_schemas() -> None:
    """Deployment, StatefulSets, Services and ConfigMap, and nothing of KubeRay's."""
    made = render(changed(flavor="plain"))
    checked = [o for o in every_object(made) if o["kind"] not in UNSCHEMED]
    kinds = [o["kind"] for o in checked]
    assert kinds.count("StatefulSet") == 2
    assert "RayService" not in kinds
    assert "helm/kuberay-operator.values.yaml" not in made
    assert [error for o in checked for error in schema_errors(o)] == []


@pytest.mark.parametrize(
    ("kind", "spoil"),
    [
        ("RayService", lambda o: o["spec"]["rayClusterConfig"].update(headGroupSpecs={})),
        ("RayService", lambda o: o["spec"]["rayClusterConfig"]["headGroupSpec"]["template"]["spec"][
            "containers"][0].update(resource={})),
        ("RayService", lambda o: o["spec"]["rayClusterConfig"]["headGroupSpec"][
            "rayStartParams"].update({"num-gpus": 0})),
        ("ClusterConfig", lambda o: o["managedNodeGroups"][0].update(efaEnable=True)),
        ("NetworkPolicy", lambda o: o["spec"].update(ingres=[])),
    ],
)  # fmt: skip
def test_the_schemas_find_a_misspelt_field(kind: str, spoil: Any) -> None:
    """Otherwise the tests above would pass for nothing."""
    good = next(o for o in every_object(files()) if o["kind"] == kind)
    spoiled = json.loads(json.dumps(good))
    spoil(spoiled)
    assert schema_errors(spoiled) != []


def test_helm_values_are_keys_of_the_operators_chart() -> None:
    """A key that the chart does not have would have no effect."""
    folder = published_schemas()
    if folder is None:
        pytest.skip("the published schemas are not here: BATON_SCHEMAS names their folder")
    text = (folder / "kuberay-operator-values.yaml").read_text(encoding="utf-8")
    known = yaml.safe_load(text)
    mine = document(files()["helm/kuberay-operator.values.yaml"])

    def unknown(value: Any, there: Any, path: str = "") -> list[str]:
        # `resources` is passed on as it is: its keys are Kubernetes'.
        if not isinstance(value, dict) or not there or path == "resources.":
            return []
        found = [f"{path}{key}" for key in value if key not in there]
        for key in set(value) & set(there):
            found += unknown(value[key], there[key], f"{path}{key}.")
        return found

    assert unknown(mine, known) == []


def test_the_snapshot_says_what_the_published_schemas_say() -> None:
    """They are compared where both are at hand, so that the snapshot cannot grow old unseen."""
    folder = published_schemas()
    if folder is None:
        pytest.skip("the published schemas are not here: BATON_SCHEMAS names their folder")
    raw = json.loads((folder / "eksctl-clusterconfig.schema.json").read_text(encoding="utf-8"))
    published = jsonschema.Draft7Validator(raw)
    for name in ("eksctl/cluster.yaml", "eksctl/nodegroups.yaml"):
        config = document(files()[name])
        assert list(published.iter_errors(config)) == []
    snapshot = validator("ClusterConfig").schema["definitions"]["ManagedNodeGroup"]["properties"]
    assert set(snapshot) == set(raw["definitions"]["ManagedNodeGroup"]["properties"])


def test_the_layout_is_the_examples() -> None:
    """1P1D on two nodes, 2P6D on eight."""
    assert [(g.role, g.nodes, g.workers, g.gpus, g.efa) for g in layout(G6).groups] == [
        ("prefill", 1, 1, 1, 1),
        ("decode", 1, 1, 1, 1),
    ]
    assert [(g.role, g.nodes, g.workers, g.gpus, g.efa) for g in layout(P5).groups] == [
        ("prefill", 2, 2, 8, 32),
        ("decode", 6, 6, 8, 32),
    ]
