"""Pages of many processes become one that Prometheus can read."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st
from prometheus_client.parser import text_string_to_metric_families

from baton.observe import exposition
from baton.observe.exposition import Page

PAGE = """\
# HELP vllm:x What it is.
# TYPE vllm:x histogram
vllm:x_bucket{engine="0",le="0.1"} 1.0
vllm:x_bucket{engine="0",le="+Inf"} 2.0
vllm:x_count{engine="0"} 2.0
vllm:x_sum{engine="0"} 3.5
# TYPE y counter
y_total 4
"""


def test_families_of_two_processes_stand_together_once():
    """One TYPE each, samples of both below it."""
    page = Page()
    for name in ("a", "b"):
        assert page.add(PAGE, {"role": "prefill", "engine": name}) == 0
    text = page.text()
    assert text.count("# TYPE vllm:x histogram") == 1
    assert text.count("# HELP vllm:x What it is.") == 1
    found = {f.name: f for f in text_string_to_metric_families(text)}
    assert len(found["vllm:x"].samples) == 8
    assert {s.labels["engine"] for s in found["vllm:x"].samples} == {"a", "b"}


def test_an_own_label_of_that_name_is_kept_as_exported():
    """vLLM has `engine` for its cores: two of a name would be no page at all."""
    page = Page()
    page.add('v{engine="0",a="engine=\\"1\\""} 1', {"engine": "e1"})
    assert page.text().endswith('v{engine="e1",exported_engine="0",a="engine=\\"1\\""} 1\n')


@pytest.mark.parametrize(
    "line",
    ["v{", 'v{a="b} 1', "v 1 2 3", "1v 1", "v{a=b} 1", "<html>", "v", 'v{a="b"}1', "v one"],
)
def test_what_is_no_sample_is_left_out_and_counted(line):
    """The rest of the page holds."""
    page = Page()
    assert page.add(f"{line}\nok 1\n", {"engine": "e"}) == 1
    assert page.text() == '# TYPE ok untyped\nok{engine="e"} 1\n'


def test_timestamps_go_and_values_stay():
    """Prometheus takes the time of its own scrape."""
    page = Page()
    page.add('v{a="b",} NaN 1395066363000\nw -1.5e+3\nx +Inf', {"engine": "e"})
    assert [s.split(" ")[-1] for s in page.text().splitlines() if s[0] != "#"] == [
        "NaN", "-1.5e+3", "+Inf",
    ]  # fmt: skip


def test_a_process_that_writes_without_end_is_cut_off(monkeypatch):
    """It costs its own samples."""
    monkeypatch.setattr(exposition, "MAX_SAMPLES", 3)
    page = Page()
    assert page.add("v 1\n" * 5, {"engine": "e"}) == 2


def test_labels_are_escaped():
    """A replica's name comes from outside."""
    page = Page()
    page.add("v 1", {"engine": 'a"b\\c\nd'})
    (family,) = text_string_to_metric_families(page.text())
    assert family.samples[0].labels == {"engine": 'a"b\\c\nd'}


@given(st.text(alphabet='v{}="\\ab,1 #\nTYPEHL:_.e+-', max_size=80))
def test_any_text_gives_a_page_that_can_be_read(text):
    """Or none."""
    page = Page()
    page.add(text, {"role": "r", "engine": "e"})
    list(text_string_to_metric_families(page.text()))
