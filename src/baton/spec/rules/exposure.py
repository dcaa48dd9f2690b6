"""What the file as a whole says of who can reach its endpoint. Called by the check itself."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from baton.spec.hosts import is_loopback
from baton.spec.rules.registry import Finding, describe

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence

    from baton.spec.checked import CheckedApp

describe(
    "BTN-195",
    "warning",
    "an address that others can reach, and no key",
    """
    `baton up` refuses it, unless `baton.auth.allow_anonymous: true` (or `--insecure-no-auth`) says
    that it is meant so. Under `serve run` the builder cannot see where Serve listens; the gateway
    then says in its log that it asks for no key. Ray Serve listens on every interface by itself
    when it runs HAProxy (`RAY_SERVE_ENABLE_HA_PROXY=1`) and the file names no host.

    Source: ray 2.60 `serve/_private/constants.py`, `DEFAULT_HTTP_HOST`; `baton.deploy.exposure`.
    """,
)
describe(
    "BTN-196",
    "warning",
    "certificates that the edge does not read",
    """
    `http_options.ssl_*` are read by Ray Serve's own proxy. The HAProxy that it starts instead, as
    under `baton up`, has no such line and speaks plain HTTP, so `baton up` refuses them: end TLS in
    front of the edge (docs/guides/keys-and-tls.md).

    Source: ray 2.60 `serve/config.py`, `HTTPOptions`; `serve/_private/haproxy_templates.py`.
    """,
)


def exposure(document: Any, apps: Sequence[CheckedApp]) -> Iterator[tuple[str, Finding]]:
    """Findings about `http_options`, each with its rule."""
    options = document.get("http_options") if isinstance(document, dict) else None
    if not isinstance(options, dict):
        return
    host = options.get("host")
    open_to_all = [app.name for app in apps if app.roles and app.baton.auth.is_unsaid]
    if isinstance(host, str) and not is_loopback(host) and open_to_all:
        yield (
            "BTN-195",
            Finding(
                ("http_options", "host"),
                f"others can reach {host}, and {', '.join(open_to_all)} asks nobody for a key",
                found=host,
                at_value=True,
                cure="set baton.auth.api_keys_env or api_keys_file, or host: 127.0.0.1",
            ),
        )
    for name in sorted(str(key) for key in options):
        if name.startswith("ssl_") and options[name]:
            yield (
                "BTN-196",
                Finding(
                    ("http_options", name),
                    f"`{name}` has no effect behind HAProxy: the endpoint speaks plain HTTP",
                    found=name,
                    cure="end TLS in front of the edge",
                ),
            )
