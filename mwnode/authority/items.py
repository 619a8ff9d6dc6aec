"""What every kind of WorkItem Command shares: finding and holding an item, fencing its owner, folding its changes.

The order of checks is decision A6's: an ended item, a fenced Ownership Epoch, the state, who the owner is, the lease.
"""

from __future__ import annotations

from typing import Any

import msgspec
from msgspec import UNSET, UnsetType, structs

from mwnode.authority.case import Case, refuse
from mwnode.authority.contracts import cleanup_contract
from mwnode.authority.leases import closed_if_open, ended
from mwnode.authority.request import EventFact
from mwnode.authority.state import (
    AGENTS,
    MISSIONS,
    WORK_ITEMS,
    WorkItemRow,
)
from mwnode.authority.table import (
    MISSION_LIVE,
    TERMINAL,
    UNFINISHED,
    admit_mission,
    admit_work_item,
    work_item_rule,
)
from mwnode.authority.view import View
from mwnode.protocol.commands import ExecutionLeaseRenew, Payload, WorkBlock, WorkCheckpoint, WorkSubmit
from mwnode.protocol.documents import (
    Actor,
    Cause,
    Conversation,
    ConversationAccess,
    Evidence,
    Extension,
    Lease,
    Owner,
    WorkContract,
    WorkItem,
)
from mwnode.protocol.errors import ErrorCode
from mwnode.protocol.events import WorkAuthorized, WorkCancelled, WorkFailed
from mwnode.protocol.identifiers import CORE_EXTENSION, policy_cause_id, work_item_conversation_id

CLEARABLE = {
    "owner": "owner",
    "progress": "progress",
    "submission": "submission",
    "scheduleEstimate": "schedule_estimate",
}
"""Members of the WorkItem document that Events may name in ``cleared``, with their names here."""
CLEANUP_POLICY = policy_cause_id("cleanup")


# --- finding and holding ----------------------------------------------------------------------------------------------


def work_item(case: Case, given: str | None) -> WorkItemRow:
    """The WorkItem that the Command names, in this Group; INVALID_COMMAND otherwise (decision D8, R-19-19)."""
    return item_in_group(case, case.reference("work_item_id", given))


def item_in_group(case: Case, work_item_id: str, what: str = "WorkItem") -> WorkItemRow:
    """A WorkItem of this Group; INVALID_COMMAND otherwise."""
    row = case.view.get(WORK_ITEMS, work_item_id)
    if row is None or row.item.group_id != case.group_id:
        refuse(ErrorCode.INVALID_COMMAND, f"{what} {work_item_id} is not known in this Group", "R-19-19")
    return row


def admit(case: Case, row: WorkItemRow) -> None:
    """The states of WorkItem and Mission must both admit the kind: INVALID_STATE_TRANSITION (R-10.2-42)."""
    kind = case.command.kind
    if row.item.state not in TERMINAL:
        admit_mission(case.mission().mission.state, kind)
    admit_work_item(row.item.state, kind)


def check_epoch(row: WorkItemRow, ownership_epoch: int) -> None:
    """Only the newest Ownership Epoch counts, whoever cites it (R-10.2-08, decisions A6, D38, F33)."""
    if row.ownership_epoch == 0:
        refuse(ErrorCode.INVALID_STATE_TRANSITION, "the WorkItem never had an owner", "R-10.2-42")
    if ownership_epoch != row.ownership_epoch:
        refuse(
            ErrorCode.WORK_STALE_OWNERSHIP,
            f"the Ownership Epoch is {row.ownership_epoch}, not {ownership_epoch}; the ownership has ended",
            "R-19-28",
            details={"currentOwnershipEpoch": row.ownership_epoch},
        )


