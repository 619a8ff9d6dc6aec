"""Execution: started under a lease, renewed, checkpointed, blocked, unblocked, approved by a human, accounted for."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from msgspec import UNSET, structs

from mwnode.authority import budget, gate, leases, offline, usage
from mwnode.authority.candidates import active_limit
from mwnode.authority.case import Case, refuse
from mwnode.authority.cooperation import pass_limit
from mwnode.authority.item_fold import find, fold
from mwnode.authority.items import (
    admit,
    child_is_running,
    cleared_members,
    close_leases,
    emit,
    hold,
    hold_ownership,
    hold_running,
    is_satisfied,
    live_owner,
    work_item,
)
from mwnode.authority.request import EventFact
from mwnode.authority.state import AGENTS, CHECKPOINTS_KEPT, WorkItemRow
from mwnode.authority.view import Overlay
from mwnode.protocol.capabilities import covers
from mwnode.protocol.commands import (
    CORE,
    EXT,
    Checkpoint,
    ExecutionLeaseRenew,
    OwnershipLeaseRenew,
    WorkBlock,
    WorkCheckpoint,
    WorkStart,
    WorkUnblock,
)
from mwnode.protocol.documents import Cause, Lease
from mwnode.protocol.errors import ErrorCode
from mwnode.protocol.events import (
    ExecutionLeaseRevoked,
    OwnershipLeaseRenewed,
    WorkBlocked,
    WorkCheckpointed,
    WorkProgressed,
    WorkStarted,
    WorkUnblocked,
)

RESUME_SECONDS = 900
"""How long ownership lasts at least after a Session was replaced (decision F3)."""
REPLACED = "session_replaced"
WITHDRAWN = "agent_card_revoked"


def _requeued(case: Case, lease: Lease, until: str) -> Lease:
    """The ownership lease on every return to ``queued``: it ends no earlier than ``until``, and ``startBy`` moves to
    its end (decisions F3, F35)."""
    lease = leases.extended(case, lease, until)
    return structs.replace(lease, start_by=lease.expires_at)


# --- work.start -------------------------------------------------------------------------------------------------------


def start(case: Case) -> None:
    """Begin to execute: ownership, dependencies, the active limit, the approval gate and the budget all hold
    (R-10.2-15, R-10.2-16, R-15.1-38)."""
    payload = case.payload(WorkStart)
    row = work_item(case, payload.work_item_id)
    owner = hold(case, row, payload.ownership_epoch)
    ownership = hold_ownership(case, row)
    case.expect_revision(row.item.revision)
    agent = case.view.get(AGENTS, owner.agent_id)
    assert agent is not None, "an owner has an Agent Card"
    if not covers(agent.card.capabilities, owner.capability_pins):
        refuse(
            ErrorCode.AUTH_FORBIDDEN,
            "the Agent Card does not have what was pinned any more; the WorkItem has to be offered and accepted anew",
            "R-6.1-08",
            details={"agentCardVersion": agent.card.card_version},
        )
    for dependency_id in row.item.contract.dependency_work_item_ids:
        if not is_satisfied(case.view, dependency_id):
            refuse(
                ErrorCode.INVALID_STATE_TRANSITION,
                f"the dependency {dependency_id} is not verified yet",
                "R-10.4-03",
                details={"dependencyId": dependency_id},
            )
    active = active_limit(case, agent)
    pass_limit(
        case,
        "active_work_items",
        agent.active + 1 > active,
        f"an Agent may have {active} active WorkItems",
        rule="R-20-02",
    )
    gate.check(case, row)
    budget.check_not_exhausted(case.view, row.item.work_item_id)
    lease = leases.grant_work(
        case,
        "execution",
        row.item,
        agent_id=owner.agent_id,
        ownership_epoch=row.ownership_epoch,
        expires_at=case.later(payload.execution_lease_seconds, case.policy.execution_lease_max),
    )
    emit(
        case,
        row,
        "work.started",
        WorkStarted(
            revision=row.item.revision + 1,
            state="active",
            work_item_id=row.item.work_item_id,
            ownership_epoch=row.ownership_epoch,
            execution_lease=lease,
            ownership_lease=_moved(case, ownership, lease.expires_at),
        ),
    )


def _moved(case: Case, ownership: Lease, until: str) -> Any:
    """The ownership lease as an Event's member, where it has to last longer; absent where it does already."""
    lease = leases.extended(case, ownership, until)
    return UNSET if lease is ownership else lease


