"""The YAML that the demo runs: examples/01-laptop-1p1d/app.yaml, carried in the package.

A test holds the two equal. Only the model's folder is put in, which the cache decides.
"""

from __future__ import annotations

import json
from pathlib import Path

EXAMPLE_FOLDER = "~/.cache/baton/models/gemma-3-270m"
MODEL_ID = "gemma-3-270m"
NAME = "demo"
"""The application's name in the file."""


def demo_file(model_folder: Path) -> str:
    """The demo's Serve config, with this model folder in both roles."""
    text = Path(__file__).with_name("app.yaml").read_text(encoding="utf-8")
    # A JSON string is a YAML string, whatever the path holds.
    return text.replace(EXAMPLE_FOLDER, json.dumps(str(model_folder), ensure_ascii=False))
