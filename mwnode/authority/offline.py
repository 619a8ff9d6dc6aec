"""Bounded offline execution: progress that a Worker buffered while it was cut off, reconciled once it is back.

The binding travels in a critical extension and never changes; Command and usage are one transition, or none
(R-11.5-23 to R-11.5-31).
"""

from __future__ import annotations

from typing import NoReturn

import msgspec
from msgspec import UNSET

from mwnode.authority import budget
from mwnode.authority.case import Case, refuse
from mwnode.authority.items import check_epoch, hold_ownership
from mwnode.authority.state import LEASES, WorkItemRow
from mwnode.authority.usage import emit_usage
from mwnode.protocol.commands import Payload, Usage
from mwnode.protocol.documents import Lease
from mwnode.protocol.errors import ErrorCode
from mwnode.protocol.identifiers import OFFLINE_EXTENSION
from mwnode.protocol.instants import parse
from mwnode.protocol.plain_words import plain
from mwnode.protocol.scalars import Id, PositiveInteger, Timestamp

KINDS = frozenset({"message.post", "work.checkpoint"})
"""The only kinds that may be buffered (wire section 6)."""
VERSION = "0.1.0"


class OfflineBinding(Payload):
    """What a buffered Command is bound to; every member is required (R-11.5-10 to R-11.5-20)."""

    agent_id: Id
    group_id: Id
    work_item_id: Id
    session_epoch: PositiveInteger
    """The Session that executed, not the one that reconciles."""
    ownership_epoch: PositiveInteger
    execution_lease_id: Id
    disconnected_at: Timestamp
    buffered_at: Timestamp
    grace_deadline: Timestamp
    execution_lease_expires_at: Timestamp
    resource_usage_delta: Usage

    def __post_init__(self) -> None:
        disconnected, buffered = parse(self.disconnected_at), parse(self.buffered_at)
        grace, expiry = parse(self.grace_deadline), parse(self.execution_lease_expires_at)
        if not disconnected <= buffered < grace <= expiry:
            raise ValueError("disconnectedAt <= bufferedAt < graceDeadline <= executionLeaseExpiresAt must hold")
        if self.resource_usage_delta.external_actions:
            raise ValueError("no external action happens offline: externalActions must be 0")


def check_kind(case: Case) -> None:
    """Only some kinds may carry the binding: INVALID_COMMAND for the others."""
    extensions = case.command.extensions
    if extensions is not UNSET and OFFLINE_EXTENSION in extensions and case.command.kind not in KINDS:
        _misfit(f"{case.command.kind} cannot be buffered offline", "R-11.5-09")


def binding_of(case: Case) -> OfflineBinding | None:
    """The binding of a buffered Command, ``None`` where there is none; INVALID_COMMAND where it is malformed (F39)."""
    extensions = case.command.extensions
    extension = None if extensions is UNSET else extensions.get(OFFLINE_EXTENSION)
    if extension is None:
        return None
    if extension.version != VERSION or not extension.critical:
        _misfit(f"the offline binding has version {VERSION} and is critical", "R-11.5-09")
    try:
        return msgspec.convert(extension.data, OfflineBinding)
    except msgspec.ValidationError as fault:
        _misfit(f"the offline binding is malformed: {plain(str(fault))}", "R-11.5-20")


