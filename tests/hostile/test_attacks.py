"""Each attack for a moment: the node lives and serves the honest. Figures: `python -m tests.hostile`."""

from __future__ import annotations

import asyncio
import random
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from tests.hostile.attacks import ATTACKS
from tests.hostile.honest import Speakers, arrive
from tests.hostile.measure import attacking
from tests.hostile.scene import Running, Scene, make_scene, running
from tests.hostile.wire import Peer

CROWD = 40
MOMENT_SECONDS = 0.3
PRIVATE_BYTES = 160 * 1024 * 1024
"""More than any of the attacks may bring a young node to."""
IDLE_BYTES = 192 * 1024
"""More than what an Agent that is connected and silent may cost in memory."""
SAMPLE = 4
SEED = 17


@pytest.fixture(scope="module")
def scene(tmp_path_factory: pytest.TempPathFactory) -> Scene:
    return make_scene(tmp_path_factory.mktemp("hostile"), CROWD)


@pytest.fixture(scope="module")
def node(scene: Scene, tmp_path_factory: pytest.TempPathFactory) -> Iterator[tuple[Running, Path]]:
    log = tmp_path_factory.mktemp("log") / "node.log"
    with running(scene, log) as started:
        yield started, log


@pytest.mark.req("R-17.3-02")
def test_an_idle_agent_costs_little_memory(scene: Scene, node: tuple[Running, Path]) -> None:
    started, _ = node

    async def crowd() -> None:
        # The first ones pay for what all share.
        peers = [await Peer.agent(started.place, key) for key in scene.listeners]
        before = started.private_bytes
        peers += [await Peer.agent(started.place, key) for key in scene.crowd(CROWD)]
        grown = started.private_bytes - before
        for peer in peers:
            peer.abort()
        assert grown < CROWD * IDLE_BYTES

    asyncio.run(crowd())


@pytest.mark.long
@pytest.mark.timeout(3600)
@pytest.mark.req("R-17.3-01", "R-17.3-02")
def test_the_honest_are_served_whatever_others_do(
    scene: Scene, node: tuple[Running, Path], scale: Callable[[int, int], int]
) -> None:
    started, log = node
    names = random.Random(SEED).sample(sorted(ATTACKS), scale(SAMPLE, len(ATTACKS)))

    async def under(name: str) -> None:
        honest = await Speakers.connect(started.place, scene.honest[:1], scene.group_id)
        try:
            # Nobody is measured, and whoever is last in the queue for a busy processor may not get to it at all.
            async with attacking(name, scene, started, niceness=0) as counted:
                assert (await honest.run(MOMENT_SECONDS)).took
                await arrive(started.place, scene.key("newcomer"))
            assert counted, f"{name} did something"
        finally:
            honest.close()

    for name in names:
        asyncio.run(under(name))
        assert started.alive, name
        assert started.private_bytes < PRIVATE_BYTES, name
        assert "Traceback" not in log.read_text(), f"{name}: {log.read_text()[-3000:]}"
