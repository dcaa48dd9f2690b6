"""Where the standard says it.

OpenAI's API reference has no version of its own. The client library is generated from the same
description and carries its text as docstrings; so a source names the page, and the release of
`openai` (PyPI) in which the text was read.
"""

from __future__ import annotations

_READ_IN = "as in openai-python 3.57.0"


def reference(page: str) -> str:
    """A page of the API reference."""
    return f"OpenAI API reference, {page} ({_READ_IN})"


MODELS = reference("models")
CHAT = reference("chat/create")
CHAT_OBJECT = reference("chat/object")
CHAT_STREAM = reference("chat/streaming")
COMPLETIONS = reference("completions/create")
RESPONSES = reference("responses/create")
EMBEDDINGS = reference("embeddings/create")
ERRORS = f"OpenAI guide, error codes ({_READ_IN}, _exceptions.py)"
SSE = "HTML living standard, server-sent events; RFC 9112 section 7.1 (chunks carry no meaning)"
VLLM = "vLLM 0.29 documentation, OpenAI-compatible server"
CLIENT = "the official client, openai-python 3.57.0"
