"""A reader goes on from a verified snapshot, and from nothing else (R-16-07, R-16-61)."""

from __future__ import annotations

import asyncio
import hashlib
from collections.abc import Callable
from typing import Any

import pytest

from mwnode.client import Client, ClientError
from mwnode.client.errors import Untrusted
from mwnode.client.restore import check_snapshot, check_state
from mwnode.protocol import jcs
from mwnode.protocol.errors import CursorTooOld
from mwnode.store.trim import trim_group
from mwnode.testing import Harness, MissionHandle, flip_base64url
from mwnode.trust.keys import sign_mapping
from tests.gateway.conftest import Served
from tests.store.archives import archived, snapshot_of


def trimmed(harness: Harness) -> MissionHandle:
    mission = archived(harness)
    trim_group(lambda step: harness.node.call(step).result(), mission.group_id)  # type: ignore[arg-type]
    return mission


def hash_of(raw: bytes) -> str:
    return f"sha256:{hashlib.sha256(raw).hexdigest()}"


@pytest.mark.req("R-16-07", "R-16-61", "R-7.4-07", "R-7.4-03")
async def test_a_reader_behind_the_trim_point_restores_and_goes_on(served: Served) -> None:
    harness = served.harness
    mission = await asyncio.to_thread(archived, harness)
    whole = mission.events()
    view = await asyncio.to_thread(served.http(harness.owner).mission, mission.mission_id)
    await asyncio.to_thread(
        lambda: trim_group(lambda step: harness.node.call(step).result(), mission.group_id)  # type: ignore[arg-type]
    )
    client = await served.client(harness.coordinator)
    with pytest.raises(CursorTooOld):
        await client.subscribe({mission.group_id: 2}, caught_up=True)
    restored = await client.restore(mission.group_id)
    assert restored.through_sequence == len(whole) - 2
    assert restored.state is not None
    for part in ("mission", "workItems", "conversations"):
        assert restored.state[part] == view[part], part
    assert all(restored.state[part] for part in ("approvals", "artifacts", "policyLog", "memberships"))
    await client.subscribe({mission.group_id: restored.through_sequence}, caught_up=True)
    client.acknowledge(mission.group_id, restored.through_sequence)
    events = client.events()
    got = [await anext(events) for _ in range(2)]
    assert [event.sequence for event in got] == [len(whole) - 1, len(whole)]
    assert [event.event_id for event in got] == [event["eventId"] for event in whole[-2:]]


async def test_one_who_may_not_see_the_whole_state_goes_on_without_it(served: Served) -> None:
    harness = served.harness
    mission = await asyncio.to_thread(trimmed, harness)
    client = await served.client(harness.workers[0])
    with pytest.raises(CursorTooOld):
        await client.subscribe({mission.group_id: 0}, caught_up=True)
    restored = await client.restore(mission.group_id)
    assert restored.state is None
    assert restored.snapshot.group_id == mission.group_id


async def test_nothing_is_restored_that_the_node_did_not_name(served: Served) -> None:
    client = await served.client(served.harness.coordinator)
    with pytest.raises(ClientError, match="named no snapshot"):
        await client.restore("urn:example:group")


@pytest.mark.req("R-16-07", "R-16-61")
async def test_a_tampered_snapshot_is_refused_and_the_cursor_stays(served: Served, monkeypatch: Any) -> None:
    harness = served.harness
    mission = await asyncio.to_thread(trimmed, harness)
    client = await served.client(harness.coordinator)
    with harness.node.read() as view:
        before = view.cursor(harness.coordinator.id, mission.group_id)
    with pytest.raises(CursorTooOld):
        await client.subscribe({mission.group_id: 2}, caught_up=True)
    real = Client._bytes_of

    async def tampered(self: Client, content_hash: str) -> bytes:
        raw = bytearray(await real(self, content_hash))
        raw[len(raw) // 2] ^= 1
        return bytes(raw)

    monkeypatch.setattr(Client, "_bytes_of", tampered)
    with pytest.raises(Untrusted):
        await client.restore(mission.group_id)
    assert client.position(mission.group_id) is None
    with harness.node.read() as view:
        assert view.cursor(harness.coordinator.id, mission.group_id) == before
    # The honest bytes are still taken afterwards.
    monkeypatch.undo()
    assert (await client.restore(mission.group_id)).through_sequence > 2


def damaged(snapshot: dict[str, Any], harness: Harness) -> dict[str, Any]:
    value = flip_base64url(snapshot["signature"]["value"])
    return {**snapshot, "signature": {**snapshot["signature"], "value": value}}


def resigned(**changes: Any) -> Callable[[dict[str, Any], Harness], dict[str, Any]]:
    def change(snapshot: dict[str, Any], harness: Harness) -> dict[str, Any]:
        unsigned = {name: value for name, value in snapshot.items() if name != "signature"}
        return sign_mapping({**unsigned, **changes}, harness.node.authority_key, snapshot["createdAt"])

    return change


def forged(snapshot: dict[str, Any], harness: Harness) -> dict[str, Any]:
    unsigned = {name: value for name, value in snapshot.items() if name != "signature"}
    return sign_mapping(unsigned, harness.coordinator.key, snapshot["createdAt"])


BAD: dict[str, Callable[[dict[str, Any], Harness], dict[str, Any]]] = {
    "damaged signature": damaged,
    "signed by an Agent": forged,
    "of another Group": resigned(groupId="urn:example:group:other"),
    "with Events left out": resigned(eventIds=["urn:example:event:1"]),
    "changed after signing": lambda snapshot, harness: {**snapshot, "throughSequence": 1},
}


@pytest.mark.req("R-16-07", "R-16-61")
@pytest.mark.parametrize("name", BAD)
def test_a_snapshot_that_is_not_what_it_should_be_is_refused(mwnode: Harness, name: str) -> None:
    mission = archived(mwnode)
    good = snapshot_of(mission)
    raw = jcs.canonical(good)
    assert check_snapshot(raw, mission.group_id, hash_of(raw), mwnode.node.registry).snapshot_id == good["snapshotId"]
    bad = jcs.canonical(BAD[name](good, mwnode))
    with pytest.raises(Untrusted):
        check_snapshot(bad, mission.group_id, hash_of(bad), mwnode.node.registry)
    with pytest.raises(Untrusted, match="nothing was changed"):
        check_snapshot(raw, mission.group_id, hash_of(bad), mwnode.node.registry)


def test_a_state_body_is_believed_for_its_hash_alone(mwnode: Harness) -> None:
    mission = archived(mwnode)
    raw = jcs.canonical(snapshot_of(mission))
    snapshot = check_snapshot(raw, mission.group_id, hash_of(raw), mwnode.node.registry)
    with mwnode.node.read() as view:
        body = view.document(snapshot.state_hash)
    assert body is not None
    assert check_state(body, snapshot)["group"]["groupId"] == mission.group_id
    with pytest.raises(Untrusted):
        check_state(body[:-1] + b" }", snapshot)
