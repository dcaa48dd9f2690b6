"""Mistakes that broke real deployments (c01 to c26), each with a valid neighbour."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import pytest

from baton.spec.model_facts import ModelFacts
from baton.spec.rules import parallel
from baton.spec.view import AppView
from tests.unit.spec.files import (
    BASE,
    GPU_BOX,
    KEYS,
    LAPTOP,
    both,
    line_of,
    report,
    rules_of,
    spoiled,
    spoiled_app,
)

if TYPE_CHECKING:
    from baton.spec.faults import Fault


@pytest.fixture(autouse=True)
def keys_are_here(monkeypatch: pytest.MonkeyPatch) -> None:
    for name, value in KEYS.items():
        monkeypatch.setenv(name, value)


def only_error(text: str, **more: Any) -> Fault:
    """The one error of a text."""
    found = report(text, **more)
    assert len(found.errors) == 1, found.errors
    assert found.checked is None
    return found.errors[0]


def accepted(text: str, **more: Any) -> list[str]:
    """Asserts that a text may start; gives the ids of its warnings."""
    found = report(text, **more)
    assert found.errors == ()
    assert found.checked is not None
    return rules_of(found, "warning")


def engine(args: Any, role: str) -> Any:
    return args[f"{role}_config"]["engine_kwargs"]


def test_the_good_base_is_accepted_without_a_warning() -> None:
    """Every case is a change to a file that is right."""
    assert accepted(BASE) == []
    assert accepted(BASE, machine=GPU_BOX) == []


@pytest.mark.parametrize("path", ["baton:build_pd_openai_app", "ray.serve.llm:build_pd_openai_app"])
def test_c01_kv_transfer_config_beside_engine_kwargs_is_moved_and_deployed_moved(path: str) -> None:
    """Published examples have it there; what is deployed is the corrected config."""

    def spoil(app: Any) -> None:
        app["import_path"] = path
        for role in ("prefill_config", "decode_config"):
            config = app["args"][role]
            config["kv_transfer_config"] = config["engine_kwargs"].pop("kv_transfer_config")

    text = spoiled_app(spoil)
    found = report(text)
    assert found.errors == ()
    moved = [f for f in found.warnings if f.rule_id == "BTN-110"]
    assert [f.line for f in moved] == [line_of(text, "kv_transfer_config", n) for n in (1, 2)]
    assert found.checked is not None
    args = found.checked.to_serve_config()["applications"][0]["args"]
    for role in ("prefill_config", "decode_config"):
        assert "kv_transfer_config" not in args[role]
        assert args[role]["engine_kwargs"]["kv_transfer_config"]["kv_connector"] == "NixlConnector"


def test_c02_engine_kwargs_below_model_loading_config_is_moved() -> None:
    """The key and where it belongs are named."""

    def spoil(args: Any) -> None:
        config = args["prefill_config"]
        config["model_loading_config"]["engine_kwargs"] = config.pop("engine_kwargs")

    found = report(spoiled(spoil))
    assert found.errors == ()
    (slip,) = [f for f in found.warnings if f.rule_id == "BTN-111"]
    assert "engine_kwargs" in slip.message
    assert "prefill_config.model_loading_config" in slip.message


def test_c02_two_engine_kwargs_are_not_merged_but_refused() -> None:
    """With two of them there is no single meaning."""

    def spoil(args: Any) -> None:
        config = args["prefill_config"]
        config["model_loading_config"]["engine_kwargs"] = {"max_model_len": 8}

    assert only_error(spoiled(spoil)).rule_id == "BTN-102"


def test_c03_an_unknown_engine_argument_gets_did_you_mean() -> None:
    """The names come from the installed vLLM."""

    def spoil(args: Any) -> None:
        args["decode_config"]["engine_kwargs"]["max_model_length"] = 4096

    text = spoiled(spoil)
    fault = only_error(text)
    assert fault.rule_id == "BTN-106"
    assert fault.cure == "did you mean `max_model_len`?"
    assert (fault.line, fault.column) == (line_of(text, "max_model_length"), 9)


def test_c04_dtype_bf16_gets_did_you_mean_bfloat16() -> None:
    """The place is that of the value."""
    text = BASE.replace("dtype: bfloat16", "dtype: bf16", 1)
    fault = only_error(text)
    assert fault.found == "bf16"
    assert fault.cure == "did you mean `bfloat16`?"
    assert (fault.line, fault.column) == (line_of(text, "bf16"), 16)


def test_c05_a_producer_cannot_decode() -> None:
    """Decode must be kv_consumer or kv_both."""
    fault = only_error(BASE.replace("kv_role: kv_both", "kv_role: kv_producer"))
    assert fault.rule_id == "BTN-121"
    assert fault.allowed == "kv_consumer or kv_both"
    assert "decode_config" in fault.key_path
    right = BASE.replace("kv_role: kv_both", "kv_role: kv_producer", 1)
    assert accepted(right.replace("kv_role: kv_both", "kv_role: kv_consumer")) == []


def test_c06_a_misspelt_connector_gets_did_you_mean() -> None:
    """Connectors are looked up by their exact name."""
    found = report(BASE.replace("NixlConnector", "NIXLConnector"))
    assert rules_of(found) == ["BTN-120", "BTN-120"]
    assert {f.cure for f in found.errors} == {"did you mean `NixlConnector`?"}


def test_c07_one_engine_id_for_both_roles_is_made_unique_and_said_so() -> None:
    """Each replica appends to it, with Baton's import path and with Ray's."""
    found = report(BASE.replace("engine_id: decode", "engine_id: prefill"))
    assert found.errors == ()
    (fault,) = found.warnings
    assert fault.rule_id == "BTN-122"
    assert "each replica" in fault.message


def test_c08_decode_must_take_what_prefill_takes() -> None:
    """A prompt that prefill accepts would strand its KV."""

    def spoil(args: Any) -> None:
        engine(args, "decode")["max_model_len"] = 2048

    fault = only_error(spoiled(spoil))
    assert fault.rule_id == "BTN-140"
    assert fault.related[0][0] == "prefill"

    def turned_round(args: Any) -> None:
        engine(args, "prefill")["max_model_len"] = 2048

    assert accepted(spoiled(turned_round)) == []


@pytest.mark.parametrize(
    ("prefill", "decode", "device", "refused"),
    [
        (16, 32, "cuda", False),
        (16, 32, "cpu", True),
        (32, 16, "cuda", True),
        (32, 32, "cpu", False),
    ],
)
def test_c09_block_sizes_follow_vllms_worker(
    prefill: int, decode: int, device: str, refused: bool
) -> None:
    """Decode's must be a multiple of prefill's, and never through a host buffer."""

    def spoil(args: Any) -> None:
        for role, size in (("prefill", prefill), ("decode", decode)):
            engine(args, role)["block_size"] = size
            engine(args, role)["kv_transfer_config"]["kv_buffer_device"] = device

    found = report(spoiled(spoil))
    assert rules_of(found) == (["BTN-141"] if refused else [])
    if prefill != decode and not refused:
        assert "BTN-141" in rules_of(found, "note")


@pytest.mark.parametrize(
    ("prefill", "decode", "facts", "refused"),
    [
        (4, 2, {"kv_heads": 8}, False),
        (4, 2, {"kv_heads": 4}, False),
        (4, 2, {"kv_heads": 2}, True),
        (8, 4, {"kv_heads": 4}, True),
        (4, 2, {"kv_heads": 1, "mla_dim": 576}, False),
        (4, 2, {"kv_heads": 2, "mamba_layers": 6}, False),
        (2, 4, {"kv_heads": 2}, False),
        (2, 8, {"kv_heads": 2}, False),
        (4, 3, {"kv_heads": 12}, True),
        (3, 2, {"kv_heads": 12}, True),
        (2, 2, {"kv_heads": 1}, False),
    ],
)
def test_c10_tensor_parallel_sizes_follow_vllms_worker(
    prefill: int, decode: int, facts: dict[str, int], refused: bool
) -> None:
    """Both sides of each border that vLLM's handshake draws."""

    def role(size: int) -> dict[str, Any]:
        kv = {"kv_connector": "NixlConnector", "kv_role": "kv_both"}
        return {"engine_kwargs": {"tensor_parallel_size": size, "kv_transfer_config": kv}}

    args = {"prefill_config": role(prefill), "decode_config": role(decode)}
    app = AppView({}, (), args, (), facts=ModelFacts("x", attention_heads=24, **facts))
    found = [f for f in parallel.tensor_parallel(app) if f.severity is None]
    assert bool(found) == refused


