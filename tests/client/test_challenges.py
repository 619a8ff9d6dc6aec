"""No blind signing: what a client signs besides documents, to the last byte (decision A27)."""

from __future__ import annotations

from typing import Any

import pytest

from mwnode.client.challenges import handshake_transcript, session_challenge
from mwnode.client.errors import ChallengeRefused
from mwnode.protocol import jcs
from mwnode.protocol.documents import Actor
from mwnode.trust.ed25519 import decode_base64url, encode_base64url

OURS = {
    "agent_id": "urn:missionweaveprotocol:agent:crypto-vector-coordinator",
    "key_id": "urn:missionweaveprotocol:key:crypto-vector-rfc8032-1",
    "client_nonce": "Y2xpZW50LW5vbmNl",
    "server_nonce": "c2VydmVyLW5vbmNl",
}
TRANSCRIPT = {
    "agentId": OURS["agent_id"],
    "challengeId": "Y2hhbGxlbmdlLW9uZQ",
    "clientNonce": OURS["client_nonce"],
    "expiresAt": "2026-07-15T00:00:30+00:00",
    "keyId": OURS["key_id"],
    "protocolVersion": "0.1",
    "serverNonce": OURS["server_nonce"],
}
PRINCIPAL = Actor(type="human", id="urn:example:human")
SESSION = {
    "purpose": "mwnode-session",
    "principal": {"type": "human", "id": "urn:example:human"},
    "keyId": "urn:example:key",
    "challengeId": "abcd",
    "expiresAt": "2026-07-15T00:00:30Z",
    "audience": "urn:example:organization",
}


def encoded(document: Any) -> str:
    return encode_base64url(jcs.canonical(document))


@pytest.mark.req("R-6.3-04")
def test_the_transcript_of_our_own_handshake_is_signed_as_it_is() -> None:
    challenge = encoded(TRANSCRIPT)
    # The worked value of the wire facts: its length and its first characters.
    assert len(challenge) == 398
    assert challenge.startswith("eyJhZ2VudElkIjoi")
    assert handshake_transcript(challenge, **OURS) == decode_base64url(challenge)


def without(name: str) -> dict[str, Any]:
    return {key: value for key, value in TRANSCRIPT.items() if key != name}


HOSTILE: dict[str, Any] = {
    "a Command": {"kind": "mission.approve", "payload": {}, "actor": {"type": "agent", "id": OURS["agent_id"]}},
    "one member more": TRANSCRIPT | {"kind": "mission.approve"},
    "another Agent": TRANSCRIPT | {"agentId": "urn:example:other"},
    "another key": TRANSCRIPT | {"keyId": "urn:example:other"},
    "another client nonce": TRANSCRIPT | {"clientNonce": "b3RoZXI"},
    "another server nonce": TRANSCRIPT | {"serverNonce": "b3RoZXI"},
    "another version": TRANSCRIPT | {"protocolVersion": "0.2"},
    "no time": TRANSCRIPT | {"expiresAt": "soon"},
    "a number for an ID": TRANSCRIPT | {"challengeId": 7},
    "an object for an ID": TRANSCRIPT | {"challengeId": {"kind": "mission.approve"}},
    "an array": [TRANSCRIPT],
    "a string": "hello",
    **{f"no {name}": without(name) for name in TRANSCRIPT},
}


@pytest.mark.req("R-6.3-04")
@pytest.mark.parametrize("document", HOSTILE.values(), ids=HOSTILE.keys())
def test_anything_else_is_not_signed(document: Any) -> None:
    with pytest.raises(ChallengeRefused):
        handshake_transcript(encoded(document), **OURS)


@pytest.mark.parametrize(
    "challenge",
    [
        encode_base64url(b" " + jcs.canonical(TRANSCRIPT)),
        encode_base64url(jcs.canonical(TRANSCRIPT).replace(b'"challengeId"', b'"challengeId":"x","challengeId"')),
        encode_base64url(b"\xff\xfe"),
        encode_base64url(b"not json"),
        encode_base64url(b'{"a":"' + b"x" * 4000 + b'"}'),
        encoded(TRANSCRIPT) + "=",
        "!!",
    ],
    ids=["not canonical", "a duplicate member", "not UTF-8", "not JSON", "too long", "padding", "not base64url"],
)
def test_other_bytes_of_the_same_meaning_are_not_signed(challenge: str) -> None:
    with pytest.raises(ChallengeRefused):
        handshake_transcript(challenge, **OURS)


def session(document: Any, organization: str | None = "urn:example:organization") -> bytes:
    return session_challenge(
        encoded(document), principal=PRINCIPAL, key_id="urn:example:key", organization_id=organization
    )


def test_a_session_challenge_for_us_is_signed() -> None:
    assert session(SESSION) == jcs.canonical(SESSION)
    assert session(SESSION, None) == jcs.canonical(SESSION)


@pytest.mark.parametrize(
    "change",
    [
        {"purpose": "something else"},
        {"principal": {"type": "agent", "id": "urn:example:human"}},
        {"principal": {"type": "human", "id": "urn:example:other"}},
        {"keyId": "urn:example:other"},
        {"audience": "urn:example:another"},
        {"kind": "mission.approve"},
        {"expiresAt": 12},
    ],
)
def test_a_session_challenge_for_another_use_is_not_signed(change: dict[str, Any]) -> None:
    with pytest.raises(ChallengeRefused):
        session(SESSION | change)
