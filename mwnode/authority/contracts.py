"""Work Contracts: what a proposal, an authorization or a revision may ask for inside its Mission (section 10.1).

Codes (decisions D4, D20, F30): what a contract may not contain is INVALID_COMMAND, a capability beyond the Mission's
AUTH_FORBIDDEN, money and counts BUDGET_EXCEEDED.
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import NoReturn

import msgspec
from msgspec import UNSET

from mwnode.authority import budget
from mwnode.authority.case import Case, refuse
from mwnode.authority.permissions import first_excess
from mwnode.authority.state import CONTENTS, WORK_ITEMS, MissionRow, WorkItemRow
from mwnode.authority.view import View
from mwnode.protocol.capabilities import covers
from mwnode.protocol.documents import WorkContract
from mwnode.protocol.errors import ErrorCode
from mwnode.protocol.instants import parse
from mwnode.protocol.plain_words import plain

_RISKY = ("high_risk", "destructive")


def check_contract(
    case: Case,
    contract: WorkContract,
    mission_row: MissionRow,
    *,
    work_item_id: str | None,
    known_dependencies: Iterable[str] = (),
    path: str = "contract",
) -> None:
    """Everything but the budget. ``work_item_id`` is the item whose contract it becomes, if it has an ID already;
    ``known_dependencies`` are those that the item has."""
    mission = mission_row.mission
    if parse(contract.deadline) > parse(mission.deadline):
        _misfit(
            f"the contract's deadline lies after the Mission's, {mission.deadline}", f"{path}/deadline", "R-10.1-11"
        )
    if contract.side_effect_risk in _RISKY and contract.execution_approval != "human_required":
        _misfit(
            f"sideEffectRisk {contract.side_effect_risk} needs executionApproval human_required",
            f"{path}/executionApproval",
            "R-10.1-18",
        )
    uncovered = first_excess(contract.allowed_resources, mission_row.permissions)
    if uncovered is not None:
        resource, operation = uncovered
        _misfit(
            f"the Mission's permissions do not cover {operation} on {resource}", f"{path}/allowedResources", "R-14-09"
        )
    for content_hash in contract.input_artifacts:
        if case.view.get(CONTENTS, content_hash) is None and case.view.has_content(content_hash) is None:
            _misfit(f"no Artifact has the hash {content_hash}; upload it first", f"{path}/inputArtifacts", "R-10.1-06")
    check_dependencies(
        case,
        contract.dependency_work_item_ids,
        work_item_id,
        f"{path}/dependencyWorkItemIds",
        known=known_dependencies,
    )
    _check_child_capabilities(case, contract, mission_row)
    _check_cleanup(case, contract, mission_row, path)


def check_dependencies(
    case: Case, dependency_ids: Iterable[str], work_item_id: str | None, path: str, *, known: Iterable[str] = ()
) -> None:
    """Dependencies are WorkItems of this Group, not cancelled, and close no cycle (R-10.4-04, decision D63).

    ``known`` are dependencies that the item has already: a later cancellation of one is no fault of a revision.
    """
    kept = set(known)
    for dependency_id in dependency_ids:
        row = case.view.get(WORK_ITEMS, dependency_id)
        if dependency_id == work_item_id:
            _misfit("a WorkItem cannot depend on itself", path, "R-10.4-04")
        if row is None or row.item.group_id != case.group_id:
            _misfit(f"WorkItem {dependency_id} is not known in this Group", path, "R-10.1-07")
        if row.item.state == "cancelled" and dependency_id not in kept:
            _misfit(f"WorkItem {dependency_id} is cancelled; nothing can wait for it", path, "R-10.1-07")
        if work_item_id is not None and depends_on(case.view, row, work_item_id):
            _misfit(f"{dependency_id} depends on this WorkItem: that would close a cycle", path, "R-10.4-04")


def depends_on(view: View, row: WorkItemRow, work_item_id: str) -> bool:
    """Whether an item waits for another one, directly or through others."""
    seen: set[str] = set()
    waiting = list(row.item.contract.dependency_work_item_ids)
    while waiting:
        following = waiting.pop()
        if following == work_item_id:
            return True
        if following in seen:
            continue
        seen.add(following)
        other = view.get(WORK_ITEMS, following)
        if other is not None:
            waiting.extend(other.item.contract.dependency_work_item_ids)
    return False


def _check_child_capabilities(case: Case, contract: WorkContract, mission_row: MissionRow) -> None:
    """Inside a child Mission only what the parent WorkItem's contract requires may be required (R-14-07, A41)."""
    parent = mission_row.mission.parent
    if parent is UNSET:
        return
    row = case.view.get(WORK_ITEMS, parent.work_item_id)
    if row is None:
        return
    held = row.item.contract.required_capabilities
    for required in contract.required_capabilities:
        if not covers(held, (required,)):
            refuse(
                ErrorCode.AUTH_FORBIDDEN,
                f"the parent WorkItem does not cover capability {required.id} {required.version}",
                "R-14-07",
                details={"capability": required.id},
            )


def cleanup_contract(contract: WorkContract) -> WorkContract | None:
    """The Work Contract under ``constraints.cleanup`` (decision F18). Raises msgspec.ValidationError when malformed."""
    if contract.constraints is UNSET or contract.constraints.get("cleanup") is None:
        return None
    return msgspec.convert(contract.constraints["cleanup"], WorkContract)


def _check_cleanup(case: Case, contract: WorkContract, mission_row: MissionRow, path: str) -> None:
    try:
        cleanup = cleanup_contract(contract)
    except msgspec.ValidationError as fault:
        refuse(
            ErrorCode.WORK_CONTRACT_INCOMPLETE,
            f"constraints.cleanup is not a whole Work Contract: {plain(str(fault))}",
            "R-12-33",
            details={"path": f"/payload/{path}/constraints/cleanup"},
        )
    if cleanup is not None:
        inner = f"{path}/constraints/cleanup"
        check_contract(case, cleanup, mission_row, work_item_id=None, path=inner)
        budget.check_amounts(case, cleanup.budget, mission_row.mission.mission_id)


def _misfit(message: str, path: str, rule: str) -> NoReturn:
    refuse(ErrorCode.INVALID_COMMAND, message, rule, details={"path": f"/payload/{path}"})
