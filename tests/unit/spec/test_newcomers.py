"""The first files of three people: each gets an answer that a newcomer can act on."""

from __future__ import annotations

from pathlib import Path

import pytest

from baton.spec.check import check
from baton.spec.load import load_file, load_text
from tests.unit.spec.files import BASE, line_of, report, rules_of

EXAMPLES = sorted((Path(__file__).resolve().parents[3] / "examples").glob("*/app.yaml"))

# As many published examples have it: kv_transfer_config beside engine_kwargs, an older proxy.
PUBLISHED = """\
applications:
  - args:
      prefill_config:
        model_loading_config:
          model_id: meta-llama/Llama-3.1-8B-Instruct
        accelerator_type: L4
        kv_transfer_config:
          kv_connector: NixlConnector
          kv_role: kv_both
          engine_id: engine1
        deployment_config:
          autoscaling_config:
            min_replicas: 2
            max_replicas: 2
      decode_config:
        model_loading_config:
          model_id: meta-llama/Llama-3.1-8B-Instruct
        accelerator_type: L4
        kv_transfer_config:
          kv_connector: NixlConnector
          kv_role: kv_both
          engine_id: engine2
        deployment_config:
          autoscaling_config:
            min_replicas: 6
            max_replicas: 6
      proxy_deployment_config:
        autoscaling_config: {min_replicas: 1}
    import_path: ray.serve.llm:build_pd_openai_app
    name: pd-disaggregation-nixl
    route_prefix: "/"
"""

RAY_DOCS = """\
applications:
- args:
    llm_configs:
        - model_loading_config:
            model_id: qwen-0.5b
            model_source: Qwen/Qwen2.5-0.5B-Instruct
          accelerator_type: A10G
          deployment_config:
            autoscaling_config: {min_replicas: 1, max_replicas: 2}
  import_path: ray.serve.llm:build_openai_app
  name: llm_app
  route_prefix: "/"
"""

RAYSERVICE = """\
apiVersion: ray.io/v1
kind: RayService
metadata:
  name: qwen-pd
spec:
  serveConfigV2: |
{inner}
  rayClusterConfig:
    rayVersion: 2.60.0
    headGroupSpec:
      rayStartParams: {{}}
"""


def manifest(text: str) -> str:
    inner = "\n".join(f"    {line}" for line in text.splitlines())
    return RAYSERVICE.format(inner=inner)


def test_a_published_example_is_put_right_but_for_what_is_gone() -> None:
    """One key has no successor in place; everything else has one meaning."""
    found = report(PUBLISHED)
    (error,) = found.errors
    assert error.rule_id == "BTN-160"
    assert error.line == line_of(PUBLISHED, "proxy_deployment_config")
    assert error.cure is not None
    head, tail = PUBLISHED.split("      proxy_deployment_config:\n", maxsplit=1)
    rest = report(head + tail.split("\n", maxsplit=1)[1])
    assert rest.errors == ()
    assert set(rules_of(rest, "warning")) == {"BTN-110"}


def test_the_rays_docs_example_is_told_how_to_become_p_d() -> None:
    """It runs, as one kind of engine; the way to two is named."""
    found = report(RAY_DOCS)
    assert found.errors == ()
    (note,) = found.faults
    assert note.rule_id == "BTN-013"
    assert "prefill_config" in (note.cure or "")
    assert found.checked is not None


def test_a_rayservice_manifest_is_read_like_the_config_inside_it() -> None:
    """The same verdict, with the lines of the manifest."""
    assert report(manifest(BASE)).errors == ()
    text = manifest(BASE.replace("dtype: bfloat16", "dtype: bf16", 1))
    (error,) = report(text).errors
    assert (error.line, error.column) == (line_of(text, "bf16"), 20)


def test_other_manifests_are_named_for_what_they_are() -> None:
    """A RayCluster has no Serve config."""
    found = report("apiVersion: ray.io/v1\nkind: RayCluster\nspec: {}\n")
    assert any("RayCluster" in (fault.cure or "") for fault in found.errors)


def test_a_file_from_a_chat_without_indentation_is_understood() -> None:
    """Rebuilt, with a warning that says so."""
    text = "".join(line.lstrip(" ") for line in BASE.splitlines(keepends=True))
    found = report(text)
    assert found.errors == ()
    assert rules_of(found, "warning") == ["BTN-011"]


@pytest.mark.parametrize("path", EXAMPLES, ids=lambda path: path.parent.name)
def test_every_example_is_accepted_without_a_warning(
    path: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """They are what newcomers copy. One names a folder that its README has made first."""
    monkeypatch.setenv("BATON_TINY_MODEL", str(tmp_path))
    loaded = load_file(path)
    checked = check(loaded)
    assert [fault for fault in checked.warnings if fault.severity == "warning"] == []
    assert loaded.text.startswith("# yaml-language-server: $schema=")


def test_the_examples_are_there() -> None:
    """An empty glob would test nothing."""
    assert {path.parent.name for path in EXAMPLES} >= {"01-laptop-1p1d", "02-gpu-box"}


def test_command_line_habits_are_understood() -> None:
    """Hyphens and JSON, as `vllm serve` takes them."""
    text = BASE.replace("        max_model_len: 4096\n", "        max-model-len: 4096\n", 1)
    found = report(text)
    assert found.errors == ()
    assert rules_of(found, "warning") == ["BTN-115"]
    loaded = load_text(text, "x", {})
    assert check(loaded).applications[0].roles["prefill"].max_model_len == 4096
