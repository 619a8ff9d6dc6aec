"""Offers: made to a bounded set of candidates, accepted by the first, declined, left to expire without an Event."""

from __future__ import annotations

from collections.abc import Callable

from msgspec import UNSET, UnsetType, structs

from mwnode.authority import budget, packages
from mwnode.authority.candidates import active_limit, check_candidate, check_card, pins_of
from mwnode.authority.case import Case, refuse
from mwnode.authority.contracts import check_contract
from mwnode.authority.cooperation import pass_limit
from mwnode.authority.delegation import attribute, check_use
from mwnode.authority.item_fold import find, fold
from mwnode.authority.items import (
    admit,
    as_agent,
    child_is_running,
    cleared_members,
    close_leases,
    emit,
    live_owner,
    work_item,
)
from mwnode.authority.leases import grant_work
from mwnode.authority.membership import place
from mwnode.authority.request import EventFact
from mwnode.authority.state import AgentRow, WorkItemRow
from mwnode.authority.table import OWNED, TERMINAL, admit_mission, admit_work_item
from mwnode.authority.view import Overlay
from mwnode.authority.work_item import check_author, check_reconciled, emit_revised, note_emergency
from mwnode.protocol.commands import CORE, OfferDecline, WorkAcceptOffer, WorkOffer
from mwnode.protocol.documents import Membership, Offer, OfferStatus, Owner, WorkContract
from mwnode.protocol.errors import ErrorCode
from mwnode.protocol.events import OfferAccepted, OfferCreated, OfferDeclined

Offers = tuple[Offer, ...]


def offers_of(row: WorkItemRow) -> Offers:
    """The whole history of offers of one WorkItem, oldest first (decision D68)."""
    return () if row.item.offers is UNSET else row.item.offers


def expired(case: Case, offer: Offer) -> bool:
    """Whether a pending offer has run out; no Event says so (R-10.2-11)."""
    return case.passed(offer.expires_at)


# --- work.offer -------------------------------------------------------------------------------------------------------


def offer(case: Case) -> None:
    """Offer a WorkItem without a live owner; a lapsed owner is fenced first (R-10.2-05 to R-10.2-08, R-15.1-36)."""
    payload = case.payload(WorkOffer)
    check_author(case, payload.emergency_reason, payload.delegation_grant_id)
    row = work_item(case, payload.work_item_id)
    admit(case, row)
    _check_free(case, row)
    contract = _contract(row, payload.contract)
    revised = contract is not row.item.contract
    if payload.delegation_grant_id is not None:
        check_use(case, payload.delegation_grant_id, contract, item=row)
    case.expect_revision(row.item.revision)
    if revised:
        known = row.item.contract.dependency_work_item_ids
        check_contract(case, contract, case.mission(), work_item_id=row.item.work_item_id, known_dependencies=known)
    _check_attempts(case, row, contract, revised)
    agents = [check_candidate(case, agent_id, contract) for agent_id in payload.candidate_agent_ids]
    offers = _offers_after(case, row, agents, payload.offer_expires_in_seconds)
    package_id, package_hash = _package(case, row, payload)
    check_reconciled(case, case.mission())
    if row.item.state == "failed":
        budget.check_reopening(case, row.item.work_item_id)
    if revised:
        budget.check_amendment(case, row.item.work_item_id, contract.budget)
        emit_revised(case, row, contract)
        row = find(case.view, row.item.work_item_id)
    case.receipt_kind = "work.offer.created"
    leases = close_leases(case, row, "reassigned")
    document = structs.replace(
        row.item,
        revision=row.item.revision + 1,
        state="offered",
        offers=offers,
        selection_basis=payload.selection_basis,
        owner=UNSET,
        progress=UNSET,
        submission=UNSET,
        schedule_estimate=UNSET,
        updated_at=case.now_text,
    )
    emit(
        case,
        row,
        "work.offer.created",
        OfferCreated(
            revision=document.revision,
            state="offered",
            work_item=document,
            cleared=cleared_members(row, "owner", "progress", "submission", "scheduleEstimate"),
            ownership_lease=leases.ownership_lease,
            execution_lease=leases.execution_lease,
            blocked_lease=leases.blocked_lease,
            context_package_id=package_id,
            context_package_hash=package_hash,
            delegation_grant_id=UNSET if payload.delegation_grant_id is None else payload.delegation_grant_id,
            emergency_reason=UNSET if payload.emergency_reason is None else payload.emergency_reason,
        ),
    )
    note_emergency(case, payload.emergency_reason, "work offered", row.item.work_item_id, payload.candidate_agent_ids)


