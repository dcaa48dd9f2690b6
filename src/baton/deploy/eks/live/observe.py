"""Looks at one part: the thin shell around the readers of `eyes_aws` and `eyes_kube`."""

from __future__ import annotations

import time
from typing import TYPE_CHECKING, Any

import yaml

from baton.deploy.eks.cluster import TAG
from baton.deploy.eks.kuberay import RELEASE_LABEL
from baton.deploy.eks.live import eyes_aws, eyes_kube, image_inside
from baton.deploy.eks.live.aws import AwsFailed
from baton.deploy.eks.live.commands import KUBECONFIG
from baton.deploy.eks.live.eyes_kube import Unseen
from baton.deploy.eks.live.inside import in_pod
from baton.deploy.eks.live.states import ABSENT, Seen, State, unknown
from baton.deploy.eks.live.waits import ServeView, image_drifts, pod_view, progress, serve_view
from baton.deploy.eks.pods import SERVICE_LABEL

if TYPE_CHECKING:
    from collections.abc import Callable

    from baton.deploy.eks.layout import Layout
    from baton.deploy.eks.live.aws import Aws
    from baton.deploy.eks.live.commands import Runner
    from baton.deploy.eks.live.eyes_aws import Stack
    from baton.deploy.eks.live.parts import Part
    from baton.deploy.eks.live.waits import PodView

# Named one by one: helm 3 hides some without flags, and helm 4 has no `--all` any more.
_HELM_LIST = ("helm", "list", "--deployed", "--failed", "--pending", "--uninstalling", "-o", "json")
_IN_NAMESPACE = (
    "deployments,statefulsets,daemonsets,jobs,cronjobs,pods,services,ingresses,"
    "persistentvolumeclaims,configmaps"
)
_ALWAYS_THERE = frozenset({"ConfigMap/kube-root-ca.crt"})


