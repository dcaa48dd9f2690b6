"""All files that `baton dashboards` writes, by name."""

from __future__ import annotations

from typing import TYPE_CHECKING

from baton.observe.dashboards import grafana, prometheus
from baton.observe.dashboards.panels import BOARDS

if TYPE_CHECKING:
    from collections.abc import Mapping


def files() -> Mapping[str, str]:
    """Name and text."""
    boards = {f"{board.uid}.json": grafana.text_of(board) for board in BOARDS}
    return {
        **boards,
        "baton-rules.yaml": prometheus.rules(),
        "baton-scrape.yaml": prometheus.scrape_config(),
    }
