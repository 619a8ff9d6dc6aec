"""Frames: seven types, ten shapes, documents untouched, faults by their codes."""

from __future__ import annotations

import json
from typing import Any

import msgspec
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from mwnode.protocol import frames, strict_json
from mwnode.protocol.errors import ErrorCode, ErrorDocument, ProtocolViolation, UnsupportedVersion
from mwnode.protocol.frames import CommandFrame, EventFrame, decode_client_frame, decode_frame, decode_server_frame
from mwnode.protocol.strict_json import JsonFault, SchemaFault
from tests.trust import makers
from tests.trust.makers import NOW

HEAD = {"protocolVersion": "0.1", "frameId": "urn:example:frame:1"}
COMMAND = makers.raw(makers.signed("command"))
EVENT = makers.raw(makers.signed("event"))
PRESENCE = {
    "agentId": "urn:a:1",
    "sessionEpoch": 1,
    "status": "online",
    "capacity": {"maxSlots": 1, "activeSlots": 0, "availableSlots": 1, "queuedItems": 0},
    "capabilityAvailability": [],
    "lastHeartbeat": NOW,
    "expiresAt": NOW,
}
GOOD: dict[str, dict[str, Any]] = {
    "client_init": {
        **HEAD,
        "frameType": "HELLO",
        "phase": "client_init",
        "agentId": "urn:a:1",
        "keyId": "urn:k:1",
        "clientNonce": "AAAA",
        "supportedVersions": ["0.1"],
    },
    "server_challenge": {
        **HEAD,
        "frameType": "HELLO",
        "phase": "server_challenge",
        "selectedVersion": "0.1",
        "clientNonce": "AAAA",
        "serverNonce": "BBBB",
        "challenge": "CCCC",
    },
    "client_response": {
        **HEAD,
        "frameType": "HELLO",
        "phase": "client_response",
        "agentId": "urn:a:1",
        "keyId": "urn:k:1",
        "clientNonce": "AAAA",
        "serverNonce": "BBBB",
        "challengeSignature": "DDDD",
    },
    "server_accept": {
        **HEAD,
        "frameType": "HELLO",
        "phase": "server_accept",
        "selectedVersion": "0.1",
        "sessionToken": "t" * 16,
        "sessionEpoch": 1,
        "expiresAt": NOW,
    },
    "subscribe": {
        **HEAD,
        "frameType": "SUBSCRIBE",
        "subscriptionId": "urn:s:1",
        "groups": [
            {"groupId": "urn:g:1", "afterSequence": 0},
            {
                "groupId": "urn:g:2",
                "afterSequence": 7,
                "attention": {"eventKinds": ["work.started"], "workItemIds": [], "mentionsOnly": True},
            },
        ],
    },
    "command": {**HEAD, "frameType": "COMMAND", "command": json.loads(COMMAND)},
    "event": {**HEAD, "frameType": "EVENT", "event": json.loads(EVENT)},
    "ack": {
        **HEAD,
        "frameType": "ACK",
        "acknowledgements": [{"groupId": "urn:g:1", "sequence": 3}, {"groupId": "urn:g:2", "sequence": 0}],
        "sentAt": NOW,
    },
    "ping": {**HEAD, "frameType": "PING", "nonce": "AAAA", "replyToNonce": "BBBB", "sentAt": NOW, "presence": PRESENCE},
    "error": {
        **HEAD,
        "frameType": "ERROR",
        "error": {"code": "GROUP_NOT_FOUND", "message": "no such Group", "retryable": False, "occurredAt": NOW},
    },
}
FROM_CLIENT = {"client_init", "client_response", "subscribe", "command", "ack", "ping"}
FROM_SERVER = {"server_challenge", "server_accept", "event", "ping", "error"}


def text(frame: Any) -> bytes:
    return json.dumps(frame).encode()


def plainly(frame: Any) -> Any:
    return json.loads(frames.encode(frame))


@pytest.mark.req("R-17.1-05", "R-17.1-06", "R-17.1-07", "R-17.1-08", "R-17.1-09", "R-17.1-10", "R-17.1-11", "R-17.1-12")
@pytest.mark.parametrize("name", GOOD)
def test_each_frame_reads_and_writes(name: str) -> None:
    frame = decode_frame(text(GOOD[name]))
    assert plainly(frame) == GOOD[name]
    frames.check_frame(text(GOOD[name]))
    # Every spelling of the same frame reads alike, whichever way it is read.
    for spelled in (json.dumps(GOOD[name], indent=2), json.dumps(GOOD[name]).replace('"HELLO"', '"\\u0048ELLO"')):
        assert plainly(decode_frame(spelled.encode())) == GOOD[name]
    exact = frames._exact(text(GOOD[name]), 64, 1 << 20)
    assert plainly(exact) == GOOD[name]


