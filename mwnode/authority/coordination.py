"""Who coordinates a Mission: appointment, renewal, replacement and reconciliation (section 7.2).

One Coordinator Epoch is current at a time and only ever rises (R-7.2-01, R-7.2-07). A replacement reads itself in;
until it has reconciled, it assigns no work (R-7.2-11).
"""

from __future__ import annotations

from collections.abc import Callable

from msgspec import UNSET, structs

from mwnode.authority import leases, packages
from mwnode.authority.case import Case, refuse
from mwnode.authority.endings import mission_of_group
from mwnode.authority.founding import active_card, misfit
from mwnode.authority.membership import admit, emit_ended, ended, place
from mwnode.authority.request import EventFact
from mwnode.authority.state import GROUPS, MISSIONS, WORK_ITEMS, MissionRow
from mwnode.authority.table import UNFINISHED, admit_mission
from mwnode.authority.view import Overlay
from mwnode.protocol.commands import CORE, CoordinatorReconcile, MissionAssignCoordinator, MissionRenewCoordinator
from mwnode.protocol.documents import Actor, Cause, Membership, MissionCoordinator
from mwnode.protocol.errors import ErrorCode
from mwnode.protocol.events import CoordinatorAssigned, CoordinatorReconciled, CoordinatorRenewed, MembershipChanged

# --- mission.assign_coordinator ---------------------------------------------------------------------------------------


def assign(case: Case) -> None:
    """Replace the Coordinator under a higher epoch, by the owner or by policy (R-7.2-06, R-15.1-18)."""
    payload = case.payload(MissionAssignCoordinator)
    row = case.mission()
    mission = row.mission
    admit_mission(mission.state, case.command.kind)
    old = Actor(type="agent", id=mission.coordinator.agent_id)
    new = Actor(type="agent", id=payload.coordinator)
    if new == old:
        refuse(ErrorCode.INVALID_STATE_TRANSITION, "that Agent is the Coordinator already", "R-7.2-07")
    card = active_card(case, new.id)
    if new == mission.mission_owner:
        misfit("owner and Coordinator of a child are two Agents", "coordinatorAgentId", "R-14-02")
    for child in _children(case, row, old):
        if child.mission.coordinator.agent_id == new.id:
            misfit(
                f"that Agent coordinates the child Mission {child.mission.mission_id}, which it would own",
                "coordinatorAgentId",
                "R-14-02",
            )
    package, package_hash = payload.context_package, None
    if package is not None:
        package_hash = packages.check(case, package)
    case.expect_revision(mission.revision)
    epoch = mission.coordinator.coordinator_epoch + 1
    lease = leases.grant_coordinator(
        case,
        mission_id=mission.mission_id,
        group_id=mission.group_id,
        agent_id=new.id,
        coordinator_epoch=epoch,
        seconds=payload.lease_seconds,
    )
    former = row.coordinator_lease
    closed = leases.closed_if_open(case, former, "revoked", "the Coordinator was replaced")
    held = case.membership(old)
    assert held is not None, "a Coordinator is a Member"
    joining = case.membership(new)
    fact = case.emit(
        "mission.coordinator.assigned",
        CoordinatorAssigned(
            revision=mission.revision,
            state=mission.state,
            previous_coordinator_id=old.id,
            coordinator_agent_id=new.id,
            coordinator_epoch=epoch,
            agent_card_version=card.card_version,
            memberships=(
                ended(case, held.membership),
                admit(
                    case,
                    mission,
                    new,
                    "coordinator",
                    known=joining.membership if joining is not None else None,
                    context_package_id=UNSET if package is None else package.context_package_id,
                ),
            ),
            coordinator_lease=lease,
            previous_coordinator_lease=former if closed is None else closed,
            context_package_id=UNSET if package is None else package.context_package_id,
            context_package_hash=UNSET if package_hash is None else package_hash,
        ),
    )
    case.note_policy(
        "coordinator assigned",
        {
            "missionId": mission.mission_id,
            "previousCoordinatorId": old.id,
            "coordinatorAgentId": new.id,
            "coordinatorEpoch": epoch,
            "eventId": fact.event_id,
        },
        group_id=mission.group_id,
    )
    for child in _children(case, row, old):
        _hand_over(case, child, old, new, Cause(type="event", id=fact.event_id))


