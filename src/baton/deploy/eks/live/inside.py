"""`baton verify` inside the cluster, and what each worker's own log and devices say beside it.

Three witnesses: Baton's measurement through the endpoint, NIXL's lines in the Ray session logs (the
provider that its rails really use), and the byte counters of the EFA devices before and after. A
silent fall back to TCP can fool one of them, not all three. What cannot be read is unknown.
"""

from __future__ import annotations

import re
from dataclasses import dataclass
from typing import TYPE_CHECKING, Literal

from baton.deploy.eks import ports

if TYPE_CHECKING:
    from collections.abc import Mapping

    from baton.deploy.eks.layout import Layout
    from baton.deploy.eks.live.commands import Done, Runner
    from baton.deploy.eks.live.waits import PodView

Word = Literal["pass", "fail", "unknown"]
VERIFYING_S = 1800.0
LOGS = "/tmp/ray/session_latest/logs"  # noqa: S108 - in the pod
# NIXL 1.3 says it with NIXL_LOG_LEVEL=INFO, which the rendered workers set.
_RAILS = re.compile(r"Created (\d+) rails using provider=([\w;-]+)")
_BACKEND = re.compile(r"Backend (\w+) was instantiated")
EFA_PROVIDERS = frozenset({"efa", "efa-direct"})
_COUNTERS = "/sys/class/infiniband/*/ports/*/hw_counters"
# What moves when KV moves: NIXL's LIBFABRIC plugin reads or writes by RDMA
# (EFA driver, hw_counters: rdma_read_bytes, rdma_write_recv_bytes, tx_bytes …).
_BYTES = ("rx_bytes", "tx_bytes", "rdma_read_bytes", "rdma_read_resp_bytes", "rdma_write_bytes",
          "rdma_write_recv_bytes")  # fmt: skip


@dataclass(frozen=True)
class Witness:
    """What one worker says of itself."""

    pod: str
    phase: str
    backends: frozenset[str] = frozenset()
    providers: frozenset[str] = frozenset()
    moved_bytes: int | None = None
    """Through its EFA devices, meanwhile; None when the counters could not be read."""
    unread: str = ""


@dataclass(frozen=True)
class Said:
    """A verdict with its reason."""

    word: Word
    text: str


def in_pod(layout: Layout, pod: str, container: str, script: str) -> tuple[str, ...]:
    """`kubectl exec` of a shell line."""
    space = layout.settings.namespace
    return (
        "kubectl", "exec", "-n", space, pod, "-c", container, "--", "/bin/bash", "-c", script,
    )  # fmt: skip


def verify_script(layout: Layout) -> str:
    """`baton verify` on the head, against the edge that runs there."""
    prefix = (layout.app.route_prefix or "").rstrip("/")
    line = f"baton verify http://127.0.0.1:{ports.SERVE}{prefix} --json"
    require = layout.app.baton.transport.require
    if require != "any":
        line += f" --require {require}"
    name = layout.app.baton.auth.api_keys_env
    if name is None:
        return line
    # `name:key,name:key`: one is enough, and it stays in the pod.
    key = f'KEY="${{{name}%%,*}}"; export BATON_VERIFY_KEY="${{KEY#*:}}"'
    return f"{key}; {line} --api-key-env BATON_VERIFY_KEY"


def log_script() -> str:
    """NIXL's lines in a worker's session logs, each once."""
    pattern = "Created [0-9]+ rails using provider=[A-Za-z;_-]+|Backend [A-Z_]+ was instantiated"
    return f"grep -rhoE '{pattern}' {LOGS} | sort -u; exit 0"


def counter_script() -> str:
    """`name value` of every byte counter of every device."""
    names = " -o ".join(f"-name {name}" for name in _BYTES)
    return (
        f"find {_COUNTERS} \\( {names} \\) 2>/dev/null | while read -r f; do"
        ' echo "$f $(cat "$f")"; done'
    )


def read_log(done: Done) -> tuple[frozenset[str], frozenset[str], str]:
    """Backends and providers that a log names, and why it could not be read."""
    if done.code != 0:
        return frozenset(), frozenset(), done.reason
    backends = frozenset(_BACKEND.findall(done.out))
    providers = frozenset(provider for _, provider in _RAILS.findall(done.out))
    return backends, providers, ""


def read_counters(done: Done) -> dict[str, int] | None:
    """Counters by path; None when there are none to read."""
    if done.code != 0:
        return None
    found = {}
    for line in done.out.splitlines():
        path, _, value = line.rpartition(" ")
        if path and value.isdigit():
            found[path] = int(value)
    return found or None


