"""What a Parent Coordinator hears of a child Mission that it owns, and what it need not hear (section 14)."""

from __future__ import annotations

import asyncio

import pytest

from tests.gateway.conftest import Served

HEARD = [
    "mission.submitted_for_approval",
    "mission.terminated",
    "work.progressed",
    "work.blocked",
    "work.submitted",
    "work.result.accepted",
    "ext.missionweaveprotocol.core.resource_usage_recorded",
]
"""The news of a child, as an attention filter spells them."""
MESSAGES = 40


@pytest.mark.req("R-14-21", "R-14-22", "R-8-19")
async def test_a_parent_coordinator_hears_the_news_of_a_child_and_none_of_its_talk(served: Served) -> None:
    harness = served.harness
    parent = harness.mission()
    inner = await asyncio.to_thread(harness.agent, "inner-coordinator")
    child = parent.work().promote(inner)
    wire = await served.agent(harness.coordinator)
    await wire.follow({"groupId": child.group_id, "afterSequence": 0, "attention": {"eventKinds": HEARD}})
    worker = harness.workers[0]
    for number in range(MESSAGES):
        child.post(inner, f"talk {number}")
    work = child.work("active", deadline=harness.clock.now().plus(3600).text(), budget={"wallClockSecondsLimit": 300})
    harness.advance(10)
    now = harness.clock.now()
    work.renew(
        leaseSeconds=900,
        progress={
            "currentPhase": "half way",
            "completedMilestones": ["read"],
            "nextCheckpoint": "written",
            "blockers": [],
            "updatedCompletionEstimate": now.plus(1800).text(),
            "evidenceIds": [],
        },
        scheduleEstimate={
            "estimatedStart": now.text(),
            "estimatedCompletion": now.plus(1800).text(),
            "confidence": 0.5,
            "capacityStatus": "constrained",
            "lastCalculatedAt": now.text(),
        },
    )
    work.use(wallClockSeconds=300)
    work.block()
    work.unblock()
    for number in range(MESSAGES):
        child.post(worker, f"more talk {number}")
    done = child.work("verified", deadline=now.plus(3600).text(), budget={"wallClockSecondsLimit": 60})
    assert done.state == "verified"
    work.cancel()
    child.submit()
    heard = [await wire.event() for _ in range(6)]
    assert [event["kind"] for event in heard] == [
        "work.progressed",
        "ext.missionweaveprotocol.core.resource_usage_recorded",
        "work.blocked",
        "work.submitted",
        "work.result.accepted",
        "mission.submitted_for_approval",
    ]
    progressed, used, blocked = (event["payload"] for event in heard[:3])
    assert progressed["progress"]["currentPhase"] == "half way"
    assert progressed["scheduleEstimate"]["confidence"] == 0.5
    assert used["remainingBudget"]["wallClockSecondsLimit"] == 0, "the budget is used up, and the parent is told"
    assert blocked["requiredResolution"]
    assert await wire.silent()
    # The talk is there for whoever wants to read it.
    view = await asyncio.to_thread(served.http(harness.coordinator).events, child.group_id)
    assert [event["kind"] for event in view["events"]].count("message.posted") == 2 * MESSAGES
