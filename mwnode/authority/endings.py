"""How a Mission ends before its time, and whom that reaches: its WorkItems, its descendants, and by declared failure
policy its parent (sections 7.1 and 14).

Downwards, an end cancels whatever depends on it. Upwards, a child's failure blocks its parent WorkItem and no more,
unless the parent declared the child indispensable (R-14-17, R-14-20). Every consequence is an Event of its own that
names the one before it.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import NoReturn

from msgspec import UNSET, UnsetType, structs

from mwnode.authority import budget, leases
from mwnode.authority.case import Case, refuse
from mwnode.authority.items import end_item
from mwnode.authority.request import EventFact
from mwnode.authority.state import EVIDENCE, GROUPS, MISSIONS, WORK_ITEMS, EvidenceRow, MissionRow, WorkItemRow
from mwnode.authority.table import MISSION_LIVE, MISSION_MOVES, UNFINISHED, admit_mission
from mwnode.authority.view import Overlay
from mwnode.protocol.commands import MissionCancel, MissionTerminate
from mwnode.protocol.documents import Cause, Evidence, Lease
from mwnode.protocol.errors import ErrorCode
from mwnode.protocol.events import MissionCancelled, MissionTerminated, WorkBlocked
from mwnode.protocol.instants import parse

REASON_MAX = 4000
"""Characters of a reason; a consequence repeats its cause's and cuts it."""


def _unfinished(case: Case, group_id: str) -> list[WorkItemRow]:
    return [row for row in case.view.in_group(WORK_ITEMS, group_id) if row.item.state in UNFINISHED]


def _after(fact: EventFact) -> Cause:
    return Cause(type="event", id=fact.event_id)


# --- cancellation -----------------------------------------------------------------------------------------------------


def cancel(case: Case) -> None:
    """End a live Mission as cancelled, by its owner or by policy (R-7.1-19, R-15.1-23)."""
    payload = case.payload(MissionCancel)
    row = case.mission()
    admit_mission(row.mission.state, case.command.kind)
    case.expect_revision(row.mission.revision)
    fact = cancel_mission(case, row, payload.reason, None)
    parent = _waiting_parent(case, row)
    if parent is not None:
        _keep_blocked(case, row, *parent, f"child Mission {row.mission.mission_id} cancelled: {payload.reason}", fact)
    _note_end(case, "mission cancelled", row, payload.reason, fact)


def cancel_mission(case: Case, row: MissionRow, reason: str, cause: Cause | None) -> EventFact:
    """Cancel a Mission, then its unfinished WorkItems, then its descendants, in this order (decision D65)."""
    mission = row.mission
    lease = leases.closed_if_open(case, row.coordinator_lease, "revoked", "the Mission is cancelled")
    fact = case.emit(
        "mission.cancelled",
        MissionCancelled(
            revision=mission.revision + 1,
            state="cancelled",
            reason=reason[:REASON_MAX],
            coordinator_lease=UNSET if lease is None else lease,
        ),
        group_id=mission.group_id,
        cause=cause,
    )
    for item in _unfinished(case, mission.group_id):
        end_item(case, item, "cancelled", reason[:REASON_MAX], _after(fact))
    _cancel_children(case, row, f"parent Mission {mission.mission_id} cancelled", _after(fact))
    return fact


def _cancel_children(case: Case, row: MissionRow, reason: str, cause: Cause) -> None:
    for mission_id in row.children:
        child = case.view.get(MISSIONS, mission_id)
        if child is not None and child.mission.state in MISSION_LIVE:
            cancel_mission(case, child, reason, cause)


def _note_end(case: Case, decision: str, row: MissionRow, reason: str, fact: EventFact) -> None:
    case.note_policy(
        decision,
        {"missionId": row.mission.mission_id, "reason": reason, "eventId": fact.event_id},
        group_id=row.mission.group_id,
    )


# --- termination ------------------------------------------------------------------------------------------------------


