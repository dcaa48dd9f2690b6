"""`make verify-local`: `baton verify` on real engines of this machine, one JSON line a verdict.

Four situations, each with real vLLM engines (the tiny model, on the CPU) behind a real gateway:

    ucx             two engines side by side; UCX takes shared memory
    libfabric-tcp   the same over LIBFABRIC, whose provider is tcp here: the trap of this field
    namespaces      two network namespaces joined by a veth pair, prefill on one and decode on the
                    other; the link is throttled and let go again, and the verdict follows
    ray             the same with a Ray node in each namespace, deployed by `baton up`

Each says what came out against what must: exit status 1 when one differs, 0 when all are as they
must be. What cannot be had on this machine is said, and counts as a difference only with --strict.
"""

from __future__ import annotations

import argparse
import json
import os
import subprocess
import sys
import tempfile
from pathlib import Path
from typing import TYPE_CHECKING, Any

ROOT = Path(__file__).resolve().parent.parent
sys.path[:0] = [str(ROOT), str(ROOT / "tools")]

from gateway_on import gateway_on  # noqa: E402
from libfabric_stack import CannotBeHad, libfabric_environment  # noqa: E402
from namespaces import Node, NoNamespaces, on, two_nodes  # noqa: E402
from ray_nodes import DidNotStart, deployed, ray_on  # noqa: E402
from tests.real_engines import EVIDENCE, EngineSpec, RealEngine, start_engines  # noqa: E402

from baton.demo.tiny_model import make_tiny_model  # noqa: E402

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence
    from contextlib import AbstractContextManager

CACHE = Path.home() / ".cache" / "baton" / "libfabric-tcp"
THROTTLE = "20mbit"
"""2.5 MB/s, where the tiny model's prefill makes some tens of MB of KV a second."""
VERIFY_S = 300.0
GATEWAY_PORT = 18790


class Log:
    """Prints verdicts, and remembers whether all were as they must be."""

    def __init__(self, record: Path | None) -> None:
        self.differs: list[str] = []
        self.missing: list[str] = []
        self._record = record

    def verdict(
        self,
        scenario: str,
        require: str,
        said: dict[str, Any],
        want: Callable[[dict[str, Any]], bool],
    ) -> None:
        """One JSON line for each pair of a verification; without any it is not as it must be."""
        if not said["pairs"]:
            self.differs.append(f"{scenario} --require {require}: no pair was verified")
        for pair in said["pairs"]:
            evidence = pair.pop("based_on")
            good = want(pair)
            if not good:
                self.differs.append(f"{scenario} --require {require}")
            line = {
                "scenario": scenario,
                "require": require,
                "outcome": pair["outcome"],
                "as_it_must_be": good,
                "requested_backends": pair["requested_backends"],
                "observed_backends": pair["observed_backends"],
                "observed_fabric": pair["observed_fabric"],
                "numbers": pair["numbers"],
                "reasons": pair["reasons"],
            }
            sys.stdout.write(json.dumps(line) + "\n")
            sys.stdout.flush()
            if self._record is not None and require == "any":
                self._record.mkdir(parents=True, exist_ok=True)
                evidence["source"] = f"make verify-local, scenario {scenario}"
                path = self._record / f"{scenario}.json"
                path.write_text(json.dumps(evidence, indent=1) + "\n", encoding="utf-8")

    def cannot(self, scenario: str, why: object) -> None:
        """Say that a scenario cannot be played here."""
        self.missing.append(scenario)
        sys.stdout.write(json.dumps({"scenario": scenario, "not_run": str(why)}) + "\n")


def passes(pair: dict[str, Any]) -> bool:
    """PASS."""
    return bool(pair["outcome"] == "PASS")


def refuses(text: str) -> Callable[[dict[str, Any]], bool]:
    """FAIL, for a reason that says this."""
    return lambda pair: (
        pair["outcome"] == "FAIL"
        and any(reason["weight"] == "fail" and text in reason["fact"] for reason in pair["reasons"])
    )


too_slow = refuses("slower than prefill makes KV")


def gateway(
    engines: Sequence[RealEngine], folder: Path, node: Node | None
) -> AbstractContextManager[str]:
    """`baton gateway` before a pair, on the node where decode is."""
    prefill, decode = engines
    return gateway_on(
        node, GATEWAY_PORT, folder / "gateway.log", prefill=[prefill.url], decode=[decode.url]
    )


def verify(url: str, require: str, node: Node | None = None) -> dict[str, Any]:
    """`baton verify URL --require … --json`, and its exit status beside what it said."""
    command = [sys.executable, "-m", "baton.cli", "verify", url, "--require", require, "--json"]
    done = subprocess.run(
        on(node, command), capture_output=True, text=True, timeout=VERIFY_S, check=False
    )
    if not done.stdout:
        raise RuntimeError(f"baton verify said nothing: {done.stderr[-1000:]}")
    said: dict[str, Any] = json.loads(done.stdout)["verified"][0]
    if done.returncode != said["exit_status"]:
        raise RuntimeError(f"exit status {done.returncode}, and {said['exit_status']} in its JSON")
    return said


