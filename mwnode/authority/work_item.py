"""WorkItems: proposed, authorized, revised, cancelled. Their rows, fences and ``end_item`` are in ``items.py``."""

from __future__ import annotations

from collections.abc import Callable
from typing import NoReturn

from msgspec import UNSET, structs

from mwnode.authority import budget, lineage
from mwnode.authority.case import Case, refuse
from mwnode.authority.contracts import check_contract, check_dependencies
from mwnode.authority.cooperation import check_rate, count_rate, pass_limit
from mwnode.authority.delegation import attribute, check_use
from mwnode.authority.item_fold import find, fold, fold_ended, fold_mission_revision, put, put_conversation
from mwnode.authority.items import (
    admit,
    emit,
    end_item,
    item_in_group,
    live_owner,
    new_conversation,
    new_item,
    next_mission_revision,
    work_item,
)
from mwnode.authority.request import EventFact
from mwnode.authority.state import (
    DUPLICATES,
    PROPOSALS,
    WORK_ITEMS,
    DuplicateRow,
    MissionRow,
    ProposalRow,
    WorkItemRow,
)
from mwnode.authority.table import admit_mission, admit_work_item
from mwnode.authority.view import Overlay
from mwnode.protocol.commands import EXT, WorkAuthorize, WorkCancel, WorkDependencyAdd, WorkPropose
from mwnode.protocol.documents import Cause, WorkContract
from mwnode.protocol.errors import ErrorCode
from mwnode.protocol.events import ContractRevised, WorkAuthorized, WorkCancelled, WorkProposal, WorkProposed
from mwnode.protocol.jcs import canonical, signing_hash

DUPLICATES_MAX = 2
"""One contract may be authorized twice under one parent; the second is noted, a third refused (decision D41)."""


# --- work.propose -----------------------------------------------------------------------------------------------------


def propose(case: Case) -> None:
    """Any Member proposes work; nobody is obliged by it (R-10.2-01, R-10.2-02)."""
    payload = case.payload(WorkPropose)
    mission_row = case.mission()
    mission = mission_row.mission
    admit_mission(mission.state, case.command.kind)
    case.unused(PROPOSALS, payload.proposal_id, "proposal")
    if payload.parent_work_item_id is not None:
        item_in_group(case, payload.parent_work_item_id, "parent WorkItem")
    case.expect_revision(mission.revision)
    check_contract(case, payload.contract, mission_row, work_item_id=None)
    check_rate(case, "proposal_rate", case.policy.proposal_rate)
    budget.check_within(case, mission.mission_id, payload.contract.budget)
    case.emit(
        "work.proposed",
        WorkProposed(
            revision=mission.revision + 1,
            state=mission.state,
            mission_revision=mission.revision + 1,
            proposal=WorkProposal(
                proposal_id=payload.proposal_id,
                mission_id=mission.mission_id,
                group_id=mission.group_id,
                proposed_by=case.command.actor,
                contract=payload.contract,
                status="open",
                created_at=case.now_text,
                parent_work_item_id=UNSET if payload.parent_work_item_id is None else payload.parent_work_item_id,
            ),
        ),
    )


def _fold_proposed(view: Overlay, fact: EventFact) -> None:
    payload = fact.payload
    assert isinstance(payload, WorkProposed)
    view.put(PROPOSALS, ProposalRow(payload.proposal))
    fold_mission_revision(view, payload.proposal.mission_id, payload.revision)
    count_rate(view, "proposal_rate", fact)


# --- work.authorize ---------------------------------------------------------------------------------------------------


def check_author(case: Case, emergency_reason: str | None, delegation_grant_id: str | None) -> None:
    """Who authors work must say on what ground, and only on that one (R-9.1-01, R-7.1-30, decision D52)."""
    by_owner = "O" in case.roles
    if emergency_reason is not None and not by_owner:
        _misfit("only a MissionOwner acts in an emergency; leave emergencyReason out", "emergencyReason", "R-9.1-01")
    if by_owner and emergency_reason is None:
        _misfit(
            "a MissionOwner authors work only in an emergency; state emergencyReason", "emergencyReason", "R-7.1-30"
        )
    if by_owner and delegation_grant_id is not None:
        _misfit("a MissionOwner needs no Delegation Grant", "delegationGrantId", "R-9.1-03")


