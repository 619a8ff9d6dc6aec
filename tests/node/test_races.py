"""Races over real sockets: however many ask at once, the authority decides one after the other."""

from __future__ import annotations

import asyncio
from collections import Counter
from collections.abc import AsyncIterator
from typing import Any

import pytest

from mwnode.gateway.server import serve
from mwnode.testing import Harness
from tests.gateway.conftest import Served
from tests.gateway.test_frames_socket import PING, presence

RACERS = 32


@pytest.fixture
async def served(mwnode: Harness) -> AsyncIterator[Served]:
    served = Served(mwnode, await serve(mwnode.node))
    yield served
    await served.close()


@pytest.mark.req("R-4-04", "R-10.3-05", "R-10.3-06", "R-19-26", "R-15.3-01")
async def test_of_thirty_two_acceptances_at_once_one_wins(served: Served) -> None:
    mwnode = served.harness
    racers = [mwnode.agent(f"racer-{number}") for number in range(RACERS)]
    mission = mwnode.mission()
    for racer in racers:
        mission.add(racer)
    work = mission.authorize()
    work.offer(*racers)
    wires = [await served.agent(racer) for racer in racers]
    for racer, wire in zip(racers, wires, strict=True):
        racer.session_epoch = wire.epoch
    raws = [
        racer.command("work.accept_offer", {"workItemId": work.work_item_id}, group_id=mission.group_id)
        for racer in racers
    ]
    ready = asyncio.Event()

    async def accept(number: int) -> dict[str, Any]:
        await ready.wait()
        await wires[number].command(raws[number])
        return await wires[number].receive()

    running = [asyncio.create_task(accept(number)) for number in range(RACERS)]
    ready.set()
    answers = await asyncio.gather(*running)
    codes = Counter(
        frame["error"]["code"] if frame["frameType"] == "ERROR" else frame["event"]["kind"] for frame in answers
    )
    assert codes == {"work.offer.accepted": 1, "WORK_ALREADY_OWNED": RACERS - 1}
    winner = next(number for number, frame in enumerate(answers) if frame["frameType"] == "EVENT")
    row = work.row
    assert row.item.owner.agent_id == racers[winner].id
    assert (row.item.state, row.ownership_epoch) == ("queued", 1)
    assert [event["kind"] for event in mission.events()].count("work.offer.accepted") == 1
    offers = Counter(offer.status for offer in row.item.offers)
    assert offers == {"accepted": 1, "lost_race": RACERS - 1}


@pytest.mark.req("R-6.2-03")
async def test_presence_renews_and_accepts_nothing(served: Served) -> None:
    mwnode = served.harness
    worker = mwnode.workers[0]
    mission = mwnode.mission()
    mission.add(worker)
    offered, running = mission.authorize(), mission.authorize()
    running.offer(worker)
    wire = await served.agent(worker)
    worker.session_epoch = wire.epoch
    running.accept(worker)
    running.start(worker)
    offered.offer(worker)
    held = running.held
    before = len(mission.events())
    for _ in range(30):
        await served.advance(15)
        # What is alive and says so keeps no lease, and has accepted no offer.
        await wire.send(wire.frame("PING", presence=presence(worker, wire.epoch), **PING))
        await wire.receive()
    assert {event["kind"] for event in mission.events()[before:]} == {"ext.mwnode.core.lease_expired"}
    checkpoint = {
        "checkpointId": "urn:test:checkpoint:1",
        "phase": "late",
        "completedMilestones": [],
        "createdAt": mwnode.clock.now().text(),
    }
    late = worker.refused("work.checkpoint", {**held, "checkpoint": checkpoint}, group_id=mission.group_id)
    assert late.code == "WORK_LEASE_EXPIRED"
    assert offered.state == "offered"
    over = worker.refused("work.accept_offer", {"workItemId": offered.work_item_id}, group_id=mission.group_id)
    assert over.code == "WORK_OFFER_EXPIRED"


@pytest.mark.req("R-8-17", "R-17.2-01")
async def test_what_a_filter_holds_back_stays_in_the_history(served: Served) -> None:
    mwnode = served.harness
    mission = mwnode.mission()
    worker = mwnode.workers[0]
    mission.add(worker)
    wire = await served.agent(worker)
    head = len(mission.events())
    position = {"groupId": mission.group_id, "afterSequence": head, "attention": {"eventKinds": ["work.authorized"]}}
    await wire.follow(position)
    said = {"messageId": "urn:test:message:1", "conversationId": f"{mission.group_id}:mission", "content": "hello"}
    mwnode.owner.send("message.post", said, group_id=mission.group_id)
    assert await wire.silent()
    reader = served.http(worker)
    path = f"/v0.1/groups/{mission.group_id.replace(':', '%3A')}/events?after={head}"
    page = await asyncio.to_thread(reader.get, path)
    assert [event["payload"]["message"]["messageId"] for event in page["events"]] == ["urn:test:message:1"]
    replayed = await wire.follow(mission.group_id, after=head)
    assert [event["kind"] for event in replayed] == ["message.posted"]