def _children(case: Case, row: MissionRow, owner: Actor) -> list[MissionRow]:
    """The child Missions that a Coordinator owns and whose Groups are not archived."""
    found = []
    for mission_id in row.children:
        child = case.view.get(MISSIONS, mission_id)
        if child is None or child.mission.mission_owner != owner:
            continue
        group = case.view.get(GROUPS, child.mission.group_id)
        if group is not None and group.group.state == "active":
            found.append(child)
    return found


def _hand_over(case: Case, child: MissionRow, old: Actor, new: Actor, cause: Cause) -> None:
    """A child's ownership follows the Parent Coordinator (decision F8)."""
    mission = child.mission
    leaving = case.membership(old, mission.group_id)
    if leaving is not None and leaving.membership.state != "ended":
        emit_ended(case, mission, leaving.membership, "the Parent Coordinator was replaced", cause=cause)
    joining = case.membership(new, mission.group_id)
    known = joining.membership if joining is not None else None
    case.emit(
        "membership.changed",
        MembershipChanged(
            revision=mission.revision,
            state=mission.state,
            membership=admit(case, mission, new, "mission_owner", known=known),
        ),
        group_id=mission.group_id,
        cause=cause,
    )


# --- mission.renew_coordinator ----------------------------------------------------------------------------------------


def renew(case: Case) -> None:
    """Extend the Coordinator's own lease; after its end it is granted anew under the same epoch (R-15.1-19, decision
    F24)."""
    payload = case.payload(MissionRenewCoordinator)
    row = case.mission()
    mission = row.mission
    admit_mission(mission.state, case.command.kind)
    case.expect_revision(mission.revision)
    held = row.coordinator_lease
    if leases.ended(case, held):
        leases.check_renewal_count(held, payload.renewal_count)
        lease = leases.grant_coordinator(
            case,
            mission_id=mission.mission_id,
            group_id=mission.group_id,
            agent_id=mission.coordinator.agent_id,
            coordinator_epoch=mission.coordinator.coordinator_epoch,
            seconds=payload.lease_seconds,
        )
    else:
        lease = leases.renew(
            case, held, payload.lease_seconds, case.policy.coordinator_lease_max, payload.renewal_count
        )
    case.emit(
        "mission.coordinator.renewed",
        CoordinatorRenewed(
            revision=mission.revision,
            state=mission.state,
            coordinator_epoch=mission.coordinator.coordinator_epoch,
            coordinator_lease=lease,
        ),
    )


# --- ext.mwnode.core.coordinator_reconcile ----------------------------------------------------------------------------


def reconcile(case: Case) -> None:
    """A replacement Coordinator states what it found: every open WorkItem at its present revision, and a Context
    Package up to the Group's head (R-7.2-10, R-7.2-11, decision D36)."""
    payload = case.payload(CoordinatorReconcile)
    row = case.mission()
    mission = row.mission
    admit_mission(mission.state, case.command.kind)
    if mission.coordinator.coordinator_epoch <= row.reconciled_epoch:
        refuse(ErrorCode.INVALID_STATE_TRANSITION, "this Coordinator Epoch is reconciled already", "R-7.2-11")
    stated: dict[str, int] = {}
    for index, entry in enumerate(payload.work_items):
        item = case.view.get(WORK_ITEMS, entry.work_item_id)
        if item is None or item.item.group_id != case.group_id:
            misfit(f"WorkItem {entry.work_item_id} is not known here", f"workItems/{index}", "R-19-19")
        stated[entry.work_item_id] = entry.revision
    case.expect_revision(mission.revision)
    items = {item.item.work_item_id: item.item for item in case.view.in_group(WORK_ITEMS, case.group_id)}
    behind = [
        work_item_id
        for work_item_id, item in items.items()
        if (item.state in UNFINISHED or work_item_id in stated) and stated.get(work_item_id) != item.revision
    ]
    if behind:
        refuse(
            ErrorCode.REVISION_CONFLICT,
            "some open WorkItems are missing or have moved on; read them again",
            "R-7.2-11",
            details={"workItems": [{"workItemId": name, "revision": items[name].revision} for name in behind]},
        )
    package_hash = packages.check(case, payload.context_package, whole=True)
    case.emit(
        f"{CORE}.coordinator_reconciled",
        CoordinatorReconciled(
            revision=mission.revision,
            state=mission.state,
            context_package_id=payload.context_package.context_package_id,
            context_package_hash=package_hash,
            coordinator_epoch=mission.coordinator.coordinator_epoch,
        ),
    )


