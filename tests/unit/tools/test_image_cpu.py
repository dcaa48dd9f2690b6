"""Where pip looks while an image is built, and that none of it needs to be in the image."""

from __future__ import annotations

from tools.image_cpu import HOST_PIP, inside, parsed


def test_the_environment_wins_over_files_and_other_settings_are_left_out():
    """As in pip; `disable-pip-version-check` says nothing of where packages come from."""
    listing = (
        ":env:.index-url='https://a.example/simple'\n"
        ":env:.disable-pip-version-check='1'\n"
        "global.extra-index-url='https://b.example/simple https://c.example/simple'\n"
        "global.index-url='https://d.example/simple'\n"
    )
    assert parsed(listing) == {
        "index-url": ["https://a.example/simple"],
        "extra-index-url": ["https://b.example/simple", "https://c.example/simple"],
    }


def test_folders_of_this_machine_are_mounted_and_named_by_where_they_are_mounted(tmp_path):
    """An index of relative links with the folder above it; URLs stay as they are."""
    wheels, simple = tmp_path / "wheels", tmp_path / "index" / "simple"
    wheels.mkdir()
    simple.mkdir(parents=True)
    text, mounts = inside(
        {
            "find-links": [str(wheels)],
            "extra-index-url": [f"file://{simple}", "https://b.example/simple"],
        }
    )
    assert mounts == {wheels: f"{HOST_PIP}/0", simple.parent: f"{HOST_PIP}/1"}
    assert str(tmp_path) not in text
    assert f"find-links = {HOST_PIP}/0\n" in text
    assert f"extra-index-url = file://{HOST_PIP}/1/simple\n    https://b.example/simple" in text
