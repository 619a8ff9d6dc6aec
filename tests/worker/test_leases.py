"""The Execution Lease: cited by every Command, renewed in time, lost for good."""

from __future__ import annotations

from typing import Any

import pytest

from mwnode.testing import Harness
from tests.worker.desk import CHECKED, Run, desk, never

CITING = (
    "work.checkpoint",
    "work.block",
    "work.submit",
    "artifact.publish",
    "work.fail",
    "ext.missionweaveprotocol.core.work_execution_lease_renew",
)
"""The six kinds that cite the current Lease ID (R-11.3-08)."""


@pytest.mark.req("R-11.3-08")
def test_six_kinds_always_cite_the_current_lease(mwnode: Harness) -> None:
    mission = mwnode.mission()
    ends = {
        "submit": Run(),
        "fail": Run(status=3),
        "block": Run(status=None, lines=({"blocked": {"reason": "r", "requiredResolution": "q"}},)),
        "checkpoint": Run(status=None),
    }
    seen: dict[str, set[str]] = {}
    for name, run in ends.items():
        work = mission.authorize(**CHECKED, goal=name)
        work.offer(mwnode.workers[0])
        worker = desk(mwnode, behave=lambda assignment, run=run: run, execution_lease_seconds=60).step()
        if name == "checkpoint":
            worker.pass_time(25)
            worker.engine.shut_down()
            worker.step()
        lease = next(event for event in reversed(mission.events()) if event["kind"] == "work.started")["payload"]
        for effect in worker.sent:
            if effect.kind in CITING:
                cited = effect.payload.execution_lease_id  # type: ignore[attr-defined]
                assert cited == lease["executionLease"]["leaseId"], effect.kind
                seen.setdefault(effect.kind, set()).add(cited)
    assert set(seen) == set(CITING)


@pytest.mark.req("R-11.3-08")
def test_a_foreign_or_missing_lease_is_refused(mwnode: Harness) -> None:
    mission = mwnode.mission()
    work = mission.authorize(**CHECKED)
    work.offer(mwnode.workers[0])
    desk(mwnode, behave=never).step()
    held = {**work.held, "executionLeaseId": mwnode.new_id()}
    checkpoint = {
        "checkpointId": mwnode.new_id(),
        "phase": "p",
        "completedMilestones": [],
        "createdAt": mwnode.clock.now().text(),
    }
    who = mwnode.workers[0]
    evidence = [work.evidence(who, "failure_report", "failed")]
    bodies: dict[str, dict[str, Any]] = {
        "work.checkpoint": {"checkpoint": checkpoint},
        "work.block": {"checkpoint": checkpoint, "reason": "r", "requiredResolution": "q"},
        "work.fail": {"reason": "r", "evidence": evidence},
        "ext.missionweaveprotocol.core.work_execution_lease_renew": {},
    }
    for kind, body in bodies.items():
        error = who.refused(kind, {**held, **body}, group_id=mission.group_id)
        assert error.code.value == "WORK_LEASE_EXPIRED", kind
    without = {name: value for name, value in held.items() if name != "executionLeaseId"}
    for kind, body in bodies.items():
        assert who.refused(kind, {**without, **body}, group_id=mission.group_id).code.value == "INVALID_COMMAND"


def test_the_lease_is_renewed_at_a_third_while_the_executor_works(mwnode: Harness) -> None:
    mission = mwnode.mission()
    work = mission.authorize(**CHECKED)
    work.offer(mwnode.workers[0])
    worker = desk(mwnode, behave=never, execution_lease_seconds=60).step()
    worker.pass_time(200)
    lease = work.row.execution_lease
    assert (work.state, lease.state) == ("active", "active")
    assert 8 <= lease.renewal_count <= 11
    assert worker.refused == []


def test_a_worker_that_cannot_renew_stops_before_the_authority_would_fence_it(mwnode: Harness) -> None:
    mission = mwnode.mission()
    work = mission.authorize(**{**CHECKED, "sideEffectRisk": "external"}, executionApproval="not_required")
    work.offer(mwnode.workers[0])
    worker = desk(mwnode, behave=never, execution_lease_seconds=60).step()
    worker.lose_link()
    seconds = 0
    while not worker.killed and seconds < 70:
        mwnode.clock.advance(1)
        worker.step()
        seconds += 1
    assert seconds == 58, "two seconds before its end, by its own clock"