def check_reconciled(case: Case, mission_row: MissionRow) -> None:
    """A replacement Coordinator learns the state of things before it assigns work (R-7.2-11, decision D37).

    Neither a Delegation Grant, which its replacement ended, nor an emergency is held up by it (decision D52).
    """
    if "C" not in case.roles or not case.policy.reconcile_required:
        return
    if mission_row.reconciled_epoch < mission_row.mission.coordinator.coordinator_epoch:
        refuse(
            ErrorCode.APPROVAL_REQUIRED,
            "reconcile first: send ext.mwnode.core.coordinator_reconcile with every open WorkItem",
            "R-7.2-11",
        )


def note_emergency(case: Case, reason: str | None, decision: str, work_item_id: str, workers: tuple[str, ...]) -> None:
    """An emergency override leaves an audit record that names actor, Worker and reason (R-7.1-30)."""
    if reason is not None:
        details = {"workItemId": work_item_id, "workers": list(workers), "reason": reason}
        case.note_policy(f"emergency override: {decision}", details, group_id=case.group_id)


def authorize(case: Case) -> None:
    """Create an ``open`` WorkItem, from a proposal or directly (R-10.2-03, R-15.1-35)."""
    payload = case.payload(WorkAuthorize)
    mission_row = case.mission()
    mission = mission_row.mission
    check_author(case, payload.emergency_reason, payload.delegation_grant_id)
    work_item_id = case.reference("work_item_id", payload.work_item_id)
    if not payload.exclusive:
        _misfit("protocol 0.1 knows one owner only: exclusive must be true", "exclusive", "R-10.3-05")
    admit_mission(mission.state, case.command.kind)
    case.unused(WORK_ITEMS, work_item_id, "WorkItem")
    if payload.delegation_grant_id is not None:
        # Whether the sender may author anything at all comes before what it wants to author (decision A8).
        check_use(case, payload.delegation_grant_id, payload.contract, parent_work_item_id=payload.parent_work_item_id)
    parent = _parent(case, payload)
    _check_replaced(case, payload.replaces_work_item_id)
    proposal = _proposal(case, payload)
    case.expect_revision(0)
    check_contract(case, payload.contract, mission_row, work_item_id=work_item_id)
    check_reconciled(case, mission_row)
    depth = 0 if parent is None else parent.delegation_depth + 1
    pass_limit(
        case,
        "delegation_depth",
        depth > case.policy.delegation_depth,
        f"WorkItems may be nested {case.policy.delegation_depth} deep, this one would be {depth}",
        rule="R-20-02",
    )
    _check_duplicate(case, payload.contract, payload.parent_work_item_id or mission.mission_id)
    budget.check_allocation(case, payload.parent_work_item_id or mission.mission_id, payload.contract.budget)
    item = new_item(
        case,
        work_item_id,
        payload.contract,
        mission.mission_id,
        mission.group_id,
        case.command.actor if proposal is None else proposal.proposed_by,
        case.command.actor,
    )
    case.emit(
        "work.authorized",
        WorkAuthorized(
            revision=1,
            state="open",
            mission_revision=mission.revision + 1,
            work_item=item,
            conversation=new_conversation(item, case.command.actor),
            proposal_id=UNSET if payload.proposal_id is None else payload.proposal_id,
            parent_work_item_id=UNSET if payload.parent_work_item_id is None else payload.parent_work_item_id,
            replaces_work_item_id=UNSET if payload.replaces_work_item_id is None else payload.replaces_work_item_id,
            delegation_grant_id=UNSET if payload.delegation_grant_id is None else payload.delegation_grant_id,
            emergency_reason=UNSET if payload.emergency_reason is None else payload.emergency_reason,
        ),
        work_item_id=work_item_id,
        conversation_id=item.conversation_id,
    )
    note_emergency(case, payload.emergency_reason, "work authorized", work_item_id, ())


def _parent(case: Case, payload: WorkAuthorize) -> WorkItemRow | None:
    if payload.parent_work_item_id is None:
        return None
    return item_in_group(case, payload.parent_work_item_id, "parent WorkItem")


