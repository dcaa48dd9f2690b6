"""`baton up` before anything starts: what it refuses, and what it says."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import pytest
import yaml
from click.testing import CliRunner

from baton.cli import up
from baton.deploy import local, state
from baton.deploy.exposure import own_key
from baton.deploy.intent import BATON_BUILDER, RAY_BUILDER
from baton.errors import ConfigRefused
from baton.spec.schema import Auth
from tests.e2e.deployment import app

if TYPE_CHECKING:
    from pathlib import Path

    from baton.deploy.intent import DeployPlan


@pytest.fixture(autouse=True)
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setenv("BATON_STATE_DIR", str(tmp_path / "state"))
    return tmp_path


@pytest.fixture
def model(tmp_path: Path) -> Path:
    from baton.demo.tiny_model import make_tiny_model

    return make_tiny_model(tmp_path / "tiny")


@pytest.fixture
def plans(monkeypatch: pytest.MonkeyPatch) -> list[DeployPlan]:
    """Plans that would have been deployed."""
    seen: list[DeployPlan] = []

    def fake_up(plan: DeployPlan, **_: Any) -> state.Deployment:
        seen.append(plan)
        return state.Deployment(
            name=plan.name, marker="m", ray_address="127.0.0.1:1", endpoint=plan.endpoint,
            apps=("tiny",), builder="baton", file=plan.file, started_at=0.0,
        )  # fmt: skip

    monkeypatch.setattr(local, "up", fake_up)
    return seen


def write(folder: Path, config: dict[str, Any]) -> str:
    path = folder / "app.yaml"
    path.write_text(yaml.safe_dump(config, sort_keys=False), encoding="utf-8")
    return str(path)


def run(*arguments: str) -> Any:
    return CliRunner().invoke(up.command, list(arguments))


def test_a_good_file_becomes_a_plan(folder: Path, model: Path, plans: list[DeployPlan]) -> None:
    """Two engines with one worker each ask for four logical CPUs."""
    result = run(write(folder, app(model, port=18_123)))
    assert result.exit_code == 0, result.output
    (plan,) = plans
    assert (plan.name, plan.http_port, plan.cpus_asked) == ("tiny", 18_123, 4)
    assert plan.apps[0].replicas == {"prefill": 1, "decode": 1}
    assert "http://127.0.0.1:18123/v1" in result.output


def test_a_rayservice_manifest_is_deployed_like_the_config_inside_it(
    folder: Path, model: Path, plans: list[DeployPlan]
) -> None:
    """A FILE is a FILE: what goes to the cluster can be tried here first."""
    inner = yaml.safe_dump(app(model, port=18_123), sort_keys=False)
    manifest = {
        "apiVersion": "ray.io/v1",
        "kind": "RayService",
        "metadata": {"name": "q"},
        "spec": {"serveConfigV2": inner},
    }
    result = run(write(folder, manifest))
    assert result.exit_code == 0, result.output
    assert (plans[0].name, plans[0].http_port) == ("tiny", 18_123)


def test_an_endpoint_stays_on_loopback_unless_the_file_says_otherwise(
    folder: Path, model: Path, plans: list[DeployPlan]
) -> None:
    """With HAProxy Ray would listen on every interface."""
    config = app(model, port=18_123)
    del config["http_options"]
    assert run(write(folder, config)).exit_code == 0
    assert plans[0].serve_config["http_options"] == {"host": "127.0.0.1", "port": 8000}


def _public(model: Path, **auth: Any) -> dict[str, Any]:
    config = app(model, port=18_123)
    config["http_options"]["host"] = "0.0.0.0"
    config["applications"][0]["args"]["baton"]["auth"] = auth
    return config


def test_a_public_endpoint_without_keys_is_refused(
    folder: Path, model: Path, plans: list[DeployPlan]
) -> None:
    """Before anything starts, with both cures."""
    result = run(write(folder, _public(model)))
    assert isinstance(result.exception, ConfigRefused)
    assert "asks nobody for a key" in str(result.exception)
    assert "allow_anonymous" in (result.exception.cure or "")
    assert plans == []


def test_a_public_endpoint_without_keys_starts_when_that_is_said(
    folder: Path, model: Path, plans: list[DeployPlan]
) -> None:
    """In the file, or on the command line."""
    assert run(write(folder, _public(model, allow_anonymous=True))).exit_code == 0
    assert run(write(folder, _public(model)), "--insecure-no-auth").exit_code == 0
    assert [plan.http_host for plan in plans] == ["0.0.0.0"] * 2


def test_rays_own_application_in_public_is_refused_whatever_its_block_says(
    folder: Path, model: Path, plans: list[DeployPlan], monkeypatch: pytest.MonkeyPatch
) -> None:
    """It has no keys at all."""
    monkeypatch.setenv("UP_KEYS", "ann:a")
    file = write(folder, _public(model, api_keys_env="UP_KEYS"))
    assert isinstance(run(file, "--builder", "ray").exception, ConfigRefused)
    assert run(file).exit_code == 0
    assert len(plans) == 1


@pytest.fixture
def hashes(folder: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A file of keys that opens nothing by itself, and no key of `up`'s own."""
    monkeypatch.delenv("BATON_API_KEY", raising=False)
    path = folder / "keys.yaml"
    path.write_text(f"keys:\n- {{name: ann, sha256: {'0' * 64}}}\n")
    return path


