"""Usage: what an execution used, charged to its WorkItem and to everything above it (section 12)."""

from __future__ import annotations

from msgspec import UNSET, structs

from mwnode.authority import budget
from mwnode.authority.case import Case, refuse
from mwnode.authority.item_fold import find
from mwnode.authority.items import check_epoch, emit, hold, hold_execution, work_item
from mwnode.authority.request import EventFact
from mwnode.authority.state import ACCOUNTS, LEASES, WORK_ITEMS, WorkItemRow
from mwnode.authority.view import Overlay
from mwnode.protocol.commands import EXT, ResourceUsageRecord, Usage
from mwnode.protocol.documents import JsonObject, Lease
from mwnode.protocol.errors import ErrorCode
from mwnode.protocol.events import ResourceUsageRecorded


def record(case: Case) -> None:
    """Charge what an execution used to its WorkItem and the whole ancestry (R-12-26 to R-12-29, R-G-08).

    The owner reports under its current lease; an Organization service may book what it learned later, on any lease
    that the item ever had.
    """
    payload = case.payload(ResourceUsageRecord)
    if "S" in case.roles:
        row = work_item(case, payload.work_item_id)
        check_historical_lease(case, row, payload.execution_lease_id, payload.ownership_epoch)
    else:
        row = work_item(case, payload.work_item_id)
        hold(case, row, payload.ownership_epoch)
        hold_execution(case, row, payload.execution_lease_id)
    case.expect_revision(row.item.revision)
    budget.check_charge(case.view, row.item.work_item_id, payload.usage_delta)
    emit_usage(case, row, payload.execution_lease_id, payload.ownership_epoch, payload.usage_delta)


def check_historical_lease(case: Case, row: WorkItemRow, lease_id: str, ownership_epoch: int) -> Lease:
    """An Execution Lease of this item, open or closed: WORK_LEASE_EXPIRED for any other."""
    found = case.view.get(LEASES, lease_id)
    lease = None if found is None else found.lease
    if lease is None or lease.lease_type != "execution" or lease.work_item_id != row.item.work_item_id:
        refuse(ErrorCode.WORK_LEASE_EXPIRED, f"{lease_id} is no Execution Lease of this WorkItem", "R-12-26")
    if lease.ownership_epoch != ownership_epoch:
        check_epoch(row, ownership_epoch)
        refuse(ErrorCode.WORK_STALE_OWNERSHIP, "the lease belongs to another Ownership Epoch", "R-12-26")
    return lease


def fold_recorded(view: Overlay, fact: EventFact) -> None:
    payload = fact.payload
    assert isinstance(payload, ResourceUsageRecorded)
    budget.charge(view, payload.work_item_id, payload.usage_delta)
    row = find(view, payload.work_item_id)
    assert fact.sequence is not None
    view.put(WORK_ITEMS, structs.replace(row, last_sequence=fact.sequence))


def emit_usage(
    case: Case,
    row: WorkItemRow,
    execution_lease_id: str,
    ownership_epoch: int,
    usage: Usage,
    reconciliation: JsonObject | None = None,
) -> None:
    """Append the usage Event; folding it charges the whole ancestry (R-12-27, R-12-28). No revision moves."""
    work_item_id = row.item.work_item_id
    account = case.view.get(ACCOUNTS, work_item_id)
    assert account is not None, "every WorkItem has an account (R-12-19)"
    delta = budget.amounts_of(usage)
    left = tuple(
        None if rest is None else rest - delta[d]
        for d, rest in enumerate(budget.effective_remainder(case.view, work_item_id))
    )
    emit(
        case,
        row,
        f"{EXT}.core.resource_usage_recorded",
        ResourceUsageRecorded(
            revision=row.item.revision,
            state=row.item.state,
            work_item_id=work_item_id,
            execution_lease_id=execution_lease_id,
            ownership_epoch=ownership_epoch,
            usage_delta=usage,
            cumulative_usage=budget.usage_of(tuple(account.used[d] + delta[d] for d in range(6))),
            remaining_budget=budget.wire_budget(left, budget.currency_of(case.view, work_item_id)),
            offline_reconciliation=UNSET if reconciliation is None else reconciliation,
        ),
    )
