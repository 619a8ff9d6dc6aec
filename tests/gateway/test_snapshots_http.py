"""Snapshots over HTTP: the list, and bodies by their hash (decisions B3, F28, G10)."""

from __future__ import annotations

import asyncio
import hashlib

import pytest

from mwnode.client.http import segment
from mwnode.protocol import jcs
from mwnode.protocol.errors import AuthForbidden, GroupNotFound
from tests.gateway.conftest import Served
from tests.store.archives import approved, archive


@pytest.mark.req("R-7.4-02", "R-G-11")
async def test_snapshots_are_listed_and_fetched_by_hash(served: Served) -> None:
    harness = served.harness
    mission = await asyncio.to_thread(approved, harness)
    path = f"/v0.1/groups/{segment(mission.group_id)}/snapshots"
    owner, worker, stranger = (served.http(who) for who in (harness.owner, harness.workers[0], harness.workers[1]))
    (snapshot,) = (await asyncio.to_thread(owner.get, path))["snapshots"]
    assert snapshot["throughSequence"] == len(mission.events())
    with pytest.raises(AuthForbidden):
        await asyncio.to_thread(worker.get, path)
    with pytest.raises(GroupNotFound):
        await asyncio.to_thread(stranger.get, path)
    body = await asyncio.to_thread(lambda: b"".join(owner.artifact_chunks(snapshot["stateHash"])))
    assert f"sha256:{hashlib.sha256(body).hexdigest()}" == snapshot["stateHash"]
    with pytest.raises(GroupNotFound):
        await asyncio.to_thread(lambda: b"".join(worker.artifact_chunks(snapshot["stateHash"])))
    # The service that archives reads it too; once archived, the very same snapshot stays.
    service = served.http(harness.organization)
    assert (await asyncio.to_thread(service.get, path))["snapshots"] == [snapshot]
    created = (await asyncio.to_thread(archive, mission, {"snapshot": snapshot}))[1]
    assert (await asyncio.to_thread(owner.get, path))["snapshots"] == [snapshot]
    named = created["payload"]["snapshotHash"]
    fetched = await asyncio.to_thread(lambda: b"".join(owner.artifact_chunks(named)))
    assert fetched == jcs.canonical(snapshot)


async def test_a_mission_at_work_has_an_empty_list(served: Served) -> None:
    mission = await asyncio.to_thread(served.harness.mission)
    owner = served.http(served.harness.owner)
    path = f"/v0.1/groups/{segment(mission.group_id)}/snapshots"
    assert await asyncio.to_thread(owner.get, path) == {"snapshots": []}
