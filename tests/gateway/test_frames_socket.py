"""Frames after the handshake over a real socket (sections 16, 17, 19; decisions A10 to A13, C1 to C14)."""

from __future__ import annotations

import asyncio
import json
from typing import Any

import aiohttp
import pytest

from mwnode.protocol.errors import MissionWeaveError
from mwnode.testing import flip_base64url
from tests.gateway.conftest import Served, Start
from tests.gateway.wire import Wire

PING = {"nonce": "bm9uY2U", "sentAt": "2030-01-01T00:00:00Z"}


async def alive(wire: Wire) -> None:
    """The connection still answers."""
    await wire.send(wire.frame("PING", **PING))
    while (await wire.receive()).get("replyToNonce") != "bm9uY2U":
        pass


def message(served: Served, group_id: str, text: str = "ready", **members: Any) -> dict[str, Any]:
    return {
        "messageId": served.harness.new_id(),
        "conversationId": f"{group_id}:mission",
        "content": text,
        **members,
    }


# --- form ---

NOT_FATAL: dict[str, tuple[bytes, str]] = {
    "not JSON": (b'{"protocolVersion":', "PROTOCOL_VIOLATION"),
    "two values": (b"{} {}", "PROTOCOL_VIOLATION"),
    "an array": (b"[]", "PROTOCOL_VIOLATION"),
    "a byte order mark": (b"\xef\xbb\xbf{}", "PROTOCOL_VIOLATION"),
    "a duplicate member": (
        b'{"frameId":"urn:x:1","frameId":"urn:x:2","frameType":"PING","protocolVersion":"0.1"}',
        "PROTOCOL_VIOLATION",
    ),
    "a duplicate member and a schema fault": (
        b'{"frameId":"urn:x:1","frameId":"urn:x:1","frameType":"PING"}',
        "PROTOCOL_VIOLATION",
    ),
    "too deep": (b'{"frameId":' + b"[" * 100 + b"]" * 100 + b"}", "PROTOCOL_VIOLATION"),
    "an unknown type": (
        b'{"frameId":"urn:x:1","frameType":"DELTA","protocolVersion":"0.1"}',
        "SCHEMA_VALIDATION_FAILED",
    ),
    "another version": (
        b'{"frameId":"urn:x:1","frameType":"PING","nonce":"bm8","protocolVersion":"9.9",'
        b'"sentAt":"2030-01-01T00:00:00Z"}',
        "SCHEMA_VALIDATION_FAILED",
    ),
    "an extra member": (
        b'{"frameId":"urn:x:1","frameType":"PING","more":1,"nonce":"bm8","protocolVersion":"0.1",'
        b'"sentAt":"2030-01-01T00:00:00Z"}',
        "SCHEMA_VALIDATION_FAILED",
    ),
    "no Groups": (
        b'{"frameId":"urn:x:1","frameType":"SUBSCRIBE","groups":[],"protocolVersion":"0.1","subscriptionId":"urn:x:2"}',
        "SCHEMA_VALIDATION_FAILED",
    ),
    "no acknowledgements": (
        b'{"acknowledgements":[],"frameId":"urn:x:1","frameType":"ACK","protocolVersion":"0.1",'
        b'"sentAt":"2030-01-01T00:00:00Z"}',
        "SCHEMA_VALIDATION_FAILED",
    ),
    "an EVENT from a client": (
        b'{"event":{},"frameId":"urn:x:1","frameType":"EVENT","protocolVersion":"0.1"}',
        "PROTOCOL_VIOLATION",
    ),
    "an ERROR from a client": (
        b'{"error":{"code":"INTERNAL_ERROR","message":"x","occurredAt":"2030-01-01T00:00:00Z","retryable":false},'
        b'"frameId":"urn:x:1","frameType":"ERROR","protocolVersion":"0.1"}',
        "PROTOCOL_VIOLATION",
    ),
    "a COMMAND without its Command": (
        b'{"frameId":"urn:x:1","frameType":"COMMAND","protocolVersion":"0.1"}',
        "PROTOCOL_VIOLATION",
    ),
    "an array for a Command": (
        b'{"command":[],"frameId":"urn:x:1","frameType":"COMMAND","protocolVersion":"0.1"}',
        "SCHEMA_VALIDATION_FAILED",
    ),
    "a lone surrogate in a Command": (
        b'{"command":{"actionId":"\\ud800"},"frameId":"urn:x:1","frameType":"COMMAND","protocolVersion":"0.1"}',
        "SCHEMA_VALIDATION_FAILED",
    ),
    "1e400 in a Command": (
        b'{"command":{"actionId":1e400},"frameId":"urn:x:1","frameType":"COMMAND","protocolVersion":"0.1"}',
        "SCHEMA_VALIDATION_FAILED",
    ),
}


