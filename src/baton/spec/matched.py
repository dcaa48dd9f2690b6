"""The set of versions that were run together, and that every rule was read from."""

from __future__ import annotations

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping

MATCHED = {
    "vllm": "0.29.0",
    "ray": "2.60.0",
    "nixl": "1.3.2",
    "torch": "2.13.0",
    "transformers": "5.24.0",
}


def differs(found: str, wanted: str) -> bool:
    """Whether a version is another one.

    A local build tag (`2.13.0+cu130`) is compared only where the wanted version has one.
    """
    return found != wanted and found.partition("+")[0] != wanted


def misfits(
    versions: Mapping[str, str], wanted: Mapping[str, str] = MATCHED
) -> Iterator[tuple[str, str | None, str]]:
    """What is another version than wanted, or missing: its name, what was found, what is wanted.

    Args:
        versions: Of the distributions that are installed, by name; a CPU build counts as well.
        wanted: Names and versions.
    """
    for name, version in wanted.items():
        found = versions.get(name) or versions.get(f"{name}-cpu")
        if found is None or differs(found, version):
            yield name, found, version
