"""kubectl's and helm's answers as states. Pure."""

from __future__ import annotations

import json
from datetime import datetime
from typing import TYPE_CHECKING, Any

from baton.deploy.eks.live.parts import HELM_TIMEOUT_S, MANAGED
from baton.deploy.eks.live.states import ABSENT, Drift, Seen, State, unknown
from baton.deploy.eks.pods import SERVICE_LABEL

if TYPE_CHECKING:
    from baton.deploy.eks.live.commands import Done

# kubectl's words for "there is none". A kind without its CRD has no objects either.
_GONE = ("(NotFound)", "the server doesn't have a resource type")
_DIFFERS = 1


class Unseen(Exception):
    """The API server, or helm, did not say what was asked."""


def read_object(done: Done) -> dict[str, Any] | None:
    """The object of `kubectl get … -o json`, None when there is none.

    Raises:
        Unseen: when it cannot be told.
    """
    if done.code != 0:
        if any(text in done.err for text in _GONE):
            return None
        raise Unseen(done.reason)
    try:
        found: dict[str, Any] = json.loads(done.out)
    except ValueError as exc:
        raise Unseen("kubectl answered with what is no JSON") from exc
    return found


def is_ours(thing: dict[str, Any]) -> bool:
    """Whether an object carries our label."""
    labels = (thing.get("metadata") or {}).get("labels") or {}
    return bool(labels.get(MANAGED) == "baton")


def namespace_seen(thing: dict[str, Any] | None) -> Seen:
    """A namespace."""
    if thing is None:
        return ABSENT
    phase = str((thing.get("status") or {}).get("phase", ""))
    states = {"Active": State.READY, "Terminating": State.DELETING}
    stuck = [
        str(c.get("message"))
        for c in (thing.get("status") or {}).get("conditions") or ()
        if c.get("status") == "True"
    ]
    return Seen(states.get(phase, State.UNKNOWN), "; ".join(stuck) or phase, is_ours(thing))


def releases(done: Done) -> list[dict[str, Any]]:
    """The releases of `helm list -o json`.

    Raises:
        Unseen: when helm did not say.
    """
    if done.code != 0:
        raise Unseen(done.reason)
    try:
        found: list[dict[str, Any]] = json.loads(done.out or "[]")
    except ValueError as exc:
        raise Unseen("helm answered with what is no JSON") from exc
    return found


def chart_seen(
    everything: list[dict[str, Any]], ours: list[dict[str, Any]], wants: dict[str, Any], now: float
) -> Seen:
    """A release. One that helm left pending is interrupted when helm's own time for it is over."""
    name = wants["release"]
    found = [r for r in everything if r.get("name") == name]
    if not found:
        return ABSENT
    release = found[0]
    mine = any(r.get("name") == name for r in ours)
    status = str(release.get("status", ""))
    if status == "deployed":
        return _deployed(str(release.get("chart", "")), wants, mine=mine)
    if status.startswith("pending-"):
        age = _age_s(str(release.get("updated", "")), now)
        if age is not None and age > HELM_TIMEOUT_S:
            # `helm upgrade` refuses to touch it: "another operation is in progress".
            return Seen(State.FAILED, f"{status}: helm was interrupted", mine)
        return Seen(State.CREATING, status, mine)
    states = {"uninstalling": State.DELETING, "failed": State.FAILED}
    return Seen(states.get(status, State.UNKNOWN), str(release.get("description") or status), mine)


def _deployed(chart: str, wants: dict[str, Any], *, mine: bool) -> Seen:
    wanted = f"{wants['chart']}-{wants['version']}"
    same = chart.replace("-v", "-") == wanted.replace("-v", "-")
    drifts = () if same else (Drift(f"{chart} is there, {wanted} wanted", "apply"),)
    return Seen(State.READY, chart, mine, drifts=drifts)


def _age_s(updated: str, now: float) -> float | None:
    """Seconds since helm's `2026-11-30 08:00:00.123456789 +0000 UTC`."""
    words = updated.split()
    try:
        clock = words[1].partition(".")[0]
        then = datetime.strptime(f"{words[0]} {clock} {words[2]}", "%Y-%m-%d %H:%M:%S %z")
    except (IndexError, ValueError):
        return None
    return now - then.timestamp()


def rendered_drift(done: Done) -> tuple[Drift, ...]:
    """From `kubectl diff -k`: 0 the same, 1 it differs, more: it could not be told.

    Raises:
        Unseen: when it could not be told.
    """
    if done.code == 0:
        return ()
    if done.code == _DIFFERS and done.out.strip():
        names = [
            line.split()[1].rsplit("/", 1)[-1]
            for line in done.out.splitlines()
            if line.startswith("+++ ")
        ]
        return (
            Drift(f"differs from the files: {', '.join(names) or 'see kubectl diff'}", "apply"),
        )
    raise Unseen(f"kubectl diff: {done.reason}")


def service_seen(
    thing: dict[str, Any] | None, progress: tuple[bool, str, str], drifts: tuple[Drift, ...]
) -> Seen:
    """The service itself.

    Args:
        thing: The RayService, or the head's Deployment.
        progress: Whether all of it runs, what is waited for, and why it never will.
        drifts: What differs from the files.
    """
    if thing is None:
        return ABSENT
    ours = is_ours(thing)
    if (thing.get("metadata") or {}).get("deletionTimestamp"):
        return Seen(State.DELETING, "being deleted", ours)
    runs, waiting, fatal = progress
    if runs:
        return Seen(State.READY, waiting, ours, drifts=drifts)
    return Seen(State.CREATING, waiting, ours, fatal, drifts)


def foreign_things(
    listed: dict[str, Any], service: str, known: frozenset[str] = frozenset()
) -> list[str]:
    """What is in a namespace and neither ours nor on its way out, as `Kind/name`."""
    found = []
    for thing in listed.get("items") or ():
        meta = thing.get("metadata") or {}
        labels = meta.get("labels") or {}
        name = f"{thing.get('kind')}/{meta.get('name')}"
        # KubeRay's label on the Services that it makes; they go with the RayService.
        rays = labels.get("ray.io/originated-from-cr-name") == service
        ours = is_ours(thing) or labels.get(SERVICE_LABEL) == service or rays
        if not (ours or meta.get("deletionTimestamp") or name in known):
            found.append(name)
    return found


def secret_seen(done: Done) -> Seen:
    """A secret, of which only the name is asked for."""
    if done.code == 0:
        return Seen(State.READY)
    return ABSENT if any(text in done.err for text in _GONE) else unknown(done.reason)
