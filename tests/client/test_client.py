"""The whole client against a real node over real sockets, with links that break."""

from __future__ import annotations

import asyncio
import json
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

import pytest

from mwnode.client import Client, ClientError, ConnectionLost, Unreachable, link, orders
from mwnode.client.commands import signed_command
from mwnode.client.errors import ChallengeRefused, Untrusted
from mwnode.client.transports import websocket_dialer
from mwnode.home import HomeError
from mwnode.protocol.documents import Event
from mwnode.protocol.errors import (
    AuthForbidden,
    AuthInvalidSignature,
    AuthStaleSession,
    GroupNotFound,
    MembershipStale,
    RateLimited,
)
from mwnode.protocol.frames import AttentionFilter
from mwnode.system import OsEntropy
from mwnode.testing import MissionHandle, Participant, flip_base64url
from mwnode.trust import keys
from mwnode.trust.registry import Registry
from tests.client.links import Cut
from tests.gateway.conftest import Served
from tests.patience import PATIENCE_SECONDS


def message(served: Served, group_id: str, text: str = "ready") -> dict[str, Any]:
    return {"messageId": served.harness.new_id(), "conversationId": f"{group_id}:mission", "content": text}


async def take(client: Client, count: int) -> list[Event]:
    events: list[Event] = []
    async with asyncio.timeout(PATIENCE_SECONDS):
        async for event in client.events():
            events.append(event)
            if len(events) == count:
                break
    return events


