"""A layout: how many engines of which kind, on which instances, and what that costs an hour.

Instances are bought whole. Engines are put on them in order, prefill first; engines that share an
instance hand over through its links, others through its NICs, and only where it has EFA.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any

from baton.plan.roofline import link_handoff, network_handoff
from baton.plan.simulator import EngineLimits, Pool

if TYPE_CHECKING:
    from collections.abc import Mapping

    from baton.plan.costs import StepCosts
    from baton.plan.devices import Hardware, Instance
    from baton.plan.simulator.fleet import Role


@dataclass(frozen=True)
class EngineKind:
    """One kind of engine: the hardware, TP, what things take, and its limits."""

    hardware: Hardware
    tp: int
    costs: StepCosts
    limits: EngineLimits

    @property
    def name(self) -> str:
        """`TP2 on H100`."""
        return f"TP{self.tp} on {self.hardware.gpu.name}"


@dataclass(frozen=True)
class Group:
    """So many engines of a kind in a role."""

    role: Role
    kind: EngineKind
    replicas: int

    @property
    def gpus(self) -> int:
        """GPUs that its engines use."""
        return self.kind.tp * self.replicas


@dataclass(frozen=True)
class Bought:
    """Instances of one type."""

    instance: Instance
    count: int

    @property
    def gpus(self) -> int:
        """GPUs that are paid for."""
        return self.instance.gpus * self.count


Prices = dict[str, float]
"""Dollars an hour that the user named: of an instance type, or of one GPU."""


@dataclass(frozen=True)
class Layout:
    """Groups on instances. `places[i]` are the node and the NIC of each engine of `groups[i]`."""

    groups: tuple[Group, ...]
    bought: tuple[Bought, ...]
    places: tuple[tuple[tuple[int, int], ...], ...]
    usd_per_hour: float | None

    @property
    def disaggregated(self) -> bool:
        """Whether prefill and decode are apart."""
        return len(self.groups) > 1

    @property
    def gpus(self) -> int:
        """GPUs that engines use."""
        return sum(group.gpus for group in self.groups)

    @property
    def gpus_bought(self) -> int:
        """GPUs that are paid for."""
        return sum(bought.gpus for bought in self.bought)

    @property
    def short(self) -> str:
        """`2P1D`, or `3x`."""
        if self.disaggregated:
            return f"{self.groups[0].replicas}P{self.groups[1].replicas}D"
        return f"{self.groups[0].replicas}x"

    @property
    def name(self) -> str:
        """Readable and complete."""
        kinds = [group.kind.name for group in self.groups]
        what = kinds[0] if len(set(kinds)) == 1 else " + ".join(kinds)
        where = " + ".join(f"{b.count} {b.instance.name}" for b in self.bought)
        budget = ""
        if not self.disaggregated:
            budget = f", {self.groups[0].kind.limits.token_budget} tokens a step"
        return f"{self.short} {what}{budget} ({where})"

    def pools(self) -> list[Pool]:
        """For the simulator."""
        pools = []
        for group, places in zip(self.groups, self.places, strict=True):
            instance = self._instance_of(group)
            engines = instance.gpus // group.kind.tp
            sharing = min(max(instance.efa_nics, 1), engines)
            network = network_handoff(instance)
            pools.append(
                Pool(
                    role=group.role,
                    costs=group.kind.costs,
                    nodes=tuple(node for node, _ in places),
                    limits=group.kind.limits,
                    nics=tuple(nic for _, nic in places),
                    nic_bytes_per_s=network.bytes_per_s / sharing,
                    link=link_handoff(group.kind.hardware.gpu, group.kind.tp),
                    network=replace(network, bytes_per_s=network.bytes_per_s / sharing),
                )
            )
        return pools

    def _instance_of(self, group: Group) -> Instance:
        gpu = group.kind.hardware.gpu.name
        return next(b.instance for b in self.bought if b.instance.gpu == gpu)

    def as_dict(self) -> dict[str, Any]:
        """Its make-up, for JSON."""
        return {
            "engines": [
                {
                    "role": group.role,
                    "replicas": group.replicas,
                    "gpu": group.kind.hardware.gpu.name,
                    "tensor_parallel_size": group.kind.tp,
                    "max_num_seqs": group.kind.limits.max_seqs,
                    "max_num_batched_tokens": group.kind.limits.token_budget,
                    "kv_budget_bytes": int(group.kind.costs.kv_capacity_bytes),
                }
                for group in self.groups
            ],
            "instances": [{"type": b.instance.name, "count": b.count} for b in self.bought],
        }


def lay_out(groups: tuple[Group, ...], prices: Mapping[str, float]) -> Layout | None:
    """The cheapest way to buy it; None when no instance type takes it.

    Roles on the same hardware share instances. By GPUs paid for, then by price: an unknown price
    cannot be compared.
    """
    apart = len({group.kind.hardware.gpu.name for group in groups}) > 1
    shares = [(group,) for group in groups] if apart else [groups]
    bought: list[Bought] = []
    placed: list[tuple[tuple[int, int], ...]] = []
    dollars: float | None = 0.0
    first_node = 0
    for share in shares:
        options = []
        for index, instance in enumerate(share[0].kind.hardware.instances):
            places = _place(share, instance, first_node)
            if places is None:
                continue
            nodes = 1 + max(node for group in places for node, _ in group) - first_node
            if len(groups) > 1 and (apart or nodes > 1) and not instance.has_efa:
                continue
            each = _price(instance, prices)
            total = None if each is None else each * nodes
            unknown = float("inf") if total is None else total
            options.append(((nodes * instance.gpus, unknown, index), instance, nodes, places))
        if not options:
            return None
        _, instance, nodes, places = min(options, key=lambda option: option[0])
        each = _price(instance, prices)
        dollars = None if dollars is None or each is None else dollars + each * nodes
        bought.append(Bought(instance, nodes))
        placed.extend(places)
        first_node += nodes
    return Layout(groups, tuple(bought), tuple(placed), dollars)


def _price(instance: Instance, prices: Mapping[str, float]) -> float | None:
    if instance.name in prices:
        return prices[instance.name]
    if instance.gpu in prices:
        return prices[instance.gpu] * instance.gpus
    return instance.usd_per_hour


def _place(
    groups: tuple[Group, ...], instance: Instance, first_node: int
) -> list[tuple[tuple[int, int], ...]] | None:
    """(node, NIC) of each engine; NICs are numbered over all nodes."""
    if any(group.kind.tp > instance.gpus for group in groups):
        return None
    node, used, nics = first_node, 0, max(instance.efa_nics, 1)
    placed = []
    for group in groups:
        here = []
        for _ in range(group.replicas):
            if used + group.kind.tp > instance.gpus:
                node, used = node + 1, 0
            # The NIC nearest to its first GPU; with more NICs than engines, one stands for several.
            nic = used * min(nics, instance.gpus // group.kind.tp) // instance.gpus
            here.append((node, node * 1000 + nic))
            used += group.kind.tp
        placed.append(tuple(here))
    return placed
