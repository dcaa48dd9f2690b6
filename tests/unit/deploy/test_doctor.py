"""`baton doctor`: pure judgement of what was seen, and a real look at this machine."""

from __future__ import annotations

import json
from dataclasses import replace
from typing import TYPE_CHECKING

import pytest
from click.testing import CliRunner

from baton.cli.app import cli
from baton.deploy.doctor import Demand, Line, demand_of, judge
from baton.deploy.machine_facts import MachineFacts, look
from baton.spec.check import check
from baton.spec.load import load_text
from baton.spec.machine import GIB, Machine
from baton.spec.matched import MATCHED
from tests.unit.spec.files import BASE

if TYPE_CHECKING:
    from pathlib import Path

GOOD = MachineFacts(
    python="3.12.1",
    versions=dict(MATCHED),
    plugins={"UCX": (), "LIBFABRIC": (), "POSIX": ()},
    fabric_providers=("efa", "tcp"),
    efa_devices=("rdmap0s6",),
    shm_bytes=64 * GIB,
    shm_free_bytes=60 * GIB,
    memlock_bytes=-1,
    open_files=1_048_576,
    hugepages=5128,
    available_bytes=200 * GIB,
    machine=Machine(64, 256 * GIB, 8, 80 * GIB, "NVIDIA H100", "570.1"),
    ports={8000: None, 6379: None},
    free_in_ranges={"engines": (18_000, 18_999, 1000)},
    avx512=True,
)
EFA = Demand(backends=("LIBFABRIC",), require="efa", gpus=2, from_file=True)


def line(name: str, lines: list[Line]) -> Line:
    (found,) = [entry for entry in lines if entry.name == name]
    return found


def test_a_good_machine_is_ok_in_every_line() -> None:
    """And no line asks for anything."""
    lines = judge(GOOD, EFA)
    assert {entry.verdict for entry in lines} == {"ok"}
    assert [entry.cure for entry in lines if entry.cure] == []


