"""Writing the files, never over somebody else's work."""

from __future__ import annotations

import json
from typing import TYPE_CHECKING

import pytest

from baton.deploy.eks.folder import LIST, write_folder
from baton.errors import FilesInTheWay

if TYPE_CHECKING:
    from pathlib import Path

FILES = {"k8s/a.yaml": "a: 1\n", "README.md": "hello\n"}


def text(path: Path) -> str:
    return path.read_text(encoding="utf-8")


def test_the_second_time_nothing_is_written(tmp_path: Path) -> None:
    """The same texts are there already."""
    assert set(write_folder(tmp_path / "new", FILES).written) == set(FILES)
    again = write_folder(tmp_path / "new", FILES)
    assert (again.written, set(again.unchanged)) == ((), set(FILES))


def test_own_files_are_replaced_when_the_input_changed(tmp_path: Path) -> None:
    """They are as they were written, so nothing is lost."""
    write_folder(tmp_path, FILES)
    done = write_folder(tmp_path, {**FILES, "k8s/a.yaml": "a: 2\n"})
    assert done.written == ("k8s/a.yaml",)
    assert text(tmp_path / "k8s/a.yaml") == "a: 2\n"


def test_an_edited_file_is_in_the_way(tmp_path: Path) -> None:
    """And nothing at all is written then; `--force` overwrites it."""
    write_folder(tmp_path, FILES)
    (tmp_path / "k8s/a.yaml").write_text("a: mine\n", encoding="utf-8")
    other = {"k8s/a.yaml": "a: 2\n", "README.md": "other\n"}
    with pytest.raises(FilesInTheWay, match=r"edited since \(k8s/a\.yaml\)|k8s/a\.yaml") as refusal:
        write_folder(tmp_path, other)
    assert "--force" in (refusal.value.cure or "")
    assert text(tmp_path / "README.md") == "hello\n"
    write_folder(tmp_path, other, force=True)
    assert text(tmp_path / "k8s/a.yaml") == "a: 2\n"


def test_a_file_of_somebody_elses_is_in_the_way(tmp_path: Path) -> None:
    """A folder with a README of its own."""
    (tmp_path / "README.md").write_text("my notes\n", encoding="utf-8")
    with pytest.raises(FilesInTheWay, match="did not make"):
        write_folder(tmp_path, FILES)
    assert not (tmp_path / "k8s").exists()


def test_a_link_or_a_folder_in_a_files_place_is_in_the_way(tmp_path: Path) -> None:
    """Writing through a link would change a file outside."""
    outside = tmp_path / "outside"
    outside.write_text("a: 1\n", encoding="utf-8")
    folder = tmp_path / "out"
    folder.mkdir()
    (folder / "README.md").symlink_to(outside)
    with pytest.raises(FilesInTheWay):
        write_folder(folder, FILES)
    assert text(outside) == "a: 1\n"


def test_what_is_no_longer_made_is_removed_unless_it_was_edited(tmp_path: Path) -> None:
    """An ingress.yaml of last week would be applied with the rest."""
    more = {**FILES, "k8s/old.yaml": "x\n", "k8s/edited.yaml": "y\n"}
    write_folder(tmp_path, more)
    (tmp_path / "k8s/edited.yaml").write_text("mine\n", encoding="utf-8")
    done = write_folder(tmp_path, FILES)
    assert (done.removed, done.kept) == (("k8s/old.yaml",), ("k8s/edited.yaml",))
    assert not (tmp_path / "k8s/old.yaml").exists()
    assert text(tmp_path / "k8s/edited.yaml") == "mine\n"


def test_a_list_that_points_outside_removes_nothing_there(tmp_path: Path) -> None:
    """The list is a file that anybody could have written."""
    outside = tmp_path / "outside.txt"
    outside.write_text("x\n", encoding="utf-8")
    folder = tmp_path / "out"
    write_folder(folder, FILES)
    listed = json.loads(text(folder / LIST))
    import hashlib

    listed["files"]["../outside.txt"] = hashlib.sha256(b"x\n").hexdigest()
    (folder / LIST).write_text(json.dumps(listed), encoding="utf-8")
    write_folder(folder, FILES)
    assert outside.exists()


def test_a_folder_that_cannot_be_made_is_refused(tmp_path: Path) -> None:
    """A file stands in its place."""
    (tmp_path / "file").write_text("x", encoding="utf-8")
    with pytest.raises(FilesInTheWay):
        write_folder(tmp_path / "file" / "below", FILES)