@pytest.mark.req("R-17.1-03", "R-17.1-05", "R-17.1-07", "R-17.1-08", "R-17.1-10", "R-17.4-02", "R-19-18", "R-19-34")
@pytest.mark.parametrize("raw, code", NOT_FATAL.values(), ids=NOT_FATAL.keys())
async def test_a_misfit_is_answered_and_costs_nothing(served: Served, raw: bytes, code: str) -> None:
    wire = await served.agent(served.harness.workers[0])
    await wire.send_raw(raw)
    error = await wire.error()
    assert (error["code"], error["fatal"], error["retryable"]) == (code, False, False)
    if raw.count(b'"frameId":"urn:x:1"') == 1 and b"urn:x:2" not in raw[:40]:
        assert error["relatedFrameId"] == "urn:x:1"
    await alive(wire)


@pytest.mark.req("R-17.1-04", "R-19-34")
async def test_a_binary_message_ends_the_connection_unread(served: Served) -> None:
    mission = served.harness.mission()
    coordinator = served.harness.coordinator
    wire = await served.agent(coordinator)
    command = coordinator.command("message.post", message(served, mission.group_id), group_id=mission.group_id)
    frame = json.dumps(wire.frame("COMMAND", command=json.loads(command))).encode()
    await wire.send_raw(frame, aiohttp.WSMsgType.BINARY)
    error = await wire.error()
    assert (error["code"], error["fatal"]) == ("PROTOCOL_VIOLATION", True)
    assert await wire.closed() == 1008
    assert len(mission.events()) == 1


@pytest.mark.req("R-17.1-03")
async def test_bad_utf8_ends_the_connection(served: Served) -> None:
    wire = await served.agent(served.harness.workers[0])
    await wire.send_raw(b'{"frameId":"\xff\xfe"}')
    error = await wire.error()
    assert (error["code"], error["fatal"]) == ("PROTOCOL_VIOLATION", True)
    assert await wire.closed() == 1008


async def test_an_oversized_message_ends_the_connection(start: Start) -> None:
    served = await start(frame_bytes=100_000)
    wire = await served.agent(served.harness.workers[0])
    await wire.send_raw(b'{"pad":"' + b"x" * 400_000 + b'"}')
    error = await wire.error()
    assert (error["code"], error["fatal"]) == ("PROTOCOL_VIOLATION", True)
    assert await wire.closed() == 1009


@pytest.mark.req("R-19-31")
async def test_a_flood_ends_the_connection(start: Start) -> None:
    served = await start(frames_per_second=50)
    wire = await served.agent(served.harness.workers[0])
    for _ in range(60):
        await wire.send(wire.frame("PING", replyToNonce="bm9uY2U", **PING))
    error = await wire.error()
    assert (error["code"], error["fatal"]) == ("RATE_LIMITED", True)
    assert error["retryAfterMs"] == 1000
    assert await wire.closed() == 1008


# --- COMMAND ---


