"""A layout: how many engines of which kind, on which instances, and what that costs an hour.

Instances are bought whole. Engines are put on them in order, prefill first; roles on the same GPU
share instances, or each has its own type where that costs less. Engines that share an instance hand
over through its links, others through its NICs, and only where it has EFA.
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
    from baton.plan.simulator.settings import Role


@dataclass(frozen=True)
class EngineKind:
    """One kind of engine: the hardware, TP, what things take, and its limits."""

    hardware: Hardware
    tp: int
    costs: StepCosts
    limits: EngineLimits
    costs_apart: StepCosts | None = None
    """With P/D, where that was measured by itself; None: the same."""

    def apart(self) -> EngineKind:
        """As an engine of one phase."""
        return replace(self, costs=self.costs_apart or self.costs)

    def within(self, token_budget: int, max_seqs: int) -> EngineKind:
        """With these limits."""
        limits = replace(self.limits, token_budget=token_budget, max_seqs=max_seqs)
        return replace(self, limits=limits)

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
        for index, (group, places) in enumerate(zip(self.groups, self.places, strict=True)):
            instance = self.bought[min(index, len(self.bought) - 1)].instance
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


def lay_out(
    groups: tuple[Group, ...], prices: Mapping[str, float], *, by_price: bool = False
) -> Layout | None:
    """The cheapest way to buy it; None when no instance type takes it.

    Args:
        groups: Prefill first.
        prices: What the user named.
        by_price: Whether dollars are compared, all of them known. Otherwise GPUs that are paid for
            are, and of equal ones the price: one that is unknown cannot be compared.
    """
    apart = len({group.kind.hardware.gpu.name for group in groups}) > 1
    ways = [] if apart else [_buy((groups,), len(groups), prices, by_price=by_price)]
    if len(groups) > 1:
        ways.append(_buy(tuple((g,) for g in groups), len(groups), prices, by_price=by_price))
    found = [layout for layout in ways if layout is not None]
    return min(
        found,
        key=lambda layout: (*_worth(layout.gpus_bought, layout.usd_per_hour, by_price=by_price),
                            len(layout.bought)),
        default=None,
    )  # fmt: skip


def _worth(gpus: int, usd: float | None, *, by_price: bool) -> tuple[float, float]:
    dollars = float("inf") if usd is None else usd
    return (dollars, gpus) if by_price else (gpus, dollars)


def _buy(
    shares: tuple[tuple[Group, ...], ...], roles: int, prices: Mapping[str, float], *,
    by_price: bool,
) -> Layout | None:  # fmt: skip
    """Each share on instances of one type."""
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
            if roles > 1 and (len(shares) > 1 or nodes > 1) and not instance.has_efa:
                continue
            each = _price(instance, prices)
            total = None if each is None else each * nodes
            worth = _worth(nodes * instance.gpus, total, by_price=by_price)
            options.append((worth, index, instance, nodes, places, total))
        if not options:
            return None
        _, _, instance, nodes, places, total = min(options, key=lambda option: option[:2])
        dollars = None if dollars is None or total is None else dollars + total
        bought.append(Bought(instance, nodes))
        placed.extend(places)
        first_node += nodes
    if len({one.instance.name for one in bought}) < len(bought):
        return None  # of one type: sharing them takes no more
    # Sums of prices that are equal must compare as equal.
    dollars = None if dollars is None else round(dollars, 6)
    return Layout(tuple(g for share in shares for g in share), tuple(bought), tuple(placed),
                  dollars)  # fmt: skip


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
