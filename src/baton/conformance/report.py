"""A run as data, as JUnit XML and as text."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any
from xml.etree import ElementTree as ET

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence

    from baton.conformance.compare import Difference
    from baton.conformance.run import Report

# XML 1.0 has no other control characters than these, and answers may hold any.
_ALLOWED = {"\t", "\n", "\r"}


def as_data(
    report: Report, against: Report | None = None, differences: Sequence[Difference] = ()
) -> dict[str, Any]:
    """`{"cases": [{"id", "status", "detail", …}]}`, and the other endpoint's, if there is one."""
    data: dict[str, Any] = {"url": report.url, "model": report.model, "cases": _cases(report)}
    if against is not None:
        data["against"] = {
            "url": against.url,
            "model": against.model,
            "cases": _cases(against),
        }
        data["differences"] = [
            {"id": d.id, "first": d.first, "second": d.second, "why": d.why or None}
            for d in differences
        ]
    return data


def _cases(report: Report) -> list[dict[str, Any]]:
    return [
        {
            "id": outcome.case.id,
            "status": outcome.status,
            "detail": outcome.detail,
            "says": outcome.case.says,
            "source": outcome.case.source,
            "seen": outcome.seen,
            "notes": outcome.notes,
            "took_s": round(outcome.took_s, 3),
        }
        for outcome in report.outcomes
    ]


def as_junit(report: Report, differences: Sequence[Difference] = ()) -> str:
    """JUnit's XML: what is not offered counts as skipped, an unexplained difference as failed."""
    unexplained = {d.id: d for d in differences if not d.explained}
    failed = [o for o in report.outcomes if o.status == "fail" or o.case.id in unexplained]
    skipped = [o for o in report.outcomes if o.status == "not offered" and o not in failed]
    suite = ET.Element(
        "testsuite",
        name=f"baton conformance {report.url}",
        tests=str(len(report.outcomes)),
        failures=str(len(failed)),
        errors="0",
        skipped=str(len(skipped)),
        time=f"{sum(outcome.took_s for outcome in report.outcomes):.3f}",
    )
    for outcome in report.outcomes:
        area = outcome.case.id.partition(".")[0]
        entry = ET.SubElement(
            suite,
            "testcase",
            classname=f"conformance.{area}",
            name=outcome.case.id,
            time=f"{outcome.took_s:.3f}",
        )
        why = f"{outcome.case.says} [{outcome.case.source}]"
        if outcome.status == "fail":
            ET.SubElement(entry, "failure", message=_clean(outcome.detail)).text = why
        elif (difference := unexplained.get(outcome.case.id)) is not None:
            words = f"differs: {difference.first} / {difference.second}"
            ET.SubElement(entry, "failure", message=_clean(words)).text = why
        elif outcome.status == "not offered":
            ET.SubElement(entry, "skipped", message=_clean(outcome.detail))
    return '<?xml version="1.0" encoding="utf-8"?>\n' + ET.tostring(suite, encoding="unicode")


def _clean(text: str) -> str:
    return "".join(
        c if c in _ALLOWED or " " <= c < "\ud800" or "\ue000" <= c < "\ufffe" or c > "\uffff"
        else "\N{REPLACEMENT CHARACTER}"
        for c in text
    )  # fmt: skip


def lines(report: Report) -> Iterator[str]:
    """The table for a person."""
    width = max((len(outcome.case.id) for outcome in report.outcomes), default=0)
    for outcome in report.outcomes:
        told = outcome.detail if outcome.status != "pass" else outcome.case.says
        yield f"{outcome.status:<12} {outcome.case.id:<{width}}  {told}"


def summary(report: Report) -> str:
    """One line."""
    return (
        f"{report.count('pass')} pass, {report.count('fail')} fail, "
        f"{report.count('not offered')} not offered ({report.url}, model {report.model})"
    )