@pytest.mark.req("R-17.1-08", "R-17.1-09", "R-15.1-01")
async def test_a_receipt_reaches_its_issuer_unsubscribed(served: Served) -> None:
    mission = served.harness.mission()
    coordinator = served.harness.coordinator
    wire = await served.agent(coordinator)
    raw = coordinator.command("message.post", message(served, mission.group_id), group_id=mission.group_id)
    await wire.command(raw)
    event = await wire.event()
    assert event["kind"] == "message.posted"
    assert event["cause"] == {"type": "command", "id": json.loads(raw)["actionId"]}
    assert event == mission.events()[-1]
    assert await wire.silent()


async def test_a_receipt_comes_once_where_its_place_is_reached(served: Served) -> None:
    mission = served.harness.mission()
    coordinator = served.harness.coordinator
    wire = await served.agent(coordinator)
    await wire.follow(mission.group_id)
    for _ in range(5):
        await wire.command(
            coordinator.command("message.post", message(served, mission.group_id), group_id=mission.group_id)
        )
    assert [(await wire.event())["sequence"] for _ in range(5)] == [2, 3, 4, 5, 6]
    assert await wire.silent()


async def test_a_filtered_receipt_reaches_its_issuer(served: Served) -> None:
    mission = served.harness.mission()
    coordinator = served.harness.coordinator
    wire = await served.agent(coordinator)
    await wire.follow({"groupId": mission.group_id, "afterSequence": 1, "attention": {"eventKinds": []}})
    await wire.command(
        coordinator.command("message.post", message(served, mission.group_id), group_id=mission.group_id)
    )
    assert (await wire.event())["kind"] == "message.posted"
    assert await wire.silent()


async def test_a_duplicate_is_answered_to_its_issuer_only(served: Served) -> None:
    mission = served.harness.mission()
    coordinator, worker = served.harness.coordinator, served.harness.workers[0]
    mission.add(worker)
    issuer, other = await served.agent(coordinator), await served.agent(worker)
    await issuer.follow(mission.group_id)
    await other.follow(mission.group_id)
    raw = coordinator.command("message.post", message(served, mission.group_id), group_id=mission.group_id)
    await issuer.command(raw)
    first = await issuer.event()
    assert await other.event() == first
    await issuer.command(raw)
    assert await issuer.event() == first
    assert await other.silent()


@pytest.mark.req("R-19-03")
async def test_a_refused_command_names_its_frame_and_action(served: Served) -> None:
    mission = served.harness.mission()
    worker = served.harness.workers[0]
    mission.add(worker)
    wire = await served.agent(worker)
    raw = worker.command(
        "work.authorize",
        {"workItemId": served.harness.new_id(), "contract": served.harness.contract()},
        group_id=mission.group_id,
    )
    sent = await wire.command(raw)
    error = await wire.error()
    assert error["code"] == "AUTH_FORBIDDEN"
    assert error["relatedFrameId"] == sent["frameId"]
    assert error["relatedActionId"] == json.loads(raw)["actionId"]
    assert error["fatal"] is False
    await alive(wire)


async def test_a_command_of_somebody_else_is_refused_before_its_receipt_is_looked_up(served: Served) -> None:
    mission = served.harness.mission()
    coordinator, worker = served.harness.coordinator, served.harness.workers[0]
    raw = coordinator.command("message.post", message(served, mission.group_id), group_id=mission.group_id)
    served.harness.send(raw)
    wire = await served.agent(worker)
    await wire.command(raw)
    assert (await wire.error())["code"] == "AUTH_FORBIDDEN"


