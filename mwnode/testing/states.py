"""How a test gets a Mission or a WorkItem into any state of its lifecycle, as tables.

Each row is one ordinary Command: the state it starts from, the state it leads to, and the method of the handle that
sends it. The ways between states follow from the rows; a test holds the rows against the lifecycles of the protocol.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple


class Step(NamedTuple):
    """One Command on the way: ``method`` of the handle moves from ``state`` to ``next``."""

    state: str
    next: str
    method: str


WORK_STEPS: tuple[Step, ...] = (
    Step("open", "offered", "offer"),
    Step("offered", "queued", "accept"),
    Step("queued", "active", "start"),
    Step("active", "blocked", "block"),
    Step("blocked", "queued", "unblock"),
    Step("active", "queued", "checkpoint"),
    Step("active", "submitted", "submit"),
    Step("submitted", "verified", "review"),
    *(Step(state, "failed", "fail") for state in ("open", "offered", "queued", "active", "blocked", "submitted")),
    *(Step(state, "cancelled", "cancel") for state in ("open", "offered", "queued", "active", "blocked", "submitted")),
    Step("failed", "offered", "offer"),
)
MISSION_STEPS: tuple[Step, ...] = (
    Step("active", "awaiting_approval", "submit"),
    Step("awaiting_approval", "approved", "approve"),
    Step("awaiting_approval", "active", "request_changes"),
    *(Step(state, "cancelled", "cancel") for state in ("active", "awaiting_approval")),
    *(Step(state, "failed", "terminate") for state in ("active", "awaiting_approval")),
)


def way(start: str, end: str, steps: Sequence[Step]) -> list[Step]:
    """The shortest way between two states. ValueError, with the states that can be reached, when there is none."""
    ways: dict[str, list[Step]] = {start: []}
    reached = [start]
    for state in reached:
        for step in steps:
            if step.state == state and step.next not in ways:
                ways[step.next] = [*ways[state], step]
                reached.append(step.next)
    if end not in ways:
        known = {state for step in steps for state in (step.state, step.next)}
        why = f"no way leads there from {start}" if end in known else f"there is no state {end!r}"
        raise ValueError(f"{why}; from {start} one gets to: {', '.join(sorted(set(ways) - {start})) or 'nowhere'}")
    return ways[end]


def take_steps(handle: object, start: str, end: str, steps: Sequence[Step]) -> None:
    """Send what leads ``handle`` from one state to the other."""
    for step in way(start, end, steps):
        getattr(handle, step.method)()