def test_c10_without_the_models_config_the_condition_is_named() -> None:
    """What cannot be decided is a warning that says what it depends on."""

    def spoil(args: Any) -> None:
        engine(args, "prefill")["tensor_parallel_size"] = 4
        engine(args, "decode")["tensor_parallel_size"] = 2

    found = report(spoiled(spoil))
    assert found.errors == ()
    (fault,) = found.warnings
    assert fault.rule_id == "BTN-142"
    assert "KV heads" in fault.message


def test_c11_pipeline_parallel_decode_is_refused() -> None:
    """vLLM counts completed transfers per consumer rank."""

    def spoil(args: Any) -> None:
        engine(args, "decode")["pipeline_parallel_size"] = 2

    assert only_error(spoiled(spoil)).rule_id == "BTN-143"


def test_c11_pipeline_parallel_prefill_wants_push() -> None:
    """With pull, decode meets a stage with fewer layers than its own."""

    def spoil(args: Any) -> None:
        engine(args, "prefill")["pipeline_parallel_size"] = 2

    assert only_error(spoiled(spoil)).rule_id == "BTN-143"

    def push(app: Any) -> None:
        app["import_path"] = "ray.serve.llm:build_pd_openai_app"
        spoil(app["args"])
        for role in ("prefill", "decode"):
            engine(app["args"], role)["kv_transfer_config"]["kv_connector"] = "NixlPushConnector"

    assert accepted(spoiled_app(push)) == ["BTN-194"]


