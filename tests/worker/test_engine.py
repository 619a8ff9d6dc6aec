"""The Worker's engine against a real node: offers, queue, leases, results."""

from __future__ import annotations

import re
from typing import Any

import msgspec
import pytest

from mwnode.authority.state import AGENTS
from mwnode.client.fold import WorkView
from mwnode.genesis import service_command
from mwnode.protocol.documents import AgentCard, CapabilityRef, Extension
from mwnode.protocol.instants import Instant, parse
from mwnode.testing import Harness, ManualClock
from mwnode.trust.keys import sign_mapping
from mwnode.worker import scheduler
from mwnode.worker.admission import Decline, consider
from mwnode.worker.effects import Assignment
from mwnode.worker.presence import presence
from tests.worker.desk import CHECKED, Desk, Run, desk

CITING = (
    "work.checkpoint",
    "work.block",
    "work.submit",
    "artifact.publish",
    "work.fail",
    "ext.missionweaveprotocol.core.work_execution_lease_renew",
)
"""The six kinds that cite the current Lease ID (R-11.3-08)."""


def never(assignment: Assignment) -> Run:
    return Run(status=None)


def test_an_offer_is_accepted_run_and_submitted(mwnode: Harness) -> None:
    mission = mwnode.mission()
    work = mission.authorize(**CHECKED)
    work.offer(mwnode.workers[0])
    worker = desk(mwnode).step()
    assert work.state == "submitted"
    assert worker.refused == []
    submission = work.row.item.submission
    assert len(submission.artifact_hashes) == 1
    work.review()
    assert worker.step().engine.jobs == {}


@pytest.mark.req("R-13.1-11", "R-13.1-19")
def test_what_comes_out_as_it_went_in_is_no_source_of_itself(mwnode: Harness) -> None:
    mission = mwnode.mission()
    same, other = mwnode.store_bytes(b"sorted already"), mwnode.store_bytes(b"a second input")
    work = mission.authorize(**CHECKED, inputArtifacts=[same, other])
    work.offer(mwnode.workers[0])
    worker = desk(mwnode, behave=lambda assignment: Run(files={"report": b"sorted already"})).step()
    assert worker.refused == []
    assert work.state == "submitted"
    (published,) = [event["payload"]["artifact"] for event in mission.events() if event["kind"] == "artifact.published"]
    assert published["contentHash"] == same
    assert published["sourceArtifactHashes"] == [other]


@pytest.mark.req("R-4-12")
def test_the_log_alone_tells_inputs_evidence_decisions_and_outcome(mwnode: Harness) -> None:
    mission = mwnode.mission()
    source = mwnode.store_bytes(b"source")
    work = mission.authorize(**CHECKED, inputArtifacts=[source])
    work.offer(mwnode.workers[0])
    blocked = Run(lines=({"blocked": {"reason": "no licence", "requiredResolution": "buy one"}},), status=None)
    runs = iter([blocked, Run()])
    worker = desk(mwnode, behave=lambda assignment: next(runs)).step()
    mwnode.coordinator.send(
        "work.unblock", {"workItemId": work.work_item_id, "resolution": "bought"}, group_id=mission.group_id
    )
    worker.step()
    work.review()
    log = {event["kind"]: event["payload"] for event in mission.events()}
    assert log["work.offer.accepted"]["owner"]["agentId"] == mwnode.workers[0].id
    assert log["artifact.published"]["artifact"]["sourceArtifactHashes"] == [source]
    assert log["work.blocked"]["reason"] == "no licence"
    assert log["work.unblocked"]["resolution"] == "bought"
    assert {one["type"] for one in log["work.submitted"]["evidence"]} == {"artifact_integrity", "deterministic_test"}
    assert log["work.result.accepted"]["state"] == "verified"


@pytest.mark.req("R-10.3-07")
def test_acceptance_queues_and_starts_nothing_by_itself(mwnode: Harness) -> None:
    mission = mwnode.mission()
    first, second = mission.authorize(**CHECKED), mission.authorize(**CHECKED)
    first.offer(mwnode.workers[0])
    worker = desk(mwnode, behave=never).step()
    second.offer(mwnode.workers[0])
    worker.step()
    assert (first.state, second.state) == ("active", "queued")
    # A Worker that starts anew finds its commitment in the log, and the slot still goes to one at a time.
    restarted = desk(mwnode, behave=never)
    restarted.agent.connect()
    restarted.step()
    assert sorted((first.state, second.state)) == ["active", "queued"]
    assert "work.accept_offer" not in restarted.kinds()


