"""A reader goes on from a verified snapshot, and from nothing else (R-16-07, R-16-61)."""

from __future__ import annotations

import asyncio
import hashlib
from collections.abc import Callable
from typing import Any

import msgspec
import pytest

from mwnode.client import Client, ClientError
from mwnode.client.errors import Untrusted
from mwnode.client.fold import WorkView, decode_payload, fold
from mwnode.client.restore import check_snapshot, check_state
from mwnode.protocol import jcs
from mwnode.protocol.documents import Event, WorkItem
from mwnode.protocol.errors import AuthForbidden, CursorTooOld, GroupNotFound
from mwnode.store.trim import trim_group
from mwnode.testing import Harness, MissionHandle, WorkHandle, flip_base64url
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


# --- a Group at work --------------------------------------------------------------------------------------------------


def replayed(events: list[dict[str, Any]], begun: dict[str, WorkView] | None = None) -> dict[str, WorkView]:
    """WorkItems as a follower knows them after those Events."""
    views = dict(begun or {})
    for document in events:
        payload = decode_payload(msgspec.convert(document, Event))
        if payload is not None:
            fold(views, payload)
    return views


def items(views: dict[str, WorkView]) -> dict[str, Any]:
    """The normative members; extensions are the view's own."""
    return {name: msgspec.structs.replace(view.item, extensions=msgspec.UNSET) for name, view in views.items()}


@pytest.mark.req("R-7.4-07")
async def test_a_member_goes_on_from_a_live_snapshot_to_the_state_of_a_full_replay(served: Served) -> None:
    harness = served.harness

    def begin() -> tuple[MissionHandle, WorkHandle]:
        mission = harness.mission()
        mission.authorize(budget={"wallClockSecondsLimit": 100}).run(content=b"done")
        return mission, mission.work("active", budget={"wallClockSecondsLimit": 100})

    mission, work = await asyncio.to_thread(begin)
    client = await served.client(harness.coordinator)
    restored = await client.snapshot(mission.group_id)
    known = len(mission.events())
    assert restored.through_sequence == known
    assert restored.snapshot.event_ids == tuple(event["eventId"] for event in mission.events())
    assert restored.state is not None
    begun = {
        document["workItemId"]: WorkView(item=msgspec.convert(document, WorkItem))
        for document in restored.state["workItems"]
    }
    assert items(begun) == items(replayed(mission.events()))

    def go_on() -> None:
        work.submit([work.publish(b"result")])
        work.review()
        mission.authorize(budget={"wallClockSecondsLimit": 100}).offer()

    await asyncio.to_thread(go_on)
    await client.subscribe({mission.group_id: restored.through_sequence}, caught_up=True)
    events = client.events()
    whole = mission.events()
    tail = [msgspec.to_builtins(await anext(events)) for _ in range(len(whole) - known)]
    assert [event["eventId"] for event in tail] == [event["eventId"] for event in whole[known:]]
    assert items(replayed(tail, begun)) == items(replayed(whole))
    # What was heard is not taken back: the node keeps the older one, and this client is past it.
    with pytest.raises(Untrusted, match="were heard"):
        await client.snapshot(mission.group_id)


@pytest.mark.req("R-8-07", "R-19-15")
async def test_a_live_snapshot_is_for_those_who_may_inspect(served: Served) -> None:
    harness = served.harness
    mission = await asyncio.to_thread(lambda: harness.mission())
    await asyncio.to_thread(mission.add, harness.workers[0])
    member, stranger = await served.client(harness.workers[0]), await served.client(harness.workers[1])
    with pytest.raises(AuthForbidden):
        await member.snapshot(mission.group_id)
    with pytest.raises(GroupNotFound):
        await stranger.snapshot(mission.group_id)


@pytest.mark.req("R-16-07")
@pytest.mark.parametrize(
    "change",
    [
        damaged,
        forged,
        resigned(groupId="urn:example:group:other"),
        resigned(throughSequence=70),
        resigned(eventIds=[]),
        lambda snapshot, harness: {**snapshot, "throughSequence": snapshot["throughSequence"] + 1},
        lambda snapshot, harness: {"snapshotId": snapshot["snapshotId"]},
        lambda snapshot, harness: None,
    ],
)
async def test_a_live_snapshot_that_is_not_what_it_should_be_is_not_trusted(
    served: Served, monkeypatch: pytest.MonkeyPatch, change: Any
) -> None:
    harness = served.harness
    mission = await asyncio.to_thread(harness.mission)
    client = await served.client(harness.coordinator)
    real = Client.get

    async def tampered(self: Client, path: str, **query: Any) -> dict[str, Any]:
        answer = await real(self, path, **query)
        if path.endswith("/snapshots"):
            answer["snapshots"] = [change(snapshot, harness) for snapshot in answer["snapshots"]]
        return answer

    monkeypatch.setattr(Client, "get", tampered)
    with pytest.raises(Untrusted):
        await client.snapshot(mission.group_id)
    monkeypatch.undo()

    async def other(self: Client, content_hash: str) -> bytes:
        return b"{}"

    monkeypatch.setattr(Client, "_bytes_of", other)
    with pytest.raises(Untrusted, match="another state body"):
        await client.snapshot(mission.group_id)
    monkeypatch.undo()
    assert (await client.snapshot(mission.group_id)).through_sequence == len(mission.events())