@pytest.mark.req("R-6.4-81", "R-19-11")
async def test_signature_faults_look_all_alike(served: Served) -> None:
    mission = served.harness.mission()
    coordinator, worker = served.harness.coordinator, served.harness.workers[0]
    wire = await served.agent(coordinator)
    good = json.loads(coordinator.command("message.post", message(served, mission.group_id), group_id=mission.group_id))
    signature = good["signature"]
    stale = coordinator.command(
        "message.post", message(served, mission.group_id), group_id=mission.group_id, issued_at="2029-12-31T00:00:00Z"
    )
    faults = [
        good | {"signature": signature | {"value": "AAAA"}},
        good | {"signature": signature | {"createdAt": "2030-01-01T00:00:00.1Z"}},
        good | {"signature": signature | {"keyId": "urn:example:unknown"}},
        good | {"signature": signature | {"keyId": worker.key.key_id}},
        good | {"signature": signature | {"value": flip_base64url(signature["value"])}},
        json.loads(stale),
    ]
    seen = []
    for fault in faults:
        sent = await wire.send(wire.frame("COMMAND", command=fault))
        error = await wire.error()
        assert error.pop("relatedFrameId") == sent["frameId"]
        assert error.pop("relatedActionId") == fault["actionId"]
        seen.append(error)
    assert seen == [seen[0]] * len(faults)
    assert seen[0]["code"] == "AUTH_INVALID_SIGNATURE"
    assert "details" not in seen[0]
    await alive(wire)


async def test_the_action_id_of_a_command_that_fails_its_schema_is_given(served: Served) -> None:
    wire = await served.agent(served.harness.workers[0])
    await wire.send(wire.frame("COMMAND", command={"actionId": "urn:example:action", "more": 1}))
    assert (await wire.error())["relatedActionId"] == "urn:example:action"
    await wire.send(wire.frame("COMMAND", command={"actionId": "no URI"}))
    assert "relatedActionId" not in await wire.error()


@pytest.mark.req("R-19-32")
async def test_too_many_unanswered_commands_are_not_taken(start: Start, monkeypatch: pytest.MonkeyPatch) -> None:
    served = await start(commands_in_flight=2)
    mission = served.harness.mission()
    coordinator = served.harness.coordinator
    wire = await served.agent(coordinator)
    held: list[Any] = []
    submit = served.harness.node.submit
    monkeypatch.setattr(served.harness.node, "submit", lambda *call: held.append(call))
    raws = [
        coordinator.command("message.post", message(served, mission.group_id), group_id=mission.group_id)
        for _ in range(3)
    ]
    for raw in raws:
        await wire.command(raw)
    error = await wire.error()
    assert (error["code"], error["retryable"], error["fatal"]) == ("BACKPRESSURE", True, False)
    assert error["relatedActionId"] == json.loads(raws[2])["actionId"]
    assert error["retryAfterMs"] > 0
    for call in held:
        submit(*call)
    assert [(await wire.event())["cause"]["id"] for _ in range(2)] == [json.loads(raw)["actionId"] for raw in raws[:2]]
    monkeypatch.undo()


# --- SUBSCRIBE ---


@pytest.mark.req("R-16-06", "R-16-59", "R-17.1-07")
async def test_replay_begins_right_after_the_position(served: Served) -> None:
    mission = served.harness.mission()
    coordinator = served.harness.coordinator
    for _ in range(9):
        coordinator.send("message.post", message(served, mission.group_id), group_id=mission.group_id)
    wire = await served.agent(coordinator)
    assert [event["sequence"] for event in await wire.follow(mission.group_id, after=7)] == [8, 9, 10]
    assert [event["sequence"] for event in await wire.follow(mission.group_id, after=0)] == list(range(1, 11))
    assert await wire.follow(mission.group_id, after=10) == []
    assert await wire.follow(mission.group_id, after=1000) == []
    coordinator.send("message.post", message(served, mission.group_id), group_id=mission.group_id)
    assert (await wire.event())["sequence"] == 11


@pytest.mark.req("R-17.1-02", "R-17.1-07")
async def test_one_connection_serves_many_groups(served: Served) -> None:
    missions = [served.harness.mission() for _ in range(3)]
    coordinator = served.harness.coordinator
    for mission in missions:
        coordinator.send("message.post", message(served, mission.group_id), group_id=mission.group_id)
    wire = await served.agent(coordinator)
    events = await wire.follow(
        *({"groupId": mission.group_id, "afterSequence": place} for place, mission in enumerate(missions))
    )
    found = {mission.group_id: [] for mission in missions}
    for event in events:
        found[event["groupId"]].append(event["sequence"])
    assert list(found.values()) == [[1, 2], [2], []]
    for mission in missions:
        coordinator.send("message.post", message(served, mission.group_id), group_id=mission.group_id)
    live = {(event["groupId"], event["sequence"]) for event in [await wire.event() for _ in range(3)]}
    assert live == {(mission.group_id, 3) for mission in missions}


