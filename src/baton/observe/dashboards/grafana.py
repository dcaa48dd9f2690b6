"""Dashboards as Grafana imports them: JSON, with the data source asked for at import."""

from __future__ import annotations

import json
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from baton.observe.dashboards.panels import Board, Panel, Query

# Of Grafana 11 and later; newer ones migrate it when they load it.
SCHEMA_VERSION = 39
_SOURCE = {"type": "prometheus", "uid": "${DS_PROMETHEUS}"}
_WIDTH, _HEIGHT, _COLUMNS = 8, 8, 3


def dashboard(board: Board) -> dict[str, Any]:
    """One board."""
    panels: list[dict[str, Any]] = []
    y = 0
    for title, row in board.rows:
        panels.append(
            {
                "id": len(panels) + 1, "type": "row", "title": title, "collapsed": False,
                "gridPos": {"h": 1, "w": _WIDTH * _COLUMNS, "x": 0, "y": y}, "panels": [],
            }
        )  # fmt: skip
        y += 1
        for number, panel in enumerate(row):
            x = number % _COLUMNS * _WIDTH
            place = {"h": _HEIGHT, "w": _WIDTH, "x": x, "y": y + number // _COLUMNS * _HEIGHT}
            panels.append({"id": len(panels) + 1, "gridPos": place, **_chart(panel)})
        y += -(-len(row) // _COLUMNS) * _HEIGHT
    return {
        "__inputs": [
            {
                "name": "DS_PROMETHEUS", "label": "Prometheus", "type": "datasource",
                "pluginId": "prometheus", "pluginName": "Prometheus",
            }
        ],
        "uid": board.uid,
        "title": board.title,
        "tags": ["baton"],
        "schemaVersion": SCHEMA_VERSION,
        "version": 1,
        "editable": True,
        "graphTooltip": 1,
        "refresh": "10s",
        "time": {"from": "now-1h", "to": "now"},
        "timezone": "browser",
        "templating": {"list": []},
        "annotations": {"list": []},
        "links": [],
        "panels": panels,
    }  # fmt: skip


def _chart(panel: Panel) -> dict[str, Any]:
    return {
        "type": "timeseries",
        "title": panel.title,
        "description": panel.text,
        "datasource": _SOURCE,
        "fieldConfig": {
            "defaults": {"unit": panel.unit, "min": 0, "custom": {"fillOpacity": 10}},
            "overrides": [],
        },
        "options": {
            "legend": {"displayMode": "list", "placement": "bottom", "showLegend": True},
            "tooltip": {"mode": "multi", "sort": "desc"},
        },
        "targets": [_target(query, number) for number, query in enumerate(panel.queries)],
    }


def _target(query: Query, number: int) -> dict[str, Any]:
    return {
        "refId": chr(ord("A") + number),
        "datasource": _SOURCE,
        "expr": query.expression,
        "legendFormat": query.legend,
        "editorMode": "code",
        "range": True,
    }


def text_of(board: Board) -> str:
    """The file."""
    return json.dumps(dashboard(board), indent=1) + "\n"
