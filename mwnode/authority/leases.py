"""Lease documents: granted, renewed, closed, run out.

A lease is a half-open interval on the authority's clock: from the instant ``expiresAt`` on it is over. Closed leases
are never opened again; a lease closed before its end is ``released`` or ``revoked``, one found over is ``expired`` at
its end (R-11.3-16). A lease keeps its ID through all renewals (R-11.3-05).
"""

from __future__ import annotations

from typing import Literal

from msgspec import UNSET, structs

from mwnode.authority import performance
from mwnode.authority.case import Case, refuse
from mwnode.authority.request import EventFact
from mwnode.authority.state import AGENTS, LEASES, MISSIONS, WORK_ITEMS, LeaseRow, MissionRow, WorkItemRow
from mwnode.authority.view import Overlay, View
from mwnode.protocol.commands import CORE
from mwnode.protocol.documents import Cause, Lease, Mission, WorkItem
from mwnode.protocol.errors import ErrorCode
from mwnode.protocol.events import LeaseExpired
from mwnode.protocol.instants import parse

Ending = Literal["released", "revoked"]


def session_epoch_of(view: View, agent_id: str) -> int:
    """The Agent's last Session Epoch, 1 when it never connected (decision A16)."""
    agent = view.get(AGENTS, agent_id)
    assert agent is not None, "a lease's holder has an Agent Card"
    return max(1, agent.session_epoch)


def grant_coordinator(
    case: Case, *, mission_id: str, group_id: str, agent_id: str, coordinator_epoch: int, seconds: int
) -> Lease:
    """A new Coordinator lease, at most ``coordinator_lease_max`` seconds long."""
    return Lease(
        lease_id=case.context.new_id(),
        lease_type="coordinator",
        mission_id=mission_id,
        group_id=group_id,
        holder_agent_id=agent_id,
        session_epoch=session_epoch_of(case.view, agent_id),
        coordinator_epoch=coordinator_epoch,
        issued_at=case.now_text,
        starts_at=case.now_text,
        expires_at=case.later(seconds, case.policy.coordinator_lease_max),
        state="active",
        renewal_count=0,
    )


def grant_work(
    case: Case,
    lease_type: Literal["ownership", "execution", "blocked"],
    item: WorkItem,
    *,
    agent_id: str,
    ownership_epoch: int,
    expires_at: str,
    start_by: str | None = None,
) -> Lease:
    """A new lease on a WorkItem, tied to its Ownership Epoch and the holder's Session Epoch (R-11.3-06)."""
    return Lease(
        lease_id=case.context.new_id(),
        lease_type=lease_type,
        mission_id=item.mission_id,
        group_id=item.group_id,
        work_item_id=item.work_item_id,
        holder_agent_id=agent_id,
        session_epoch=session_epoch_of(case.view, agent_id),
        ownership_epoch=ownership_epoch,
        issued_at=case.now_text,
        starts_at=case.now_text,
        expires_at=expires_at,
        start_by=UNSET if start_by is None else start_by,
        state="active",
        renewal_count=0,
    )


def ended(case: Case, lease: Lease | None) -> bool:
    """Whether there is no such lease, or it is closed, or it ran out."""
    return lease is None or lease.state != "active" or case.passed(lease.expires_at)


def renewed(case: Case, lease: Lease, expires_at: str) -> Lease:
    """The lease with another end: whatever moves a lease's end is a renewal of it (decision F11)."""
    return structs.replace(
        lease, expires_at=expires_at, renewal_count=lease.renewal_count + 1, last_renewed_at=case.now_text
    )


def extended(case: Case, lease: Lease, expires_at: str) -> Lease:
    """The lease, renewed if ``expires_at`` lies after its end; otherwise as it is."""
    return renewed(case, lease, expires_at) if parse(expires_at) > parse(lease.expires_at) else lease


def check_renewal_count(lease: Lease, renewal_count: int | None) -> None:
    """Compare the count of renewals that the holder saw, where it states one: REVISION_CONFLICT (decision F10)."""
    if renewal_count is not None and renewal_count != lease.renewal_count:
        refuse(
            ErrorCode.REVISION_CONFLICT,
            f"the lease was renewed {lease.renewal_count} times, not {renewal_count}; read it again and decide anew",
            "R-15.3-01",
            expected_revision=renewal_count,
            current_revision=lease.renewal_count,
        )


