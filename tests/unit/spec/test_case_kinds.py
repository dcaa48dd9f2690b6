"""The kind of each case: the same mistake in the other role, otherwise spelt, otherwise nested."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import pytest

from tests.unit.spec.files import BASE, LAPTOP, both, line_of, report, rules_of, spoiled
from tests.unit.spec.files import spoiled_app as app_with

if TYPE_CHECKING:
    from collections.abc import Callable

RAY = "ray.serve.llm:build_pd_openai_app"


def engine(role: str, **values: Any) -> Callable[[Any], None]:
    return lambda args: args[f"{role}_config"]["engine_kwargs"].update(values)


def kv(role: str, **values: Any) -> Callable[[Any], None]:
    def change(args: Any) -> None:
        args[f"{role}_config"]["engine_kwargs"]["kv_transfer_config"].update(values)

    return change


def role_key(role: str, **values: Any) -> Callable[[Any], None]:
    return lambda args: args[f"{role}_config"].update(values)


def backends(value: Any) -> Callable[[Any], None]:
    def change(role: Any) -> None:
        extra = role["engine_kwargs"]["kv_transfer_config"]["kv_connector_extra_config"]
        extra["backends"] = value

    return both(change)


def source(value: str) -> Callable[[Any], None]:
    return both(lambda role: role["model_loading_config"].update(model_source=value))


def moved(start: tuple[str, ...], goal: tuple[str, ...]) -> Callable[[Any], None]:
    """Moves a key of both roles."""

    def change(role: Any) -> None:
        here = role
        for part in start[:-1]:
            here = here[part]
        value = here.pop(start[-1])
        there = role
        for part in goal[:-1]:
            there = there[part]
        there[goal[-1]] = value

    return both(change)


KV = ("engine_kwargs", "kv_transfer_config")


@pytest.mark.parametrize(
    "goal",
    [
        ("kv_transfer_config",),
        ("kv-transfer-config",),
        ("deployment_config", "kv_transfer_config"),
        ("model_loading_config", "kv_transfer_config"),
    ],
)
def test_c01_wherever_it_stands_it_is_deployed_where_it_belongs(goal: tuple[str, ...]) -> None:
    """And each move is a warning."""
    found = report(spoiled(moved(KV, goal)))
    assert found.errors == ()
    assert set(rules_of(found, "warning")) <= {"BTN-110", "BTN-111", "BTN-115"}
    assert found.checked is not None
    for role in found.checked.applications[0].roles.values():
        assert role.kv_transfer_config["kv_connector"] == "NixlConnector"


@pytest.mark.parametrize(
    ("change", "rule", "cure"),
    [
        # c02: named with where it belongs when it cannot simply be moved
        (role_key("decode", kv_transfer_config={}), "BTN-102", "belongs in `engine_kwargs`"),
        (engine("decode", num_replicas=2), "BTN-106", "belongs in `deployment_config`"),
        (role_key("prefill", kv_transfer_cfg={}), "BTN-102", "mean `kv_transfer_config`"),
        (lambda args: args.update(engine_kwargs={}), "BTN-102", "belongs in `prefill_config`"),
        # c03
        (engine("prefill", tp_size=2), "BTN-106", "mean `tensor_parallel_size`"),
        (engine("prefill", maxModelLen=2), "BTN-106", "mean `max_model_len`"),
        (engine("prefill", swap_space=4), "BTN-106", "remove it"),
        # c04
        (engine("decode", dtype="BF16"), "BTN-103", "mean `bfloat16`"),
        (engine("decode", dtype="int4"), "BTN-103", "use one of these values"),
        (engine("decode", max_model_len="4k"), "BTN-103", "write 4000"),
        (engine("decode", max_model_len="1e4"), "BTN-103", "write 10000: Ray reads"),
        (engine("decode", max_model_len="0o17"), "BTN-103", "write 15: Ray reads"),
        (engine("decode", gpu_memory_utilization="90%"), "BTN-103", "write 0.9"),
        (engine("decode", gpu_memory_utilization=90), "BTN-103", "≤ 1"),
        # c05
        (kv("prefill", kv_role="kv_consumer"), "BTN-121", "set kv_role: kv_producer"),
        (kv("prefill", kv_role="producer"), "BTN-103", "mean `kv_producer`"),
        # c06
        (kv("decode", kv_connector="nixl"), "BTN-120", "mean `NixlConnector`"),
        (kv("decode", kv_connector="Elsewhere"), "BTN-120", "use NixlConnector"),
        (kv("decode", kv_connector=["NixlConnector"]), "BTN-103", "remove the brackets"),
        # c18
        (lambda args: args.update(proxyDeploymentConfig={}), "BTN-160", "baton: {gateway"),
        (lambda args: args.update({"proxy-deployment-config": {}}), "BTN-160", "baton: {gateway"),
        (role_key("prefill", proxy_deployment_config={}), "BTN-160", "baton: {gateway"),
        (lambda args: args.update(llm_configs=[]), "BTN-102", "as prefill_config and as"),
        # c21
        (source("$MODEL_ID"), "BTN-205", "${NAME}"),
        (source("${MODEL_ID:?unset}"), "BTN-101", "write ${NAME}"),
        (source("{{ .Values.model }}"), "BTN-205", "write the name"),
        (source("<your-model>"), "BTN-205", "write the name"),
        (source(""), "BTN-205", "remove model_source"),
        # c23
        (role_key("decode", deployment_config={"num_replicas": -1}), "BTN-102", "write"),
        (role_key("decode", deployment_config={"num_replicas": "many"}), "BTN-102", "whole"),
        (role_key("decode", deployment_config={"numReplicas": 1}), "BTN-102", "`num_replicas`"),
        # c24
        (lambda args: args["baton"].update(prefill_timeout_s=5), "BTN-190", "`baton.recovery`"),
        (lambda args: args["baton"].update(transport="efa"), "BTN-190", "transport: {require"),
        (lambda args: args.update(batn=args.pop("baton")), "BTN-102", "mean `baton`"),
        # c25
        (backends("UCX,LIBFABRIC"), "BTN-129", "backends: [UCX, LIBFABRIC]"),
        (backends(["libfabric"]), "BTN-129", "mean `LIBFABRIC`"),
        # found by comparing with Ray's own classes
        (role_key("prefill", accelerator_config={"a": 1}), "BTN-102", "cpu, gpu or tpu"),
    ],
)
def test_each_is_refused_once_with_what_to_do(
    change: Callable[[Any], None], rule: str, cure: str
) -> None:
    """No second message about what follows from the first."""
    text = spoiled(change)
    found = report(text)
    assert set(rules_of(found)) == {rule}
    for fault in found.errors:
        assert cure in (fault.cure or "")
        assert fault.line > 0
        assert fault.key_path
        assert fault.allowed
        assert str(fault.found) != "None"


def test_c16_the_address_may_stand_in_the_actors_environment() -> None:
    """`ray_actor_options.runtime_env` holds unless the role has a `runtime_env` of its own."""
    env = {"env_vars": {"VLLM_NIXL_SIDE_CHANNEL_HOST": "10.0.0.5"}}
    options = {"num_replicas": 2, "ray_actor_options": {"runtime_env": env}}
    text = spoiled(role_key("decode", deployment_config=options))
    (fault,) = report(text).errors
    assert (fault.rule_id, fault.line) == ("BTN-150", line_of(text, "10.0.0.5"))
    hidden = role_key("decode", deployment_config=options, runtime_env={"env_vars": {"A": "b"}})
    assert report(spoiled(hidden)).errors == ()


def test_c21_a_folder_of_an_odd_name_that_is_there_is_accepted(tmp_path: Any) -> None:
    """Only what names no model is refused."""
    folder = tmp_path / "a<b>"
    folder.mkdir()
    (folder / "config.json").write_text("{}")
    assert report(spoiled(source(str(folder)))).errors == ()


def test_c24_an_empty_part_of_the_block_has_its_defaults() -> None:
    """All of its lines may be comments by now."""
    text = BASE.replace("recovery: {prefill_timeout_s: 30, resume_streams: true}", "recovery:")
    found = report(text)
    assert found.errors == ()
    assert found.checked is not None
    assert found.checked.applications[0].baton.recovery.prefill_timeout_s == 30


def test_c25_a_list_in_quotes_becomes_a_list() -> None:
    """JSON has one meaning."""
    found = report(spoiled(backends('["LIBFABRIC"]')))
    assert found.errors == ()
    assert rules_of(found, "warning") == ["BTN-114", "BTN-114"]


@pytest.mark.parametrize("path", [RAY.replace(":", "."), "baton.build_pd_openai_app"])
def test_a_dot_in_place_of_the_colon_is_the_same_import_path(path: str) -> None:
    """It is to Ray, so that the rules must hold for it."""

    def spoil(app: Any) -> None:
        app["import_path"] = path
        engine("decode", dtype="bf16")(app["args"])

    assert rules_of(report(app_with(spoil))) == ["BTN-103"]


def test_c18_beside_args_it_is_refused_as_well() -> None:
    """Ray would ignore it there."""
    text = app_with(lambda app: app.update(proxy_deployment_config={}))
    assert rules_of(report(text)) == ["BTN-160"]


def test_c19_resources_in_the_wrong_case_are_named() -> None:
    """To Ray `gpu` is a resource of the user's own, which no node has."""
    group = {"bundles": [{"gpu": 1}]}
    found = report(spoiled(role_key("decode", placement_group_config=group)), LAPTOP)
    (fault,) = [f for f in found.warnings if f.rule_id == "BTN-166"]
    assert fault.cure == "did you mean `GPU`?"
