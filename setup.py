"""Sees to it that a wheel has the console inside; everything else is in pyproject.toml.

The console's bundle is made by npm from `console/` and is not committed. A wheel without it would
look whole and serve an error at `/console`, so none is built by accident: the bundle is made when
it is missing, and where that cannot be done the build stops and says so. BATON_WITHOUT_CONSOLE=1
builds one without. An editable install needs no Node.js: `make console` can follow at any time.
"""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

from setuptools import setup
from setuptools.command.build_py import build_py

ROOT = Path(__file__).resolve().parent
BUNDLE = ROOT / "src" / "baton" / "observe" / "console" / "static"


class BuildWithConsole(build_py):
    """`build_py`, behind a look at the bundle."""

    def run(self) -> None:
        """Build."""
        if not self.editable_mode and not os.environ.get("BATON_WITHOUT_CONSOLE"):
            _see_to_the_bundle()
        super().run()


def _see_to_the_bundle() -> None:
    script = ROOT / "tools" / "build_console.py"
    if script.is_file():
        made = subprocess.run([sys.executable, str(script)], check=False).returncode == 0
    else:  # an image's build context: only what the package consists of
        made = (BUNDLE / "console.js").is_file()
    if not made:
        message = (
            f"the console's bundle is not at {BUNDLE}.\n\nhint: run `make console` where npm is,"
            " before this; or set BATON_WITHOUT_CONSOLE=1 for a Baton without it"
        )
        raise SystemExit(f"error: {message}")


setup(cmdclass={"build_py": BuildWithConsole})
