"""Asking the kernel for AMX tiles."""

from __future__ import annotations

from pathlib import Path

from baton.engine.amx import allow_amx


def test_nothing_is_asked_on_a_processor_without_amx(tmp_path: Path) -> None:
    """The flags decide, not the kernel's answer."""
    cpuinfo = tmp_path / "cpuinfo"
    cpuinfo.write_text("processor : 0\nflags : fpu sse2 avx2\n", encoding="utf-8")
    assert allow_amx(cpuinfo) is False


def test_a_machine_without_cpuinfo_is_no_error(tmp_path: Path) -> None:
    """Containers may hide it."""
    assert allow_amx(tmp_path / "missing") is False


def test_the_answer_fits_the_processor_that_runs_this_test() -> None:
    """With AMX in the flags the kernel grants it, and a second call is granted as well."""
    has_amx = " amx_tile" in Path("/proc/cpuinfo").read_text(encoding="utf-8")
    assert allow_amx() is has_amx
    assert allow_amx() is has_amx
