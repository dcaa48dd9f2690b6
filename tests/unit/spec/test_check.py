"""What a check gives: all faults, a typed file, and what is deployed."""

from __future__ import annotations

import random
from typing import Any

import pytest

from baton.errors import ConfigRefused
from baton.spec.check import check, check_args, examine
from baton.spec.load import load_text
from tests.unit.spec.files import BASE, report, rules_of, spoiled, spoiled_app
from tests.unit.spec.mutations import GOOD_FILES, dump, load, mutate_text, mutate_values


def args_of(text: str) -> dict[str, Any]:
    args: dict[str, Any] = load(text)["applications"][0]["args"]
    return args


def test_a_checked_file_is_typed() -> None:
    """The other rooms read values, not YAML."""
    app = check(load_text(BASE, "app.yaml", {})).applications[0]
    assert (app.name, app.route_prefix, app.has_rules) == ("qwen", "/", True)
    assert app.baton.transport.require == "efa"
    decode = app.roles["decode"]
    assert (decode.model_id, decode.model_source) == ("qwen3.5-9b", "Qwen/Qwen3.5-9B")
    assert (decode.tensor_parallel_size, decode.num_replicas, decode.max_model_len) == (1, 1, 4096)
    assert decode.kv_transfer_config["engine_id"] == "decode"


def test_a_refused_file_raises_with_every_fault() -> None:
    """The message holds the first and how many more."""
    text = BASE.replace("dtype: bfloat16", "dtype: bf16")
    with pytest.raises(ConfigRefused) as caught:
        check(load_text(text, "app.yaml", {}))
    assert [fault.rule_id for fault in caught.value.faults if fault.severity == "error"] == [
        "BTN-103",
        "BTN-103",
    ]
    assert caught.value.exit_status == 2
    assert "(and 1 more)" in caught.value.fact
    assert caught.value.place == "app.yaml:10:16"


def test_http_options_and_proxy_location_are_kept() -> None:
    """What stands around the applications is deployed as it is."""
    text = "proxy_location: HeadOnly\nhttp_options: {host: 0.0.0.0, port: 9000}\n" + BASE
    checked = check(load_text(text, "app.yaml", {}))
    assert checked.http_options == {"host": "0.0.0.0", "port": 9000}
    assert checked.proxy_location == "HeadOnly"
    assert checked.to_serve_config()["http_options"]["port"] == 9000


def test_what_is_deployed_is_a_copy() -> None:
    """Changing it does not change the checked file."""
    checked = check(load_text(BASE, "app.yaml", {}))
    checked.to_serve_config()["applications"][0]["args"]["decode_config"].clear()
    assert checked.to_serve_config()["applications"][0]["args"]["decode_config"]


def test_rays_own_application_is_deployed_without_the_baton_block() -> None:
    """Ray refuses keys that it does not know."""
    text = BASE.replace("baton:build_pd_openai_app", "ray.serve.llm:build_pd_openai_app")
    checked = check(load_text(text, "app.yaml", {}))
    assert "baton" not in checked.to_serve_config()["applications"][0]["args"]
    assert [w.rule_id for w in checked.warnings if w.severity == "warning"] == ["BTN-194"]


def test_an_unknown_application_is_passed_on() -> None:
    """Baton says that it has no rules for it, and changes nothing."""
    text = "applications:\n- {name: a, import_path: my.app:build, args: {x: [1]}}\n"
    found = report(text)
    assert rules_of(found, "note") == ["BTN-013"]
    assert found.checked is not None
    assert found.checked.to_serve_config() == load(text)


@pytest.mark.parametrize(
    ("path", "severity"),
    [
        ("baton:build_openai_app", "error"),
        ("batn:build_pd_openai_app", "warning"),
        ("mine.app:build", "note"),
        ("ray.serve.llm:build_pd_openai", "error"),
        ("ray.serve.llm:build_openai_app", "error"),  # takes `llm_configs`, no pair
    ],
)
def test_a_misspelt_import_path_gets_did_you_mean(path: str, severity: str) -> None:
    """Otherwise the whole file would go unchecked."""
    found = report(BASE.replace("baton:build_pd_openai_app", path))
    assert rules_of(found, severity) == ["BTN-013"]


def test_a_date_has_to_be_quoted() -> None:
    """YAML reads it as a date, and JSON has none."""
    found = report(BASE.replace("model_id: qwen3.5-9b", "model_id: 2024-01-02"))
    assert "quote" in " ".join(fault.allowed or "" for fault in found.errors)


def test_defaults_are_supplied_and_said() -> None:
    """With Baton's import path a connector is no duty."""

    def bare(args: Any) -> None:
        args.pop("baton")
        for role in ("prefill_config", "decode_config"):
            args[role]["engine_kwargs"].pop("kv_transfer_config")

    found = report(spoiled(bare))
    assert rules_of(found, "warning") == ["BTN-211", "BTN-211"]
    assert found.checked is not None
    kv = found.checked.applications[0].roles["prefill"].kv_transfer_config
    assert kv == {
        "kv_connector": "NixlConnector",
        "kv_role": "kv_producer",
        "engine_id": "prefill",
    }