def _fold_started(view: Overlay, fact: EventFact) -> None:
    payload = fact.payload
    assert isinstance(payload, WorkStarted)
    fold(view, fact, find(view, payload.work_item_id), started=True)


# --- renewals ---------------------------------------------------------------------------------------------------------


def renew_execution(case: Case) -> None:
    """Extend the Execution Lease under its ID, and the ownership lease with it (R-11.3-02, R-11.3-05)."""
    payload = case.payload(ExecutionLeaseRenew)
    held = hold_running(case, payload)
    row = held.row
    lease = leases.renew(
        case, held.execution_lease, payload.lease_seconds, case.policy.execution_lease_max, payload.renewal_count
    )
    emit(
        case,
        row,
        "work.progressed",
        WorkProgressed(
            revision=row.item.revision + 1,
            state=row.item.state,
            work_item_id=row.item.work_item_id,
            ownership_epoch=row.ownership_epoch,
            execution_lease=lease,
            ownership_lease=_moved(case, held.ownership_lease, lease.expires_at),
            progress=UNSET if payload.progress is None else payload.progress,
            schedule_estimate=UNSET if payload.schedule_estimate is None else payload.schedule_estimate,
        ),
    )


def _fold_progressed(view: Overlay, fact: EventFact) -> None:
    payload = fact.payload
    assert isinstance(payload, WorkProgressed)
    item: dict[str, Any] = {}
    if payload.progress is not UNSET:
        item["progress"] = payload.progress
    if payload.schedule_estimate is not UNSET:
        item["schedule_estimate"] = payload.schedule_estimate
    fold(view, fact, find(view, payload.work_item_id), item=item)


def renew_ownership(case: Case) -> None:
    """Extend the ownership lease. A start-by deadline that is the lease's end moves with it; an earlier one stays
    (decision F11)."""
    payload = case.payload(OwnershipLeaseRenew)
    row = work_item(case, payload.work_item_id)
    hold(case, row, payload.ownership_epoch)
    lease = hold_ownership(case, row)
    case.expect_revision(row.item.revision)
    follows = lease.start_by == lease.expires_at
    lease = leases.renew(case, lease, payload.lease_seconds, case.policy.ownership_lease_max, payload.renewal_count)
    if follows:
        lease = structs.replace(lease, start_by=lease.expires_at)
    emit(
        case,
        row,
        f"{CORE}.ownership_lease_renewed",
        OwnershipLeaseRenewed(
            revision=row.item.revision + 1,
            state=row.item.state,
            work_item_id=row.item.work_item_id,
            ownership_epoch=row.ownership_epoch,
            ownership_lease=lease,
        ),
    )


def _fold_ownership_renewed(view: Overlay, fact: EventFact) -> None:
    payload = fact.payload
    assert isinstance(payload, OwnershipLeaseRenewed)
    fold(view, fact, find(view, payload.work_item_id))


# --- work.checkpoint, work.block, work.unblock ------------------------------------------------------------------------


def checkpoint(case: Case) -> None:
    """Give up execution, keep a bounded ownership and the progress (R-10.2-17, R-11.3-13)."""
    payload = case.payload(WorkCheckpoint)
    held = hold_running(case, payload)
    row = held.row
    offline.reconcile(case, row)
    until = case.later(payload.resume_within_seconds, case.policy.ownership_lease_max)
    case.receipt_kind = "work.checkpointed"
    emit(
        case,
        row,
        "work.checkpointed",
        WorkCheckpointed(
            revision=row.item.revision + 1,
            state="queued",
            work_item_id=row.item.work_item_id,
            checkpoint=payload.checkpoint,
            progress=UNSET if payload.progress is None else payload.progress,
            execution_lease=leases.closed(case, held.execution_lease, "released", "checkpoint"),
            ownership_lease=_requeued(case, held.ownership_lease, until),
        ),
    )


