"""Which Ray, vLLM and NIXL the pods really have: asked of the head, as soon as it is there.

A tag may say anything, and most say nothing (EKS-110). The head runs the same image as the workers
and is up long before them, so an image that the plan is not for ends the waiting before a GPU has
loaded anything. What cannot be read is waited for: it is never taken for a match.
"""

from __future__ import annotations

import json
from typing import TYPE_CHECKING

from baton.spec.matched import MATCHED, misfits

if TYPE_CHECKING:
    from baton.deploy.eks.live.commands import Done

PLANNED = {name: MATCHED[name] for name in ("ray", "vllm", "nixl")}
"""What the files, the rules and the gateway were made for."""
SCRIPT = (
    "python -c 'import importlib.metadata as m, json;"
    ' print(json.dumps({d.metadata["Name"].lower(): d.version for d in m.distributions()'
    ' if d.metadata["Name"]}))\''
)
CURE = (
    "build deploy/image and set IMAGE, or take the Baton that goes with it (docs/guides/upgrade.md)"
)


def read_versions(done: Done) -> dict[str, str] | None:
    """Distributions in the pod; None when it did not say."""
    if done.code != 0:
        return None
    try:
        found = json.loads(done.out.strip().splitlines()[-1])
    except (ValueError, IndexError):
        return None
    return {str(k): str(v) for k, v in found.items()} if isinstance(found, dict) else None


def mismatch(versions: dict[str, str]) -> str:
    """Why this image is not the plan's; empty when it is."""
    wrong = [
        f"{name} {found or 'missing'}, and the plan is for {wanted}"
        for name, found, wanted in misfits(versions, PLANNED)
    ]
    return f"the image has {'; '.join(wrong)}: {CURE}" if wrong else ""
