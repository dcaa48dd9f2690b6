"""Two "nodes" on one machine: network namespaces that only a veth pair joins.

Needs root and iproute2. What it makes has this process's id in its name, and goes with it: both
namespaces end when the block ends, and with them the pair and whatever throttles it.
"""

from __future__ import annotations

import contextlib
import os
import shutil
import subprocess
from dataclasses import dataclass
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Iterator

_NET = "10.231.77"


class NoNamespaces(Exception):
    """This process may not make network namespaces, or has no tools for it."""


@dataclass(frozen=True)
class Node:
    """One namespace, its address, and its end of the veth pair."""

    netns: str
    host: str
    device: str

    def inside(self, *command: str) -> list[str]:
        """The command, to be run on this node."""
        return ["ip", "netns", "exec", self.netns, *command]

    def throttle(self, rate: str) -> None:
        """Let no more than so much leave this node, such as `20mbit`; replaces what was there."""
        shape = ("root", "tbf", "rate", rate, "burst", "64kb", "latency", "200ms")
        _run(*self.inside("tc", "qdisc", "replace", "dev", self.device, *shape))

    def release(self) -> None:
        """Take the throttle away."""
        _run(*self.inside("tc", "qdisc", "del", "dev", self.device, "root"))


def on(node: Node | None, command: list[str]) -> list[str]:
    """The command, on a node or here."""
    return command if node is None else node.inside(*command)


@contextlib.contextmanager
def two_nodes() -> Iterator[tuple[Node, Node]]:
    """Make two namespaces with a link between them, and remove them when the block ends.

    Raises:
        NoNamespaces: They cannot be made here.
    """
    missing = [name for name in ("ip", "tc") if shutil.which(name) is None]
    if missing:
        raise NoNamespaces(f"{', '.join(missing)} is not installed (package iproute2)")
    if os.geteuid() != 0:
        raise NoNamespaces("network namespaces need root")
    mark = os.getpid()
    nodes = tuple(Node(f"baton-{mark}-{k}", f"{_NET}.{k}", f"bt{mark}-{k}"[:15]) for k in (1, 2))
    first, second = nodes
    try:
        for node in nodes:
            _run("ip", "netns", "add", node.netns)
        peer = ("peer", "name", second.device, "netns", second.netns)
        link = ("link", "add", first.device, "netns", first.netns, "type", "veth")
        _run("ip", *link, *peer)
        for node in nodes:
            _run(*node.inside("ip", "addr", "add", f"{node.host}/24", "dev", node.device))
            for device in ("lo", node.device):
                _run(*node.inside("ip", "link", "set", device, "up"))
        yield first, second
    finally:
        for node in nodes:
            subprocess.run(["ip", "netns", "del", node.netns], capture_output=True, check=False)


def _run(*command: str) -> None:
    done = subprocess.run(command, capture_output=True, text=True, timeout=30, check=False)
    if done.returncode:
        raise NoNamespaces(f"`{' '.join(command)}` failed: {done.stderr.strip()}")