@pytest.mark.req("R-3-03", "R-11.1-01")
def test_one_agent_works_in_several_groups(mwnode: Harness) -> None:
    works = []
    for _ in range(2):
        work = mwnode.mission().authorize(**CHECKED)
        work.offer(mwnode.workers[0])
        works.append(work)
    worker = desk(mwnode, behave=never, scheduling=scheduler.Settings(slots=2)).step()
    assert [work.state for work in works] == ["active", "active"]
    groups = worker.engine.groups
    assert len(groups) == 2
    for work in works:
        assert list(groups[work.mission.group_id].views) == [work.work_item_id]


@pytest.mark.req("R-10.4-03")
def test_an_item_waits_until_its_dependencies_are_verified(mwnode: Harness) -> None:
    mission = mwnode.mission()
    first = mission.authorize(**CHECKED)
    second = mission.authorize(**CHECKED, dependencyWorkItemIds=[first.work_item_id])
    mission.add(mwnode.workers[0], visibilityStartSequence=1)
    second.offer(mwnode.workers[0])
    worker = desk(mwnode, scheduling=scheduler.Settings(slots=2)).step()
    assert second.state == "queued"
    assert "work.start" not in worker.kinds()
    first.run(mwnode.workers[1])
    worker.step()
    assert second.state == "submitted"


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


@pytest.mark.req("R-11.4-08", "R-11.4-10")
def test_retries_stay_within_attempts_and_delays_and_then_fail_with_evidence(mwnode: Harness) -> None:
    mission = mwnode.mission()
    retry = {"maxAttempts": 3, "backoff": "exponential", "maxDelay": "PT3S", "retryableFailures": []}
    work = mission.authorize(**CHECKED, retryPolicy=retry)
    work.offer(mwnode.workers[0])
    worker = desk(mwnode, behave=lambda assignment: Run(status=75)).step()
    assert len(worker.launched) == 1
    worker.pass_time(1)
    assert len(worker.launched) == 2
    worker.pass_time(1)
    assert len(worker.launched) == 2, "the second delay is two seconds"
    worker.pass_time(1)
    assert len(worker.launched) == 3
    worker.pass_time(10)
    assert len(worker.launched) == 3
    assert work.state == "failed"
    assert [launch.attempt for launch in worker.launched] == [1, 2, 3]
    assert len({launch.idempotency_key for launch in worker.launched}) == 1
    failed = mission.events()[-1]["payload"]
    assert failed["evidence"][0]["type"] == "failure_report"
    assert failed["evidence"][0]["details"]["failure"] == "RETRIES_EXHAUSTED"


@pytest.mark.req("R-11.4-10")
def test_a_permanent_failure_is_reported_with_evidence(mwnode: Harness) -> None:
    mission = mwnode.mission()
    work = mission.authorize(**CHECKED)
    work.offer(mwnode.workers[0])
    worker = desk(mwnode, behave=lambda assignment: Run(status=3)).step()
    assert (work.state, len(worker.launched)) == ("failed", 1)
    failed = mission.events()[-1]["payload"]
    assert failed["reason"] == "EXECUTOR_FAILED: the executor ended with exit status 3: the end"
    assert failed["evidence"][0]["details"]["standardError"] == "the end"


@pytest.mark.req("R-11.4-08")
def test_no_retry_beyond_the_deadline(mwnode: Harness) -> None:
    mission = mwnode.mission()
    retry = {"maxAttempts": 9, "backoff": "fixed", "maxDelay": "PT10M", "retryableFailures": []}
    work = mission.authorize(**CHECKED, retryPolicy=retry, deadline=mwnode.clock.now().plus(300).text())
    work.offer(mwnode.workers[0])
    worker = desk(mwnode, behave=lambda assignment: Run(status=75)).step()
    assert (work.state, len(worker.launched)) == ("failed", 1)
    assert mission.events()[-1]["payload"]["evidence"][0]["details"]["failure"] == "DEADLINE"


def test_a_missing_deliverable_fails_with_its_name(mwnode: Harness) -> None:
    mission = mwnode.mission()
    work = mission.authorize(**CHECKED)
    work.offer(mwnode.workers[0])
    desk(mwnode, behave=lambda assignment: Run(files={})).step()
    assert work.state == "failed"
    assert "outputs/report was not written" in mission.events()[-1]["payload"]["reason"]


