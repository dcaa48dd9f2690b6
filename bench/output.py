"""Where a bench's figures go: standard output, and a file when one was named."""

from __future__ import annotations

import json
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from pathlib import Path


def write(figures: dict[str, Any], path: Path | None) -> None:
    """Print the figures as JSON, and keep them in `path`."""
    text = json.dumps(figures, indent=2)
    print(text)
    if path is not None:
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(text + "\n", encoding="utf-8")