def _fold_checkpointed(view: Overlay, fact: EventFact) -> None:
    payload = fact.payload
    assert isinstance(payload, WorkCheckpointed)
    row = find(view, payload.work_item_id)
    item: dict[str, Any] = {} if payload.progress is UNSET else {"progress": payload.progress}
    fold(view, fact, row, item=item, checkpoint=payload.checkpoint, checkpoints=_kept(row, payload.checkpoint))


def _kept(row: WorkItemRow, checkpoint: Checkpoint) -> tuple[Checkpoint, ...]:
    return (*row.checkpoints, checkpoint)[-CHECKPOINTS_KEPT:]


def block(case: Case) -> None:
    """Pause with a checkpoint until something named is resolved; ownership lasts as long as the blocked lease
    (R-10.2-19, R-11.3-14, R-11.4-03, R-11.4-05)."""
    payload = case.payload(WorkBlock)
    held = hold_running(case, payload)
    row = held.row
    blocked = leases.grant_work(
        case,
        "blocked",
        row.item,
        agent_id=held.owner.agent_id,
        ownership_epoch=row.ownership_epoch,
        expires_at=case.later(payload.blocked_lease_seconds, case.policy.blocked_lease_max),
    )
    emit(
        case,
        row,
        "work.blocked",
        WorkBlocked(
            revision=row.item.revision + 1,
            state="blocked",
            work_item_id=row.item.work_item_id,
            reason=payload.reason,
            required_resolution=payload.required_resolution,
            checkpoint=payload.checkpoint,
            execution_lease=leases.closed(case, held.execution_lease, "released", "block"),
            blocked_lease=blocked,
            ownership_lease=_moved(case, held.ownership_lease, blocked.expires_at),
        ),
    )


def _fold_blocked(view: Overlay, fact: EventFact) -> None:
    """Blocked by its owner, or by the failure of the child Mission that it was promoted to (R-10.2-35)."""
    payload = fact.payload
    assert isinstance(payload, WorkBlocked)
    row = find(view, payload.work_item_id)
    checkpoint = None if payload.checkpoint is UNSET else payload.checkpoint
    fold(
        view,
        fact,
        row,
        block_reason=payload.reason,
        required_resolution=None if payload.required_resolution is UNSET else payload.required_resolution,
        checkpoint=row.checkpoint if checkpoint is None else checkpoint,
        checkpoints=row.checkpoints if checkpoint is None else _kept(row, checkpoint),
    )


def unblock(case: Case) -> None:
    """Back to ``queued`` while the owner is live, else to ``open`` with the owner fenced (R-10.2-21, R-10.2-22)."""
    payload = case.payload(WorkUnblock)
    row = work_item(case, payload.work_item_id)
    admit(case, row)
    if child_is_running(case.view, row):
        refuse(ErrorCode.INVALID_STATE_TRANSITION, "a child Mission works on this WorkItem", "R-10.2-22")
    case.expect_revision(row.item.revision)
    resolution = UNSET if payload.resolution is None else payload.resolution
    if live_owner(case, row):
        assert row.ownership_lease is not None, "a live owner has an ownership lease"
        assert row.blocked_lease is not None, "and a blocked lease"
        event = WorkUnblocked(
            revision=row.item.revision + 1,
            state="queued",
            work_item_id=row.item.work_item_id,
            resolution=resolution,
            blocked_lease=leases.closed(case, row.blocked_lease, "released", "unblocked"),
            ownership_lease=_requeued(case, row.ownership_lease, row.blocked_lease.expires_at),
        )
    else:
        closing = close_leases(case, row, "ownership lapsed while blocked")
        event = WorkUnblocked(
            revision=row.item.revision + 1,
            state="open",
            work_item_id=row.item.work_item_id,
            resolution=resolution,
            cleared=cleared_members(row, "owner", "scheduleEstimate"),
            ownership_lease=closing.ownership_lease,
            execution_lease=closing.execution_lease,
            blocked_lease=closing.blocked_lease,
        )
    emit(case, row, "work.unblocked", event)


