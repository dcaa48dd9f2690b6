"""Looks at engines before minutes are spent on measuring them.

Two engines and not one by two names; reachable, with the right secret, of one model; a stream that
brings a token; and, with a second one, a short prompt that is really handed over.
"""

from __future__ import annotations

import asyncio
import json
import socket
from typing import TYPE_CHECKING, Any
from urllib.parse import urlsplit

import aiohttp

from baton.errors import ConfigRefused, EndpointUnfit
from baton.plan.probe import Prober

if TYPE_CHECKING:
    from collections.abc import Sequence

_TIMEOUT_S = 60.0
"""Of each question: a first request may compile."""
_TOKENS = 64
_PORTS = {"http": 80, "https": 443}
_UNAUTHORIZED = (401, 403)


def check_urls(urls: Sequence[str]) -> None:
    """Whether they are addresses, of an engine each.

    Raises:
        ConfigRefused: One is no address of HTTP, or two lead to the same port.
    """
    found = [_address(url) for url in urls]
    for index, one in enumerate(found):
        for other in found[:index]:
            if one[1] == other[1] and (one[0] == other[0] or _places(*one) & _places(*other)):
                raise ConfigRefused(
                    "--url and --decode-url are the same engine", place=urls[index],
                    cure="a handoff needs two: leave --decode-url out, or name another engine",
                )  # fmt: skip


def check_secret(secret: str) -> None:
    """Whether it can be sent.

    Raises:
        ConfigRefused: It holds what no header takes, such as the end of a line.
    """
    if not secret.isprintable() or not secret.isascii():
        raise ConfigRefused(
            "the engine secret holds characters that no HTTP header takes",
            cure="set the variable to the secret alone, without a line's end",
        )


async def look(urls: Sequence[str], secret: str | None) -> None:
    """Ask each engine who it is, for a token, and for a handoff when there are two.

    Raises:
        EndpointUnfit: It cannot be reached, is no engine, or does not take the secret.
        MeasurementFailed: The first hands nothing over.
    """
    headers = {"x-baton-engine-secret": secret} if secret else {}
    timeout = aiohttp.ClientTimeout(total=_TIMEOUT_S)
    async with aiohttp.ClientSession(timeout=timeout) as session:
        probers = [Prober(session, url.rstrip("/"), "", headers) for url in urls]
        for prober in probers:
            prober.model = await _model(prober, secret)
            for path in ("/version", "/metrics"):
                await _get(prober, path, secret)
        models = [prober.model for prober in probers]
        if len(set(models)) > 1:
            raise EndpointUnfit(
                f"the engines serve different models: {', '.join(models)}", place=urls[-1],
                cure="KV can be handed over between engines of one model only",
            )  # fmt: skip
        try:
            for prober in probers:
                await _token(prober)
            if len(probers) > 1:
                prompt = probers[0].prompt(_TOKENS)
                _, params = await probers[0].handed_over(prompt)
                await _token(probers[1], prompt, kv_transfer_params=params)
        except (aiohttp.ClientError, TimeoutError, OSError, ValueError) as exc:
            raise EndpointUnfit(f"an engine does not answer a prompt of {_TOKENS} tokens: "
                                f"{_what(exc)}", place=" and ".join(urls)) from exc  # fmt: skip


async def _model(prober: Prober, secret: str | None) -> str:
    text = await _get(prober, "/v1/models", secret)
    try:
        name = json.loads(text)["data"][0]["id"]
    except (ValueError, LookupError, TypeError, RecursionError) as exc:
        raise _no_engine(prober, f"/v1/models says {text[:60]!r}") from exc
    return str(name)


async def _get(prober: Prober, path: str, secret: str | None) -> str:
    try:
        async with prober.session.get(prober.url + path, headers=prober.headers) as answer:
            text = await answer.text()
            status = answer.status
    except (aiohttp.ClientError, TimeoutError, OSError, ValueError) as exc:
        raise EndpointUnfit(
            f"the engine cannot be reached: {_what(exc)}", place=prober.url,
            cure="start it, or name its own port: http://HOST:PORT",
        ) from exc  # fmt: skip
    if status in _UNAUTHORIZED:
        does = "takes another engine secret" if secret else "wants its engine secret"
        raise EndpointUnfit(
            f"the engine {does} (it answers {status})", place=prober.url,
            cure="put the secret into a variable and name that with --secret-env",
        )  # fmt: skip
    if status >= 400:  # noqa: PLR2004 - HTTP
        raise _no_engine(prober, f"{path} answers {status}")
    return text


async def _token(prober: Prober, prompt: Sequence[int] = (), **more: Any) -> None:
    await prober.token_times(
        prober.body(prompt or prober.prompt(_TOKENS), 2 if more else 1, **more)
    )


def _no_engine(prober: Prober, fact: str) -> EndpointUnfit:
    return EndpointUnfit(f"what answers there is no vLLM engine: {fact}", place=prober.url,
                         cure="name the engine itself, http://HOST:PORT")  # fmt: skip


def _address(url: str) -> tuple[str, int]:
    try:
        parts = urlsplit(url)
        host, port = parts.hostname, parts.port or _PORTS.get(parts.scheme)
        scheme = parts.scheme
    except ValueError:
        host, port, scheme = None, None, ""
    if not host or not port or scheme not in _PORTS:
        raise ConfigRefused(f"`{url}` is no address of an engine", cure="give http://HOST:PORT")
    return host.lower(), port


def _places(host: str, port: int) -> set[str]:
    try:
        return {str(found[4][0]) for found in socket.getaddrinfo(host, port)}
    except (OSError, UnicodeError):
        return set()


def _what(exc: BaseException) -> str:
    return "no answer in time" if isinstance(exc, asyncio.TimeoutError) else type(exc).__name__
