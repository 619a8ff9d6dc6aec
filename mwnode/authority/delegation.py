"""Delegation Grants: a Coordinator lets one Agent author work in one subtree, within stated bounds (section 9.1).

A Grant is checked whole at each use: a single thing that changed since it was made ends it.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import NoReturn

from msgspec import UNSET, structs

from mwnode.authority import budget
from mwnode.authority.case import Case, refuse
from mwnode.authority.cooperation import pass_limit
from mwnode.authority.membership import place
from mwnode.authority.request import EventFact
from mwnode.authority.state import AGENTS, GRANTS, WORK_ITEMS, GrantRow, WorkItemRow
from mwnode.authority.table import admit_mission
from mwnode.authority.view import Overlay
from mwnode.protocol.capabilities import satisfies
from mwnode.protocol.commands import MembershipGrantDelegation
from mwnode.protocol.documents import Actor, AgentActor, DelegationGrant, WorkContract, require_full_budget
from mwnode.protocol.errors import ErrorCode
from mwnode.protocol.events import DelegationGranted
from mwnode.protocol.instants import parse

ENDED = ("verified", "failed", "cancelled")
"""States of the target in which a Grant is dead (R-9.1-36)."""


# --- membership.grant_delegation --------------------------------------------------------------------------------------


def grant(case: Case) -> None:
    """Issue one Delegation Grant (R-9.1-04 to R-9.1-18)."""
    payload = case.payload(MembershipGrantDelegation)
    mission = case.mission().mission
    admit_mission(mission.state, case.command.kind)
    case.unused(GRANTS, payload.grant_id, "Delegation Grant")
    target = _item_here(case, payload.target_work_item_id)
    if target is None:
        _misfit(f"WorkItem {payload.target_work_item_id} is not known here", "targetWorkItemId")
    _check_bounds(case, payload)
    if target.item.state in ENDED:
        refuse(
            ErrorCode.INVALID_STATE_TRANSITION,
            f"the target is {target.item.state}; a Grant for it would be dead at once",
            "R-9.1-36",
            details={"state": target.item.state},
        )
    grantee = case.membership(Actor(type="agent", id=payload.grantee_agent_id))
    if grantee is None or grantee.membership.state != "active" or grantee.membership.role != "work_delegate":
        _forbid("the grantee must be an active Member with the role work_delegate", "R-9.1-28")
    case.expect_revision(mission.revision)
    depth = payload.max_descendant_depth
    pass_limit(
        case,
        "delegation_depth",
        depth > case.policy.delegation_depth,
        f"policy lets delegation go {case.policy.delegation_depth} levels deep, not {depth}",
        rule="R-20-02",
    )
    _check_ceilings(case, payload, mission.mission_id)
    given = DelegationGrant(
        grant_id=payload.grant_id,
        grantee_agent_id=payload.grantee_agent_id,
        mission_id=mission.mission_id,
        group_id=mission.group_id,
        target_work_item_id=payload.target_work_item_id,
        allowed_capabilities=payload.allowed_capabilities,
        budget=payload.budget,
        max_descendant_depth=depth,
        grantee_membership_epoch=grantee.membership.membership_epoch,
        coordinator_epoch=mission.coordinator.coordinator_epoch,
        granted_by=AgentActor(type="agent", id=case.command.actor.id),
        granted_at=case.now_text,
        expires_at=payload.expires_at,
    )
    earlier = grantee.membership.delegation_grants
    membership = structs.replace(grantee.membership, delegation_grants=(*(() if earlier is UNSET else earlier), given))
    fact = case.emit(
        "membership.delegation.granted",
        DelegationGranted(
            revision=mission.revision, state=mission.state, delegation_grant=given, membership=membership
        ),
    )
    case.note_policy(
        "delegation granted",
        {
            "grantId": given.grant_id,
            "granteeAgentId": given.grantee_agent_id,
            "targetWorkItemId": given.target_work_item_id,
            "expiresAt": given.expires_at,
            "eventId": fact.event_id,
        },
        group_id=mission.group_id,
    )


def _check_bounds(case: Case, payload: MembershipGrantDelegation) -> None:
    try:
        require_full_budget(payload.budget)
        budget.limits_of(payload.budget)
    except ValueError as fault:
        _misfit(str(fault), "budget", "R-9.1-11")
    mission = case.mission().mission
    if case.passed(payload.expires_at) or parse(payload.expires_at) > parse(mission.deadline):
        _misfit("expiresAt must lie after now and not after the Mission's deadline", "expiresAt", "R-9.1-17")
    if case.view.get(AGENTS, payload.grantee_agent_id) is None:
        _misfit(f"Agent {payload.grantee_agent_id} is not registered", "granteeAgentId", "R-9.1-06")
    currency = budget.currency_of(case.view, mission.mission_id)
    if currency is not None and currency != payload.budget.currency:
        _misfit(f"the Mission counts money in {currency}", "budget/currency", "R-9.1-11")


def _check_ceilings(case: Case, payload: MembershipGrantDelegation, mission_id: str) -> None:
    """Each ceiling within what the Mission itself may spend (decision D21)."""
    limits = budget.effective_limits(case.view, mission_id)
    for name, limit, ceiling in zip(budget.NAMES, limits, budget.limits_of(payload.budget), strict=True):
        if limit is not None and ceiling is not None and ceiling > limit:
            refuse(
                ErrorCode.BUDGET_EXCEEDED,
                f"{name}: the Mission has {limit}, the Grant asks for {ceiling}",
                "R-9.1-24",
                details={"dimension": name},
            )


# --- use --------------------------------------------------------------------------------------------------------------


def check_use(
    case: Case,
    grant_id: str,
    contract: WorkContract,
    *,
    item: WorkItemRow | None = None,
    parent_work_item_id: str | None = None,
) -> GrantRow:
    """All that must hold when ``work.authorize`` or ``work.offer`` rests on a Grant (R-9.1-19 to R-9.1-36).

    ``item`` is the WorkItem offered; without it one is authorized under ``parent_work_item_id``. AUTH_FORBIDDEN for
    everything but the budget, which is BUDGET_EXCEEDED, and a Coordinator Epoch beside the Grant, which is
    INVALID_COMMAND (decisions D5, D67). Policy's own depth is the caller's to check, as for everybody.
    """
    if case.command.coordinator_epoch is not UNSET or "C" in case.roles:
        refuse(
            ErrorCode.INVALID_COMMAND,
            "a Command rests on the Coordinator lease or on a Delegation Grant, not on both",
            "R-9.1-03",
            details={"path": "/payload/delegationGrantId"},
        )
    row = case.view.get(GRANTS, grant_id)
    if row is None:
        _forbid(f"no Delegation Grant {grant_id} is known", "R-9.1-03")
    _check_alive(case, row)
    _check_place(case, row.grant, item, parent_work_item_id)
    if item is not None and item.delegation_grant_id not in (None, grant_id):
        _forbid("the WorkItem belongs to another Delegation Grant", "R-9.1-24")
    for required in contract.required_capabilities:
        if not any(satisfies(required, allowed) for allowed in row.grant.allowed_capabilities):
            _forbid(f"the Grant does not cover {required.id} {required.version}", "R-9.1-22")
    _check_sum(case, row, contract, item, parent_work_item_id)
    return row


def _check_alive(case: Case, row: GrantRow) -> None:
    given, command, mission = row.grant, case.command, case.mission().mission
    member = case.membership(command.actor)
    assert member is not None, "the common checks found the Membership"
    target = _item_here(case, given.target_work_item_id)
    conditions = (
        (
            command.actor == Actor(type="agent", id=given.grantee_agent_id),
            "it was granted to another Agent",
            "R-9.1-27",
        ),
        (given.mission_id == mission.mission_id, "it was granted in another Mission", "R-9.1-30"),
        (given.group_id == case.group_id, "it was granted in another Group", "R-9.1-31"),
        (
            member.membership.state == "active" and member.membership.role == "work_delegate",
            "its grantee is no active work_delegate any more",
            "R-9.1-28",
        ),
        (
            member.membership.membership_epoch == given.grantee_membership_epoch,
            "the grantee's Membership has changed since",
            "R-9.1-29",
        ),
        (
            given.coordinator_epoch == mission.coordinator.coordinator_epoch,
            "the Coordinator was replaced since",
            "R-9.1-32",
        ),
        (given.granted_by.id == mission.coordinator.agent_id, "its issuer is not the Coordinator any more", "R-9.1-33"),
        (parse(given.granted_at) <= case.now and not case.passed(given.expires_at), "it is not valid now", "R-9.1-34"),
        (target is not None, "its target does not exist", "R-9.1-35"),
        (
            not row.dead and (target is None or target.item.state not in ENDED),
            "its target has ended",
            "R-9.1-36",
        ),
    )
    for holds, reason, rule in conditions:
        if not holds:
            _forbid(f"the Delegation Grant is dead: {reason}", rule)


def _check_place(case: Case, given: DelegationGrant, item: WorkItemRow | None, parent_work_item_id: str | None) -> None:
    """The WorkItem lies in the target's subtree, not deeper than granted (R-9.1-19 to R-9.1-21, R-9.1-25)."""
    if item is not None:
        depth = _depth_below(case, given.target_work_item_id, item.item.work_item_id)
    elif parent_work_item_id is None:
        _forbid("delegated work needs a parentWorkItemId inside the Grant's target", "R-9.1-21")
    else:
        above = _depth_below(case, given.target_work_item_id, parent_work_item_id)
        depth = None if above is None else above + 1
    if depth is None:
        _forbid("the WorkItem lies outside the subtree of the Grant's target", "R-9.1-21")
    if depth > given.max_descendant_depth:
        _forbid(f"the Grant reaches {given.max_descendant_depth} levels below its target, not {depth}", "R-9.1-25")


