"""The two lifecycles as tables: what each state admits, what each Event moves, and which requirement says so.

``decide`` reads ``WORK_ITEM_ADMITS`` and ``MISSION_ADMITS``; tests hold every Event of a log against
``WORK_ITEM_MOVES`` and ``MISSION_MOVES``. A pair of state and kind that stands in no row is refused (R-10.2-42).
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import NamedTuple

from mwnode.authority.case import refuse
from mwnode.protocol.commands import CORE, EXT
from mwnode.protocol.errors import ErrorCode


class Row(NamedTuple):
    """One transition. ``command`` is ``None`` where only a consequence makes it."""

    state: str
    command: str | None
    event: str
    next: str
    rule: str


def _rows(states: Iterable[str], command: str | None, event: str, to: str | None, rule: str) -> list[Row]:
    """The same transition from several states; ``to`` ``None`` keeps each state."""
    return [Row(state, command, event, state if to is None else to, rule) for state in states]


# --- WorkItems (section 10.2) -----------------------------------------------------------------------------------------

WORK_ITEM_STATES = ("open", "offered", "queued", "active", "blocked", "submitted", "verified", "failed", "cancelled")
UNFINISHED = ("open", "offered", "queued", "active", "blocked", "submitted")
"""States that failure and cancellation of the WorkItem or its Mission end (R-10.2-27, R-10.2-29, R-10.2-37)."""
TERMINAL = ("verified", "cancelled")
"""States without a way out (R-10.2-39)."""
OWNED = ("queued", "active", "blocked", "submitted")
"""States in which the owner owes something."""

_OFFERABLE = ("open", "offered", "queued", "active", "blocked", "failed")
_PROMOTABLE = ("open", "offered", "queued", "active", "blocked")
_REVISABLE = ("open", "offered", "failed", "blocked")

WORK_ITEM: tuple[Row, ...] = (
    *_rows(_OFFERABLE, "work.offer", "work.offer.created", "offered", "R-10.2-05"),
    *_rows(("offered",), "work.accept_offer", "work.offer.accepted", "queued", "R-10.2-09"),
    *_rows(("offered",), f"{CORE}.offer_decline", f"{CORE}.offer_declined", None, "R-10.3-09"),
    *_rows(("queued",), "approval.grant_execution", "approval.execution.granted", None, "R-10.2-13"),
    *_rows(("queued",), "work.start", "work.started", "active", "R-10.2-15"),
    *_rows(("active",), "work.checkpoint", "work.checkpointed", "queued", "R-10.2-17"),
    *_rows(("active",), "work.block", "work.blocked", "blocked", "R-10.2-19"),
    *_rows(("blocked",), "work.unblock", "work.unblocked", "queued", "R-10.2-21"),
    *_rows(("blocked",), "work.unblock", "work.unblocked", "open", "R-10.2-21"),
    *_rows(("active",), "work.submit", "work.submitted", "submitted", "R-10.2-23"),
    *_rows(("submitted",), "work.accept_result", "work.result.accepted", "verified", "R-10.2-25"),
    *_rows(UNFINISHED, "work.fail", "work.failed", "failed", "R-10.2-27"),
    *_rows(UNFINISHED, "work.cancel", "work.cancelled", "cancelled", "R-10.2-29"),
    *_rows(_PROMOTABLE, "mission.create_child", "mission.child.created", "blocked", "R-10.2-31"),
    *_rows(("blocked",), None, "work.result.accepted", "verified", "R-10.2-33"),
    *_rows(("blocked",), None, "work.blocked", "blocked", "R-10.2-35"),
    # Facts: they stand on the WorkItem and leave its state alone.
    *_rows(("active",), "artifact.publish", "artifact.published", None, "R-15.2-36"),
    *_rows(("active",), f"{EXT}.core.work_execution_lease_renew", "work.progressed", None, "R-15.2-28"),
    *_rows(
        ("queued", "active", "blocked"),
        f"{CORE}.ownership_lease_renew",
        f"{CORE}.ownership_lease_renewed",
        None,
        "R-11.3-02",
    ),
    *_rows(_REVISABLE, f"{EXT}.core.work_dependency_add", "work.contract.revised", None, "R-15.2-26"),
    *_rows(_OFFERABLE, None, "work.contract.revised", None, "R-10.1-22"),
    *_rows(("active",), f"{EXT}.core.resource_usage_record", f"{EXT}.core.resource_usage_recorded", None, "R-12-26"),
    # A service may book what became known later; a Worker's buffered usage arrives while the item is queued again.
    *_rows(WORK_ITEM_STATES, None, f"{EXT}.core.resource_usage_recorded", None, "R-11.5-28"),
    # The authority's own: a replaced Session, a lease that ran out (readings 15, decision A18).
    *_rows(("active",), None, f"{EXT}.core.work_execution_lease_revoked", "queued", "R-11.3-22"),
    *_rows(("queued", "active", "blocked", "submitted"), None, f"{CORE}.lease_expired", None, "R-11.3-16"),
)

WORK_ITEM_COMMANDS: frozenset[str] = frozenset(row.command for row in WORK_ITEM if row.command is not None)
WORK_ITEM_ADMITS: dict[tuple[str, str], Row] = {(r.state, r.command): r for r in WORK_ITEM if r.command is not None}
WORK_ITEM_MOVES: dict[tuple[str, str], frozenset[str]] = {
    (row.state, row.event): frozenset(r.next for r in WORK_ITEM if (r.state, r.event) == (row.state, row.event))
    for row in WORK_ITEM
}

_COMPLEMENT: dict[str, str] = {
    "work.offer": "R-10.2-06",
    "work.accept_offer": "R-10.2-10",
    "approval.grant_execution": "R-10.2-14",
    "work.start": "R-10.2-16",
    "work.checkpoint": "R-10.2-18",
    "work.block": "R-10.2-20",
    "work.unblock": "R-10.2-22",
    "work.submit": "R-10.2-24",
    "work.accept_result": "R-10.2-26",
    "work.fail": "R-10.2-28",
    "work.cancel": "R-10.2-30",
    "mission.create_child": "R-10.2-32",
}
"""The row that forbids a kind outside its states; all others fall under R-10.2-42."""


def work_item_rule(state: str, kind: str) -> str:
    """The requirement that refuses ``kind`` in ``state``."""
    if state in TERMINAL:
        return "R-10.2-39"
    return _COMPLEMENT.get(kind) or ("R-10.2-40" if state == "failed" else "R-10.2-42")


def admit_work_item(state: str, kind: str) -> Row:
    """The row that admits ``kind`` in ``state``; refuses with INVALID_STATE_TRANSITION where there is none."""
    row = WORK_ITEM_ADMITS.get((state, kind))
    if row is None:
        refuse(
            ErrorCode.INVALID_STATE_TRANSITION,
            f"{kind} is not possible while the WorkItem is {state}",
            work_item_rule(state, kind),
            details={"state": state},
        )
    return row


# --- Missions (section 7.1) -------------------------------------------------------------------------------------------

MISSION_STATES = ("active", "awaiting_approval", "approved", "failed", "cancelled")
MISSION_LIVE = ("active", "awaiting_approval")
MISSION_TERMINAL = ("approved", "failed", "cancelled")

MISSION: tuple[Row, ...] = (
    *_rows(
        ("active",), "mission.submit_for_approval", "mission.submitted_for_approval", "awaiting_approval", "R-7.1-13"
    ),
    *_rows(("awaiting_approval",), "mission.request_changes", "mission.changes_requested", "active", "R-7.1-15"),
    *_rows(("awaiting_approval",), "mission.approve", "mission.approved", "approved", "R-7.1-17"),
    *_rows(MISSION_LIVE, "mission.cancel", "mission.cancelled", "cancelled", "R-7.1-19"),
    *_rows(MISSION_LIVE, "mission.terminate", "mission.terminated", "failed", "R-7.1-21"),
)

_LIVE = frozenset(MISSION_LIVE)
_ACTIVE = frozenset({"active"})
_ANY = frozenset(MISSION_STATES)
MISSION_ADMITS: dict[str, frozenset[str]] = {
    **{row.command: frozenset(r.state for r in MISSION if r.command == row.command) for row in MISSION if row.command},
    "mission.create_child": _ACTIVE,
    "mission.assign_coordinator": _LIVE,
    "mission.renew_coordinator": _LIVE,
    f"{CORE}.coordinator_reconcile": _LIVE,
    f"{CORE}.budget_amend": _ACTIVE,
    f"{CORE}.mission_prioritize": _ACTIVE,
    f"{CORE}.root_approval_grant": frozenset({"awaiting_approval"}),
    "membership.change": _LIVE,
    "membership.end": _LIVE,
    "membership.grant_delegation": _ACTIVE,
    "policy.grant_cooperation_override": _LIVE,
    # People may still talk about a Mission that ended, until its Group is archived (decision D69).
    "message.post": _ANY,
    "message.correct": _ANY,
    "message.retract": _ANY,
    "message.redact": _ANY,
    f"{CORE}.conversation_open": _ANY,
    f"{CORE}.context_package_publish": _LIVE,
    f"{CORE}.artifact_forward": _ANY,
    f"{CORE}.knowledge_publish": _ANY,
    f"{EXT}.core.group_archive": frozenset(MISSION_TERMINAL),
    f"{CORE}.event_tombstone": _ANY,
    "work.propose": _ACTIVE,
    "work.authorize": _ACTIVE,
    "work.offer": _ACTIVE,
    "work.accept_offer": _ACTIVE,
    f"{CORE}.offer_decline": _ACTIVE,
    "approval.grant_execution": _ACTIVE,
    "work.start": _ACTIVE,
    "work.unblock": _ACTIVE,
    "work.accept_result": _ACTIVE,
    f"{EXT}.core.work_dependency_add": _ACTIVE,
    # What a running execution owes is taken as long as the Mission lives.
    "work.checkpoint": _LIVE,
    "work.block": _LIVE,
    "work.submit": _LIVE,
    "work.fail": _LIVE,
    "work.cancel": _LIVE,
    "artifact.publish": _LIVE,
    f"{EXT}.core.work_execution_lease_renew": _LIVE,
    f"{CORE}.ownership_lease_renew": _LIVE,
    # Usage of work that was just cut off is still usage.
    f"{EXT}.core.resource_usage_record": _ANY,
}
"""In which states of its Mission each kind is possible at all."""
MISSION_MOVES: dict[tuple[str, str], str] = {(row.state, row.event): row.next for row in MISSION}

_MISSION_COMPLEMENT: dict[str, str] = {
    "mission.submit_for_approval": "R-7.1-14",
    "mission.request_changes": "R-7.1-16",
    "mission.approve": "R-7.1-18",
    "mission.cancel": "R-7.1-20",
    "mission.terminate": "R-7.1-22",
}


def mission_rule(state: str, kind: str) -> str:
    """The requirement that refuses ``kind`` in a Mission's ``state``."""
    return _MISSION_COMPLEMENT.get(kind) or ("R-7.1-23" if state in MISSION_TERMINAL else "R-19-20")


def admit_mission(state: str, kind: str) -> None:
    """Refuse with INVALID_STATE_TRANSITION where the Mission's state does not admit ``kind``."""
    if state not in MISSION_ADMITS[kind]:
        refuse(
            ErrorCode.INVALID_STATE_TRANSITION,
            f"{kind} is not possible while the Mission is {state}",
            mission_rule(state, kind),
            details={"state": state},
        )
