"""All files of a deployment as texts. The same file, settings and environment: the same bytes."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from baton.deploy.eks import cluster, kuberay, nodegroup, policies, rayservice
from baton.deploy.eks.layout import layout_of
from baton.deploy.eks.plain import plain_objects, serve_service_name
from baton.deploy.eks.pods import secret_flags
from baton.deploy.eks.yaml_text import yaml_text
from baton.spec.check import examine, refusal
from baton.spec.load import load_file

if TYPE_CHECKING:
    from collections.abc import Mapping
    from pathlib import Path

    from baton.deploy.eks.layout import Layout
    from baton.deploy.eks.origins import Resolved
    from baton.spec.checked import CheckedFile

NAMESPACE_FILE = "k8s/namespace.yaml"


def read_app(path: Path | str, found: Resolved, env: Mapping[str, str]) -> CheckedFile:
    """The user's YAML, checked for another machine than this one.

    What lies on this machine, such as a model in its cache, has no say: it would make the files
    depend on where they were rendered.

    Args:
        path: The file, or `-`.
        found: The settings; `model_id` and `model_source` fill the variables of those names.
        env: The environment, for all other variables.

    Raises:
        ConfigRefused: with every fault.
    """
    settings = found.settings
    given = {"MODEL_ID": settings.model_id, "MODEL_SOURCE": settings.model_source}
    names = {key: value for key, value in given.items() if value is not None}
    report = examine(load_file(path, {**env, **names}), look_for_model=False)
    if report.checked is None:
        raise refusal(report.faults)
    return report.checked


def plan_layout(path: Path | str, found: Resolved, env: Mapping[str, str]) -> Layout:
    """Reads a file and lays it out.

    Raises:
        ConfigRefused: with every fault.
    """
    return layout_of(read_app(path, found, env), found)


def render(layout: Layout) -> dict[str, str]:
    """The files by their path below the folder, in the order in which they are used."""
    files = {
        "eksctl/cluster.yaml": yaml_text(
            cluster.cluster_config(layout.settings),
            head="The cluster without its GPU nodes. Made with\n"
            "  eksctl create cluster -f cluster.yaml",
        ),
        "eksctl/nodegroups.yaml": yaml_text(
            nodegroup.node_groups(layout), head=nodegroup.head(layout)
        ),
    }
    for chart in kuberay.charts(layout):
        files[chart.file] = yaml_text(chart.values, head=chart.command)
    files.update(_kubernetes(layout))
    files["README.md"] = runbook(layout)
    return files


def _kubernetes(layout: Layout) -> dict[str, str]:
    files = {
        NAMESPACE_FILE: yaml_text(policies.namespace(layout)),
        "k8s/networkpolicy.yaml": yaml_text(
            policies.network_policy(layout), head=policies.network_head(layout)
        ),
        "k8s/poddisruptionbudget.yaml": yaml_text(*policies.disruption_budgets(layout)),
    }
    if layout.plain:
        files["k8s/ray.yaml"] = yaml_text(*plain_objects(layout))
    else:
        files["k8s/rayservice.yaml"] = yaml_text(
            rayservice.ray_service(layout), head=rayservice.head(layout)
        )
    if layout.settings.ingress != "none":
        files["k8s/ingress.yaml"] = yaml_text(policies.ingress(layout))
    files["k8s/kustomization.yaml"] = yaml_text(
        _kustomization([name.removeprefix("k8s/") for name in files])
    )
    # Apart: without the Prometheus operator there is no such kind, and nothing could be applied.
    files["k8s/monitoring/servicemonitor.yaml"] = yaml_text(
        policies.metrics_service(layout), policies.service_monitor(layout)
    )
    files["k8s/monitoring/kustomization.yaml"] = yaml_text(_kustomization(["servicemonitor.yaml"]))
    return files


def _kustomization(resources: list[str]) -> dict[str, Any]:
    return {
        "apiVersion": "kustomize.config.k8s.io/v1beta1",
        "kind": "Kustomization",
        "resources": resources,
    }


def steps(layout: Layout) -> list[tuple[str, list[str]]]:
    """What is done with the files, in order: a title, and its commands."""
    settings = layout.settings
    serves = serve_service_name(layout)
    nodes = ["eksctl create nodegroup -f eksctl/nodegroups.yaml --install-nvidia-plugin=false"]
    if layout.efa:
        nodes.insert(0, nodegroup.placement_group_command(settings))
    flags = " ".join(secret_flags(layout))
    create = f"kubectl -n {settings.namespace} create secret generic"
    secrets = []
    if flags:
        secrets.append(f"{create} {settings.api_keys_secret} {flags}")
    if settings.hf_token_secret is not None:
        line = f"{create} {settings.hf_token_secret} --from-literal=token=…"
        secrets.append(f"{line}    # only for gated models")
    key = " -H 'Authorization: Bearer …'" if layout.app.baton.auth.asks_for_keys else ""
    return [
        ("The cluster", ["eksctl create cluster -f eksctl/cluster.yaml"]),
        ("The GPU nodes", nodes),
        ("Operators and plugins", [chart.command for chart in kuberay.charts(layout)]),
        ("The namespace and its secrets", [f"kubectl apply -f {NAMESPACE_FILE}", *secrets]),
        ("The service", ["kubectl apply -k k8s"]),
        ("Monitoring, where the Prometheus operator runs", ["kubectl apply -k k8s/monitoring"]),
        (
            "A question",
            [
                f"kubectl -n {settings.namespace} port-forward svc/{serves} 8000:8000",
                f"curl -s localhost:8000/v1/models{key}",
            ],
        ),
    ]


def runbook(layout: Layout) -> str:
    """What the folder holds and how it is used, for whoever reviews it."""
    lines = [
        f"# {layout.name} on {layout.settings.cluster_name} ({layout.settings.region})",
        "",
        "Rendered by `baton eks render`. Put changes of your own into an overlay of `k8s`: an",
        "edited file here is in the way of the next rendering.",
        "",
        "| | nodes | type | workers | GPUs | EFA | memory |",
        "| --- | --- | --- | --- | --- | --- | --- |",
    ]
    lines += [
        f"| {g.role} | {g.nodes} | {g.instance.name} | {g.workers} | {g.gpus} | {g.efa} |"
        f" {g.memory_mib // 1024} GiB |"
        for g in layout.groups
    ]
    lines += ["", f"Image: `{layout.image}`, Ray {rayservice.ray_version()}.", ""]
    for number, (title, commands) in enumerate(steps(layout), 1):
        lines += [f"{number}. {title}", "", "   ```", *(f"   {c}" for c in commands), "   ```", ""]
    return "\n".join(lines)