def reconcile(case: Case, row: WorkItemRow | None) -> None:
    """Hold a buffered Command against the lease that it was made under, and charge what it used.

    ``row`` is the WorkItem that the Command is about, ``None`` where it is about none. Nothing for a Command without
    binding. Emits the usage Event, before the Command's own (R-11.5-28, R-11.5-30).
    """
    binding = binding_of(case)
    if binding is None:
        return
    command = case.command
    if (command.actor.type, command.actor.id, case.group_id) != ("agent", binding.agent_id, binding.group_id):
        _forbid("the offline binding names another Agent or Group", "R-11.5-10")
    if parse(binding.buffered_at) > parse(command.issued_at):
        _misfit("bufferedAt lies after issuedAt", "R-11.5-17")
    if row is None or row.item.work_item_id != binding.work_item_id:
        _forbid("buffered progress belongs to the bound WorkItem and its Conversation", "R-11.5-26")
    if row.item.state not in ("active", "queued"):
        refuse(
            ErrorCode.INVALID_STATE_TRANSITION,
            f"buffered progress comes too late: the WorkItem is {row.item.state}",
            "R-11.5-25",
        )
    check_epoch(row, binding.ownership_epoch)
    if row.item.owner is UNSET or row.item.owner.agent_id != binding.agent_id:
        _forbid("the WorkItem has another owner", "R-11.5-25")
    hold_ownership(case, row)
    lease = _lease(case, row, binding)
    _check_window(case, lease, binding)
    if any(budget.amounts_of(binding.resource_usage_delta)):
        budget.check_charge(case.view, row.item.work_item_id, binding.resource_usage_delta)
        emit_usage(
            case,
            row,
            binding.execution_lease_id,
            binding.ownership_epoch,
            binding.resource_usage_delta,
            {
                "disconnectedAt": binding.disconnected_at,
                "bufferedAt": binding.buffered_at,
                "graceDeadline": binding.grace_deadline,
                "executionSessionEpoch": binding.session_epoch,
                "reconciliationSessionEpoch": command.session_epoch,
                "reconciledAt": case.now_text,
                "progressActionId": command.action_id,
            },
        )


def _lease(case: Case, row: WorkItemRow, binding: OfflineBinding) -> Lease:
    found = case.view.get(LEASES, binding.execution_lease_id)
    lease = None if found is None else found.lease
    if lease is None or lease.lease_type != "execution" or lease.work_item_id != row.item.work_item_id:
        _lapsed("the offline binding names no Execution Lease of this WorkItem", "R-11.5-15")
    if lease.ownership_epoch != binding.ownership_epoch:
        refuse(ErrorCode.WORK_STALE_OWNERSHIP, "the lease belongs to another Ownership Epoch", "R-11.5-14")
    if lease.holder_agent_id != binding.agent_id:
        _forbid("the lease was held by another Agent", "R-11.5-10")
    if lease.session_epoch != binding.session_epoch:
        refuse(ErrorCode.AUTH_STALE_SESSION, "the lease was held under another Session Epoch", "R-11.5-13")
    return lease


def _check_window(case: Case, lease: Lease, binding: OfflineBinding) -> None:
    """Buffered inside the historical lease and the grace window, before the lease was closed (R-11.5-18, R-11.5-19,
    R-11.5-23, R-11.5-24)."""
    disconnected, buffered = parse(binding.disconnected_at), parse(binding.buffered_at)
    expiry = parse(lease.expires_at)
    if parse(binding.execution_lease_expires_at) != expiry:
        _lapsed(f"the lease's last end was {lease.expires_at}", "R-11.5-19")
    if not parse(lease.starts_at) <= disconnected < expiry or buffered >= expiry:
        _lapsed("the work was buffered outside its lease", "R-11.5-23")
    if parse(binding.grace_deadline) > disconnected.plus(case.policy.offline_grace):
        _lapsed(f"policy grants {case.policy.offline_grace} seconds of grace", "R-11.5-18")
    if lease.closed_at is not UNSET and buffered > parse(lease.closed_at):
        _lapsed(f"the lease was closed at {lease.closed_at}, before the work was buffered", "R-11.5-24")


def _misfit(message: str, rule: str) -> NoReturn:
    refuse(ErrorCode.INVALID_COMMAND, message, rule, details={"path": f"/extensions/{OFFLINE_EXTENSION}"})


def _forbid(message: str, rule: str) -> NoReturn:
    refuse(ErrorCode.AUTH_FORBIDDEN, message, rule)


def _lapsed(message: str, rule: str) -> NoReturn:
    refuse(ErrorCode.WORK_LEASE_EXPIRED, message, rule)
