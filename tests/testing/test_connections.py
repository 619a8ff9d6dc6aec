"""Clients of a node in process: over pipes without a socket, and over loopback by TLS or in plain text."""

from __future__ import annotations

import asyncio

import pytest

from mwnode.client.errors import NotTrusted, Unreachable
from mwnode.protocol.errors import MissionWeaveError
from mwnode.testing import Harness, assert_sound


async def test_a_client_in_process_sends_and_hears(mwnode: Harness) -> None:
    mission = mwnode.mission()
    worker = mwnode.workers[0]
    mission.add(worker)
    async with mwnode.connections() as node:
        client = await node.connect(worker)
        await client.subscribe({mission.group_id: 0}, caught_up=True)
        payload = {"messageId": mwnode.new_id(), "conversationId": f"{mission.group_id}:mission", "content": "hello"}
        receipt = await client.send("message.post", payload, group_id=mission.group_id, membership_epoch=1)
        heard = []
        async for event in client.events():
            heard.append(event.sequence)
            if event.sequence == receipt.sequence:
                break
        assert heard == [2, receipt.sequence], "a Worker sees its Group from when it became a Member"


async def test_a_refusal_keeps_the_connection(mwnode: Harness) -> None:
    mission = mwnode.mission()
    async with mwnode.connections() as node:
        client = await node.connect(mwnode.workers[0])
        with pytest.raises(MissionWeaveError):
            await client.send("message.post", {}, group_id=mission.group_id, membership_epoch=1)
        with pytest.raises(MissionWeaveError):
            await client.send("message.post", {}, group_id=mission.group_id, membership_epoch=1)


async def test_a_cut_link_ends_and_is_mended(mwnode: Harness) -> None:
    mission = mwnode.mission()
    worker = mwnode.workers[0]
    mission.add(worker)
    async with mwnode.connections() as node:
        client = await node.connect(worker)
        await client.subscribe({mission.group_id: 0}, caught_up=True)
        with mwnode.faults.cut(worker):
            with pytest.raises(Unreachable, match="way of worker-1 is cut"):
                await node.connect(worker)
            await asyncio.to_thread(mission.post, mwnode.owner, "missed")
        heard = []
        async for event in client.events():
            heard.append(event.kind)
            if event.kind == "message.posted":
                break
        assert heard == ["membership.changed", "message.posted"]


async def test_a_command_that_arrives_twice_is_answered_once(mwnode: Harness) -> None:
    mission = mwnode.mission()
    worker = mwnode.workers[0]
    mission.add(worker)
    async with mwnode.connections() as node:
        client = await node.connect(worker)
        with mwnode.faults.duplicate(worker):
            payload = {"messageId": mwnode.new_id(), "conversationId": f"{mission.group_id}:mission", "content": "1"}
            await client.send("message.post", payload, group_id=mission.group_id, membership_epoch=1)
    assert [event["kind"] for event in mission.events()].count("message.posted") == 1


@pytest.mark.parametrize("how", ["killed", "restarted"])
async def test_a_client_comes_back_to_a_node_that_was(mwnode: Harness, how: str) -> None:
    mission = mwnode.mission()
    worker = mwnode.workers[0]
    mission.add(worker)
    async with mwnode.connections() as node:
        client = await node.connect(worker)
        await client.subscribe({mission.group_id: 0}, caught_up=True)
        if how == "killed":
            mwnode.faults.kill()
            with pytest.raises(Unreachable, match="the node is not there"):
                await node.connect(mwnode.workers[1])
        mwnode.restart()
        mission.post(mwnode.owner, "after the restart")
        heard = []
        async for event in client.events():
            heard.append(event.kind)
            if event.kind == "message.posted":
                break
        assert heard == ["membership.changed", "message.posted"]
    assert_sound(mwnode)


async def test_a_delay_on_the_way_passes_on_the_clock_of_the_test(mwnode: Harness) -> None:
    mission = mwnode.mission()
    worker = mwnode.workers[0]
    mission.add(worker)
    async with mwnode.connections() as node:
        client = await node.connect(worker)
        before = mwnode.clock.now()
        with mwnode.faults.delay(20, worker):
            payload = {"messageId": mwnode.new_id(), "conversationId": f"{mission.group_id}:mission", "content": "1"}
            receipt = await client.send("message.post", payload, group_id=mission.group_id, membership_epoch=1)
    assert receipt.occurred_at >= before.plus(20).text()


async def test_a_newer_session_fences_the_older(mwnode: Harness) -> None:
    mwnode.work("active")
    async with mwnode.connections() as node:
        first = await node.connect(mwnode.workers[0])
        second = await node.connect(mwnode.workers[0])
        assert second.session_epoch == first.session_epoch + 1


@pytest.mark.parametrize("tls", [True, False], ids=["tls", "plain"])
def test_over_loopback_synchronously(mwnode: Harness, tls: bool) -> None:
    mission = mwnode.mission()
    with mwnode.serving(tls=tls) as served:
        assert served.url.startswith("wss://127.0.0.1:" if tls else "ws://127.0.0.1:")
        (seen,) = served.client(mwnode.owner).get("/v0.1/missions")["missions"]
        assert seen["missionId"] == mission.mission_id


@pytest.mark.parametrize("tls", [True, False], ids=["tls", "plain"])
async def test_over_loopback_asynchronously(mwnode: Harness, tls: bool) -> None:
    mission = mwnode.mission()
    worker = mwnode.workers[0]
    mission.add(worker)
    async with mwnode.serving(tls=tls) as served, await served.connect(worker) as client:
        payload = {"messageId": mwnode.new_id(), "conversationId": f"{mission.group_id}:mission", "content": "hello"}
        receipt = await client.send("message.post", payload, group_id=mission.group_id)
        assert receipt.sequence == 3


@pytest.mark.req("R-17.1-01")
def test_a_client_without_the_ca_does_not_trust_the_node(mwnode: Harness) -> None:
    with mwnode.serving() as served:
        served.ca = None
        with pytest.raises(NotTrusted):
            served.client(mwnode.owner).get("/v0.1/missions")


async def test_a_served_node_that_dies_takes_its_connections_with_it(mwnode: Harness) -> None:
    mission = mwnode.mission()
    worker = mwnode.workers[0]
    mission.add(worker)
    async with mwnode.serving(tls=False) as served:
        client = await served.connect(worker)
        payload = {"messageId": mwnode.new_id(), "conversationId": f"{mission.group_id}:mission", "content": "kept"}
        await client.send("message.post", payload, group_id=mission.group_id)
        await asyncio.to_thread(served.kill)
        await client.close()
    mwnode.restart()
    assert [event["kind"] for event in mission.events()][-1] == "message.posted"
    assert_sound(mwnode)
