"""Who can reach an endpoint that is about to start, and whether they need a key."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from baton.errors import ConfigRefused
from baton.spec.hosts import is_loopback
from baton.spec.key_file import keys_in_file, keys_in_text, keys_of

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping

    from baton.spec.schema import Auth, BatonBlock

OWN_KEY_ENV = "BATON_API_KEY"
"""A key for `baton up`'s own first request, where the keys' file holds only hashes."""


def refuse_if_open(name: str, host: str, auth: Auth | None, *, insecure: bool) -> None:
    """Refuse an endpoint that others can reach and that asks nobody for a key.

    Args:
        name: Of the application.
        host: Where the endpoint listens.
        auth: Its keys; None for Ray's own application, which has none.
        insecure: Whether that was said to be wanted.

    Raises:
        ConfigRefused: It is open.
    """
    if is_loopback(host) or insecure:
        return
    if auth is None:
        raise ConfigRefused(
            f"{name} would listen on {host}, and Ray's own application asks nobody for a key",
            place="http_options.host",
            cure="set http_options.host: 127.0.0.1, use Baton's builder with keys, or say"
            " --insecure-no-auth",
        )
    if auth.is_unsaid:
        raise ConfigRefused(
            f"{name} would listen on {host}, where others can reach it, and asks nobody for a key",
            place="http_options.host",
            cure="set baton.auth.api_keys_env or api_keys_file, or http_options.host: 127.0.0.1;"
            " if it is meant to be open, baton.auth.allow_anonymous: true",
        )


def refuse_tls_that_has_no_effect(http_options: Mapping[str, Any]) -> None:
    """Refuse certificates that would be ignored: the endpoint would be plain HTTP all the same.

    Ray Serve 2.60 uses `ssl_*` in its own proxy only; the HAProxy that it starts has no such line
    (`serve/_private/haproxy_templates.py`).

    Raises:
        ConfigRefused: There are some.
    """
    given = sorted(key for key in http_options if key.startswith("ssl_") and http_options[key])
    if given:
        raise ConfigRefused(
            f"{', '.join(given)} would have no effect: the edge is HAProxy as Ray Serve runs it,"
            " which speaks plain HTTP",
            place="http_options",
            cure="end TLS in front of it (docs/guides/keys-and-tls.md)",
        )


def refuse_what_is_missing(
    block: BatonBlock,
    environ: Mapping[str, str],
    *,
    here: bool,
    place: Callable[[str, str], str],
) -> None:
    """Read the keys once before anything starts, as the gateways will.

    Args:
        block: Of the application.
        environ: The environment that the gateways get, and `up` has.
        here: Whether gateways run on this machine. Elsewhere only the key matters that opens the
            endpoint for the first request of `up`.
        place: Where a setting stands in the file, by its part of the block and its name.

    Raises:
        ConfigRefused: Keys or the overflow provider's key are not there, or none of them can be
            used for the first request.
    """
    auth = block.auth
    source = "api_keys_file" if auth.api_keys_env is None else "api_keys_env"
    try:
        if here:
            keys_of(auth, environ)
        own = own_key(auth, environ)
    except ConfigRefused as exc:
        at = exc.place or place("auth", source)
        cure = exc.cure if here else f"set {OWN_KEY_ENV} to one of the keys: `up` needs one here"
        raise ConfigRefused(exc.fact, place=at, cure=cure) from exc
    if auth.asks_for_keys and own is None:
        if auth.api_keys_env is not None:
            fact = f"auth.api_keys_env names {auth.api_keys_env}, which is unset or empty here"
        else:
            fact = f"{auth.api_keys_file} holds only hashes"
        raise ConfigRefused(
            f"{fact}, and the first request of `up` needs a key",
            place=place("auth", source),
            cure=f"set {OWN_KEY_ENV} to one of the keys",
        )
    name = None if block.overflow is None else block.overflow.api_key_env
    if here and name is not None and not environ.get(name, "").strip():
        raise ConfigRefused(
            f"overflow.api_key_env names {name}, which is unset or empty",
            place=place("overflow", "api_key_env"),
            cure=f"set {name} to the provider's key, or leave overflow out",
        )


def own_key(auth: Auth, environ: Mapping[str, str]) -> str | None:
    """A key that opens the endpoint; None when there is none, or only hashes are known."""
    if not auth.asks_for_keys:
        return None
    if environ.get(OWN_KEY_ENV, "").strip():
        return environ[OWN_KEY_ENV].strip()
    if auth.api_keys_env is not None:
        text = environ.get(auth.api_keys_env, "")
        keys = keys_in_text(text, auth.api_keys_env) if text.strip() else []
    else:
        keys = keys_in_file(auth.keys_path) if auth.keys_path is not None else []
    written_out = (key.key.get_secret_value().strip() for key in keys if key.key is not None)
    return next(written_out, None)