def _check_replaced(case: Case, replaces_work_item_id: str | None) -> None:
    """A substitute stands in for one failed WorkItem (R-10.2-41, decision A30)."""
    if replaces_work_item_id is None:
        return
    replaced = item_in_group(case, replaces_work_item_id)
    if replaced.item.state != "failed" or _has_live_substitute(case, replaced):
        refuse(
            ErrorCode.INVALID_STATE_TRANSITION,
            "only a failed WorkItem without a living substitute can be replaced",
            "R-10.2-41",
        )


def _has_live_substitute(case: Case, row: WorkItemRow) -> bool:
    substitute = None if row.replaced_by is None else case.view.get(WORK_ITEMS, row.replaced_by)
    return substitute is not None and substitute.item.state not in ("failed", "cancelled")


def _proposal(case: Case, payload: WorkAuthorize) -> WorkProposal | None:
    """The cited proposal, still open and authorized just as it was proposed (R-10.2-04)."""
    if payload.proposal_id is None:
        return None
    row = case.need(PROPOSALS, payload.proposal_id, "proposal")
    proposal = row.proposal
    if proposal.group_id != case.group_id:
        _misfit(f"proposal {payload.proposal_id} is not known in this Group", "proposalId", "R-19-19")
    if proposal.status != "open":
        refuse(ErrorCode.INVALID_STATE_TRANSITION, f"the proposal is {proposal.status} already", "R-10.2-04")
    parent = None if proposal.parent_work_item_id is UNSET else proposal.parent_work_item_id
    if proposal.contract != payload.contract or parent != payload.parent_work_item_id:
        refuse(
            ErrorCode.REVISION_CONFLICT,
            "contract and parentWorkItemId must be the proposal's; leave proposalId out to author something else",
            "R-10.2-04",
        )
    return proposal


def _duplicate_key(contract: WorkContract, parent_id: str) -> str:
    return f"{parent_id} {signing_hash(canonical(contract))}"


def duplicated_under(row: DuplicateRow) -> str:
    """The Mission or WorkItem under which the contract was authorized."""
    return row.key.partition(" ")[0]


def _check_duplicate(case: Case, contract: WorkContract, parent_id: str) -> None:
    """The same contract again under the same parent is noted, a third time refused (R-20-03, decisions D41, F23)."""
    known = case.view.get(DUPLICATES, _duplicate_key(contract, parent_id))
    if known is None:
        return
    if known.count >= DUPLICATES_MAX:
        refuse(
            ErrorCode.RATE_LIMITED,
            "this contract was authorized twice under this parent already; change what makes it different",
            "R-20-03",
            details={"policyName": "duplicate_decomposition"},
        )
    details = {"parentId": parent_id, "count": known.count + 1}
    case.note_policy("duplicate decomposition", details, group_id=case.group_id)


def _fold_authorized(view: Overlay, fact: EventFact) -> None:
    payload = fact.payload
    assert isinstance(payload, WorkAuthorized)
    item = payload.work_item
    assert fact.sequence is not None
    parent_item_id = _or_none(payload.parent_work_item_id)
    row = WorkItemRow(
        item,
        parent_work_item_id=parent_item_id,
        delegation_grant_id=_or_none(payload.delegation_grant_id),
        delegation_depth=0 if parent_item_id is None else find(view, parent_item_id).delegation_depth + 1,
        proposal_id=_or_none(payload.proposal_id),
        replaces=_or_none(payload.replaces_work_item_id),
        state_since=fact.occurred_at,
        last_sequence=fact.sequence,
    )
    put(view, None, row, fact.occurred_at)
    put_conversation(view, payload.conversation)
    parent_id = row.parent_work_item_id or item.mission_id
    budget.open_item_account(view, item.work_item_id, item.contract.budget, parent_id)
    fold_mission_revision(view, item.mission_id, payload.mission_revision)
    key = _duplicate_key(item.contract, parent_id)
    known = view.get(DUPLICATES, key)
    view.put(DUPLICATES, DuplicateRow(key, 1 if known is None else known.count + 1))
    if row.delegation_grant_id is not None:
        attribute(view, row.delegation_grant_id, item.work_item_id)
    if row.replaces is not None:
        view.put(WORK_ITEMS, structs.replace(find(view, row.replaces), replaced_by=item.work_item_id))
    if row.proposal_id is not None:
        proposal = view.get(PROPOSALS, row.proposal_id)
        assert proposal is not None
        authorized = structs.replace(proposal.proposal, status="authorized", authorized_work_item_id=item.work_item_id)
        view.put(PROPOSALS, ProposalRow(authorized))


