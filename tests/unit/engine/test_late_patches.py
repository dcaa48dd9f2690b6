"""Modules that are changed when they are imported, and not before."""

from __future__ import annotations

import importlib
import inspect
import sys
from types import SimpleNamespace
from typing import Any

import pytest

from baton.engine.late_patches import (
    NotKnown,
    change_of,
    change_when_imported,
    is_replaced,
    module_exists,
    patch_when_imported,
    replace_once,
)


@pytest.fixture
def package(tmp_path, monkeypatch):
    """A package `late_pkg` with a module `deep.target` that nobody has imported."""
    deep = tmp_path / "late_pkg" / "deep"
    deep.mkdir(parents=True)
    (tmp_path / "late_pkg" / "__init__.py").write_text("")
    (deep / "__init__.py").write_text("raise AssertionError('imported too early')")
    (deep / "target.py").write_text("VALUE = 1\ndef source():\n    return VALUE\n")
    monkeypatch.syspath_prepend(str(tmp_path))
    finders = list(sys.meta_path)
    yield deep
    sys.meta_path[:] = finders
    for name in [name for name in sys.modules if name.startswith("late_pkg")]:
        del sys.modules[name]


def test_a_module_is_found_without_importing_what_it_lies_in(package):
    """The packages between cost seconds in vLLM."""
    assert module_exists("late_pkg.deep.target")
    assert module_exists("late_pkg.deep")
    assert not module_exists("late_pkg.deep.gone")
    assert not module_exists("no_such_package_at_all.x")
    assert "late_pkg.deep" not in sys.modules


def test_the_change_comes_with_the_import_and_once(package):
    """Whoever imports it gets the changed one; its source can still be read."""
    (package / "__init__.py").write_text("")
    seen = []

    def patch(module):
        seen.append(module.VALUE)
        module.VALUE = 2

    patch_when_imported("late_pkg.deep.target", patch)
    assert seen == []
    target = importlib.import_module("late_pkg.deep.target")
    importlib.import_module("late_pkg.deep.target")
    assert (target.VALUE, seen) == (2, [1])
    assert "def source" in inspect.getsource(target)


def test_a_module_that_is_there_already_is_changed_at_once(package):
    """Plugins may be loaded late."""
    (package / "__init__.py").write_text("")
    target = importlib.import_module("late_pkg.deep.target")
    patch_when_imported("late_pkg.deep.target", lambda module: setattr(module, "VALUE", 3))
    assert target.VALUE == 3


def test_two_changes_of_one_module_are_both_made(package):
    """Two plugins may want the same module."""
    (package / "__init__.py").write_text("")
    seen = []
    patch_when_imported("late_pkg.deep.target", lambda _: seen.append("first"))
    patch_when_imported("late_pkg.deep.target", lambda _: seen.append("second"))
    importlib.import_module("late_pkg.deep.target")
    assert sorted(seen) == ["first", "second"]


def test_a_method_is_replaced_once_and_stays_of_its_kind() -> None:
    """Plugins may be loaded twice; a class method that became a plain one would get no class."""

    class Vllm:
        def plain(self) -> str:
            return "plain"

        @classmethod
        def of_class(cls) -> str:
            return cls.__name__

        @staticmethod
        def static() -> str:
            return "static"

    def louder(found: Any) -> Any:
        def loud(*arguments: Any) -> str:
            return f"{found(*arguments)}!"

        return loud

    for name in ("plain", "of_class", "static"):
        assert not is_replaced(Vllm, name)
        for _ in range(2):
            replace_once(Vllm, name, louder)
        assert is_replaced(Vllm, name)
    assert [Vllm().plain(), Vllm.of_class(), Vllm().static()] == ["plain!", "Vllm!", "static!"]
    with pytest.raises(AttributeError, match="no attribute 'gone'"):
        replace_once(Vllm, "gone", louder)


def test_what_a_change_does_not_find_is_told_and_not_raised() -> None:
    """An engine must not die of a plugin; whoever wanted the change hears the module and why."""
    told: list[tuple[str, str]] = []

    @change_of("some.module", lambda *why: told.append(why))
    def change(module: Any) -> None:
        if module.version:
            raise NotKnown("another one")

    change(SimpleNamespace())
    change(SimpleNamespace(version=2))
    change(SimpleNamespace(version=0))
    assert not change_when_imported({"json.nowhere": change}, lambda *why: told.append(why))
    assert [name for name, _ in told] == ["some.module", "some.module", "json.nowhere"]
    assert "version" in told[0][1]
    assert [why for _, why in told[1:]] == ["another one", "there is no such module"]
