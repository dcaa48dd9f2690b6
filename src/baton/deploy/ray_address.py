"""Whether a Ray cluster answers at an address, in a time that we choose.

Ray asks for two minutes and lets nobody interrupt it (2.60: `ray.init` to a port that nobody
listens on took 122 s). The GCS is a gRPC server, and every HTTP/2 server begins with its settings
(RFC 9113, section 3.4): one that sends none is no Ray, or hangs.

What Ray still waits for by itself, once its GCS answers, is a node of that cluster on this machine:
60 s (2.60, `_private/services.py`, `get_node_to_connect_for_driver`), whatever `--timeout` says. It
is left so. A thread that is given up on would leave Ray half connected in this process, and taking
applications off the cluster meets that; a process that tries first imports Ray once more for every
`up`; and the variable that Ray has for it (`RAY_gcs_server_request_timeout_seconds`) shortens all
that this process ever asks of the GCS.
"""

from __future__ import annotations

import os
import socket

from baton.errors import RayUnreachable

CONNECT_TIMEOUT_S = 30.0
_PREFACE = b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n" + b"\x00\x00\x00\x04\x00\x00\x00\x00\x00"
"""What a client begins with: the connection preface, and settings with nothing in them."""
_FRAME_HEAD = 9
_SETTINGS = 4


def check_ray_answers(address: str, timeout_s: float = CONNECT_TIMEOUT_S) -> None:
    """Return as soon as a Ray cluster answers there.

    An address that only Ray itself understands (`auto`, `ray://…`), and one behind TLS, are left to
    Ray.

    Raises:
        RayUnreachable: Nobody does within `timeout_s`, or within `CONNECT_TIMEOUT_S`.
    """
    host, colon, port = address.rpartition(":")
    if not colon or not port.isdigit() or "://" in address or os.environ.get("RAY_USE_TLS") == "1":
        return
    within_s = min(timeout_s, CONNECT_TIMEOUT_S)
    try:
        with socket.create_connection((host.strip("[]"), int(port)), timeout=within_s) as asked:
            asked.sendall(_PREFACE)
            head = b""
            while len(head) < _FRAME_HEAD and (more := asked.recv(_FRAME_HEAD - len(head))):
                head += more
    except TimeoutError as exc:
        why = f"no answer within {within_s:g} s"
        raise _nobody(address, why) from exc
    except (OSError, OverflowError) as exc:
        raise _nobody(address, getattr(exc, "strerror", None) or str(exc)) from exc
    if len(head) < _FRAME_HEAD or head[3] != _SETTINGS:
        raise _nobody(address, "what answers is no gRPC server")


def _nobody(address: str, why: str) -> RayUnreachable:
    return RayUnreachable(
        f"no Ray cluster answers at {address}: {why}",
        cure="check --address, or leave it out to start Ray on this machine",
    )
