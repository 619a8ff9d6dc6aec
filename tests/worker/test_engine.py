"""The Worker's engine against a real node: offers, queue, leases, results."""

from __future__ import annotations

import pytest

from mwnode.testing import Harness
from mwnode.worker import scheduler
from tests.worker.desk import CHECKED, desk, never


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
