"""An account and a cluster in memory: answers AWS calls, eksctl, helm and kubectl as they would.

What AWS was told to make goes on being made when the one who told it is killed; what a tool would
have told it next does not. Making what is there fails, as it does with the real tools, so a second
making shows.
"""

from __future__ import annotations

import json
from collections import Counter
from typing import TYPE_CHECKING, Any

from baton.deploy.eks.live.aws import AwsFailed
from baton.deploy.eks.live.commands import Done
from baton.deploy.eks.live.image_inside import PLANNED, SCRIPT

if TYPE_CHECKING:
    from collections.abc import Callable

    from baton.deploy.eks.live.commands import Command

NAME = "baton-g6"
TAGS = {"baton.dev/cluster": NAME}
OURS = {"app.kubernetes.io/managed-by": "baton"}
KEYS = {"BATON_API_KEYS": "k1"}
ADDONS = ("vpc-cni", "coredns", "kube-proxy", "metrics-server", "aws-ebs-csi-driver")
EPOCH = 1_790_000_000.0


class Killed(BaseException):
    """The one who ran the command is gone in this moment."""


def gone(what: str = "ResourceNotFoundException") -> AwsFailed:
    return AwsFailed(what, "no such thing")


class Cloud:
    """The account. `kill_at` is the number of the touch at which the caller dies."""

    def __init__(self, kill_at: int | None = None) -> None:
        self.things: dict[str, dict[str, Any]] = {}
        self.made: Counter[str] = Counter()
        self.ran: list[str] = []
        self.touches = 0
        self.kill_at = kill_at
        self.clock = EPOCH
        self.answers: dict[str, Callable[[], Any]] = {}
        """Scripted answers by operation, or by the first words of a command."""
        self.never_ready: dict[str, str] = {}
        self.diff = Done(0)
        self.in_image: dict[str, str] = {}
        """Distributions in the image that are not the plan's."""

    # -- being killed, and time ---------------------------------------------------------------

    def touch(self) -> None:
        self.touches += 1
        if self.kill_at is not None and self.touches == self.kill_at:
            self.kill_at = None
            raise Killed

    def sleep(self, seconds: float) -> None:
        self.touch()
        self.clock += seconds
        for name, thing in list(self.things.items()):
            if thing["state"] == "creating" and name not in self.never_ready:
                thing["state"] = "ready"
            if thing["state"] == "deleting":
                self.vanish(name)

    def vanish(self, name: str) -> None:
        """A namespace takes its secrets along, a cluster all that is in it."""
        del self.things[name]
        if name == "namespace":
            self.things.pop("secret", None)
        if name == "cluster":
            for other in [n for n in self.things if n.startswith(("addon", "oidc", "chart"))]:
                del self.things[other]

    def begin(self, name: str, **more: Any) -> None:
        """AWS starts to make something; twice is an error that a test sees."""
        self.made[name] += 1
        self.things[name] = {"state": "creating", "tags": dict(TAGS), **more}

    def finish(self, name: str) -> None:
        self.touch()
        self.things[name]["state"] = "ready"

    def state(self) -> dict[str, str]:
        return {name: thing["state"] for name, thing in sorted(self.things.items())}

    # -- AWS ----------------------------------------------------------------------------------

    def call(self, service: str, operation: str, **arguments: Any) -> dict[str, Any]:
        self.touch()
        if operation in self.answers:
            found: dict[str, Any] = self.answers[operation]()
            return found
        answer: dict[str, Any] = getattr(self, f"_{operation}")(**arguments)
        return answer

    def _aws_status(self, thing: dict[str, Any]) -> str:
        words = {"ready": "ACTIVE", "creating": "CREATING", "deleting": "DELETING"}
        return str(thing.get("status") or words.get(thing["state"], thing["state"]))

    def _describe_cluster(self, name: str) -> dict[str, Any]:
        cluster = self.things.get("cluster")
        if cluster is None:
            raise gone()
        return {
            "cluster": {
                "status": self._aws_status(cluster), "version": cluster.get("version", "1.34"),
                "tags": cluster["tags"], "identity": {"oidc": {"issuer": "https://oidc/X"}},
            }
        }  # fmt: skip

    def _describe_stacks(self, StackName: str) -> dict[str, Any]:  # noqa: N803
        thing = self.things.get(_thing_of(StackName))
        if thing is None or thing.get("no_stack"):
            raise AwsFailed("ValidationError", f"Stack with id {StackName} does not exist")
        words = {"ready": "CREATE_COMPLETE", "creating": "CREATE_IN_PROGRESS",
                 "deleting": "DELETE_IN_PROGRESS", "failed": "ROLLBACK_COMPLETE"}  # fmt: skip
        tags = [{"Key": k, "Value": v} for k, v in thing["tags"].items()]
        return {"Stacks": [{"StackStatus": words[thing["state"]], "Tags": tags}]}

    def _describe_stack_events(self, StackName: str) -> dict[str, Any]:  # noqa: N803
        thing = self.things.get(_thing_of(StackName), {})
        return {"StackEvents": thing.get("events", [])}

    def _list_open_id_connect_providers(self) -> dict[str, Any]:
        there = "oidc" in self.things
        return {"OpenIDConnectProviderList": [{"Arn": "arn:x/oidc/X"}] if there else []}

    def _describe_addon(self, clusterName: str, addonName: str) -> dict[str, Any]:  # noqa: N803
        if f"addon {addonName}" not in self.things:
            raise gone()
        return {"addon": {"status": self._aws_status(self.things[f"addon {addonName}"])}}

    def _describe_nodegroup(self, clusterName: str, nodegroupName: str) -> dict[str, Any]:  # noqa: N803
        group = self.things.get(nodegroupName)
        if group is None:
            raise gone()
        return {
            "nodegroup": {
                "status": self._aws_status(group), "tags": group["tags"],
                "instanceTypes": [group["type"]], "scalingConfig": {"desiredSize": group["nodes"]},
                "health": {"issues": group.get("issues", [])},
            }
        }  # fmt: skip

    def _list_nodegroups(self, clusterName: str) -> dict[str, Any]:  # noqa: N803
        return {"nodegroups": [n for n, t in self.things.items() if "nodes" in t]}

    def _describe_placement_groups(self, GroupNames: list[str]) -> dict[str, Any]:  # noqa: N803
        group = self.things.get("placement-group")
        if group is None:
            raise gone("InvalidPlacementGroup.Unknown")
        tags = [{"Key": k, "Value": v} for k, v in group["tags"].items()]
        return {"PlacementGroups": [{"State": "available", "Strategy": "cluster", "Tags": tags}]}

    def _describe_volumes(self, Filters: Any) -> dict[str, Any]:  # noqa: N803
        return {"Volumes": []}

    # -- commands that read -------------------------------------------------------------------

    def read(self, argv: tuple[str, ...], limit_s: float = 0.0) -> Done:
        self.touch()
        line = " ".join(argv)
        for start, answer in self.answers.items():
            if line.startswith(start):
                done: Done = answer()
                return done
        if line.startswith("aws eks update-kubeconfig"):
            return Done(0)
        if self.things.get("cluster", {}).get("state") != "ready":
            return Done(1, err="The connection to the server was refused")
        if argv[:2] == ("helm", "list"):
            return self._helm_list(argv)
        if argv[:2] == ("kubectl", "diff"):
            return self.diff
        return self._get(argv)

    def _helm_list(self, argv: tuple[str, ...]) -> Done:
        space = argv[argv.index("--namespace") + 1]
        found = [
            {"name": t["release"], "status": t.get("status", "deployed"), "chart": t["chart"],
             "updated": t.get("updated", "2026-11-30 08:00:00.1 +0000 UTC")}
            for t in self.things.values()
            if t.get("space") == space and ("--selector" not in argv or t["tags"])
        ]  # fmt: skip
        return Done(0, json.dumps(found))

    def _get(self, argv: tuple[str, ...]) -> Done:
        if argv[:2] == ("kubectl", "exec") and argv[-1] == SCRIPT:
            return Done(0, json.dumps({**PLANNED, **self.in_image}))
        kind, name = argv[2], argv[3]
        if kind == "pods":
            return Done(0, json.dumps({"items": self._pods()}))
        if kind == "rayservices":
            items = [t["object"] for t in self.things.values() if "object" in t]
            return Done(0, json.dumps({"items": items}))
        if "," in kind:
            return Done(0, json.dumps({"items": self.things.get("others", {}).get("items", [])}))
        thing = self.things.get("service" if kind == "rayservice" else kind)
        if thing is None:
            return Done(1, err=f'Error from server (NotFound): {kind} "{name}" not found')
        return Done(0, json.dumps(self._object(kind, thing)))

    def _object(self, kind: str, thing: dict[str, Any]) -> dict[str, Any]:
        labels = dict(OURS) if thing["tags"] else {}
        if kind == "namespace":
            phase = "Terminating" if thing["state"] == "deleting" else "Active"
            return {"metadata": {"labels": labels}, "status": {"phase": phase}}
        status = "RUNNING" if thing["state"] == "ready" else thing.get("serve", "DEPLOYING")
        return {
            "metadata": {"labels": labels, "name": "qwen", "namespace": "baton"},
            "status": {
                "activeServiceStatus": {
                    "applicationStatuses": {
                        "qwen": {"status": status, "message": thing.get("message", "")}
                    }
                }
            },
        }

    def _pods(self) -> list[dict[str, Any]]:
        service = self.things.get("service")
        if service is None:
            return []
        return list(service.get("pods") or [running(p) for p in ("head", "prefill", "decode")])

    # -- commands that change -----------------------------------------------------------------

    def change(self, command: Command, watch: Callable[[], None]) -> Done:
        self.touch()
        line = " ".join(command.argv)
        self.ran.append(line)
        for start, answer in self.answers.items():
            if line.startswith(start):
                done: Done = answer()
                return done
        watch()
        self.touch()
        for start, function in _CHANGES.items():
            if line.startswith(start):
                ended: Done = getattr(self, function)(command.argv)
                self.touch()
                return ended
        raise AssertionError(f"nobody knows {line}")

    def _create_cluster(self, argv: tuple[str, ...]) -> Done:
        if "cluster" in self.things:
            return Done(1, err="Error: creating CloudFormation stack: AlreadyExistsException")
        self.begin("cluster")
        self.finish("cluster")
        self._associate(argv)
        self._create_addon(argv)
        return self._group("system", "m7i.xlarge", 2)

    def _associate(self, argv: tuple[str, ...]) -> Done:
        self.begin("oidc", no_stack=True)
        self.things["oidc"]["state"] = "ready"
        return Done(0)

    def _create_addon(self, argv: tuple[str, ...]) -> Done:
        for addon in ADDONS:
            if f"addon {addon}" not in self.things:
                self.begin(f"addon {addon}")
                self.finish(f"addon {addon}")
        return Done(0)

    def _group(self, name: str, kind: str, nodes: int) -> Done:
        self.begin(name, type=kind, nodes=nodes)
        if name in self.never_ready:
            return Done(1, err=f"Error: {self.never_ready[name]}")
        self.finish(name)
        return Done(0)

    def _create_nodegroup(self, argv: tuple[str, ...]) -> Done:
        (included,) = [w for w in argv if w.startswith("--include=")]
        names = included.removeprefix("--include=").split(",")
        if any(name in self.things for name in names):
            return Done(1, err="Error: nodegroup exists")
        for name in names:
            system = name == "system"
            done = self._group(name, "m7i.xlarge" if system else "g6.8xlarge", 2 if system else 1)
            if done.code:
                return done
        return Done(0)

    def _scale(self, argv: tuple[str, ...]) -> Done:
        name, nodes = argv[argv.index("--name") + 1], int(argv[argv.index("--nodes") + 1])
        self.things[name]["nodes"] = nodes
        return Done(0)

    def _create_placement_group(self, argv: tuple[str, ...]) -> Done:
        if "placement-group" in self.things:
            return Done(254, err="An error occurred (InvalidPlacementGroup.Duplicate)")
        self.begin("placement-group", no_stack=True)
        self.things["placement-group"]["state"] = "ready"
        return Done(0)

    def _helm_upgrade(self, argv: tuple[str, ...]) -> Done:
        name, chart = argv[3], argv[4]
        space = argv[argv.index("--namespace") + 1]
        version = argv[argv.index("--version") + 1]
        key = f"chart {name}"
        if self.things.get(key, {}).get("status", "").startswith("pending"):
            return Done(1, err="Error: UPGRADE FAILED: another operation is in progress")
        if key not in self.things:
            self.made[key] += 1
        new = {"state": "ready", "tags": dict(TAGS), "release": name, "space": space,
               "chart": f"{chart}-{version}", "no_stack": True}  # fmt: skip
        self.things[key] = {**new, "status": "pending-install",
                            "updated": "2026-01-01 08:00:00.1 +0000 UTC"}  # fmt: skip
        self.touch()
        self.things[key] = new
        return Done(0)

    def _helm_uninstall(self, argv: tuple[str, ...]) -> Done:
        self.things.pop(f"chart {argv[2]}", None)
        self.made[f"chart {argv[2]}"] -= 1
        return Done(0)

    def _apply(self, argv: tuple[str, ...]) -> Done:
        name = "namespace" if "-f" in argv else "service"
        if name not in self.things:
            self.begin(name, no_stack=True)
        if name == "namespace":
            self.things[name]["state"] = "ready"
        self.diff = Done(0)
        return Done(0)

    def _create_secret(self, argv: tuple[str, ...]) -> Done:
        self.begin("secret", no_stack=True)
        self.things["secret"]["state"] = "ready"
        return Done(0)

    def _kubectl_delete(self, argv: tuple[str, ...]) -> Done:
        if argv[2] == "rayservice":
            self.things.pop("service", None)
        if argv[2] == "namespace":
            self.things["namespace"]["state"] = "deleting"
            self.touch()
            self.vanish("namespace")
        return Done(0)

    def _delete_group(self, argv: tuple[str, ...]) -> Done:
        return self._delete(argv[argv.index("--name") + 1])

    def _delete_placement_group(self, argv: tuple[str, ...]) -> Done:
        self.things.pop("placement-group", None)
        return Done(0)

    def _delete_cluster(self, argv: tuple[str, ...]) -> Done:
        if "system" in self.things:
            self._delete("system")
        return self._delete("cluster")

    def _delete(self, name: str) -> Done:
        if name not in self.things:
            return Done(1, err="Error: ResourceNotFoundException")
        self.things[name]["state"] = "deleting"
        self.touch()
        self.vanish(name)
        return Done(0)


_CHANGES = {
    "eksctl create cluster": "_create_cluster",
    "eksctl utils associate": "_associate",
    "eksctl create addon": "_create_addon",
    "eksctl create nodegroup": "_create_nodegroup",
    "eksctl scale nodegroup": "_scale",
    "eksctl delete nodegroup": "_delete_group",
    "eksctl delete cluster": "_delete_cluster",
    "aws ec2 create-placement-group": "_create_placement_group",
    "aws ec2 delete-placement-group": "_delete_placement_group",
    "helm upgrade": "_helm_upgrade",
    "helm uninstall": "_helm_uninstall",
    "kubectl -n baton create secret": "_create_secret",
    "kubectl apply": "_apply",
    "kubectl delete": "_kubectl_delete",
}


def _thing_of(stack: str) -> str:
    return stack.removeprefix(f"eksctl-{NAME}-").removeprefix("nodegroup-")


def running(phase: str) -> dict[str, Any]:
    """A pod that runs."""
    return {
        "metadata": {"name": f"qwen-{phase}", "labels": {"baton.dev/phase": phase}},
        "spec": {"nodeName": f"node-{phase}"},
        "status": {"phase": "Running", "conditions": [{"type": "Ready", "status": "True"}]},
    }
