"""A verification as text for people and as data for machines."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from collections.abc import Iterator

    from baton.verify.evidence import Numbers, Verdict
    from baton.verify.run import Verification

_MARKS = {"fail": "✗", "unknown": "?", "note": "·", "good": "✓"}


def as_text(found: Verification) -> str:
    """Verdict, numbers and reasons of each pair; readable without colour."""
    lines = []
    for verdict in found.verdicts:
        lines += [*_lines(verdict), ""]
    if found.left_out:
        lines.append(f"{found.left_out} further pairs were not measured (--pairs measures more)")
    return "\n".join(lines).rstrip()


def _lines(verdict: Verdict) -> Iterator[str]:
    where = f"{verdict.prefill} → {verdict.decode}"
    unproven = " (unproven: this evidence is of no run)" if verdict.unproven else ""
    yield f"{verdict.outcome}  {where}{unproven}"
    backends = "+".join(verdict.observed_backends) or "?"
    wanted = "" if verdict.required == "any" else f", required {verdict.required}"
    yield f"    backend {backends}, fabric {verdict.observed_fabric or 'not known'}{wanted}"
    numbers = ", ".join(_numbers(verdict.numbers))
    if numbers:
        yield f"    {numbers}"
    for reason in verdict.reasons:
        yield f"  {_MARKS[reason.weight]} {reason.fact}"
        if reason.evidence:
            yield f"      {reason.evidence}"
        if reason.cure and reason.weight != "good":
            yield f"      hint: {reason.cure}"


def _numbers(numbers: Numbers) -> Iterator[str]:
    if numbers.fixed_s is not None:
        yield f"fixed {numbers.fixed_s * 1000:.1f} ms"
    speeds = {
        "handoff": numbers.gb_per_s,
        "handoff at least": None if numbers.gb_per_s is not None else numbers.least_gb_per_s,
        "raw NIXL": numbers.raw_gb_per_s,
        "prefill makes": numbers.needed_gb_per_s,
    }
    for name, speed in speeds.items():
        if speed is not None:
            yield f"{name} {speed:.3g} GB/s"


def as_data(found: Verification, *, with_evidence: bool = True) -> dict[str, Any]:
    """JSON-ready: what was judged beside each judgement, so that it can be judged again."""
    return {
        "endpoint": found.endpoint,
        "exit_status": found.exit_status,
        "left_out": found.left_out,
        "pairs": [
            {
                **verdict.model_dump(mode="json"),
                **({"based_on": evidence.model_dump(mode="json")} if with_evidence else {}),
            }
            for verdict, evidence in zip(found.verdicts, found.evidence, strict=True)
        ],
    }