@pytest.fixture(autouse=True)
def _fast_backoff(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(link, "BACKOFF_FIRST_SECONDS", 0.002)
    monkeypatch.setattr(link, "BACKOFF_MAX_SECONDS", 0.01)


@pytest.fixture
async def over(served: Served) -> AsyncIterator[Any]:
    """Make clients over links of the test's choice."""
    clients: list[Client] = []

    async def begin(who: Participant, dial: Any, **options: Any) -> Client:
        async def registry() -> Registry:
            return served.harness.node.registry

        client = Client(who.key, dial, http=served.http(who), registry=registry, clock=served.harness.clock, **options)
        await client.start()
        clients.append(client)
        return client

    yield begin
    for client in clients:
        await client.close()


# --- ordinary days ---


async def test_commands_are_answered_by_their_receipts_in_any_number(served: Served) -> None:
    mission = served.harness.mission()
    client = await served.client(served.harness.coordinator)
    receipts = await asyncio.gather(
        *(
            client.send("message.post", message(served, mission.group_id, f"{n}"), group_id=mission.group_id)
            for n in range(50)
        )
    )
    assert [receipt.payload["message"]["content"][0]["text"] for receipt in receipts] == [f"{n}" for n in range(50)]
    assert sorted(receipt.sequence for receipt in receipts) == list(range(2, 52))


@pytest.mark.req("R-16-01", "R-16-03")
async def test_replay_then_live_without_a_gap(served: Served) -> None:
    mission = served.harness.mission()
    coordinator = served.harness.coordinator
    for _ in range(200):
        if len(mission.events()) % 100 == 0:
            served.harness.advance(60)
        coordinator.send("message.post", message(served, mission.group_id), group_id=mission.group_id)
    client = await served.client(coordinator)
    await client.subscribe({mission.group_id: 0})
    served.harness.advance(60)
    posts = [
        asyncio.create_task(client.send("message.post", message(served, mission.group_id), group_id=mission.group_id))
        for _ in range(50)
    ]
    events = await take(client, 251)
    await asyncio.gather(*posts)
    assert [event.sequence for event in events] == list(range(1, 252))
    assert client.position(mission.group_id) == 251


async def test_caught_up_means_that_everything_has_come(served: Served) -> None:
    mission = served.harness.mission()
    for n in range(20):
        mission.authorize(goal=f"Step {n}")
    client = await served.client(served.harness.coordinator)
    await client.subscribe({mission.group_id: 0}, caught_up=True)
    assert client.position(mission.group_id) == 21


async def test_groups_that_are_only_listed_are_followed_from_their_first_event(served: Served) -> None:
    mission = served.harness.mission()
    client = await served.client(served.harness.coordinator)
    await client.subscribe([mission.group_id], caught_up=True)
    assert client.position(mission.group_id) == 1
    with pytest.raises(TypeError, match="put this one in a list"):
        await client.subscribe(mission.group_id)


async def test_a_key_file_is_as_good_as_its_key(served: Served, tmp_path: Path) -> None:
    coordinator = served.harness.coordinator
    path = tmp_path / "coordinator.key"
    path.write_bytes(keys.dump(coordinator.key))
    for named in (path, str(path)):
        async with await Client.connect(served.server.url, named, clock=served.harness.clock) as client:
            assert client.key.key_id == coordinator.key.key_id
    path.write_bytes(keys.dump(coordinator.key, b"a passphrase", entropy=OsEntropy(), operations=1, memory_bytes=8192))
    for unusable in (path, tmp_path / "absent.key"):
        with pytest.raises(HomeError):
            await Client.connect(served.server.url, unusable)


@pytest.mark.req("R-19-15")
async def test_a_group_that_is_refused_is_told(served: Served) -> None:
    client = await served.client(served.harness.workers[0])
    with pytest.raises(GroupNotFound):
        await client.subscribe({"urn:example:invented": 0}, caught_up=True)
    assert client.position("urn:example:invented") is None


async def test_a_refusal_is_raised_as_the_class_of_its_code(served: Served) -> None:
    mission = served.harness.mission()
    worker = served.harness.workers[0]
    mission.add(worker)
    client = await served.client(worker)
    with pytest.raises(AuthForbidden):
        await client.send(
            "work.authorize",
            {"workItemId": served.harness.new_id(), "contract": served.harness.contract()},
            group_id=mission.group_id,
        )


@pytest.mark.req("R-8-18", "R-17.2-01")
async def test_attention_is_asked_for_again_after_a_reconnect(served: Served, over: Any) -> None:
    mission = served.harness.mission()
    cut = Cut(websocket_dialer(served.server.url))
    client = await over(served.harness.workers[0], cut)
    mission.add(served.harness.workers[0])
    assert [event.kind for event in await take(client, 1)] == ["membership.changed"]
    await client.subscribe({mission.group_id: 2}, AttentionFilter(event_kinds=("work.authorized",)), caught_up=True)
    for connection in list(served.hub.connections.values()):
        connection.peer.abort()
    while cut.connections < 2 or not client.connected:
        await asyncio.sleep(0.01)
    await client.subscribe({mission.group_id: 2}, AttentionFilter(event_kinds=("work.authorized",)), caught_up=True)
    coordinator = served.harness.coordinator
    coordinator.send("message.post", message(served, mission.group_id), group_id=mission.group_id)
    mission.authorize()
    assert [event.kind for event in await take(client, 1)] == ["work.authorized"]


async def test_acknowledged_cursors_are_durable(served: Served) -> None:
    mission = served.harness.mission()
    client = await served.client(served.harness.coordinator)
    client.acknowledge(mission.group_id, 1)
    async with asyncio.timeout(PATIENCE_SECONDS):
        while not (await client.get("/v0.1/cursors"))["cursors"]:
            await asyncio.sleep(0.01)
    assert (await client.get("/v0.1/cursors"))["cursors"] == [{"groupId": mission.group_id, "sequence": 1}]


# --- bad links ---


async def _posts(client: Client, served: Served, mission: MissionHandle, count: int) -> list[Event]:
    receipts = []
    for n in range(count):
        receipts.append(
            await client.send("message.post", message(served, mission.group_id, f"{n}"), group_id=mission.group_id)
        )
    return receipts


@pytest.mark.req("R-16-01", "R-16-51", "R-16-52", "R-16-06", "R-19-04")
@pytest.mark.parametrize("k", [*range(4, 13), 20, 35, 50])
async def test_a_link_cut_after_every_kth_message_costs_no_event_and_doubles_none(
    served: Served, over: Any, k: int
) -> None:
    mission = served.harness.mission()
    cut = Cut(websocket_dialer(served.server.url))
    cut.after_received = lambda: k
    client = await over(served.harness.coordinator, cut)
    await client.subscribe({mission.group_id: 0})
    collector = asyncio.create_task(take(client, 21))
    async with asyncio.timeout(PATIENCE_SECONDS):
        receipts = await _posts(client, served, mission, 20)
    events = await collector
    assert [event.sequence for event in events] == list(range(1, 22))
    assert [receipt.event_id for receipt in receipts] == [event.event_id for event in events[1:]]
    assert len(mission.events()) == 21


@pytest.mark.req("R-19-04", "R-16-51")
@pytest.mark.parametrize("k", range(4, 9))
async def test_a_command_whose_answer_was_lost_is_sent_again_byte_for_byte(served: Served, over: Any, k: int) -> None:
    mission = served.harness.mission()
    cut = Cut(websocket_dialer(served.server.url))
    cut.after_sent = lambda: k
    client = await over(served.harness.coordinator, cut)
    async with asyncio.timeout(PATIENCE_SECONDS):
        await _posts(client, served, mission, 10)
    commands: dict[str, set[str]] = {}
    for raw in cut.sent:
        frame = json.loads(raw)
        if frame["frameType"] == "COMMAND":
            command = frame["command"]
            commands.setdefault(command["actionId"], set()).add(json.dumps(command, sort_keys=True))
    assert all(len(spellings) == 1 for spellings in commands.values())
    texts = [event["payload"]["message"]["content"][0]["text"] for event in mission.events()[1:]]
    assert texts == [f"{n}" for n in range(10)]


@pytest.mark.req("R-19-08")
async def test_a_command_fenced_on_its_way_is_made_anew_under_the_new_epoch(
    served: Served, over: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    mission = served.harness.mission()
    cut = Cut(websocket_dialer(served.server.url))
    client = await over(served.harness.coordinator, cut)
    node, submit = served.harness.node, served.harness.node.submit
    monkeypatch.setattr(node, "submit", lambda *call: None)
    posting = asyncio.create_task(
        client.send("message.post", message(served, mission.group_id), group_id=mission.group_id)
    )
    async with asyncio.timeout(PATIENCE_SECONDS):
        while not any(b'"COMMAND"' in raw for raw in cut.sent):
            await asyncio.sleep(0.005)
    monkeypatch.setattr(node, "submit", submit)
    for connection in list(served.hub.connections.values()):
        connection.peer.abort()
    async with asyncio.timeout(PATIENCE_SECONDS):
        receipt = await posting
    sent = [json.loads(raw)["command"] for raw in cut.sent if b'"COMMAND"' in raw]
    assert [command["sessionEpoch"] for command in sent] == [2, 2, 3]
    assert sent[0] == sent[1]
    assert sent[2]["actionId"] != sent[0]["actionId"]
    assert receipt.cause.id == sent[2]["actionId"]
    assert len(mission.events()) == 2


@pytest.mark.req("R-19-08", "R-19-17")
async def test_a_membership_epoch_that_moved_is_looked_up(served: Served) -> None:
    mission = served.harness.mission()
    worker = served.harness.workers[0]
    mission.add(worker)
    client = await served.client(worker)
    await client.send("message.post", message(served, mission.group_id), group_id=mission.group_id)
    client._engine.membership_epochs[mission.group_id] = 7
    receipt = await client.send("message.post", message(served, mission.group_id), group_id=mission.group_id)
    assert receipt.kind == "message.posted"
    with pytest.raises(MembershipStale):
        await client.send(
            "message.post", message(served, mission.group_id), group_id=mission.group_id, membership_epoch=7
        )


@pytest.mark.req("R-19-07")
async def test_a_command_that_grew_old_on_its_way_is_made_anew(
    served: Served, over: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    mission = served.harness.mission()
    cut = Cut(websocket_dialer(served.server.url))
    client = await over(served.harness.coordinator, cut)
    node, submit = served.harness.node, served.harness.node.submit
    monkeypatch.setattr(node, "submit", lambda *call: None)
    posting = asyncio.create_task(
        client.send("message.post", message(served, mission.group_id), group_id=mission.group_id)
    )
    async with asyncio.timeout(PATIENCE_SECONDS):
        while not any(b'"COMMAND"' in raw for raw in cut.sent):
            await asyncio.sleep(0.005)
    monkeypatch.setattr(node, "submit", submit)
    served.harness.clock.advance(400)
    for connection in list(served.hub.connections.values()):
        connection.peer.abort()
    async with asyncio.timeout(PATIENCE_SECONDS):
        receipt = await posting
    sent = [json.loads(raw)["command"] for raw in cut.sent if b'"COMMAND"' in raw]
    first, last = sent[0], sent[-1]
    assert last["issuedAt"] == last["signature"]["createdAt"] != first["issuedAt"]
    assert last["actionId"] != first["actionId"]
    assert last["signature"]["value"] != first["signature"]["value"]
    assert receipt.cause.id == last["actionId"]


def _damaged(raw: bytes) -> bytes:
    command = json.loads(raw)
    command["signature"]["value"] = flip_base64url(command["signature"]["value"])
    return json.dumps(command).encode()


@pytest.mark.req("R-19-05")
async def test_nothing_is_sent_again_after_a_refused_signature(
    served: Served, over: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    mission = served.harness.mission()
    cut = Cut(websocket_dialer(served.server.url))
    client = await over(served.harness.coordinator, cut)
    monkeypatch.setattr(orders, "signed_command", lambda *args, **members: _damaged(signed_command(*args, **members)))
    with pytest.raises(AuthInvalidSignature):
        await client.send("message.post", message(served, mission.group_id), group_id=mission.group_id)
    await asyncio.sleep(0.1)
    assert sum(b'"COMMAND"' in raw for raw in cut.sent) == 1
    assert client.connected


async def test_a_rate_limit_is_the_callers_to_wait_for(served: Served) -> None:
    mission = served.harness.mission()
    client = await served.client(served.harness.coordinator)
    limit = served.harness.node.policy.message_rate
    await asyncio.gather(
        *(
            client.send("message.post", message(served, mission.group_id), group_id=mission.group_id)
            for _ in range(limit)
        )
    )
    with pytest.raises(RateLimited) as caught:
        await client.send("message.post", message(served, mission.group_id), group_id=mission.group_id)
    assert caught.value.rejection.retry_after_ms


@pytest.mark.req("R-6.3-06")
async def test_the_fenced_runtime_gives_up_instead_of_fighting(served: Served, over: Any) -> None:
    worker = served.harness.workers[0]
    cut = Cut(websocket_dialer(served.server.url))
    old = await over(worker, cut)
    new = await served.client(worker)
    old._engine.ping()
    old._link.wake()
    with pytest.raises(AuthStaleSession):
        await take(old, 1)
    await asyncio.sleep(0.1)
    assert cut.connections == 1
    assert new.connected
    with pytest.raises(AuthStaleSession):
        await old.send("message.post", {}, group_id="urn:example:group", membership_epoch=1)


# --- servers that are not what they should be ---


async def test_a_node_that_is_not_there_is_told_at_once(served: Served) -> None:
    worker = served.harness.workers[0]
    with pytest.raises(Unreachable, match="cannot be reached"):
        await Client.connect("ws://127.0.0.1:1/ws", worker.key)


async def test_a_patient_client_waits_for_its_node(served: Served, over: Any) -> None:
    calls = 0
    real = websocket_dialer(served.server.url)

    async def dial() -> Any:
        nonlocal calls
        calls += 1
        if calls < 5:
            raise Unreachable("not yet")
        return await real()

    worker = served.harness.workers[0]
    client = Client(worker.key, dial, clock=served.harness.clock)
    await client.start(patient=True)
    assert calls == 5
    await client.close()


@pytest.mark.req("R-17.1-09")
async def test_an_event_that_does_not_verify_ends_the_client(served: Served, over: Any) -> None:
    mission = served.harness.mission()
    real = websocket_dialer(served.server.url)

    class Forging:
        def __init__(self, inner: Any) -> None:
            self.inner = inner
            self.send, self.close = inner.send, inner.close

        async def receive(self) -> bytes | None:
            raw = await self.inner.receive()
            return raw and raw.replace(b"Build, check and publish", b"Build, check and destroy")

    async def dial() -> Any:
        return Forging(await real())

    client = await over(served.harness.coordinator, dial)
    await client.subscribe({mission.group_id: 0})
    with pytest.raises(Untrusted, match="signature"):
        await take(client, 1)


@pytest.mark.req("R-6.3-04")
async def test_a_server_that_wants_a_command_signed_gets_no_signature(served: Served) -> None:
    worker = served.harness.workers[0]
    sent: list[bytes] = []

    class Hostile:
        def __init__(self) -> None:
            self.asked = asyncio.Event()

        async def send(self, messages: Any) -> None:
            sent.extend(messages)
            self.asked.set()

        async def receive(self) -> bytes:
            await self.asked.wait()
            init = json.loads(sent[0])
            command = worker.command("message.post", {}, group_id="urn:example:group")
            body = json.loads(command)
            del body["signature"]
            challenge = served.harness.node.tokens.issue(body).split(".")[0]
            frame = {
                "protocolVersion": "0.1",
                "frameId": "urn:x:1",
                "frameType": "HELLO",
                "phase": "server_challenge",
                "selectedVersion": "0.1",
                "clientNonce": init["clientNonce"],
                "serverNonce": "c2VydmVy",
                "challenge": challenge,
            }
            return json.dumps(frame).encode()

        async def close(self) -> None:
            return None

    async def dial() -> Any:
        return Hostile()

    with pytest.raises(ChallengeRefused):
        await Client(worker.key, dial, clock=served.harness.clock).start()
    assert len(sent) == 1


async def test_a_closed_client_says_so(served: Served) -> None:
    mission = served.harness.mission()
    client = await served.client(served.harness.coordinator)
    await client.close()
    with pytest.raises(ConnectionLost):
        await client.send("message.post", message(served, mission.group_id), group_id=mission.group_id)
    assert [event async for event in client.events()] == []


async def test_a_client_without_http_says_so(served: Served) -> None:
    worker = served.harness.workers[0]
    client = Client(worker.key, websocket_dialer(served.server.url), clock=served.harness.clock)
    await client.start()
    with pytest.raises(ClientError, match="no HTTP side"):
        await client.get("/v0.1/missions")
    await client.close()