def terminate(case: Case) -> None:
    """End a live Mission as failed, by its Coordinator or by policy (R-7.1-21, R-15.1-24)."""
    payload = case.payload(MissionTerminate)
    row = case.mission()
    admit_mission(row.mission.state, case.command.kind)
    evidence = payload.evidence or ()
    _check_report(case, row, evidence)
    case.expect_revision(row.mission.revision)
    fact = terminate_mission(case, row, payload.reason, evidence, None)
    _note_end(case, "mission terminated", row, payload.reason, fact)


def _check_report(case: Case, row: MissionRow, evidence: tuple[Evidence, ...]) -> None:
    """A child, and a Mission with unfinished work, fails with a signed failure report (R-14-18, decisions F16, F29)."""
    mission = row.mission
    needed = mission.parent is not UNSET or bool(_unfinished(case, mission.group_id))
    if needed and not any(report.type == "failure_report" for report in evidence):
        _misfit("a signed failure_report is missing; say what failed and why", "evidence", "R-14-18")
    for index, report in enumerate(evidence):
        path = f"evidence/{index}"
        case.unused(EVIDENCE, report.evidence_id, "Evidence")
        if (report.mission_id, report.group_id) != (mission.mission_id, mission.group_id):
            _misfit("the Evidence is about another Mission or Group", f"{path}/missionId", "R-14-18")
        item = _reported_item(case, row, report.work_item_id, path)
        criteria = {criterion.criterion_id for criterion in item.item.contract.acceptance_criteria}
        if not set(report.criterion_ids) <= criteria:
            _misfit("the Evidence names criteria that the contract does not have", f"{path}/criterionIds", "R-14-18")
        subjects = {("mission", mission.mission_id)}
        if mission.parent is UNSET:
            subjects.add(("work_item", report.work_item_id))
        if (report.subject.type, report.subject.id) not in subjects:
            _misfit("the subject of the Evidence must be the Mission", f"{path}/subject", "R-14-18")
        if parse(report.created_at) > case.now.plus(case.policy.clock_skew):
            _misfit("the Evidence was created in the future", f"{path}/createdAt", "R-13.2-01")
        if report.generated_by != case.command.actor:
            refuse(ErrorCode.AUTH_FORBIDDEN, "the failure report is signed by somebody else", "R-19-14")


def _reported_item(case: Case, row: MissionRow, work_item_id: str, path: str) -> WorkItemRow:
    """The parent WorkItem for a child, any unfinished one for a root (decision F29)."""
    parent = row.mission.parent
    item = case.view.get(WORK_ITEMS, work_item_id)
    if parent is not UNSET:
        fits = item is not None and work_item_id == parent.work_item_id
    else:
        fits = item is not None and item.item.group_id == row.mission.group_id and item.item.state in UNFINISHED
    if item is None or not fits:
        _misfit(
            "workItemId must be the parent WorkItem, or an unfinished one of a root", f"{path}/workItemId", "R-14-18"
        )
    return item


def terminate_mission(
    case: Case, row: MissionRow, reason: str, evidence: tuple[Evidence, ...], cause: Cause | None
) -> EventFact:
    """Fail a Mission, then its unfinished WorkItems; cancel its descendants; then look upwards (R-14-20)."""
    mission = row.mission
    lease = leases.closed_if_open(case, row.coordinator_lease, "revoked", "the Mission failed")
    fact = case.emit(
        "mission.terminated",
        MissionTerminated(
            revision=mission.revision + 1,
            state="failed",
            reason=reason[:REASON_MAX],
            evidence=evidence or UNSET,
            coordinator_lease=UNSET if lease is None else lease,
        ),
        group_id=mission.group_id,
        cause=cause,
    )
    for item in _unfinished(case, mission.group_id):
        end_item(case, item, "failed", reason[:REASON_MAX], _after(fact), evidence)
    _cancel_children(case, row, f"parent Mission {mission.mission_id} terminated", _after(fact))
    _tell_parent(case, row, reason, evidence, fact)
    return fact