@pytest.mark.req("R-17.1-05", "R-17.1-06")
@pytest.mark.parametrize("name", GOOD)
def test_who_may_send_what(name: str) -> None:
    for decode, allowed in ((decode_client_frame, FROM_CLIENT), (decode_server_frame, FROM_SERVER)):
        if name in allowed:
            assert plainly(decode(text(GOOD[name]))) == GOOD[name]
        else:
            with pytest.raises(ProtocolViolation):
                decode(text(GOOD[name]))


@pytest.mark.req("R-21-02", "R-21-04", "R-17.1-03")
@pytest.mark.parametrize("name", GOOD)
def test_frames_are_closed_and_complete(name: str) -> None:
    good = GOOD[name]
    optional = {"replyToNonce", "presence"}
    broken = [
        {member: value for member, value in good.items() if member != left_out}
        for left_out in good
        if left_out not in optional
    ]
    broken += [
        {**good, "x": 1},
        {**good, "protocolVersion": "0.2"},
        {**good, "frameId": "no uri"},
        {**good, "frameType": 1},
    ]
    for frame in broken:
        with pytest.raises(SchemaFault) as caught:
            decode_frame(text(frame))
        assert frames.rejection_of(caught.value).code is ErrorCode.SCHEMA_VALIDATION_FAILED


@pytest.mark.req("R-17.1-05", "R-17.1-06", "R-17.1-07", "R-17.1-10")
@pytest.mark.parametrize(
    "name, change",
    [
        ("client_init", {"frameType": "DELTA"}),
        ("client_init", {"phase": "client_done"}),
        ("client_init", {"phase": ["client_init"]}),
        ("client_init", {"supportedVersions": []}),
        ("client_init", {"supportedVersions": ["0.1", "0.1"]}),
        ("subscribe", {"groups": []}),
        ("subscribe", {"groups": [{"groupId": "urn:g:1"}]}),
        ("subscribe", {"groups": [{"groupId": "urn:g:1", "afterSequence": -1}]}),
        (
            "subscribe",
            {"groups": [{"groupId": "urn:g:1", "afterSequence": 0, "attention": {"eventKinds": ["a.b", "a.b"]}}]},
        ),
        ("ack", {"acknowledgements": []}),
        ("ack", {"acknowledgements": [{"groupId": "urn:g:1", "sequence": 1.5}]}),
        ("ping", {"nonce": "A"}),
        ("ping", {"presence": {**PRESENCE, "credentials": "x"}}),
        ("server_accept", {"sessionToken": "short"}),
        ("server_accept", {"sessionEpoch": 0}),
        ("error", {"error": {"code": "NONE"}}),
    ],
)
def test_bad_members_are_schema_faults(name: str, change: dict[str, Any]) -> None:
    with pytest.raises(SchemaFault):
        decode_frame(text({**GOOD[name], **change}))


@pytest.mark.req("R-17.1-03", "R-17.4-02", "R-19-34")
@pytest.mark.parametrize(
    "raw",
    [
        b"",
        b"{",
        text(GOOD["ping"]) * 2,
        text(GOOD["ping"]).replace(b"AAAA", b"AA\xff"),
        b"\xef\xbb\xbf" + text(GOOD["ping"]),
        text(GOOD["ping"]).replace(b"{", b'{"frameId":"urn:x:1",', 1),
        text(GOOD["ping"]).replace(b"{", b'{"\\u0066rameId":"urn:x:1",', 1),
        text({**GOOD["command"], "x": 1}).replace(b'"payload": {', b'"payload": {"a": 1, "a": 1, '),
        text(GOOD["ack"]).replace(b'"sequence": 3', b'"sequence": 3, "sequence": 3'),
    ],
)
def test_json_faults_are_protocol_violations_even_beside_schema_faults(raw: bytes) -> None:
    with pytest.raises(JsonFault) as caught:
        decode_client_frame(raw)
    assert frames.rejection_of(caught.value).code is ErrorCode.PROTOCOL_VIOLATION


@pytest.mark.req("R-17.1-03")
def test_one_object_is_one_frame() -> None:
    for raw in (b"[]", b"1", b'"x"', b"null", text([GOOD["ping"]])):
        with pytest.raises(SchemaFault):
            decode_frame(raw)


@pytest.mark.req("R-19-09")
def test_no_common_version_is_found_before_the_schema_is_asked() -> None:
    for offered in (["9.9"], ["0.2", "1.0"], [1]):
        with pytest.raises(UnsupportedVersion):
            decode_client_frame(text({**GOOD["client_init"], "supportedVersions": offered}))
    with pytest.raises(SchemaFault):
        decode_client_frame(text({**GOOD["client_init"], "supportedVersions": []}))
    with pytest.raises(SchemaFault):
        decode_client_frame(text({**GOOD["ping"], "supportedVersions": ["9.9"]}))


# --- the document inside ----------------------------------------------------------------------------------------------