def moved(before: Mapping[str, int] | None, after: Mapping[str, int] | None) -> int | None:
    """Bytes between two readings; None when either is missing or a device began anew."""
    if before is None or after is None or set(before) != set(after):
        return None
    differences = [after[path] - before[path] for path in before]
    return None if any(d < 0 for d in differences) else sum(differences)


def judge_witnesses(witnesses: list[Witness], *, efa: bool) -> Said:
    """What logs and counters say together.

    Args:
        witnesses: One for each worker.
        efa: Whether KV is to go over EFA.
    """
    if not witnesses:
        return Said("unknown", "there are no workers to ask")
    if not efa:
        names = sorted({name for w in witnesses for name in w.backends})
        return Said("pass", f"EFA is not asked for; backends: {', '.join(names) or 'none named'}")
    wrong = [
        f"{w.pod}: provider {', '.join(sorted(w.providers - EFA_PROVIDERS))}"
        for w in witnesses
        if w.providers - EFA_PROVIDERS
    ]
    if wrong:
        return Said("fail", f"KV does not go over EFA alone: {'; '.join(wrong)}")
    silent = [w for w in witnesses if not w.providers]
    if silent:
        why = "; ".join(f"{w.pod}: {w.unread or 'its log names no provider'}" for w in silent)
        return Said("unknown", why)
    return _counted(witnesses)


def _counted(witnesses: list[Witness]) -> Said:
    uncounted = [w.pod for w in witnesses if w.moved_bytes is None]
    if uncounted:
        return Said("unknown", f"counters could not be read: {', '.join(uncounted)}")
    still = [w.pod for w in witnesses if not w.moved_bytes]
    if still:
        return Said("fail", f"no byte went through the EFA devices of {', '.join(still)}")
    total = sum(w.moved_bytes or 0 for w in witnesses)
    return Said("pass", f"every worker uses provider efa; {total:,} bytes by their own counters")


def judge_verify(done: Done) -> Said:
    """What `baton verify` in the pod came to: 0 all pass, 1 one fails, 2 something is unknown."""
    if "baton: command not found" in done.err + done.out or done.code == 127:  # noqa: PLR2004
        return Said("unknown", "the image has no `baton` in it: nothing was measured")
    words: dict[int, Word] = {0: "pass", 1: "fail"}
    texts = {0: "every pair passes", 1: "a pair fails", 2: "something is not known"}
    text = texts.get(done.code, done.reason)
    return Said(words.get(done.code, "unknown"), text)


@dataclass(frozen=True)
class Proof:
    """Everything that was found out."""

    measured: Said
    witnessed: Said
    witnesses: tuple[Witness, ...]
    output: str
    """What `baton verify` printed."""

    @property
    def exit_status(self) -> int:
        """1 when anything failed, 2 when anything is unknown, else 0."""
        words = {self.measured.word, self.witnessed.word}
        if "fail" in words:
            return 1
        return 2 if "unknown" in words else 0


def prove(layout: Layout, pods: list[PodView], runner: Runner) -> Proof:
    """Runs the verification on the head, and reads every worker before and after."""
    workers = [pod for pod in pods if pod.phase in ("prefill", "decode") and pod.ready]
    head = next((pod for pod in pods if pod.phase == "head" and pod.ready), None)

    def counters() -> dict[str, dict[str, int] | None]:
        script = counter_script()
        return {
            pod.name: read_counters(runner.read(in_pod(layout, pod.name, "ray-worker", script)))
            for pod in workers
        }

    before = counters()
    output = ""
    if head is None:
        measured = Said("unknown", "there is no head that is ready")
    else:
        done = runner.read(
            in_pod(layout, head.name, "ray-head", verify_script(layout)), limit_s=VERIFYING_S
        )
        measured, output = judge_verify(done), done.out
    after = counters()
    witnesses = []
    for pod in workers:
        log = runner.read(in_pod(layout, pod.name, "ray-worker", log_script()))
        backends, providers, unread = read_log(log)
        bytes_ = moved(before[pod.name], after[pod.name])
        witnesses.append(Witness(pod.name, pod.phase, backends, providers, bytes_, unread))
    wanted = sum(group.workers for group in layout.groups)
    if len(workers) < wanted:
        witnessed = Said("unknown", f"{len(workers)} of {wanted} workers are ready")
    else:
        witnessed = judge_witnesses(witnesses, efa=layout.efa)
    return Proof(measured, witnessed, tuple(witnesses), output)