def test_c12_different_model_ids_show_both_lines() -> None:
    """The place is decode's, and prefill's is named beside it."""
    head, tail = BASE.rsplit("model_id: qwen3.5-9b", 1)
    fault = only_error(head + "model_id: qwen3.5-9c" + tail)
    assert fault.rule_id == "BTN-144"
    assert fault.related[0][1].line == line_of(BASE, "model_id")
    assert fault.line == line_of(BASE, "model_id", 2)


def test_c13_left_over_keys_are_warned_about() -> None:
    """kv_rank and kv_parallel_size belong to other connectors."""

    def spoil(args: Any) -> None:
        engine(args, "prefill")["kv_transfer_config"].update(kv_rank=0, kv_parallel_size=2)

    assert accepted(spoiled(spoil)) == ["BTN-124", "BTN-124"]


def test_c14_push_and_pull_do_not_meet() -> None:
    """The transfer mode is part of the handshake."""

    def spoil(app: Any) -> None:
        app["import_path"] = "ray.serve.llm:build_pd_openai_app"
        engine(app["args"], "prefill")["kv_transfer_config"]["kv_connector"] = "NixlPushConnector"

    assert only_error(spoiled_app(spoil)).rule_id == "BTN-123"


def test_c14_push_and_pull_do_not_meet_with_batons_import_path_either() -> None:
    """Baton's gateway adds that it does not speak push."""

    def spoil(args: Any) -> None:
        engine(args, "prefill")["kv_transfer_config"]["kv_connector"] = "NixlPushConnector"

    assert "BTN-123" in rules_of(report(spoiled(spoil)))


@pytest.mark.parametrize(
    ("config", "refused"),
    [
        ({"method": "eagle3", "model": "x/eagle", "num_speculative_tokens": 3}, True),
        ({"method": "mtp", "num_speculative_tokens": 1}, True),
        ({"method": "qwen3_next_mtp", "num_speculative_tokens": 1}, True),
        ({"method": "ngram", "num_speculative_tokens": 3, "prompt_lookup_max": 4}, False),
        ({"method": "suffix"}, False),
    ],
)
def test_c15_speculation_from_hidden_states_must_be_in_both_roles(
    config: dict[str, Any], refused: bool
) -> None:
    """EAGLE and MTP change the handed-over KV; n-gram drafts do not."""

    def decode_only(args: Any) -> None:
        engine(args, "decode")["speculative_config"] = dict(config)

    assert rules_of(report(spoiled(decode_only))) == (["BTN-145"] if refused else [])

    def in_both(args: Any) -> None:
        decode_only(args)
        engine(args, "prefill")["speculative_config"] = dict(config)

    assert accepted(spoiled(in_both)) == []


