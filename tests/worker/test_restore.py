"""A Worker whose Cursor is older than what is online goes on behind the snapshot (R-16-07)."""

from __future__ import annotations

import asyncio
from collections.abc import Mapping
from typing import Any

import pytest

from mwnode.client import Client
from mwnode.gateway.server import serve
from mwnode.store.trim import trim_group
from mwnode.testing import Harness
from mwnode.worker.executor import Work
from mwnode.worker.worker import Worker
from tests.patience import PATIENCE_SECONDS
from tests.store.archives import archived


async def nothing(work: Work) -> Mapping[str, Any]:
    raise AssertionError("an archived Group holds no work")


async def notes_of(harness: Harness, wanted: str) -> list[tuple[str, Mapping[str, Any]]]:
    """Run the Worker of the harness until it notes that."""
    notes: list[tuple[str, Mapping[str, Any]]] = []
    server = await serve(harness.node)
    client = await Client.connect(server.url, harness.workers[0].key, clock=harness.clock)
    worker = Worker(client, nothing, log=lambda event, details=None: notes.append((event, details or {})))
    running = asyncio.create_task(worker.run())
    try:
        async with asyncio.timeout(PATIENCE_SECONDS):
            while not any(event == wanted for event, _ in notes):
                assert not running.done(), running.exception()
                await asyncio.sleep(0.02)
    finally:
        running.cancel()
        await asyncio.gather(running, return_exceptions=True)
        await client.close()
        await server.close()
    return notes


@pytest.mark.req("R-16-07", "R-16-61")
@pytest.mark.parametrize("tampered", [False, True])
async def test_a_worker_restores_what_verifies_and_nothing_else(
    mwnode: Harness, tampered: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    mission = await asyncio.to_thread(archived, mwnode)
    head = len(mission.events())
    await asyncio.to_thread(
        lambda: trim_group(lambda step: mwnode.node.call(step).result(), mission.group_id)  # type: ignore[arg-type]
    )
    if tampered:
        real = Client._bytes_of

        async def change(self: Client, content_hash: str) -> bytes:
            return (await real(self, content_hash)).replace(b'"throughSequence":', b'"throughSequence":1')

        monkeypatch.setattr(Client, "_bytes_of", change)
        notes = await notes_of(mwnode, "not_restored")
        assert "restored" not in [event for event, _ in notes]
        with mwnode.node.read() as view:
            assert view.cursor(mwnode.workers[0].id, mission.group_id) == 0
        return
    notes = await notes_of(mwnode, "restored")
    restored = next(details for event, details in notes if event == "restored")
    assert restored == {"groupId": mission.group_id, "throughSequence": head - 2}
