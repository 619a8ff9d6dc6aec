"""The Authorization Service: what a Capability Token or a Membership Token may claim, and whether it still holds.

Pure: claims in, claims out. The node signs them and never shows them to anybody but their holder; they stand in no
Event (R-12-13). A token lives shorter than what it rests on, and dies with it (R-12-03 to R-12-10, R-G-04 to R-G-06).
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, NamedTuple

import msgspec
from msgspec import UNSET, UnsetType

from mwnode.authority import budget as ledger
from mwnode.authority import gate
from mwnode.authority.case import Refused, refuse
from mwnode.authority.permissions import first_excess
from mwnode.authority.policy import Policy
from mwnode.authority.state import (
    AGENTS,
    MEMBERSHIPS,
    WORK_ITEMS,
    ApprovalRow,
    MembershipRow,
    WorkItemRow,
    membership_key,
)
from mwnode.authority.view import View
from mwnode.protocol.commands import Usage
from mwnode.protocol.documents import Actor, Budget, Document, Lease, ResourceGrant, Role
from mwnode.protocol.errors import ErrorCode, Rejection
from mwnode.protocol.instants import Instant, parse
from mwnode.protocol.scalars import Id, Operation, PositiveInteger, Seconds, Timestamp

EXECUTE = "execute"
"""The operation that makes a resource a tool."""


class CapabilityRequest(Document):
    """What a Worker asks for; the answer is the least of what it asks and what it may have (R-12-02)."""

    work_item_id: Id
    execution_lease_id: Id
    operations: tuple[Operation, ...]
    resources: tuple[ResourceGrant, ...] = ()
    budget: Budget | None = None
    ttl_seconds: Seconds | None = None


class MembershipRequest(Document):
    """A proof of Membership for others."""

    group_id: Id
    ttl_seconds: Seconds | None = None


class CapabilityClaims(Document):
    """A Capability Token: one Worker, one execution, named operations on named resources, within a budget."""

    grant_id: Id
    worker_id: Id
    session_epoch: PositiveInteger
    work_item_id: Id
    ownership_epoch: PositiveInteger
    execution_lease_id: Id
    execution_lease_expires_at: Timestamp
    allowed_tools: tuple[Id, ...]
    allowed_resources: tuple[ResourceGrant, ...]
    allowed_operations: tuple[Operation, ...]
    budget: dict[str, Any]
    issued_at: Timestamp
    expires_at: Timestamp
    approval_id: Id | UnsetType = UNSET


class MembershipClaims(Document):
    """A Membership Token: one Principal, one Group, its roles, under its present epochs (R-G-04)."""

    token_id: Id
    principal: Actor
    group_id: Id
    roles: tuple[Role, ...]
    membership_epoch: PositiveInteger
    session_epoch: PositiveInteger
    issued_at: Timestamp
    expires_at: Timestamp


Claims = CapabilityClaims | MembershipClaims


class Issuer(NamedTuple):
    """What issuing needs besides state."""

    now: Instant
    policy: Policy
    new_id: Callable[[], str]


# --- issuing ----------------------------------------------------------------------------------------------------------


def issue_capability(
    view: View, issuer: Issuer, principal: Actor, session_epoch: int, request: CapabilityRequest
) -> CapabilityClaims | Rejection:
    """Claims for the owner of an active WorkItem under its current lease, after every required approval (R-12-01,
    R-12-16).

    Refused with AUTH_FORBIDDEN, AUTH_STALE_SESSION, WORK_LEASE_EXPIRED, APPROVAL_REQUIRED or BUDGET_EXCEEDED.
    """
    try:
        row, lease = _held(view, issuer.now, principal, session_epoch, request)
        approval = _approved(view, issuer, row, request)
        ledger.check_not_exhausted(view, row.item.work_item_id)
        ends = [lease.expires_at]
        if approval is not None and approval.expires_at is not None:
            ends.append(approval.expires_at)
        return CapabilityClaims(
            grant_id=issuer.new_id(),
            worker_id=principal.id,
            session_epoch=session_epoch,
            work_item_id=row.item.work_item_id,
            ownership_epoch=row.ownership_epoch,
            execution_lease_id=lease.lease_id,
            execution_lease_expires_at=lease.expires_at,
            allowed_tools=tuple(grant.resource for grant in request.resources if EXECUTE in grant.operations),
            allowed_resources=request.resources,
            allowed_operations=request.operations,
            budget=_capped(view, row, request.budget, approval),
            issued_at=issuer.now.text(),
            expires_at=_end(issuer, request.ttl_seconds, issuer.policy.capability_token_lifetime, *ends),
            approval_id=UNSET if approval is None else approval.approval.approval_id,
        )
    except Refused as refused:
        return refused.rejection


def issue_membership(
    view: View, issuer: Issuer, principal: Actor, session_epoch: int, request: MembershipRequest
) -> MembershipClaims | Rejection:
    """Claims about an active Membership of an Agent (R-G-04)."""
    try:
        member = view.get(MEMBERSHIPS, membership_key(request.group_id, principal))
        if member is None:
            refuse(ErrorCode.GROUP_NOT_FOUND, "no such Group", "R-19-15")
        if member.membership.state != "active":
            refuse(ErrorCode.MEMBERSHIP_REQUIRED, "only an active Membership is vouched for", "R-19-16")
        _check_session(view, principal, session_epoch)
        return MembershipClaims(
            token_id=issuer.new_id(),
            principal=principal,
            group_id=request.group_id,
            roles=(member.membership.role,),
            membership_epoch=member.membership.membership_epoch,
            session_epoch=session_epoch,
            issued_at=issuer.now.text(),
            expires_at=_end(issuer, request.ttl_seconds, issuer.policy.session_token_lifetime),
        )
    except Refused as refused:
        return refused.rejection


def _check_session(view: View, principal: Actor, session_epoch: int) -> None:
    """Tokens are for Agents, under their newest Session (R-12-04)."""
    agent = view.get(AGENTS, principal.id) if principal.type == "agent" else None
    if agent is None:
        refuse(ErrorCode.AUTH_FORBIDDEN, "tokens are issued to Agents only", "R-12-11")
    if agent.card.status != "active":
        refuse(ErrorCode.AUTH_FORBIDDEN, "this Agent's Card is not active", "R-19-14")
    if agent.session_epoch != session_epoch:
        refuse(ErrorCode.AUTH_STALE_SESSION, "the Session was replaced; connect again", "R-12-04")


def _held(
    view: View, now: Instant, principal: Actor, session_epoch: int, request: CapabilityRequest
) -> tuple[WorkItemRow, Lease]:
    """The active WorkItem and its lease, held by that Agent in that Session (R-12-03 to R-12-07)."""
    row = view.get(WORK_ITEMS, request.work_item_id)
    member = None if row is None else view.get(MEMBERSHIPS, membership_key(row.item.group_id, principal))
    if row is None or member is None or member.membership.state != "active":
        # Whoever may not see the item is told what somebody is told for whom there is none.
        refuse(ErrorCode.INVALID_COMMAND, f"WorkItem {request.work_item_id} is not known here", "R-19-19")
    _check_session(view, principal, session_epoch)
    owner = row.item.owner
    if owner is UNSET or (principal.type, principal.id) != ("agent", owner.agent_id):
        refuse(ErrorCode.AUTH_FORBIDDEN, "a Capability Token goes to the owner of the WorkItem only", "R-12-11")
    lease = row.execution_lease
    if (
        row.item.state != "active"
        or lease is None
        or lease.lease_id != request.execution_lease_id
        or lease.state != "active"
        or parse(lease.expires_at) <= now
        or lease.session_epoch != session_epoch
    ):
        refuse(ErrorCode.WORK_LEASE_EXPIRED, "a Capability Token needs the current Execution Lease", "R-12-07")
    uncovered = first_excess(request.resources, row.item.contract.allowed_resources)
    if uncovered is not None:
        refuse(ErrorCode.AUTH_FORBIDDEN, f"the contract does not allow {uncovered[1]} on {uncovered[0]}", "R-12-08")
    allowed = {operation for grant in row.item.contract.allowed_resources for operation in grant.operations}
    for operation in request.operations:
        if operation not in allowed:
            refuse(ErrorCode.AUTH_FORBIDDEN, f"the contract does not allow {operation}", "R-12-08")
    return row, lease


def _approved(view: View, issuer: Issuer, row: WorkItemRow, request: CapabilityRequest) -> ApprovalRow | None:
    """The Execution Approval that covers the request, where one is needed (R-12-16, R-12-17)."""
    asked = (*request.resources, *((_any_resource(request.operations),) if request.operations else ()))
    gated = gate.gated_operation(issuer.policy, asked)
    if gated is None and not gate.needs_approval(issuer.policy, row.item.contract):
        return None
    approval = gate.standing_approval(view, row, issuer.now)
    if approval is None:
        refuse(ErrorCode.APPROVAL_REQUIRED, "a human has to approve this execution first", "R-12-16")
    for operation in request.operations:
        if operation not in approval.operations:
            refuse(ErrorCode.APPROVAL_REQUIRED, f"the Execution Approval does not cover {operation}", "R-12-17")
    if approval.resources:
        uncovered = first_excess(request.resources, approval.resources)
        if uncovered is not None:
            refuse(
                ErrorCode.APPROVAL_REQUIRED,
                f"the Execution Approval does not cover {uncovered[1]} on {uncovered[0]}",
                "R-12-17",
            )
    return approval


def _any_resource(operations: tuple[str, ...]) -> ResourceGrant:
    return ResourceGrant(resource="urn:mwnode:resource:any", operations=operations)


def _capped(view: View, row: WorkItemRow, asked: Budget | None, approval: ApprovalRow | None) -> dict[str, Any]:
    """Per dimension the least of request, contract, Approval and what is left along the ancestry (R-12-30)."""
    sources = [ledger.effective_remainder(view, row.item.work_item_id), ledger.limits_of(row.item.contract.budget)]
    try:
        if asked is not None:
            sources.append(ledger.limits_of(asked))
    except ValueError as fault:
        refuse(ErrorCode.INVALID_COMMAND, str(fault), "R-12-30")
    if approval is not None and approval.budget is not None:
        sources.append(ledger.limits_of(approval.budget))
    least: list[int | None] = []
    for d in range(6):
        stated = [limit for source in sources if (limit := source[d]) is not None]
        least.append(min(stated) if stated else None)
    currency = ledger.currency_of(view, row.item.work_item_id)
    if currency is None and asked is not None and asked.currency is not UNSET:
        currency = asked.currency
    return ledger.wire_budget(tuple(least), currency)


def _end(issuer: Issuer, asked: int | None, lifetime: int, *ends: str) -> str:
    """The earliest of the lifetime asked for, policy's, and the ends of what the token rests on (R-12-10)."""
    own = issuer.now.plus(lifetime if asked is None else min(asked, lifetime)).text()
    return min((own, *ends), key=parse)


