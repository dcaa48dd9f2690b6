"""The JSON Schema refuses what a schema can see, and accepts the valid neighbours."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import pytest

from baton.spec.json_schema import file_schema
from tests.unit.spec.files import BASE
from tests.unit.spec.mutations import GOOD_FILES, load

if TYPE_CHECKING:
    from collections.abc import Callable

jsonschema = pytest.importorskip("jsonschema")


@pytest.fixture(scope="module")
def errors() -> Callable[[Any], list[str]]:
    validator = jsonschema.Draft202012Validator(file_schema())

    def find(document: Any) -> list[str]:
        return [error.message for error in validator.iter_errors(document)]

    return find


@pytest.mark.parametrize("text", GOOD_FILES)
def test_good_files_are_accepted(errors: Callable[[Any], list[str]], text: str) -> None:
    """For CPU, for GPU, for Ray's own application."""
    assert errors(load(text)) == []


def role(path: str, value: Any, name: str = "decode") -> Callable[[Any], None]:
    def change(args: Any) -> None:
        here = args[f"{name}_config"]
        *parts, last = path.split(".")
        for part in parts:
            here = here.setdefault(part, {})
        here[last] = value

    return change


KV = "engine_kwargs.kv_transfer_config"


@pytest.mark.parametrize(
    "change",
    [
        pytest.param(role("kv_transfer_config", {}), id="c01"),
        pytest.param(role("model_loading_config.engine_kwargs", {}), id="c02"),
        pytest.param(role("engine_kwargs.max_model_length", 4096), id="c03"),
        pytest.param(role("engine_kwargs.dtype", "bf16"), id="c04"),
        pytest.param(role(f"{KV}.kv_role", "producer"), id="c05"),
        pytest.param(lambda args: args.update(proxy_deployment_config={}), id="c18"),
        pytest.param(role("placement_group_config.bundle", []), id="c19"),
        pytest.param(role("deployment_config.num_replicas", "many"), id="c23"),
        pytest.param(lambda args: args["baton"]["recovery"].update(prefil_timeout_s=5), id="c24"),
        pytest.param(lambda args: args["baton"]["transport"].update(require="EFA"), id="c26"),
        pytest.param(role(f"{KV}.kv_connector_extra_config.backends", "LIBFABRIC"), id="c25"),
        pytest.param(role(f"{KV}.kv_connector", "NIXLConnector"), id="c06"),
    ],
)
def test_the_schema_refuses_what_it_can_see(
    errors: Callable[[Any], list[str]], change: Callable[[Any], None]
) -> None:
    """Editors underline it while it is typed."""
    document = load(BASE)
    change(document["applications"][0]["args"])
    assert errors(document)


def test_a_connector_of_ones_own_is_accepted_with_its_module(
    errors: Callable[[Any], list[str]],
) -> None:
    """`kv_connector_module_path` says where it comes from."""
    document = load(BASE)
    for name in ("prefill", "decode"):
        args = document["applications"][0]["args"]
        role(f"{KV}.kv_connector", "Mine", name)(args)
        role(f"{KV}.kv_connector_module_path", "my.module", name)(args)
    assert errors(document) == []


def test_parts_of_the_block_may_be_empty(errors: Callable[[Any], list[str]]) -> None:
    """As `baton validate` has it."""
    document = load(BASE)
    document["applications"][0]["args"]["baton"] = {"recovery": None, "transport": None}
    assert errors(document) == []
