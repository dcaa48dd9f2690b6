"""A headless Chromium in front of the console, and what it heard of the page."""

from __future__ import annotations

import contextlib
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Any
from urllib.parse import urlsplit

import pytest
from tools.build_console import is_built
from tools.test_programs import find

if TYPE_CHECKING:
    from collections.abc import Iterator

ROOT = Path(__file__).resolve().parent.parent.parent
AXE = ROOT / "console" / "node_modules" / "axe-core" / "axe.min.js"
PATIENCE_MS = 45_000
FLAGS = ["--no-sandbox", "--disable-gpu", "--disable-background-networking"]


@contextlib.contextmanager
def chromium() -> Iterator[Any]:
    """A browser; the test is skipped, with the reason, where there can be none."""
    program = find("chromium")
    if program is None:
        pytest.skip("no Chromium here: `make test-programs` installs it, as root on Debian")
    if not is_built():
        pytest.skip("the console is not built: `make console` says what it needs")
    sync_api = pytest.importorskip("playwright.sync_api", reason="playwright is not installed")
    with sync_api.sync_playwright() as playwright:
        browser = playwright.chromium.launch(executable_path=program, args=FLAGS)
        try:
            yield browser
        finally:
            browser.close()


@dataclass
class Visit:
    """One page, and everything that it complained of or asked for."""

    page: Any
    url: str
    faults: list[str] = field(default_factory=list)
    asked: list[str] = field(default_factory=list)

    def listen(self) -> None:
        self.page.on("console", lambda said: said.type == "error" and self.faults.append(said.text))
        self.page.on("pageerror", lambda error: self.faults.append(str(error)))
        self.page.on("dialog", lambda dialog: self.faults.append(f"dialog: {dialog.message}"))
        self.page.on("request", lambda request: self.asked.append(request.url))

    @property
    def foreign(self) -> list[str]:
        """Addresses of another origin that were asked for."""
        own = urlsplit(self.url).netloc
        return [url for url in self.asked if urlsplit(url).netloc != own]

    def text(self) -> str:
        found: str = self.page.inner_text("body")
        return found

    def sees(self, words: str) -> None:
        """Wait until these words stand somewhere on the page."""
        self.page.get_by_text(words).first.wait_for(timeout=PATIENCE_MS)

    def violations(self) -> list[str]:
        """What axe-core finds serious or critical, with the first place of each."""
        self.page.evaluate(AXE.read_text(encoding="utf-8"))
        found = self.page.evaluate("axe.run(document, {resultTypes: ['violations']})")
        return [
            f"{one['id']}: {one['nodes'][0]['html'][:200]} {one['nodes'][0].get('failureSummary')}"
            for one in found["violations"]
            if one["impact"] in ("serious", "critical")
        ]


@contextlib.contextmanager
def visit(browser: Any, url: str, **context: Any) -> Iterator[Visit]:
    """Open the console in a context of its own."""
    options = {"viewport": {"width": 1440, "height": 1000}, **context}
    opened = browser.new_context(**options)
    opened.set_default_timeout(PATIENCE_MS)
    try:
        page = opened.new_page()
        seen = Visit(page, url)
        seen.listen()
        page.goto(f"{url}/console")
        yield seen
    finally:
        opened.close()