def _tell_parent(case: Case, row: MissionRow, reason: str, evidence: tuple[Evidence, ...], fact: EventFact) -> None:
    """What a child's failure does to its parent, by the failure policy declared when it was made (R-14-17, R-14-20)."""
    waiting = _waiting_parent(case, row)
    if waiting is None:
        return
    text = f"child Mission {row.mission.mission_id} failed: {reason}"[:REASON_MAX]
    if row.failure_policy in (None, "block_parent_work_item"):
        _keep_blocked(case, row, *waiting, text, fact)
        return
    parent, item = waiting
    failed = end_item(case, item, "failed", text, _after(fact), evidence)
    if row.failure_policy == "fail_parent_mission":
        standing = case.view.get(MISSIONS, parent.mission.mission_id)
        assert standing is not None
        terminate_mission(case, standing, text, evidence, _after(failed))


def _waiting_parent(case: Case, row: MissionRow) -> tuple[MissionRow, WorkItemRow] | None:
    """The parent Mission and WorkItem of a child that just ended, where that very item still waits for it."""
    link = row.mission.parent
    if link is UNSET:
        return None
    parent, item = case.view.get(MISSIONS, link.mission_id), case.view.get(WORK_ITEMS, link.work_item_id)
    if parent is None or item is None or parent.mission.state not in MISSION_LIVE:
        return None
    waits = item.item.state == "blocked" and item.child_mission_id == row.mission.mission_id
    return (parent, item) if waits else None


def _keep_blocked(
    case: Case, row: MissionRow, parent: MissionRow, item: WorkItemRow, text: str, fact: EventFact
) -> None:
    """Tell the parent Group that nobody works on the item any more; it stays blocked (R-10.2-35, decision A33)."""
    case.emit(
        "work.blocked",
        WorkBlocked(
            revision=item.item.revision + 1,
            state="blocked",
            mission_revision=parent.mission.revision + 1,
            work_item_id=item.item.work_item_id,
            reason=text[:REASON_MAX],
            required_resolution="unblock, replace or cancel the WorkItem",
            child_mission_id=row.mission.mission_id,
        ),
        group_id=item.item.group_id,
        work_item_id=item.item.work_item_id,
        conversation_id=item.item.conversation_id,
        cause=_after(fact),
    )


def _misfit(message: str, member: str, rule: str) -> NoReturn:
    refuse(ErrorCode.INVALID_COMMAND, message, rule, details={"path": f"/payload/{member}"})


# --- folding ----------------------------------------------------------------------------------------------------------


def mission_of_group(view: Overlay, group_id: str) -> MissionRow:
    """The Mission of a Group, one to one (R-4-01)."""
    group = view.get(GROUPS, group_id)
    assert group is not None
    row = view.get(MISSIONS, group.group.mission_id)
    assert row is not None
    return row


def put_ended(view: Overlay, row: MissionRow, lease: Lease | UnsetType, reason: str | None) -> None:
    """Store a Mission that ended: its Coordinator lease is over, its budget goes back to its parent."""
    if lease is not UNSET:
        leases.keep(view, lease)
        row = structs.replace(row, coordinator_lease=lease)
    view.put(MISSIONS, structs.replace(row, ended_reason=reason))
    budget.close_account(view, row.mission.mission_id)


def _fold_end(view: Overlay, fact: EventFact) -> None:
    payload = fact.payload
    assert isinstance(payload, MissionCancelled | MissionTerminated)
    assert fact.group_id is not None
    assert fact.sequence is not None
    row = mission_of_group(view, fact.group_id)
    state = MISSION_MOVES[row.mission.state, fact.kind]
    mission = structs.replace(row.mission, state=state, revision=payload.revision)
    put_ended(
        view,
        structs.replace(row, mission=mission, state_since=fact.occurred_at),
        payload.coordinator_lease,
        payload.reason,
    )
    if isinstance(payload, MissionTerminated) and payload.evidence is not UNSET:
        for report in payload.evidence:
            if view.get(EVIDENCE, report.evidence_id) is None:
                view.put(EVIDENCE, EvidenceRow(report, fact.sequence))


DECIDERS: dict[str, Callable[[Case], None]] = {"mission.cancel": cancel, "mission.terminate": terminate}
EVOLVERS: dict[str, Callable[[Overlay, EventFact], None]] = {
    "mission.cancelled": _fold_end,
    "mission.terminated": _fold_end,
}
