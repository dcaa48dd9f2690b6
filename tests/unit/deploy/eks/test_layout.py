"""What cannot come up is refused before anything is written, at its place and with a cure."""

from __future__ import annotations

from typing import Any

import pytest

from tests.unit.deploy.eks.rendered import G6, P5, changed, layout, refused


def ids(faults: list[Any]) -> list[str]:
    return [fault.rule_id for fault in faults]


def only(faults: list[Any]) -> Any:
    assert ids(faults) == [faults[0].rule_id]
    assert faults[0].cure
    return faults[0]


def edit(role: str, path: str, value: Any) -> Any:
    def change(app: Any) -> None:
        here = app["args"][f"{role}_config"]
        *parts, last = path.split(".")
        for part in parts:
            here = here.setdefault(part, {})
        here[last] = value

    return change


def test_too_few_nodes_for_the_replicas_are_refused() -> None:
    """The fault stands where the count does, and names the count that is needed."""
    fault = only(refused(name=P5, gpu_node_count=7))
    assert fault.rule_id == "EKS-013"
    assert fault.file == "flag --gpu-node-count"
    assert "set gpu_node_count: 8" in fault.cure


def test_a_rollout_into_a_second_cluster_needs_twice_the_nodes() -> None:
    """Eight nodes do not carry two clusters of eight."""
    fault = only(refused(name=P5, upgrade_strategy="new-cluster"))
    assert fault.rule_id == "EKS-013"
    assert "16" in fault.cure
    assert fault.line > 0
    assert fault.file.endswith("eks.yaml")


def test_a_surge_that_no_worker_is_free_for_is_refused() -> None:
    """Serve would wait for the new engine before it lets the old one go, without end."""
    fault = only(refused(edit("decode", "deployment_config.max_surge_percent", 100)))
    assert (fault.rule_id, fault.cure) == ("EKS-013", "remove max_surge_percent")
    assert fault.line > 0


def test_a_replica_that_no_instance_can_hold_is_refused() -> None:
    """A worker is one pod; TP 8 does not fit on one L4."""
    faults = refused(name=P5, gpu_instance_type="g6.8xlarge", gpu_taint="none")
    assert "EKS-011" in ids(faults)
    assert any("8 GPUs" in fault.message for fault in faults)


def test_an_unknown_instance_type_is_refused_with_the_nearest() -> None:
    """A type that the table does not have cannot be laid out."""
    faults = refused(gpu_instance_type="g6.8xlrage")
    assert {fault.rule_id for fault in faults} == {"EKS-011"}
    assert "g6.8xlarge" in faults[0].cure
    assert "2026" in faults[0].message  # the table says how old it is


def test_a_cpu_type_for_gpu_nodes_is_refused() -> None:
    """It is in the table, and has no GPU."""
    assert "has no GPU" in refused(gpu_instance_type="m7i.xlarge")[0].message


def test_required_efa_on_a_type_without_it_is_refused() -> None:
    """g6.4xlarge has the same L4 and no EFA."""
    faults = refused(gpu_instance_type="g6.4xlarge")
    assert set(ids(faults)) == {"EKS-012"}
    assert "none" in faults[0].message


def test_efa_that_cannot_be_shared_out_is_refused() -> None:
    """Four L4s on one machine, one interface: three workers would have none."""
    faults = refused(gpu_instance_type="g6.12xlarge")
    assert set(ids(faults)) == {"EKS-012"}
    assert "1 for 4 workers" in faults[0].message


def test_a_type_on_which_eksctls_plugin_is_not_known_to_run_wants_the_chart() -> None:
    """Otherwise pods wait for vpc.amazonaws.com/efa that nobody advertises."""
    faults = refused(name=P5, gpu_taint="none")
    assert set(ids(faults)) == {"EKS-012"}
    assert faults[0].cure == "set gpu_taint: nvidia.com/gpu"


def test_a_gpu_that_the_file_does_not_name_is_refused() -> None:
    """Ray would wait for `accelerator_type:H100` on L4 nodes without end."""
    fault = only(refused(edit("decode", "accelerator_type", "H100")))
    assert (fault.rule_id, fault.file, fault.found) == ("EKS-011", "app.yaml", "H100")
    assert fault.line > 0
    assert "L4" in fault.cure


def test_a_selector_that_the_nodes_will_not_meet_is_refused() -> None:
    """The label is AWS' own; its value follows from the settings."""

    def select(app: Any) -> None:
        app["args"]["baton"]["placement"] = {
            "decode_node_selector": {"node.kubernetes.io/instance-type": "p5.48xlarge"}
        }

    fault = only(refused(select))
    assert fault.rule_id == "EKS-011"
    assert fault.line > 0
    assert "g6.8xlarge" in fault.cure


def test_a_memory_limit_below_the_checkpoint_is_refused() -> None:
    """Weights would be read again and again, and host buffers come on top."""
    faults = refused(checkpoint_gib=200)
    assert ids(faults) == ["EKS-014", "EKS-014"]
    assert "GiB" in faults[0].allowed
    with_host_buffer = edit("decode", "engine_kwargs.cpu_offload_gb", 90)
    assert ids(refused(with_host_buffer)) == ["EKS-014"]


