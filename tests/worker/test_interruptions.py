"""What comes between: a link that is lost, a cancellation, a block, the end of the Worker itself."""

from __future__ import annotations

import pytest

from mwnode.testing import Harness
from tests.worker.desk import CHECKED, Run, desk, never


@pytest.mark.req("R-11.5-06")
def test_offline_nothing_new_is_started(mwnode: Harness) -> None:
    mission = mwnode.mission()
    first, second = mission.authorize(**CHECKED), mission.authorize(**CHECKED)
    for work in (first, second):
        work.offer(mwnode.workers[0])
    worker = desk(mwnode, behave=never).step()
    worker.lose_link()
    worker.end(worker.launched[0].run_id, 0)
    for _ in range(20):
        mwnode.clock.advance(1)
        worker.step()
    assert len(worker.launched) == 1
    worker.reconnect()
    worker.step()
    assert first.state == "submitted"
    assert second.state == "active"


@pytest.mark.req("R-11.5-05")
@pytest.mark.parametrize("risk, survives", [("none", True), ("reversible", True), ("external", False)])
def test_offline_only_reversible_work_goes_on_and_only_within_grace(mwnode: Harness, risk: str, survives: bool) -> None:
    mission = mwnode.mission()
    work = mission.authorize(**{**CHECKED, "sideEffectRisk": risk})
    work.offer(mwnode.workers[0])
    worker = desk(mwnode, behave=never, execution_lease_seconds=60, offline_grace_seconds=100.0).step()
    worker.lose_link()
    for _ in range(90):
        mwnode.clock.advance(1)
        worker.step()
    assert (worker.killed == []) is survives
    for _ in range(20):
        mwnode.clock.advance(1)
        worker.step()
    assert worker.killed == [worker.launched[0].run_id], "the grace is over"


def test_cancelling_stops_the_executor(mwnode: Harness) -> None:
    mission = mwnode.mission()
    work = mission.authorize(**CHECKED)
    work.offer(mwnode.workers[0])
    worker = desk(mwnode, behave=never).step()
    mwnode.coordinator.send(
        "work.cancel",
        {"workItemId": work.work_item_id, "reason": "not wanted"},
        group_id=mission.group_id,
    )
    worker.step()
    assert worker.killed == [worker.launched[0].run_id]
    assert worker.engine.jobs == {}
    assert worker.engine.scheduler.running == 0


@pytest.mark.req("R-11.4-03", "R-11.4-04", "R-11.4-07")
def test_a_blocked_item_frees_its_slot_and_comes_back_to_its_queue(mwnode: Harness) -> None:
    mission = mwnode.mission()
    first, second = mission.authorize(**CHECKED), mission.authorize(**CHECKED)
    for work in (first, second):
        work.offer(mwnode.workers[0])
    line = {"blocked": {"reason": "no licence", "requiredResolution": "buy one"}}
    blocked = {first.work_item_id: Run(status=None, lines=(line,))}
    worker = desk(mwnode, behave=lambda one: blocked.pop(one.work_item_id, Run(status=None))).step()
    assert (first.state, second.state) == ("blocked", "active")
    fact = next(event for event in mission.events() if event["kind"] == "work.blocked")["payload"]
    assert fact["requiredResolution"] == "buy one"
    assert fact["checkpoint"]["checkpointId"]
    mwnode.coordinator.send("work.unblock", {"workItemId": first.work_item_id}, group_id=mission.group_id)
    worker.step()
    assert worker.engine.scheduler.queue(mission.group_id) == [first.work_item_id]
    worker.end(worker.launched[-1].run_id, 0)
    worker.step()
    assert (first.state, second.state) == ("active", "submitted")


def test_shutting_down_brings_work_to_a_checkpoint(mwnode: Harness) -> None:
    mission = mwnode.mission()
    work = mission.authorize(**CHECKED)
    work.offer(mwnode.workers[0])
    line = {"checkpoint": {"phase": "half", "completedMilestones": ["one"], "nextStep": "two", "state": "state.bin"}}
    worker = desk(mwnode, behave=lambda assignment: Run(status=None, lines=(line,))).step()
    worker.engine.shut_down()
    worker.step()
    assert (work.state, worker.engine.idle) == ("queued", True)
    checkpoint = work.row.checkpoint
    assert (checkpoint.phase, checkpoint.completed_milestones, checkpoint.next_step) == ("half", ("one",), "two")
    resumed = desk(mwnode, behave=never)
    resumed.agent.connect()
    resumed.step()
    assert work.state == "active"
    assert resumed.launched[0].checkpoint == checkpoint


def test_shutting_down_takes_nothing_more(mwnode: Harness) -> None:
    mission = mwnode.mission()
    worker = desk(mwnode).step()
    worker.engine.shut_down()
    work = mission.authorize(**CHECKED)
    work.offer(mwnode.workers[0])
    worker.step()
    assert work.row.item.offers[-1].status == "declined"
    assert work.row.item.offers[-1].decline_reason == "capacity"
