"""Reads an answer through a keyhole: the least window that the kernel allows, a byte at a time.

A reader over asyncio asks for one byte and gets it out of what the kernel has long taken in:
nothing was cut on the way. Here the connection itself is narrow. The segments that it asks for are
smaller than an event, so events come in parts that nobody chose; and the window is small, so an
endpoint whose caller waits between two bytes has to keep what he has not taken.
"""

from __future__ import annotations

import contextlib
import socket
import ssl
import time
from typing import TYPE_CHECKING

import httptools

from baton.conformance.wire import CONNECT_S, AnswerParser, Reply, Unanswered

if TYPE_CHECKING:
    import threading

    from baton.conformance.wire import Wire

SEGMENT_BYTES = 88
"""The least that Linux takes for TCP_MAXSEG; a chunk of a stream has two or three hundred bytes."""
SILENCE_S = 30.0
PAUSE_EVERY_BYTES = 64


def ask_through_keyhole(
    wire: Wire, path: str, body: bytes, *, over: threading.Event, pause_s: float = 0.0
) -> Reply:
    """POST, and read the answer byte by byte. Blocks: for a thread.

    Args:
        wire: The endpoint.
        path: Behind the base URL.
        body: JSON.
        over: Set when nobody waits for the answer any more: a thread cannot be cancelled.
        pause_s: So long it waits after each `PAUSE_EVERY_BYTES`.

    Raises:
        Unanswered: There is no answer that is HTTP.
    """
    parser = AnswerParser()
    try:
        with contextlib.closing(_connect(wire)) as connection:
            connection.sendall(wire.head("POST", path, body) + body)
            read = 0
            while not parser.done and not over.is_set() and (byte := connection.recv(1)):
                parser.feed(byte)
                read += 1
                if pause_s and not read % PAUSE_EVERY_BYTES:
                    time.sleep(pause_s)
    except httptools.HttpParserError as exc:
        return _cut_short(parser, f"the body's framing is broken: {exc}")
    except OSError as exc:
        return _cut_short(parser, f"the connection broke: {exc}")
    if not parser.done:
        return _cut_short(parser, "the connection was closed in the middle of the body")
    return parser.reply


def _connect(wire: Wire) -> socket.socket:
    family, kind, protocol, _, address = socket.getaddrinfo(
        wire.host, wire.port, type=socket.SOCK_STREAM
    )[0]
    narrow = socket.socket(family, kind, protocol)
    try:
        # Before the handshake, which tells the other side. Both only ask: less may not be granted.
        narrow.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 1)
        with contextlib.suppress(OSError, AttributeError):
            narrow.setsockopt(socket.IPPROTO_TCP, socket.TCP_MAXSEG, SEGMENT_BYTES)
        narrow.settimeout(CONNECT_S)
        narrow.connect(address)
        narrow.settimeout(SILENCE_S)
        if not wire.tls:
            return narrow
        return ssl.create_default_context().wrap_socket(narrow, server_hostname=wire.host)
    except BaseException:
        narrow.close()
        raise


def _cut_short(parser: AnswerParser, why: str) -> Reply:
    if not parser.headed:
        raise Unanswered(why)
    parser.reply.broke = why
    return parser.reply
