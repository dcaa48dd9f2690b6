"""Faults on request: what an engine can do wrong, one word each.

A fault is written `NAME`, `NAME=VALUE`, and `*N` behind it for the next N requests only::

    refuse            503 before anything is read; `refuse=close` closes the connection instead
    hang              takes the request and never answers
    hang_at=K         stops writing after K tokens and keeps the connection
    die_at=K          the process ends (SIGKILL) after K tokens; 0 is before the first byte
    drop_at=K         the connection is cut after K tokens
    slow=X            prefill and decode take X times as long
    fail_kv_load      the KV of a handoff cannot be read
    kv_bytes_per_s=X  the KV of a handoff comes no faster than this, on the engine that reads it
    kv_delay_s=X      and so many seconds later
    garbage           answers that are no JSON and no SSE
    unhealthy         /health says 503

`expire_leases` is no state but an act: every KV offer ends now.
"""

from __future__ import annotations

from dataclasses import dataclass, field

from baton.errors import ConfigRefused

EXPIRE_LEASES = "expire_leases"
_WITHOUT_VALUE = frozenset({"hang", "fail_kv_load", "garbage", "unhealthy"})
_WITH_TOKENS = frozenset({"hang_at", "die_at", "drop_at"})
_WITH_FACTOR = frozenset({"slow", "kv_bytes_per_s", "kv_delay_s"})
_WITH_NUMBER = _WITH_TOKENS | _WITH_FACTOR
_REFUSALS = ("503", "close")
NAMES = tuple(sorted(_WITHOUT_VALUE | _WITH_NUMBER | {"refuse"}))


@dataclass(frozen=True)
class Plan:
    """What goes wrong with one request. Token counts are None where nothing happens."""

    refuse: str | None = None
    hang: bool = False
    hang_at: int | None = None
    die_at: int | None = None
    drop_at: int | None = None
    slow: float = 1.0
    fail_kv_load: bool = False
    kv_bytes_per_s: float | None = None
    kv_delay_s: float = 0.0
    garbage: bool = False

    def kv_transfer_s(self, kv_bytes: int, otherwise_s: float) -> float:
        """Seconds that moving so many bytes of KV takes, where it takes `otherwise_s` by itself."""
        if self.kv_bytes_per_s is not None:
            otherwise_s = max(otherwise_s, kv_bytes / self.kv_bytes_per_s)
        return otherwise_s + self.kv_delay_s


NO_FAULT = Plan()


@dataclass
class _Fault:
    name: str
    value: str
    left: int | None

    def __str__(self) -> str:
        value = f"={self.value}" if self.value else ""
        return f"{self.name}{value}" + (f"*{self.left}" if self.left is not None else "")


@dataclass
class Faults:
    """The faults that are on now; they can be set again while the engine runs."""

    _on: list[_Fault] = field(default_factory=list)

    def set(self, specs: list[str]) -> None:
        """Replace all faults. Raises ConfigRefused, and changes nothing, if one cannot be read."""
        self._on = [_parse(spec) for spec in specs]

    def listed(self) -> list[str]:
        return [str(fault) for fault in self._on]

    @property
    def unhealthy(self) -> bool:
        return any(fault.name == "unhealthy" for fault in self._on)

    def plan(self, for_this_request: str = "") -> Plan:
        """What happens to the next request; counts it against the faults that are limited.

        Args:
            for_this_request: Further faults, separated by commas (header `x-sim-fault`).
        """
        if not self._on and not for_this_request:
            return NO_FAULT
        own = [_parse(spec) for spec in for_this_request.split(",") if spec.strip()]
        chosen: dict[str, str] = {}
        for fault in [*self._on, *own]:
            chosen[fault.name] = fault.value
            if fault.left is not None:
                fault.left -= 1
        self._on = [fault for fault in self._on if fault.left is None or fault.left > 0]
        return _plan(chosen)


def _plan(chosen: dict[str, str]) -> Plan:
    def at(name: str) -> int | None:
        return int(chosen[name]) if name in chosen else None

    return Plan(
        refuse=chosen.get("refuse"),
        hang="hang" in chosen,
        hang_at=at("hang_at"),
        die_at=at("die_at"),
        drop_at=at("drop_at"),
        slow=float(chosen.get("slow", "1")),
        fail_kv_load="fail_kv_load" in chosen,
        kv_bytes_per_s=float(chosen["kv_bytes_per_s"]) if "kv_bytes_per_s" in chosen else None,
        kv_delay_s=float(chosen.get("kv_delay_s", "0")),
        garbage="garbage" in chosen,
    )


def _parse(spec: str) -> _Fault:
    body, _, count = spec.strip().partition("*")
    name, _, value = body.partition("=")
    left = None
    if count:
        left = int(count) if count.isdigit() else 0
        if left < 1:
            raise _refused(spec, "the count behind * is no positive number")
    if name == "refuse":
        value = value or _REFUSALS[0]
        if value not in _REFUSALS:
            raise _refused(spec, f"refuse takes {' or '.join(_REFUSALS)}")
    elif name in _WITH_NUMBER:
        _check_number(spec, name, value)
    elif name not in _WITHOUT_VALUE:
        raise _refused(spec, f"no such fault; there are {', '.join(NAMES)}")
    elif value:
        raise _refused(spec, f"{name} takes no value")
    return _Fault(name, value, left)


def _check_number(spec: str, name: str, value: str) -> None:
    if name in _WITH_FACTOR:
        try:
            good = 0 < float(value) < float("inf")
        except ValueError:
            good = False
        if not good:
            raise _refused(spec, f"{name} takes a positive number")
    elif not value.isdigit():
        raise _refused(spec, f"{name} takes a number of tokens")


def _refused(spec: str, why: str) -> ConfigRefused:
    return ConfigRefused(
        f"fault {spec.strip()!r} cannot be read: {why}",
        cure="write NAME, NAME=VALUE or NAME=VALUE*COUNT, for example die_at=5 or refuse*2",
    )
