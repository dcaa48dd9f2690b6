"""An endpoint that is drilled from outside: nothing can be broken there but the load itself."""

from __future__ import annotations

from typing import TYPE_CHECKING, NoReturn, Self

from baton.errors import DrillFailed

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence
    from contextlib import AbstractAsyncContextManager
    from types import TracebackType

    from baton.drill.injector import GatewayPair, LostDirectory
    from baton.spec.lease import EngineLease

_WHY = "a URL is drilled from outside: its processes and its engines' ports are not ours to touch"


class Outside:
    """See `injector.Injector`.

    Args:
        endpoint: The URL, with or without `/v1`.
    """

    engine_headers: Mapping[str, str] = {}
    kv_lease_s = 0.0

    def __init__(self, endpoint: str) -> None:
        self.endpoint = endpoint.rstrip("/").removesuffix("/v1")

    async def __aenter__(self) -> Self:
        return self

    async def __aexit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        at: TracebackType | None,
    ) -> None:
        return None

    def cannot(self, fault: str) -> str | None:  # noqa: ARG002
        """Nothing can be broken."""
        return _WHY

    async def engines(self) -> Sequence[EngineLease]:
        """None that we may ask."""
        return ()

    async def kill(self, engine: EngineLease, *, core_only: bool) -> NoReturn:
        """Refused."""
        raise _refused(engine, core_only)

    async def freeze(self, engine: EngineLease) -> NoReturn:
        """Refused."""
        raise _refused(engine)

    async def thaw(self, engine: EngineLease) -> NoReturn:
        """Refused."""
        raise _refused(engine)

    async def restart(self, engine: EngineLease) -> NoReturn:
        """Refused."""
        raise _refused(engine)

    def rewired(self, urls: Mapping[str, str]) -> AbstractAsyncContextManager[str]:
        """Refused."""
        raise _refused(urls)

    def two_gateways(self) -> AbstractAsyncContextManager[GatewayPair]:
        """Refused."""
        raise _refused()

    def with_directory(self) -> AbstractAsyncContextManager[LostDirectory]:
        """Refused."""
        raise _refused()

    async def restore(self) -> None:
        """Nothing was broken."""


def _refused(*_: object) -> DrillFailed:
    return DrillFailed(_WHY)
