"""Engines send their spans where the gateway sends its own."""

from __future__ import annotations

from baton.serve.tracing import PROTOCOL, with_tracing
from baton.spec.schema import BatonBlock, Tracing

SETTINGS = BatonBlock(tracing=Tracing(otlp_endpoint="http://c:4318"))
URL = "http://c:4318/v1/traces"


def test_engines_get_the_endpoint_and_its_protocol():
    """And keep what they had."""
    config = {"engine_kwargs": {"a": 1}, "runtime_env": {"env_vars": {"B": "2"}}}
    made = with_tracing(config, SETTINGS)
    assert made["engine_kwargs"] == {"a": 1, "otlp_traces_endpoint": URL}
    assert made["runtime_env"]["env_vars"] == {"B": "2", PROTOCOL: "http/protobuf"}
    assert config == {"engine_kwargs": {"a": 1}, "runtime_env": {"env_vars": {"B": "2"}}}


def test_variables_go_where_the_roles_variables_are():
    """Ray takes one of both places."""
    options = {"ray_actor_options": {"runtime_env": {"env_vars": {"B": "2"}}}}
    made = with_tracing({"deployment_config": options}, SETTINGS)
    found = made["deployment_config"]["ray_actor_options"]["runtime_env"]["env_vars"]
    assert found == {"B": "2", PROTOCOL: "http/protobuf"}
    assert "runtime_env" not in made


def test_what_the_user_says_is_left_alone():
    """His endpoint, his protocol."""
    config = {"engine_kwargs": {"otlp_traces_endpoint": "grpc://mine"}}
    assert with_tracing(config, SETTINGS) == config
    mine = {"runtime_env": {"env_vars": {PROTOCOL: "grpc"}}}
    assert with_tracing(mine, SETTINGS)["runtime_env"]["env_vars"] == {PROTOCOL: "grpc"}


def test_nothing_changes_without_an_endpoint_in_the_file(monkeypatch):
    """This machine's variables are not the engines'."""
    monkeypatch.setenv("OTEL_EXPORTER_OTLP_ENDPOINT", "http://here")
    assert with_tracing({"engine_kwargs": {}}, BatonBlock()) == {"engine_kwargs": {}}
