"""Baton: prefill/decode disaggregated LLM serving from one YAML.

`baton:build_pd_openai_app` is the import path of a Ray Serve file. It is looked up late, so that
`import baton` costs nothing and needs no Ray.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from baton.version import __version__

__all__ = ["__version__", "build_pd_openai_app"]

if TYPE_CHECKING:
    from baton.serve.builder import build_pd_openai_app


def __getattr__(name: str) -> Any:
    if name == "build_pd_openai_app":
        from baton.serve.builder import build_pd_openai_app  # noqa: PLC0415

        return build_pd_openai_app
    raise AttributeError(f"module 'baton' has no attribute {name!r}")
