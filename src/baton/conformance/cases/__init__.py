"""What an OpenAI-compatible endpoint is asked, by area. The order is the report's."""

from __future__ import annotations

from typing import TYPE_CHECKING

from baton.conformance.cases import (
    basics,
    client,
    errors,
    fields,
    other_routes,
    shaped,
    streaming,
)

if TYPE_CHECKING:
    from baton.conformance.case import Case

ALL: tuple[Case, ...] = (
    *basics.CASES,
    *fields.CASES,
    *streaming.CASES,
    *shaped.CASES,
    *errors.CASES,
    *other_routes.CASES,
    *client.CASES,
)
