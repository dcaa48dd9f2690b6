"""Changes a module of vLLM when it is imported, and not before.

A plugin of vLLM runs in each of its processes, most of which never need the module that it wants to
change: importing the scheduler or the NIXL worker there only to change it would cost seconds. So
the change waits. Where the module is there already, it is made at once.

A change looks for what it replaces, and is made once, however often plugins are loaded. Where the
module looks otherwise, nothing in it is changed, and whoever wanted it is told why.
"""

from __future__ import annotations

import functools
import importlib.util
import inspect
import logging
import sys
from importlib.abc import Loader, MetaPathFinder
from pathlib import Path
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping, Sequence
    from importlib.machinery import ModuleSpec
    from types import ModuleType

log = logging.getLogger("baton.engine.late_patches")

_MARK = "baton_replaced"


class NotKnown(Exception):
    """A module is not the one that a change was made for."""


def change_when_imported(
    changes: Mapping[str, Callable[[ModuleType], None]], cannot: Callable[[str, str], None]
) -> bool:
    """Have modules changed as soon as somebody has imported them; True when all of them exist.

    Args:
        changes: By the module's name; see `patch_when_imported`.
        cannot: Told the name of a module that does not exist, and that.
    """
    there = True
    for name, change in changes.items():
        if module_exists(name):
            patch_when_imported(name, change)
        else:
            cannot(name, "there is no such module")
            there = False
    return there


def change_of(
    name: str, cannot: Callable[[str, str], None]
) -> Callable[[Callable[..., None]], Callable[..., None]]:
    """Make a function a change of this module: what it does not find is told, and not raised."""

    def frame(change: Callable[..., None]) -> Callable[..., None]:
        @functools.wraps(change)
        def framed(module: Any, *more: Any) -> None:
            try:
                change(module, *more)
            except (AttributeError, ImportError, NotKnown) as exc:
                cannot(name, str(exc))

        return framed

    return frame


def replace_once(owner: Any, name: str, make: Callable[[Any], Any]) -> None:
    """Put `make(plain)` in the place of a class's method, unless that was done before.

    Raises:
        AttributeError: There is no such method.
    """
    getattr(owner, name)  # whose error says more
    found = inspect.getattr_static(owner, name)
    kind = type(found) if isinstance(found, classmethod | staticmethod) else None
    plain = found if kind is None else found.__func__
    if getattr(plain, _MARK, False):
        return
    made = make(plain)
    setattr(made, _MARK, True)
    setattr(owner, name, made if kind is None else kind(made))


def is_replaced(owner: Any, name: str) -> bool:
    """Whether `replace_once` has been here."""
    return getattr(getattr(owner, name, None), _MARK, False) is True


def module_exists(name: str) -> bool:
    """Whether an installed package has this module; imports only the outermost package."""
    top, *parts = name.split(".")
    spec = importlib.util.find_spec(top)
    if spec is None or spec.submodule_search_locations is None:
        return False
    for root in spec.submodule_search_locations:
        file = Path(root).joinpath(*parts)
        if file.with_suffix(".py").is_file() or (file / "__init__.py").is_file():
            return True
    return False


def patch_when_imported(name: str, patch: Callable[[ModuleType], None]) -> None:
    """Call `patch` with the module: now, or as soon as somebody has imported it.

    `patch` must see for itself that it changes nothing twice, and must not raise.
    """
    module = sys.modules.get(name)
    if module is not None:
        # Also while it is being imported, when no finder is asked for it any more: what is not
        # there yet is then said to be missing, and not passed over.
        patch(module)
        return
    sys.meta_path.insert(0, _Finder(name, patch))


class _Finder(MetaPathFinder):
    """Finds one module as everybody else would, and has its loader call us afterwards."""

    def __init__(self, name: str, patch: Callable[[ModuleType], None]) -> None:
        self._name = name
        self._patch = patch

    def find_spec(
        self, fullname: str, path: Sequence[str] | None, target: ModuleType | None = None
    ) -> ModuleSpec | None:
        if fullname != self._name:
            return None
        # Those behind us only: another of our kind may stand before us, and asks us in turn.
        for finder in sys.meta_path[sys.meta_path.index(self) + 1 :]:
            spec = finder.find_spec(fullname, path, target)
            if spec is not None and spec.loader is not None:
                spec.loader = _PatchingLoader(spec.loader, self._patch)
                return spec
        return None


class _PatchingLoader(Loader):
    """The module's own loader, and the change after it."""

    def __init__(self, loader: Loader, patch: Callable[[ModuleType], None]) -> None:
        self._loader = loader
        self._patch = patch

    def create_module(self, spec: ModuleSpec) -> ModuleType | None:
        return self._loader.create_module(spec)

    def exec_module(self, module: ModuleType) -> None:
        self._loader.exec_module(module)
        self._patch(module)

    def __getattr__(self, name: str) -> Any:
        return getattr(self._loader, name)  # get_source and the like: tracebacks, torch's compiler
