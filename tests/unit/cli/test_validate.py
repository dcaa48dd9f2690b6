"""`baton validate`: exit status, formats, standard input, speed of its imports."""

from __future__ import annotations

import json
import os
import socket
import subprocess
import sys
import threading
from typing import TYPE_CHECKING

import pytest
from click.testing import CliRunner, Result

from baton.cli.app import cli
from baton.spec.machine import GIB, Machine
from tests.unit.spec.files import BASE, KEYS, line_of

if TYPE_CHECKING:
    from pathlib import Path

WARNED = BASE.replace("backends: [LIBFABRIC]", "backends: LIBFABRIC")
REFUSED = BASE.replace("dtype: bfloat16", "dtype: bf16", 1)


@pytest.fixture(autouse=True)
def keys_are_here(monkeypatch: pytest.MonkeyPatch) -> None:
    for name, value in KEYS.items():
        monkeypatch.setenv(name, value)


@pytest.fixture
def files(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    for name, text in (("good", BASE), ("warned", WARNED), ("refused", REFUSED)):
        (tmp_path / f"{name}.yaml").write_text(text)
    monkeypatch.chdir(tmp_path)
    return tmp_path


def validate(*args: str, stdin: str | None = None) -> Result:
    return CliRunner().invoke(cli, ["validate", *args], input=stdin)


@pytest.mark.parametrize(
    ("args", "status"),
    [
        (["good.yaml"], 0),
        (["good.yaml", "--strict"], 0),
        (["warned.yaml"], 0),
        (["warned.yaml", "--strict"], 1),
        (["refused.yaml"], 2),
        (["refused.yaml", "--strict"], 2),
        (["good.yaml", "refused.yaml", "warned.yaml"], 2),
        (["nothere.yaml"], 2),
        (["."], 2),
    ],
)
def test_the_exit_status_says_clean_warned_or_refused(
    files: Path, args: list[str], status: int
) -> None:
    """0, 1 with --strict, 2."""
    assert validate(*args).exit_code == status


def test_keys_that_are_not_here_are_no_reason_to_refuse(
    files: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """They may be where it will run: a warning, and none when that is another machine."""
    for name in KEYS:
        monkeypatch.delenv(name)
    said = validate("good.yaml")
    assert said.exit_code == 0
    assert "names BATON_API_KEYS, which is unset or empty here" in said.output
    assert "names PROVIDER_KEY, which is unset or empty here" in said.output
    assert validate("good.yaml", "--strict").exit_code == 1
    assert validate("good.yaml", "--strict", "--target", "cluster").exit_code == 0


def test_a_fault_is_printed_with_place_found_allowed_and_cure(files: Path) -> None:
    """Readable without colour, and the place can be jumped to."""
    result = validate("refused.yaml", "--target", "cluster")
    expected = f"""\
error[BTN-103]: `dtype` is `bf16`, which is not one of its values
  at refused.yaml:{line_of(REFUSED, "bf16")}:16 \
(applications[0].args.prefill_config.engine_kwargs.dtype)
  found:   bf16
  allowed: auto, half, float16, bfloat16, float, float32

  hint: did you mean `bfloat16`?
"""
    assert result.stdout.startswith(expected)
    assert "\x1b[" not in result.stdout
    assert result.stderr.startswith("1 file: 1 error")


def test_faults_of_all_files_are_printed_in_one_run(files: Path) -> None:
    """Each with its own file name."""
    out = validate("refused.yaml", "warned.yaml").stdout
    assert "refused.yaml:" in out
    assert "warned.yaml:" in out


def test_json_holds_every_fault_and_change(files: Path) -> None:
    """For other tools."""
    result = validate("refused.yaml", "warned.yaml", "--format", "json")
    data = json.loads(result.stdout)
    assert (data["ok"], data["exit_status"]) == (False, 2)
    refused, warned = data["files"]
    (error,) = [fault for fault in refused["faults"] if fault["severity"] == "error"]
    assert (error["rule_id"], error["line"], error["column"]) == ("BTN-103", 10, 16)
    assert [change["after"] for change in warned["changes"][:2]] == ["[LIBFABRIC]", "[LIBFABRIC]"]


def test_github_annotations_stand_on_their_lines(files: Path) -> None:
    """Workflow commands."""
    out = validate("refused.yaml", "--format", "github").stdout
    assert "::error file=refused.yaml,line=10,col=16,title=BTN-103::`dtype` is" in out


def test_a_dash_reads_standard_input() -> None:
    """And names it."""
    result = validate("-", stdin=REFUSED)
    assert result.exit_code == 2
    assert "<stdin>:10:16" in result.stdout


def test_fix_writes_the_file_and_shows_the_difference(files: Path) -> None:
    """Afterwards there is nothing to warn about."""
    result = validate("warned.yaml", "--fix", "--strict")
    assert result.exit_code == 0
    assert "+          kv_connector_extra_config: {backends: [LIBFABRIC]}" in result.stdout
    assert (files / "warned.yaml").read_text() == BASE


def test_fix_of_standard_input_writes_the_text_to_standard_output() -> None:
    """And everything else to standard error."""
    result = validate("-", "--fix", stdin=WARNED)
    assert result.stdout == BASE
    assert "put right" in result.stderr


def test_fix_leaves_a_file_without_slips_alone(files: Path) -> None:
    """Not even its time of change."""
    before = (files / "refused.yaml").stat().st_mtime_ns
    assert validate("refused.yaml", "--fix").exit_code == 2
    assert (files / "refused.yaml").stat().st_mtime_ns == before


def test_fix_keeps_byte_order_mark_and_line_endings(files: Path) -> None:
    """Byte for byte outside of the change."""
    raw = b"\xef\xbb\xbf" + WARNED.replace("\n", "\r\n").encode()
    (files / "windows.yaml").write_bytes(raw)
    assert validate("windows.yaml", "--fix", "--strict").exit_code == 0
    right = raw.replace(b"backends: LIBFABRIC", b"backends: [LIBFABRIC]")
    assert (files / "windows.yaml").read_bytes() == right


def test_fix_of_what_cannot_be_written_says_so(files: Path) -> None:
    """A pipe is read, checked and left alone."""
    pipe = files / "pipe"
    os.mkfifo(pipe)
    writer = threading.Thread(target=lambda: pipe.write_text(WARNED), daemon=True)
    writer.start()
    result = validate("pipe", "--fix", "--strict")
    writer.join(timeout=10)
    assert result.exit_code == 1
    assert "no file that can be written" in result.stderr


def test_on_cpu_shows_the_changes_without_starting(files: Path) -> None:
    """Every adaptation with its rule."""
    result = validate("good.yaml", "--on", "cpu")
    assert result.exit_code == 0
    assert "BTN-222" in result.stdout
    assert "+ kv_buffer_device: cpu" in result.stdout


def test_budget_says_when_the_model_is_unknown(files: Path) -> None:
    """With the way to know it."""
    out = validate("good.yaml", "--budget").stdout
    assert "unknown" in out
    assert "--online" in out


def test_budget_shows_the_memory_of_each_role(files: Path) -> None:
    """Weights, KV, the longest context."""
    config = {"num_hidden_layers": 2, "num_attention_heads": 4, "hidden_size": 128,
              "max_position_embeddings": 8192}  # fmt: skip
    (files / "config.json").write_text(json.dumps(config))
    (files / "model.safetensors").write_bytes(b"x" * 1_000_000)
    text = BASE.replace("Qwen/Qwen3.5-9B", str(files))
    result = validate("-", "--budget", "--target", "cluster", stdin=text)
    assert "KV per token            1.0 KiB" in result.stdout
    data = json.loads(
        validate("-", "--budget", "--format", "json", "--target", "cluster", stdin=text).stdout
    )
    assert [role["role"] for role in data["files"][0]["budgets"]["qwen"]] == ["prefill", "decode"]


def test_nothing_is_asked_of_the_network_unless_said_so(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The model is one of the hub's and in no cache; `--online` alone goes and asks for it."""
    asked: list[object] = []

    def refuse(*args: object, **_: object) -> None:
        asked.append(args)
        raise OSError("no network in this test")

    for name in ("connect", "connect_ex"):
        monkeypatch.setattr(socket.socket, name, refuse)
    monkeypatch.setattr(socket, "getaddrinfo", refuse)
    monkeypatch.setenv("HF_HUB_CACHE", str(tmp_path))
    (tmp_path / "app.yaml").write_text(BASE)
    for more in ([], ["--budget"], ["--on", "cpu"], ["--fix"], ["--strict", "--format", "json"]):
        validate(str(tmp_path / "app.yaml"), *more)
        assert asked == [], more
    validate(str(tmp_path / "app.yaml"), "--online")
    assert asked


def test_validate_imports_neither_vllm_nor_ray() -> None:
    """That is how it takes less than two seconds."""
    code = (
        "import sys\n"
        "from click.testing import CliRunner\n"
        "from baton.cli.app import cli\n"
        f"r = CliRunner().invoke(cli, ['validate', '-'], input={BASE!r})\n"
        "assert r.exit_code == 0, r.output\n"
        "heavy = {'vllm', 'ray', 'torch', 'transformers', 'nixl', 'aiohttp', 'httpx'}\n"
        "print(sorted(heavy & set(sys.modules)))"
    )
    done = subprocess.run(
        [sys.executable, "-c", code], capture_output=True, text=True, check=True, timeout=60
    )
    assert done.stdout.strip() == "[]"


GPU_BUNDLES = BASE.replace(
    "      deployment_config:",
    "      placement_group_config: {bundles: [{GPU: 1}]}\n      deployment_config:",
)


@pytest.mark.parametrize(
    ("gpus", "args", "status"), [(0, [], 2), (2, [], 0), (0, ["--target", "cluster"], 0)]
)
def test_gpus_are_counted_on_this_machine_unless_another_is_meant(
    monkeypatch: pytest.MonkeyPatch, gpus: int, args: list[str], status: int
) -> None:
    """A file for a cluster is checked on a laptop as well."""
    monkeypatch.setattr(Machine, "here", classmethod(lambda _cls: Machine(2, 24 * GIB, gpus)))
    assert validate("-", *args, stdin=GPU_BUNDLES).exit_code == status


def test_a_manifest_is_for_another_machine(monkeypatch: pytest.MonkeyPatch) -> None:
    """A RayService runs on a cluster, wherever it is looked at."""
    monkeypatch.setattr(Machine, "here", classmethod(lambda _cls: Machine(2, 24 * GIB, 0)))
    inner = "".join(f"    {line}" for line in GPU_BUNDLES.splitlines(keepends=True))
    text = f"apiVersion: ray.io/v1\nkind: RayService\nspec:\n  serveConfigV2: |\n{inner}"
    assert validate("-", stdin=text).exit_code == 0
