"""The two texts a client signs besides documents, checked to the last byte before they are signed (decision A27).

Both are made by the server. A server that is hostile, or somebody in between, could offer the canonical bytes of a
Command instead; whoever signs blindly has then sent that Command. So: decoded, compared member by member with what this
client itself said, and canonical; anything else is :class:`ChallengeRefused`.
"""

from __future__ import annotations

from typing import Any

from mwnode.client.errors import ChallengeRefused
from mwnode.protocol import jcs, strict_json
from mwnode.protocol.documents import Actor
from mwnode.protocol.instants import parse
from mwnode.trust.ed25519 import decode_base64url

CHALLENGE_BYTES = 3072
"""Longest transcript: 4096 characters of base64url."""
SESSION_PURPOSE = "mwnode-session"
"""What the challenge of an HTTP session says it is for."""


def handshake_transcript(challenge: str, *, agent_id: str, key_id: str, client_nonce: str, server_nonce: str) -> bytes:
    """The transcript to sign in the HELLO handshake: exactly the seven members, with this client's own values."""
    return _checked(
        challenge,
        {
            "agentId": agent_id,
            "keyId": key_id,
            "clientNonce": client_nonce,
            "serverNonce": server_nonce,
            "protocolVersion": "0.1",
        },
    )


def session_challenge(challenge: str, *, principal: Actor, key_id: str, organization_id: str | None) -> bytes:
    """The bytes to sign for an HTTP session; ``organization_id`` ``None`` means that the key names none."""
    expected: dict[str, Any] = {
        "purpose": SESSION_PURPOSE,
        "principal": {"id": principal.id, "type": principal.type},
        "keyId": key_id,
    }
    if organization_id is not None:
        expected["audience"] = organization_id
        return _checked(challenge, expected)
    return _checked(challenge, expected, "audience")


def _checked(challenge: str, expected: dict[str, Any], *free: str) -> bytes:
    try:
        data = decode_base64url(challenge)
        transcript = strict_json.parse(data, depth_max=4, bytes_max=CHALLENGE_BYTES)
        canonical = jcs.canonical(transcript)
    except ValueError as error:
        raise ChallengeRefused(f"the challenge is no canonical JSON object ({error}); nothing was signed") from error
    names = {*expected, *free, "challengeId", "expiresAt"}
    if not isinstance(transcript, dict) or set(transcript) != names or canonical != data:
        raise ChallengeRefused("the server's challenge is not the transcript of a handshake; nothing was signed")
    for name, value in expected.items():
        if transcript[name] != value and name == "audience":
            raise ChallengeRefused(
                f"this node is of Organization {transcript[name]}, and the key of {value}: nothing was signed; use the "
                "node's own key, or the key's own node"
            )
        if transcript[name] != value:
            raise ChallengeRefused(f"the server's challenge carries another {name} than ours; nothing was signed")
    for name in (*free, "challengeId", "expiresAt"):
        if not isinstance(transcript[name], str):
            raise ChallengeRefused(f"the server's challenge has no proper {name}; nothing was signed")
    try:
        parse(transcript["expiresAt"])
    except ValueError as error:
        raise ChallengeRefused("the server's challenge has no proper expiresAt; nothing was signed") from error
    return data
