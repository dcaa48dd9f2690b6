"""The files of both examples, byte by byte, as they were reviewed.

`BATON_WRITE_SNAPSHOTS=1 pytest tests/unit/deploy/eks/test_snapshots.py` writes them anew; the
difference is then part of the change that is reviewed.
"""

from __future__ import annotations

import os
from pathlib import Path

import pytest

from baton.deploy.eks.folder import LIST, write_folder
from tests.unit.deploy.eks.rendered import G6, P5, files

SNAPSHOTS = Path(__file__).parent / "snapshots"


@pytest.mark.parametrize("name", [G6, P5])
def test_the_files_are_the_reviewed_ones(name: str) -> None:
    """Whatever moves a line of what is deployed shows in its diff."""
    folder = SNAPSHOTS / name
    if os.environ.get("BATON_WRITE_SNAPSHOTS") == "1":
        write_folder(folder, files(name), force=True)
        (folder / LIST).unlink()
    there = {
        str(path.relative_to(folder)): path.read_text(encoding="utf-8")
        for path in folder.rglob("*")
        if path.is_file()
    }
    assert set(there) == set(files(name))
    for path, text in files(name).items():
        assert there[path] == text, path