def hold(case: Case, row: WorkItemRow, ownership_epoch: int, *, only_in: str | None = None) -> Owner:
    """What the owner's own kinds need before any lease is looked at. Returns the owner, who is the actor.

    ``only_in`` is the one state in which the owner may do what others may in more (reading 18).
    """
    if row.item.state in TERMINAL:
        admit_work_item(row.item.state, case.command.kind)
    check_epoch(row, ownership_epoch)
    admit(case, row)
    if only_in is not None and row.item.state != only_in:
        refuse(
            ErrorCode.INVALID_STATE_TRANSITION,
            f"the owner may do this only while the WorkItem is {only_in}; it is {row.item.state}",
            work_item_rule(row.item.state, case.command.kind),
            details={"state": row.item.state},
        )
    owner = row.item.owner
    if owner is UNSET or case.command.actor.type != "agent" or case.command.actor.id != owner.agent_id:
        refuse(ErrorCode.AUTH_FORBIDDEN, "only the owner of the WorkItem may do this", "R-19-14")
    return owner


def hold_execution(case: Case, row: WorkItemRow, lease_id: str) -> Lease:
    """The current Execution Lease, cited by its ID and not over (R-11.3-08, R-11.3-09): WORK_LEASE_EXPIRED."""
    lease = row.execution_lease
    if lease is None or lease.lease_id != lease_id:
        refuse(ErrorCode.WORK_LEASE_EXPIRED, f"{lease_id} is not the current Execution Lease", "R-11.3-09")
    if ended(case, lease):
        refuse(ErrorCode.WORK_LEASE_EXPIRED, f"the Execution Lease ended at {lease.expires_at}", "R-11.3-16")
    if lease.session_epoch != case.command.session_epoch:
        refuse(ErrorCode.AUTH_STALE_SESSION, "the Execution Lease belongs to a replaced Session", "R-11.3-06")
    return lease


def hold_ownership(case: Case, row: WorkItemRow) -> Lease:
    """The owner's live ownership: WORK_LEASE_EXPIRED once it lapsed (decision A18, R-19-27)."""
    lease = row.ownership_lease
    if lease is None or not live_owner(case, row):
        refuse(
            ErrorCode.WORK_LEASE_EXPIRED,
            "the ownership has lapsed; the Coordinator can offer the WorkItem again",
            "R-19-27",
        )
    return lease


class Held(msgspec.Struct, frozen=True):
    """A WorkItem whose owner executes it, as the kinds under an Execution Lease find it."""

    row: WorkItemRow
    owner: Owner
    execution_lease: Lease
    ownership_lease: Lease


def hold_running(case: Case, payload: WorkCheckpoint | WorkBlock | WorkSubmit | ExecutionLeaseRenew) -> Held:
    """What every kind under an Execution Lease needs first: the item, its owner, the lease that is cited, and the
    revision, where one is stated (decision A6, R-11.3-08)."""
    row = work_item(case, payload.work_item_id)
    owner = hold(case, row, payload.ownership_epoch)
    lease = hold_execution(case, row, payload.execution_lease_id)
    case.expect_revision(row.item.revision)
    assert row.ownership_lease is not None, "an owner has an ownership lease"
    return Held(row, owner, lease, row.ownership_lease)


def live_owner(case: Case, row: WorkItemRow) -> bool:
    """Whether somebody owns the item and has not let it lapse (decision A18).

    ``queued``: ownership lease and start-by deadline; ``active``: the Execution Lease; ``blocked``: the blocked lease.
    The owner of a promoted item is its Coordinator and is never live (decision D35), nor is an Agent whose Card was
    revoked (decision E18).
    """
    state = row.item.state
    if row.item.owner is UNSET:
        return False
    owner = case.view.get(AGENTS, row.item.owner.agent_id)
    if owner is None or owner.card.status == "revoked":
        return False
    if state == "queued":
        lease = row.ownership_lease
        return (
            not ended(case, lease)
            and lease is not None
            and not (lease.start_by is not UNSET and case.passed(lease.start_by))
        )
    if state == "active":
        return not ended(case, row.execution_lease)
    if state == "blocked":
        return row.child_mission_id is None and not ended(case, row.blocked_lease)
    return False


