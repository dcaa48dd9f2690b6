"""Which nulls vLLM takes in a request and has no room for in its answer, read from its classes."""

from __future__ import annotations

from typing import Any

import pytest
from pydantic import TypeAdapter, ValidationError

from baton.gateway.prefill import NULL_IS_ABSENT

# Not copied from the request: the answer's are computed, or have a default of their own
# (`ResponsesResponse.from_request`).
COMPUTED = frozenset({
    "model", "parallel_tool_calls", "temperature", "top_p", "max_output_tokens",
})  # fmt: skip


def _takes_null(annotation: Any) -> bool:
    try:
        TypeAdapter(annotation).validate_python(None)
    except ValidationError:
        return False
    return True


def test_a_null_of_the_request_fits_the_answer_or_is_left_out() -> None:
    """Otherwise the prompt is computed, a 400 comes back, and prefill's KV waits for its lease."""
    protocol = pytest.importorskip("vllm.entrypoints.openai.responses.protocol")
    asked, answered = (
        protocol.ResponsesRequest.model_fields,
        protocol.ResponsesResponse.model_fields,
    )
    both = asked.keys() & answered.keys()
    assert len(both) > 15
    without_room = {
        name
        for name in both - COMPUTED
        if _takes_null(asked[name].annotation) and not _takes_null(answered[name].annotation)
    }
    assert without_room == NULL_IS_ABSENT["responses"]
