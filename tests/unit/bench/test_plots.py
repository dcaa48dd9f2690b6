"""Plots and the page around them: what a reader sees is what was measured, with its unit."""

from __future__ import annotations

import re
from xml.etree import ElementTree as ET

import pytest

from baton.bench.page import page
from baton.bench.plots import COLOURS, Axis, Chart, Series, Target, by_percentile, number


@pytest.mark.parametrize(
    ("value", "text"),
    [
        (0.04231, "0.0423"), (4.2, "4.2"), (42.04, "42"), (149.98, "150"), (1820.4, "1,820"),
        (0, "0"), (0.979, "0.979"), (1e-7, "0.0000001"), (-12.34, "-12.3"),
        (1_000_000, "1,000,000"),
    ],
)  # fmt: skip
def test_numbers_have_three_digits_that_count_and_no_exponent(value: float, text: str) -> None:
    """`2.47e+03 ms` is nothing that anybody reads."""
    assert number(value) == text


def test_values_by_percentile_keep_their_tail() -> None:
    """The worst of ten thousand gaps is a point of its own, and there are few points."""
    values = [0.001] * 9_999 + [0.5]
    drawn = by_percentile("itl", values)
    assert drawn.points[-1] == (99.99, 500.0)
    assert drawn.points[0] == (0.0, 1.0)
    assert len(drawn.points) < 400
    assert [x for x, _ in drawn.points] == sorted({x for x, _ in drawn.points})
    assert by_percentile("none", []).points == []


def test_a_percentile_axis_gives_the_tail_as_much_room() -> None:
    """From 90 to 99 as from 99 to 99.9."""
    axis = Axis("percentile", "percentile", 0.0, 99.9)
    shares = [axis.share(value) for value in (0, 90, 99, 99.9)]
    assert shares == pytest.approx([0, 1 / 3, 2 / 3, 1])
    assert [text for _, text in axis.ticks()] == ["0", "p50", "p90", "p99", "p99.9"]


def _chart(*series: Series, **more: object) -> str:
    return Chart("T", "load, requests/s", "TTFT, ms", series, **more).svg()  # type: ignore[arg-type]


def test_both_axes_say_what_is_measured_and_in_which_unit() -> None:
    """And each line has its name in the legend, as text."""
    svg = _chart(Series("one", [(0, 1), (1, 2)]), Series("two <b>", [(0, 3)]))
    for words in ("load, requests/s", "TTFT, ms", "one", "two &lt;b&gt;"):
        assert words in svg
    ET.fromstring(svg)
    assert len(re.findall(r'<line class="c\d"', svg)) == 2


def test_nothing_leaves_the_picture() -> None:
    """Values that a log axis has no place for, targets above all values, many long names."""
    series = [Series(f"a name of line {at}", [(1, 0.0), (2, 10.0 ** (at - 3))]) for at in range(8)]
    svg = _chart(*series, up_scale="log", targets=[Target("target 9,000 ms", 9000)])
    root = ET.fromstring(svg)
    _, _, width, height = map(float, root.attrib["viewBox"].split())
    for element in root.iter():
        for key, limit in (("x", width), ("x1", width), ("y", height), ("y1", height)):
            assert 0 <= float(element.attrib.get(key, 0)) <= limit
        for point in element.attrib.get("points", "0,0").split():
            x, y = map(float, point.split(","))
            assert 0 <= x <= width
            assert 0 <= y <= height


def test_one_point_and_no_point_can_be_drawn() -> None:
    """A run of one request; a side without tokens."""
    assert "circle" in _chart(Series("one", [(3, 3)], dots=True), up_scale="log")
    assert _chart(Series("none", [])) == ""
    assert _chart() == ""


def test_the_page_has_a_colour_for_each_line_in_light_and_in_dark() -> None:
    """No line is drawn in the page's own colour."""
    told = page("T", "Lead.", [], [], [_chart(Series("one", [(0, 1), (1, 2)]))])
    for at in range(COLOURS):
        assert len(re.findall(rf"--c{at}:#", told)) == 2
        assert f"svg .c{at}" in told
    assert "prefers-color-scheme:dark" in told
    assert told.index("<svg") > told.index("Lead.")


def test_what_stands_in_a_cell_is_text() -> None:
    """Also what looks like a figure with its rounds, or like a verdict."""
    table = (("a", "b"), [("<i>x</i>", "12 (<b>1</b>, 2)"), ("y", "disaggregated")])
    told = page("<T>", "<L>", [("<N>", table)], ["<note>"], [])
    assert not re.search(r"<(i|b|T|L|N|note)>", told)
    assert '<td class="won">disaggregated</td>' in told
