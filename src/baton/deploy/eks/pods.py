"""What the pods of head and workers hold, whoever runs Ray.

Every line is here because a deployment broke without it; the reason stands beside it.
"""

from __future__ import annotations

from pathlib import PurePosixPath
from typing import TYPE_CHECKING, Any

from baton.deploy.eks import ports
from baton.deploy.eks.cluster import SYSTEM_LABELS
from baton.deploy.eks.fits import OBJECT_STORE_MIB
from baton.deploy.eks.kuberay import tolerations

if TYPE_CHECKING:
    from baton.deploy.eks.layout import Group, Layout

MODELS = "/models"
HOST_MODELS = "/var/lib/baton/models"
HEAD_OBJECT_STORE_MIB = 1024
HEAD_MEMORY = "8Gi"
SERVICE_LABEL = "baton.dev/service"
PHASE_LABEL = "baton.dev/phase"
# `app.kubernetes.io/name` is KubeRay's own on Ray's pods: its head Service selects by it.


def pod_labels(layout: Layout, part: str) -> dict[str, str]:
    """Labels of a pod: what the policies select by. `part` is `head` or a phase."""
    return {SERVICE_LABEL: layout.name, PHASE_LABEL: part}


def head_params() -> dict[str, str]:
    """`ray start --head`. No logical CPUs and no GPUs: nothing is placed on the head."""
    return {
        **ports.HEAD_PARAMS,
        **ports.NODE_PARAMS,
        "num-cpus": "0",
        "num-gpus": "0",
        "object-store-memory": str(HEAD_OBJECT_STORE_MIB * 1024**2),
    }


def worker_params(group: Group) -> dict[str, str]:
    """`ray start` of a phase's workers, with the resource that only they offer."""
    return {
        **ports.NODE_PARAMS,
        "num-gpus": str(group.gpus),
        # Ray would take 30 % of the memory, which is the page cache's here.
        "object-store-memory": str(OBJECT_STORE_MIB * 1024**2),
        # The quotes within quotes are for the shell that KubeRay starts Ray with.
        "resources": f'"{{\\"{group.resource}\\": 1}}"',
    }


def head_pod(layout: Layout) -> dict[str, Any]:
    """The head's pod template: on CPU nodes, without a GPU."""
    container = {
        "name": "ray-head",
        "image": layout.image,
        "ports": [
            _port("gcs", ports.GCS),
            _port("dashboard", ports.DASHBOARD),
            _port("client", ports.CLIENT),
            _port("serve", ports.SERVE),
            _port("metrics", ports.METRICS),
        ],
        "env": [*_serve_env(), *_secret_env(layout)],
        "resources": {
            "requests": {"cpu": "2", "memory": HEAD_MEMORY},
            "limits": {"cpu": "3", "memory": HEAD_MEMORY},
        },
        "livenessProbe": _probe(failures=12),
        "readinessProbe": _probe(failures=3),
        "volumeMounts": [_mount("shm", "/dev/shm"), *_key_mounts(layout)],  # noqa: S108
    }
    return {
        "metadata": {"labels": pod_labels(layout, "head")},
        "spec": {
            "nodeSelector": dict(SYSTEM_LABELS),
            "automountServiceAccountToken": False,
            "containers": [container],
            "volumes": [_shm(HEAD_OBJECT_STORE_MIB * 2), *_key_volumes(layout)],
        },
    }


def worker_pod(group: Group, layout: Layout) -> dict[str, Any]:
    """The pod template of a phase's workers: one replica's GPUs, its EFA interfaces, its memory."""
    settings = layout.settings
    container = {
        "name": "ray-worker",
        "image": layout.image,
        "ports": [_port("serve", ports.SERVE), _port("metrics", ports.METRICS)],
        "env": [
            *_serve_env(),
            *_engine_env(layout),
            *_secret_env(layout),
        ],
        "resources": _worker_resources(group),
        "securityContext": _security(layout),
        # Of Ray's own agent. KubeRay's default asks for a Serve proxy as well, which a worker
        # without a replica does not have: it would be unready for ever.
        "livenessProbe": _probe(failures=12),
        "readinessProbe": _probe(failures=3),
        "lifecycle": {"preStop": {"exec": {"command": ["/bin/bash", "-c", _drain(layout)]}}},
        "volumeMounts": [
            _mount("shm", "/dev/shm"),  # noqa: S108
            *_model_mounts(layout),
            *_key_mounts(layout),
        ],
    }
    spec: dict[str, Any] = {
        "nodeSelector": dict(group.selector),
        "automountServiceAccountToken": False,
        "terminationGracePeriodSeconds": layout.grace_s,
    }
    if tolerations(settings):
        spec["tolerations"] = tolerations(settings)
    spec["containers"] = [container]
    spec["volumes"] = [_shm(group.shm_mib), *_model_volumes(layout), *_key_volumes(layout)]
    return {"metadata": {"labels": pod_labels(layout, group.role)}, "spec": spec}


def _drain(layout: Layout) -> str:
    """Before SIGTERM, which ends Ray at once: Serve moves the replica away, or lets it finish.

    `ray drain-node` means the node it runs on. Serve then tells the replica to stop, and Baton's
    drain lets its streams end; the hook waits for that. With the head gone there is nobody to ask,
    and the pod goes. The brackets keep grep from finding itself.
    """
    return (
        "timeout 20 ray drain-node --reason DRAIN_NODE_REASON_PREEMPTION"
        f" --reason-message 'the pod is being stopped'"
        f" --deadline-remaining-seconds {layout.grace_s - 10} || exit 0;"
        f" for _ in $(seq {layout.grace_s - 10}); do"
        " grep -qs 'ray::[S]erveReplica' /proc/[0-9]*/cmdline || exit 0; sleep 1; done"
    )


