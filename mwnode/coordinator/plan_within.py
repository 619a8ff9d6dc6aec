"""What a child's plan may not go beyond: budget and permissions of the work that it is for (section 14). Pure."""

from __future__ import annotations

from collections.abc import Iterator

from msgspec import UNSET, UnsetType

from mwnode.authority.permissions import first_excess
from mwnode.coordinator.plan_format import LIMITS, PlanBudget, PlanMission, PlanWork


def beyond(parent: PlanMission, work: PlanWork, child: PlanMission) -> Iterator[str]:
    """Each thing that the authority would refuse when the work becomes a Mission of its own (R-14-05, R-14-09)."""
    for limit in LIMITS:
        wanted = getattr(child.budget, limit)
        for whose, budget in (("the work", work.budget), ("the Mission", parent.budget)):
            ceiling = UNSET if budget is None else getattr(budget, limit)
            if wanted is not UNSET and ceiling is not UNSET and wanted > ceiling:
                name = _camel(limit)
                yield f"its Mission has {name} {wanted:g}, and {whose} only {ceiling:g}: what is promoted stays within"
                break
    ours, theirs = _currency(parent.budget), _currency(child.budget)
    if child.budget.financial_limit is not UNSET and UNSET not in (ours, theirs) and ours != theirs:
        yield f"its Mission counts money in {theirs}, and this one in {ours}"
    excess = first_excess(child.permissions, parent.permissions)
    if excess is not None:
        yield f"its Mission is permitted to {excess[1]} {excess[0]}, which this one is not"


def _currency(budget: PlanBudget) -> str | UnsetType:
    return budget.currency


def _camel(name: str) -> str:
    first, *others = name.split("_")
    return first + "".join(part.title() for part in others)
