"""The end of a Mission's road: submission of an exact result, and what its owner decides about it (section 7.3).

An Approval holds for one Mission revision and one Artifact set, byte for byte the ones submitted (R-7.3-06).
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Literal, NoReturn

from msgspec import UNSET, structs

from mwnode.authority import budget, leases, lineage
from mwnode.authority.case import Case, refuse
from mwnode.authority.endings import mission_of_group, put_ended
from mwnode.authority.founding import with_core_data
from mwnode.authority.items import is_satisfied
from mwnode.authority.request import EventFact
from mwnode.authority.state import APPROVALS, MISSIONS, WORK_ITEMS, ApprovalRow, MissionRow
from mwnode.authority.table import MISSION_MOVES, admit_mission
from mwnode.authority.view import Overlay
from mwnode.protocol.commands import (
    CORE,
    BudgetAmend,
    MissionApprove,
    MissionPrioritize,
    MissionRequestChanges,
    MissionSubmitForApproval,
    RootApprovalGrant,
)
from mwnode.protocol.documents import Approval
from mwnode.protocol.errors import ErrorCode
from mwnode.protocol.events import (
    BudgetAmended,
    MissionApproved,
    MissionChangesRequested,
    MissionPrioritized,
    MissionSubmitted,
    RootApprovalGranted,
)

# --- mission.submit_for_approval --------------------------------------------------------------------------------------


def submit(case: Case) -> None:
    """Submit one Mission revision with one exact Artifact set (R-7.1-13, R-7.3-04)."""
    payload = case.payload(MissionSubmitForApproval)
    row = case.mission()
    mission = row.mission
    admit_mission(mission.state, case.command.kind)
    _check_settled(case)
    case.expect_revision(mission.revision)
    if payload.mission_revision is not None and payload.mission_revision != mission.revision:
        _conflict(f"the Mission's revision is {mission.revision}, not {payload.mission_revision}", row)
    foreign = sorted(set(payload.artifact_hashes) - _results(case))
    if foreign:
        refuse(
            ErrorCode.INVALID_COMMAND,
            f"not in any verified submission of this Mission: {', '.join(foreign)}",
            "R-7.3-04",
            details={"path": "/payload/artifactHashes"},
        )
    case.emit(
        "mission.submitted_for_approval",
        MissionSubmitted(
            revision=mission.revision,
            state="awaiting_approval",
            mission_id=mission.mission_id,
            mission_revision=mission.revision,
            artifact_hashes=tuple(sorted(payload.artifact_hashes)),
        ),
    )


def _check_settled(case: Case) -> None:
    """Every WorkItem was reviewed and accepted, cancelled, or replaced by one that was (R-7.3-03, decision A30)."""
    rows = case.view.in_group(WORK_ITEMS, case.group_id)
    open_items = [
        row.item.work_item_id
        for row in rows
        if row.item.state != "cancelled" and not is_satisfied(case.view, row.item.work_item_id)
    ]
    if open_items or not any(row.item.state == "verified" for row in rows):
        refuse(
            ErrorCode.INVALID_STATE_TRANSITION,
            "every WorkItem must be verified, cancelled or replaced by a verified one, and one must be verified",
            "R-7.3-03",
            details={"workItemIds": open_items},
        )


def _results(case: Case) -> set[str]:
    """Artifacts of verified submissions, those adopted from children included (decision D57)."""
    return {
        content_hash
        for row in case.view.in_group(WORK_ITEMS, case.group_id)
        if row.item.state == "verified" and row.item.submission is not UNSET
        for content_hash in row.item.submission.artifact_hashes
    }


# --- the owner's decision ---------------------------------------------------------------------------------------------


def _conflict(message: str, row: MissionRow, *, stated: int | None = None) -> NoReturn:
    refuse(
        ErrorCode.REVISION_CONFLICT,
        message,
        "R-7.3-06",
        expected_revision=stated,
        current_revision=row.mission.revision if row.submitted_revision is None else row.submitted_revision,
    )


def _check_decision(
    case: Case,
    row: MissionRow,
    approval: Approval,
    kind: str,
    decision: Literal["approved", "changes_requested"],
) -> None:
    """The signed decision is about exactly what was submitted, by whom it must be (R-7.3-05, decisions D18, D19)."""
    mission = row.mission
    case.unused(APPROVALS, approval.approval_id, "Approval")
    parent_item = UNSET if mission.parent is UNSET else mission.parent.work_item_id
    expected: dict[str, tuple[object, object]] = {
        "kind": (approval.kind, kind),
        "decision": (approval.decision, decision),
        "missionId": (approval.mission_id, mission.mission_id),
        "groupId": (approval.group_id, mission.group_id),
    }
    if decision == "approved":
        expected["conditions"] = (approval.conditions, ())
    if mission.approval_policy.policy_version is not UNSET:
        expected["acceptancePolicyVersion"] = (
            approval.acceptance_policy_version,
            mission.approval_policy.policy_version,
        )
    if approval.work_item_id is not UNSET:
        expected["workItemId"] = (approval.work_item_id, parent_item)
    for name, (given, right) in expected.items():
        if given != right:
            refuse(
                ErrorCode.INVALID_COMMAND,
                f"the Approval's {name} must be {right!r}",
                "R-7.3-05",
                details={"path": f"/payload/approval/{name}"},
            )
    if approval.approver != case.command.actor:
        refuse(ErrorCode.AUTH_FORBIDDEN, "the Approval is signed by somebody else than the sender", "R-19-14")
    case.expect_revision(mission.revision)
    if approval.mission_revision != row.submitted_revision:
        _conflict(
            f"revision {row.submitted_revision} was submitted, not {approval.mission_revision}",
            row,
            stated=approval.mission_revision,
        )
    if set(approval.artifact_hashes) != set(row.submitted_artifacts):
        _conflict("the Approval's Artifact set is not the one that was submitted", row, stated=row.submitted_revision)


def _kind(row: MissionRow) -> str:
    return "mission_final" if row.mission.parent is UNSET else "child_mission"


def approve(case: Case) -> None:
    """Approve the submitted result; a child's becomes the result of its parent WorkItem (R-7.1-17, R-14-16)."""
    payload = case.payload(MissionApprove)
    row = case.mission()
    mission = row.mission
    admit_mission(mission.state, case.command.kind)
    _check_decision(case, row, payload.approval, _kind(row), "approved")
    root_decides = mission.approval_policy.final_human_approval or case.policy.root_approval_of_children
    if mission.parent is not UNSET and root_decides and not row.root_approval_ids:
        refuse(
            ErrorCode.APPROVAL_REQUIRED,
            "the root MissionOwner must approve this child's result first",
            "R-14-15",
        )
    lease = leases.closed_if_open(case, row.coordinator_lease, "released", "the Mission is approved")
    fact = case.emit(
        "mission.approved",
        MissionApproved(
            revision=mission.revision + 1,
            state="approved",
            approval=payload.approval,
            coordinator_lease=UNSET if lease is None else lease,
        ),
    )
    _note_decision(case, "mission approved", payload.approval, fact)
    if mission.parent is not UNSET:
        lineage.adopt(case, case.mission(), payload.approval, fact)