# --- folding ----------------------------------------------------------------------------------------------------------


def _row(view: Overlay, fact: EventFact) -> MissionRow:
    assert fact.group_id is not None
    return mission_of_group(view, fact.group_id)


def _fold_assigned(view: Overlay, fact: EventFact) -> None:
    payload = fact.payload
    assert isinstance(payload, CoordinatorAssigned)
    row = _row(view, fact)
    before = row.mission.coordinator
    coordinator = MissionCoordinator(
        agent_id=payload.coordinator_agent_id,
        agent_card_version=payload.agent_card_version,
        coordinator_epoch=payload.coordinator_epoch,
        lease_id=payload.coordinator_lease.lease_id,
    )
    view.put(
        MISSIONS,
        structs.replace(
            row,
            mission=structs.replace(row.mission, coordinator=coordinator),
            coordinator_lease=payload.coordinator_lease,
            former_coordinators=(*row.former_coordinators, (before.coordinator_epoch, before.agent_id)),
        ),
    )
    leases.keep(view, payload.previous_coordinator_lease, payload.coordinator_lease)
    for membership in payload.memberships:
        place(view, membership)
    recipient: Membership = payload.memberships[-1]
    packages.note(view, fact, payload.context_package_id, (recipient.member,))


def _fold_renewed(view: Overlay, fact: EventFact) -> None:
    payload = fact.payload
    assert isinstance(payload, CoordinatorRenewed)
    row = _row(view, fact)
    held, lease = row.coordinator_lease, payload.coordinator_lease
    if held.lease_id != lease.lease_id and held.state == "active":
        # The new lease tells that the old one ran out, should the timer not have come to it yet.
        leases.keep(
            view,
            structs.replace(held, state="expired", closed_at=held.expires_at, closure_reason="the lease ran out"),
        )
    leases.keep(view, lease)
    coordinator = structs.replace(row.mission.coordinator, lease_id=lease.lease_id)
    mission = structs.replace(row.mission, coordinator=coordinator)
    view.put(MISSIONS, structs.replace(row, mission=mission, coordinator_lease=lease))


def _fold_reconciled(view: Overlay, fact: EventFact) -> None:
    payload = fact.payload
    assert isinstance(payload, CoordinatorReconciled)
    row = _row(view, fact)
    view.put(MISSIONS, structs.replace(row, reconciled_epoch=payload.coordinator_epoch))
    coordinator = Actor(type="agent", id=row.mission.coordinator.agent_id)
    packages.note(view, fact, payload.context_package_id, (coordinator,))


DECIDERS: dict[str, Callable[[Case], None]] = {
    "mission.assign_coordinator": assign,
    "mission.renew_coordinator": renew,
    f"{CORE}.coordinator_reconcile": reconcile,
}
EVOLVERS: dict[str, Callable[[Overlay, EventFact], None]] = {
    "mission.coordinator.assigned": _fold_assigned,
    "mission.coordinator.renewed": _fold_renewed,
    f"{CORE}.coordinator_reconciled": _fold_reconciled,
}
