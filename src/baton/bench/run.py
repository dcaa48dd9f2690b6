"""One measurement: the load, what came of it, and whether it means anything."""

from __future__ import annotations

import uuid
from dataclasses import dataclass, field, replace
from typing import TYPE_CHECKING, Any

from baton.bench.figures import Figures, figures, spread
from baton.bench.prompts import job_of
from baton.bench.served import Served, counts_at, phases_at
from baton.errors import BenchFailed

if TYPE_CHECKING:
    from collections.abc import Sequence

    from baton.bench.generator import Generator, Sample
    from baton.bench.prompts import Endpoint
    from baton.bench.traffic import Planned
    from baton.spec.schema import Slo

MOST_FAILED = 0.5
"""Where more than half of the requests fail, latencies are those of the survivors: no figures."""


@dataclass(frozen=True)
class Measured:
    """A run.

    Args:
        figures: Of all requests.
        by_kind: Of each class, where the traffic has several.
        served: Which way they went.
        samples: As the generator told them.
        label: For the report.
    """

    figures: Figures
    served: Served
    samples: Sequence[Sample]
    by_kind: dict[str, Figures] = field(default_factory=dict)
    label: str = ""

    def as_data(self) -> dict[str, Any]:
        """In the form that `--json` writes."""
        counts = self.served.counts
        phases = {name: spread(seconds) for name, seconds in self.served.phases.items()}
        return {
            "label": self.label,
            **self.figures.as_data(),
            "by_kind": {name: one.as_data() for name, one in self.by_kind.items()},
            "disaggregated": self.served.disaggregated,
            "routes": None if counts is None else dict(counts.by_route),
            "reasons": None if counts is None else dict(counts.by_reason),
            "phases": {name: one.as_data() for name, one in phases.items() if one is not None},
        }


async def measure(
    endpoint: Endpoint,
    planned: list[Planned],
    generator: Generator,
    *,
    slo: Slo,
    warmup_s: float = 0.0,
    salt: str = "",
    label: str = "",
) -> Measured:
    """Send the traffic once and say what came of it.

    Raises:
        BenchFailed: The generator failed, nothing is left after the warm-up, or most requests
            failed.
    """
    if not any(request.at_s >= warmup_s for request in planned):
        raise BenchFailed(
            f"no request leaves after a warm-up of {warmup_s:g} s",
            cure="a longer --duration or a shorter --warmup",
        )
    run_id = f"bench-{uuid.uuid4().hex[:12]}"
    headers = dict(endpoint.headers)
    before = await counts_at(endpoint.url, headers)
    samples = await generator.measure(
        endpoint, job_of(planned, endpoint, salt=salt or run_id, run_id=run_id)
    )
    after = await counts_at(endpoint.url, headers)
    phases = await phases_at(endpoint.url, headers, run_id)
    counts = None if after is None or before is None else after.since(before)
    # The plan's clock, not the generator's: what belongs to the warm-up is decided beforehand.
    placed = [replace(s, start_s=r.at_s) for s, r in zip(samples, planned, strict=True)]
    found = figures(placed, slo, warmup_s=warmup_s)
    if found.failed > found.requests * MOST_FAILED:
        most = max(found.errors, key=found.errors.__getitem__)
        raise BenchFailed(
            f"{found.failed} of {found.requests} requests failed, most of them so: {most}",
            place=endpoint.url,
            cure="`baton conformance` asks the endpoint one by one",
        )
    kinds = sorted({request.kind for request in planned if request.kind})
    return Measured(
        found,
        Served(counts, phases),
        placed,
        {
            kind: figures(
                [s for s, r in zip(placed, planned, strict=True) if r.kind == kind],
                slo,
                warmup_s=warmup_s,
            )
            for kind in kinds
        },
        label,
    )


def check_disaggregated(measured: Measured) -> None:
    """A run that was meant to be P/D, and in which prefill served nobody, measured something else.

    Raises:
        BenchFailed: So it was, or nobody knows.
    """
    served = measured.served
    if served.counts is None:
        raise BenchFailed(
            "the endpoint does not say whether prefill served anybody",
            cure="measure a Baton gateway, or leave --expect-disaggregated out",
        )
    if not served.disaggregated:
        reasons = ", ".join(f"{n:g} {why}" for why, n in served.counts.by_reason.items()) or "none"
        raise BenchFailed(
            f"prefill served none of {measured.figures.requests} requests (routes: {reasons})",
            cure="check /ready and disaggregate.mode; `auto` keeps prompts on decode where that is "
            "cheaper",
        )