def _depth_below(case: Case, target_id: str, work_item_id: str) -> int | None:
    """Levels from the target down to a WorkItem, ``None`` outside its subtree."""
    depth = 0
    current: str | None = work_item_id
    while current is not None and current != target_id:
        row = _item_here(case, current)
        current = row.parent_work_item_id if row is not None else None
        depth += 1
    return depth if current is not None else None


def _check_sum(
    case: Case, row: GrantRow, contract: WorkContract, item: WorkItemRow | None, parent_work_item_id: str | None
) -> None:
    """The budgets of everything that the Grant was used for stay within each of its ceilings (R-9.1-24).

    A WorkItem without a limit of its own may spend what its ancestry may: that counts (decision D21).
    """
    item_id = item.item.work_item_id if item is not None else None
    totals: list[int | None] = [0] * 6
    for other_id in row.work_item_ids:
        other = _item_here(case, other_id)
        if other is not None and other_id != item_id:
            _add(totals, _spendable(case, other.item.contract, other_id))
    _add(totals, _spendable(case, contract, item_id, parent_work_item_id))
    for name, total, ceiling in zip(budget.NAMES, totals, budget.limits_of(row.grant.budget), strict=True):
        assert ceiling is not None, "a Grant states all six ceilings"
        if total is None or total > ceiling:
            refuse(
                ErrorCode.BUDGET_EXCEEDED,
                f"{name}: the Grant's ceiling is {ceiling}, its WorkItems would have "
                + ("no limit" if total is None else str(total)),
                "R-9.1-24",
                details={"dimension": name},
            )