def test_keys_that_are_not_there_are_refused_before_ray_starts(
    folder: Path,
    model: Path,
    plans: list[DeployPlan],
    monkeypatch: pytest.MonkeyPatch,
    hashes: Path,
) -> None:
    """A variable, a file, the provider's key; hashes alone do not open the endpoint."""
    sources = (
        {"api_keys_env": "NO_SUCH_KEYS"},
        {"api_keys_file": str(folder / "none.yaml")},
        {"api_keys_file": str(hashes)},
    )
    refused = [run(write(folder, _public(model, **auth))).exception for auth in sources]
    config = app(model, port=18_123)
    config["applications"][0]["args"]["baton"]["overflow"] = {
        "base_url": "https://provider.example/v1", "api_key_env": "NO_SUCH_KEY",
    }  # fmt: skip
    refused.append(run(write(folder, config)).exception)
    lines = (folder / "app.yaml").read_text().splitlines()
    assert plans == []
    missing = ("NO_SUCH_KEYS", "none.yaml", "only hashes", "NO_SUCH_KEY")
    for error, what in zip(refused, missing, strict=True):
        assert isinstance(error, ConfigRefused)
        assert what in str(error)
        assert error.place
        assert error.cure
    _, line, _ = refused[-1].place.rsplit(":", 2)
    assert "api_key_env: NO_SUCH_KEY" in lines[int(line) - 1]
    monkeypatch.setenv("BATON_API_KEY", "ann-key")
    assert run(write(folder, _public(model, api_keys_file=str(hashes)))).exit_code == 0
    assert own_key(plans[0].apps[0].auth, {"BATON_API_KEY": "ann-key"}) == "ann-key"


def test_on_another_cluster_only_the_key_of_the_first_request_is_wanted_here(
    folder: Path,
    model: Path,
    plans: list[DeployPlan],
    monkeypatch: pytest.MonkeyPatch,
    hashes: Path,
) -> None:
    """Its gateways have keys of their own; a request without one would fail after all came up."""
    sources = (
        {"api_keys_env": "NO_SUCH_KEYS"},
        {"api_keys_file": str(folder / "none.yaml")},
        {"api_keys_file": str(hashes)},
    )
    for auth in sources:
        error = run(write(folder, _public(model, **auth)), "--address", "10.0.0.9:6379").exception
        assert isinstance(error, ConfigRefused), auth
        assert error.place
        assert "BATON_API_KEY" in (error.cure or "")
    assert plans == []
    monkeypatch.setenv("BATON_API_KEY", "ann-key")
    for auth in sources:
        file = write(folder, _public(model, **auth))
        assert run(file, "--address", "10.0.0.9:6379").exit_code == 0
    assert len(plans) == 3


def test_certificates_that_the_edge_would_not_read_are_refused(
    folder: Path, model: Path, plans: list[DeployPlan]
) -> None:
    """Plain HTTP where somebody asked for TLS would be silent."""
    config = app(model, port=18_123)
    config["http_options"]["ssl_certfile"] = "/etc/tls/tls.crt"
    result = run(write(folder, config))
    assert isinstance(result.exception, ConfigRefused)
    assert "ssl_certfile" in str(result.exception)
    assert "BTN-196" in result.output
    assert plans == []


