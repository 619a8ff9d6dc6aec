"""A whole Mission by real Workers and a Coordinator over links that are cut after every k-th frame (section 16)."""

from __future__ import annotations

import asyncio
import random
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from mwnode.client import Client, link
from mwnode.gateway.server import serve
from tests.client.proxy import CuttingProxy
from tests.worker.test_runner import World

SHORTEST = 12
"""Frames of a connection in which something gets done beyond the handshake and the subscriptions."""
SAMPLE = 2
FULL = 50
SEED = 6


class CutWorld(World):
    """Everybody but the owner reaches the node through the proxy."""

    def __init__(self, path: Path, k: int) -> None:
        super().__init__(path)
        self._k = k
        self._proxy_port = 0

    async def serve(self) -> None:
        self.server = await serve(self.harness.node)
        # Every third connection lasts longer: after fewer frames than a handshake has, nothing can ever be done.
        self.proxy = CuttingProxy(self.server.port, lambda number: self._k + (0, SHORTEST, 4 * SHORTEST)[number % 3])
        self._proxy_port = await self.proxy.start()

    @property
    def url(self) -> str:
        return f"ws://127.0.0.1:{self._proxy_port}/ws"

    async def close(self) -> None:
        await super().close()
        await self.proxy.close()


async def follow(client: Client, group_id: str, seen: list[Any]) -> None:
    await client.subscribe({group_id: 0})
    async for event in client.events():
        if event.group_id == group_id:
            seen.append(event)


@pytest.mark.long
@pytest.mark.timeout(3600)
@pytest.mark.req("R-16-01", "R-16-02", "R-16-03", "R-16-06", "R-16-51", "R-16-52", "R-19-04", "R-15.1-13")
async def test_a_mission_over_links_cut_after_every_kth_frame(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, scale: Callable[[int, int], int]
) -> None:
    monkeypatch.setattr(link, "BACKOFF_FIRST_SECONDS", 0.02)
    monkeypatch.setattr(link, "BACKOFF_MAX_SECONDS", 0.1)
    for k in sorted(random.Random(SEED).sample(range(1, FULL + 1), scale(SAMPLE, FULL))):
        directory = tmp_path / f"k{k}"
        directory.mkdir()
        world = CutWorld(directory, k)
        await world.serve()
        try:
            await one_mission(world)
        except BaseException as error:
            error.add_note(f"k = {k}")
            raise
        finally:
            await world.close()


async def one_mission(world: CutWorld) -> None:
    harness = world.harness
    # Somebody who only listens, over links as bad as those of the others.
    observer = await asyncio.to_thread(harness.agent, "observer")
    mission = await world.mission()
    await asyncio.to_thread(mission.add, observer, "observer", visibilityStartSequence=1)
    seen: list[Any] = []
    async with await Client.connect(world.url, observer.key, patient=True) as client:
        listening = asyncio.create_task(follow(client, mission.group_id, seen))
        world.coordinate()
        for who in harness.workers:
            world.work(who)
        await world.until(lambda: mission.state == "awaiting_approval")
        await world.approve(mission)
        events = mission.events()
        await world.until(lambda: len(seen) >= len(events) or listening.done())
        listening.cancel()
        await asyncio.gather(listening, return_exceptions=True)
    assert world.proxy.cuts > 0, "the links were never cut"
    # No gap: what was delivered is the log, each Event once and in order.
    events = mission.events()
    assert [event.event_id for event in seen] == [event["eventId"] for event in events][: len(seen)]
    assert len(seen) == len(events)
    # No double effect: each Command led to its Events once, each WorkItem was done once.
    receipts = [(event["cause"]["id"], event["kind"]) for event in events if event["cause"]["type"] == "command"]
    kinds = [event["kind"] for event in events]
    assert kinds.count("work.result.accepted") == 3
    assert kinds.count("work.submitted") == 3
    assert kinds.count("work.offer.accepted") == 3
    assert kinds.count("artifact.published") == 3
    assert kinds.count("mission.submitted_for_approval") == kinds.count("mission.approved") == 1
    assert len(receipts) == len(set(receipts))
    assert len(world.runs()) == len(set(world.runs())) == 3
