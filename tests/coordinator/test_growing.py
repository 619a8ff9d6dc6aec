"""Proposed work: authorized where the plan's budget has room for it, put before the owner otherwise (R-10.4-01)."""

from __future__ import annotations

from typing import Any

import pytest

from mwnode.testing import Harness
from tests.coordinator.desk import PLAN, SINGLE, CoordinatorDesk, coordinate, make_plan
from tests.coordinator.test_engine import numbered, team, work_together
from tests.worker.desk import Run, desk


def propose(mwnode: Harness, coordinator: CoordinatorDesk, **contract: Any) -> dict[str, Any]:
    """A Worker that is a Member proposes work."""
    members = {
        "constraints": {"checks": {"green": "exit 0"}},
        "allowedResources": [],
        "goal": "found on the way",
        "deadline": coordinator.mission.row.mission.deadline,
    }
    whole = mwnode.contract(**{**members, **contract})
    mwnode.workers[0].send(
        "work.propose", {"proposalId": mwnode.new_id(), "contract": whole}, group_id=coordinator.mission.group_id
    )
    return whole


def grown(coordinator: CoordinatorDesk) -> list[Any]:
    return [view for view in coordinator.engine.board.views.values() if view.item.contract.goal == "found on the way"]


def told(coordinator: CoordinatorDesk) -> str:
    return " ".join(str(payload.content) for payload in coordinator.of_kind("message.post"))


@pytest.mark.req("R-10.4-01")
def test_what_a_worker_discovers_becomes_part_of_the_mission(mwnode: Harness) -> None:
    coordinator = coordinate(mwnode)
    workers = team(mwnode)
    work_together(coordinator, *workers, rounds=1)
    assert coordinator.state("ship") == "open", "the plan is still being carried out"
    for number in (1, 2):
        propose(mwnode, coordinator, businessImpact=f"discovery {number}", budget={"wallClockSecondsLimit": 60})
    work_together(coordinator, *workers)
    assert [view.state for view in grown(coordinator)] == ["verified", "verified"]
    assert coordinator.mission.state == "awaiting_approval"
    assert all(view.item.created_by == mwnode.workers[0].principal for view in grown(coordinator))
    # Its results are part of what the owner approves.
    results = {one for view in grown(coordinator) for one in view.item.submission.artifact_hashes}
    assert results <= set(coordinator.mission.row.submitted_artifacts)
    again = coordinate(mwnode, coordinator.mission, coordinator.engine.plan).step()
    assert again.kinds() == [], "a Coordinator that starts anew authorizes nothing twice"


@pytest.mark.req("R-10.4-01", "R-12-21")
@pytest.mark.parametrize(
    "contract, why",
    [
        ({"budget": {"wallClockSecondsLimit": 7201}}, "the plan leaves"),
        ({"sideEffectRisk": "external", "budget": {"wallClockSecondsLimit": 1}}, "its risk is external"),
    ],
)
def test_beyond_budget_or_risk_the_owner_is_told_and_nothing_is_authorized(
    mwnode: Harness, contract: dict[str, Any], why: str
) -> None:
    coordinator = coordinate(mwnode)
    mwnode_workers = team(mwnode)
    work_together(coordinator, *mwnode_workers, rounds=1)
    if contract["budget"]["wallClockSecondsLimit"] > 7200:
        error = mwnode.workers[0].refused(
            "work.propose",
            {
                "proposalId": mwnode.new_id(),
                "contract": mwnode.contract(
                    **contract, allowedResources=[], deadline=coordinator.mission.row.mission.deadline
                ),
            },
            group_id=coordinator.mission.group_id,
        )
        assert error.code.value == "BUDGET_EXCEEDED", "the authority does not even take it"
        return
    propose(mwnode, coordinator, **contract)
    work_together(coordinator, *mwnode_workers)
    assert grown(coordinator) == []
    assert why in told(coordinator)
    assert coordinator.mission.state == "awaiting_approval", "a proposal obliges nobody"


@pytest.mark.req("R-10.4-01")
def test_what_the_plan_needs_is_kept_for_it(mwnode: Harness) -> None:
    coordinator = coordinate(mwnode)
    workers = team(mwnode)
    workers[0].behave = lambda assignment: Run(status=None)
    work_together(coordinator, *workers, rounds=1)
    propose(mwnode, coordinator, budget={"wallClockSecondsLimit": 4000})
    coordinator.step()
    assert grown(coordinator) == []
    assert "asks for wall_clock_seconds_limit 4000, and the plan leaves 3600" in told(coordinator)
    workers[0].behave = numbered
    workers[0].end(workers[0].launched[0].run_id, 75)
    mwnode.advance(2)
    work_together(coordinator, *workers)
    assert [view.state for view in grown(coordinator)] == ["verified"], "what ended unused is free again"


@pytest.mark.req("R-10.4-01")
def test_a_raised_budget_makes_room(mwnode: Harness) -> None:
    coordinator = coordinate(mwnode, plan=make_plan(SINGLE))
    never = desk(mwnode, behave=lambda assignment: Run(status=None))
    work_together(coordinator, never)
    propose(mwnode, coordinator, budget={"wallClockSecondsLimit": 6000})
    coordinator.step()
    assert grown(coordinator) == []
    assert "the plan leaves" in told(coordinator)
    mwnode.owner.send(
        "ext.mwnode.core.budget_amend",
        {"budget": {"wallClockSecondsLimit": 14_400}, "reason": "worth it"},
        group_id=coordinator.mission.group_id,
    )
    coordinator.step()
    assert [view.state for view in grown(coordinator)] == ["offered"]


def test_plan_of_the_tests_leaves_half_of_its_budget() -> None:
    plan = make_plan(PLAN)
    shares = [plan.work_budget(work).wall_clock_seconds_limit for work in plan.work]
    assert shares == [900] * 4
