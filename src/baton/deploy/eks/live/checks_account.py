"""Tools, account, versions: who asks, and with what."""

from __future__ import annotations

from typing import TYPE_CHECKING

from baton.deploy.eks.live.checks import Verdict, check, need
from baton.deploy.eks.live.facts import Unknown

if TYPE_CHECKING:
    from baton.deploy.eks.layout import Layout
    from baton.deploy.eks.live.facts import Facts

# aws: `eks update-kubeconfig` with the token form that kubectl 1.24 and later take.
# eksctl: add-ons that a file names are EKS add-ons, AL2023 for NVIDIA node groups.
# helm: labels of a release (3.13).
OLDEST: dict[str, tuple[int, int]] = {"aws": (2, 7), "eksctl": (0, 200), "helm": (3, 13)}
WHERE = {
    "aws": "https://docs.aws.amazon.com/cli/latest/userguide/getting-started-install.html",
    "kubectl": "https://kubernetes.io/docs/tasks/tools/",
    "eksctl": "https://docs.aws.amazon.com/eks/latest/eksctl/installation.html",
    "helm": "https://helm.sh/docs/intro/install/",
}
EXTENDED_TIMES = 6


def _dotted(version: tuple[int, ...]) -> str:
    return ".".join(str(part) for part in version)


@check("EKS-101", "a tool that is missing or too old")
def tools(layout: Layout, facts: Facts) -> Verdict:
    """Wanted: aws 2.7, eksctl 0.200, helm 3.13 or newer, kubectl within one minor of the cluster.

    kubectl is supported one minor version older or newer than the API server. Helm has labels of a
    release since 3.13; by them Baton knows its own.

    Source: Kubernetes "Version Skew Policy"; `helm upgrade --labels`.
    """
    wrong, unknown, said = [], [], []
    wanted = int(layout.settings.k8s_version.partition(".")[2])
    for name, place in WHERE.items():
        fact = facts.tools.get(name, Unknown(f"{name}: not asked"))
        if isinstance(fact, Unknown):
            unknown.append(fact.why)
            continue
        version = fact.value
        if version is None:
            wrong.append((f"{name} is not installed", place))
        elif name == "kubectl" and abs(version[1] - wanted) > 1:
            skew = f"kubectl is {_dotted(version)}, and the cluster {layout.settings.k8s_version}"
            wrong.append((skew, f"take kubectl 1.{wanted}: {place}"))
        elif name in OLDEST and version < OLDEST[name]:
            old = f"{name} is {_dotted(version)}, and {_dotted(OLDEST[name])} is needed"
            wrong.append((old, place))
        else:
            said.append(f"{name} {_dotted(version)}")
    if wrong:
        return Verdict("fail", "; ".join(w[0] for w in wrong), "; ".join(w[1] for w in wrong))
    if unknown:
        return Verdict("unknown", "; ".join(unknown))
    return Verdict("pass", ", ".join(said))


@check("EKS-102", "no account")
def account(layout: Layout, facts: Facts) -> Verdict:  # noqa: ARG001
    """`sts get-caller-identity` answers: there are credentials, and they are valid now.

    Which account and which role it is stands in the plan: read it before you apply.
    """
    return Verdict("pass", need(facts.account))


@check("EKS-103", "a Kubernetes version that EKS does not offer")
def kubernetes_version(layout: Layout, facts: Facts) -> Verdict:
    """The version is offered by EKS, and in standard support.

    In extended support the cluster itself costs six times as much an hour.

    Source: EKS `DescribeClusterVersions`; Amazon EKS pricing.
    """
    versions = need(facts.versions)
    wanted = layout.settings.k8s_version
    status = versions.get(wanted)
    standard = sorted(
        (v for v, s in versions.items() if s.startswith("STANDARD")),
        key=lambda v: [int(part) for part in v.split(".")],
    )
    if status is None or status == "UNSUPPORTED":
        return Verdict("fail", f"EKS does not offer {wanted}", f"one of {', '.join(standard)}")
    if status.startswith("EXTENDED"):
        return Verdict(
            "warn", f"{wanted} is in extended support: {EXTENDED_TIMES} times the price an hour",
            f"set k8s_version to one of {', '.join(standard)}",
        )  # fmt: skip
    return Verdict("pass", f"{wanted} is in standard support")


@check("EKS-114", "a cluster of another version")
def version_there(layout: Layout, facts: Facts) -> Verdict:
    """A cluster that is there is not upgraded by `apply`.

    The control plane goes up one minor version at a time, and nodes, add-ons and charts follow in
    an order of their own: docs/guides/upgrade.md.
    """
    there = need(facts.cluster)
    wanted = layout.settings.k8s_version
    if there is None:
        return Verdict("pass", "there is no cluster yet")
    if there.version != wanted:
        return Verdict(
            "fail", f"{layout.settings.cluster_name} runs {there.version}, and {wanted} is wanted",
            f'set k8s_version: "{there.version}", or upgrade as docs/guides/upgrade.md says',
        )  # fmt: skip
    whose = "carries Baton's tag" if there.ours else "is not Baton's, and is used as it is"
    return Verdict("pass", f"{layout.settings.cluster_name} runs {wanted} and {whose}")