def test_an_unknown_checkpoint_is_said_to_be_unknown() -> None:
    """Unknown is not a pass."""
    from baton.deploy.eks.layout import layout_of
    from baton.deploy.eks.origins import resolve
    from baton.deploy.eks.render import read_app
    from tests.unit.deploy.eks.rendered import EXAMPLES

    found = resolve({"image": "mine:1"}, {})
    there = layout_of(read_app(EXAMPLES / G6 / "app.yaml", found, {}), found)
    assert any("checkpoint_gib is not set" in note for note in there.notes)
    assert any("us-west-2a is a guess" in note for note in there.notes)


def test_batons_builder_without_an_image_of_ones_own_is_refused() -> None:
    """AWS' container does not have Baton in it; Ray's own builder runs there."""
    from baton.deploy.eks.config import AWS_RAY_LLM_IMAGE
    from baton.deploy.eks.layout import layout_of
    from baton.deploy.eks.origins import resolve
    from baton.spec.check import examine
    from baton.spec.load import load_text
    from tests.unit.deploy.eks.rendered import app_text

    text = app_text(G6)
    found = resolve({}, {})

    def lay_out(text: str) -> Any:
        report = examine(load_text(text, "app.yaml", {}), look_for_model=False)
        assert report.checked is not None
        return layout_of(report.checked, found)

    from baton.errors import ConfigRefused

    with pytest.raises(ConfigRefused) as refusal:
        lay_out(text)
    assert ids(list(refusal.value.faults)) == ["EKS-015"]
    rays = lay_out(text.replace("baton:build_pd", "ray.serve.llm:build_pd"))
    assert rays.image == AWS_RAY_LLM_IMAGE
    assert "baton" not in rays.serve_config["applications"][0]["args"]


def test_a_model_setting_that_the_file_contradicts_is_refused() -> None:
    """MODEL_ID left over in a shell must not be ignored in silence."""
    fault = only(refused(model_id="other-model"))
    assert fault.rule_id == "EKS-016"
    assert "${MODEL_ID}" in fault.cure
    assert changed(model_id="qwen3.5-9b").name == "qwen"


def test_an_alb_before_an_open_endpoint_is_refused() -> None:
    """Whoever finds it could use it."""

    def no_keys(app: Any) -> None:
        del app["args"]["baton"]["auth"]

    assert only(refused(no_keys, ingress="internet-facing")).rule_id == "EKS-017"


def test_port_ranges_that_meet_rays_are_refused() -> None:
    """Ray's workers have 10002 to 17999 here."""

    def low(app: Any) -> None:
        app["args"]["baton"]["engines"] = {"port_min": 17_000, "port_max": 18_999}

    fault = only(refused(low))
    assert fault.rule_id == "EKS-018"
    assert fault.key_path.endswith("engines.port_min")


def test_engines_on_cpu_are_refused() -> None:
    """The files of a GPU cluster make no sense of them."""

    def cpu(app: Any) -> None:
        for role in ("prefill_config", "decode_config"):
            del app["args"][role]["accelerator_type"]
            app["args"][role]["placement_group_config"] = {"bundles": [{"CPU": 1}]}

    assert ids(refused(cpu)) == ["EKS-010", "EKS-010"]


def test_all_faults_are_found_in_one_run() -> None:
    """A person mends the files once."""

    def wrong(app: Any) -> None:
        app["args"]["decode_config"]["accelerator_type"] = "H100"
        app["args"]["baton"]["engines"] = {"port_min": 17_000, "port_max": 18_999}

    found = ids(refused(wrong, checkpoint_gib=500, model_id="other"))
    assert set(found) == {"EKS-011", "EKS-014", "EKS-016", "EKS-018"}


def test_several_replicas_share_a_machine_where_there_is_no_efa_to_share() -> None:
    """Four L4s hold four workers with a quarter of the memory each."""

    def tcp(app: Any) -> None:
        app["args"]["baton"]["transport"] = {"require": "any"}
        for role in ("prefill_config", "decode_config"):
            kv = app["args"][role]["engine_kwargs"]["kv_transfer_config"]
            kv["kv_connector_extra_config"] = {"backends": ["UCX"]}
        app["args"]["decode_config"]["deployment_config"] = {"num_replicas": 4}

    there = changed(tcp, gpu_instance_type="g6.12xlarge")
    decode = there.group("decode")
    assert (decode.nodes, decode.workers, decode.gpus) == (1, 4, 1)
    assert decode.memory_mib * 4 < decode.instance.memory_mib
    assert there.group("prefill").memory_mib == decode.memory_mib


def test_pools_that_scale_have_nodes_for_the_most_replicas() -> None:
    """Nodes are not scaled here, and that is said."""

    def scaling(app: Any) -> None:
        app["args"]["decode_config"]["deployment_config"] = {
            "autoscaling_config": {"min_replicas": 1, "max_replicas": 3}
        }

    there = changed(scaling, gpu_node_count=4)
    assert there.group("decode").workers == 3
    assert any("replicas at most" in note for note in there.notes)


def test_spare_nodes_go_to_decode_and_get_no_workers() -> None:
    """They stand by for a lost node or a second Ray cluster."""
    there = changed(gpu_node_count=3)
    assert [(g.nodes, g.workers) for g in there.groups] == [(1, 1), (2, 1)]
    assert any("stand by" in note for note in there.notes)
    assert layout().notes == ()
