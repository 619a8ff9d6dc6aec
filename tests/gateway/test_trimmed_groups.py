"""A position that is no longer online: CURSOR_TOO_OLD names a snapshot to go on from (section 16, decision C8)."""

from __future__ import annotations

import asyncio

import pytest

from mwnode.client.http import segment
from mwnode.protocol import jcs
from mwnode.protocol.errors import CursorTooOld
from mwnode.store.environment import LmdbReading
from mwnode.store.port import NO_CHAIN, Trim
from tests.gateway.conftest import Served


async def test_a_position_below_the_trim_point_is_told_of_the_snapshot(
    served: Served, monkeypatch: pytest.MonkeyPatch
) -> None:
    harness = served.harness
    mission = harness.mission()
    for _ in range(5):
        harness.coordinator.send(
            "message.post",
            {"messageId": harness.new_id(), "conversationId": f"{mission.group_id}:mission", "content": "x"},
            group_id=mission.group_id,
        )
    # Trimming itself is the store's; here its mark stands, and the snapshot is a document like any other.
    snapshot = jcs.canonical({"groupId": mission.group_id, "throughSequence": 3})
    content_hash = harness.node.call(lambda txn: txn.put_document(snapshot)).result()
    trim = Trim(3, NO_CHAIN, harness.clock.now().text(), content_hash)
    monkeypatch.setattr(LmdbReading, "trimmed", lambda self, group_id: trim)
    wire = await served.agent(harness.coordinator)
    frames = await wire.until_mark(await wire.subscribe(mission.group_id, after=2))
    assert len(frames) == 1
    error = frames[0]["error"]
    assert (error["code"], error["fatal"]) == ("CURSOR_TOO_OLD", False)
    assert error["snapshotArtifactHash"] == content_hash
    assert [event["sequence"] for event in await wire.follow(mission.group_id, after=3)] == [4, 5, 6]
    owner = served.http(harness.owner)
    with pytest.raises(CursorTooOld):
        await asyncio.to_thread(owner.events, mission.group_id, 0)
    chunks = await asyncio.to_thread(lambda: b"".join(owner.artifact_chunks(content_hash)))
    assert chunks == snapshot
    stranger = served.http(harness.workers[0])
    path = f"/v0.1/artifacts/{segment(content_hash)}"
    with pytest.raises(Exception, match="nothing of that name"):
        await asyncio.to_thread(stranger.get, path)
