"""What reaches whom over a socket: everything of a Command at once, replays to their end, retries to their sender."""

from __future__ import annotations

import json
from typing import Any

import pytest

from mwnode.testing import Harness, MissionHandle
from tests.gateway.conftest import Served
from tests.gateway.test_frames_socket import alive, message
from tests.gateway.wire import Wire

MANY = 1_100
"""More Events than a replay of the reference implementation brings."""


async def received(wire: Wire, count: int) -> list[dict[str, Any]]:
    return [await wire.event() for _ in range(count)]


async def test_all_events_of_a_command_are_pushed_at_once(served: Served) -> None:
    harness = served.harness
    mission = harness.mission()
    for state in ("open", "offered", "queued", "active"):
        mission.work(state)
    wire = await served.agent(harness.coordinator)
    seen = [event["sequence"] for event in await wire.follow(mission.group_id)]
    mission.cancel()
    head = len(mission.events())
    assert head >= seen[-1] + 5, "the end of the Mission and of four WorkItems"
    pushed = await received(wire, head - seen[-1])
    assert [event["sequence"] for event in pushed] == list(range(seen[-1] + 1, head + 1))
    assert [event["kind"] for event in pushed].count("work.cancelled") == 4


async def test_a_retry_is_answered_after_a_reconnect(served: Served) -> None:
    harness = served.harness
    mission = harness.mission()
    worker = harness.workers[0]
    mission.add(worker)
    first = await served.agent(worker)
    raw = worker.command("message.post", message(served, mission.group_id), group_id=mission.group_id)
    await first.command(raw)
    receipt = await first.event()
    second = await served.agent(worker)
    await second.command(raw)
    assert await second.event() == receipt
    assert [event["kind"] for event in mission.events()].count("message.posted") == 1


async def test_a_retry_is_answered_although_it_moved_its_own_epoch(served: Served) -> None:
    harness = served.harness
    mission = harness.mission()
    worker = harness.workers[0]
    work = mission.authorize()
    mission.add(worker, provisional=True, contextPackage=mission.package())
    work.offer(worker)
    wire = await served.agent(worker)
    raw = worker.command("work.accept_offer", {"workItemId": work.work_item_id}, group_id=mission.group_id)
    await wire.command(raw)
    receipt = await wire.event()
    row = mission.membership(worker)
    assert row is not None
    assert row.membership.membership_epoch > json.loads(raw)["membershipEpoch"], "the acceptance moved the epoch"
    await wire.command(raw)
    assert await wire.event() == receipt


async def test_a_replay_goes_on_to_its_end_and_an_approval_is_found_behind_it(served: Served) -> None:
    harness = served.harness
    mission = harness.mission()
    work = mission.work("queued", executionApproval="human_required", sideEffectRisk="high_risk")
    work.approve_execution(seconds=40_000)
    say(mission, MANY)
    wire = await served.agent(harness.coordinator)
    events = await wire.follow(mission.group_id)
    assert [event["sequence"] for event in events] == list(range(1, len(mission.events()) + 1))
    assert len(events) > MANY
    mission.post(harness.owner, "live goes on where the replay ended")
    assert (await wire.event())["sequence"] == len(events) + 1
    work.start()
    assert work.state == "active"


def say(mission: MissionHandle, count: int) -> None:
    """So many Messages, as fast as policy lets one speak."""
    harness = mission.harness
    rate = harness.node.policy.message_rate
    for number in range(count):
        if number % rate == rate - 1:
            harness.advance(61)
        mission.post(harness.owner, "word")


@pytest.mark.parametrize("who", ["announcement", "conversation", "item"])
async def test_a_filter_for_a_work_item_lets_through_what_is_about_it(served: Served, who: str) -> None:
    harness = served.harness
    mission = harness.mission()
    wanted, other = harness.new_id(), harness.new_id()
    wire = await served.agent(harness.coordinator)
    attention = {"workItemIds": [wanted], "announcements": True}
    await wire.follow({"groupId": mission.group_id, "afterSequence": 1, "attention": attention})

    def authorize(work_item_id: str) -> None:
        payload = {"workItemId": work_item_id, "contract": harness.contract()}
        harness.coordinator.send("work.authorize", payload, group_id=mission.group_id)

    authorize(other)
    mission.post(harness.owner, "about nothing in particular")
    if who == "announcement":
        mission.post(harness.owner, "for all", announcement=True)
        assert (await wire.event())["payload"]["announcement"] is True
    authorize(wanted)
    assert (await wire.event())["payload"]["workItem"]["workItemId"] == wanted
    if who == "conversation":
        conversation = f"{mission.group_id}:work:{wanted}"
        mission.post(harness.owner, "about this very item", conversationId=conversation)
        event = await wire.event()
        assert (event["kind"], event["conversationId"]) == ("message.posted", conversation)
    await alive(wire)


async def test_a_subscriber_whose_socket_died_costs_its_issuer_nothing(served: Served, mwnode: Harness) -> None:
    mission = mwnode.mission()
    worker = mwnode.workers[0]
    mission.add(worker)
    listener = await served.agent(worker)
    await listener.follow(mission.group_id)
    issuer = await served.agent(mwnode.coordinator)
    transport = listener.session.connector
    assert transport is not None
    await transport.close()
    for _ in range(3):
        raw = mwnode.coordinator.command("message.post", message(served, mission.group_id), group_id=mission.group_id)
        await issuer.command(raw)
        assert (await issuer.event())["cause"]["id"] == json.loads(raw)["actionId"]
    await alive(issuer)