def request_changes(case: Case) -> None:
    """Send the same Mission back to work; nothing of the submission is lost (R-7.1-15, R-7.3-07, R-7.3-09)."""
    payload = case.payload(MissionRequestChanges)
    row = case.mission()
    admit_mission(row.mission.state, case.command.kind)
    _check_decision(case, row, payload.approval, _kind(row), "changes_requested")
    fact = case.emit(
        "mission.changes_requested",
        MissionChangesRequested(
            revision=row.mission.revision + 1,
            state="active",
            approval=payload.approval,
            feedback=UNSET if payload.feedback is None else payload.feedback,
        ),
    )
    _note_decision(case, "changes requested", payload.approval, fact)


def _note_decision(case: Case, decision: str, approval: Approval, fact: EventFact) -> None:
    case.note_policy(
        decision,
        {
            "approvalId": approval.approval_id,
            "missionId": approval.mission_id,
            "missionRevision": approval.mission_revision,
            "eventId": fact.event_id,
        },
        group_id=approval.group_id,
    )


def grant_root_approval(case: Case) -> None:
    """The root owner's own decision about a child's submitted result (R-14-15, decisions A37, D51)."""
    payload = case.payload(RootApprovalGrant)
    row = case.mission()
    mission = row.mission
    admit_mission(mission.state, case.command.kind)
    _check_decision(case, row, payload.approval, "mission_final", "approved")
    fact = case.emit(
        f"{CORE}.root_approval_granted",
        RootApprovalGranted(revision=mission.revision, state=mission.state, approval=payload.approval),
    )
    _note_decision(case, "root approval granted", payload.approval, fact)


# --- ext.mwnode.core.budget_amend -------------------------------------------------------------------------------------


def amend_budget(case: Case) -> None:
    """Raise or lower the Mission's budget, never below what is used or given away (R-12-23, decision A35)."""
    payload = case.payload(BudgetAmend)
    mission = case.mission().mission
    admit_mission(mission.state, case.command.kind)
    case.expect_revision(mission.revision)
    budget.check_amendment(case, mission.mission_id, payload.budget)
    fact = case.emit(
        f"{CORE}.budget_amended",
        BudgetAmended(revision=mission.revision + 1, state=mission.state, budget=payload.budget, reason=payload.reason),
    )
    case.note_policy(
        "budget amended",
        {"missionId": mission.mission_id, "reason": payload.reason, "eventId": fact.event_id},
        group_id=mission.group_id,
    )


