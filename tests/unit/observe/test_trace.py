"""Whose trace a request belongs to, by the W3C's rules."""

from __future__ import annotations

import pytest

from baton.observe.trace import begin

CALLER = "00-0af7651916cd43dd8448eb211c80319c-b7ad6b7169203331-01"


def test_a_callers_trace_goes_on():
    """Same trace, his span as parent, his state passed on."""
    trace = begin(CALLER, "congo=t61", sample=0.0)
    headers = trace.begin_leg("prefill", "p0", 1.0)
    assert f"{trace.trace_id:032x}" == CALLER[3:35]
    assert f"{trace.parent_id:016x}" == CALLER[36:52]
    assert headers == {
        "traceparent": f"00-{CALLER[3:35]}-{trace.legs[0].span_id:016x}-01",
        "tracestate": "congo=t61",
    }


def test_each_leg_has_a_span_of_its_own():
    """An engine's spans must not end up below another leg."""
    trace = begin(None, None, sample=1.0)
    spans = {trace.begin_leg("decode", f"d{n}", 1.0)["traceparent"] for n in range(3)}
    assert len(spans) == 3


def test_a_caller_who_does_not_sample_is_not_traced():
    """It is his decision, whatever the share."""
    assert begin(CALLER[:-2] + "00", None, sample=1.0) is None


@pytest.mark.parametrize(
    "header",
    [
        "", "00", CALLER[:-1], CALLER + "-x", "ff" + CALLER[2:], CALLER.upper(),
        "00-" + "0" * 32 + CALLER[35:], CALLER[:36] + "0" * 16 + "-01", "x" * 5000,
    ],
)  # fmt: skip
def test_a_header_that_is_none_begins_a_new_trace(header):
    """As if it had not been sent."""
    trace = begin(header, "a=b", sample=1.0)
    assert trace.parent_id is None
    assert trace.state is None
    assert begin(header, None, sample=0.0) is None


def test_a_later_version_may_say_more():
    """Its first four fields are the same."""
    assert begin("01" + CALLER[2:] + "-more", None, sample=0.0).parent_id is not None
