"""What a layout costs an hour, as far as a dated page says so. Pure.

Prices of GPU instances are handed in: they are the planner's table. What is unknown is listed as
unknown, and the sum is then a lower bound.
"""

from __future__ import annotations

import tomllib
from dataclasses import dataclass
from functools import cache
from importlib import resources
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from collections.abc import Mapping

    from baton.deploy.eks.layout import Layout


@dataclass(frozen=True)
class Price:
    """USD an hour for one, where it was published, and when."""

    usd_per_hour: float
    source: str
    date: str


@dataclass(frozen=True)
class CostLine:
    """So many of something."""

    what: str
    count: int
    price: Price | None

    @property
    def usd_per_hour(self) -> float | None:
        """Of all of them; None when unknown."""
        return None if self.price is None else self.count * self.price.usd_per_hour


@dataclass(frozen=True)
class Cost:
    """All lines, and what they come to."""

    lines: tuple[CostLine, ...]

    @property
    def known_usd_per_hour(self) -> float:
        """The sum of what is known."""
        return sum(line.usd_per_hour or 0.0 for line in self.lines)

    @property
    def unknown(self) -> tuple[str, ...]:
        """What has no known price."""
        return tuple(f"{x.count} x {x.what}" for x in self.lines if x.price is None)


@cache
def _table() -> dict[str, Any]:
    text = (resources.files("baton.deploy.eks") / "prices.toml").read_text(encoding="utf-8")
    return tomllib.loads(text)


def _own(name: str) -> Price:
    return Price(**_table()[name])


def cost_of(layout: Layout, gpu_prices: Mapping[str, Price]) -> Cost:
    """What the whole deployment costs an hour while it stands.

    Args:
        layout: What is to be.
        gpu_prices: Prices of instance types; a type that is not among them is unknown.
    """
    settings = layout.settings
    own = {name: Price(**row) for name, row in _table()["instance"].items()}
    prices = {**own, **gpu_prices}
    gateways = 1 if settings.nat_gateway == "single" else len(settings.zones)
    lines = [
        CostLine("EKS cluster (standard support)", 1, _own("eks_cluster")),
        CostLine("NAT gateway (traffic is extra)", gateways, _own("nat_gateway")),
        CostLine(
            settings.system_instance_type,
            settings.system_node_count,
            prices.get(settings.system_instance_type),
        ),
    ]
    by_type: dict[str, int] = {}
    for group in layout.groups:
        by_type[group.instance.name] = by_type.get(group.instance.name, 0) + group.nodes
    reserved = settings.capacity_block
    for name, count in by_type.items():
        what = f"{name} (Capacity Block: paid beforehand)" if reserved else name
        lines.append(CostLine(what, count, prices.get(name)))
    gib = 80 * settings.system_node_count + settings.node_volume_gib * sum(by_type.values())
    lines.append(CostLine(f"EBS gp3 volumes, {gib} GiB in all", 1, None))
    if settings.ingress != "none":
        lines.append(CostLine("ALB (traffic is extra)", 1, None))
    return Cost(tuple(lines))
