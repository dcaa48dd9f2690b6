"""Runs the cases against one endpoint, each with its deadline.

One at a time: a case must not see another one's load, and greedy texts must not depend on how
requests were batched.
"""

from __future__ import annotations

import asyncio
import time
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

from baton.conformance.case import Fails, NotOffered, Outcome
from baton.conformance.probe import OK, Probe, short
from baton.conformance.wire import Unanswered, Wire
from baton.errors import EndpointUnfit

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping, Sequence

    from baton.conformance.case import Case, Status

DEADLINE_S = 30.0
GIVE_UP_AFTER = 3
"""So many deadlines, one after the other, and the endpoint is taken to hang for good."""
_TRIES = 5
"""For the list of models: an endpoint that fails half of the time still names its model."""


@dataclass
class Report:
    """What one endpoint did."""

    url: str
    model: str
    outcomes: list[Outcome] = field(default_factory=list)

    def count(self, status: Status) -> int:
        return sum(outcome.status == status for outcome in self.outcomes)


async def run(
    url: str,
    cases: Sequence[Case],
    *,
    model: str | None = None,
    headers: Mapping[str, str] | None = None,
    deadline_s: float = DEADLINE_S,
    tell: Callable[[Outcome], None] = lambda _: None,
) -> Report:
    """Run the cases; `tell` hears of each as it ends.

    Raises:
        EndpointUnfit: Nobody is there, or it speaks no OpenAI, so that no case means anything.
    """
    wire = Wire(url, headers)
    report = Report(wire.url, model or await _find_model(wire, deadline_s))
    hung = 0
    for case in cases:
        if hung >= GIVE_UP_AFTER:
            outcome = Outcome(case, "fail", f"not asked: {hung} cases before it got no answer")
        else:
            outcome = await _one(case, Probe(wire, report.model), deadline_s)
            hung = hung + 1 if outcome.took_s >= deadline_s else 0
        report.outcomes.append(outcome)
        tell(outcome)
    return report


async def _one(case: Case, probe: Probe, deadline_s: float) -> Outcome:
    outcome = Outcome(case, "pass", seen=probe.seen, notes=probe.notes)
    started = time.monotonic()
    try:
        async with asyncio.timeout(deadline_s):
            await case.act(probe)
    except NotOffered as exc:
        outcome.status, outcome.detail = "not offered", str(exc)
    except (Fails, Unanswered) as exc:
        outcome.status, outcome.detail = "fail", str(exc)
    except TimeoutError:
        outcome.status, outcome.detail = "fail", f"no answer within {deadline_s:g} s"
    except (LookupError, TypeError, ValueError, AttributeError) as exc:
        # An answer whose parts are not what they are named: a case reads them as the standard
        # has them, and stumbles.
        outcome.status = "fail"
        outcome.detail = f"an answer of another shape: {type(exc).__name__}: {exc}"[:240]
    outcome.took_s = time.monotonic() - started
    return outcome


async def _find_model(wire: Wire, deadline_s: float) -> str:
    """The first model that the endpoint lists."""
    place, problem = f"{wire.url}/v1/models", ""
    for _ in range(_TRIES):
        try:
            async with asyncio.timeout(deadline_s):
                reply = await wire.ask("GET", "/v1/models")
        except Unanswered as exc:
            raise EndpointUnfit(
                f"no OpenAI-compatible endpoint answers: {exc}",
                place=place,
                cure="check the URL, and that the endpoint is up",
            ) from exc
        except TimeoutError as exc:
            raise EndpointUnfit(
                f"the endpoint does not answer within {deadline_s:g} s",
                place=place,
                cure="check that it is up; --deadline S waits longer",
            ) from exc
        if reply.status in (401, 403):
            raise EndpointUnfit(
                f"the endpoint wants a key (status {reply.status})",
                place=place,
                cure="name the variable that holds it with --api-key-env",
            )
        if reply.status == OK and (found := _first_id(reply.data)) is not None:
            return found
        problem = f"status {reply.status}, {short(reply.body)!r}"
    raise EndpointUnfit(
        f"what answers speaks no OpenAI: {problem}",
        place=place,
        cure="give the base URL of an OpenAI-compatible endpoint, or name a model with --model",
    )


def _first_id(listed: Any) -> str | None:
    try:
        found = listed["data"][0]["id"]
    except (LookupError, TypeError):
        return None
    return found if isinstance(found, str) else None
