"""The execution gate: what has to be approved before ``work.start``, and the human Approval that opens it.

The gate holds a ``queued`` WorkItem; it is no state of its own (reading 14). An Approval dies with its Ownership Epoch.
"""

from __future__ import annotations

from typing import NoReturn

from msgspec import UNSET, structs

from mwnode.authority import budget
from mwnode.authority.case import Case, refuse
from mwnode.authority.item_fold import find, put
from mwnode.authority.items import admit, check_epoch, emit, work_item
from mwnode.authority.permissions import first_excess
from mwnode.authority.policy import Policy
from mwnode.authority.request import EventFact
from mwnode.authority.state import APPROVALS, ApprovalRow, WorkItemRow
from mwnode.authority.table import TERMINAL, admit_work_item
from mwnode.authority.view import Overlay, View
from mwnode.protocol.commands import ApprovalGrantExecution
from mwnode.protocol.documents import ResourceGrant, WorkContract
from mwnode.protocol.errors import ErrorCode
from mwnode.protocol.events import ExecutionApproved
from mwnode.protocol.instants import Instant, parse
from mwnode.protocol.jcs import canonical, signing_hash

OPERATION, RESOURCE, EPOCH, EXPIRY, BUDGET = "operation:", "resource:", "ownershipEpoch:", "expiresAt:", "budgetHash:"
"""The five kinds of conditions that an Execution Approval states (decision A14)."""


# --- the gate ---------------------------------------------------------------------------------------------------------


def gated_operation(policy: Policy, resources: tuple[ResourceGrant, ...]) -> str | None:
    """The first operation that policy holds for a human decision (R-12-15)."""
    return next(
        (
            operation
            for grant in resources
            for operation in grant.operations
            if operation.startswith(policy.approval_gates)
        ),
        None,
    )


def needs_approval(policy: Policy, contract: WorkContract) -> bool:
    """Whether a human has to approve the execution of that contract (R-12-15, R-12-18, decision D70)."""
    if contract.execution_approval == "human_required":
        return True
    if contract.execution_approval == "policy_required" and contract.side_effect_risk not in policy.auto_approve_risk:
        return True
    return gated_operation(policy, contract.allowed_resources) is not None


def standing_approval(view: View, row: WorkItemRow, now: Instant) -> ApprovalRow | None:
    """The newest Execution Approval of the present Ownership Epoch that is not over."""
    for approval_id in reversed(row.approval_ids):
        approval = view.get(APPROVALS, approval_id)
        if (
            approval is not None
            and approval.ownership_epoch == row.ownership_epoch
            and approval.expires_at is not None
            and parse(approval.expires_at) > now
        ):
            return approval
    return None


def check(case: Case, row: WorkItemRow) -> None:
    """Refuse while the gate is shut: APPROVAL_REQUIRED (R-10.2-16, R-19-29)."""
    if needs_approval(case.policy, row.item.contract) and standing_approval(case.view, row, case.now) is None:
        refuse(
            ErrorCode.APPROVAL_REQUIRED,
            "a human has to approve this execution first: approval.grant_execution",
            "R-10.2-16",
            details={"ownershipEpoch": row.ownership_epoch},
        )


# --- approval.grant_execution -----------------------------------------------------------------------------------------


def grant(case: Case) -> None:
    """Record a human's signed, time-bounded decision on one Ownership Epoch of one WorkItem (R-12-17, R-G-09).

    It ends at its ``expiresAt`` or with the Ownership Epoch. That time may lie after the end of the ownership lease,
    which moves with every renewal: the signer cannot know it (decision A14).
    """
    payload = case.payload(ApprovalGrantExecution)
    approval = payload.approval
    assert approval.work_item_id is not UNSET, "a work_execution Approval names its workItemId"
    row = work_item(case, approval.work_item_id)
    if row.item.state in TERMINAL:
        admit_work_item(row.item.state, case.command.kind)
    check_epoch(row, payload.ownership_epoch)
    admit(case, row)
    if case.command.actor.type != "human" or approval.approver != case.command.actor:
        refuse(ErrorCode.AUTH_FORBIDDEN, "an Execution Approval is the human's own, signed by that human", "R-12-17")
    case.expect_revision(row.item.revision)
    _check_document(case, row, payload)
    _check_scope(case, row, payload)
    emit(
        case,
        row,
        "approval.execution.granted",
        ExecutionApproved(
            revision=row.item.revision,
            state=row.item.state,
            approval=approval,
            work_item_id=row.item.work_item_id,
            ownership_epoch=payload.ownership_epoch,
            operations=payload.operations,
            resources=payload.resources,
            expires_at=payload.expires_at,
            budget=UNSET if payload.budget is None else payload.budget,
        ),
    )
    details = {
        "approvalId": approval.approval_id,
        "workItemId": row.item.work_item_id,
        "ownershipEpoch": payload.ownership_epoch,
    }
    case.note_policy("execution approved", details, group_id=case.group_id)


