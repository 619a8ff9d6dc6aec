"""The Coordinator's review, through a node."""

from __future__ import annotations

import pytest

from mwnode.testing import Harness


@pytest.mark.req("R-10.2-25", "R-13.2-05")
def test_a_result_is_not_accepted_on_a_failed_review(mwnode: Harness) -> None:
    mission = mwnode.mission()
    work = mission.authorize()
    worker = mwnode.workers[0]
    work.offer(worker)
    work.accept(worker)
    work.start(worker)
    work.submit([work.publish()])
    before = mission.events()
    failed = work.evidence(mwnode.coordinator, "reviewer_assessment", "failed")
    payload = {"workItemId": work.work_item_id, "evidence": [failed]}
    error = mwnode.coordinator.refused("work.accept_result", payload, group_id=mission.group_id)
    assert error.code == "INVALID_COMMAND"
    assert mission.events() == before
    inconclusive = work.evidence(mwnode.coordinator, "reviewer_assessment", "inconclusive")
    mwnode.coordinator.send("work.accept_result", {**payload, "evidence": [inconclusive]}, group_id=mission.group_id)
    assert work.state == "verified", "the worker's passed Evidence covers every criterion"
