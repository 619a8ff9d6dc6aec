"""A position that is no longer online: CURSOR_TOO_OLD names a snapshot to go on from (section 16, decision C8)."""

from __future__ import annotations

import asyncio

import msgspec
import pytest

from mwnode.client.http import segment
from mwnode.protocol import jcs
from mwnode.protocol.documents import GroupSnapshot
from mwnode.protocol.errors import CursorTooOld, GroupNotFound, InvalidCommand
from mwnode.store.trim import trim_group
from tests.gateway.conftest import Served
from tests.store.archives import archived, snapshot_of


@pytest.mark.req("R-19-33", "R-16-60")
async def test_a_position_below_the_trim_point_is_told_of_the_snapshot(served: Served) -> None:
    harness = served.harness
    mission = await asyncio.to_thread(archived, harness)
    whole = mission.events()
    snapshot = snapshot_of(mission)
    wire = await served.agent(harness.coordinator)
    assert len(await wire.follow(mission.group_id, after=0)) == len(whole), "all is there before the trimming"
    done = await asyncio.to_thread(
        lambda: trim_group(lambda step: harness.node.call(step).result(), mission.group_id)  # type: ignore[arg-type]
    )
    wire = await served.agent(harness.coordinator)
    for after in (0, done.through_sequence - 1):
        frames = await wire.until_mark(await wire.subscribe(mission.group_id, after=after))
        assert len(frames) == 1
        error = frames[0]["error"]
        assert (error["code"], error["fatal"]) == ("CURSOR_TOO_OLD", False)
        assert error["snapshotArtifactHash"] == done.snapshot_artifact_hash
    followed = await wire.follow(mission.group_id, after=done.through_sequence)
    assert [event["sequence"] for event in followed] == [len(whole) - 1, len(whole)]
    # The hash resolves: the signed snapshot, and by its state hash the body.
    owner = served.http(harness.owner)
    with pytest.raises(CursorTooOld) as told:
        await asyncio.to_thread(owner.events, mission.group_id, 0)
    details = told.value.rejection.details or {}
    assert details["snapshotArtifactHash"] == done.snapshot_artifact_hash
    named = await asyncio.to_thread(lambda: b"".join(owner.artifact_chunks(done.snapshot_artifact_hash)))
    assert named == jcs.canonical(snapshot)
    assert msgspec.json.decode(named, type=GroupSnapshot).through_sequence == done.through_sequence
    body = await asyncio.to_thread(lambda: b"".join(owner.artifact_chunks(snapshot["stateHash"])))
    assert msgspec.json.decode(body)["mission"]["state"] == "approved"
    page = await asyncio.to_thread(owner.events, mission.group_id, done.through_sequence)
    assert page["events"] == whole[-2:]
    assert page["headSequence"] == len(whole)
    with pytest.raises(InvalidCommand, match="no Event 1"):
        await asyncio.to_thread(owner.get, f"/v0.1/groups/{segment(mission.group_id)}/events/1")
    # Nothing of it is for those who never saw the Group.
    stranger = served.http(harness.workers[1])
    with pytest.raises(GroupNotFound):
        await asyncio.to_thread(stranger.events, mission.group_id, 0)
    with pytest.raises(GroupNotFound):
        await asyncio.to_thread(lambda: b"".join(stranger.artifact_chunks(done.snapshot_artifact_hash)))


async def test_the_views_of_a_trimmed_mission_stay(served: Served) -> None:
    harness = served.harness
    mission = await asyncio.to_thread(archived, harness)
    owner = served.http(harness.owner)
    before = await asyncio.to_thread(owner.mission, mission.mission_id)
    await asyncio.to_thread(
        lambda: trim_group(lambda step: harness.node.call(step).result(), mission.group_id)  # type: ignore[arg-type]
    )
    assert await asyncio.to_thread(owner.mission, mission.mission_id) == before
