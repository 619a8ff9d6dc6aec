"""How a run ends: with Evidence for every criterion, or with a report of its failure."""

from __future__ import annotations

import pytest

from mwnode.protocol.instants import Instant
from mwnode.testing import Harness, ManualClock
from tests.worker.desk import CHECKED, Run, desk, never


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


def test_the_last_lines_of_a_failed_executor_are_shown_and_its_directory_kept_if_wanted(mwnode: Harness) -> None:
    work = mwnode.mission().authorize(**CHECKED)
    work.offer(mwnode.workers[0])
    worker = desk(mwnode, behave=lambda assignment: Run(status=3), keep_failed=True).step()
    assert work.state == "failed"
    ended = next(one for one in worker.notes if one.event == "executor_ended")
    assert ended.details["lastLines"] == ["the end"]
    assert worker.kept == [worker.launched[0].run_id]


class Wrong:
    """A wall clock that is ahead, or behind, until it is set right."""

    def __init__(self, clock: ManualClock, seconds: int) -> None:
        self.clock = clock
        self.seconds = seconds

    def now(self) -> Instant:
        return self.clock.now().plus(self.seconds)

    def monotonic(self) -> float:
        return self.clock.monotonic()


@pytest.mark.req("R-11.4-08", "R-13.2-01")
@pytest.mark.parametrize(
    "seconds, status, state, refused",
    [
        (600, 0, "submitted", [("work.submit", "INVALID_COMMAND")]),
        (-36_000_000, 0, "submitted", [("work.submit", "AUTH_INVALID_SIGNATURE")]),
        (-36_000_000, 3, "failed", []),
    ],
)
def test_evidence_of_a_clock_that_was_set_right_since_is_signed_anew(
    mwnode: Harness, seconds: int, status: int, state: str, refused: list[tuple[str, str]]
) -> None:
    """It was in the future, or before the key was valid; a failure is reported when it can be."""
    work = mwnode.mission().authorize(**CHECKED)
    work.offer(mwnode.workers[0])
    worker = desk(mwnode, behave=never).step()
    worker.engine.papers.clock = worker.engine.clock = clock = Wrong(mwnode.clock, seconds)
    worker.lose_link()
    worker.end(worker.launched[0].run_id, status)
    worker.step()
    clock.seconds = 0
    worker.reconnect()
    worker.step()
    for _ in range(3):
        mwnode.clock.advance(2)
        worker.step()
    assert work.state == state
    assert worker.refused == refused


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