def _check_free(case: Case, row: WorkItemRow) -> None:
    """Nobody owns the item alive, and no child Mission works on it (R-10.2-06, decision A40)."""
    if child_is_running(case.view, row):
        refuse(ErrorCode.INVALID_STATE_TRANSITION, "a child Mission works on this WorkItem", "R-10.2-06")
    if live_owner(case, row):
        refuse(
            ErrorCode.INVALID_STATE_TRANSITION,
            "the WorkItem has a live owner; wait until its lease ends, or fail the WorkItem",
            "R-10.2-06",
        )


def _contract(row: WorkItemRow, given: WorkContract | None) -> WorkContract:
    """The contract on offer; a revision has the next version, whatever changed in it (R-10.1-22).

    A refusal names the version that the sender seems to have revised and the one that stands; they always differ.
    """
    current = row.item.contract
    if given is None or given == current:
        return current
    if given.contract_version != current.contract_version + 1:
        refuse(
            ErrorCode.REVISION_CONFLICT,
            f"the contract is at version {current.contract_version}: a revision has contractVersion "
            f"{current.contract_version + 1}, not {given.contract_version}",
            "R-10.1-22",
            expected_revision=given.contract_version - 1,
            current_revision=current.contract_version,
        )
    return given


def _check_attempts(case: Case, row: WorkItemRow, contract: WorkContract, revised: bool) -> None:
    """Attempts are bounded by the contract, and nothing is offered past its deadline (decisions D33, D47)."""
    if not revised and row.attempts >= contract.retry_policy.max_attempts:
        refuse(
            ErrorCode.INVALID_STATE_TRANSITION,
            f"all {contract.retry_policy.max_attempts} attempts failed; revise the contract or authorize a substitute",
            "R-11.4-08",
        )
    if case.passed(contract.deadline):
        refuse(
            ErrorCode.INVALID_STATE_TRANSITION,
            "the contract's deadline has passed; revise the contract",
            "R-10.1-11",
        )


def _offers_after(case: Case, row: WorkItemRow, agents: list[AgentRow], seconds: int) -> Offers:
    """The history with the new offers. Within ``offered`` other pending ones stay; from any other state they are
    over. A candidate named again gets a new offer in place of its old one (R-10.2-07, decision D68)."""
    named = {agent.card.agent_id for agent in agents}
    goes_on = row.item.state == "offered"
    expires_at = case.later(seconds, case.policy.offer_lifetime_max)
    history: list[Offer] = []
    for known in offers_of(row):
        if known.status == "pending":
            status: OfferStatus = "pending"
            if expired(case, known):
                status = "expired"
            elif known.agent_id in named or not goes_on:
                status = "withdrawn"
            known = known if status == "pending" else structs.replace(known, status=status)
        history.append(known)
    history.extend(
        Offer(
            offer_id=case.context.new_id(),
            agent_id=agent.card.agent_id,
            agent_card_version=agent.card.card_version,
            expires_at=expires_at,
            status="pending",
        )
        for agent in agents
    )
    pending = sum(known.status == "pending" for known in history)
    if pending > case.policy.offer_candidates_max:
        refuse(
            ErrorCode.RATE_LIMITED,
            f"a WorkItem is offered to at most {case.policy.offer_candidates_max} candidates at once, not {pending}",
            "R-10.3-04",
            details={"policyName": "offer_candidates_max"},
        )
    return tuple(history)


def _package(case: Case, row: WorkItemRow, payload: WorkOffer) -> tuple[str | UnsetType, str | UnsetType]:
    """ID and hash of the Context Package that goes with the offer (R-8-10, decision A4)."""
    if payload.context_package is None:
        return UNSET, UNSET
    package = payload.context_package
    return package.context_package_id, packages.check(case, package, work_item_id=row.item.work_item_id)


