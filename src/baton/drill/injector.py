"""What a drill may break, as an interface: `baton.deploy` and tests implement it."""

from __future__ import annotations

from typing import TYPE_CHECKING, Literal, Protocol

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence
    from contextlib import AbstractAsyncContextManager

    from baton.spec.lease import EngineLease

Fault = Literal[
    "see_engines",  # read the engines' own metrics
    "kill",  # SIGKILL for all processes of an engine
    "kill_core",  # its EngineCore alone
    "freeze",  # it accepts connections and never answers
    "restart",  # it ends, and another starts in the same place with a new engine_id
    "outlast_lease",  # it stays frozen for longer than prefill keeps KV for it
    "rewire",  # a gateway that reaches its engines by other addresses
    "kill_gateway",  # SIGKILL for one of two gateways
    "lose_directory",  # gateways cannot read who serves
]


class GatewayPair(Protocol):
    """Two gateways before the same engines."""

    @property
    def endpoints(self) -> Sequence[str]:
        """Where clients reach them."""

    async def kill_one(self) -> None:
        """SIGKILL for one of them; returns when it is gone."""


class LostDirectory(Protocol):
    """A gateway whose directory can be taken away."""

    @property
    def endpoint(self) -> str:
        """Where clients reach the gateway."""

    async def lose(self) -> None:
        """From now on the directory does not answer."""

    async def find(self) -> None:
        """It answers again."""


class Injector(Protocol):
    """Breaks things. Every method returns when the fault has happened."""

    @property
    def endpoint(self) -> str:
        """Where clients reach the gateway, without `/v1`."""

    @property
    def engine_headers(self) -> Mapping[str, str]:
        """What opens the engines' ports."""

    @property
    def kv_lease_s(self) -> float:
        """How long a prefill engine keeps KV that nobody comes for."""

    def cannot(self, fault: Fault) -> str | None:
        """Why this fault is not to be had here; None when it is."""

    async def engines(self) -> Sequence[EngineLease]:
        """The engines that should be alive now."""

    async def kill(self, engine: EngineLease, *, core_only: bool) -> None:
        """SIGKILL for the engine, or for its EngineCore."""

    async def freeze(self, engine: EngineLease) -> None:
        """The engine accepts connections and does nothing."""

    async def thaw(self, engine: EngineLease) -> None:
        """It goes on."""

    async def restart(self, engine: EngineLease) -> EngineLease:
        """End the engine and start another in its place; returns once that one answers."""

    def rewired(self, urls: Mapping[str, str]) -> AbstractAsyncContextManager[str]:
        """A further gateway that reaches each engine at `urls[its url]`; gives its endpoint."""

    def two_gateways(self) -> AbstractAsyncContextManager[GatewayPair]:
        """Two further gateways."""

    def with_directory(self) -> AbstractAsyncContextManager[LostDirectory]:
        """A gateway whose directory can be lost."""

    async def restore(self) -> None:
        """Make everything whole again: as many engines as at first, all ready."""
