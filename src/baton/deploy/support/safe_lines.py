"""What of a log line may leave the machine: nothing but what is proven to be harmless.

    stamp, level, process     read and written anew
    message                   as words of the program's source (`templates`), or left out
    Baton's fields            by name, of a kind that holds no text of a caller
    traceback                 places in code that exist here, types that are known; no text

A line of which nothing is known is dropped. Whoever writes a prompt that looks like a log line gets
the program's own words back.
"""

from __future__ import annotations

import builtins
import functools
import importlib.util
import json
import re
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

import baton
from baton import errors
from baton.deploy.support.templates import LEFT_OUT, Templates
from baton.gateway.routes import TABLE

if TYPE_CHECKING:
    from collections.abc import Iterable

_LEVEL = r"(DEBUG|INFO|WARNING|ERROR|CRITICAL)"
_PROCESS = r"(?:\((?:EngineCore|Worker|APIServer|ApiServer)[A-Z0-9_]{0,20} pid=\d{1,8}\) )?"
_VLLM = re.compile(
    rf"({_PROCESS}){_LEVEL} (\d\d-\d\d \d\d:\d\d:\d\d) \[([\w/.-]{{1,80}}\.py):(\d{{1,6}})\] (.*)"
)
_SERVE = re.compile(
    rf"{_LEVEL} (\d{{4}}-\d\d-\d\d \d\d:\d\d:\d\d,\d{{3}})"
    r" (\S{1,100}) (\S{1,100}) (?:\S{1,100} )?-- (.*)"
)
_RAY = re.compile(
    r"\[(\d{4}-\d\d-\d\d \d\d:\d\d:\d\d,\d{3}) ([A-Z]) (\d+) (\d+)\] \(([a-z_]{1,30})\)"
    r" ([a-z_0-9]{1,60}\.cc:\d{1,6}): .*"
)
_BATON = re.compile(
    r"(\d{4}-\d\d-\d\dT\d\d:\d\d:\d\d\.\d{3}Z) (debug|info|warning|error|critical) +"
    r"(baton[a-z_.]{0,60}) (.*)"
)
_FIELD = re.compile(r" ([a-z_]{2,30})=(\S{1,200})(?=$| [a-z_]{2,30}=)")
_FIRST_FIELD = re.compile(r" [a-z_]{2,30}=")
_ACCESS = "baton.gateway.access"
_REQUEST_LINE = re.compile(r"(?:GET|HEAD|POST) (\S{1,60}) [0-9]{1,3}")
PATHS = frozenset(route.path for route in TABLE) | {"?"}
_PLACE = re.compile(r'\s+File "([^"\s]{1,400}\.py)", line (\d{1,6})(?:, in [\w<>.]{1,100})?')
_RAISED = re.compile(r"(?:[\w.]{1,100}\.)?([A-Z]\w{1,60})(?::.*)?")
_FIXED = frozenset({
    "Traceback (most recent call last):",
    "During handling of the above exception, another exception occurred:",
    "The above exception was the direct cause of the following exception:",
})  # fmt: skip

# Baton's own fields whose values no caller can write text into. `request_id` is the caller's, of
# letters, digits, dots and dashes, 64 at most: without it nothing can be followed.
FIELDS = frozenset({
    "request_id", "key", "route", "reason", "outcome", "prefill", "decode", "prefill_why",
    "decode_why", "code", "status", "role", "fallback", "failure", "how", "failed_engine", "engine",
    "keys",
    "engines", "errno", "limit_s", "drain_s", "duration_s", "hung_up_in", "ttft_s", "total_s",
    "admit_s", "queue_s", "route_s", "prefill_s", "handoff_s", "first_token_s", "decode_s",
    "local_prefill_s", "answer_s", "overflow_s",
})  # fmt: skip
_VALUE = re.compile(r"[A-Za-z0-9._/:\[\]#-]{1,120}")
_KNOWN_ERRORS = frozenset(
    name
    for module in (builtins, errors)
    for name, value in vars(module).items()
    if isinstance(value, type) and issubclass(value, BaseException)
) | {"EngineDeadError", "EngineGenerateError", "OutOfMemoryError", "ValidationError",
     "ClientConnectorError", "RayTaskError", "ActorDiedError", "RayActorError"}  # fmt: skip


