"""The CPU image, built for real, and what runs inside it: as root, by `make test-image`.

Left out otherwise: it writes some 3 GB, fetches what `requirements/cpu.txt` names, takes minutes.
"""

from __future__ import annotations

import importlib.util
import json
import os
import shutil
import socket
import subprocess
import time
from pathlib import Path
from typing import Any

import pytest

ROOT = Path(__file__).resolve().parents[2]
WANTED = "BATON_TEST_IMAGE"
USER = 1000
RESULTS = ROOT / "build" / "image-cpu.json"

pytestmark = [pytest.mark.image, pytest.mark.timeout(3600)]


def _tool() -> Any:
    spec = importlib.util.spec_from_file_location("image_cpu", ROOT / "tools" / "image_cpu.py")
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


tool = _tool()


def _note(**facts: Any) -> None:
    """What was seen, for `bench/results/image_cpu.json`."""
    seen = json.loads(RESULTS.read_text()) if RESULTS.exists() else {}
    RESULTS.write_text(json.dumps({**seen, **facts}, indent=2) + "\n")


@pytest.fixture(scope="module")
def image() -> Any:
    """The image as the repository makes it now; gone in the end."""
    if os.environ.get(WANTED) != "1":
        pytest.skip(f"builds a 3 GB image as root: `make test-image`, or {WANTED}=1")
    why_not = tool.missing()
    if why_not is not None:
        pytest.fail(f"{why_not[0]} (hint: {why_not[1]})")
    RESULTS.parent.mkdir(exist_ok=True)
    RESULTS.unlink(missing_ok=True)
    began = time.monotonic()
    tool.build(None)
    _note(build_s=round(time.monotonic() - began), bytes=_size())
    with tool.container() as name:
        yield name
    if os.environ.get("BATON_KEEP_IMAGE") != "1":
        tool.clean()


def _size() -> int:
    """Bytes on disk of all layers, the base among them."""
    counted = subprocess.run(
        ["du", "-sb", str(tool.PLACE / "store")], capture_output=True, text=True, check=True
    )
    return int(counted.stdout.split()[0])


def _run(image: str, *command: str, volumes: tuple[str, ...] = ()) -> Any:
    return subprocess.run(
        tool.run_line(image, command, volumes), capture_output=True, text=True, check=False
    )


def test_nothing_of_the_building_machine_is_in_the_image(image: str) -> None:
    """Where pip looked, its settings and its certificates: neither in files nor in the config."""
    look = f"ls -d {tool.HOST_PIP} /etc/pip.conf /etc/xdg/pip; pip config list"
    seen = _run(image, "bash", "-c", look)
    assert seen.returncode == 0, seen.stderr  # pip's: a container that did not run has said nothing
    assert seen.stdout.strip() == ""
    config = subprocess.run(
        tool.buildah("inspect", "--type", "image", tool.IMAGE),
        capture_output=True, text=True, check=True,
    ).stdout  # fmt: skip
    environment = json.loads(config)["OCIv1"]["config"]["Env"]
    assert not [each for each in environment if each.startswith("PIP_")]


def test_image_check_passes_inside(image: str) -> None:
    """Versions, libraries, a NIXL agent, no second copy, not root, no secret."""
    began = time.monotonic()
    done = _run(image, "baton", "image", "check", "--json")
    assert done.returncode == 0, done.stdout + done.stderr
    found = json.loads(done.stdout)
    assert (found["image"], found["kind"], found["outcome"]) == ("cpu", "cpu", 0)
    assert {each["word"] for each in found["findings"]} <= {"pass", "warn"}
    _note(check_s=round(time.monotonic() - began), check=found)


def test_one_real_handoff_inside(image: str, tmp_path: Path, real_engines_wanted: None) -> None:
    """`baton demo`: two engines, one endpoint, KV by NIXL, the same text as without P/D."""
    from baton.demo.model import ensure_demo_model

    model = ensure_demo_model()
    shared = tmp_path / "shared"
    (shared / "models").mkdir(parents=True)
    shutil.copytree(model, shared / "models" / model.name)
    for folder in (tmp_path, shared, shared / "models"):
        os.chown(folder, USER, USER)
    with socket.socket() as found:
        found.bind(("127.0.0.1", 0))
        port = str(found.getsockname()[1])
    done = _run(
        image,
        *("env", "BATON_CACHE_DIR=/tmp/shared", "baton", "demo"),
        *("--port", port, "--json", "/tmp/shared/demo.json"),
        volumes=(f"{shared}:/tmp/shared",),
    )
    assert done.returncode == 0, (done.stdout + done.stderr)[-3000:]
    result = json.loads((shared / "demo.json").read_text())
    _note(demo={name: value for name, value in result.items() if name != "endpoint"})
    assert result["same_answer"]
    assert result["kv_transfer"]["bytes"] > 0
