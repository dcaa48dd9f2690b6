"""Flag over environment over file over default, and every fault at the place it came from."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import pytest

from baton.deploy.eks.config import EksSettings, env_name, flag_name
from baton.deploy.eks.origins import Resolved, SettingsFile, read_settings, resolve
from baton.errors import ConfigRefused

if TYPE_CHECKING:
    from pathlib import Path

EXPORTED = {
    "CLUSTER_NAME": ("cluster_name", "mine"),
    "REGION": ("region", "us-east-1"),
    "K8S_VERSION": ("k8s_version", "1.33"),
    "NAMESPACE": ("namespace", "llm"),
    "SYSTEM_INSTANCE_TYPE": ("system_instance_type", "m6i.xlarge"),
    "GPU_INSTANCE_TYPE": ("gpu_instance_type", "g6.16xlarge"),
    "GPU_NODE_COUNT": ("gpu_node_count", "4"),
    "GPU_AZ": ("gpu_az", "us-east-1b"),
    "KUBERAY_VERSION": ("kuberay_version", "1.6.2"),
    "IMAGE": ("image", "registry.example/baton:1"),
    "MODEL_ID": ("model_id", "my-model"),
    "MODEL_SOURCE": ("model_source", "org/my-model"),
}


def written(folder: Path, text: str) -> SettingsFile:
    path = folder / "eks.yaml"
    path.write_text(text, encoding="utf-8")
    return read_settings(path, {})


def faults(flags: Any = None, env: Any = None, file: SettingsFile | None = None) -> list[Any]:
    with pytest.raises(ConfigRefused) as refusal:
        resolve(flags or {}, env or {}, file)
    return list(refusal.value.faults)


def test_the_names_that_people_export_already_work() -> None:
    """Twelve of them, each into its setting."""
    env = {name: value for name, (_, value) in EXPORTED.items()}
    found = resolve({}, env)
    for variable, (name, value) in EXPORTED.items():
        assert str(getattr(found.settings, name)) == value
        assert str(found.origins[name]) == f"environment {variable}"


def test_every_other_setting_has_a_name_of_its_own() -> None:
    """So that a stray `INGRESS` or `SECURITY` in a shell changes no cluster."""
    others = set(EksSettings.model_fields) - {name for name, _ in EXPORTED.values()}
    assert all(env_name(name).startswith("BATON_EKS_") for name in others)
    found = resolve({}, {"SECURITY": "ipc-lock", "BATON_EKS_FLAVOR": "plain"})
    assert (found.settings.security, found.settings.flavor) == ("privileged", "plain")


def test_flag_over_environment_over_file_over_default(tmp_path: Path) -> None:
    """Each next one is used when the one before says nothing."""
    file = written(tmp_path, "region: eu-west-1\nnamespace: from-file\ncluster_name: from-file\n")
    env = {"REGION": "us-east-1", "NAMESPACE": "from-env", "CLUSTER_NAME": ""}
    found = resolve({"region": "us-east-2"}, env, file)
    assert [(found.origins[n].kind, getattr(found.settings, n)) for n in (
        "region", "namespace", "cluster_name", "k8s_version",
    )] == [
        ("flag", "us-east-2"),
        ("environment", "from-env"),
        ("file", "from-file"),  # an empty variable is not set
        ("default", "1.34"),
    ]  # fmt: skip
    assert str(found.origins["cluster_name"]).endswith("eks.yaml:3:1")


def test_an_unknown_setting_is_refused_with_line_and_cure(tmp_path: Path) -> None:
    """It would have no effect at all."""
    (fault,) = faults(file=written(tmp_path, "cluster_name: a\ngpu_node_cuont: 4\n"))
    assert (fault.rule_id, fault.line, fault.found) == ("EKS-001", 2, "gpu_node_cuont")
    assert fault.cure == "did you mean `gpu_node_count`?"


@pytest.mark.parametrize(
    ("name", "value", "said"),
    [
        ("k8s_version", "1.27", "1.28 or newer"),
        ("k8s_version", "latest", '"1.34"'),
        ("region", "us_west_2", "us-west-2"),
        ("gpu_az", "us-west-2", "us-west-2b"),
        ("cluster_name", "1baton", "a letter"),
        ("cluster_name", "x" * 101, "100 at most"),
        ("namespace", "My_Namespace", "lower-case"),
        ("gpu_node_count", "two", "valid integer"),
        ("gpu_node_count", "0", "greater than or equal to 1"),
        ("gpu_instance_type", "large", "g6.8xlarge"),
        ("vpc_cidr", "10.0.0.0/8", "/16 to /24"),
        ("vpc_cidr", "10.0.0.1/16", "host bits"),
        ("flavor", "plian", "plain"),
        ("security", "root", "ipc-lock"),
        ("hugepages_mib", "3", "multiple of 2"),
    ],
)
def test_a_wrong_value_is_refused_with_what_is_allowed(name: str, value: str, said: str) -> None:
    """Before CloudFormation finds out, ten minutes later."""
    (fault,) = faults({name: value})
    assert (fault.rule_id, fault.key_path) == ("EKS-002", name)
    assert fault.file == f"flag {flag_name(name)}"
    assert said in fault.message
    assert fault.cure


def test_a_version_that_yaml_takes_for_a_number_is_refused(tmp_path: Path) -> None:
    """1.30 would have become 1.3."""
    (fault,) = faults(file=written(tmp_path, "k8s_version: 1.30\n"))
    assert (fault.rule_id, fault.line) == ("EKS-002", 1)
    assert "quotes" in fault.message


@pytest.mark.parametrize(
    ("flags", "blamed"),
    [
        ({"gpu_az": "us-east-1a"}, "gpu_az"),
        ({"availability_zones": "us-west-2b,us-west-2c"}, "availability_zones"),
        ({"availability_zones": "us-west-2a"}, "availability_zones"),
        ({"model_cache": "claim"}, "model_cache"),
        ({"gcs_fault_tolerance": "redis"}, "gcs_fault_tolerance"),
        ({"gcs_fault_tolerance": "redis", "redis_address": "r:1", "flavor": "plain"},
         "gcs_fault_tolerance"),
        ({"capacity_block": "true"}, "capacity_block"),
    ],
)  # fmt: skip
def test_settings_that_do_not_go_together_are_refused(flags: Any, blamed: str) -> None:
    """Each is right by itself."""
    (fault,) = faults(flags)
    assert (fault.rule_id, fault.key_path) == ("EKS-003", blamed)
    assert fault.cure


def test_all_wrong_settings_are_said_in_one_run(tmp_path: Path) -> None:
    """From every place at once."""
    file = written(tmp_path, "regoin: us-west-2\nnamespace: UPPER\n")
    found = faults({"flavor": "x"}, {"GPU_NODE_COUNT": "many"}, file)
    assert sorted(f.key_path for f in found) == ["flavor", "gpu_node_count", "namespace", "regoin"]


def test_variables_in_the_settings_file_are_resolved(tmp_path: Path) -> None:
    """As in the YAML itself; an unset one is refused with its line."""
    path = tmp_path / "eks.yaml"
    path.write_text("cluster_name: a\nimage: ${REPOSITORY}:1\n", encoding="utf-8")
    found = resolve({}, {}, read_settings(path, {"REPOSITORY": "mine"}))
    assert found.settings.image == "mine:1"
    with pytest.raises(ConfigRefused) as refusal:
        read_settings(path, {})
    assert [(f.rule_id, f.line) for f in refusal.value.faults] == [("BTN-101", 2)]


@pytest.mark.parametrize("text", ["- a\n- b\n", "just text\n", "a: [\n"])
def test_a_file_that_holds_no_settings_is_refused(tmp_path: Path, text: str) -> None:
    """A list, a word, a broken line."""
    with pytest.raises(ConfigRefused):
        written(tmp_path, text)


def test_an_empty_settings_file_says_nothing(tmp_path: Path) -> None:
    """As one in which every line is a comment."""
    found = resolve({}, {}, written(tmp_path, "# region: eu-west-1\n"))
    assert found.settings.region == "us-west-2"


def test_a_settings_file_that_is_not_there_is_refused(tmp_path: Path) -> None:
    """Named by hand, it is meant."""
    with pytest.raises(ConfigRefused, match="cannot be read"):
        read_settings(tmp_path / "none.yaml", {})


def test_every_setting_says_what_it_is() -> None:
    """The docstrings are the help of the flags."""
    assert all(field.description for field in EksSettings.model_fields.values())


def test_a_resolved_setting_knows_its_place() -> None:
    """Later checks point there."""
    found: Resolved = resolve({"region": "us-east-1"}, {})
    fault = found.fault("EKS-013", ("region", "gpu_az"), "no", cure="yes")
    assert (fault.file, fault.found) == ("flag --region", "us-east-1")
