"""Whether an overflow provider's `base_url` can be called, and what is wrong with it when not."""

from __future__ import annotations

from urllib.parse import urlsplit

from baton.spec.hosts import is_loopback

_ROUTES = ("/chat/completions", "/completions", "/embeddings", "/responses")


def url_fault(url: str) -> tuple[str, str] | None:
    """What is wrong and what to write instead; None when it can be called."""
    write = "write it as https://host/v1"
    try:
        parts = urlsplit(url)
        _ = parts.port
    except ValueError:
        return "`base_url` must be a URL", write
    if parts.scheme not in ("http", "https") or not parts.hostname:
        return "`base_url` must be a URL", write
    if parts.username is not None or parts.password is not None:
        return "`base_url` holds a user or a password", "put the key into api_key_env"
    if parts.query or parts.fragment:
        return "`base_url` has a query or a fragment", "leave out what begins with ? or #"
    path = parts.path.rstrip("/")
    for route in _ROUTES:
        if path.endswith(route):
            return f"`base_url` must end before {route}", f"leave {route} out"
    return None


def sends_key_in_clear(url: str) -> bool:
    """Whether a key would go over a network without encryption."""
    parts = urlsplit(url)
    return parts.scheme == "http" and not is_loopback(parts.hostname or "")