def _fold_unblocked(view: Overlay, fact: EventFact) -> None:
    payload = fact.payload
    assert isinstance(payload, WorkUnblocked)
    row = find(view, payload.work_item_id)
    fenced = payload.state == "open" and row.item.owner is not UNSET
    fold(
        view,
        fact,
        row,
        block_reason=None,
        required_resolution=None,
        child_mission_id=None,
        ownership_epoch=row.ownership_epoch + fenced,
    )


# --- a replaced Session -----------------------------------------------------------------------------------------------


def revoke_for_session(case: Case, agent_id: str, session_epoch: int, cause: Cause, *, resumes: bool = True) -> None:
    """What a new Session of an Agent means: its active WorkItems return to ``queued``, their Execution Leases revoked,
    their ownership kept long enough to resume (R-11.3-17, R-11.3-22, reading 15, decisions A17, F3).

    ``cause`` names the Event of the Organization that they follow from. An Agent whose Card was revoked does not
    resume: its ownership is revoked too (decision E18).
    """
    agent = case.view.get(AGENTS, agent_id)
    assert agent is not None, "only who has an Agent Card has a Session"
    for work_item_id in agent.active_ids:
        row = find(case.view, work_item_id)
        if row.ownership_lease is None or leases.ended(case, row.ownership_lease):
            continue  # lapsed: the Coordinator can offer it again, the Agent cannot resume it
        assert row.execution_lease is not None, "an active WorkItem has an Execution Lease"
        reason = REPLACED if resumes else WITHDRAWN
        lease = leases.closed_if_open(case, row.execution_lease, "revoked", reason)
        if resumes:
            ownership = _requeued(case, row.ownership_lease, case.now.plus(RESUME_SECONDS).text())
        else:
            ownership = leases.closed(case, row.ownership_lease, "revoked", reason)
        emit(
            case,
            row,
            f"{EXT}.core.work_execution_lease_revoked",
            ExecutionLeaseRevoked(
                revision=row.item.revision + 1,
                state="queued",
                work_item_id=row.item.work_item_id,
                execution_lease_id=row.execution_lease.lease_id,
                reason=reason,
                session_epoch=session_epoch,
                execution_lease=UNSET if lease is None else lease,
                ownership_lease=ownership,
            ),
            cause=cause,
        )


def _fold_revoked(view: Overlay, fact: EventFact) -> None:
    payload = fact.payload
    assert isinstance(payload, ExecutionLeaseRevoked)
    fold(view, fact, find(view, payload.work_item_id))


DECIDERS: dict[str, Callable[[Case], None]] = {
    "work.start": start,
    "work.checkpoint": checkpoint,
    "work.block": block,
    "work.unblock": unblock,
    "approval.grant_execution": gate.grant,
    f"{EXT}.core.work_execution_lease_renew": renew_execution,
    f"{CORE}.ownership_lease_renew": renew_ownership,
    f"{EXT}.core.resource_usage_record": usage.record,
}
EVOLVERS: dict[str, Callable[[Overlay, EventFact], None]] = {
    "work.started": _fold_started,
    "work.progressed": _fold_progressed,
    "work.checkpointed": _fold_checkpointed,
    "work.blocked": _fold_blocked,
    "work.unblocked": _fold_unblocked,
    "approval.execution.granted": gate.fold_granted,
    f"{CORE}.ownership_lease_renewed": _fold_ownership_renewed,
    f"{CORE}.lease_expired": leases.fold_expired,
    f"{EXT}.core.work_execution_lease_revoked": _fold_revoked,
    f"{EXT}.core.resource_usage_recorded": usage.fold_recorded,
}