def test_a_restart_of_the_node_does_not_kill_the_executor(mwnode: Harness) -> None:
    mission = mwnode.mission()
    work = mission.authorize(**CHECKED)
    work.offer(mwnode.workers[0])
    worker = desk(mwnode, behave=never).step()
    old = work.held["executionLeaseId"]
    worker.lose_link()
    mwnode.restart()
    mwnode.clock.advance(5)
    worker.step()
    worker.reconnect()
    worker.step()
    assert work.state == "active"
    assert work.held["executionLeaseId"] != old
    assert (len(worker.launched), worker.killed) == (1, [])
    worker.end(worker.launched[0].run_id, 0)
    worker.step()
    assert work.state == "submitted"
    assert len({launch.idempotency_key for launch in worker.launched}) == 1


@pytest.mark.req("R-11.3-22", "R-11.5-08")
def test_a_lease_of_the_new_session_outlives_the_news_of_that_session(mwnode: Harness) -> None:
    """A start that the client sent again after a reconnect is answered before the engine is told of the session."""
    mission = mwnode.mission()
    work = mission.authorize(**CHECKED)
    work.offer(mwnode.workers[0])
    work.accept(mwnode.workers[0])
    worker = desk(mwnode, behave=never)
    worker.deliver()
    worker.linked = False
    worker.step()
    start = worker.sent[-1]
    assert (start.kind, work.state) == ("work.start", "queued")
    session_epoch = worker.agent.connect()
    worker.linked = True
    worker.carry_out(start)
    worker.engine.connected(session_epoch)
    worker.step()
    assert work.state == "active"
    worker.end(worker.launched[0].run_id, 0)
    worker.step()
    assert work.state == "submitted"


@pytest.mark.req("R-11.5-08")
def test_after_a_reconnect_nothing_is_sent_under_the_old_lease(mwnode: Harness) -> None:
    mission = mwnode.mission()
    work = mission.authorize(**CHECKED)
    work.offer(mwnode.workers[0])
    worker = desk(mwnode, behave=never).step()
    worker.lose_link()
    worker.end(worker.launched[0].run_id, 0)
    worker.step()
    before = len(worker.sent)
    worker.reconnect()
    worker.step()
    after = worker.kinds()[before:]
    assert after[0] == "work.start", "reconciled first, then published and submitted"
    assert after[-1] == "work.submit"
    assert worker.refused == []
    assert work.state == "submitted"


def test_a_result_for_a_reassigned_item_is_kept_aside_and_changes_nothing(mwnode: Harness) -> None:
    mission = mwnode.mission()
    work = mission.authorize(**CHECKED)
    work.offer(mwnode.workers[0])
    loser = desk(mwnode, behave=never, execution_lease_seconds=60).step()
    loser.lose_link()
    mwnode.advance(61)
    work.offer(mwnode.workers[1])
    winner = desk(mwnode, mwnode.workers[1], behave=never).step()
    assert work.state == "active"
    loser.end(loser.launched[0].run_id, 0)
    loser.step()
    loser.reconnect()
    loser.step()
    assert loser.kept == [loser.launched[0].run_id]
    assert loser.kinds()[-1] not in ("work.submit", "artifact.publish")
    winner.end(winner.launched[0].run_id, 0)
    winner.step()
    assert work.row.item.owner.agent_id == mwnode.workers[1].id
    assert work.state == "submitted"


def test_a_long_queue_keeps_its_ownership(mwnode: Harness) -> None:
    mission = mwnode.mission()
    first, second = mission.authorize(**CHECKED), mission.authorize(**CHECKED)
    for work in (first, second):
        work.offer(mwnode.workers[0])
    worker = desk(mwnode, behave=never, ownership_lease_seconds=60).step()
    worker.pass_time(150, step=5)
    assert (first.state, second.state) == ("active", "queued")
    assert second.row.ownership_lease.renewal_count >= 3
    worker.end(worker.launched[0].run_id, 0)
    worker.step()
    assert second.state == "active"


@pytest.mark.req("R-15.1-11")
def test_commands_on_a_work_item_state_its_revision(mwnode: Harness) -> None:
    mission = mwnode.mission()
    line = {"blocked": {"reason": "r", "requiredResolution": "q"}}
    runs = iter([Run(), Run(status=3), Run(status=None, lines=(line,)), Run(status=None)])
    worker = desk(mwnode, behave=lambda assignment: next(runs))
    for number in range(4):
        work = mission.authorize(**CHECKED, goal=f"{number}")
        work.offer(mwnode.workers[0])
        worker.step()
    worker.engine.shut_down()
    worker.step()
    stated = {effect.kind: effect.expected_revision for effect in worker.sent if effect.kind.startswith("work.")}
    assert set(stated) == {
        "work.accept_offer",
        "work.start",
        "work.submit",
        "work.fail",
        "work.block",
        "work.checkpoint",
    }
    assert None not in stated.values()