def child_is_running(view: View, row: WorkItemRow) -> bool:
    """Whether the item was promoted and its child Mission goes on (decision A40)."""
    if row.child_mission_id is None:
        return False
    child = view.get(MISSIONS, row.child_mission_id)
    return child is not None and child.mission.state in ("active", "awaiting_approval")


def is_satisfied(view: View, work_item_id: str) -> bool:
    """Whether a dependency is met: ``verified``, or a substitute of it is (decision F18)."""
    seen: set[str] = set()
    following: str | None = work_item_id
    while following is not None and following not in seen:
        seen.add(following)
        row = view.get(WORK_ITEMS, following)
        if row is None:
            return False
        if row.item.state == "verified":
            return True
        following = row.replaced_by
    return False


def as_agent(agent_id: str) -> Actor:
    """An Agent as a Principal."""
    return Actor(type="agent", id=agent_id)


# --- Events -----------------------------------------------------------------------------------------------------------


def emit(case: Case, row: WorkItemRow, kind: str, payload: Payload, *, cause: Cause | None = None) -> EventFact:
    """Append an Event about one WorkItem, in its Group and with its Conversation."""
    return case.emit(
        kind,
        payload,
        group_id=row.item.group_id,
        work_item_id=row.item.work_item_id,
        conversation_id=row.item.conversation_id,
        cause=cause,
    )


def next_mission_revision(case: Case, row: WorkItemRow) -> int:
    """The Mission's revision after an Event that moves it (decisions A24, F4)."""
    mission_row = case.view.get(MISSIONS, row.item.mission_id)
    assert mission_row is not None
    return mission_row.mission.revision + 1


def or_unset(lease: Lease | None) -> Lease | UnsetType:
    """A lease as an Event's member."""
    return UNSET if lease is None else lease


class ClosedLeases(msgspec.Struct, frozen=True):
    """The leases that one Event closes, ready to be its members."""

    ownership_lease: Lease | UnsetType
    execution_lease: Lease | UnsetType
    blocked_lease: Lease | UnsetType


def close_leases(case: Case, row: WorkItemRow, reason: str) -> ClosedLeases:
    """Every open lease on the item, revoked, or expired where it ran out before (R-11.3-18 to R-11.3-20)."""
    return ClosedLeases(
        *(
            or_unset(closed_if_open(case, lease, "revoked", reason))
            for lease in (row.ownership_lease, row.execution_lease, row.blocked_lease)
        )
    )


def cleared_members(row: WorkItemRow, *names: str) -> tuple[str, ...] | UnsetType:
    """Those of ``names`` (as on the wire) that the document has and is about to lose (decision A29)."""
    gone = tuple(name for name in names if getattr(row.item, CLEARABLE[name]) is not UNSET)
    return gone or UNSET


def end_item(
    case: Case,
    row: WorkItemRow,
    to_state: str,
    reason: str,
    cause: Cause | None,
    evidence: tuple[Evidence, ...] = (),
) -> EventFact:
    """Fail or cancel one unfinished WorkItem: its leases are revoked, its budget is released, and what its contract
    defines as cleanup is authorized (R-10.2-27, R-10.2-29, R-10.2-37, R-12-31, R-12-33).

    ``to_state`` is ``failed`` or ``cancelled``; ``cause`` ``None`` is the Command. A failure needs ``evidence``.
    """
    assert row.item.state in UNFINISHED, "only unfinished WorkItems end"
    leases = close_leases(case, row, reason[:512] if reason.strip() else to_state)
    revision, mission_revision = row.item.revision + 1, next_mission_revision(case, row)
    if to_state == "failed":
        fact = emit(
            case,
            row,
            "work.failed",
            WorkFailed(
                revision=revision,
                state=to_state,
                mission_revision=mission_revision,
                work_item_id=row.item.work_item_id,
                reason=reason,
                evidence=evidence,
                attempt=row.attempts + 1,
                ownership_lease=leases.ownership_lease,
                execution_lease=leases.execution_lease,
                blocked_lease=leases.blocked_lease,
            ),
            cause=cause,
        )
    else:
        fact = emit(
            case,
            row,
            "work.cancelled",
            WorkCancelled(
                revision=revision,
                state=to_state,
                mission_revision=mission_revision,
                work_item_id=row.item.work_item_id,
                reason=reason,
                cleared=cleared_members(row, "owner"),
                ownership_lease=leases.ownership_lease,
                execution_lease=leases.execution_lease,
                blocked_lease=leases.blocked_lease,
            ),
            cause=cause,
        )
    mission_row = case.view.get(MISSIONS, row.item.mission_id)
    # A Mission that ended admits no work, so there is nobody to clean up for it.
    if row.started and mission_row is not None and mission_row.mission.state in MISSION_LIVE:
        _authorize_cleanup(case, row)
    return fact