@pytest.mark.parametrize(
    ("change", "demand", "name", "verdict", "word"),
    [
        ({"python": "3.10.2"}, Demand(), "Python", "fail", "3.11"),
        ({"versions": {**MATCHED, "vllm": "0.24.0"}}, Demand(), "vllm", "warn", "0.29.0"),
        ({"versions": {"ray": "2.60.0"}}, Demand(), "vllm", "fail", "install vllm"),
        ({"versions": {"ray": "2.60.0"}}, Demand(), "transformers", "warn", "install"),
        ({"plugins": {"UCX": (), "LIBFABRIC": ("libfabric.so.1",)}}, Demand(), "NIXL LIBFABRIC",
         "warn", "1.22"),
        ({"plugins": {"UCX": (), "LIBFABRIC": ("libhwloc.so.15",)}}, EFA, "NIXL LIBFABRIC", "fail",
         "libhwloc15"),
        ({"plugins": {"UCX": ()}}, EFA, "NIXL LIBFABRIC", "fail", "UCX"),
        ({"plugins": {}}, Demand(), "NIXL plugins", "fail", "install nixl"),
        ({"efa_devices": ()}, EFA, "EFA devices", "fail", "EFA"),
        ({"efa_devices": ()}, Demand(), "EFA devices", "ok", ""),
        ({"fabric_providers": ("tcp",)}, EFA, "libfabric providers", "fail", "EFA"),
        ({"fabric_providers": None}, EFA, "libfabric providers", "warn", "fi_info"),
        ({}, Demand(require="rdma"), "RDMA devices", "fail", "any"),
        ({"shm_bytes": GIB // 16, "shm_free_bytes": GIB // 16}, Demand(), "/dev/shm", "warn",
         "--shm-size"),
        ({"shm_bytes": None}, Demand(), "/dev/shm", "fail", "tmpfs"),
        ({"memlock_bytes": 8 * 1024**2}, EFA, "memlock", "fail", "ulimit"),
        ({"memlock_bytes": 8 * 1024**2, "efa_devices": ()}, Demand(), "memlock", "ok", ""),
        ({"hugepages": 0}, EFA, "hugepages", "warn", "nr_hugepages"),
        ({"open_files": 1024}, Demand(), "open files", "fail", "65536"),
        ({"open_files": 20_000}, Demand(), "open files", "warn", "65536"),
        ({"machine": Machine(2, 24 * GIB)}, EFA, "GPUs", "fail", "--on cpu"),
        ({"machine": Machine(2, 24 * GIB)}, Demand(), "GPUs", "ok", ""),
        ({"machine": Machine(64, 256 * GIB, 1, GIB)}, EFA, "GPUs", "fail", "--on cpu"),
        ({"machine": Machine(2, 24 * GIB)}, Demand(workers=8), "cores", "warn", "TP"),
        ({"available_bytes": 2 * GIB}, Demand(), "memory", "warn", "model"),
        ({"available_bytes": None}, Demand(), "memory", "warn", "meminfo"),
        ({"ports": {8000: "python (pid 7)"}}, Demand(), "port 8000", "fail", "http_options"),
        ({"ports": {6379: "gcs_server (pid 7)"}}, Demand(), "port 6379", "warn", "--address"),
        ({"free_in_ranges": {"engines": (1, 9, 1)}}, Demand(), "ports for engines", "fail",
         "range"),
    ],
)  # fmt: skip
def test_each_trouble_has_its_line_and_cure(
    change: dict[str, object], demand: Demand, name: str, verdict: str, word: str
) -> None:
    """Warn where it may hurt, fail where the file needs it."""
    facts = replace(GOOD, **change)  # type: ignore[arg-type]
    found = line(name, judge(facts, demand))
    assert found.verdict == verdict
    assert word in (found.cure or "")
    assert (found.cure is None) == (verdict == "ok")


def test_a_file_says_what_it_demands() -> None:
    """Backends, fabric, GPUs, ports."""
    text = "http_options: {port: 9001}\n" + BASE.replace("num_replicas: 1", "num_replicas: 2")
    demand = demand_of(check(load_text(text, "app.yaml", {})))
    assert (demand.backends, demand.require, demand.gpus) == (("LIBFABRIC",), "efa", 4)
    assert (demand.replicas, demand.http_port) == (4, 9001)


def test_this_machine_can_be_looked_at() -> None:
    """Nothing is imported and nothing is changed."""
    facts = look(("click", "no-such-package"), ports=(1,), ranges={"r": (40_000, 40_009)})
    assert "click" in facts.versions
    assert "no-such-package" not in facts.versions
    assert facts.machine.cores >= 1
    assert facts.free_in_ranges["r"][:2] == (40_000, 40_009)
    assert judge(facts, Demand())


def test_doctor_prints_json(tmp_path: Path) -> None:
    """With an exit status that says the same."""
    file = tmp_path / "app.yaml"
    file.write_text(BASE)
    result = CliRunner().invoke(cli, ["doctor", str(file), "--format", "json"])
    data = json.loads(result.stdout)
    failed = [check for check in data["checks"] if check["verdict"] == "fail"]
    assert data["ok"] == (not failed)
    assert result.exit_code == (3 if failed else 0)


def test_doctor_of_a_refused_file_is_refused(tmp_path: Path) -> None:
    """There is nothing to hold the machine against."""
    file = tmp_path / "app.yaml"
    file.write_text(BASE.replace("bfloat16", "bf16"))
    result = CliRunner().invoke(cli, ["doctor", str(file)])
    assert getattr(result.exception, "exit_status", None) == 2


def test_a_storage_plugin_that_does_not_load_is_named_and_no_worry() -> None:
    """Why it does not, by the library that is missing."""
    facts = replace(GOOD, plugins={**GOOD.plugins, "GDS": ("libcufile.so.0",)})
    line = next(line for line in judge(facts, Demand()) if line.name == "NIXL GDS")
    assert line.verdict == "ok"
    assert "libcufile.so.0 missing" in line.detail


def test_doctor_reads_a_manifest(tmp_path: Path) -> None:
    """The demand is that of the Serve config inside."""
    text = "apiVersion: ray.io/v1\nkind: RayService\nspec:\n  serveConfigV2: |\n" + "".join(
        f"    {line}" for line in BASE.splitlines(keepends=True)
    )
    file = tmp_path / "rayservice.yaml"
    file.write_text(text)
    out = CliRunner().invoke(cli, ["doctor", str(file), "--format", "json"]).stdout
    checks = {check["name"]: check for check in json.loads(out)["checks"]}
    assert "LIBFABRIC" in "".join(checks)
    assert "efa" in checks["EFA devices"]["detail"] or checks["EFA devices"]["verdict"] == "ok"
