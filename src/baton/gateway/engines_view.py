"""The directory as a gateway sees it, for `/baton/engines` and the console."""

from __future__ import annotations

from dataclasses import asdict
from typing import TYPE_CHECKING, Any

from baton.gateway.generations import generation_of, tag_of

if TYPE_CHECKING:
    from baton.gateway.app import GatewayApp


def engines_view(app: GatewayApp) -> dict[str, Any]:
    """The directory as this gateway sees it. The engines' secret is not part of it."""
    mixed = app.directory.generations.finding()
    return {
        "directory_age_s": app.directory.age_s,
        "directory_failures": app.directory.failures,
        "mode": app.settings.disaggregate.mode,
        "generations": [member.as_dict() for member in app.directory.generations.members],
        "mixed_versions": None if mixed is None else asdict(mixed),
        "engines": engines_list(app),
    }


def engines_list(app: GatewayApp) -> list[dict[str, Any]]:
    """Each engine's lease, and how this gateway gets on with it."""
    return [
        {
            **engine.model_dump(mode="json"),
            "generation": tag_of(generation_of(engine)),
            "inflight": app.inflight.count(engine.replica_id),
            "circuit": app.directory.breakers.state(engine),
            "cool_off_left_s": round(app.directory.breakers.cool_off_left_s(engine), 3),
        }
        for engine in app.directory.all_engines()
    ]
