"""The environment is made once, whole, and never over something that is not ours."""

from __future__ import annotations

import fcntl
import importlib.util
import os
import shutil
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

ROOT = Path(__file__).parents[3]


@pytest.fixture
def setup(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Any:
    """The script as a module, with a checkout of its own under `tmp_path`."""
    spec = importlib.util.spec_from_file_location("setup_env", ROOT / "tools" / "setup_env.py")
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    monkeypatch.setattr(sys, "path", list(sys.path))
    spec.loader.exec_module(module)
    (tmp_path / "requirements").mkdir()
    for name in (module.TORCH, *module.PACKAGES):
        (tmp_path / name).write_text(
            "a==1 \\\n    --hash=sha256:00\nb==2 \\\n    --hash=sha256:11\n"
        )
    (tmp_path / "pyproject.toml").write_text('[project]\nname = "x"\n[tool.pytest]\na = 1\n')
    venv = tmp_path / ".venv"
    places = {
        "ROOT": tmp_path,
        "VENV": venv,
        "MARK": venv / ".baton-env",
        "STAMP": venv / ".baton-complete",
        "LOCK": tmp_path / ".venv.lock",
        "LOG": tmp_path / "build" / "log",
    }
    for name, place in places.items():
        monkeypatch.setattr(module, name, place)
    return module


class FakeWork:
    """Plays pip: answers by what stands in the command."""

    def __init__(self, answers: list[tuple[int, list[str]]]) -> None:
        self.answers = answers
        self.commands: list[tuple[str, ...]] = []

    def run(self, *command: str, on_line: Any = None) -> tuple[int, list[str]]:
        self.commands.append(command)
        return self.answers.pop(0)

    def elapsed(self) -> str:
        return "0 s"


NOT_THERE = "ERROR: No matching distribution found for torch==2.13.0+cpu"


def finish(setup: Any) -> None:
    """Leave what a finished run leaves."""
    (setup.VENV / "bin").mkdir(parents=True)
    (setup.VENV / "bin" / "python").touch()
    setup.MARK.touch()
    setup.STAMP.write_text("\n".join(setup.fingerprint()))


def test_torch_comes_from_where_pip_looks_when_it_is_there(setup: Any) -> None:
    """Then PyTorch's index is not asked at all."""
    work = FakeWork([(0, [])])
    setup.install_torch(work)
    assert len(work.commands) == 1
    assert "--index-url" not in work.commands[0]


def test_torch_comes_from_pytorchs_index_when_pip_has_no_cpu_build(setup: Any) -> None:
    """And only torch: the packages' command names no index."""
    work = FakeWork([(1, [NOT_THERE]), (0, []), (0, [])])
    setup.install_torch(work)
    setup.install_packages(work)
    assert work.commands[1][work.commands[1].index("--index-url") + 1] == setup.TORCH_CPU_INDEX
    assert "--index-url" not in work.commands[2]


def test_another_failure_of_torch_does_not_ask_another_index(setup: Any) -> None:
    """A wrong hash is not a missing build."""
    work = FakeWork([(1, ["ERROR: THESE PACKAGES DO NOT MATCH THE HASHES"])])
    with pytest.raises(setup.SetupError, match="DO NOT MATCH THE HASHES"):
        setup.install_torch(work)


def test_every_command_insists_on_hashes_and_resolves_nothing(setup: Any) -> None:
    """The pinned set is installed as it is, or not."""
    work = FakeWork([(0, []), (0, [])])
    setup.install_torch(work)
    setup.install_packages(work)
    for command in work.commands:
        assert {"--require-hashes", "--no-deps", ":all:"} <= set(command)


def test_a_broken_connection_is_the_reason_not_pips_conclusion(setup: Any) -> None:
    """Pip says "no matching distribution" also when it reached nothing."""
    said = ["WARNING: Retrying after connection broken by 'no route'", NOT_THERE]
    with pytest.raises(setup.SetupError, match="no route"):
        setup.pip_failed(said, "x")


def test_it_runs_on_a_bare_python(setup: Any) -> None:
    """Alone in its folder, without site-packages, PYTHONPATH or the folder of the script."""
    (setup.ROOT / "tools").mkdir()
    for name in ("setup_env.py", "fit_machine.py"):
        shutil.copy(ROOT / "tools" / name, setup.ROOT / "tools")
    finish(setup)
    script = str(setup.ROOT / "tools" / "setup_env.py")
    done = subprocess.run(
        [sys.executable, "-I", "-S", script], capture_output=True, text=True, check=False
    )
    assert (done.returncode, done.stderr) == (0, "")


def test_a_finished_environment_is_left_alone(setup: Any) -> None:
    """Exit status 0, without a lock, a check or a word."""
    finish(setup)
    assert setup.main() == 0
    assert not setup.LOCK.exists()


@pytest.mark.parametrize("name", ["requirements/cpu.txt", "requirements/torch-cpu.txt"])
def test_a_changed_pin_asks_for_a_new_environment(setup: Any, name: str) -> None:
    """Whatever file it stands in."""
    finish(setup)
    before = setup.stamped()
    (setup.ROOT / name).write_text("a==2\n")
    assert setup.fingerprint()[0] != before[0]


def test_changed_metadata_asks_for_batons_own_install_only(
    setup: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A new entry point does not cost three gigabytes; a setting of a tool costs nothing."""
    finish(setup)
    done: list[str] = []
    monkeypatch.setattr(setup, "make", lambda _: done.append("make"))
    monkeypatch.setattr(setup, "install_baton", lambda _: done.append("baton"))
    text = (setup.ROOT / "pyproject.toml").read_text()
    (setup.ROOT / "pyproject.toml").write_text(text + "b = 2\n")
    assert setup.main() == 0
    assert done == []
    (setup.ROOT / "pyproject.toml").write_text('scripts = "y"\n' + text)
    assert setup.main() == 0
    assert done == ["baton"]
    assert setup.stamped() == setup.fingerprint()


def test_an_unfinished_environment_is_made_anew(
    setup: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    """No stamp: a run was cut short, and what it left goes."""
    finish(setup)
    setup.STAMP.unlink()
    (setup.VENV / "left-over").touch()
    work = FakeWork([(0, []), (0, []), (0, [])])
    monkeypatch.setattr(setup, "warm_up", lambda _: None)
    setup.LOG.parent.mkdir()
    setup.make(work)
    assert setup.MARK.exists()
    assert not (setup.VENV / "left-over").exists()


def test_somebody_elses_venv_is_not_touched(setup: Any) -> None:
    """A `.venv` that this script did not make is refused, with a way out."""
    setup.VENV.mkdir()
    (setup.VENV / "theirs").touch()
    with pytest.raises(setup.SetupError, match="was not made by this script") as caught:
        setup.make(FakeWork([]))
    assert (setup.VENV / "theirs").exists()
    assert str(setup.VENV) in caught.value.cure


def test_the_second_of_two_runs_waits(setup: Any, capsys: pytest.CaptureFixture[str]) -> None:
    """It says so, and goes on when the first has ended."""
    holder = subprocess.Popen(
        ["flock", str(setup.LOCK), "sh", "-c", "echo held; read line"],
        stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True,
    )  # fmt: skip
    assert holder.stdout is not None
    assert holder.stdin is not None
    assert holder.stdout.readline() == "held\n"

    def end_holder(text: str) -> None:
        assert "waiting" in text
        assert holder.stdin is not None
        holder.stdin.write("\n")
        holder.stdin.close()

    setup.say = end_holder
    with setup.locked() as lock:
        assert holder.wait(30) == 0
        other = os.open(setup.LOCK, os.O_RDWR)
        with pytest.raises(BlockingIOError):
            fcntl.flock(other, fcntl.LOCK_EX | fcntl.LOCK_NB)
        os.close(other)
        os.fstat(lock)


def test_a_wrong_python_is_one_line_with_a_cure(
    setup: Any, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """Before anything is downloaded or made."""
    monkeypatch.setattr(sys, "version_info", (3, 12, 1, "final", 0))
    assert setup.main() == 3
    error, hint = capsys.readouterr().err.strip().split("\n\n")
    assert error.startswith("error: this is CPython 3.12")
    assert "PYTHON=/path/to/python3.11" in hint
    assert not setup.VENV.exists()


def test_pip_is_shielded_from_the_machines_own_ideas(
    setup: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A constraint file, a target folder or a user install would bend the pinned set."""
    monkeypatch.setenv("PIP_TARGET", "/somewhere")
    monkeypatch.setenv("PIP_CONSTRAINT", "/etc/constraints.txt")
    monkeypatch.setenv("PYTHONDONTWRITEBYTECODE", "1")
    monkeypatch.setenv("PIP_CERT", "/etc/ssl/certs/x.pem")
    env = setup.child_environment()
    assert "PIP_TARGET" not in env
    assert "PYTHONDONTWRITEBYTECODE" not in env
    assert env["PIP_CONSTRAINT"] == os.devnull
    assert env["PIP_CERT"] == "/etc/ssl/certs/x.pem"


@pytest.mark.parametrize("name", ["cpu.txt", "dev.txt", "torch-cpu.txt"])
def test_every_pin_has_a_hash_and_an_exact_version(name: str) -> None:
    """One pin without a hash and pip refuses the whole file, on a newcomer's machine."""
    text = (ROOT / "requirements" / name).read_text().replace("\\\n", " ")
    pins = [line for line in text.splitlines() if line.strip() and not line.startswith("#")]
    assert pins
    for pin in pins:
        assert "==" in pin.split()[0], pin
        assert "--hash=sha256:" in pin, pin


def test_no_package_is_pinned_twice() -> None:
    """Two sets that disagree would be found by pip, at the worst moment."""
    names = [
        line.partition("==")[0].lower().replace("_", "-")
        for name in ("cpu.txt", "dev.txt", "torch-cpu.txt")
        for line in (ROOT / "requirements" / name).read_text().splitlines()
        if line and line[0].isalpha()
    ]
    assert len(names) == len(set(names))


def test_an_interpreter_of_the_environment_hands_over_to_the_one_it_was_made_with(
    setup: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    """It would remove itself; any other may stay."""
    monkeypatch.setattr(setup.sys, "prefix", str(setup.VENV))
    monkeypatch.setattr(setup.sys, "base_prefix", "/usr")
    assert setup.outer_python() == "/usr/bin/python3.11"
    asked: list[list[str]] = []

    def execv(path: str, arguments: list[str]) -> None:
        asked.append([path, *arguments])
        raise SystemExit(0)

    monkeypatch.setattr(setup.os, "execv", execv)
    monkeypatch.setattr(setup.sys, "argv", ["tools/setup_env.py"])
    with pytest.raises(SystemExit):
        setup.main()
    assert asked == [["/usr/bin/python3.11", "/usr/bin/python3.11", "tools/setup_env.py"]]
    monkeypatch.setattr(setup.sys, "prefix", "/somewhere/else")
    assert setup.outer_python() is None
    monkeypatch.setattr(setup.sys, "prefix", "/usr")
    assert setup.outer_python() is None
