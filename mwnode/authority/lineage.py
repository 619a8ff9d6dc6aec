"""Parents and children: promoting a WorkItem to a Mission of its own, and what flows back (section 14).

The link stands on both sides. What a child may do and spend is part of what its parent may.
"""

from __future__ import annotations

from collections.abc import Callable

from msgspec import UNSET, UnsetType, structs

from mwnode.authority import budget
from mwnode.authority.artifacts import readable_in
from mwnode.authority.case import Case, refuse
from mwnode.authority.cooperation import pass_limit
from mwnode.authority.endings import cancel_mission
from mwnode.authority.founding import check_new, found, misfit, note_adoption
from mwnode.authority.item_fold import find, fold
from mwnode.authority.items import child_is_running, close_leases, emit, item_in_group
from mwnode.authority.permissions import first_excess
from mwnode.authority.request import EventFact
from mwnode.authority.state import CONTENTS, MISSIONS, WORK_ITEMS, MissionRow, WorkItemRow
from mwnode.authority.table import MISSION_LIVE, admit_mission, admit_work_item
from mwnode.authority.view import Overlay
from mwnode.protocol.commands import MissionCreateChild
from mwnode.protocol.documents import (
    Approval,
    Cause,
    Mission,
    MissionParent,
    Offer,
    Owner,
    SelectionBasis,
    Submission,
)
from mwnode.protocol.errors import ErrorCode
from mwnode.protocol.events import MissionChildCreated, ResultAccepted
from mwnode.protocol.instants import parse

# --- mission.create_child ---------------------------------------------------------------------------------------------


def create_child(case: Case) -> None:
    """Promote one WorkItem to a child Mission that the Parent Coordinator owns (R-7.1-11, R-14-01 to R-14-09)."""
    payload = case.payload(MissionCreateChild)
    parent_row = case.mission()
    parent = parent_row.mission
    admit_mission(parent.state, case.command.kind)
    row = item_in_group(case, payload.parent_work_item_id, "parent WorkItem")
    admit_work_item(row.item.state, case.command.kind)
    if child_is_running(case.view, row):
        refuse(
            ErrorCode.INVALID_STATE_TRANSITION,
            f"the WorkItem has a child Mission already: {row.child_mission_id}",
            "R-10.2-32",
        )
    card = check_new(case, payload)
    if payload.coordinator == case.command.actor.id:
        misfit("owner and Coordinator of a child are two Agents", "coordinatorAgentId", "R-14-02")
    _check_within(case, payload, parent_row, row)
    case.expect_revision(parent.revision)
    depth = (0 if parent.parent is UNSET else parent.parent.depth) + 1
    pass_limit(
        case,
        "delegation_depth",
        depth > case.policy.delegation_depth,
        f"policy lets Missions nest {case.policy.delegation_depth} levels deep, not {depth}",
        rule="R-14-11",
    )
    budget.check_allocation(case, payload.parent_work_item_id, payload.budget)
    fact = _emit_created(case, payload, parent, row)
    root_owner = parent_row.root_owner or parent.mission_owner
    created = found(
        case,
        payload,
        card,
        case.command.actor,
        parent=MissionParent(mission_id=parent.mission_id, work_item_id=payload.parent_work_item_id, depth=depth),
        parent_event_id=fact.event_id,
        root_owner=root_owner,
        failure_policy=payload.failure_policy,
    )
    begun = case.emit(
        "mission.created",
        created,
        group_id=payload.group_id,
        cause=Cause(type="event", id=fact.event_id),
    )
    note_adoption(case, created.mission, begun.event_id)


def _check_within(case: Case, payload: MissionCreateChild, parent_row: MissionRow, row: WorkItemRow) -> None:
    """Deadline and permissions are subsets of the parent's (R-14-06, R-14-08, R-14-09, decision F30)."""
    for name, limit in (("Mission", parent_row.mission.deadline), ("WorkItem", row.item.contract.deadline)):
        if parse(payload.deadline) > parse(limit):
            misfit(f"the deadline lies after the parent {name}'s, {limit}", "deadline", "R-14-06")
    excess = first_excess(payload.permissions, parent_row.permissions)
    if excess is not None:
        misfit(f"the parent Mission may not {excess[1]} {excess[0]}", "permissions", "R-14-09")


