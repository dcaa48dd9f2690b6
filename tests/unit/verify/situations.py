"""Evidence to judge: recorded from real runs, and synthetic where nobody has seen the situation."""

from __future__ import annotations

from pathlib import Path

from baton.verify.evidence import PairEvidence

FOLDER = Path(__file__).parent / "recorded"
OBSERVED = (
    "ucx-shm",
    "ucx-tcp",
    "libfabric-tcp",
    "namespaces",
    "namespaces-throttled",
    "ray",
    "ray-throttled",
    "h200-tcp",
    "h200-cuda-ipc",
    "h200-cuda-ipc-blocks-128",
)
SYNTHETIC = (
    "synthetic-libfabric-efa",
    "synthetic-h200-host-buffer",
)


def situation(name: str) -> PairEvidence:
    """One file of the folder."""
    return PairEvidence.model_validate_json((FOLDER / f"{name}.json").read_text("utf-8"))