@pytest.mark.req("R-17.1-08", "R-17.1-09", "R-17.4-01")
def test_a_document_keeps_its_bytes() -> None:
    spaced = json.dumps(json.loads(COMMAND), indent=1).encode()
    frame = decode_client_frame(frames.encode_command_frame("urn:f:1", spaced))
    assert isinstance(frame, CommandFrame)
    assert bytes(frame.command) == spaced
    event = decode_server_frame(frames.encode_event_frame("urn:f:1", EVENT))
    assert isinstance(event, EventFrame)
    assert bytes(event.event) == EVENT
    assert frames.encode(event) == frames.encode(
        EventFrame(protocol_version="0.1", frame_id="urn:f:1", event=msgspec.Raw(EVENT))
    )


@pytest.mark.req("R-6.4-45")
@pytest.mark.parametrize(
    "member", ['"x": 1e400', '"x": "\\ud800"', '"\\udfff": [1.0, 9007199254740993]', '"x": "\\u00e9"']
)
def test_a_document_that_only_stage_5_refuses_comes_through_whole(member: str) -> None:
    raw = text(GOOD["command"]).replace(b'"payload": {', f'"payload": {{{member}, '.encode())
    for spelled in (raw, raw.replace(b'"COMMAND"', b'"\\u0043OMMAND"')):
        frame = decode_client_frame(spelled)
        assert isinstance(frame, CommandFrame)
        assert strict_json.parse(bytes(frame.command)) == strict_json.parse(spelled)["command"]


@pytest.mark.req("R-17.1-08")
def test_what_is_no_command_is_found_by_the_full_check() -> None:
    for document in ([], 1, "x", {}, None, [json.loads(COMMAND)]):
        raw = text({**GOOD["command"], "command": document})
        assert isinstance(decode_client_frame(raw), CommandFrame)
        with pytest.raises(SchemaFault):
            frames.check_frame(raw)
    with pytest.raises(SchemaFault):
        frames.check_frame(text({**GOOD["event"], "event": json.loads(COMMAND)}))


def test_nesting_counts_the_frame_too() -> None:
    deep: Any = 0
    for _ in range(60):
        deep = [deep]
    command = makers.signed("command", payload={"x": deep})
    assert decode_client_frame(text({**GOOD["command"], "command": command}))
    for _ in range(3):
        deep = [deep]
    command = makers.signed("command", payload={"x": deep})
    with pytest.raises(JsonFault, match="deeper than 64"):
        decode_client_frame(text({**GOOD["command"], "command": command}))


def test_limits_are_the_callers() -> None:
    with pytest.raises(JsonFault, match="limit of 100"):
        decode_client_frame(text(GOOD["command"]), bytes_max=100)
    with pytest.raises(JsonFault, match="deeper than 2"):
        decode_client_frame(text(GOOD["subscribe"]), depth_max=2)


@pytest.mark.req("R-19-03")
def test_related_ids_are_told_where_they_can_be() -> None:
    action_id = makers.signed("command")["actionId"]
    assert frames.related_ids(text({**GOOD["command"], "x": 1})) == (HEAD["frameId"], action_id)
    assert frames.related_ids(text({**GOOD["ping"], "frameId": "no uri"})) == (None, None)
    assert frames.related_ids(text({**GOOD["command"], "command": [1]})) == (HEAD["frameId"], None)
    for raw in (b"{", b"[]", b"\xff"):
        assert frames.related_ids(raw) == (None, None)


def test_an_error_frame_carries_an_error_document() -> None:
    frame = decode_server_frame(text(GOOD["error"]))
    assert isinstance(frame, frames.ErrorFrame)
    assert isinstance(frame.error, ErrorDocument)
    assert frame.error.code is ErrorCode.GROUP_NOT_FOUND


@settings(max_examples=400, deadline=None)
@given(
    name=st.sampled_from(sorted(GOOD)),
    position=st.integers(0, 5000),
    junk=st.one_of(st.binary(max_size=4), st.sampled_from([b"\\u003a", b'"a":1,', b"1.0", b"[", b'"', b"\\"])),
    cut=st.integers(0, 3),
)
def test_the_fast_way_and_the_exact_way_agree(name: str, position: int, junk: bytes, cut: int) -> None:
    raw = text(GOOD[name])
    position %= len(raw)
    raw = raw[:position] + junk + raw[position + cut :]

    def answer(way: Any) -> Any:
        try:
            frame = way()
        except (JsonFault, SchemaFault, UnsupportedVersion) as fault:
            return type(fault), str(fault)
        document = (
            frame.command if isinstance(frame, CommandFrame) else frame.event if isinstance(frame, EventFrame) else b"0"
        )
        try:
            inside = strict_json.parse(bytes(document))
        except JsonFault:
            return JsonFault
        return {**msgspec.structs.asdict(frame), "command": inside, "event": inside}

    fast, exact = answer(lambda: decode_frame(raw)), answer(lambda: frames._exact(raw, 64, 1 << 20))
    # A fault inside the document may be found when the document is read, one step later, and is the same fault.
    assert fast == exact or (fast is JsonFault and exact[0] is JsonFault), raw