def renew(case: Case, lease: Lease, seconds: int, maximum: int, renewal_count: int | None) -> Lease:
    """A renewal that its holder asked for (R-15.3-01, decisions F10 and F39).

    ``renewal_count`` is compared where given: REVISION_CONFLICT. An end that does not move later: INVALID_COMMAND.
    """
    check_renewal_count(lease, renewal_count)
    expires_at = case.later(seconds, maximum)
    if parse(expires_at) <= parse(lease.expires_at):
        refuse(
            ErrorCode.INVALID_COMMAND,
            f"the lease lasts until {lease.expires_at} already; a renewal must end later",
            "R-11.3-02",
            details={"expiresAt": lease.expires_at},
        )
    return renewed(case, lease, expires_at)


def closed(case: Case, lease: Lease, ending: Ending, reason: str) -> Lease:
    """The lease closed now; one that ran out before is ``expired`` at its end whatever closes it."""
    if case.passed(lease.expires_at):
        return structs.replace(lease, state="expired", closed_at=lease.expires_at, closure_reason="the lease ran out")
    return structs.replace(lease, state=ending, closed_at=case.now_text, closure_reason=reason)


def closed_if_open(case: Case, lease: Lease | None, ending: Ending, reason: str) -> Lease | None:
    """The closed lease where it was still open, else ``None``: an Event carries only leases that it closes."""
    return closed(case, lease, ending, reason) if lease is not None and lease.state == "active" else None


def keep(view: Overlay, *leases: Lease) -> None:
    """Remember leases by ID; evolvers call it for every lease that an Event carries."""
    for lease in leases:
        view.put(LEASES, LeaseRow(lease))


# --- the authority's timer --------------------------------------------------------------------------------------------


def expire(case: Case, lease_id: str) -> None:
    """Record that a lease ran out: the lease is closed, nothing else moves (decision A18). Nothing for a lease that
    was closed or moved meanwhile."""
    row = case.view.get(LEASES, lease_id)
    if row is None or row.lease.state != "active" or not case.passed(row.lease.expires_at):
        return
    lease = closed(case, row.lease, "revoked", "")
    if lease.lease_type == "coordinator":
        mission_row = case.view.get(MISSIONS, lease.mission_id)
        assert mission_row is not None
        mission: Mission = mission_row.mission
        payload = LeaseExpired(
            revision=mission.revision,
            state=mission.state,
            lease_id=lease_id,
            lease_type=lease.lease_type,
            coordinator_lease=lease,
        )
        work_item_id = conversation_id = None
    else:
        assert lease.work_item_id is not UNSET
        item_row = case.view.get(WORK_ITEMS, lease.work_item_id)
        assert item_row is not None
        item = item_row.item
        payload = LeaseExpired(
            revision=item.revision,
            state=item.state,
            lease_id=lease_id,
            lease_type=lease.lease_type,
            work_item_id=item.work_item_id,
            ownership_lease=lease if lease.lease_type == "ownership" else UNSET,
            execution_lease=lease if lease.lease_type == "execution" else UNSET,
            blocked_lease=lease if lease.lease_type == "blocked" else UNSET,
        )
        work_item_id, conversation_id = item.work_item_id, item.conversation_id
    case.emit(
        f"{CORE}.lease_expired",
        payload,
        group_id=lease.group_id,
        work_item_id=work_item_id,
        conversation_id=conversation_id,
        cause=Cause(type="timer", id=lease_id),
    )


def fold_expired(view: Overlay, fact: EventFact) -> None:
    """Fold ``lease_expired``: the closed document replaces the open one wherever it stands."""
    payload = fact.payload
    assert isinstance(payload, LeaseExpired)
    if payload.coordinator_lease is not UNSET:
        keep(view, payload.coordinator_lease)
        mission_row = view.get(MISSIONS, payload.coordinator_lease.mission_id)
        assert mission_row is not None
        assert mission_row.coordinator_lease.lease_id == payload.lease_id, "a replaced one was closed then"
        updated: MissionRow = structs.replace(mission_row, coordinator_lease=payload.coordinator_lease)
        view.put(MISSIONS, updated)
        return
    assert payload.work_item_id is not UNSET
    row = view.get(WORK_ITEMS, payload.work_item_id)
    assert row is not None
    assert fact.sequence is not None
    changed: WorkItemRow = structs.replace(row, last_sequence=fact.sequence)
    for name in ("ownership_lease", "execution_lease", "blocked_lease"):
        lease = getattr(payload, name)
        if lease is not UNSET:
            keep(view, lease)
            changed = structs.replace(changed, **{name: lease})
    view.put(WORK_ITEMS, changed)
    performance.note(view, fact, row)