@pytest.mark.req("R-17.2-02", "R-17.2-03", "R-19-15", "R-19-03")
async def test_foreign_and_invented_groups_look_alike_and_hinder_no_other(served: Served) -> None:
    mine, foreign = served.harness.mission(), served.harness.mission()
    worker = served.harness.workers[0]
    mine.add(worker)
    wire = await served.agent(worker)
    sent = await wire.subscribe(foreign.group_id, "urn:example:invented", mine.group_id)
    frames = await wire.until_mark(sent)
    errors = [frame["error"] for frame in frames if frame["frameType"] == "ERROR"]
    assert [error["details"].pop("groupId") for error in errors] == [foreign.group_id, "urn:example:invented"]
    assert errors[0] == errors[1]
    assert (errors[0]["code"], errors[0]["fatal"]) == ("GROUP_NOT_FOUND", False)
    assert "groupId" not in errors[0]
    events = [frame["event"] for frame in frames if frame["frameType"] == "EVENT"]
    assert {event["groupId"] for event in events} == {mine.group_id}


@pytest.mark.req("R-8-13")
async def test_a_late_joiner_reads_from_its_start(served: Served) -> None:
    mission = served.harness.mission()
    coordinator, worker = served.harness.coordinator, served.harness.workers[0]
    for _ in range(4):
        coordinator.send("message.post", message(served, mission.group_id), group_id=mission.group_id)
    joined = mission.add(worker)
    coordinator.send("message.post", message(served, mission.group_id), group_id=mission.group_id)
    wire = await served.agent(worker)
    assert [event["sequence"] for event in await wire.follow(mission.group_id)] == [joined["sequence"], 7]


@pytest.mark.req("R-19-16")
async def test_the_end_of_a_membership_is_the_last_thing_heard(served: Served) -> None:
    mission = served.harness.mission()
    coordinator, worker = served.harness.coordinator, served.harness.workers[0]
    mission.add(worker)
    wire = await served.agent(worker)
    await wire.follow(mission.group_id)
    principal = {"type": "agent", "id": worker.id}
    coordinator.send("membership.end", {"principal": principal}, group_id=mission.group_id)
    coordinator.send("message.post", message(served, mission.group_id), group_id=mission.group_id)
    assert (await wire.event())["kind"] == "membership.ended"
    assert await wire.silent()
    frames = await wire.until_mark(await wire.subscribe(mission.group_id))
    assert [frame["error"]["code"] for frame in frames] == ["MEMBERSHIP_REQUIRED"]
    await alive(wire)


async def test_a_new_membership_is_told_unsubscribed(served: Served) -> None:
    mission = served.harness.mission()
    worker = served.harness.workers[0]
    wire = await served.agent(worker)
    mission.add(worker)
    event = await wire.event()
    assert (event["kind"], event["groupId"]) == ("membership.changed", mission.group_id)
    await alive(wire)


async def test_a_new_mission_is_told_to_its_coordinator(served: Served) -> None:
    wire = await served.agent(served.harness.coordinator)
    mission = served.harness.mission()
    event = await wire.event()
    assert (event["kind"], event["groupId"]) == ("mission.created", mission.group_id)