class Eyes:
    """Observes the parts of one layout."""

    def __init__(
        self, layout: Layout, aws: Aws, runner: Runner, *, now: Callable[[], float] = time.time
    ) -> None:
        self.layout = layout
        self.aws = aws
        self.runner = runner
        self.now = now
        self._can_reach = False
        self._inside: dict[str, dict[str, str] | None] = {}
        self.cluster_name = layout.settings.cluster_name

    def see(self, part: Part) -> Seen:
        """The part's state. Whatever goes wrong on the way is UNKNOWN, with the reason."""
        look: dict[str, Callable[[Part], Seen]] = {
            "cluster": self._cluster,
            "oidc": self._oidc,
            "addons": self._addons,
            "account": self._account,
            "nodegroup": self._nodegroup,
            "placement_group": self._placement_group,
            "chart": self._chart,
            "namespace": self._namespace,
            "secret": self._secret,
            "service": self._service,
        }
        try:
            if part.kind in ("chart", "namespace", "secret", "service"):
                kept = self._kept_from_kubernetes()
                if kept is not None:
                    return kept
            return look[part.kind](part)
        except AwsFailed as exc:
            return unknown(str(exc))
        except Unseen as exc:
            return unknown(str(exc))

    def _described(self, service: str, operation: str, key: str, **arguments: Any) -> Any:
        """What an operation answers under `key`; None when it says that there is none."""
        try:
            return self.aws.call(service, operation, **arguments)[key]
        except AwsFailed as exc:
            if exc.absent:
                return None
            raise

    def cluster(self) -> dict[str, Any] | None:
        """DescribeCluster's answer; None when EKS has no such cluster."""
        found: dict[str, Any] | None = self._described(
            "eks", "describe_cluster", "cluster", name=self.cluster_name
        )
        return found

    def stack(self, kind: str) -> Stack:
        """The stack that eksctl makes of that kind: `cluster`, `nodegroup-prefill`."""
        name = f"eksctl-{self.cluster_name}-{kind}"
        try:
            answer = self.aws.call("cloudformation", "describe_stacks", StackName=name)
        except AwsFailed as exc:
            if exc.absent:
                return eyes_aws.NO_STACK
            return eyes_aws.Stack(State.UNKNOWN, str(exc))
        found = eyes_aws.stack_of(answer, "", self.cluster_name)
        if found.state is not State.FAILED:
            return found
        return eyes_aws.stack_of(answer, self._first_failure(name), self.cluster_name)

    def events(self, kind: str) -> list[dict[str, Any]]:
        """The events of a stack, newest first; none when it is not there or cannot be seen."""
        name = f"eksctl-{self.cluster_name}-{kind}"
        try:
            answer = self.aws.call("cloudformation", "describe_stack_events", StackName=name)
        except AwsFailed:
            return []  # progress only: what is decided comes from the states
        return list(answer.get("StackEvents") or ())

    def _first_failure(self, name: str) -> str:
        try:
            answer = self.aws.call("cloudformation", "describe_stack_events", StackName=name)
        except AwsFailed as exc:
            return f"its events cannot be read ({exc.code})"
        return eyes_aws.first_failure(answer.get("StackEvents") or [])

    def _cluster(self, part: Part) -> Seen:
        return eyes_aws.cluster_seen(
            self.cluster(), self.stack("cluster"), self.cluster_name, part.wants["version"]
        )

    def _oidc(self, part: Part) -> Seen:  # noqa: ARG002 - one signature for all
        cluster = self.cluster()
        if cluster is None:
            return ABSENT
        issuer = str(((cluster.get("identity") or {}).get("oidc") or {}).get("issuer", ""))
        listed = self.aws.call("iam", "list_open_id_connect_providers")
        arns = [p["Arn"] for p in listed["OpenIDConnectProviderList"]]
        there = issuer and any(arn.endswith(issuer.removeprefix("https://")) for arn in arns)
        return Seen(State.READY) if there else ABSENT

    def _addons(self, part: Part) -> Seen:
        statuses: dict[str, str | None] = {}
        for name in part.wants["names"]:
            found = self._described(
                "eks", "describe_addon", "addon", clusterName=self.cluster_name, addonName=name
            )
            statuses[name] = None if found is None else str(found.get("status"))
        return eyes_aws.addons_seen(statuses)

    def _account(self, part: Part) -> Seen:  # noqa: ARG002
        stack = self.stack("addon-iamserviceaccount-kube-system-aws-load-balancer-controller")
        return Seen(stack.state, stack.detail, stack.ours)

    def node_group(self, name: str) -> dict[str, Any] | None:
        """DescribeNodegroup's answer; None when there is none."""
        found: dict[str, Any] | None = self._described(
            "eks", "describe_nodegroup", "nodegroup",
            clusterName=self.cluster_name, nodegroupName=name,
        )  # fmt: skip
        return found

    def _nodegroup(self, part: Part) -> Seen:
        group = self.node_group(part.name)
        stack = self.stack(f"nodegroup-{part.name}")
        return eyes_aws.group_seen(group, stack, self.cluster_name, part.wants)

    def _placement_group(self, part: Part) -> Seen:
        try:
            answer = self.aws.call(
                "ec2", "describe_placement_groups", GroupNames=[part.wants["name"]]
            )
        except AwsFailed as exc:
            if exc.absent:
                return ABSENT
            raise
        return eyes_aws.placement_group_seen(answer, self.cluster_name)

    def _kept_from_kubernetes(self) -> Seen | None:
        """The state of all that is in a cluster which cannot be asked; None when it can."""
        cluster = self.cluster()
        if cluster is None:
            return ABSENT
        status = str(cluster.get("status", ""))
        if status in ("CREATING", "PENDING", "DELETING", "FAILED"):
            return Seen(State.ABSENT, f"the cluster is {status.lower()}")
        if self._can_reach:
            return None
        done = self.runner.read(
            ("aws", "eks", "update-kubeconfig", "--name", self.cluster_name, "--region",
             self.layout.settings.region, "--kubeconfig", KUBECONFIG)
        )  # fmt: skip
        if done.code != 0:
            return unknown(f"no access to the cluster: {done.reason}")
        self._can_reach = True
        return None

    def get(self, *words: str) -> dict[str, Any] | None:
        """`kubectl get … -o json`; None when there is none.

        Raises:
            Unseen: when it cannot be told.
        """
        return eyes_kube.read_object(self.runner.read(("kubectl", "get", *words, "-o", "json")))

    def _chart(self, part: Part) -> Seen:
        space = part.wants["namespace"]
        listed = (*_HELM_LIST, "--namespace", space)
        everything = eyes_kube.releases(self.runner.read(listed))
        ours = eyes_kube.releases(self.runner.read((*listed, "--selector", RELEASE_LABEL)))
        return eyes_kube.chart_seen(everything, ours, part.wants, self.now())

    def _namespace(self, part: Part) -> Seen:  # noqa: ARG002
        return eyes_kube.namespace_seen(self.get("namespace", self.layout.settings.namespace))

    def _secret(self, part: Part) -> Seen:
        space = self.layout.settings.namespace
        done = self.runner.read(
            ("kubectl", "get", "secret", part.wants["name"], "-n", space, "-o", "name")
        )
        return eyes_kube.secret_seen(done)

    def _service(self, part: Part) -> Seen:
        space = self.layout.settings.namespace
        thing = self.get(part.wants["kind"], part.wants["name"], "-n", space)
        pods = self.pods()
        if thing is None:
            left = len(pods)
            return Seen(State.DELETING, f"{left} pods drain", ours=True) if left else ABSENT
        drifts = eyes_kube.rendered_drift(self.runner.read(("kubectl", "diff", "-k", "k8s")))
        workers: dict[str, int] = {group.role: group.workers for group in self.layout.groups}
        going = self._if_the_image_fits(
            pods, progress(pods, self.serve(thing), self.layout.app.name, workers)
        )
        if going[0] and not drifts:
            drifts = image_drifts(pods, self.layout.image)
        return eyes_kube.service_seen(thing, going, drifts)

    def _if_the_image_fits(
        self, pods: list[PodView], going: tuple[bool, str, str]
    ) -> tuple[bool, str, str]:
        """That all runs is not enough: Ray, vLLM and NIXL in it must be the plan's."""
        head = next((pod for pod in pods if pod.phase == "head" and pod.ready), None)
        if head is None:
            return going
        if self._inside.get(head.name) is None:
            asked = in_pod(self.layout, head.name, "ray-head", image_inside.SCRIPT)
            self._inside[head.name] = image_inside.read_versions(self.runner.read(asked))
        versions = self._inside[head.name]
        _, text, fatal = going
        if versions is None:
            return False, f"{text}; the image's versions are not known yet", fatal
        wrong = image_inside.mismatch(versions)
        return (False, text, wrong) if wrong else going

    def pods(self) -> list[PodView]:
        """The service's pods.

        Raises:
            Unseen: when they cannot be listed.
        """
        space = self.layout.settings.namespace
        listed = self.get("pods", "-n", space, "-l", f"{SERVICE_LABEL}={self.layout.name}")
        return [pod_view(pod, self.now()) for pod in (listed or {}).get("items") or ()]

    def serve(self, thing: dict[str, Any]) -> ServeView:
        """What Serve says: in the RayService's status, or, without an operator, on the head."""
        if not self.layout.plain:
            return serve_view(thing)
        done = self.runner.read(
            ("kubectl", "exec", "-n", self.layout.settings.namespace,
             f"deployment/{self.layout.name}-head", "-c", "ray-head", "--",
             "serve", "status", "-a", "http://127.0.0.1:8265")
        )  # fmt: skip
        if done.code != 0:
            return ServeView()  # the head is not up yet; its pod says why
        try:
            said = yaml.safe_load(done.out) or {}
        except yaml.YAMLError:
            return ServeView()
        found = said.get("applications") or {}
        return ServeView(
            {n: (str(a.get("status")), str(a.get("message") or "")) for n, a in found.items()}
        )

    def foreign_in_namespace(self) -> list[str]:
        """What is in our namespace and not ours.

        Raises:
            Unseen: when it cannot be listed.
        """
        listed = self.get(_IN_NAMESPACE, "-n", self.layout.settings.namespace)
        return eyes_kube.foreign_things(listed or {}, self.layout.name, _ALWAYS_THERE)

    def other_services(self) -> list[str]:
        """RayServices beside ours, as `namespace/name`: they use the operator and the nodes.

        Raises:
            Unseen: when they cannot be listed.
        """
        kept = self._kept_from_kubernetes()
        if kept is not None:
            if kept.state is State.UNKNOWN:
                raise Unseen(kept.detail)
            return []
        listed = self.get("rayservices", "--all-namespaces") or {}
        names = [
            f"{thing['metadata'].get('namespace')}/{thing['metadata'].get('name')}"
            for thing in listed.get("items") or ()
        ]
        return [n for n in names if n != f"{self.layout.settings.namespace}/{self.layout.name}"]

    def foreign_groups(self) -> list[str]:
        """Node groups of the cluster that do not carry our tag.

        Raises:
            AwsFailed: when they cannot be listed.
        """
        return [name for name, ours in self._groups().items() if not ours]

    def unwanted_groups(self) -> list[str]:
        """Node groups that carry our tag and are not in the files.

        Raises:
            AwsFailed: when they cannot be listed.
        """
        wanted = {"system", *(group.role for group in self.layout.groups)}
        return [name for name, ours in self._groups().items() if ours and name not in wanted]

    def _groups(self) -> dict[str, bool]:
        try:
            listed = self.aws.call("eks", "list_nodegroups", clusterName=self.cluster_name)
        except AwsFailed as exc:
            if exc.absent:
                return {}
            raise
        found = {}
        for name in listed["nodegroups"]:
            group = self.node_group(name)
            if group is not None:
                found[name] = (group.get("tags") or {}).get(TAG) == self.cluster_name
        return found

    def running_pods(self) -> list[PodView]:
        """The service's pods, none when there is no cluster to ask.

        Raises:
            Unseen: when they cannot be listed.
        """
        kept = self._kept_from_kubernetes()
        if kept is None:
            return self.pods()
        if kept.state is State.UNKNOWN:
            raise Unseen(kept.detail)
        return []