def _or_none(value: object) -> str | None:
    return value if isinstance(value, str) else None


# --- revisions of the contract ----------------------------------------------------------------------------------------


def add_dependency(case: Case) -> None:
    """Let a WorkItem wait for one more; its contract rises by a version (R-15.2-26, decision D32)."""
    payload = case.payload(WorkDependencyAdd)
    row = work_item(case, payload.work_item_id)
    admit(case, row)
    if live_owner(case, row):
        admit_work_item("active", case.command.kind)  # a live owner accepted the contract as it is: end that first
    contract = row.item.contract
    case.expect_revision(row.item.revision)
    if payload.dependency_id in contract.dependency_work_item_ids:
        _misfit("the WorkItem waits for that one already", "dependencyId", "R-10.1-07")
    check_dependencies(case, (payload.dependency_id,), row.item.work_item_id, "dependencyId")
    revised = structs.replace(
        contract,
        contract_version=contract.contract_version + 1,
        dependency_work_item_ids=(*contract.dependency_work_item_ids, payload.dependency_id),
    )
    emit_revised(case, row, revised, mission_revision=next_mission_revision(case, row))


def emit_revised(case: Case, row: WorkItemRow, contract: WorkContract, *, mission_revision: int | None = None) -> None:
    """Append ``work.contract.revised``: the new contract, which has to be accepted anew (R-10.1-23)."""
    emit(
        case,
        row,
        "work.contract.revised",
        ContractRevised(
            revision=row.item.revision + 1,
            state=row.item.state,
            work_item_id=row.item.work_item_id,
            mission_revision=UNSET if mission_revision is None else mission_revision,
            contract=contract,
        ),
    )


def _fold_revised(view: Overlay, fact: EventFact) -> None:
    payload = fact.payload
    assert isinstance(payload, ContractRevised)
    row = find(view, payload.work_item_id)
    known = dict(row.offered_versions)
    before = row.item.contract.contract_version
    pending = () if row.item.offers is UNSET else [offer for offer in row.item.offers if offer.status == "pending"]
    versions = tuple((offer.offer_id, known.get(offer.offer_id, before)) for offer in pending)
    # A revised contract is another piece of work: its attempts are counted anew (decision D47).
    fold(view, fact, row, item={"contract": payload.contract}, attempts=0, offered_versions=versions)
    budget.amend_account(view, payload.work_item_id, payload.contract.budget)


# --- work.cancel ------------------------------------------------------------------------------------------------------


def cancel(case: Case) -> None:
    """Cancel an unfinished WorkItem, and the child Mission that it was promoted to (R-10.2-29, decision A40)."""
    payload = case.payload(WorkCancel)
    row = work_item(case, payload.work_item_id)
    admit(case, row)
    case.expect_revision(row.item.revision)
    fact = end_item(case, row, "cancelled", payload.reason, None)
    if row.child_mission_id is not None:
        lineage.on_item_ended(case, row, Cause(type="event", id=fact.event_id))


def _fold_cancelled(view: Overlay, fact: EventFact) -> None:
    payload = fact.payload
    assert isinstance(payload, WorkCancelled)
    row = find(view, payload.work_item_id)
    fenced = row.ownership_epoch + (row.item.owner is not UNSET)
    fold(view, fact, row, ownership_epoch=fenced)
    fold_ended(view, row)


def _misfit(message: str, member: str, rule: str) -> NoReturn:
    refuse(ErrorCode.INVALID_COMMAND, message, rule, details={"path": f"/payload/{member}"})


DECIDERS: dict[str, Callable[[Case], None]] = {
    "work.propose": propose,
    "work.authorize": authorize,
    "work.cancel": cancel,
    f"{EXT}.core.work_dependency_add": add_dependency,
}
EVOLVERS: dict[str, Callable[[Overlay, EventFact], None]] = {
    "work.proposed": _fold_proposed,
    "work.authorized": _fold_authorized,
    "work.contract.revised": _fold_revised,
    "work.cancelled": _fold_cancelled,
}