@pytest.mark.req("R-17.2-01", "R-8-18", "R-8-20")
async def test_a_filter_narrows_what_is_live_and_nothing_else(served: Served) -> None:
    mission = served.harness.mission()
    coordinator = served.harness.coordinator
    coordinator.send("message.post", message(served, mission.group_id), group_id=mission.group_id)
    wire = await served.agent(served.harness.coordinator)
    attention = {"eventKinds": ["work.authorized"]}
    replayed = await wire.follow({"groupId": mission.group_id, "afterSequence": 0, "attention": attention})
    assert [event["kind"] for event in replayed] == ["mission.created", "message.posted"]
    coordinator.send("message.post", message(served, mission.group_id), group_id=mission.group_id)
    mission.authorize()
    assert (await wire.event())["kind"] == "work.authorized"
    assert [event["sequence"] for event in await wire.follow(mission.group_id, after=1)] == [2, 3, 4]


async def test_repeating_a_subscription_replaces_its_filter(served: Served) -> None:
    mission = served.harness.mission()
    coordinator = served.harness.coordinator
    wire = await served.agent(coordinator)
    await wire.follow({"groupId": mission.group_id, "afterSequence": 1, "attention": {"eventKinds": []}})
    await wire.follow(mission.group_id, after=1)
    coordinator.send("message.post", message(served, mission.group_id), group_id=mission.group_id)
    assert (await wire.event())["kind"] == "message.posted"
    assert await wire.silent()


async def test_subscriptions_are_bounded(start: Start) -> None:
    served = await start(subscriptions=2)
    missions = [served.harness.mission() for _ in range(3)]
    wire = await served.agent(served.harness.coordinator)
    frames = await wire.until_mark(await wire.subscribe(*(mission.group_id for mission in missions)))
    errors = [frame["error"] for frame in frames if frame["frameType"] == "ERROR"]
    assert [(error["code"], error["details"]["groupId"]) for error in errors] == [
        ("RATE_LIMITED", missions[2].group_id)
    ]


# --- ACK ---


async def _cursors(served: Served, who: Any) -> dict[str, int]:
    listed = await asyncio.to_thread(served.http(who).get, "/v0.1/cursors")
    return {cursor["groupId"]: cursor["sequence"] for cursor in listed["cursors"]}


async def _settled(served: Served) -> None:
    """Until acknowledged Cursors are durable."""
    while served.hub._cursors.busy:
        await asyncio.sleep(0.005)


@pytest.mark.req("R-17.1-10", "R-16-57")
async def test_an_ack_moves_durable_cursors_forward_only(served: Served) -> None:
    one, two = served.harness.mission(), served.harness.mission()
    coordinator = served.harness.coordinator
    for mission in (one, two):
        for _ in range(3):
            coordinator.send("message.post", message(served, mission.group_id), group_id=mission.group_id)
    wire = await served.agent(coordinator)
    await wire.ack({one.group_id: 3, two.group_id: 2})
    await alive(wire)
    await _settled(served)
    assert await _cursors(served, coordinator) == {one.group_id: 3, two.group_id: 2}
    await wire.ack({one.group_id: 1})
    await alive(wire)
    await _settled(served)
    assert await _cursors(served, coordinator) == {one.group_id: 3, two.group_id: 2}


@pytest.mark.req("R-16-06")
async def test_the_position_wins_over_the_cursor(served: Served) -> None:
    mission = served.harness.mission()
    wire = await served.agent(served.harness.coordinator)
    await wire.ack({mission.group_id: 1})
    await alive(wire)
    assert [event["sequence"] for event in await wire.follow(mission.group_id)] == [1]


async def test_an_ack_beyond_the_head_or_of_a_foreign_group_moves_nothing(served: Served) -> None:
    mine, foreign = served.harness.mission(), served.harness.mission()
    worker = served.harness.workers[0]
    mine.add(worker)
    wire = await served.agent(worker)
    await wire.ack({mine.group_id: 99, foreign.group_id: 1, "urn:example:invented": 1})
    errors = [await wire.error() for _ in range(3)]
    assert {error["details"]["groupId"]: error["code"] for error in errors} == {
        mine.group_id: "INVALID_COMMAND",
        foreign.group_id: "GROUP_NOT_FOUND",
        "urn:example:invented": "GROUP_NOT_FOUND",
    }
    await _settled(served)
    assert await _cursors(served, worker) == {}
    await alive(wire)


