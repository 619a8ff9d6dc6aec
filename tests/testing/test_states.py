"""A Mission and a WorkItem in any state, in one line: every state of both lifecycles, held against their tables."""

from __future__ import annotations

import pytest

from mwnode.authority.table import MISSION, MISSION_STATES, WORK_ITEM, WORK_ITEM_STATES
from mwnode.testing import Harness
from mwnode.testing.states import MISSION_STEPS, WORK_STEPS, Step, way


@pytest.mark.parametrize("state", MISSION_STATES)
def test_a_mission_in_any_state(mwnode: Harness, state: str) -> None:
    assert mwnode.mission(state).state == state


@pytest.mark.parametrize("state", WORK_ITEM_STATES)
def test_a_work_item_in_any_state(mwnode: Harness, state: str) -> None:
    assert mwnode.work(state).state == state


@pytest.mark.parametrize("step", WORK_STEPS, ids=lambda step: f"{step.state} by {step.method} to {step.next}")
def test_every_step_of_a_work_item_leads_where_its_row_says(mwnode: Harness, step: Step) -> None:
    work = mwnode.work(step.state)
    getattr(work, step.method)()
    assert work.state == step.next


@pytest.mark.parametrize("step", MISSION_STEPS, ids=lambda step: f"{step.state} by {step.method} to {step.next}")
def test_every_step_of_a_mission_leads_where_its_row_says(mwnode: Harness, step: Step) -> None:
    mission = mwnode.mission(step.state)
    getattr(mission, step.method)()
    assert mission.state == step.next


def test_the_steps_are_transitions_of_the_lifecycles() -> None:
    assert {(step.state, step.next) for step in WORK_STEPS} <= {(row.state, row.next) for row in WORK_ITEM}
    assert {(step.state, step.next) for step in MISSION_STEPS} <= {(row.state, row.next) for row in MISSION}


def test_several_in_one_mission_and_on_from_there(mwnode: Harness) -> None:
    mission = mwnode.mission()
    done, going = mission.work("verified"), mission.work("active")
    assert (done.state, going.to("verified").state) == ("verified", "verified")
    assert mission.to("approved").state == "approved"


def test_a_state_that_cannot_be_reached_is_told_with_those_that_can(mwnode: Harness) -> None:
    with pytest.raises(ValueError, match=r"no state 'done'; from open one gets to: active, .*verified"):
        mwnode.work("done")
    work = mwnode.work("verified")
    with pytest.raises(ValueError, match="no way leads there from verified; from verified one gets to: nowhere"):
        work.to("open")
    assert way("open", "open", WORK_STEPS) == []


def test_a_work_item_becomes_a_child_mission_that_its_coordinator_owns(mwnode: Harness) -> None:
    work = mwnode.work()
    lead = mwnode.agent("lead")
    child = work.promote(lead)
    assert (work.state, child.state) == ("blocked", "active")
    child.to("approved")
    assert work.state == "verified"
    assert work.mission.to("approved").state == "approved"


def test_what_happens_on_the_way_is_one_line_too(mwnode: Harness) -> None:
    work = mwnode.work("active")
    mwnode.advance(60)
    work.renew()
    mwnode.advance(60)
    assert work.report("half-way")["payload"]["progress"]["currentPhase"] == "half-way"
    assert work.use(toolCalls=3)["payload"]["cumulativeUsage"]["toolCalls"] == 3
    risky = work.mission.work("queued", executionApproval="human_required", sideEffectRisk="high_risk")
    risky.approve_execution()
    assert risky.to("active").state == "active"