def test_a_criterion_without_evidence_is_never_submitted(mwnode: Harness) -> None:
    mission = mwnode.mission()
    work = mission.authorize()  # no check: exit status 0 proves nothing
    work.offer(mwnode.workers[0])
    worker = desk(mwnode).step()
    assert work.state == "failed"
    assert "work.submit" not in worker.kinds()
    assert "green: deterministic_test not given" in mission.events()[-1]["payload"]["reason"]


def test_evidence_lines_of_the_executor_are_signed_and_count(mwnode: Harness) -> None:
    mission = mwnode.mission()
    work = mission.authorize()
    work.offer(mwnode.workers[0])
    line = {"evidence": {"criterionId": "green", "type": "deterministic_test", "result": "passed", "method": "pytest"}}
    desk(mwnode, behave=lambda assignment: Run(lines=(line,))).step()
    assert work.state == "submitted"
    methods = {one["method"] for one in mission.events()[-1]["payload"]["evidence"]}
    assert "pytest" in methods


def test_failed_evidence_is_not_covered_up_by_exit_0(mwnode: Harness) -> None:
    mission = mwnode.mission()
    work = mission.authorize(**CHECKED)
    work.offer(mwnode.workers[0])
    line = {"evidence": {"criterionId": "green", "type": "deterministic_test", "result": "failed", "method": "pytest"}}
    desk(mwnode, behave=lambda assignment: Run(lines=(line,))).step()
    assert work.state == "failed"


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


@pytest.mark.req("R-10.1-19", "R-10.1-20")
def test_an_ambiguous_contract_is_asked_about_instead_of_accepted(mwnode: Harness) -> None:
    mission = mwnode.mission()
    both = [
        {"deliverableId": name, "description": name, "mediaType": "text/plain", "schema": "urn:mwnode:schema:any"}
        for name in ("report", "notes")
    ]
    unclear = {"checks": {"green": "exit 0"}, "deliverables": {"report": {"path": "out"}, "notes": {"path": "out"}}}
    work = mission.authorize(requiredDeliverables=both, constraints=unclear)
    work.offer(mwnode.workers[0])
    worker = desk(mwnode).step()
    worker.pass_time(5)
    assert work.state == "offered"
    assert worker.kinds() == ["message.post"]
    assert worker.engine.scheduler.queued == 0
    posted = mission.events()[-1]
    assert posted["payload"]["message"]["conversationId"] == work.row.item.conversation_id
    assert posted["payload"]["message"]["content"][1]["data"]["resolved"] is False
    clear = {"checks": {"green": "exit 0"}, "deliverables": {"report": {"path": "report"}, "notes": {"path": "notes"}}}
    contract = mwnode.contract(contractVersion=2, requiredDeliverables=both, constraints=clear)
    work.offer(mwnode.workers[0], contract=contract)
    worker.behave = lambda assignment: Run(files={"report": b"1", "notes": b"2"})
    worker.step()
    assert work.state == "submitted"


def _answers(worker: Desk) -> list[str]:
    return [kind for kind in worker.kinds() if kind != "message.post"]


@pytest.mark.req("R-10.3-08", "R-10.3-09", "R-10.3-10")
@pytest.mark.parametrize(
    "contract, settings, reason",
    [
        ({}, {"capabilities": (CapabilityRef(id="acme.other", version="1.0.0"),)}, "capability"),
        ({}, {"capabilities": (CapabilityRef(id="mwnode.generic", version="0.9.0"),)}, "capability"),
        ({}, {"capabilities": (CapabilityRef(id="mwnode.generic", version="2.0.0"),)}, "capability"),
        ({}, {"risks": frozenset({"reversible"})}, "authorization"),
        ({}, {"denied_operations": ("read",)}, "authorization"),
        ({"budget": {"wallClockSecondsLimit": 0}}, {}, "budget"),
        ({"budget": {"toolCallLimit": 5}}, {"run_seconds": 1e6}, "deadline"),
    ],
)
def test_what_cannot_be_done_is_declined_with_its_reason(
    mwnode: Harness, contract: dict[str, Any], settings: dict[str, Any], reason: str
) -> None:
    mission = mwnode.mission()
    work = mission.authorize(**{**CHECKED, **contract})
    worker = desk(mwnode, **settings)
    work.offer(mwnode.workers[0])
    worker.step()
    offer = work.row.item.offers[-1]
    assert (offer.status, offer.decline_reason) == ("declined", reason)
    assert _answers(worker) == ["ext.mwnode.core.offer_decline"]