# --- verifying --------------------------------------------------------------------------------------------------------


def read(claims: dict[str, Any]) -> Claims | None:
    """Typed claims, ``None`` for anything that is not one of the two kinds."""
    try:
        if "workerId" in claims:
            return msgspec.convert(claims, CapabilityClaims)
        return msgspec.convert(claims, MembershipClaims)
    except msgspec.ValidationError:
        return None


def stands(view: View, now: Instant, claims: Claims) -> bool:
    """Whether a token still holds: not expired, and nothing that it rests on has moved (R-12-14, R-12-31)."""
    if not parse(claims.issued_at) <= now < parse(claims.expires_at):
        return False
    if isinstance(claims, MembershipClaims):
        member: MembershipRow | None = view.get(MEMBERSHIPS, membership_key(claims.group_id, claims.principal))
        agent = view.get(AGENTS, claims.principal.id)
        return (
            member is not None
            and member.membership.state == "active"
            and member.membership.membership_epoch == claims.membership_epoch
            and claims.roles == (member.membership.role,)
            and agent is not None
            and agent.session_epoch == claims.session_epoch
        )
    row = view.get(WORK_ITEMS, claims.work_item_id)
    worker = view.get(AGENTS, claims.worker_id)
    lease = None if row is None else row.execution_lease
    return (
        row is not None
        and worker is not None
        and worker.session_epoch == claims.session_epoch
        and row.item.state == "active"
        and row.item.owner is not UNSET
        and row.item.owner.agent_id == claims.worker_id
        and row.ownership_epoch == claims.ownership_epoch
        and lease is not None
        and lease.lease_id == claims.execution_lease_id
        and lease.state == "active"
        and parse(lease.expires_at) > now
    )


def permits(claims: CapabilityClaims, operation: str, resource: str | None = None, spent: Usage | None = None) -> bool:
    """Whether a tool may do one thing under a token: the operation, the resource, and ``spent``, all that the holder
    will have used under this token with it (R-12-08, R-12-09, R-12-22)."""
    if operation not in claims.allowed_operations:
        return False
    if resource is not None and not any(
        grant.resource == resource and operation in grant.operations for grant in claims.allowed_resources
    ):
        return False
    if spent is None:
        return True
    limits = ledger.limits_of(msgspec.convert(claims.budget, Budget)) if claims.budget else (None,) * 6
    return all(limit is None or amount <= limit for limit, amount in zip(limits, ledger.amounts_of(spent), strict=True))
