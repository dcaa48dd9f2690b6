"""Names what a pair's bytes travelled on, from what both sides and a probe between them said. Pure.

UCX's tables name a transport for each operation; the operation that moves KV is decode's read
(`NixlConnector`) or prefill's write (`NixlPushConnector`). LIBFABRIC's provider stands in the
addresses of its endpoints. Where nothing was said, the answer is None, with the reason.
"""

from __future__ import annotations

import re
from dataclasses import dataclass
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Iterable

    from baton.spec.transfer import EngineFacts, Fabric, UcxProtocol, WorkerFacts
    from baton.verify.evidence import PairEvidence

# UCX 1.20's transport names (uct/*/…: UCT_TL_DEFINE), matched at the beginning of `name/device`.
_TRANSPORTS: tuple[tuple[re.Pattern[str], Fabric], ...] = (
    (re.compile(r"tcp$"), "tcp"),
    (re.compile(r"cuda_ipc$"), "cuda_ipc"),
    (re.compile(r"(cma|knem|xpmem|sysv|posix|mm|memory|self)$"), "shm"),
    (re.compile(r"(srd|ud_efa|efa)"), "efa"),
    (re.compile(r"(rc|dc|ud|gga)(_|$)"), "rdma"),
)
# Copies between kinds of memory of one process: never what crosses over.
_COPIES = re.compile(r"(cuda_copy|gdr_copy|rocm_copy|ze_copy)$")
_BETWEEN = ("intra-node", "inter-node")
_PROVIDERS: dict[str, Fabric] = {
    "tcp": "tcp",
    "sockets": "tcp",
    "efa": "efa",
    "efa-direct": "efa",
    "verbs": "rdma",
    "shm": "shm",
}


@dataclass(frozen=True)
class Seen:
    """The fabric, what shows it, and why it is not known where it is None."""

    fabric: Fabric | None
    shown_by: str = ""
    why_not: str = ""


def of_transport(transport: str) -> set[Fabric]:
    """The fabrics in one UCX cell: `tcp/lo`, or several rails as `50% on rc_mlx5/… 50% on …`."""
    found: set[Fabric] = set()
    for part in re.findall(r"[a-z_0-9]+(?=/)", transport) or [transport]:
        if _COPIES.search(part):
            continue
        for pattern, fabric in _TRANSPORTS:
            if pattern.match(part):
                found.add(fabric)
                break
    return found


def of_provider(provider: str | None) -> Fabric | None:
    """The fabric of a libfabric provider; layered ones as `tcp;ofi_rxm`."""
    return None if provider is None else _PROVIDERS.get(provider.split(";")[0])


def fabric_of(evidence: PairEvidence) -> Seen:
    """What this pair's handoffs ran on."""
    facts = evidence.decode.facts
    if facts is None:
        return _by_probe(evidence) or Seen(
            None, why_not=evidence.decode.why_no_facts or "decode says nothing of its transfers"
        )
    if facts.simulated:
        return Seen(None, why_not="simulated engines move no KV")
    if not facts.workers:
        return Seen(None, why_not="decode has no worker that transfers KV")
    if any("LIBFABRIC" in worker.observed_backends for worker in facts.workers):
        seen = _by_libfabric(facts.workers)
    elif any("UCX" in worker.observed_backends for worker in facts.workers):
        seen = _by_ucx(evidence, facts)
    else:
        return Seen(None, why_not="decode's NIXL agent holds no backend that is known here")
    return seen if seen.fabric is not None else _by_probe(evidence) or seen


def _by_libfabric(workers: Iterable[WorkerFacts]) -> Seen:
    rails = [worker.libfabric for worker in workers]
    providers = {None if one is None else one.provider for one in rails}
    if len(providers) != 1:
        return Seen(
            None, why_not=f"workers disagree on the provider: {sorted(map(str, providers))}"
        )
    provider = providers.pop()
    fabric = of_provider(provider)
    count = sum(one.rails for one in rails if one is not None)
    if fabric is None:
        return Seen(None, why_not="the addresses of LIBFABRIC's endpoints are of no known form")
    return Seen(
        fabric, f"LIBFABRIC runs on provider {provider}: the addresses of its {count} endpoint(s)"
    )


def _by_ucx(evidence: PairEvidence, facts: EngineFacts) -> Seen:
    pushes = "push" in (facts.connector or "").lower()
    side = evidence.prefill.facts if pushes else facts
    operation = "put" if pushes else "get"
    if side is None:
        return Seen(None, why_not="prefill, which writes the KV, says nothing of its transfers")
    if not all(worker.notes_ucx for worker in side.workers):
        return Seen(
            None, why_not="UCX takes no notes there (UCX_PROTO_INFO; see baton.engine.ucx_notes)"
        )
    rows = [row for worker in side.workers for row in worker.ucx]
    scopes = {row.scope for row in rows if row.operation == operation}
    if {"intra-node", "inter-node"} <= scopes:
        # It has peers here and elsewhere: this pair's are those of one kind.
        here = evidence.prefill.node == evidence.decode.node
        rows = [row for row in rows if row.scope == ("intra-node" if here else "inter-node")]
    return of_tables(rows, operation)


def of_tables(protocols: Iterable[UcxProtocol], operation: str) -> Seen:
    """What UCX's tables say of reads (`get`) or writes (`put`) between processes."""
    rows = [row for row in protocols if row.operation == operation and row.scope in _BETWEEN]
    if not rows:
        return Seen(None, why_not=f"UCX has noted no {operation} between processes yet")
    found = {fabric for row in rows for fabric in of_transport(row.transport)}
    text = "; ".join(
        dict.fromkeys(
            f"{row.operation} {row.remote}→{row.local} {row.sizes}: {row.how} on {row.transport}"
            for row in rows
        )
    )
    if len(found) != 1:
        return Seen(None, text, f"UCX's tables name {sorted(found) or 'no known transport'}")
    return Seen(found.pop(), f"UCX: {text}")


def _by_probe(evidence: PairEvidence) -> Seen | None:
    """What the raw transfer between the same places ran on, when the engines cannot say."""
    raw = evidence.raw
    if raw is None or raw.error is not None:
        return None
    fabric = of_provider(str(raw.nixl["provider"])) if "provider" in raw.nixl else None
    if raw.backend == "LIBFABRIC" and fabric is not None:
        rails = f"{raw.nixl.get('rails', '?')} rails, provider {raw.nixl['provider']}"
        return Seen(fabric, f"NIXL's log of a probe in the same place: {rails}")
    return None