@pytest.mark.req("R-10.3-08", "R-10.3-10")
@pytest.mark.parametrize("queue_max", [0, 1])
def test_beyond_slots_and_queue_offers_are_declined(mwnode: Harness, queue_max: int) -> None:
    mission = mwnode.mission()
    works = [mission.authorize(**CHECKED, goal=f"{number}") for number in range(3)]
    worker = desk(mwnode, behave=never, queue_max=queue_max)
    for work in works:
        work.offer(mwnode.workers[0])
        worker.step()
    accepted = 1 + queue_max
    assert [work.state for work in works] == ["active", "queued", "offered"][:accepted] + ["offered"] * (3 - accepted)
    declined = [work.row.item.offers[-1] for work in works[accepted:]]
    assert {(offer.status, offer.decline_reason) for offer in declined} == {("declined", "capacity")}


@pytest.mark.req("R-10.3-08", "R-10.3-10")
def test_a_cancelled_dependency_is_declined(mwnode: Harness) -> None:
    mission = mwnode.mission()
    first = mission.authorize(**CHECKED)
    second = mission.authorize(**CHECKED, dependencyWorkItemIds=[first.work_item_id])
    mission.add(mwnode.workers[0], visibilityStartSequence=1)
    second.offer(mwnode.workers[0])
    mwnode.coordinator.send(
        "work.cancel", {"workItemId": first.work_item_id, "reason": "not wanted"}, group_id=mission.group_id
    )
    worker = desk(mwnode).step()
    offer = second.row.item.offers[-1]
    assert (offer.status, offer.decline_reason) == ("declined", "dependency")
    assert "work.accept_offer" not in worker.kinds()


def test_an_offer_that_ran_out_is_left_alone(mwnode: Harness) -> None:
    mission = mwnode.mission()
    work = mission.authorize(**CHECKED)
    work.offer(mwnode.workers[0], offerExpiresInSeconds=5)
    mwnode.advance(6)
    assert desk(mwnode).step().kinds() == []


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


@pytest.mark.req("R-11.2-01", "R-11.2-02")
def test_estimates_are_published_at_acceptance_and_when_they_become_wrong(mwnode: Harness) -> None:
    other = mwnode.mission()
    for number in range(3):
        work = other.authorize(**CHECKED, goal=f"somebody else's {number}")
        work.offer(mwnode.workers[0])
    worker = desk(mwnode, behave=never, run_seconds=400.0).step()
    mission = mwnode.mission()
    work = mission.authorize(**CHECKED)
    work.offer(mwnode.workers[0])
    worker.step()
    first = work.row.item.schedule_estimate
    assert first.capacity_status == "queued"
    while work.state != "active":
        worker.end(worker.launched[-1].run_id, 0)
        worker.step()
    worker.pass_time(3)
    assert work.state == "active"
    second = work.row.item.schedule_estimate
    assert second.last_calculated_at >= first.last_calculated_at
    assert second.estimated_completion < first.estimated_completion, "it comes up sooner than was told"
    published = [
        event["payload"]["scheduleEstimate"] for event in mission.events() if "scheduleEstimate" in event["payload"]
    ]
    assert len(published) == 2
    for estimate in published:
        assert set(estimate) == {
            "estimatedStart",
            "estimatedCompletion",
            "confidence",
            "capacityStatus",
            "lastCalculatedAt",
        }
    text = str(mission.events())
    assert other.group_id not in text
    assert other.mission_id not in text
    # Coarse steps: three items ahead and one ahead would be told the same way as two.
    start = parse(first.estimated_start).seconds - parse(first.last_calculated_at).seconds
    assert start % 300 == 0