@dataclass
class SafeLines:
    """Rewrites lines. Counts what became of them."""

    vllm: Templates
    serve: Templates
    own: Templates
    whole: int = 0
    """With their message, or all that is known of it."""
    cut: int = 0
    """Without their message."""
    left_out: int = 0

    @classmethod
    def of_this_machine(cls) -> SafeLines:
        """With the sources that are installed here. None of them is imported."""
        own = Path(baton.__file__).parent
        ray = _folder("ray")
        vllm = _folder("vllm")
        serve = ray / "serve" / "_private" if ray else None
        return cls(_templates(vllm), _templates(serve), _templates(own))

    def all(self, lines: Iterable[str]) -> Iterable[str]:
        """Those of which something may be shown."""
        for line in lines:
            shown = self.one(line)
            if shown is None:
                self.left_out += 1
                continue
            if shown.endswith(LEFT_OUT):
                self.cut += 1
            else:
                self.whole += 1
            yield shown

    def one(self, line: str) -> str | None:
        """What may be shown of a line; None for nothing."""
        for how in (self._baton_text, self._baton_json, self._vllm, self._serve, _ray, _trace):
            shown = how(line)
            if shown is not None:
                return shown
        return None

    def _vllm(self, line: str) -> str | None:
        found = _VLLM.fullmatch(line)
        if found is None:
            return None
        process, level, at, file, number, message = found.groups()
        name = file.rpartition("/")[2]
        said = self.vllm.at(name, int(number), message)
        if said is None and not self.vllm.knows(name):
            return None
        return f"{process}{level} {at} [{name}:{number}] {said or LEFT_OUT}"

    def _serve(self, line: str) -> str | None:
        found = _SERVE.fullmatch(line)
        if found is None:
            return None
        level, at, _, _, message = found.groups()
        return f"{level} {at} serve -- {self.serve.anywhere(message) or LEFT_OUT}"

    def _baton_text(self, line: str) -> str | None:
        found = _BATON.fullmatch(line)
        if found is None:
            return None
        at, level, logger, rest = found.groups()
        first = _FIRST_FIELD.search(rest)
        message = rest if first is None else rest[: first.start()]
        said = self._said(logger, message)
        fields = []
        # Behind a message that ends in free text, what looks like a field may be part of it.
        one = (
            None if first is None or said.endswith(LEFT_OUT) else _FIELD.match(rest, first.start())
        )
        while one is not None and _is_known(one[1], logger):
            if _VALUE.fullmatch(one[2]):
                fields.append(f" {one[1]}={one[2]}")
            one = _FIELD.match(rest, one.end())
        return f"{at} {level} {self._logger(logger)} {said}{''.join(fields)}"

    def _said(self, logger: str, message: str) -> str:
        if logger == _ACCESS:
            asked = _REQUEST_LINE.fullmatch(message)
            known = asked is not None and asked[1] in PATHS
            return message if known else LEFT_OUT
        return self.own.anywhere(message) or LEFT_OUT

    def _baton_json(self, line: str) -> str | None:
        if not line.startswith('{"time":'):
            return None
        try:
            said: dict[str, Any] = json.loads(line)
        except ValueError:
            return None
        at, level = str(said.get("time")), str(said.get("level"))
        logger = str(said.get("logger"))
        if not (_VALUE.fullmatch(at.replace("+", "")) and level.isalpha()):
            return None
        shown = {
            key: value
            for key, value in said.items()
            if _is_known(key, logger)
            and _VALUE.fullmatch(str(value))
            and not isinstance(value, list | dict)
        }
        message = self._said(logger, str(said.get("message")))
        head = {"time": at, "level": level[:10], "logger": self._logger(logger)}
        return json.dumps({**head, "message": message, **shown}, ensure_ascii=False)

    def _logger(self, name: str) -> str:
        """A logger's name, if there is such a module."""
        path = Path(baton.__file__).parent.joinpath(*name.split(".")[1:])
        known = path.is_dir() or path.with_suffix(".py").is_file() or name in _LOGGERS
        return name if known else "baton"


def _is_known(field: str, logger: str) -> bool:
    """Whether no text gets into that field. `reason` is an exception's, but for the access line."""
    return field in FIELDS and (field != "reason" or logger == _ACCESS)


_LOGGERS = frozenset({"baton.gateway.access", "baton.engine.access"})


def _ray(line: str) -> str | None:
    found = _RAY.fullmatch(line)
    if found is None:
        return None
    at, level, pid, thread, program, place = found.groups()
    return f"[{at} {level} {pid} {thread}] ({program}) {place}: {LEFT_OUT}"


def _trace(line: str) -> str | None:
    """A part of a traceback."""
    if line in _FIXED:
        return line
    place = _PLACE.fullmatch(line)
    if place is not None:
        path = Path(place[1])
        return f"  File {path}, line {place[2]}" if path.is_file() else None
    raised = _RAISED.fullmatch(line)
    if raised is not None and raised[1] in _KNOWN_ERRORS:
        return f"{raised[1]}: {LEFT_OUT}"
    return None


@functools.cache
def _templates(folder: Path | None) -> Templates:
    """Sources do not change while a command runs."""
    return Templates.below([] if folder is None else [folder])


def _folder(package: str) -> Path | None:
    try:
        spec = importlib.util.find_spec(package)
    except (ImportError, ValueError):
        return None
    return None if spec is None or spec.origin is None else Path(spec.origin).parent
