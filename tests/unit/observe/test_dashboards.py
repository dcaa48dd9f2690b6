"""Dashboards and rules ask for metrics and labels that are really there.

The parser is GreptimeTeam's promql-parser, which follows Prometheus' own grammar. What is there is
read from a gateway that has served requests on simulated engines, whose names and labels are held
to vLLM's by contract tests.
"""

from __future__ import annotations

import json
import re

import aiohttp
import promql_parser
import pytest
from click.testing import CliRunner
from prometheus_client.parser import text_string_to_metric_families
from ruamel.yaml import YAML

from baton.cli.app import cli
from baton.engine.simulated import SimulatedEngine
from baton.gateway.directory import FixedDirectory
from baton.observe.dashboards.alerts import ALERTS
from baton.observe.dashboards.files import files
from baton.observe.dashboards.grafana import dashboard
from baton.observe.dashboards.panels import BOARDS
from baton.observe.state_definitions import ALL_METRICS
from baton.spec.schema import BatonBlock, Disaggregate, Slo
from tests.unit.gateway.fakes import LONG, serving

EXPRESSIONS = {
    **{alert.name: alert.expression for alert in ALERTS},
    **{
        f"{board.uid}/{panel.title}/{query.legend}": query.expression
        for board in BOARDS
        for _, row in board.rows
        for panel in row
        for query in panel.queries
    },
}


def parsed(expression: str):
    # Grafana puts a duration there before Prometheus sees it.
    return promql_parser.parse(expression.replace("$__rate_interval", "1m"))


def parts(expr):
    """An expression and everything in it."""
    yield expr
    below = [getattr(expr, name, None) for name in ("lhs", "rhs", "expr", "vector_selector")]
    for one in [*below, *(getattr(expr, "args", None) or [])]:
        if one is not None:
            yield from parts(one)


def grouped_by(expression: str) -> set[str]:
    """Labels that aggregations leave."""
    lists = re.findall(r"by \(([^)]*)\)", expression)
    return {label for one in lists for label in re.split(r",\s*", one)}


def selectors(expr):
    return [one for one in parts(expr) if isinstance(one, promql_parser.VectorSelector)]


async def pages() -> dict[str, set[str]]:
    """Series that are there after some requests, with their labels."""
    settings = BatonBlock(disaggregate=Disaggregate(mode="always"), slo=Slo(ttft_s=1.0, tpot_s=1.0))
    async with (
        SimulatedEngine(role="prefill", engine_id="p") as p,
        SimulatedEngine(role="decode", engine_id="d") as d,
        serving(FixedDirectory([p.url], [d.url], interval_s=30.0), settings) as (_, url),
        aiohttp.ClientSession() as session,
    ):
        for stream in (True, False):
            body = {"prompt": LONG, "stream": stream, "max_tokens": 4}
            await (await session.post(url + "/v1/completions", json=body)).read()
        await (await session.get(url + "/v1/unknown")).read()
        text = ""
        for path in ("/metrics", "/baton/engines/metrics"):
            text += (await (await session.get(url + path)).read()).decode()
    there: dict[str, set[str]] = {}
    for family in text_string_to_metric_families(text):
        for sample in family.samples:
            there.setdefault(sample.name, set()).update(sample.labels)
    # Of a metric with labels there is no sample before its first event; these are defined alike.
    for metric in ALL_METRICS:
        for name in metric.series:
            le = {"le"} if name.endswith("_bucket") else set()
            labels = set(metric.labels) | le
            assert there.get(name, labels) == labels, name
            there[name] = labels
    return there


@pytest.mark.parametrize("name", EXPRESSIONS)
def test_every_expression_is_promql(name):
    """And asks for something."""
    assert selectors(parsed(EXPRESSIONS[name]))


async def test_every_metric_and_label_that_is_asked_for_exists():
    """After a run: names, labels in braces, and labels that are grouped by."""
    there = await pages()
    for name, expression in EXPRESSIONS.items():
        known: set[str] = set()
        for selector in selectors(parsed(expression)):
            assert selector.name in there, (name, selector.name)
            asked = {matcher.name for matcher in selector.matchers.matchers}
            assert asked <= there[selector.name], (name, selector.name, asked)
            known |= there[selector.name]
        assert grouped_by(expression) <= known, name


def test_a_name_that_is_not_there_would_be_found():
    """The check can fail."""
    assert [s.name for s in selectors(parsed("sum(rate(nobody_total[5m])) > 1"))] == [
        "nobody_total"
    ]
    with pytest.raises(ValueError):  # noqa: PT011 - whatever the parser says
        parsed("sum by (rate(x[5m])")


def test_legends_name_labels_that_are_left():
    """`{{role}}` needs `role` behind `by`, or it is drawn empty."""
    for board in BOARDS:
        for _, row in board.rows:
            for query in (query for panel in row for query in panel.queries):
                labels = set(re.findall(r"\{\{(\w+)\}\}", query.legend))
                left = set(
                    re.split(r"[,\s]+", " ".join(re.findall(r"by \(([^)]*)\)", query.expression)))
                )
                assert labels <= left, query


def test_every_alert_has_a_runbook():
    """Fact, meaning and cure; names are unique."""
    assert len({alert.name for alert in ALERTS}) == len(ALERTS)
    for alert in ALERTS:
        assert re.fullmatch(r"Baton[A-Za-z]+", alert.name)
        said = (alert.summary, alert.fact, alert.meaning, alert.cure)
        assert all(text.endswith((".", "?")) for text in said), alert.name
        assert alert.held_s > 0


def test_rules_are_a_rule_file():
    """The keys that Prometheus knows, and only those."""
    document = YAML(typ="safe").load(files()["baton-rules.yaml"])
    (group,) = document["groups"]
    assert set(group) == {"name", "rules"}
    for rule, alert in zip(group["rules"], ALERTS, strict=True):
        assert set(rule) == {"alert", "expr", "for", "labels", "annotations"}
        assert rule["expr"] == alert.expression
        assert re.fullmatch(r"[0-9]+s", rule["for"])
        used = set(re.findall(r"\$labels\.(\w+)", rule["annotations"]["summary"]))
        assert used <= set(
            re.split(r"[,\s]+", " ".join(re.findall(r"by \(([^)]*)\)", rule["expr"])))
        )


def test_a_dashboard_is_what_grafana_imports():
    """Ids are unique, nothing overlaps, the data source is asked for."""
    for board in BOARDS:
        made = dashboard(board)
        assert made["__inputs"][0]["name"] == "DS_PROMETHEUS"
        assert len({panel["id"] for panel in made["panels"]}) == len(made["panels"])
        taken = set()
        for panel in made["panels"]:
            at = panel["gridPos"]
            cells = {
                (x, y)
                for x in range(at["x"], at["x"] + at["w"])
                for y in range(at["y"], at["y"] + at["h"])
            }
            assert not cells & taken
            assert max(x for x, _ in cells) < 24
            taken |= cells
            refs = [target["refId"] for target in panel.get("targets", ())]
            assert len(set(refs)) == len(refs)


def test_baton_dashboards_writes_the_files(tmp_path):
    """All of them, and says where."""
    done = CliRunner().invoke(cli, ["dashboards", "-o", str(tmp_path / "x")])
    assert done.exit_code == 0, done.output
    assert {path.name for path in (tmp_path / "x").iterdir()} == set(files())
    json.loads((tmp_path / "x" / "baton-overview.json").read_text())
