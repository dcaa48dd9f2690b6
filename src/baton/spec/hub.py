"""Reads a model's config from its hub, only with `--online`: two small files, no weights.

The hub is Hugging Face or whatever `HF_ENDPOINT` names; `HF_TOKEN` opens private models.
"""

from __future__ import annotations

import os
import re
from typing import TYPE_CHECKING, Any

from baton.spec.model_facts import ModelFacts, facts_from_config, total_size

if TYPE_CHECKING:
    from collections.abc import Mapping

_NAME = re.compile(r"[\w.-]+/[\w.-]+")
TIMEOUT_S = 10.0
MAX_FILE_BYTES = 32 * 1024 * 1024


class Unreachable(Exception):
    """The hub did not give the file; the message says why."""


def fetch_facts(
    name: str, revision: str | None = None, env: Mapping[str, str] | None = None
) -> ModelFacts:
    """Facts of a hub model.

    Raises:
        Unreachable: When there is no such model, no access, or no network.
    """
    env = os.environ if env is None else env
    if not _NAME.fullmatch(name):
        raise Unreachable(f"`{name}` is no name of a hub model")
    config = get_json(name, "config.json", revision, env)
    if not isinstance(config, dict):
        raise Unreachable(f"config.json of {name} is no mapping")
    try:
        index = get_json(name, "model.safetensors.index.json", revision, env)
    except Unreachable:
        index = None  # a small model has one file and no index
    return facts_from_config(config, name, total_size(index))


def get_json(
    name: str, file: str, revision: str | None = None, env: Mapping[str, str] | None = None
) -> Any:
    """One small JSON file of a hub model.

    Raises:
        Unreachable: When there is no such file or model, no access, or no network.
    """
    env = os.environ if env is None else env
    if not _NAME.fullmatch(name):
        raise Unreachable(f"`{name}` is no name of a hub model")
    import httpx  # noqa: PLC0415 - only with --online

    endpoint = env.get("HF_ENDPOINT", "https://huggingface.co").rstrip("/")
    url = f"{endpoint}/{name}/resolve/{revision or 'main'}/{file}"
    token = env.get("HF_TOKEN")
    headers = {"authorization": f"Bearer {token}"} if token else {}
    try:
        answer = httpx.get(url, headers=headers, timeout=TIMEOUT_S, follow_redirects=True)
        answer.raise_for_status()
        if len(answer.content) > MAX_FILE_BYTES:
            raise Unreachable(f"{file} of {name} is too large")
        return answer.json()
    except httpx.HTTPStatusError as exc:
        raise Unreachable(f"{endpoint} answered {exc.response.status_code} for {name}") from exc
    except (httpx.HTTPError, httpx.InvalidURL, ValueError) as exc:
        raise Unreachable(f"{endpoint} could not be asked: {type(exc).__name__}") from exc
