"""Which copies of a library are a danger, and which are only there. Pure."""

from __future__ import annotations

from typing import TYPE_CHECKING

from baton.deploy.image.findings import Finding, fail, passed, warn

if TYPE_CHECKING:
    from collections.abc import Iterator

    from baton.deploy.image.facts import Copy, ImageFacts

# The library that each name stands for: UCX is three that must be of one build.
_NAMES = {
    "libfabric": "libfabric", "libnccl": "NCCL", "libucp": "UCX", "libucs": "UCX", "libuct": "UCX"
}  # fmt: skip


def judge_copies(facts: ImageFacts) -> Iterator[Finding]:
    """One finding for each family that has copies, and one where libfabric lacks."""
    families: dict[str, list[Copy]] = {}
    for copy in facts.copies:
        families.setdefault(copy.family, []).append(copy)
    for family, copies in sorted(families.items()):
        yield _family(family, copies)
    on_path = [c for c in families.get("libfabric", ()) if c.on_path is not None]
    if facts.kind == "gpu" and not on_path:
        yield fail(
            "the loader finds no libfabric: NIXL's LIBFABRIC backend cannot be made",
            "LD_LIBRARY_PATH", "install the EFA installer's and put /opt/amazon/efa/lib on it",
        )  # fmt: skip
    if not families:
        yield passed("no copy of any of them")


def _family(family: str, copies: list[Copy]) -> Finding:
    name = f"{_NAMES[family]} ({family})"
    plain = [copy for copy in copies if not copy.mangled]
    found = sorted((c for c in plain if c.on_path is not None), key=lambda copy: copy.order)
    private = [copy for copy in plain if copy.on_path is None]
    if len({copy.digest for copy in found}) > 1:
        first, *others = found
        return fail(
            f"{name} is on the loader's path {len(found)} times, and {first.path} is loaded",
            ", ".join(copy.path for copy in others),
            "uninstall the others, or take their folders off LD_LIBRARY_PATH",
        )
    if found:
        first = found[0]
        other = [copy for copy in private if copy.digest != first.digest]
        if other:
            places = ", ".join(copy.path for copy in other)
            if first.on_path == "LD_LIBRARY_PATH":
                # ld.so(8): LD_LIBRARY_PATH comes before a wheel's own RUNPATH.
                return fail(
                    f"{name}: {first.path} is loaded in the place of a wheel's own", places,
                    "take its folder off LD_LIBRARY_PATH",
                )  # fmt: skip
            return warn(
                f"{name}: {first.path} for the system, another one inside a wheel", places,
                "right while the wheel finds its own by RUNPATH; one of them is better",
            )  # fmt: skip
        return passed(f"{name}: {first.path}")
    if len({copy.digest for copy in private}) > 1:
        return warn(
            f"{name}: {len(private)} plain copies that the loader does not find by itself",
            ", ".join(copy.path for copy in private), "keep one",
        )  # fmt: skip
    mangled = len(copies) - len(plain)
    inside = f"{mangled} inside a wheel under a mangled name" if mangled else private[0].path
    return passed(f"{name}: {inside}, found by nobody else")