def _spendable(
    case: Case, contract: WorkContract, work_item_id: str | None, parent_work_item_id: str | None = None
) -> budget.Limits:
    try:
        own = budget.limits_of(contract.budget)
    except ValueError as fault:
        refuse(ErrorCode.INVALID_COMMAND, str(fault), "R-9.1-24", details={"path": "/payload/contract/budget"})
    above = budget.effective_limits(case.view, work_item_id or parent_work_item_id)
    return tuple(limit if limit is not None else above[d] for d, limit in enumerate(own))


def _add(totals: list[int | None], limits: budget.Limits) -> None:
    for d, limit in enumerate(limits):
        total = totals[d]
        totals[d] = None if total is None or limit is None else total + limit


def _item_here(case: Case, work_item_id: str) -> WorkItemRow | None:
    row = case.view.get(WORK_ITEMS, work_item_id)
    return row if row is not None and row.item.group_id == case.group_id else None


def _misfit(message: str, member: str, rule: str = "R-19-19") -> NoReturn:
    refuse(ErrorCode.INVALID_COMMAND, message, rule, details={"path": f"/payload/{member}"})


def _forbid(message: str, rule: str) -> NoReturn:
    refuse(ErrorCode.AUTH_FORBIDDEN, message, rule)


# --- folding ----------------------------------------------------------------------------------------------------------


def attribute(view: Overlay, grant_id: str, work_item_id: str) -> None:
    """Fold the use of a Grant for a WorkItem: its budget counts against the Grant from now on."""
    row = view.get(GRANTS, grant_id)
    if row is not None and work_item_id not in row.work_item_ids:
        view.put(GRANTS, structs.replace(row, work_item_ids=(*row.work_item_ids, work_item_id)))


def bury(view: Overlay, group_id: str, work_item_id: str) -> None:
    """Fold the end of a WorkItem: Grants for it are dead, and stay so when it is offered again (reading 24)."""
    for row in view.in_group(GRANTS, group_id):
        if row.grant.target_work_item_id == work_item_id and not row.dead:
            view.put(GRANTS, structs.replace(row, dead=True))


def _fold_granted(view: Overlay, fact: EventFact) -> None:
    payload = fact.payload
    assert isinstance(payload, DelegationGranted)
    view.put(GRANTS, GrantRow(payload.delegation_grant))
    place(view, payload.membership)


DECIDERS: dict[str, Callable[[Case], None]] = {"membership.grant_delegation": grant}
EVOLVERS: dict[str, Callable[[Overlay, EventFact], None]] = {"membership.delegation.granted": _fold_granted}