def pair(
    backends: tuple[str, ...] = (),
    environment: dict[str, str] | None = None,
    nodes: tuple[Node, Node] | None = None,
) -> list[EngineSpec]:
    """A prefill and a decode engine that answer `baton verify`."""
    found = []
    for place, role in enumerate(("prefill", "decode")):
        node = None if nodes is None else nodes[place]
        more = dict(environment or {})
        if node is not None:
            # No name of this machine leads to an address of the namespace.
            more |= {"VLLM_HOST_IP": node.host, "GLOO_SOCKET_IFNAME": node.device}
        found.append(
            EngineSpec(
                role,
                f"{role}-0",
                EVIDENCE,
                backends=backends,
                environment=tuple(more.items()),
                host="127.0.0.1" if node is None else node.host,
                netns=None if node is None else node.netns,
            )
        )
    return found


def ucx(log: Log, folder: Path) -> None:
    """UCX between two engines of one machine."""
    with start_engines(pair(), folder) as engines, gateway(engines, folder, None) as url:
        log.verdict("ucx", "any", verify(url, "any"), passes)
        log.verdict("ucx", "efa", verify(url, "efa"), refuses("and efa is required"))


def libfabric_tcp(log: Log, folder: Path) -> None:
    """LIBFABRIC, which found no EFA and took TCP without a word."""
    environment = libfabric_environment(CACHE)
    specs = pair(("LIBFABRIC",), environment)
    with start_engines(specs, folder) as engines, gateway(engines, folder, None) as url:
        log.verdict("libfabric-tcp", "any", verify(url, "any"), passes)
        refused = refuses("LIBFABRIC runs on tcp, and efa is required")
        log.verdict("libfabric-tcp", "efa", verify(url, "efa"), refused)


def namespaces(log: Log, folder: Path) -> None:
    """Two places, and a link between them that can be made slow."""
    with two_nodes() as nodes:
        here, there = nodes
        # UCX would find the other engine's memory: these two nodes are one machine after all.
        specs = pair(environment={"UCX_TLS": "tcp"}, nodes=nodes)
        with start_engines(specs, folder) as engines, gateway(engines, folder, there) as url:
            log.verdict("namespaces", "any", verify(url, "any", there), passes)
            here.throttle(THROTTLE)
            throttled = verify(url, "any", there)
            log.verdict("namespaces-throttled", "any", throttled, too_slow)
            here.release()
            log.verdict("namespaces-released", "any", verify(url, "any", there), passes)


def ray(log: Log, folder: Path) -> None:
    """A deployment of `baton up` whose roles live on two Ray nodes."""
    model = make_tiny_model(folder / "model")
    with two_nodes() as nodes:
        here, there = nodes
        with (
            ray_on(here, there, {"UCX_TLS": "tcp"}) as address,
            deployed(address, here, model, folder) as url,
        ):
            log.verdict("ray", "any", verify(url, "any", here), passes)
            log.verdict("ray", "efa", verify(url, "efa", here), refuses("and efa is required"))
            here.throttle(THROTTLE)
            log.verdict("ray-throttled", "any", verify(url, "any", here), too_slow)
            here.release()  # what ends it goes over the same link


SCENARIOS: dict[str, Callable[[Log, Path], None]] = {
    "ucx": ucx,
    "libfabric-tcp": libfabric_tcp,
    "namespaces": namespaces,
    "ray": ray,
}


def main() -> int:
    """Play the scenarios one after the other."""
    parser = argparse.ArgumentParser(prog="make verify-local")
    parser.add_argument("--only", action="append", choices=list(SCENARIOS))
    parser.add_argument("--record", type=Path, help="write the evidence into this folder")
    parser.add_argument("--strict", action="store_true")
    given = parser.parse_args()
    os.environ["PYTHONPATH"] = f"{ROOT / 'src'}:{ROOT}"
    log = Log(given.record)
    for name in given.only or SCENARIOS:
        with tempfile.TemporaryDirectory(prefix="baton-verify-") as folder:
            sys.stderr.write(f"{name}: starting engines\n")
            try:
                SCENARIOS[name](log, Path(folder))
            except (CannotBeHad, NoNamespaces) as why:
                log.cannot(name, why)
            except DidNotStart as why:
                log.cannot(name, why)
                log.differs.append(name)
    for name in log.differs:
        sys.stderr.write(f"not as it must be: {name}\n")
    return 1 if log.differs or (given.strict and log.missing) else 0


if __name__ == "__main__":
    sys.exit(main())
