"""One read-only call to AWS. Everything that changes something is a command that can be printed."""

from __future__ import annotations

from typing import Any, Protocol

from baton.errors import EnvironmentUnfit

# What AWS' services say when something is not there.
NOT_FOUND = frozenset(
    {
        "ResourceNotFoundException", "NoSuchEntity", "InvalidPlacementGroup.Unknown",
        "NoSuchResourceException", "InvalidCapacityReservationId.NotFound",
    }
)  # fmt: skip


class AwsFailed(Exception):
    """AWS did not answer with what was asked for."""

    def __init__(self, code: str, message: str) -> None:
        self.code = code
        self.message = message
        super().__init__(f"{code}: {message}")

    @property
    def absent(self) -> bool:
        """Whether it said that the thing is not there; CloudFormation has no code for that."""
        missing_stack = self.code == "ValidationError" and "does not exist" in self.message
        return self.code in NOT_FOUND or missing_stack


class Aws(Protocol):
    """Who asks AWS."""

    def call(self, service: str, operation: str, **arguments: Any) -> dict[str, Any]:
        """All pages of one operation.

        Raises:
            AwsFailed: with the service's code, or with that of what kept the call from it.
        """
        ...


class Boto:
    """boto3, in one region. Throttled calls are tried again by boto3 itself."""

    def __init__(self, region: str) -> None:
        try:
            import boto3  # noqa: PLC0415 - only who asks AWS needs it
            from botocore.config import Config  # noqa: PLC0415
        except ImportError as exc:
            raise EnvironmentUnfit(
                "boto3 is not installed", cure="pip install 'baton[eks]'"
            ) from exc
        self._session = boto3.session.Session(region_name=region)
        self._config = Config(retries={"mode": "adaptive", "max_attempts": 6})
        self._clients: dict[str, Any] = {}

    def call(self, service: str, operation: str, **arguments: Any) -> dict[str, Any]:
        """Calls an operation and puts its pages together."""
        from botocore.exceptions import BotoCoreError, ClientError  # noqa: PLC0415

        try:
            if service not in self._clients:
                self._clients[service] = self._session.client(service, config=self._config)
            client = self._clients[service]
            if client.can_paginate(operation):
                pages = client.get_paginator(operation).paginate(**arguments)
                whole: dict[str, Any] = pages.build_full_result()
                return whole
            answer: dict[str, Any] = getattr(client, operation)(**arguments)
        except ClientError as exc:
            error = exc.response.get("Error", {})
            raise AwsFailed(error.get("Code", "?"), error.get("Message", str(exc))) from exc
        except BotoCoreError as exc:
            raise AwsFailed(type(exc).__name__, str(exc)) from exc
        return answer
