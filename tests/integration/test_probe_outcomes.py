"""A probe of a client library that crashes: told once, and never run again."""

from __future__ import annotations

import pytest

from tests.clients.outcomes import Outcomes


def test_a_probe_that_crashed_is_run_once_and_named_by_every_other_case() -> None:
    """The first to ask gets its last words; a probe may take minutes to hang."""
    ran: list[str] = []

    def run(library: str) -> dict[str, str]:
        ran.append(library)
        if library == "litellm":
            raise RuntimeError("Traceback\nno module named litellm")
        return {"chat": "ok"}

    outcomes = Outcomes(run)
    with pytest.raises(RuntimeError, match="no module"):
        outcomes.of("litellm")
    for _ in range(2):
        named = "probe of litellm crashed .RuntimeError: no module named litellm"
        with pytest.raises(pytest.fail.Exception, match=named):
            outcomes.of("litellm")
        assert outcomes.of("langchain") == {"chat": "ok"}
    assert ran == ["litellm", "langchain"]