def _authorize_cleanup(case: Case, row: WorkItemRow) -> None:
    contract = cleanup_contract(row.item.contract)
    if contract is None:
        return
    parent = row.parent_work_item_id
    service = case.context.services.authority
    new = new_item(case, case.context.new_id(), contract, row.item.mission_id, row.item.group_id, service, service)
    case.emit(
        "work.authorized",
        WorkAuthorized(
            revision=1,
            state="open",
            mission_revision=next_mission_revision(case, row),
            work_item=new,
            conversation=new_conversation(new, service),
            parent_work_item_id=UNSET if parent is None else parent,
        ),
        group_id=row.item.group_id,
        work_item_id=new.work_item_id,
        conversation_id=new.conversation_id,
        cause=Cause(type="policy", id=CLEANUP_POLICY),
        actor=service,
    )


def new_item(
    case: Case,
    work_item_id: str,
    contract: WorkContract,
    mission_id: str,
    group_id: str,
    created_by: Actor,
    authorized_by: Actor,
) -> WorkItem:
    """An ``open`` WorkItem at revision 1 with its own Conversation (R-9-01)."""
    return WorkItem(
        work_item_id=work_item_id,
        mission_id=mission_id,
        group_id=group_id,
        conversation_id=work_item_conversation_id(group_id, work_item_id),
        revision=1,
        state="open",
        exclusive=True,
        contract=contract,
        created_by=created_by,
        created_at=case.now_text,
        authorized_by=authorized_by,
    )


def new_conversation(item: WorkItem, created_by: Actor) -> Conversation:
    """The Conversation dedicated to a WorkItem (R-9-01)."""
    return Conversation(
        conversation_id=item.conversation_id,
        mission_id=item.mission_id,
        group_id=item.group_id,
        type="work_item",
        title=item.contract.goal[:500],
        access=ConversationAccess(mode="group"),
        created_by=created_by,
        created_at=item.created_at,
        state="active",
        revision=1,
        primary_work_item_id=item.work_item_id,
    )


# --- documents --------------------------------------------------------------------------------------------------------


def document(row: WorkItemRow) -> WorkItem:
    """The durable WorkItem document, with the links that its schema has no member for (reading 20, decision D28)."""
    links: dict[str, Any] = {
        "parentWorkItemId": row.parent_work_item_id,
        "childMissionId": row.child_mission_id,
        "delegationGrantId": row.delegation_grant_id,
        "replacesWorkItemId": row.replaces,
        "proposalId": row.proposal_id,
        "attempt": row.attempts or None,
        "checkpoints": msgspec.to_builtins(row.checkpoints) or None,
        "executionLease": None if row.execution_lease is None else msgspec.to_builtins(row.execution_lease),
    }
    data = {name: value for name, value in links.items() if value is not None}
    if not data:
        return row.item
    extensions = {} if row.item.extensions is UNSET else dict(row.item.extensions)
    extensions[CORE_EXTENSION] = Extension(version="1.0.0", critical=False, data=data)
    return structs.replace(row.item, extensions=extensions)
