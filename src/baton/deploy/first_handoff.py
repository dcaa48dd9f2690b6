"""The request that a deployment has to answer before `baton up` calls it ready."""

from __future__ import annotations

import os
import time
from typing import TYPE_CHECKING

import httpx

from baton.deploy.exposure import own_key
from baton.errors import DeployFailed

if TYPE_CHECKING:
    from baton.deploy.intent import AppPlan

TRIES_S = 60.0
_POLL_S = 0.25
# Long enough that vLLM's KV cache holds whole blocks of it, short enough for any context.
_PROMPT = "The baton is handed from one runner to the next. " * 4


def first_handoff(app: AppPlan, endpoint: str) -> str:
    """Send one request the whole way.

    Serve says RUNNING a little before the edge has its routes, so it is tried for a while.

    Returns:
        What there is to say of it: how long it took, and which way it went.

    Raises:
        DeployFailed: It did not succeed.
    """
    headers = {"x-baton-disaggregate": "always"} if app.by_baton else {}
    key = own_key(app.auth, os.environ)
    if key is not None:
        headers["authorization"] = f"Bearer {key}"
    body = {
        "model": app.model_id, "prompt": _PROMPT, "max_tokens": 2, "temperature": 0,
    }  # fmt: skip
    deadline_s = time.monotonic() + TRIES_S
    reason = "no answer"
    while time.monotonic() < deadline_s:
        started_s = time.monotonic()
        try:
            answer = httpx.post(
                f"{endpoint}/v1/completions",
                json=body,
                headers=headers,
                timeout=TRIES_S,
                trust_env=False,  # a proxy from the environment does not know this machine
            )
        except httpx.HTTPError as exc:
            reason = f"{type(exc).__name__}: {exc}"
        else:
            fallback = answer.headers.get("x-baton-fallback")
            if answer.status_code == httpx.codes.OK and fallback is None:
                route = answer.headers.get("x-baton-route", "ray")
                took_s = time.monotonic() - started_s
                return f"done in {took_s:.2f} s, route {route}"
            reason = f"fallback: {fallback}" if fallback else answer.text.strip()[:300]
        time.sleep(_POLL_S)
    raise DeployFailed(f"the first handoff of {app.name} did not succeed: {reason}", place=endpoint)
