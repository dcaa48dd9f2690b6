"""Keys of callers as people write them: a variable with a few, or a file with limits for each.

The variable holds `name:key` or only `key`, separated by commas. The file is YAML::

    keys:
    - name: ann                     # stands in logs and metrics; letters, digits, . _ -
      sha256: 9f86d081884c7d65…     # of the key: printf %s "$KEY" | sha256sum
      requests_per_min: 60          # no limit when left out
      burst: 10                     # as many at once; 1 or a tenth of the minute by default
      max_concurrency: 4            # requests that run or wait at once
      weight: 2                     # turns in the queue, for another's one
    - name: build-robot
      key: written-out              # instead of sha256, where the file itself is kept secret

Keys never stand in a message: names and line numbers do.
"""

from __future__ import annotations

import hashlib
import re
from typing import TYPE_CHECKING, Annotated, Any, Self

from pydantic import Field, SecretStr, ValidationError, model_validator

from baton.errors import ConfigRefused
from baton.spec.schema import Frozen

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence
    from pathlib import Path

    from baton.spec.schema import Auth

NAME = r"^[A-Za-z0-9][A-Za-z0-9._-]{0,63}$"
# Reserved: what callers without a key are called.
ANONYMOUS = "anonymous"
MAX_KEYS = 1000
"""Each name is a label in the metrics."""
MAX_FILE_BYTES = 1024 * 1024


class CallerKey(Frozen):
    """One key: its name, its hash, its limits."""

    name: Annotated[str, Field(pattern=NAME)]
    sha256: Annotated[str, Field(pattern=r"^[0-9a-fA-F]{64}$")] | None = None
    key: SecretStr | None = None
    requests_per_min: Annotated[float, Field(gt=0)] | None = None
    burst: Annotated[int, Field(ge=1)] | None = None
    max_concurrency: Annotated[int, Field(ge=1)] | None = None
    weight: Annotated[float, Field(ge=0.01, le=100)] = 1.0

    @model_validator(mode="after")
    def _is_one_key(self) -> Self:
        if (self.sha256 is None) == (self.key is None):
            raise ValueError("give either sha256 or key")
        if self.key is not None and not self.key.get_secret_value().strip():
            raise ValueError("the key is empty")
        if self.burst is not None and self.requests_per_min is None:
            raise ValueError("burst means nothing without requests_per_min")
        if self.name == ANONYMOUS:
            raise ValueError(f"{ANONYMOUS} is what callers without a key are called")
        return self

    @property
    def digest(self) -> bytes:
        """SHA-256 of the key."""
        if self.sha256 is not None:
            return bytes.fromhex(self.sha256)
        secret = self.key.get_secret_value() if self.key is not None else ""
        return hashlib.sha256(secret.strip().encode()).digest()

    @property
    def burst_size(self) -> float:
        """How many requests may come at once after a rest."""
        if self.burst is not None:
            return self.burst
        return max(1.0, (self.requests_per_min or 0.0) / 10)


def keys_of(auth: Auth, environ: Mapping[str, str]) -> tuple[CallerKey, ...]:
    """All keys that `auth` names. Empty only when it names no source.

    Raises:
        ConfigRefused: A source is missing, empty, malformed, or repeats a name or a key: a gateway
            that was told to ask for keys never starts without.
    """
    found: list[CallerKey] = []
    if auth.api_keys_env is not None:
        found += keys_in_text(environ.get(auth.api_keys_env, ""), auth.api_keys_env)
    if auth.keys_path is not None:
        found += keys_in_file(auth.keys_path)
    _check_together(found, place=auth.api_keys_file or auth.api_keys_env or "auth")
    return tuple(found)


def keys_in_text(text: str, variable: str) -> list[CallerKey]:
    """The keys of a variable: `name:key` or only a key, separated by commas.

    Raises:
        ConfigRefused: Nothing is in it, or an entry makes no sense.
    """
    keys: list[CallerKey] = []
    for number, entry in enumerate(filter(None, (e.strip() for e in text.split(","))), 1):
        name, colon, key = entry.partition(":")
        if not colon:
            name, key = f"key{number}", entry
        name, key = name.strip(), key.strip()
        cure = "write name:key,name:key with each name once, of letters, digits, . _ -"
        if not key or name == ANONYMOUS or not re.match(NAME, name):
            raise ConfigRefused(f"entry {number} of {variable} has no key or no name", cure=cure)
        if any(name == known.name for known in keys):
            raise ConfigRefused(f"entry {number} of {variable} has a repeated name", cure=cure)
        keys.append(CallerKey(name=name, key=SecretStr(key)))
    if not keys:
        raise ConfigRefused(
            f"auth.api_keys_env names {variable}, which is unset or empty",
            cure=f"set {variable}=name:key, or leave auth out",
        )
    return keys


def keys_in_file(path: Path) -> list[CallerKey]:
    """The keys of a YAML file.

    Raises:
        ConfigRefused: It cannot be read, is not of the form, or names no key.
    """
    from ruamel.yaml import YAML  # noqa: PLC0415  (only where there is such a file)
    from ruamel.yaml.error import MarkedYAMLError, YAMLError  # noqa: PLC0415

    place = str(path)
    try:
        with path.open("rb") as file:
            raw = file.read(MAX_FILE_BYTES + 1)
    except OSError as exc:
        raise ConfigRefused(
            f"auth.api_keys_file cannot be read: {exc.strerror}",
            place=place,
            cure="write the file, or leave auth.api_keys_file out",
        ) from exc
    if len(raw) > MAX_FILE_BYTES:
        raise ConfigRefused(f"is larger than {MAX_FILE_BYTES} bytes", place=place)
    try:
        # Every scalar as text: a key of digits is no number, nor is a hash that reads like one.
        document = YAML(typ="base").load(raw)
    except (YAMLError, ValueError, RecursionError) as exc:
        # ruamel's own text quotes the line, which may hold a key.
        mark = exc.problem_mark if isinstance(exc, MarkedYAMLError) else None
        where = f"{place}:{mark.line + 1}" if mark is not None else place
        raise ConfigRefused("is not YAML", place=where) from None
    entries = document.get("keys") if isinstance(document, dict) else None
    if not isinstance(entries, list) or not entries or set(document) != {"keys"}:
        raise ConfigRefused(
            "has no list of keys, or has more than that",
            place=place,
            cure="write `keys:` and under it `- name: …` with `sha256: …` for each",
        )
    return [_entry(value, number, place) for number, value in enumerate(entries, 1)]


def _entry(value: Any, number: int, place: str) -> CallerKey:
    try:
        return CallerKey.model_validate(value)
    except ValidationError as exc:
        # The input is left out: it may be a key.
        faults = "; ".join(
            f"{'.'.join(map(str, e['loc'])) or 'it'}: {e['msg']}"
            for e in exc.errors(include_input=False, include_url=False, include_context=False)
        )
        raise ConfigRefused(
            f"entry {number} of keys does not hold: {faults}", place=place
        ) from None


def _check_together(keys: Sequence[CallerKey], *, place: str) -> None:
    if len(keys) > MAX_KEYS:
        raise ConfigRefused(f"{len(keys)} keys are more than {MAX_KEYS}", place=place)
    names: set[str] = set()
    digests: dict[bytes, str] = {}
    for key in keys:
        if key.name in names:
            raise ConfigRefused(f"two keys are called {key.name}", place=place)
        names.add(key.name)
        twin = digests.setdefault(key.digest, key.name)
        if twin != key.name:
            raise ConfigRefused(
                f"{twin} and {key.name} are the same key",
                place=place,
                cure="give each caller a key of its own",
            )
