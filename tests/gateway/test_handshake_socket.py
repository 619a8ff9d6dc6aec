"""The HELLO handshake over a real socket: order, refusals, epochs, fencing (sections 6.3, 17.1; decisions C1, C2)."""

from __future__ import annotations

import json
from typing import Any

import pytest

from mwnode.testing import flip_base64url
from tests.gateway.conftest import Served
from tests.gateway.wire import Wire, unb64


@pytest.mark.req("R-6.3-02", "R-6.3-03", "R-6.3-04", "R-6.3-05", "R-17.1-06")
async def test_four_frames_open_a_session(served: Served) -> None:
    worker = served.harness.workers[0]
    wire = await served.dial()
    init = await wire.send(wire.client_init(worker))
    challenge = await wire.receive()
    assert challenge["phase"] == "server_challenge"
    assert challenge["selectedVersion"] == "0.1"
    assert challenge["clientNonce"] == init["clientNonce"]
    transcript = json.loads(unb64(challenge["challenge"]))
    assert set(transcript) == {
        "agentId",
        "challengeId",
        "clientNonce",
        "expiresAt",
        "keyId",
        "protocolVersion",
        "serverNonce",
    }
    assert transcript["agentId"] == worker.id
    assert transcript["keyId"] == worker.key.key_id
    assert transcript["serverNonce"] == challenge["serverNonce"]
    assert transcript["expiresAt"] == "2030-01-01T00:00:30+00:00"
    await wire.send(wire.client_response(worker, challenge))
    accept = await wire.receive()
    assert accept["phase"] == "server_accept"
    assert accept["sessionEpoch"] == 2
    assert accept["expiresAt"] == "2030-01-01T00:15:00Z"
    assert 16 <= len(accept["sessionToken"]) <= 8192


@pytest.mark.req("R-6.3-05")
async def test_epochs_rise_and_tokens_differ(served: Served) -> None:
    worker = served.harness.workers[0]
    first, second = await served.dial(), await served.dial()
    one, two = await first.hello(worker), await second.hello(worker)
    assert two["sessionEpoch"] == one["sessionEpoch"] + 1
    assert one["sessionToken"] != two["sessionToken"]


@pytest.mark.req("R-6.3-03")
async def test_every_challenge_is_fresh(served: Served) -> None:
    worker = served.harness.workers[0]
    seen = set()
    for _ in range(20):
        wire = await served.dial()
        await wire.send(wire.client_init(worker))
        seen.add((await wire.receive())["challenge"])
        await wire.close()
    assert len(seen) == 20


@pytest.mark.req("R-6.3-03")
async def test_an_answer_to_an_earlier_challenge_is_refused(served: Served) -> None:
    worker = served.harness.workers[0]
    first, second = await served.dial(), await served.dial()
    await first.send(first.client_init(worker))
    earlier = await first.receive()
    await second.send(second.client_init(worker))
    own = await second.receive()
    replayed = second.client_response(worker, earlier) | {"serverNonce": own["serverNonce"]}
    await second.send(replayed)
    error = await second.error()
    assert (error["code"], error["fatal"]) == ("AUTH_INVALID_SIGNATURE", True)
    assert await second.closed() == 1008


DAMAGE: dict[str, Any] = {
    "a flipped signature bit": lambda answer: {"challengeSignature": flip_base64url(answer["challengeSignature"])},
    "a signature of the wrong length": lambda answer: {"challengeSignature": answer["challengeSignature"][:-4]},
    "another Agent": lambda answer: {"agentId": "urn:mwnode:agent:coordinator"},
    "another key": lambda answer: {"keyId": "urn:example:key"},
    "another client nonce": lambda answer: {"clientNonce": "b3RoZXI"},
    "another server nonce": lambda answer: {"serverNonce": "b3RoZXI"},
}


@pytest.mark.req("R-6.3-04", "R-6.4-81")
@pytest.mark.parametrize("damage", DAMAGE.values(), ids=DAMAGE.keys())
async def test_a_damaged_answer_is_refused_without_saying_why(served: Served, damage: Any) -> None:
    worker = served.harness.workers[0]
    wire = await served.dial()
    await wire.send(wire.client_init(worker))
    answer = wire.client_response(worker, await wire.receive())
    sent = await wire.send(answer | damage(answer))
    error = await wire.error()
    assert error.pop("occurredAt")
    assert error == {
        "code": "AUTH_INVALID_SIGNATURE",
        "message": "signed document rejected",
        "retryable": False,
        "fatal": True,
        "relatedFrameId": sent["frameId"],
    }
    assert await wire.closed() == 1008
    assert served.harness.session_epoch(worker) == 1


