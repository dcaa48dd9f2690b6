"""Keys of callers: read once, kept as hashes, compared in constant time.

The variable holds keys separated by commas, each `name:key` or only `key`. Names stand in logs and
metrics where the key must not.
"""

from __future__ import annotations

import hashlib
import hmac
import os
from typing import TYPE_CHECKING

from baton.errors import ConfigRefused, NotAuthenticated

if TYPE_CHECKING:
    from collections.abc import Mapping

    from baton.spec.schema import Auth


def _digest(key: bytes) -> bytes:
    return hashlib.sha256(key).digest()


class Keys:
    """The keys that open this gateway. Without any, everybody is let in as `anonymous`."""

    def __init__(self, keys: Mapping[str, str]) -> None:
        self._hashes = tuple((name, _digest(key.encode())) for name, key in keys.items())

    @classmethod
    def from_settings(cls, auth: Auth, environ: Mapping[str, str] | None = None) -> Keys:
        """Read `auth.api_keys_env`.

        Raises:
            ConfigRefused: The variable is unset, empty or names a key twice: a gateway that was
                told to ask for keys never starts without.
        """
        if auth.api_keys_env is None:
            return cls({})
        text = (os.environ if environ is None else environ).get(auth.api_keys_env, "")
        keys: dict[str, str] = {}
        for number, entry in enumerate(filter(None, (e.strip() for e in text.split(","))), 1):
            name, colon, key = entry.partition(":")
            if not colon:
                name, key = f"key{number}", entry
            name, key = name.strip(), key.strip()
            if not key or not name or name in keys:
                raise ConfigRefused(
                    f"entry {number} of {auth.api_keys_env} has an empty or repeated name",
                    cure="write name:key,name:key with each name once",
                )
            keys[name] = key
        if not keys:
            raise ConfigRefused(
                f"auth.api_keys_env names {auth.api_keys_env}, which is unset or empty",
                cure=f"set {auth.api_keys_env}=name:key, or leave auth out",
            )
        return cls(keys)

    def __len__(self) -> int:
        return len(self._hashes)

    def name_of(self, authorization: bytes | None, api_key: bytes | None = None) -> str:
        """The name of the caller's key.

        Args:
            authorization: The `Authorization` header.
            api_key: The `x-api-key` header, which Anthropic's clients send.

        Raises:
            NotAuthenticated: No key, or none that is known.
        """
        if not self._hashes:
            return "anonymous"
        scheme, _, token = (authorization or b"").partition(b" ")
        given = token.strip() if scheme.lower() == b"bearer" else (api_key or b"").strip()
        if not given:
            raise NotAuthenticated(
                "No API key was given.", cure="send it as 'Authorization: Bearer KEY'"
            )
        digest = _digest(given)
        found: str | None = None
        # Every key is compared, so that the time says nothing about which one is near.
        for name, known in self._hashes:
            if hmac.compare_digest(digest, known):
                found = name
        if found is None:
            raise NotAuthenticated("The API key is not known here.")
        return found