def _emit_created(case: Case, payload: MissionCreateChild, parent: Mission, row: WorkItemRow) -> EventFact:
    """The parent's side: the item is blocked, whoever had it is fenced, the Parent Coordinator answers for it
    (reading 16, decision D35)."""
    contract = row.item.contract
    closed = close_leases(case, row, "the WorkItem became a child Mission")
    owner = Owner(
        agent_id=parent.coordinator.agent_id,
        agent_card_version=parent.coordinator.agent_card_version,
        capability_pins=contract.required_capabilities,
        ownership_epoch=row.ownership_epoch + 1,
        ownership_lease_id=parent.coordinator.lease_id,
        accepted_at=case.now_text,
    )
    basis = row.item.selection_basis
    if basis is UNSET:
        basis = SelectionBasis(
            required_capabilities=contract.required_capabilities,
            verified_matches=contract.required_capabilities,
            authorization_eligible=True,
            availability_estimate=case.now_text,
            expected_cost=0,
            reliability_evidence=(),
            policy_rules_applied=("child_mission",),
        )
    return emit(
        case,
        row,
        "mission.child.created",
        MissionChildCreated(
            revision=parent.revision + 1,
            state=parent.state,
            mission_revision=parent.revision + 1,
            work_item_id=row.item.work_item_id,
            parent_work_item_id=row.item.work_item_id,
            child_mission_id=payload.mission_id,
            child_group_id=payload.group_id,
            failure_policy=payload.failure_policy,
            ownership_epoch=owner.ownership_epoch,
            owner=owner,
            selection_basis=basis,
            offers=_withdrawn(row.item.offers),
            work_item_state="blocked",
            work_item_revision=row.item.revision + 1,
            ownership_lease=closed.ownership_lease,
            execution_lease=closed.execution_lease,
            blocked_lease=closed.blocked_lease,
        ),
    )


def _withdrawn(offers: tuple[Offer, ...] | UnsetType) -> tuple[Offer, ...] | UnsetType:
    if offers is UNSET:
        return UNSET
    return tuple(structs.replace(offer, status="withdrawn") if offer.status == "pending" else offer for offer in offers)


# --- what flows between them ------------------------------------------------------------------------------------------


def adopt(case: Case, child: MissionRow, approval: Approval, fact: EventFact) -> None:
    """A child's approved result becomes its parent WorkItem's, which is verified by that (R-14-16, decision A32)."""
    link = child.mission.parent
    assert link is not UNSET
    parent, row = case.view.get(MISSIONS, link.mission_id), case.view.get(WORK_ITEMS, link.work_item_id)
    if parent is None or row is None or row.item.state != "blocked" or row.child_mission_id != child.mission.mission_id:
        return
    emit(
        case,
        row,
        "work.result.accepted",
        ResultAccepted(
            revision=row.item.revision + 1,
            state="verified",
            mission_revision=parent.mission.revision + 1,
            work_item_id=link.work_item_id,
            child_mission_id=child.mission.mission_id,
            child_approval_id=approval.approval_id,
            submission=Submission(
                artifact_hashes=approval.artifact_hashes,
                evidence_ids=(approval.approval_id,),
                submitted_at=case.now_text,
            ),
        ),
        cause=Cause(type="event", id=fact.event_id),
    )


def on_item_ended(case: Case, row: WorkItemRow, cause: Cause) -> None:
    """Cancel the running child of a WorkItem that was cancelled or failed (R-10.2-31, decision A40).

    ``cause`` names the Event that ended the item.
    """
    if row.child_mission_id is None:
        return
    child = case.view.get(MISSIONS, row.child_mission_id)
    if child is not None and child.mission.state in MISSION_LIVE:
        cancel_mission(case, child, f"parent WorkItem {row.item.work_item_id} ended", cause)


# --- folding ----------------------------------------------------------------------------------------------------------


def share_contents(view: Overlay, hashes: tuple[str, ...], group_id: str, sequence: int) -> None:
    """Fold that a child's Artifacts became results in the parent's Group, to be read by its Members from that Event on
    (R-14-16)."""
    for content_hash in hashes:
        row = view.get(CONTENTS, content_hash)
        if row is not None:
            view.put(CONTENTS, readable_in(row, group_id, sequence))


def _fold_child(view: Overlay, fact: EventFact) -> None:
    payload = fact.payload
    assert isinstance(payload, MissionChildCreated)
    row = find(view, payload.work_item_id)
    item = {"owner": payload.owner, "selection_basis": payload.selection_basis}
    if payload.offers is not UNSET:
        item["offers"] = payload.offers  # type: ignore[assignment]  # members of different types
    assert payload.work_item_revision is not UNSET
    fold(
        view,
        fact,
        row,
        revision=payload.work_item_revision,
        state="blocked",
        item=item,
        ownership_epoch=payload.ownership_epoch,
        child_mission_id=payload.child_mission_id,
    )
    mission_row = view.get(MISSIONS, row.item.mission_id)
    assert mission_row is not None
    view.put(MISSIONS, structs.replace(mission_row, children=(*mission_row.children, payload.child_mission_id)))


DECIDERS: dict[str, Callable[[Case], None]] = {"mission.create_child": create_child}
EVOLVERS: dict[str, Callable[[Overlay, EventFact], None]] = {"mission.child.created": _fold_child}