def test_a_home_folder_is_expanded(monkeypatch: pytest.MonkeyPatch) -> None:
    """Ray and vLLM would look for a hub model of that name."""
    monkeypatch.setenv("HOME", "/home/ada")
    text = BASE.replace("Qwen/Qwen3.5-9B", "~/models/x")
    found = report(text)
    assert found.checked is not None
    assert found.checked.applications[0].roles["decode"].model_source == "/home/ada/models/x"
    assert "BTN-210" in rules_of(found, "note")


def test_check_args_gives_key_paths_for_places() -> None:
    """Ray calls the builder with plain values: there is no file."""
    args = args_of(BASE.replace("dtype: bfloat16", "dtype: bf16", 1))
    with pytest.raises(ConfigRefused) as caught:
        check_args(args)
    assert caught.value.place == "prefill_config.engine_kwargs.dtype"


def test_check_args_corrects_and_leaves_its_argument_alone() -> None:
    """The same slips, the same result."""
    args = args_of(BASE)
    config = args["decode_config"]
    config["kv_transfer_config"] = config["engine_kwargs"].pop("kv_transfer_config")
    before = repr(args)
    app = check_args(args)
    assert app.args["decode_config"]["engine_kwargs"]["kv_transfer_config"]["engine_id"] == "decode"
    assert app.roles["prefill"].model_id == "qwen3.5-9b"
    assert repr(args) == before


def test_check_args_resolves_variables() -> None:
    """From the environment of the builder's process."""
    args = args_of(BASE.replace("Qwen/Qwen3.5-9B", '"${MODEL}"'))
    assert check_args(args, env={"MODEL": "org/m"}).roles["decode"].model_source == "org/m"
    with pytest.raises(ConfigRefused, match="MODEL"):
        check_args(args, env={})


@pytest.mark.parametrize("args", [{}, {"prefill_config": None}, {"prefill_config": "x.yaml"}])
def test_check_args_refuses_what_is_no_config(args: dict[str, Any]) -> None:
    """Never a traceback."""
    with pytest.raises(ConfigRefused):
        check_args(args)


@pytest.mark.parametrize(
    ("change", "word"),
    [
        ({"applicatons": []}, "applications"),
        ({"applications": {}}, "list"),
        ({"applications": []}, "no application"),
        ({"applications": ["x"]}, "mapping"),
        ({"applications": [{"name": "x"}]}, "import_path"),
        ({"applications": [{"import_path": "nothing"}]}, "import path"),
        ({"applications": [{"import_path": "a:b", "route_prefix": "x/"}]}, "slash"),
        ({"applications": [{"import_path": "a:b"}, {"import_path": "a:c"}]}, "two applications"),
        ({"applications": [{"import_path": "a:b", "nmae": "x"}]}, "nmae"),
        ({"import_path": "a:b"}, "applications"),
        ({"prefill_config": {}, "decode_config": {}}, "applications"),
        (["a"], "no Serve config"),
    ],
)
def test_the_frame_of_the_file_is_checked(change: Any, word: str) -> None:
    """What Ray's schema refuses, or ignores without a word."""
    found = report(dump(change))
    assert found.errors
    assert any(word in fault.message for fault in found.errors)


def test_args_beside_the_application_are_moved_into_args() -> None:
    """One level of indentation lost."""

    def spoil(app: Any) -> None:
        app.update(app.pop("args"))

    found = report(spoiled_app(spoil))
    assert found.errors == ()
    assert {f.rule_id for f in found.warnings} == {"BTN-111"}
    assert found.checked is not None
    assert found.checked.applications[0].roles["decode"].model_id == "qwen3.5-9b"


@pytest.mark.parametrize("seed", range(120))
def test_random_mutations_never_end_in_an_exception(seed: int) -> None:
    """Values and text, as people and editors spoil them."""
    rng = random.Random(seed)
    text = rng.choice(GOOD_FILES)
    spoilt = dump(mutate_values(load(text), rng)) if seed % 2 else mutate_text(text, rng)
    found = examine(load_text(spoilt, "app.yaml", {}))
    assert found.checked is not None or found.errors
    if found.checked is not None:
        found.checked.to_serve_config()


def test_shared_parts_are_checked_where_they_stand_and_need_no_excuse() -> None:
    """`x-…` at the top, `<<` in the roles: the place is that of the shared line, once a role."""
    text = (
        "x-engine: &engine\n  dtype: bf16\napplications:\n- name: q\n"
        "  import_path: baton:build_pd_openai_app\n  args:\n"
        "    prefill_config: &p\n      model_loading_config: {model_id: m}\n"
        "      engine_kwargs: {<<: *engine}\n    decode_config: {<<: *p}\n"
    )
    found = report(text)
    assert [(f.rule_id, f.line) for f in found.errors] == [("BTN-103", 2), ("BTN-103", 2)]
    assert [f for f in found.warnings if f.rule_id == "BTN-012"] == []