def _check_document(case: Case, row: WorkItemRow, payload: ApprovalGrantExecution) -> None:
    approval, mission = payload.approval, case.mission().mission
    case.unused(APPROVALS, approval.approval_id, "Approval")
    if approval.kind != "work_execution" or approval.decision != "approved":
        _misfit("the Approval must be of kind work_execution and approve", "approval/kind")
    if (approval.mission_id, approval.group_id) != (mission.mission_id, mission.group_id):
        _misfit("the Approval is about another Mission or Group", "approval/missionId")
    if not 1 <= approval.mission_revision <= mission.revision:
        _misfit(f"missionRevision must be one that was: 1 to {mission.revision}", "approval/missionRevision")
    if parse(approval.occurred_at) > case.now.plus(case.policy.clock_skew):
        _misfit("occurredAt lies in the future", "approval/occurredAt")
    if case.passed(payload.expires_at):
        _misfit("the Approval is over already", "expiresAt")
    if any(resource.constraints is not UNSET for resource in payload.resources):
        _misfit("conditions cannot state constraints on a resource", "resources")
    if sorted(map(_normal, approval.conditions)) != sorted(map(_normal, _conditions(payload))):
        _misfit(
            "conditions must state exactly operations, resources, ownershipEpoch, expiresAt and, with a budget, "
            "budgetHash of this Command",
            "approval/conditions",
        )


def _conditions(payload: ApprovalGrantExecution) -> list[str]:
    """What the Approval's ``conditions`` have to say (decision A14)."""
    conditions = [f"{OPERATION}{operation}" for operation in payload.operations]
    conditions += [f"{RESOURCE}{grant.resource}#{','.join(grant.operations)}" for grant in payload.resources]
    conditions += [f"{EPOCH}{payload.ownership_epoch}", f"{EXPIRY}{payload.expires_at}"]
    if payload.budget is not None:
        conditions.append(f"{BUDGET}{signing_hash(canonical(payload.budget))}")
    return conditions


def _normal(condition: str) -> str:
    """Operations of a resource in one order: any order is fine."""
    if not condition.startswith(RESOURCE):
        return condition
    resource, _, operations = condition.rpartition("#")
    return f"{resource}#{','.join(sorted(operations.split(',')))}"


def _check_scope(case: Case, row: WorkItemRow, payload: ApprovalGrantExecution) -> None:
    """An Approval reaches no further than the Mission and the contract do (R-12-17)."""
    contract = row.item.contract
    permitted = {operation for grant in case.mission().permissions for operation in grant.operations}
    for operation in payload.operations:
        if operation not in permitted:
            _misfit(f"the Mission's permissions do not cover {operation}", "operations")
    uncovered = first_excess(payload.resources, contract.allowed_resources)
    if uncovered is not None:
        _misfit(f"the contract does not allow {uncovered[1]} on {uncovered[0]}", "resources")
    if payload.budget is not None:
        budget.check_within(case, row.item.work_item_id, payload.budget)


def _misfit(message: str, member: str) -> NoReturn:
    refuse(ErrorCode.INVALID_COMMAND, message, "R-12-17", details={"path": f"/payload/{member}"})


def fold_granted(view: Overlay, fact: EventFact) -> None:
    """Fold ``approval.execution.granted``."""
    payload = fact.payload
    assert isinstance(payload, ExecutionApproved)
    row = find(view, payload.work_item_id)
    view.put(
        APPROVALS,
        ApprovalRow(
            payload.approval,
            ownership_epoch=payload.ownership_epoch,
            operations=payload.operations,
            resources=payload.resources,
            budget=None if payload.budget is UNSET else payload.budget,
            expires_at=payload.expires_at,
        ),
    )
    assert fact.sequence is not None
    approved = structs.replace(
        row, approval_ids=(*row.approval_ids, payload.approval.approval_id), last_sequence=fact.sequence
    )
    put(view, row, approved, fact.occurred_at)
