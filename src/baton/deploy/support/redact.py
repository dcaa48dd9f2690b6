"""Takes secrets out of config, JSON and text: by key, by known value, and by look."""

from __future__ import annotations

import re
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping

REMOVED = "[removed]"
_SHORTEST = 6
"""Known secrets shorter than this would take ordinary words along; they are left out by key."""

_SECRET_KEY = re.compile(
    r"(?i)(secret|passw|token(?!s|iz|_id)|api[-_]?key|apikey|credential|private|authorization|cookie"
    r"|access[-_]?key|(?:^|[-_])keys?$|(?:^|[-_])auth$|(?:^|[-_])pat$|dsn|signature|salt)"
)
# Names that only look like it, of this project's and vLLM's config.
_HARMLESS = frozenset({
    "api_keys_env", "api_keys_file", "api_key_env", "first_token", "auth", "keys", "max_tokens",
    "key_requests", "tokens_per_byte",
})  # fmt: skip
_PROMPT_KEY = re.compile(
    r"(?i)(prompt(?!_tokens)|messages?$|chat_template|^content$|^text$|^input$|instructions|^output$)"
)
# Variables whose values say how things are set up; of all others only the name is kept.
_SHOWN_VARIABLE = re.compile(
    r"(VLLM|RAY|NIXL|UCX|FI|NCCL|CUDA|OMP|MKL|TORCH|TORCHDYNAMO|PYTORCH|HF_HUB|LD|BATON|RLIMIT)_"
    r"[A-Z0-9_]+"
)
_LOOKS: tuple[tuple[re.Pattern[str], str], ...] = tuple(
    (re.compile(pattern), text)
    for pattern, text in (
        (r"-----BEGIN [A-Z ]{0,40}-----[\s\S]*?(?:-----END [A-Z ]{0,40}-----|\Z)", REMOVED),
        (r"(?i)\b([a-z][a-z0-9+.-]{1,20}://)[^\s/@'\"]+@", rf"\1{REMOVED}@"),
        (r"(?i)\b(bearer|basic|digest|negotiate)\s+[^\s'\",;}]{4,}", rf"\1 {REMOVED}"),
        (
            r"""(?ix)(["']?\b[\w-]*(?:secret|passw(?:or)?d|passphrase|api[-_]?key|token(?!s|iz|_id)
            |credential|access[-_]?key|authorization|cookie|signature)[\w-]*["']?
            \s*[:=]\s*)(?!\[removed\])("[^"]*"|'[^']*'|[^\s,;&}\]]+)""",
            rf"\1{REMOVED}",
        ),
        (r"\bhf_[A-Za-z0-9]{8,}", REMOVED),
        (r"\b(?:sk|rk|pk)[-_][A-Za-z0-9_-]{8,}", REMOVED),
        (r"\b(?:AKIA|ASIA)[0-9A-Z]{12,}", REMOVED),
        (r"\bgh[opsur]_[A-Za-z0-9]{16,}|\bgithub_pat_\w{16,}", REMOVED),
        (
            r"\bglpat-[\w-]{12,}|\bxox[abprs]-[\w-]{10,}|\bAIza[\w-]{20,}|\bnvapi-[\w-]{16,}",
            REMOVED,
        ),
        (r"\beyJ[\w-]{8,}\.[\w-]{4,}(?:\.[\w-]*)?", REMOVED),
    )
)


@dataclass(frozen=True)
class Redactor:
    """Knows secrets, and what secrets look like.

    Args:
        known: Values that must not appear anywhere, whatever they look like.
    """

    known: tuple[str, ...] = ()

    @classmethod
    def knowing(cls, secrets: Iterable[str | None]) -> Redactor:
        """Longest first, so that none leaves its end behind."""
        found = {s for s in secrets if s is not None and len(s) >= _SHORTEST}
        return cls(tuple(sorted(found, key=len, reverse=True)))

    def text(self, text: str) -> str:
        """A text without them."""
        for secret in self.known:
            text = text.replace(secret, REMOVED)
        for pattern, instead in _LOOKS:
            text = pattern.sub(instead, text)
        return text

    def data(self, value: Any) -> Any:
        """Config or JSON without them: by key, then each string by look. Prompts go by key."""
        if isinstance(value, dict):
            return {str(key): self._under(str(key), below) for key, below in value.items()}
        if isinstance(value, list | tuple):
            return [self.data(one) for one in value]
        return self.text(value) if isinstance(value, str) else value

    def _under(self, key: str, value: Any) -> Any:
        if key in {"env_vars", "env", "environment"} and isinstance(value, dict):
            return {name: self.variable(str(name), str(one)) for name, one in value.items()}
        if key not in _HARMLESS and value is not None and not isinstance(value, bool):
            secret = _SECRET_KEY.search(key) and not isinstance(value, int | float)
            if secret or _PROMPT_KEY.search(key):
                return REMOVED
        return self.data(value)

    def variable(self, name: str, value: str) -> str:
        """An environment variable's value, where it may be shown."""
        if _SECRET_KEY.search(name) or not _SHOWN_VARIABLE.fullmatch(name):
            return REMOVED
        return self.text(value)

    def leaks(self, raw: bytes) -> bool:
        """Whether a known secret is in there after all."""
        return any(secret.encode() in raw for secret in self.known)


def secrets_in(environ: Mapping[str, str]) -> list[str]:
    """Values of variables that are secret by their names."""
    return [value for name, value in environ.items() if _SECRET_KEY.search(name)]