# --- PING ---


@pytest.mark.req("R-17.1-11")
async def test_a_ping_is_answered_and_an_answer_is_not(served: Served) -> None:
    wire = await served.agent(served.harness.workers[0])
    await wire.send(wire.frame("PING", **PING))
    answer = await wire.receive()
    assert answer["replyToNonce"] == "bm9uY2U"
    assert answer["nonce"] != "bm9uY2U"
    await wire.send(wire.frame("PING", replyToNonce=answer["nonce"], **PING))
    assert await wire.silent()


@pytest.mark.req("R-17.1-11")
async def test_the_node_pings_into_silence_and_then_gives_up(served: Served) -> None:
    wire = await served.agent(served.harness.workers[0])
    await served.advance(21)
    assert (await wire.receive())["frameType"] == "PING"
    await served.advance(5)
    assert await wire.silent()
    await served.advance(40)
    assert await wire.closed() == 1001


def presence(who: Any, epoch: int, **members: Any) -> dict[str, Any]:
    return {
        "agentId": who.id,
        "sessionEpoch": epoch,
        "status": "online",
        "capacity": {"maxSlots": 2, "activeSlots": 0, "availableSlots": 2, "queuedItems": 0},
        "capabilityAvailability": [],
        "lastHeartbeat": "2030-01-01T00:00:00Z",
        "expiresAt": "2030-01-01T00:01:00Z",
        **members,
    }


@pytest.mark.req("R-6.2-01", "R-6.2-04")
async def test_presence_is_kept_for_a_while_and_moves_nothing(served: Served) -> None:
    mission = served.harness.mission()
    worker = served.harness.workers[0]
    mission.add(worker)
    wire = await served.agent(worker)
    before = len(mission.events())
    for _ in range(100):
        await wire.send(wire.frame("PING", presence=presence(worker, wire.epoch), **PING))
        await wire.receive()
    owner = served.http(served.harness.owner)
    assert await asyncio.to_thread(owner.get, "/v0.1/presence") == {"presence": [presence(worker, wire.epoch)]}
    card = await asyncio.to_thread(owner.get, "/v0.1/agents/" + worker.id.replace(":", "%3A"))
    assert card["cardVersion"] == 1
    assert len(mission.events()) == before
    await served.advance(61)
    assert await asyncio.to_thread(owner.get, "/v0.1/presence") == {"presence": []}


@pytest.mark.req("R-6.1-02")
async def test_only_the_card_makes_an_agent_capable(served: Served) -> None:
    """What it says of itself in Presence or in a Message is believed by nobody."""
    mission = served.harness.mission()
    worker = served.harness.workers[0]
    mission.add(worker)
    claimed = {"id": "example.welding", "version": "1.0.0"}
    work = mission.authorize(requiredCapabilities=[claimed])
    with pytest.raises(MissionWeaveError) as before:
        work.offer(worker)
    wire = await served.agent(worker)
    availability = [{"capability": claimed, "status": "available"}]
    told = presence(worker, wire.epoch, capabilityAvailability=availability)
    await wire.send(wire.frame("PING", presence=told, **PING))
    await wire.receive()
    worker.session_epoch = wire.epoch
    mission.post(worker, "I am capable of example.welding@1.0.0")
    with pytest.raises(MissionWeaveError) as after:
        work.offer(worker)
    assert before.value.code == after.value.code == "AUTH_FORBIDDEN"
    assert work.state == "open"


@pytest.mark.req("R-6.2-04")
@pytest.mark.parametrize("change", [{"agentId": "urn:example:other"}, {"sessionEpoch": 99}])
async def test_presence_of_somebody_else_is_refused(served: Served, change: dict[str, Any]) -> None:
    worker = served.harness.workers[0]
    wire = await served.agent(worker)
    await wire.send(wire.frame("PING", presence=presence(worker, wire.epoch, **change), **PING))
    assert (await wire.error())["code"] == "AUTH_FORBIDDEN"
    await alive(wire)
