"""Faults on purpose: each one happens as it says, ends with its block, and shows what the node makes of it."""

from __future__ import annotations

import threading
import time

import pytest

from mwnode.node import EMBEDDED
from mwnode.testing import ConnectionLost, Harness, assert_events, assert_refused, assert_sound, assert_unchanged
from tests.patience import PATIENCE_SECONDS


def test_a_cut_link_lets_nothing_through(mwnode: Harness) -> None:
    mission = mwnode.mission()
    with mwnode.faults.cut(mwnode.coordinator), pytest.raises(ConnectionLost, match="did not arrive"):
        mission.post(mwnode.coordinator, "lost")
    assert len(mission.events()) == 1
    mission.post(mwnode.owner, "somebody else's link is not cut")
    mwnode.coordinator.resend()
    assert_events(mission, "mission.created", "message.posted", "message.posted")


@pytest.mark.req("R-19-04")
def test_a_lost_answer_is_asked_for_again_and_nothing_is_done_twice(mwnode: Harness) -> None:
    mission = mwnode.mission()
    with mwnode.faults.cut(arriving=True), pytest.raises(ConnectionLost, match="its answer is lost"):
        mission.post(mwnode.owner, "said once")
    assert len(mission.events()) == 2
    (event,) = mwnode.owner.resend()
    assert event == mission.events()[-1]
    assert len(mission.events()) == 2


@pytest.mark.req("R-19-04")
def test_what_arrives_three_times_happens_once(mwnode: Harness) -> None:
    with mwnode.faults.duplicate(times=3):
        mission = mwnode.mission("approved")
    kinds = [event["kind"] for event in mission.events()]
    assert kinds.count("work.started") == kinds.count("mission.approved") == 1


@pytest.mark.req("R-6.4-77")
def test_a_command_that_takes_too_long_is_not_fresh_any_more(mwnode: Harness) -> None:
    mission = mwnode.mission()
    with mwnode.faults.delay(301, mwnode.owner):
        assert_refused("AUTH_INVALID_SIGNATURE", lambda: mission.post(mwnode.owner, "late"))
    with mwnode.faults.delay(300, mwnode.owner):
        mission.post(mwnode.owner, "in time")


def test_a_lease_runs_out_while_a_command_is_on_its_way(mwnode: Harness) -> None:
    work = mwnode.work("active")
    with mwnode.faults.delay(300, mwnode.workers[0]):
        assert_refused("WORK_LEASE_EXPIRED", work.checkpoint)
    assert_events(work.mission, "work.started", "ext.mwnode.core.lease_expired")


@pytest.mark.req("R-6.4-77")
@pytest.mark.parametrize("ahead,accepted", [(60, True), (61, False), (-300, True), (-301, False)])
def test_clocks_may_differ_within_the_window(mwnode: Harness, ahead: int, accepted: bool) -> None:
    mission = mwnode.mission()
    with mwnode.faults.skew(ahead, mwnode.owner):
        if accepted:
            mission.post(mwnode.owner, "about now")
        else:
            assert_refused("AUTH_INVALID_SIGNATURE", lambda: mission.post(mwnode.owner, "about now"))
    assert mwnode.owner.skew == 0


def test_a_full_disk_refuses_and_loses_nothing(mwnode: Harness) -> None:
    mission = mwnode.mission()
    with mwnode.faults.fill():
        error = assert_refused("INTERNAL_ERROR", lambda: mission.post(mwnode.owner, "no room"))
        assert error.retryable
        assert_unchanged(mission, lambda: mission.post(mwnode.owner, "no room"))
        assert mission.state == "active", "reading goes on"
    mwnode.owner.resend()
    assert_events(mission, "mission.created", "message.posted")
    assert_sound(mwnode)


def test_a_node_that_dies_has_kept_what_it_acknowledged(mwnode: Harness) -> None:
    work = mwnode.work("active")
    before = work.mission.events()
    mwnode.faults.kill()
    assert_refused("INTERNAL_ERROR", lambda: mwnode.send(mwnode.owner.sent))
    mwnode.restart()
    assert work.mission.events() == before
    work.to("verified")
    assert_sound(mwnode)


def test_what_waits_when_the_node_dies_is_not_kept(mwnode: Harness) -> None:
    mission = mwnode.mission()
    payload = {"messageId": mwnode.new_id(), "conversationId": f"{mission.group_id}:mission", "content": "waits"}
    raw = mwnode.owner.command("message.post", payload, group_id=mission.group_id)
    blocked, release, answered = threading.Event(), threading.Event(), threading.Event()
    outcomes: list[object] = []

    def occupy(_: object) -> None:
        blocked.set()
        release.wait(PATIENCE_SECONDS)

    def answer(outcome: object) -> None:
        outcomes.append(outcome)
        answered.set()

    mwnode.node.call(occupy)
    assert blocked.wait(PATIENCE_SECONDS)
    mwnode.node.submit(raw, EMBEDDED, answer)
    while not mwnode.node._committer.queued:
        time.sleep(0.01)
    killer = threading.Thread(target=mwnode.faults.kill)
    killer.start()
    assert answered.wait(PATIENCE_SECONDS), "who waits for a node that died is told"
    release.set()
    killer.join()
    assert getattr(outcomes[0], "code", None) == "INTERNAL_ERROR"
    mwnode.restart()
    assert len(mission.events()) == 1
    mwnode.send(raw)
    assert len(mission.events()) == 2