def _worker_resources(group: Group) -> dict[str, Any]:
    memory = f"{group.memory_mib // 1024}Gi"
    amounts: dict[str, Any] = {
        "cpu": str(group.cpus),
        "memory": memory,
        "nvidia.com/gpu": str(group.gpus),
    }
    if group.efa:
        amounts["vpc.amazonaws.com/efa"] = str(group.efa)
    if group.hugepages_mib:
        amounts["hugepages-2Mi"] = f"{group.hugepages_mib}Mi"
    return {"requests": amounts, "limits": dict(amounts)}


def _security(layout: Layout) -> dict[str, Any]:
    """How a worker may lock memory, which registering it with the device does.

    As root in both cases: a capability that is added to a container is not effective for any other
    user, and then the limit is whatever containerd happened to be started with.
    """
    if layout.settings.security == "privileged":
        return {"privileged": True, "runAsUser": 0}
    return {
        "runAsUser": 0,
        "allowPrivilegeEscalation": False,
        "capabilities": {"add": ["IPC_LOCK"]},
    }


def _serve_env() -> list[dict[str, Any]]:
    # In head and workers alike: each node decides for itself which proxy it starts.
    return [{"name": "RAY_SERVE_ENABLE_HA_PROXY", "value": "1"}]


def _engine_env(layout: Layout) -> list[dict[str, Any]]:
    """What engines read. The YAML's `runtime_env` stands above it."""
    env: list[dict[str, Any]] = [
        # vLLM would take the address of the first interface, which may not be the pod's.
        {"name": "VLLM_HOST_IP", "valueFrom": {"fieldRef": {"fieldPath": "status.podIP"}}},
        # "Created N rails using provider=efa": what the KV really runs on.
        {"name": "NIXL_LOG_LEVEL", "value": "INFO"},
    ]
    if layout.efa:
        # Without it libfabric may settle for its TCP provider, and says nothing.
        env.append({"name": "FI_PROVIDER", "value": "efa"})
    if layout.settings.model_cache != "none":
        env.append({"name": "HF_HOME", "value": f"{MODELS}/huggingface"})
    secret = layout.settings.hf_token_secret
    if secret is not None:
        reference = {"name": secret, "key": "token", "optional": True}
        env.append({"name": "HF_TOKEN", "valueFrom": {"secretKeyRef": reference}})
    return env


def secret_flags(layout: Layout) -> list[str]:
    """Of `kubectl create secret`: the variables that the YAML names, and its key file."""
    flags = [f"--from-literal={name}=…" for name in secret_variables(layout)]
    path = _key_file(layout)
    return flags if path is None else [*flags, f"--from-file={path.name}"]


def secret_variables(layout: Layout) -> list[str]:
    """Variables with keys that the `baton` block names."""
    block = layout.app.baton
    names = [block.auth.api_keys_env, block.overflow.api_key_env if block.overflow else None]
    return [name for name in names if name is not None]


def _secret_env(layout: Layout) -> list[dict[str, Any]]:
    """Keys that the `baton` block names as variables. Gateways may run on any node."""
    secret = layout.settings.api_keys_secret
    return [
        {"name": name, "valueFrom": {"secretKeyRef": {"name": secret, "key": name}}}
        for name in secret_variables(layout)
    ]


def _key_file(layout: Layout) -> PurePosixPath | None:
    path = layout.app.baton.auth.api_keys_file
    return PurePosixPath(path) if path is not None and path.startswith("/") else None


def key_file_name(layout: Layout) -> str | None:
    """The name of the key file in the secret, when the YAML wants one."""
    path = _key_file(layout)
    return None if path is None else path.name


def _key_mounts(layout: Layout) -> list[dict[str, Any]]:
    path = _key_file(layout)
    if path is None:
        return []
    return [{"name": "api-keys", "mountPath": str(path.parent), "readOnly": True}]


def _key_volumes(layout: Layout) -> list[dict[str, Any]]:
    path = _key_file(layout)
    if path is None:
        return []
    secret = {
        "secretName": layout.settings.api_keys_secret,
        "items": [{"key": path.name, "path": path.name}],
    }
    return [{"name": "api-keys", "secret": secret}]


def _model_mounts(layout: Layout) -> list[dict[str, Any]]:
    return [] if layout.settings.model_cache == "none" else [_mount("models", MODELS)]


def _model_volumes(layout: Layout) -> list[dict[str, Any]]:
    settings = layout.settings
    if settings.model_cache == "none":
        return []
    if settings.model_cache == "claim":
        claim = {"claimName": settings.model_cache_claim}
        return [{"name": "models", "persistentVolumeClaim": claim}]
    return [{"name": "models", "hostPath": {"path": HOST_MODELS, "type": "DirectoryOrCreate"}}]


def _shm(mib: int) -> dict[str, Any]:
    # The container runtime's default is 64 MiB; NCCL, vLLM and Ray's object store want more.
    return {"name": "shm", "emptyDir": {"medium": "Memory", "sizeLimit": f"{mib}Mi"}}


def _port(name: str, number: int) -> dict[str, Any]:
    return {"name": name, "containerPort": number}


def _mount(name: str, path: str) -> dict[str, str]:
    return {"name": name, "mountPath": path}


def _probe(*, failures: int) -> dict[str, Any]:
    """Ray's agent says whether the raylet lives, on the head the GCS too (Ray 2.53 and later)."""
    return {
        "httpGet": {"path": "/api/healthz", "port": ports.AGENT_HTTP},
        "initialDelaySeconds": 10,
        "periodSeconds": 10,
        "timeoutSeconds": 5,
        "failureThreshold": failures,
    }