# --- ext.mwnode.core.mission_prioritize -------------------------------------------------------------------------------


def prioritize(case: Case) -> None:
    """Give the Mission another priority class; the human at its root decides that, no Coordinator (R-11.1-08)."""
    payload = case.payload(MissionPrioritize)
    mission = case.mission().mission
    admit_mission(mission.state, case.command.kind)
    if case.command.actor.type != "human":
        refuse(ErrorCode.AUTH_FORBIDDEN, "the human who owns the root Mission sets priorities", "R-11.1-08")
    case.expect_revision(mission.revision)
    fact = case.emit(
        f"{CORE}.mission_prioritized",
        MissionPrioritized(
            revision=mission.revision + 1, state=mission.state, priority=payload.priority, reason=payload.reason
        ),
    )
    case.note_policy(
        "mission prioritized",
        {
            "missionId": mission.mission_id,
            "priority": payload.priority,
            "reason": payload.reason,
            "eventId": fact.event_id,
        },
        group_id=mission.group_id,
    )


# --- folding ----------------------------------------------------------------------------------------------------------


def row_of(view: Overlay, fact: EventFact) -> MissionRow:
    """The Mission that an Event of its Group is about."""
    assert fact.group_id is not None
    return mission_of_group(view, fact.group_id)


def moved(row: MissionRow, fact: EventFact, revision: int) -> MissionRow:
    """The Mission after an Event that moves its state, by the table of section 7.1."""
    state = MISSION_MOVES[row.mission.state, fact.kind]
    mission = structs.replace(row.mission, state=state, revision=revision)
    return structs.replace(row, mission=mission, state_since=fact.occurred_at)


def _fold_submitted(view: Overlay, fact: EventFact) -> None:
    payload = fact.payload
    assert isinstance(payload, MissionSubmitted)
    row = moved(row_of(view, fact), fact, payload.revision)
    view.put(
        MISSIONS,
        structs.replace(row, submitted_revision=payload.mission_revision, submitted_artifacts=payload.artifact_hashes),
    )


def _fold_approved(view: Overlay, fact: EventFact) -> None:
    payload = fact.payload
    assert isinstance(payload, MissionApproved)
    row = moved(row_of(view, fact), fact, payload.revision)
    put_ended(view, structs.replace(row, approval_id=payload.approval.approval_id), payload.coordinator_lease, None)
    view.put(APPROVALS, ApprovalRow(payload.approval))


def _fold_changes_requested(view: Overlay, fact: EventFact) -> None:
    payload = fact.payload
    assert isinstance(payload, MissionChangesRequested)
    row = moved(row_of(view, fact), fact, payload.revision)
    view.put(MISSIONS, structs.replace(row, submitted_revision=None, submitted_artifacts=(), root_approval_ids=()))
    view.put(APPROVALS, ApprovalRow(payload.approval))


def _fold_root_approval(view: Overlay, fact: EventFact) -> None:
    payload = fact.payload
    assert isinstance(payload, RootApprovalGranted)
    row = row_of(view, fact)
    approval_ids = (*row.root_approval_ids, payload.approval.approval_id)
    view.put(MISSIONS, structs.replace(row, root_approval_ids=approval_ids))
    view.put(APPROVALS, ApprovalRow(payload.approval))


def _fold_amended(view: Overlay, fact: EventFact) -> None:
    payload = fact.payload
    assert isinstance(payload, BudgetAmended)
    row = row_of(view, fact)
    mission = structs.replace(row.mission, budget=payload.budget, revision=payload.revision)
    view.put(MISSIONS, structs.replace(row, mission=mission))
    budget.amend_account(view, mission.mission_id, payload.budget)


def _fold_prioritized(view: Overlay, fact: EventFact) -> None:
    payload = fact.payload
    assert isinstance(payload, MissionPrioritized)
    row = row_of(view, fact)
    mission = structs.replace(
        row.mission, revision=payload.revision, extensions=with_core_data(row.mission, priority=payload.priority)
    )
    view.put(MISSIONS, structs.replace(row, mission=mission))


DECIDERS: dict[str, Callable[[Case], None]] = {
    "mission.submit_for_approval": submit,
    "mission.approve": approve,
    "mission.request_changes": request_changes,
    f"{CORE}.root_approval_grant": grant_root_approval,
    f"{CORE}.budget_amend": amend_budget,
    f"{CORE}.mission_prioritize": prioritize,
}
EVOLVERS: dict[str, Callable[[Overlay, EventFact], None]] = {
    "mission.submitted_for_approval": _fold_submitted,
    "mission.approved": _fold_approved,
    "mission.changes_requested": _fold_changes_requested,
    f"{CORE}.root_approval_granted": _fold_root_approval,
    f"{CORE}.budget_amended": _fold_amended,
    f"{CORE}.mission_prioritized": _fold_prioritized,
}