def _fold_offered(view: Overlay, fact: EventFact) -> None:
    payload = fact.payload
    assert isinstance(payload, OfferCreated)
    document = payload.work_item
    row = find(view, document.work_item_id)
    if row.item.state == "failed":
        budget.reopen_account(view, document.work_item_id)
    grant_id = row.delegation_grant_id if payload.delegation_grant_id is UNSET else payload.delegation_grant_id
    fold(
        view,
        fact,
        row,
        item={"offers": document.offers, "selection_basis": document.selection_basis},
        ownership_epoch=row.ownership_epoch + (row.item.owner is not UNSET),
        child_mission_id=None,
        block_reason=None,
        required_resolution=None,
        failure_reason=None,
        evidence_ids=(),
        delegation_grant_id=grant_id,
    )
    if payload.delegation_grant_id is not UNSET:
        attribute(view, payload.delegation_grant_id, document.work_item_id)
    assert document.offers is not UNSET
    candidates = tuple(as_agent(known.agent_id) for known in document.offers if known.status == "pending")
    packages.note(view, fact, payload.context_package_id, candidates)


# --- work.accept_offer ------------------------------------------------------------------------------------------------


def accept(case: Case) -> None:
    """The first valid acceptance makes an owner; everybody else's offer is over (R-10.2-09, R-10.3-05, R-10.3-06)."""
    payload = case.payload(WorkAcceptOffer)
    row = work_item(case, payload.work_item_id)
    offer_id = _my_offer(case, row, payload.offer_id).offer_id
    contract = row.item.contract
    _check_contract_version(row, offer_id, payload.contract_version)
    case.expect_revision(row.item.revision)
    agent_id = case.command.actor.id
    agent = check_card(case, agent_id, contract)
    _check_queue(case, agent)
    epoch = row.ownership_epoch + 1
    seconds = payload.ownership_lease_seconds
    expires_at = case.later(seconds, case.policy.ownership_lease_max)
    start_by = expires_at
    if payload.start_by_seconds is not None:
        start_by = case.later(min(payload.start_by_seconds, seconds), case.policy.ownership_lease_max)
    lease = grant_work(
        case, "ownership", row.item, agent_id=agent_id, ownership_epoch=epoch, expires_at=expires_at, start_by=start_by
    )
    emit(
        case,
        row,
        "work.offer.accepted",
        OfferAccepted(
            revision=row.item.revision + 1,
            state="queued",
            work_item_id=row.item.work_item_id,
            owner=Owner(
                agent_id=agent_id,
                agent_card_version=agent.card.card_version,
                capability_pins=pins_of(agent, contract),
                ownership_epoch=epoch,
                ownership_lease_id=lease.lease_id,
                accepted_at=case.now_text,
            ),
            ownership_lease=lease,
            offers=tuple(_settled(case, known, offer_id) for known in offers_of(row)),
            membership=_activated(case),
            schedule_estimate=UNSET if payload.schedule_estimate is None else payload.schedule_estimate,
        ),
    )


def _my_offer(case: Case, row: WorkItemRow, offer_id: str | None) -> Offer:
    """The actor's pending offer, or the reason why there is none (decisions D6, D55, F33)."""
    state, kind = row.item.state, case.command.kind
    if state in TERMINAL:
        admit_work_item(state, kind)
    admit_mission(case.mission().mission.state, kind)
    owner = row.item.owner
    if state in OWNED and owner is not UNSET and owner.agent_id == case.command.actor.id:
        refuse(ErrorCode.INVALID_STATE_TRANSITION, "you own the WorkItem already", "R-10.2-10")
    mine = [known for known in offers_of(row) if known.agent_id == case.command.actor.id]
    if not mine:
        if state in ("open", "failed"):
            admit_work_item(state, kind)
        refuse(ErrorCode.AUTH_FORBIDDEN, "the WorkItem was never offered to you", "R-10.2-10")
    latest = mine[-1]
    if latest.status == "lost_race" and state in OWNED:
        refuse(ErrorCode.WORK_ALREADY_OWNED, "another Worker accepted first", "R-19-26")
    if latest.status == "accepted":
        refuse(ErrorCode.INVALID_STATE_TRANSITION, "the offer was accepted already; wait for a new one", "R-10.2-10")
    if latest.status != "pending" or expired(case, latest) or (offer_id is not None and offer_id != latest.offer_id):
        status = "expired" if latest.status == "pending" else latest.status
        refuse(
            ErrorCode.WORK_OFFER_EXPIRED,
            f"the offer is over ({status}); wait for a new one",
            "R-19-25",
            details={"offerId": latest.offer_id, "expiresAt": latest.expires_at},
        )
    admit_work_item(state, kind)
    return latest


