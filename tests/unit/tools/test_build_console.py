"""When the console is built anew, what is said when it cannot be, and what is never committed."""

from __future__ import annotations

import json
import subprocess

import pytest
from tools import build_console
from tools.build_console import ROOT, BuildError, build, is_built, main


@pytest.fixture
def checkout(tmp_path, monkeypatch):
    """Sources and a bundle that fits them."""
    sources, bundle = tmp_path / "console", tmp_path / "static"
    (sources / "src").mkdir(parents=True)
    bundle.mkdir()
    for name in ("build.mjs", "package.json", "package-lock.json", "src/main.js"):
        (sources / name).write_text(name, encoding="utf-8")
    for name in build_console.FILES:
        (bundle / name).write_text(name, encoding="utf-8")
    monkeypatch.setattr(build_console, "SOURCES", sources)
    monkeypatch.setattr(build_console, "BUNDLE", bundle)
    monkeypatch.setattr(build_console, "STAMP", sources / ".built")
    (sources / ".built").write_text(build_console.fingerprint(), encoding="utf-8")
    return tmp_path


def test_a_bundle_fits_until_a_source_or_a_file_of_it_changes(checkout):
    """Then it is made anew."""
    assert is_built()
    assert main([]) == 0
    (checkout / "console/src/main.js").write_text("other", encoding="utf-8")
    assert not is_built()
    (checkout / "console/.built").write_text(build_console.fingerprint(), encoding="utf-8")
    assert is_built()
    (checkout / "static/console.js").unlink()
    assert not is_built()


def test_without_npm_it_says_what_to_install(checkout, monkeypatch, capsys):
    """An error for `make console`; a remark for `make test`, which goes on without."""
    (checkout / "static/console.js").unlink()
    monkeypatch.setenv("PATH", str(checkout))
    with pytest.raises(BuildError, match="npm and Node") as caught:
        build()
    assert "apt-get install nodejs npm" in caught.value.cure
    assert main([]) == 3
    assert main(["--if-possible"]) == 0
    assert "not built" in capsys.readouterr().err


def test_an_old_node_is_refused_by_its_version(checkout, monkeypatch):
    """esbuild would fail with words that nobody understands."""
    for name in ("npm", "node"):
        (checkout / name).write_text("#!/bin/sh\necho v16.20.0\n", encoding="utf-8")
        (checkout / name).chmod(0o755)
    monkeypatch.setenv("PATH", f"{checkout}:/bin")
    with pytest.raises(BuildError, match=r"v16\.20\.0"):
        build()


def test_the_lock_file_has_a_hash_for_each_package_and_names_no_registry():
    """So that `npm ci` takes the same bytes from wherever npm looks on that machine."""
    text = (ROOT / "console/package-lock.json").read_text(encoding="utf-8")
    packages = {name: one for name, one in json.loads(text)["packages"].items() if name}
    assert {"node_modules/uplot", "node_modules/esbuild", "node_modules/axe-core"} <= set(packages)
    assert all(one["integrity"].startswith("sha512-") for one in packages.values())
    assert "resolved" not in text
    places = [line for line in text.splitlines() if "://" in line]
    assert all('"url": "https://' in line for line in places)  # whom a package asks for money


def test_what_is_fetched_or_made_from_it_is_not_committed():
    """Packages, the bundle, the stamp."""
    names = [
        "console/node_modules/x",
        "console/.built",
        "src/baton/observe/console/static/console.js",
    ]
    done = subprocess.run(
        ["git", "check-ignore", *names], cwd=ROOT, capture_output=True, text=True, check=False
    )
    if done.returncode == 128:
        pytest.skip("this is no git checkout")
    assert done.stdout.split() == names
