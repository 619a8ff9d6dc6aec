"""What a run costs and how far it is: recorded while it runs, stopped at a limit."""

from __future__ import annotations

import re
from typing import Any

import pytest

from mwnode.testing import Harness
from mwnode.worker import scheduler
from tests.worker.desk import CHECKED, Run, desk, never


def test_usage_is_recorded_while_running_and_at_the_end(mwnode: Harness) -> None:
    mission = mwnode.mission()
    work = mission.authorize(**CHECKED)
    work.offer(mwnode.workers[0])
    line = {"usage": {"toolCalls": 3, "modelTokens": 100}}
    run = Run(status=None, lines=(line,), wall_seconds=64.5, compute_seconds=2.5)
    worker = desk(mwnode, behave=lambda assignment: run).step()
    worker.pass_time(60)
    kind = "ext.missionweaveprotocol.core.resource_usage_recorded"
    deltas = [event["payload"]["usageDelta"] for event in mission.events() if event["kind"] == kind]
    assert deltas, "recorded while it runs"
    worker.end(worker.launched[0].run_id, 0)
    worker.step()
    deltas = [event["payload"]["usageDelta"] for event in mission.events() if event["kind"] == kind]
    totals = {name: sum(delta[name] for delta in deltas) for name in deltas[0]}
    assert totals == {
        "financialMicrounits": 0,
        "modelTokens": 100,
        "toolCalls": 3,
        "computeSeconds": 3,
        "wallClockSeconds": 65,
        "externalActions": 0,
    }


@pytest.mark.req("R-12-24")
@pytest.mark.parametrize(
    "budget, line",
    [
        ({"toolCallLimit": 5}, {"usage": {"toolCalls": 6}}),
        ({"modelTokenLimit": 5}, {"usage": {"modelTokens": 6}}),
        ({"externalSideEffectLimit": 0}, {"usage": {"externalActions": 1}}),
    ],
)
def test_a_worker_that_reaches_a_limit_stops_and_asks(mwnode: Harness, budget: dict[str, int], line: Any) -> None:
    mission = mwnode.mission()
    work = mission.authorize(**CHECKED, budget=budget)
    work.offer(mwnode.workers[0])
    worker = desk(mwnode, behave=lambda assignment: Run(status=None, lines=(line,))).step()
    assert work.state == "blocked"
    assert worker.asked == [worker.launched[0].run_id]
    fact = mission.events()[-1]["payload"]
    limit = re.sub("([A-Z])", lambda match: f"_{match[1].lower()}", next(iter(budget)))
    assert limit in fact["requiredResolution"]
    assert "budget is used up" in fact["reason"]


def test_the_wall_clock_limit_ends_a_hung_executor(mwnode: Harness) -> None:
    mission = mwnode.mission()
    work = mission.authorize(**CHECKED, budget={"wallClockSecondsLimit": 20})
    work.offer(mwnode.workers[0])
    worker = desk(mwnode, behave=never).step()
    worker.pass_time(25)
    assert work.state == "blocked"
    assert worker.asked == [worker.launched[0].run_id]


@pytest.mark.req("R-11.4-01", "R-11.4-02")
def test_progress_lines_become_progress_reports(mwnode: Harness) -> None:
    mission = mwnode.mission()
    work = mission.authorize(**CHECKED)
    work.offer(mwnode.workers[0])
    line = {"progress": {"currentPhase": "linking", "completedMilestones": ["compiled"], "percent": 90}}
    worker = desk(mwnode, behave=lambda assignment: Run(status=None, lines=(line,))).step()
    worker.pass_time(3)
    progress = work.row.item.progress
    assert progress.current_phase == "linking"
    assert progress.completed_milestones == ("compiled",)
    events = [event["payload"] for event in mission.events() if event["kind"] == "work.progressed"]
    assert "percent" not in events[-1]["progress"]


@pytest.mark.req("R-11.1-17")
def test_one_slots_budget_is_not_anothers(mwnode: Harness) -> None:
    mission = mwnode.mission()
    works = [mission.authorize(**CHECKED, goal=f"{number}", budget={"toolCallLimit": 5}) for number in range(2)]
    for work in works:
        work.offer(mwnode.workers[0])
    worker = desk(mwnode, behave=never, scheduling=scheduler.Settings(slots=2)).step()
    worker.engine.runs.reported(worker.launched[0].run_id, {"usage": {"toolCalls": 6}})
    worker.engine.runs.reported(worker.launched[1].run_id, {"usage": {"toolCalls": 5}})
    worker.step()
    assert sorted(work.state for work in works) == ["active", "blocked"]
    assert len({launch.idempotency_key for launch in worker.launched}) == 2
