"""What the rendered files hold: each line here is one that a deployment broke without."""

from __future__ import annotations

import json
from typing import TYPE_CHECKING, Any

import pytest
import yaml

from baton.deploy.eks.render import plan_layout, render
from baton.spec.check import examine
from baton.spec.load import load_text
from tests.unit.deploy.eks.rendered import (
    EXAMPLES,
    G6,
    P5,
    ROOT,
    changed,
    document,
    documents,
    env,
    files,
    layout,
    pods,
    settings,
)

if TYPE_CHECKING:
    from pathlib import Path

BOTH = pytest.mark.parametrize("name", [G6, P5])
SERVICE = "k8s/rayservice.yaml"


def service(name: str = G6) -> Any:
    return document(files(name)[SERVICE])


def groups(name: str = G6) -> dict[str, Any]:
    listed = document(files(name)["eksctl/nodegroups.yaml"])["managedNodeGroups"]
    return {group["name"]: group for group in listed}


def test_the_same_input_gives_the_same_bytes() -> None:
    """Rendered anew, from the parsed file."""
    assert render(changed()) == render(changed())
    assert list(render(changed())) == list(files())


def test_a_model_on_this_machine_changes_no_byte(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    """The check would otherwise know that this one needs no state layout, and leave it out."""
    repo = tmp_path / "hub" / "models--meta-llama--Llama-3.3-70B-Instruct" / "snapshots" / "1"
    repo.mkdir(parents=True)
    llama = {"model_type": "llama", "num_hidden_layers": 80, "num_attention_heads": 64}
    (repo / "config.json").write_text(json.dumps(llama), encoding="utf-8")
    monkeypatch.setenv("HF_HOME", str(tmp_path))
    monkeypatch.delenv("HF_HUB_CACHE", raising=False)
    app = EXAMPLES / P5 / "app.yaml"
    aware = examine(load_text(app.read_text(encoding="utf-8"), "app.yaml", {})).checked
    assert aware is not None
    assert aware.applications[0].facts is not None
    assert render(plan_layout(app, settings(P5), {})) == files(P5)


@BOTH
def test_gpu_nodes_are_in_one_zone_and_one_placement_group(name: str) -> None:
    """EFA does not leave the zone, and prefill's nodes must be near decode's."""
    found = groups(name)
    assert list(found) == ["prefill", "decode"]
    zones = {zone for group in found.values() for zone in group["availabilityZones"]}
    assert zones == {layout(name).settings.zone}
    placement = {group["placement"]["groupName"] for group in found.values()}
    assert placement == {f"{layout(name).settings.cluster_name}-gpu"}
    assert all(group["efaEnabled"] is True for group in found.values())
    cluster = document(files(name)["eksctl/cluster.yaml"])
    assert zones < set(cluster["availabilityZones"])
    assert len(cluster["availabilityZones"]) == 2


@BOTH
def test_nodes_say_their_role_and_phase(name: str) -> None:
    """`role=gpu-worker` for the plugins, the phase and the user's own labels for the workers."""
    for phase, group in groups(name).items():
        assert group["labels"]["role"] == "gpu-worker"
        assert group["labels"]["baton.dev/phase"] == phase
        selector = pods(service(name))[phase]["nodeSelector"]
        assert selector.items() <= group["labels"].items()


def test_the_examples_selectors_reach_nodes_and_pods() -> None:
    """`baton.placement` of the YAML is what nodes are labelled with and pods look for."""
    wanted = {"role": "gpu-worker", "example.com/pool": "prefill"}
    assert pods(service(P5))["prefill"]["nodeSelector"] == wanted
    assert groups(P5)["decode"]["labels"]["example.com/pool"] == "decode"


def test_labels_that_aws_sets_are_selected_by_and_not_given() -> None:
    """eksctl refuses to label nodes with them."""

    def select(app: Any) -> None:
        app["args"]["baton"]["placement"] = {
            "prefill_node_selector": {"node.kubernetes.io/instance-type": "g6.8xlarge"}
        }

    made = render(changed(select))
    pod = pods(document(made[SERVICE]))["prefill"]
    assert pod["nodeSelector"] == {"node.kubernetes.io/instance-type": "g6.8xlarge"}
    (prefill, _) = document(made["eksctl/nodegroups.yaml"])["managedNodeGroups"]
    assert prefill["labels"] == {"role": "gpu-worker", "baton.dev/phase": "prefill"}


@pytest.mark.parametrize(
    ("taint", "by_chart"),
    [("none", False), ("aws.amazon.com/efa", False), ("nvidia.com/gpu", True)],
)
def test_the_efa_device_plugin_runs_exactly_once(taint: str, by_chart: bool) -> None:
    """eksctl installs one by itself, which tolerates one taint only; the chart has the others."""
    made = render(changed(gpu_taint=taint))
    values = made.get("helm/aws-efa-k8s-device-plugin.values.yaml")
    assert (values is not None) == by_chart
    if values is not None:
        assert document(values)["tolerations"][0]["key"] == taint
    tolerated = {"CriticalAddonsOnly", "aws.amazon.com/efa"}  # by eksctl's own manifest
    (prefill, _) = document(made["eksctl/nodegroups.yaml"])["managedNodeGroups"]
    tainted = {taint["key"] for taint in prefill.get("taints", [])}
    assert by_chart == bool(tainted - tolerated)
    for pod in ("prefill", "decode"):
        keys = [t["key"] for t in pods(document(made[SERVICE]))[pod].get("tolerations", [])]
        assert keys == sorted(tainted)


@BOTH
def test_the_head_has_no_gpu_and_sits_on_the_system_nodes(name: str) -> None:
    """Values of rayStartParams are text: KubeRay refuses the number 0."""
    head = service(name)["spec"]["rayClusterConfig"]["headGroupSpec"]
    assert head["rayStartParams"]["num-gpus"] == "0"
    assert all(isinstance(value, str) for value in head["rayStartParams"].values())
    pod = pods(service(name))["head"]
    assert pod["nodeSelector"] == {"role": "system"}
    limits = pod["containers"][0]["resources"]["limits"]
    assert not any("gpu" in key or "efa" in key for key in limits)
    cluster = document(files(name)["eksctl/cluster.yaml"])
    assert cluster["managedNodeGroups"][0]["labels"] == {"role": "system"}
    operator = document(files(name)["helm/kuberay-operator.values.yaml"])
    assert operator["nodeSelector"] == {"role": "system"}


@pytest.mark.parametrize(("name", "gpus", "efa"), [(G6, "1", "1"), (P5, "8", "32")])
def test_a_worker_has_a_whole_replicas_gpus_and_their_efa_interfaces(
    name: str, gpus: str, efa: str
) -> None:
    """TP x PP GPUs in one pod, and every EFA interface that the instance has for it."""
    for phase in ("prefill", "decode"):
        resources = pods(service(name))[phase]["containers"][0]["resources"]
        assert resources["limits"]["nvidia.com/gpu"] == gpus
        assert resources["limits"]["vpc.amazonaws.com/efa"] == efa
        assert resources["requests"] == resources["limits"]


@BOTH
def test_serve_places_each_phase_on_its_own_workers_only(name: str) -> None:
    """Every bundle asks for what only the phase's worker group offers."""
    spec = service(name)["spec"]
    args = yaml.safe_load(spec["serveConfigV2"])["applications"][0]["args"]
    for group in spec["rayClusterConfig"]["workerGroupSpecs"]:
        phase = group["groupName"]
        offered = json.loads(json.loads(group["rayStartParams"]["resources"]))
        assert offered == {f"baton_{phase}": 1}
        placed = args[f"{phase}_config"]["placement_group_config"]
        assert placed["bundle_per_worker"] == {"GPU": 1, f"baton_{phase}": 0.001}
        assert placed["strategy"] == "STRICT_PACK"


def test_bundles_of_the_users_own_keep_what_they_ask_for() -> None:
    """Only the phase's resource is added."""

    def bundles(app: Any) -> None:
        app["args"]["decode_config"]["placement_group_config"] = {
            "bundles": [{"GPU": 1, "CPU": 4}],
            "strategy": "PACK",
        }

    found = changed(bundles).serve_config["applications"][0]["args"]["decode_config"]
    assert found["placement_group_config"] == {
        "bundles": [{"GPU": 1, "CPU": 4, "baton_decode": 0.001}],
        "strategy": "PACK",
    }


@BOTH
def test_the_deployed_yaml_passes_the_check_again(name: str) -> None:
    """`baton validate` reads the manifest, and the builder checks its arguments in the cluster."""
    report = examine(load_text(files(name)[SERVICE], "rayservice.yaml", {}))
    assert report.errors == ()
    assert report.loaded.kind == "rayservice"


@BOTH
def test_workers_speak_efa_and_name_their_own_address(name: str) -> None:
    """libfabric would settle for TCP, and vLLM for another interface, both in silence."""
    for phase in ("prefill", "decode"):
        found = env(pods(service(name))[phase])
        assert found["FI_PROVIDER"] == "efa"
        assert found["VLLM_HOST_IP"] == {"fieldRef": {"fieldPath": "status.podIP"}}


def test_without_libfabric_no_efa_is_asked_for() -> None:
    """UCX cannot drive it; the pods must not wait for devices that nobody uses."""

    def ucx(app: Any) -> None:
        app["args"]["baton"]["transport"] = {"require": "any"}
        for role in ("prefill_config", "decode_config"):
            kv = app["args"][role]["engine_kwargs"]["kv_transfer_config"]
            kv["kv_connector_extra_config"] = {"backends": ["UCX"]}

    there = changed(ucx)
    made = render(there)
    pod = pods(document(made[SERVICE]))["prefill"]
    assert "FI_PROVIDER" not in env(pod)
    assert set(pod["containers"][0]["resources"]["limits"]) == {"cpu", "memory", "nvidia.com/gpu"}
    assert "efaEnabled" not in made["eksctl/nodegroups.yaml"]
    assert any("does not use it" in note for note in there.notes)
    policy = document(made["k8s/networkpolicy.yaml"])
    ranges = [(p["port"], p.get("endPort")) for p in policy["spec"]["ingress"][0]["ports"]]
    assert (32768, 60999) in ranges  # UCX connects on ports that the kernel picks


@BOTH
def test_ha_proxy_runs_in_head_and_workers_on_every_node(name: str) -> None:
    """Each node decides for itself which proxy it starts; one that differs serves nobody."""
    for pod in pods(service(name)).values():
        assert env(pod)["RAY_SERVE_ENABLE_HA_PROXY"] == "1"
    config = yaml.safe_load(service(name)["spec"]["serveConfigV2"])
    assert config["proxy_location"] == "EveryNode"
    assert config["http_options"] == {"host": "0.0.0.0", "port": 8000}


def test_a_proxy_location_of_the_users_is_changed_and_said() -> None:
    """KubeRay's Service sends to every worker."""

    there = changed()
    assert there.notes == ()
    document_ = yaml.safe_load((ROOT / "examples" / G6 / "app.yaml").read_text(encoding="utf-8"))
    document_["proxy_location"] = "HeadOnly"
    from baton.deploy.eks.placement import adjustments

    report = examine(load_text(yaml.safe_dump(document_), "app.yaml", {}), look_for_model=False)
    assert report.checked is not None
    (said,) = adjustments(report.checked)
    assert "EveryNode" in said


@BOTH
def test_probes_ask_ray_and_not_a_serve_proxy(name: str) -> None:
    """A worker without a replica has no proxy, and would never be ready."""
    for pod in pods(service(name)).values():
        for probe in ("readinessProbe", "livenessProbe"):
            assert pod["containers"][0][probe]["httpGet"] == {"path": "/api/healthz", "port": 52365}


@BOTH
def test_memory_is_above_the_checkpoint_and_holds_shared_memory(name: str) -> None:
    """The page cache of the weights and /dev/shm both count against the limit."""
    there = layout(name)
    for group in there.groups:
        pod = pods(service(name))[group.role]
        limit_gib = int(pod["containers"][0]["resources"]["limits"]["memory"].removesuffix("Gi"))
        assert limit_gib > (there.settings.checkpoint_gib or 0)
        assert limit_gib * 1024 < group.instance.memory_mib
        (shm,) = [v for v in pod["volumes"] if v["name"] == "shm"]
        assert shm["emptyDir"]["medium"] == "Memory"
        assert int(shm["emptyDir"]["sizeLimit"].removesuffix("Mi")) < limit_gib * 1024
        mounts = {m["mountPath"]: m["name"] for m in pod["containers"][0]["volumeMounts"]}
        assert mounts["/dev/shm"] == "shm"
        assert mounts["/models"] == "models"


def test_memory_is_pinned_by_privilege_or_by_one_capability() -> None:
    """`--security ipc-lock` for clusters that refuse privileged pods."""
    worker = pods(service())["prefill"]["containers"][0]
    assert worker["securityContext"] == {"privileged": True, "runAsUser": 0}
    locked = pods(document(render(changed(security="ipc-lock"))[SERVICE]))["prefill"]
    assert locked["containers"][0]["securityContext"] == {
        "runAsUser": 0,  # of no other user would the capability be effective
        "allowPrivilegeEscalation": False,
        "capabilities": {"add": ["IPC_LOCK"]},
    }


def test_a_worker_has_time_to_drain_and_an_old_cluster_to_finish() -> None:
    """Longer than Baton's drain and Serve's own timeout; the old Ray cluster outlives a request."""

    def slow(app: Any) -> None:
        app["args"]["baton"]["engines"] = {"drain_timeout_s": 300}
        app["args"]["baton"]["recovery"] = {"request_timeout_s": 900}

    found = document(render(changed(slow))[SERVICE])
    pod = pods(found)["decode"]
    assert pod["terminationGracePeriodSeconds"] > 300 + 15
    hook = pod["containers"][0]["lifecycle"]["preStop"]["exec"]["command"][-1]
    assert "ray drain-node" in hook
    assert found["spec"]["rayClusterDeletionDelaySeconds"] >= 900


def test_an_upgrade_needs_no_spare_gpus_unless_there_are_some() -> None:
    """KubeRay's default starts a second Ray cluster, which would wait for GPUs for ever."""
    assert service()["spec"]["upgradeStrategy"] == {"type": "None"}
    spare = render(changed(upgrade_strategy="new-cluster", gpu_node_count=4))
    assert document(spare[SERVICE])["spec"]["upgradeStrategy"] == {"type": "NewCluster"}
    assert "desiredCapacity: 3" in spare["eksctl/nodegroups.yaml"]


def test_a_lost_head_is_spoken_of_with_and_without_fault_tolerance() -> None:
    """What it does to traffic differs, and the file says which."""
    assert "every stream" in files()[SERVICE]
    redis = render(
        changed(
            gcs_fault_tolerance="redis", redis_address="redis:6379", redis_password_secret="redis"
        )
    )
    assert "answer through the workers" in redis[SERVICE]
    cluster = document(redis[SERVICE])["spec"]["rayClusterConfig"]
    assert cluster["gcsFaultToleranceOptions"]["redisAddress"] == "redis:6379"


@BOTH
def test_the_network_policy_names_the_engines_ranges(name: str) -> None:
    """And what HAProxy on one node needs of a gateway on another."""
    text = files(name)["k8s/networkpolicy.yaml"]
    assert "engines: 18000 to 18999" in text
    assert "nixl side channel: 20000 to 20999" in text
    policy = document(text)
    between = [(p["port"], p.get("endPort")) for p in policy["spec"]["ingress"][0]["ports"]]
    for wanted in ((18000, 18999), (20000, 20999), (10002, 17999), (30000, 31000)):
        assert wanted in between
    selector = policy["spec"]["podSelector"]["matchLabels"]
    for group in service(name)["spec"]["rayClusterConfig"]["workerGroupSpecs"]:
        assert selector.items() <= group["template"]["metadata"]["labels"].items()
    addon = document(files(name)["eksctl/cluster.yaml"])["addons"][0]
    assert json.loads(addon["configurationValues"]) == {"enableNetworkPolicy": "true"}


def test_ranges_of_the_users_own_reach_the_network_policy() -> None:
    """The block's ports are the ones that engines take."""

    def other(app: Any) -> None:
        app["args"]["baton"]["engines"] = {"port_min": 21000, "port_max": 21099}

    policy = document(render(changed(other))["k8s/networkpolicy.yaml"])
    between = [(p["port"], p.get("endPort")) for p in policy["spec"]["ingress"][0]["ports"]]
    assert (21000, 21099) in between
    assert (18000, 18999) not in between


@BOTH
def test_every_phase_and_the_head_have_a_disruption_budget(name: str) -> None:
    """A node drain takes one engine at a time; the only head is not evicted."""
    budgets = documents(files(name)["k8s/poddisruptionbudget.yaml"])
    away = {b["spec"]["selector"]["matchLabels"]["baton.dev/phase"]: b["spec"] for b in budgets}
    assert {part: spec["maxUnavailable"] for part, spec in away.items()} == {
        "head": 0,
        "prefill": 1,
        "decode": 1,
    }


def test_the_alb_waits_longer_than_the_longest_silence() -> None:
    """An answer that is not streamed says nothing until it is done."""
    made = render(changed(ingress="internal"))
    annotations = document(made["k8s/ingress.yaml"])["metadata"]["annotations"]
    attributes = annotations["alb.ingress.kubernetes.io/load-balancer-attributes"]
    assert int(attributes.partition("=")[2]) > 600
    assert annotations["alb.ingress.kubernetes.io/target-type"] == "ip"
    assert annotations["alb.ingress.kubernetes.io/healthcheck-path"] == "/-/healthz"
    assert "helm/aws-load-balancer-controller.values.yaml" in made
    assert "ingress.yaml" in document(made["k8s/kustomization.yaml"])["resources"]
    assert "k8s/ingress.yaml" not in files()


def test_secrets_are_named_and_never_held() -> None:
    """The callers' keys and the hub's token come from Secrets that somebody makes by hand."""
    found = env(pods(service())["decode"])
    assert found["HF_TOKEN"] == {
        "secretKeyRef": {"name": "hf-token", "key": "token", "optional": True}
    }
    reference = {"secretKeyRef": {"name": "baton-api-keys", "key": "BATON_API_KEYS"}}
    assert found["BATON_API_KEYS"] == reference
    assert env(pods(service())["head"])["BATON_API_KEYS"] == reference
    assert not any(d.get("kind") == "Secret" for d in documents(files()[SERVICE]))


def test_all_keys_of_one_secret_are_made_at_once() -> None:
    """Variables of callers and provider, and a file of keys, which every pod can read."""

    def keys(app: Any) -> None:
        app["args"]["baton"]["auth"] = {"api_keys_env": "KEYS", "api_keys_file": "/etc/b/keys.yaml"}
        app["args"]["baton"]["overflow"] = {
            "base_url": "https://provider.example/v1",
            "api_key_env": "PROVIDER_KEY",
        }

    made = render(changed(keys))
    line = "--from-literal=KEYS=… --from-literal=PROVIDER_KEY=… --from-file=keys.yaml"
    assert made["README.md"].count(line) == 1
    for pod in pods(document(made[SERVICE])).values():
        mounts = {m["mountPath"]: m["name"] for m in pod["containers"][0]["volumeMounts"]}
        assert mounts["/etc/b"] == "api-keys"
        (volume,) = [v for v in pod["volumes"] if v["name"] == "api-keys"]
        assert volume["secret"]["items"] == [{"key": "keys.yaml", "path": "keys.yaml"}]
        assert "PROVIDER_KEY" in env(pod)


def test_monitoring_stands_apart_so_that_its_kind_may_be_missing() -> None:
    """Without the Prometheus operator `kubectl apply -k k8s` must still work."""
    assert not any("monitor" in r for r in document(files()["k8s/kustomization.yaml"])["resources"])
    _, monitor = documents(files()["k8s/monitoring/servicemonitor.yaml"])
    assert [e["port"] for e in monitor["spec"]["endpoints"]] == ["metrics", "serve"]
    _, many = documents(files(P5)["k8s/monitoring/servicemonitor.yaml"])
    assert [e["port"] for e in many["spec"]["endpoints"]] == ["metrics"]


def test_the_plain_flavour_has_the_same_pods_without_an_operator() -> None:
    """Workers join the head by themselves, and Serve is handed the same YAML."""
    objects = documents(render(changed(flavor="plain"))["k8s/ray.yaml"])
    by_name = {(o["kind"], o["metadata"]["name"]): o for o in objects}
    config = by_name["ConfigMap", "qwen-app"]["data"]["app.yaml"]
    assert yaml.safe_load(config) == yaml.safe_load(service()["spec"]["serveConfigV2"])
    for phase in ("prefill", "decode"):
        pod = by_name["StatefulSet", f"qwen-{phase}"]["spec"]["template"]["spec"]
        theirs = pods(service())[phase]
        mine = pod["containers"][0]
        command = mine.pop("command")[-1]
        assert mine == theirs["containers"][0]
        assert "--address=qwen-head-svc:6379" in command
        assert f'--resources="{{\\"baton_{phase}\\": 1}}"' in command
    head = by_name["Deployment", "qwen-head"]["spec"]
    assert head["strategy"] == {"type": "Recreate"}
    assert [c["name"] for c in head["template"]["spec"]["containers"]] == [
        "ray-head",
        "serve-deploy",
    ]
    assert by_name["Service", "qwen-serve-svc"]["spec"]["ports"][0]["port"] == 8000