@pytest.mark.req("R-11.1-13", "R-6.2-05")
def test_presence_tells_slots_and_nothing_of_any_group(mwnode: Harness) -> None:
    mission = mwnode.mission()
    works = [mission.authorize(**CHECKED, goal=f"{number}") for number in range(3)]
    worker = desk(mwnode, behave=never, scheduling=scheduler.Settings(slots=2)).step()
    assert presence(worker.engine, 1).status == "online"
    for work in works:
        work.offer(mwnode.workers[0])
    worker.step()
    full = presence(worker.engine, 1)
    assert (full.status, full.capacity.active_slots, full.capacity.available_slots) == ("busy", 2, 0)
    assert full.capacity.queued_items == 1
    text = msgspec.json.encode(full).decode()
    for secret in (mission.group_id, mission.mission_id, *(work.work_item_id for work in works)):
        assert secret not in text
    worker.end(worker.launched[0].run_id, 0)
    worker.engine.tick()
    worker.step()
    worker.end(worker.launched[1].run_id, 0)
    worker.step()
    assert presence(worker.engine, 1).capacity.active_slots == 1
    card = msgspec.to_builtins(_card(mwnode))
    del card["maxConcurrency"]
    with pytest.raises(msgspec.ValidationError, match="maxConcurrency"):
        msgspec.convert(card, AgentCard)


def _card(mwnode: Harness) -> AgentCard:
    with mwnode.node.read() as view:
        row = view.get(AGENTS, mwnode.workers[0].id)
    assert row is not None
    return row.card


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


@pytest.mark.req("R-16-63")
def test_an_event_that_is_delivered_twice_has_one_effect(mwnode: Harness) -> None:
    mission = mwnode.mission()
    work = mission.authorize(**CHECKED)
    work.offer(mwnode.workers[0])
    worker = desk(mwnode, behave=never).step()
    for _ in range(2):
        worker.at[mission.group_id] = 0
        worker.step()
    assert len(worker.launched) == 1
    assert worker.kinds().count("work.accept_offer") == 1
    assert worker.kinds().count("work.start") == 1


@pytest.mark.req("R-18-05")
@pytest.mark.parametrize("critical, accepted", [(True, False), (False, True)])
def test_work_under_an_unknown_critical_extension_is_declined(mwnode: Harness, critical: bool, accepted: bool) -> None:
    mission = mwnode.mission()
    work = mission.authorize(**CHECKED)
    worker = desk(mwnode)
    extensions = {"urn:example:unknown": Extension(version="1.0.0", critical=critical, data={})}
    contract = msgspec.structs.replace(work.row.item.contract, extensions=extensions)
    view = WorkView(item=msgspec.structs.replace(work.row.item, contract=contract))
    worker.engine.join(mission.group_id, mission.mission_id, ())
    verdict = consider(view, worker.engine.offers.situation(view))
    assert (verdict is None) is accepted
    if not accepted:
        assert verdict == Decline("other", "the critical extension urn:example:unknown is not known here")


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


# --- another Agent Card -----------------------------------------------------------------------------------------------


def register(mwnode: Harness, *versions: str) -> tuple[CapabilityRef, ...]:
    """The Organization registers a new Card of the first Worker with these versions of its capability."""
    card = _card(mwnode)
    capabilities = [
        {
            **msgspec.to_builtins(card.capabilities[0]),
            "id": f"mwnode.generic{index or ''}",
            "version": one,
        }
        for index, one in enumerate(versions)
    ]
    root, now = mwnode.organization.key, mwnode.clock.now().text()
    members = {name: value for name, value in msgspec.to_builtins(card).items() if name != "signature"}
    members |= {"cardVersion": card.card_version + 1, "capabilities": capabilities, "issuedAt": now}
    payload = {"card": sign_mapping(members, root, now)}
    kind = "ext.missionweaveprotocol.registry.agent_card_register"
    mwnode.send(service_command(root, kind, payload, mwnode.clock, mwnode.entropy))
    return tuple(CapabilityRef(id=one["id"], version=one["version"]) for one in capabilities)


