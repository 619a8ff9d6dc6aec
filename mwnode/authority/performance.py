"""How Agents do, per capability and Mission: counted from the log, kept outside their Cards (R-6.1-10).

There is no overall score, and nothing here makes one: every figure names its capability and the Group that is its
context (R-6.1-11).
"""

from __future__ import annotations

from typing import Any

from msgspec import UNSET, Struct, structs

from mwnode.authority.access import Sight
from mwnode.authority.request import EventFact
from mwnode.authority.state import ACCOUNTS, PERFORMANCE, PerformanceRow, WorkItemRow
from mwnode.authority.view import Overlay, View
from mwnode.protocol.commands import CORE
from mwnode.protocol.documents import CapabilityRef
from mwnode.protocol.instants import parse

COUNTED: dict[str, str] = {
    "work.result.accepted": "completed",
    "work.failed": "failed",
    "work.offer.created": "reassigned",
    f"{CORE}.lease_expired": "leases_expired",
}
"""Which count of its owner an Event about a WorkItem moves."""
ENDINGS = frozenset({"work.result.accepted", "work.failed"})


def note(view: Overlay, fact: EventFact, before: WorkItemRow) -> None:
    """Count an Event for whoever owned the WorkItem before it."""
    name = COUNTED.get(fact.kind)
    owner = before.item.owner
    if name is None or owner is UNSET:
        return
    moved = {name}
    if fact.kind == "work.failed" and before.item.state == "submitted":
        moved.add("sent_back")
    if fact.kind in ENDINGS:
        if parse(fact.occurred_at) > parse(before.item.contract.deadline):
            moved.add("late")
        if _spent(view, before.item.work_item_id):
            moved.add("budgets_spent")
    for pin in owner.capability_pins:
        row = PerformanceRow(owner.agent_id, pin.id, pin.version, before.item.group_id)
        row = view.get(PERFORMANCE, PERFORMANCE.key(row)) or row
        counts: dict[str, Any] = {each: getattr(row, each) + 1 for each in moved}
        view.put(PERFORMANCE, structs.replace(row, **counts))


def _spent(view: Overlay, work_item_id: str) -> bool:
    """Whether the work took all that one dimension of its budget allowed."""
    account = view.get(ACCOUNTS, work_item_id)
    return account is not None and any(
        limit is not None and used >= limit > 0 for used, limit in zip(account.used, account.limits, strict=True)
    )


class Performance(Struct, frozen=True, rename="camel", kw_only=True):
    """What an Agent's work under one capability came to in one Group."""

    capability: CapabilityRef
    group_id: str
    completed: int
    """Results accepted."""
    failed: int
    sent_back: int
    """Of those that failed, the submitted results that a review refused."""
    reassigned: int
    """Offered to others while the Agent still stood as its owner."""
    late: int
    """Ended after the contract's deadline."""
    budgets_spent: int
    """Ended with a limit of the budget used up."""
    leases_expired: int


def performance_of(view: View, sights: list[Sight], agent_id: str) -> list[Performance]:
    """An Agent's records in the Groups that the reader sees as a whole; in all of its own when it asks itself."""
    return [
        Performance(
            capability=CapabilityRef(id=row.capability_id, version=row.capability_version),
            group_id=row.group_id,
            completed=row.completed,
            failed=row.failed,
            sent_back=row.sent_back,
            reassigned=row.reassigned,
            late=row.late,
            budgets_spent=row.budgets_spent,
            leases_expired=row.leases_expired,
        )
        for sight in sights
        if sight.whole or (sight.principal.type == "agent" and sight.principal.id == agent_id)
        for row in view.in_group(PERFORMANCE, sight.group_id)
        if row.agent_id == agent_id
    ]
