"""What follows from a part's state: on the way up, and on the way down. Pure."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Literal

from baton.deploy.eks.live.states import State

if TYPE_CHECKING:
    from baton.deploy.eks.live.commands import Command
    from baton.deploy.eks.live.parts import Part
    from baton.deploy.eks.live.states import Seen

TAGGED = "does not carry Baton's tag"


@dataclass(frozen=True)
class Action:
    """What to do now.

    `done`: go on to the next part. `make`, `change`, `delete`: run the commands and look again.
    `wait`: look again later. `leave`: go on, it is not ours. `stop`: end here.
    """

    kind: Literal["done", "make", "change", "delete", "wait", "leave", "stop"]
    reason: str = ""
    cure: str = ""
    commands: tuple[Command, ...] = ()


DONE = Action("done")


def up(part: Part, seen: Seen) -> Action:
    """What brings a part to `ready`."""
    if seen.state is State.UNKNOWN:
        return _blind(seen)
    if seen.state is State.DELETING:
        return Action("wait", seen.detail or "being deleted")
    if seen.state is State.ABSENT:
        return _when_absent(part, seen)
    if seen.ours is False and part.foreign == "stop":
        return Action("stop", f"it is there and {TAGGED}", _adopt(part))
    answer = {
        State.CREATING: _while_creating,
        State.FAILED: _after_failure,
        State.READY: _when_ready,
    }
    return answer[seen.state](part, seen)


def _blind(seen: Seen) -> Action:
    return Action("stop", f"it cannot be seen: {seen.detail}", "run it again when it can")


def _when_absent(part: Part, seen: Seen) -> Action:
    if part.missing:
        return Action("stop", "it needs something from you", part.missing)
    return Action("make", seen.detail, commands=part.create)


def _while_creating(part: Part, seen: Seen) -> Action:
    repair = [drift for drift in seen.drifts if drift.by]
    if seen.fatal and not repair:
        return Action("stop", seen.fatal, "put it right and run it again")
    if repair:
        # What is coming up, or failing to, is not what the files say now.
        return Action("change", repair[0].text, commands=part.changes[repair[0].by])
    return Action("wait", seen.detail)


def _after_failure(part: Part, seen: Seen) -> Action:
    if part.retry_failed and seen.ours is not False:
        if seen.detail.startswith("pending-install"):
            return Action("make", seen.detail, commands=(*part.delete, *part.create))
        if seen.detail.startswith("pending-"):
            return Action(
                "make", seen.detail, commands=(*part.changes.get("recover", ()), *part.create)
            )
        return Action("make", seen.detail, commands=part.create)
    return Action(
        "stop", f"it failed: {seen.detail}", f"put it right, `baton eks delete --step {part.step}`,"
        " and run it again",
    )  # fmt: skip


def _when_ready(part: Part, seen: Seen) -> Action:
    if seen.ours is False:
        return Action("leave", f"it is there, {TAGGED}, and is used as it is")
    stuck = [drift.text for drift in seen.drifts if not drift.by]
    if stuck:
        return Action("stop", "; ".join(stuck), _replace(part))
    if seen.drifts:
        drift = seen.drifts[0]
        return Action("change", drift.text, commands=part.changes[drift.by])
    return DONE


def _adopt(part: Part) -> str:
    if part.kind == "namespace":
        return (
            f"take another namespace, or hand it over: kubectl label {part.title}"
            " app.kubernetes.io/managed-by=baton (`baton eks delete` then deletes it)"
        )
    return "take another name, or delete it yourself"


def _replace(part: Part) -> str:
    if part.kind == "cluster":
        return "set k8s_version to what is there, or upgrade as docs/guides/upgrade.md says"
    if part.kind == "service":
        return (
            "`baton eks delete --step app` and run it again (no spare GPUs), or take"
            " upgrade_strategy: new-cluster (twice the GPUs)"
        )
    return f"set it back, or `baton eks delete --step {part.step}` and run it again"


def down(part: Part, seen: Seen) -> Action:
    """What brings a part to `absent`."""
    if not part.delete:
        return Action("done", "goes with the cluster or its namespace")
    if seen.state is State.UNKNOWN:
        return _blind(seen)
    if seen.state is State.ABSENT:
        return DONE
    if seen.ours is not True:
        return Action("leave", f"it {TAGGED}" if seen.ours is False else "whose it is is not known")
    if seen.state is State.DELETING:
        return Action("wait", seen.detail or "being deleted")
    return Action("delete", seen.detail, commands=part.delete)