def _check_contract_version(row: WorkItemRow, offer_id: str, stated: int | None) -> None:
    """What is accepted is the contract as it stands: the version stated, or else the one that was offered, must be its
    own. Nobody accepts a revision without having named it (R-10.1-23, decision D55)."""
    current = row.item.contract.contract_version
    accepted = stated if stated is not None else dict(row.offered_versions).get(offer_id, current)
    if accepted != current:
        refuse(
            ErrorCode.REVISION_CONFLICT,
            f"the contract is at version {current}, not {accepted}; read it and state contractVersion {current}",
            "R-10.1-23",
            expected_revision=accepted,
            current_revision=current,
        )


def _check_queue(case: Case, agent: AgentRow) -> None:
    """How much one Agent may take on, in all Groups together (R-20-02, decision D60)."""
    queued = case.policy.queued_work_items
    pass_limit(
        case,
        "queued_work_items",
        agent.queued + 1 > queued,
        f"an Agent may have {queued} queued WorkItems",
        rule="R-20-02",
    )
    active = active_limit(case, agent)
    pass_limit(
        case,
        "active_work_items",
        agent.active > active,
        f"an Agent with more than {active} active WorkItems takes on no more",
        rule="R-20-02",
    )


def _settled(case: Case, known: Offer, accepted_id: str) -> Offer:
    if known.status != "pending":
        return known
    if known.offer_id == accepted_id:
        return structs.replace(known, status="accepted")
    return structs.replace(known, status="expired" if expired(case, known) else "lost_race")


def _activated(case: Case) -> Membership | UnsetType:
    """Acceptance makes a provisional Membership active, under a new epoch (R-8-11, decision D54)."""
    member = case.membership(case.command.actor)
    assert member is not None, "the common checks found the Membership"
    if member.membership.state == "active":
        return UNSET
    return structs.replace(
        member.membership,
        state="active",
        membership_epoch=member.membership.membership_epoch + 1,
        activated_at=case.now_text,
        provisional_expires_at=UNSET,
    )


def _fold_accepted(view: Overlay, fact: EventFact) -> None:
    payload = fact.payload
    assert isinstance(payload, OfferAccepted)
    row = find(view, payload.work_item_id)
    if payload.membership is not UNSET:
        place(view, payload.membership)
    item: dict[str, object] = {"owner": payload.owner, "offers": payload.offers}
    if payload.schedule_estimate is not UNSET:
        item["schedule_estimate"] = payload.schedule_estimate
    fold(view, fact, row, item=item, ownership_epoch=payload.owner.ownership_epoch)


# --- ext.mwnode.core.offer_decline ------------------------------------------------------------------------------------


def decline(case: Case) -> None:
    """A candidate says no, and why; the WorkItem stays ``offered`` (R-10.3-09, R-10.3-10, decision D50)."""
    payload = case.payload(OfferDecline)
    row = work_item(case, payload.work_item_id)
    mine = _my_offer(case, row, payload.offer_id)
    case.expect_revision(row.item.revision)
    declined = structs.replace(mine, status="declined", decline_reason=payload.reason)
    emit(
        case,
        row,
        f"{CORE}.offer_declined",
        OfferDeclined(
            revision=row.item.revision + 1,
            state=row.item.state,
            work_item_id=row.item.work_item_id,
            offers=tuple(declined if known is mine else known for known in offers_of(row)),
            detail=UNSET if payload.detail is None else payload.detail,
        ),
    )


def _fold_declined(view: Overlay, fact: EventFact) -> None:
    payload = fact.payload
    assert isinstance(payload, OfferDeclined)
    fold(view, fact, find(view, payload.work_item_id), item={"offers": payload.offers})


DECIDERS: dict[str, Callable[[Case], None]] = {
    "work.offer": offer,
    "work.accept_offer": accept,
    f"{CORE}.offer_decline": decline,
}
EVOLVERS: dict[str, Callable[[Overlay, EventFact], None]] = {
    "work.offer.created": _fold_offered,
    "work.offer.accepted": _fold_accepted,
    f"{CORE}.offer_declined": _fold_declined,
}