@pytest.mark.req("R-6.3-01", "R-6.3-04")
@pytest.mark.parametrize("members", [{"agentId": "urn:example:nobody"}, {"keyId": "urn:example:no-key"}])
async def test_an_unknown_agent_or_key_gets_no_challenge(
    served: Served, members: dict[str, str], caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level("INFO", logger="mwnode.gateway.hub")
    wire = await served.dial()
    await wire.send(wire.client_init(served.harness.workers[0], **members))
    assert (await wire.error())["code"] == "AUTH_INVALID_SIGNATURE"
    assert await wire.closed() == 1008
    told = [one.getMessage() for one in caplog.records if one.name == "mwnode.gateway.hub"]
    assert told == ["refused a connection before its handshake was complete: AUTH_INVALID_SIGNATURE"]


async def test_a_challenge_is_good_for_thirty_seconds(served: Served) -> None:
    worker = served.harness.workers[0]
    wire = await served.dial()
    await wire.send(wire.client_init(worker))
    challenge = await wire.receive()
    served.harness.clock.advance(30)
    await wire.send(wire.client_response(worker, challenge))
    assert (await wire.error())["code"] == "AUTH_INVALID_SIGNATURE"


def _without(name: str) -> Any:
    return lambda frame: {key: value for key, value in frame.items() if key != name}


FIRST: dict[str, tuple[Any, str]] = {
    "no agentId": (_without("agentId"), "SCHEMA_VALIDATION_FAILED"),
    "no keyId": (_without("keyId"), "SCHEMA_VALIDATION_FAILED"),
    "no clientNonce": (_without("clientNonce"), "SCHEMA_VALIDATION_FAILED"),
    "no supportedVersions": (_without("supportedVersions"), "SCHEMA_VALIDATION_FAILED"),
    "an extra member": (lambda frame: frame | {"more": 1}, "SCHEMA_VALIDATION_FAILED"),
    "an unknown phase": (lambda frame: frame | {"phase": "client_hello"}, "SCHEMA_VALIDATION_FAILED"),
    "only version 9.9": (lambda frame: frame | {"supportedVersions": ["9.9"]}, "UNSUPPORTED_VERSION"),
    "a frame of version 9.9": (lambda frame: frame | {"protocolVersion": "9.9"}, "UNSUPPORTED_VERSION"),
    "a repeated version": (lambda frame: frame | {"supportedVersions": ["0.1", "0.1"]}, "SCHEMA_VALIDATION_FAILED"),
    "a server's phase": (lambda frame: frame | {"phase": "server_challenge"}, "SCHEMA_VALIDATION_FAILED"),
    "an unknown type": (lambda frame: frame | {"frameType": "DELTA"}, "AUTH_REQUIRED"),
    "an array": (lambda frame: [frame], "PROTOCOL_VIOLATION"),
}


@pytest.mark.req("R-6.3-02", "R-17.1-06", "R-19-09", "R-19-18", "R-19-34")
@pytest.mark.parametrize("change, code", FIRST.values(), ids=FIRST.keys())
async def test_a_wrong_first_frame_ends_the_connection(served: Served, change: Any, code: str) -> None:
    wire = await served.dial()
    await wire.send(change(wire.client_init(served.harness.workers[0])))
    error = await wire.error()
    assert (error["code"], error["fatal"]) == (code, True)
    assert await wire.closed() == 1008


@pytest.mark.req("R-19-10", "R-6.2-04")
@pytest.mark.parametrize(
    "frame",
    [
        {"frameType": "SUBSCRIBE", "subscriptionId": "urn:x:1", "groups": [{"groupId": "urn:x:2", "afterSequence": 0}]},
        {"frameType": "PING", "nonce": "bm9uY2U", "sentAt": "2030-01-01T00:00:00Z"},
        {"frameType": "COMMAND", "command": {}},
        {"frameType": "EVENT", "event": {}},
        {"frameType": "HELLO", "phase": "client_response", "agentId": "urn:x:1", "keyId": "urn:x:2",
         "clientNonce": "bm9uY2U", "serverNonce": "bm9uY2U", "challengeSignature": "bm9uY2U"},
    ],
    ids=["SUBSCRIBE", "PING", "COMMAND", "EVENT", "client_response"],
)  # fmt: skip
async def test_nothing_but_hello_comes_first(served: Served, frame: dict[str, Any]) -> None:
    wire = await served.dial()
    await wire.send({"protocolVersion": "0.1", "frameId": "urn:test:first", **frame})
    error = await wire.error()
    assert (error["code"], error["fatal"], error["relatedFrameId"]) == ("AUTH_REQUIRED", True, "urn:test:first")
    assert await wire.closed() == 1008


@pytest.mark.req("R-19-10")
async def test_other_frames_between_the_four_are_refused(served: Served) -> None:
    worker = served.harness.workers[0]
    wire = await served.dial()
    await wire.send(wire.client_init(worker))
    await wire.receive()
    await wire.send(wire.frame("PING", nonce="bm9uY2U", sentAt="2030-01-01T00:00:00Z"))
    assert (await wire.error())["code"] == "AUTH_REQUIRED"


async def test_a_second_client_init_is_refused(served: Served) -> None:
    worker = served.harness.workers[0]
    wire = await served.dial()
    await wire.send(wire.client_init(worker))
    await wire.receive()
    await wire.send(wire.client_init(worker))
    assert (await wire.error())["code"] == "PROTOCOL_VIOLATION"
    assert await wire.closed() == 1008


@pytest.mark.req("R-19-09")
async def test_a_list_that_names_our_version_among_others_is_served(served: Served) -> None:
    wire = await served.dial()
    await wire.send(wire.client_init(served.harness.workers[0], supportedVersions=["0.1", "9.9"]))
    assert (await wire.receive())["phase"] == "server_challenge"


@pytest.mark.req("R-6.3-02")
async def test_a_hello_after_acceptance_is_refused_and_costs_nothing(served: Served) -> None:
    worker = served.harness.workers[0]
    wire = await served.agent(worker)
    sent = await wire.send(wire.client_init(worker))
    error = await wire.error()
    assert (error["code"], error["fatal"], error["relatedFrameId"]) == ("PROTOCOL_VIOLATION", False, sent["frameId"])
    await _alive(wire)


@pytest.mark.req("R-6.3-06", "R-19-12")
async def test_a_newer_session_fences_the_older_one(served: Served) -> None:
    mission = served.harness.mission()
    coordinator = served.harness.coordinator
    old = await served.agent(coordinator)
    await old.follow(mission.group_id)
    new = await served.agent(coordinator)
    await new.follow(mission.group_id)
    await new.command(
        coordinator.command("message.post", _message(served, mission.group_id), group_id=mission.group_id)
    )
    assert (await new.event())["kind"] == "message.posted"
    assert await old.silent()
    sent = await old.send(old.frame("PING", nonce="bm9uY2U", sentAt="2030-01-01T00:00:00Z"))
    error = await old.error()
    assert (error["code"], error["fatal"], error["relatedFrameId"]) == ("AUTH_STALE_SESSION", True, sent["frameId"])
    assert await old.closed() == 1008
    await _alive(new)


@pytest.mark.req("R-6.3-06")
async def test_a_fenced_connection_that_says_nothing_is_closed(served: Served) -> None:
    worker = served.harness.workers[0]
    old = await served.agent(worker)
    await served.agent(worker)
    await served.advance(6)
    assert await old.closed() == 1008


@pytest.mark.req("R-6.3-06")
async def test_a_session_opened_elsewhere_fences_too(served: Served) -> None:
    worker = served.harness.workers[0]
    wire = await served.agent(worker)
    worker.connect()
    await wire.send(wire.frame("PING", nonce="bm9uY2U", sentAt="2030-01-01T00:00:00Z"))
    frames = [await wire.receive()]
    if frames[0]["frameType"] == "PING":
        # The PING may have been faster than the news.
        await wire.send(wire.frame("PING", nonce="bm9uY2U", sentAt="2030-01-01T00:00:00Z"))
        frames.append(await wire.receive())
    assert frames[-1]["error"]["code"] == "AUTH_STALE_SESSION"


async def test_a_handshake_that_takes_too_long_is_ended(served: Served) -> None:
    idle = await served.dial()
    started = await served.dial()
    await started.send(started.client_init(served.harness.workers[0]))
    await started.receive()
    await served.advance(11)
    for wire in (idle, started):
        assert (await wire.error())["code"] == "AUTH_REQUIRED"
        assert await wire.closed() == 1008


async def _alive(wire: Wire) -> None:
    await wire.send(wire.frame("PING", nonce="bm9uY2U", sentAt="2030-01-01T00:00:00Z"))
    assert (await wire.receive())["replyToNonce"] == "bm9uY2U"


def _message(served: Served, group_id: str, text: str = "ready") -> dict[str, Any]:
    return {"messageId": served.harness.new_id(), "conversationId": f"{group_id}:mission", "content": text}
