"""Finds the console's bundle: a page, a script, a style sheet, an icon, the licences of others.

Its sources are in `console/` of the repository. `make console` puts the bundle into `static/` here.
It holds code that is not ours, so it is made and never committed; a wheel has it inside.
"""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, NamedTuple

from baton.errors import ConsoleNotBuilt

if TYPE_CHECKING:
    from collections.abc import Mapping

STATIC = Path(__file__).parent / "static"
PAGE = "index.html"
FILES: Mapping[str, bytes] = {
    PAGE: b"text/html; charset=utf-8",
    "console.js": b"text/javascript; charset=utf-8",
    "console.css": b"text/css; charset=utf-8",
    "icon.svg": b"image/svg+xml",
    "licences.txt": b"text/plain; charset=utf-8",
}
"""What a bundle consists of. Nothing else is ever served from the folder."""


class File(NamedTuple):
    """One of them."""

    content_type: bytes
    body: bytes


def read_bundle(folder: Path = STATIC) -> Mapping[str, File]:
    """All files of the bundle, by name.

    Raises:
        ConsoleNotBuilt: One of them is not there.
    """
    found = {}
    for name, content_type in FILES.items():
        try:
            found[name] = File(content_type, (folder / name).read_bytes())
        except OSError as exc:
            raise ConsoleNotBuilt(
                f"The console is switched on, and {name} of it is not at {folder}.",
                place=str(folder),
                cure="run `make console` in Baton's repository (it needs Node.js 18 and npm), or"
                " install a wheel, which has it inside",
            ) from exc
    return found