@pytest.mark.req("R-6.1-08")
def test_after_an_incompatible_upgrade_work_runs_on_only_when_accepted_anew(mwnode: Harness) -> None:
    mission = mwnode.mission()
    running, waiting = mission.authorize(**CHECKED), mission.authorize(**CHECKED, businessImpact="second")
    for work in (running, waiting):
        work.offer(mwnode.workers[0])
    line = {"checkpoint": {"phase": "half", "completedMilestones": ["a"]}}
    worker = desk(mwnode, behave=lambda assignment: Run(status=None, lines=(line,))).step()
    assert (running.state, waiting.state) == ("active", "queued")
    worker.engine.upgraded(register(mwnode, "2.0.0"))
    worker.step()
    assert worker.asked == [worker.launched[0].run_id]
    assert running.state == "queued"
    checkpoint = running.row.checkpoints[-1]
    assert checkpoint.phase == "half"
    # Nothing runs on, neither what was stopped nor what still waited, and nothing is held on to.
    worker.pass_time(930, 30)
    assert len(worker.launched) == 1
    assert "work.start" not in worker.kinds()[worker.kinds().index("work.checkpoint") :]
    held = {"ownershipEpoch": running.row.ownership_epoch, "workItemId": running.work_item_id}
    assert mwnode.workers[0].refused("work.start", held, group_id=mission.group_id).code.value in (
        "AUTH_FORBIDDEN",
        "WORK_LEASE_EXPIRED",
    )
    # Offered under a contract that the new Card satisfies, it is accepted and goes on from the checkpoint.
    contract = mwnode.contract(
        **CHECKED, contractVersion=2, requiredCapabilities=[{"id": "mwnode.generic", "version": "2.0.0"}]
    )
    running.offer(mwnode.workers[0], contract=contract)
    worker.step()
    assert running.state == "active"
    assert running.row.ownership_epoch > 1
    assert worker.launched[1].checkpoint is not None
    assert worker.launched[1].checkpoint.phase == "half"


def test_the_last_lines_of_a_failed_executor_are_shown_and_its_directory_kept_if_wanted(mwnode: Harness) -> None:
    work = mwnode.mission().authorize(**CHECKED)
    work.offer(mwnode.workers[0])
    worker = desk(mwnode, behave=lambda assignment: Run(status=3), keep_failed=True).step()
    assert work.state == "failed"
    ended = next(one for one in worker.notes if one.event == "executor_ended")
    assert ended.details["lastLines"] == ["the end"]
    assert worker.kept == [worker.launched[0].run_id]


class Ahead:
    """A wall clock that is ahead until it is set right."""

    def __init__(self, clock: ManualClock, seconds: int) -> None:
        self.clock = clock
        self.seconds = seconds

    def now(self) -> Instant:
        return self.clock.now().plus(self.seconds)

    def monotonic(self) -> float:
        return self.clock.monotonic()


@pytest.mark.req("R-11.4-08", "R-13.2-01")
def test_evidence_of_a_clock_that_was_set_right_since_is_signed_anew(mwnode: Harness) -> None:
    work = mwnode.mission().authorize(**CHECKED)
    work.offer(mwnode.workers[0])
    worker = desk(mwnode, behave=never).step()
    worker.engine.papers.clock = worker.engine.clock = clock = Ahead(mwnode.clock, 600)
    worker.lose_link()
    worker.end(worker.launched[0].run_id, 0)
    worker.step()
    clock.seconds = 0
    worker.reconnect()
    worker.step()
    assert worker.refused == [("work.submit", "INVALID_COMMAND")]
    assert work.state == "submitted"


@pytest.mark.req("R-11.4-08", "R-12-13")
def test_a_failure_whose_report_may_not_pass_is_told_without_the_words_of_the_executor(mwnode: Harness) -> None:
    work = mwnode.mission().authorize(**CHECKED)
    work.offer(mwnode.workers[0])
    worker = desk(mwnode, behave=never).step()
    token = mwnode.node.tokens.issue({"kind": "capability"})
    worker.end(worker.launched[0].run_id, 3, tail=f"I was given {token}")
    worker.step()
    assert worker.refused == [("work.fail", "INVALID_COMMAND")]
    assert work.state == "failed"
    (failed,) = [event for event in work.mission.events() if event["kind"] == "work.failed"]
    assert token not in str(failed)
    assert "its report was refused" in failed["payload"]["reason"]


@pytest.mark.req("R-6.1-07")
def test_after_a_compatible_upgrade_work_goes_on_in_place(mwnode: Harness) -> None:
    work = mwnode.mission().authorize(**CHECKED)
    work.offer(mwnode.workers[0])
    worker = desk(mwnode, behave=never).step()
    worker.engine.upgraded(register(mwnode, "1.4.0", "3.0.0"))
    worker.pass_time(10)
    assert worker.asked == []
    worker.end(worker.launched[0].run_id, 0)
    worker.step()
    assert work.state == "submitted"