def test_c16_one_side_channel_host_for_two_replicas_is_refused() -> None:
    """Replicas elsewhere would announce an address that is not theirs."""

    def spoil(config: Any, replicas: int) -> None:
        config["runtime_env"] = {"env_vars": {"VLLM_NIXL_SIDE_CHANNEL_HOST": "10.0.0.5"}}
        config["deployment_config"]["num_replicas"] = replicas

    text = spoiled(lambda args: spoil(args["prefill_config"], 2))
    fault = only_error(text)
    assert fault.rule_id == "BTN-150"
    assert fault.line == line_of(text, "VLLM_NIXL_SIDE_CHANNEL_HOST")
    assert accepted(spoiled(lambda args: spoil(args["prefill_config"], 1))) == []


def test_c16_env_vars_beside_engine_kwargs_are_understood() -> None:
    """`env_vars` belongs in `runtime_env`; it is moved there and checked there."""

    def spoil(args: Any) -> None:
        args["decode_config"]["env_vars"] = {"VLLM_NIXL_SIDE_CHANNEL_HOST": "10.0.0.5"}
        args["decode_config"]["deployment_config"]["num_replicas"] = 2

    assert rules_of(report(spoiled(spoil))) == ["BTN-150"]


def test_c17_a_variable_that_is_gone_is_warned_about_with_its_successor() -> None:
    """It has had no effect since vLLM 0.22."""

    def spoil(config: Any) -> None:
        config["runtime_env"] = {"env_vars": {"VLLM_NIXL_ABORT_REQUEST_TIMEOUT": "480"}}

    found = report(spoiled(both(spoil)))
    assert found.errors == ()
    assert [f.rule_id for f in found.warnings] == ["BTN-152", "BTN-152"]
    assert "kv_lease_duration" in (found.warnings[0].cure or "")


def test_c18_proxy_deployment_config_names_what_replaced_it() -> None:
    """Ray Serve LLM dropped the proxy deployment."""
    fault = only_error(spoiled(lambda args: args.update(proxy_deployment_config={})))
    assert fault.rule_id == "BTN-160"
    assert "ingress_deployment_config" in (fault.cure or "")
    assert "gateway" in (fault.cure or "")


def test_c19_gpu_bundles_on_a_machine_without_gpu_are_refused() -> None:
    """What is asked, what is there, and --on cpu."""

    def spoil(config: Any) -> None:
        config["placement_group_config"] = {"bundles": [{"GPU": 1}]}

    text = spoiled(both(spoil))
    found = report(text, machine=LAPTOP)
    assert rules_of(found) == ["BTN-180", "BTN-180"]
    assert "this machine has 0" in found.errors[0].message
    assert "--on cpu" in (found.errors[0].cure or "")
    assert accepted(text, machine=GPU_BOX) == []
    assert accepted(text) == []


def test_c20_two_cpu_engines_past_the_machines_memory_are_refused_with_the_sum(
    tmp_path: Any,
) -> None:
    """Weights, KV and overhead of both engines are added up."""
    (tmp_path / "config.json").write_text('{"num_hidden_layers": 2, "num_attention_heads": 4}')
    with (tmp_path / "model.safetensors").open("wb") as stream:
        stream.truncate(8 * 1024**3)

    def spoil(config: Any, kv_gib: int) -> None:
        config["model_loading_config"]["model_source"] = str(tmp_path)
        config["placement_group_config"] = {"bundles": [{"CPU": 1}]}
        config["runtime_env"] = {"env_vars": {"VLLM_CPU_KVCACHE_SPACE": str(kv_gib)}}

    fault = only_error(spoiled(both(lambda config: spoil(config, 4))), machine=LAPTOP)
    assert fault.rule_id == "BTN-181"
    assert "26.6 GiB" in fault.message
    assert "24.0 GiB" in fault.message
    assert accepted(spoiled(both(lambda config: spoil(config, 1))), machine=LAPTOP) == []


def test_c20_a_kv_cache_alone_can_be_more_than_the_machine_has() -> None:
    """Also where nothing is known of the model."""

    def spoil(config: Any, kv_gib: int) -> None:
        config["placement_group_config"] = {"bundles": [{"CPU": 1}]}
        config["runtime_env"] = {"env_vars": {"VLLM_CPU_KVCACHE_SPACE": str(kv_gib)}}

    fault = only_error(spoiled(both(lambda config: spoil(config, 400))), machine=LAPTOP)
    assert fault.rule_id == "BTN-181"
    assert accepted(spoiled(both(lambda config: spoil(config, 8))), machine=LAPTOP) == []


