"""Each start of an engine has an id of its own."""

from __future__ import annotations

from types import SimpleNamespace

from baton.engine.identity import patch_arguments, renamed


def arguments(transfer, nnodes=1):
    class EngineArgs:
        def create_engine_config(self, context=None):
            return SimpleNamespace(
                kv_transfer_config=transfer, parallel_config=SimpleNamespace(nnodes=nnodes)
            )

    module = SimpleNamespace(EngineArgs=EngineArgs)
    patch_arguments(module)
    patch_arguments(module)  # plugins may be loaded twice
    return EngineArgs()


def test_the_users_name_stays_and_this_start_stands_behind_it():
    """Readable, and different after a restart; asked twice it is the same."""
    transfer = SimpleNamespace(engine_id="prefill")
    args = arguments(transfer)
    args.create_engine_config()
    first = transfer.engine_id
    assert first.startswith("prefill-")
    args.create_engine_config("server")
    assert transfer.engine_id == first
    assert renamed("prefill", "00000001") != renamed("prefill", "00000002")


def test_engines_without_a_connector_and_engines_of_several_nodes_are_left_alone():
    """Several nodes configure one engine each for itself, and must agree on its id."""
    assert arguments(None).create_engine_config().kv_transfer_config is None
    transfer = SimpleNamespace(engine_id="prefill")
    arguments(transfer, nnodes=2).create_engine_config()
    assert transfer.engine_id == "prefill"


def test_a_vllm_that_looks_otherwise_is_said_so(caplog):
    """Engines keep their names then, and a person should know."""
    patch_arguments(SimpleNamespace())
    assert [record.levelname for record in caplog.records] == ["ERROR"]