def test_the_first_request_finds_a_key(tmp_path: Path) -> None:
    """From the variable, from a file that has one written out, or from BATON_API_KEY."""
    file = tmp_path / "keys.yaml"
    file.write_text(f"keys:\n- {{name: a, sha256: {'0' * 64}}}\n- {{name: b, key: bkey}}\n")
    assert own_key(Auth(), {"BATON_API_KEY": "x"}) is None
    assert own_key(Auth(api_keys_env="K"), {"K": " ann:one , two"}) == "one"
    assert own_key(Auth(api_keys_env="K"), {"K": "two"}) == "two"
    assert own_key(Auth(api_keys_env="K"), {}) is None
    assert own_key(Auth(api_keys_file=str(file)), {}) == "bkey"


def test_a_model_folder_that_is_not_here_is_refused(folder: Path, plans: list[DeployPlan]) -> None:
    """Before Ray, with the place in the file."""
    result = run(write(folder, app(folder / "nowhere", port=18_123)))
    assert isinstance(result.exception, ConfigRefused)
    assert "app.yaml:" in (result.exception.place or "")
    assert plans == []


def test_every_fault_is_shown_and_nothing_starts(
    folder: Path, model: Path, plans: list[DeployPlan]
) -> None:
    """The same check as `baton validate`; the error carries all of it."""
    config = app(model, port=18_123)
    args = config["applications"][0]["args"]
    args["decode_config"]["engine_kwargs"]["max_model_length"] = 1
    args["baton"]["recovery"] = {"prefil_timeout_s": 5}
    result = run(write(folder, config))
    assert isinstance(result.exception, ConfigRefused)
    told = " ".join(f"{one.message} {one.cure}" for one in result.exception.faults)
    assert "max_model_len" in told
    assert "prefill_timeout_s" in told
    assert plans == []


def test_rays_own_builder_is_run_as_it_is_with_a_hint(
    folder: Path, model: Path, plans: list[DeployPlan]
) -> None:
    """Its file has no `baton` block; the hint says what is missing there."""
    config = app(model, port=18_123)
    config["applications"][0]["import_path"] = RAY_BUILDER
    del config["applications"][0]["args"]["baton"]
    result = run(write(folder, config))
    assert result.exit_code == 0, result.output
    assert plans[0].serve_config["applications"][0]["import_path"] == RAY_BUILDER
    assert not plans[0].apps[0].by_baton
    assert "--builder baton" in result.output


def test_builder_baton_runs_rays_file_through_baton(
    folder: Path, model: Path, plans: list[DeployPlan]
) -> None:
    """The same file, another builder."""
    config = app(model, port=18_123)
    config["applications"][0]["import_path"] = RAY_BUILDER
    del config["applications"][0]["args"]["baton"]
    assert run(write(folder, config), "--builder", "baton").exit_code == 0
    assert plans[0].serve_config["applications"][0]["import_path"] == BATON_BUILDER
    assert plans[0].apps[0].by_baton


def test_builder_ray_leaves_the_baton_block_out(
    folder: Path, model: Path, plans: list[DeployPlan]
) -> None:
    """Ray's own arguments allow no key that they do not know."""
    assert run(write(folder, app(model, port=18_123)), "--builder", "ray").exit_code == 0
    entry = plans[0].serve_config["applications"][0]
    assert entry["import_path"] == RAY_BUILDER
    assert "baton" not in entry["args"]


def test_replicas_and_workers_count_into_the_logical_cpus(
    folder: Path, model: Path, plans: list[DeployPlan]
) -> None:
    """Two replicas of two workers in each role, and one CPU for each replica's own actor."""
    assert run(write(folder, app(model, replicas=2, tp=2, port=18_123))).exit_code == 0
    assert plans[0].cpus_asked == 2 * 2 * (2 + 1)


def test_port_overrides_the_file(folder: Path, model: Path, plans: list[DeployPlan]) -> None:
    """For a second deployment of the same file."""
    assert run(write(folder, app(model, port=18_123)), "--port", "18124").exit_code == 0
    assert plans[0].endpoint == "http://127.0.0.1:18124"


def test_a_file_that_is_not_there_is_one_error(plans: list[DeployPlan]) -> None:
    """No traceback."""
    result = run("/nonexistent/app.yaml")
    assert isinstance(result.exception, ConfigRefused)
    assert plans == []
