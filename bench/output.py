"""Where a bench's figures go, and what they were measured with."""

from __future__ import annotations

import json
import platform
import subprocess
from importlib import metadata
from pathlib import Path
from statistics import median
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from collections.abc import Iterable


def write(figures: dict[str, Any], path: Path | None) -> None:
    """Print the figures as JSON, and keep them in `path`."""
    text = json.dumps(figures, indent=2)
    print(text)
    if path is not None:
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(text + "\n", encoding="utf-8")


def spread(values: Iterable[float], digits: int = 3) -> dict[str, float]:
    """The median, and what it lies between. Raises ValueError for no values."""
    found = list(values)
    return {
        "median": round(median(found), digits),
        "lowest": round(min(found), digits),
        "highest": round(max(found), digits),
    }


def versions(packages: Iterable[str], router: str | None) -> dict[str, str]:
    """What was measured with what; vllm-router's, where it is there, from its own environment."""
    found = {"python": platform.python_version(), **{n: metadata.version(n) for n in packages}}
    if router is not None:
        python = Path(router).with_name("python")
        code = "import importlib.metadata as m; print(m.version('vllm-router'))"
        done = subprocess.run([python, "-c", code], capture_output=True, text=True, check=True)
        found["vllm_router"] = done.stdout.strip()
    return found