def test_c21_an_unset_variable_is_refused() -> None:
    """Never an empty string."""
    text = BASE.replace("model_source: Qwen/Qwen3.5-9B", "model_source: ${MODEL_ID}")
    found = report(text)
    assert rules_of(found) == ["BTN-101", "BTN-101"]
    assert found.errors[0].line == line_of(text, "MODEL_ID")
    assert rules_of(report(text, MODEL_ID="")) == ["BTN-101", "BTN-101"]
    assert accepted(text, MODEL_ID="Qwen/Qwen3.5-9B") == []


def test_c22_a_tab_in_the_indentation_is_refused_with_line_and_column() -> None:
    """Every tab is listed."""
    text = BASE.replace("        dtype: bfloat16", "      \t dtype: bfloat16")
    found = report(text)
    assert rules_of(found) == ["BTN-002", "BTN-002"]
    assert (found.errors[0].line, found.errors[0].column) == (line_of(text, "\t"), 7)


def test_c23_num_replicas_and_autoscaling_exclude_each_other() -> None:
    """Ray Serve refuses them together."""

    def spoil(args: Any) -> None:
        args["decode_config"]["deployment_config"] = {
            "num_replicas": 2,
            "autoscaling_config": {"min_replicas": 1, "max_replicas": 4},
        }

    fault = only_error(spoiled(spoil))
    assert fault.rule_id == "BTN-161"
    assert "choose one" in (fault.cure or "")


def test_c23_num_replicas_auto_with_autoscaling_is_rays_own_way() -> None:
    """`auto` takes its limits from autoscaling_config."""

    def spoil(app: Any) -> None:
        app["import_path"] = "ray.serve.llm:build_pd_openai_app"
        app["args"].pop("baton")
        app["args"]["decode_config"]["deployment_config"] = {
            "num_replicas": "auto",
            "autoscaling_config": {"min_replicas": 1, "max_replicas": 4},
        }

    assert accepted(spoiled_app(spoil)) == []


def test_c24_a_misspelt_key_of_the_baton_block_gets_did_you_mean() -> None:
    """The block is closed."""
    text = BASE.replace("prefill_timeout_s: 30", "prefil_timeout_s: 5")
    fault = only_error(text)
    assert fault.rule_id == "BTN-190"
    assert fault.cure == "did you mean `prefill_timeout_s`?"
    assert fault.line == line_of(text, "prefil_timeout_s")


def test_c25_backends_as_text_become_a_list() -> None:
    """Read as text it would be asked for letter by letter."""
    found = report(BASE.replace("backends: [LIBFABRIC]", "backends: LIBFABRIC"))
    assert found.errors == ()
    assert [f.rule_id for f in found.warnings] == ["BTN-112", "BTN-112"]
    assert found.checked is not None
    kv = found.checked.applications[0].roles["decode"].kv_transfer_config
    assert kv["kv_connector_extra_config"]["backends"] == ["LIBFABRIC"]


@pytest.mark.parametrize("backends", ["{backends: [UCX]}", "{}"])
def test_c26_efa_wants_libfabric_in_both_roles(backends: str) -> None:
    """UCX on EFA runs at TCP speed."""
    found = report(BASE.replace("{backends: [LIBFABRIC]}", backends))
    assert rules_of(found) == ["BTN-191", "BTN-191"]
    assert "LIBFABRIC" in (found.errors[0].cure or "")


def test_c26_without_the_requirement_ucx_is_fine() -> None:
    """`any` takes what the engines choose."""
    text = BASE.replace("{backends: [LIBFABRIC]}", "{backends: [UCX]}")
    assert accepted(text.replace("require: efa", "require: any")) == []


def test_all_faults_of_a_file_are_reported_in_one_run() -> None:
    """Fixing one fault must not be the way to find the next."""
    text = BASE.replace("dtype: bfloat16", "dtype: bf16", 1)
    text = text.replace("kv_role: kv_both", "kv_role: kv_producer")
    text = text.replace("prefill_timeout_s: 30", "prefil_timeout_s: 5")
    assert sorted(rules_of(report(text))) == ["BTN-103", "BTN-121", "BTN-190"]
