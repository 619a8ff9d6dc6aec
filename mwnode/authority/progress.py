"""Derived progress: computed from what was decided, never from what anybody says (R-7.3-01, R-7.3-02)."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

from msgspec import UNSET

from mwnode.authority.gate import needs_approval, standing_approval
from mwnode.authority.items import is_satisfied
from mwnode.authority.policy import Policy
from mwnode.authority.state import EVIDENCE, MISSIONS, WORK_ITEMS, MissionRow, WorkItemRow
from mwnode.authority.table import MISSION_LIVE, WORK_ITEM_STATES
from mwnode.authority.view import View
from mwnode.protocol.instants import Instant, parse

SETTLED = ("verified", "cancelled")


def progress(view: View, row: MissionRow, policy: Policy, now: Instant) -> dict[str, Any]:
    """A Mission's progress (decision G8).

    ``states`` counts WorkItems; ``criticalPath`` is the longest chain of unsettled ones; ``evidence`` counts the pairs
    of criterion and kind that contracts require, and those that accepted Evidence covers.
    """
    rows = view.in_group(WORK_ITEMS, row.mission.group_id)
    return {
        "states": _states(rows),
        "criticalPath": critical_path(view, rows),
        "blockers": _blockers(view, rows),
        "deadlines": _deadlines(row, rows, view, now),
        "approvals": _approvals(view, row, rows, policy, now),
        "evidence": _evidence(view, rows),
        "estimatedCompletion": _estimated_completion(rows),
    }


def is_settled(view: View, row: WorkItemRow) -> bool:
    """Whether nothing more is expected of a WorkItem: ended, or failed with a verified substitute (decision A30)."""
    return row.item.state in SETTLED or (row.item.state == "failed" and is_satisfied(view, row.item.work_item_id))


def _states(rows: list[WorkItemRow]) -> dict[str, int]:
    counts = {state: sum(row.item.state == state for row in rows) for state in WORK_ITEM_STATES}
    return {state: count for state, count in counts.items() if count}


def critical_path(view: View, rows: list[WorkItemRow]) -> list[str]:
    """The longest chain of unsettled WorkItems, first to do first; of equal ones the one with the least IDs."""
    unsettled = {row.item.work_item_id: row for row in rows if not is_settled(view, row)}
    longest: dict[str, tuple[str, ...]] = {}
    # A chain ends where its dependencies are settled; each pass adds the items whose dependencies are known.
    pending = sorted(unsettled)
    while pending:
        ready = [
            name
            for name in pending
            if all(
                dependency in longest or dependency not in unsettled
                for dependency in unsettled[name].item.contract.dependency_work_item_ids
            )
        ]
        if not ready:
            break
        for name in ready:
            chains = [
                longest[dependency]
                for dependency in unsettled[name].item.contract.dependency_work_item_ids
                if dependency in longest
            ]
            longest[name] = (*_longest(chains), name)
        pending = [name for name in pending if name not in longest]
    return list(_longest(longest.values()))


def _longest(chains: Iterable[tuple[str, ...]]) -> tuple[str, ...]:
    def order(chain: tuple[str, ...]) -> tuple[int, tuple[str, ...]]:
        return -len(chain), chain

    return min(chains, key=order, default=())


def _blockers(view: View, rows: list[WorkItemRow]) -> list[dict[str, Any]]:
    found = []
    for row in rows:
        item = row.item
        since = row.state_since or item.created_at
        if item.state == "blocked":
            reason = row.block_reason or (
                f"child Mission {row.child_mission_id}" if row.child_mission_id is not None else "blocked"
            )
            found.append({"workItemId": item.work_item_id, "reason": reason, "since": since})
        elif not is_settled(view, row):
            for dependency_id in item.contract.dependency_work_item_ids:
                dependency = view.get(WORK_ITEMS, dependency_id)
                if dependency is not None and dependency.item.state in ("cancelled", "failed"):
                    if is_satisfied(view, dependency_id):
                        continue
                    found.append(
                        {
                            "workItemId": item.work_item_id,
                            "reason": f"dependency {dependency_id} is {dependency.item.state}",
                            "since": dependency.state_since or dependency.item.created_at,
                        }
                    )
    return found


def _deadlines(row: MissionRow, rows: list[WorkItemRow], view: View, now: Instant) -> list[dict[str, Any]]:
    stated = []
    if row.mission.state in MISSION_LIVE:
        stated.append((row.mission.mission_id, row.mission.deadline))
    stated += [(item.item.work_item_id, item.item.contract.deadline) for item in rows if not is_settled(view, item)]
    stated.sort(key=lambda entry: (parse(entry[1]), entry[0]))
    return [{"on": on, "at": at, "overdue": parse(at) <= now} for on, at in stated]


def awaits_approval(view: View, row: WorkItemRow, policy: Policy, now: Instant) -> bool:
    """Whether a queued WorkItem waits for a human's Execution Approval (reading 14)."""
    return (
        row.item.state == "queued"
        and needs_approval(policy, row.item.contract)
        and standing_approval(view, row, now) is None
    )


def _approvals(
    view: View, row: MissionRow, rows: list[WorkItemRow], policy: Policy, now: Instant
) -> list[dict[str, Any]]:
    found: list[dict[str, Any]] = []
    mission = row.mission
    if mission.state == "awaiting_approval":
        kind = "mission_final" if mission.parent is UNSET else "child_mission"
        since = row.state_since or mission.created_at
        found.append({"kind": kind, "missionId": mission.mission_id, "since": since})
    found += [
        {
            "kind": "work_execution",
            "workItemId": item.item.work_item_id,
            "since": item.state_since or item.item.created_at,
        }
        for item in rows
        if awaits_approval(view, item, policy, now)
    ]
    return found


def _evidence(view: View, rows: list[WorkItemRow]) -> dict[str, int]:
    required = passed = 0
    for row in rows:
        if row.item.state == "cancelled" or (row.item.state == "failed" and is_settled(view, row)):
            continue
        needed = {
            (criterion.criterion_id, kind)
            for criterion in row.item.contract.acceptance_criteria
            for kind in criterion.evidence_required
        }
        required += len(needed)
        if row.item.state == "verified":
            passed += len(needed) if _by_child(view, row) else len(needed & _accepted(view, row))
    return {"required": required, "passed": passed}


def _by_child(view: View, row: WorkItemRow) -> bool:
    """Whether a child's approved result is what verified the WorkItem; its own criteria were the child's to prove."""
    child = view.get(MISSIONS, row.child_mission_id) if row.child_mission_id is not None else None
    return child is not None and child.approval_id in row.evidence_ids


def _accepted(view: View, row: WorkItemRow) -> set[tuple[str, str]]:
    entries = (view.get(EVIDENCE, evidence_id) for evidence_id in row.evidence_ids)
    return {
        (criterion_id, entry.evidence.type)
        for entry in entries
        if entry is not None and entry.evidence.result == "passed"
        for criterion_id in entry.evidence.criterion_ids
    }


def _estimated_completion(rows: list[WorkItemRow]) -> str | None:
    estimates = [
        row.item.schedule_estimate.estimated_completion
        for row in rows
        if row.item.schedule_estimate is not UNSET and row.item.state not in (*SETTLED, "failed")
    ]
    return max(estimates, key=parse, default=None)
