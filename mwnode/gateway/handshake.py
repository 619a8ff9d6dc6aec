"""The HELLO handshake from the server's side, as decisions over frames. Pure.

client_init -> server_challenge -> client_response -> (Session Epoch issued) -> server_accept
"""

from __future__ import annotations

from typing import Any

from msgspec import UNSET, Struct

from mwnode.authority.state import AgentRow
from mwnode.protocol import frames, jcs, strict_json
from mwnode.protocol.documents import Actor
from mwnode.protocol.errors import SIGNED_DOCUMENT_REJECTED, ErrorCode, Rejection
from mwnode.protocol.instants import Instant, parse
from mwnode.protocol.ports import Entropy
from mwnode.protocol.strict_json import SchemaFault
from mwnode.trust import ed25519
from mwnode.trust.registry import Registry

CHALLENGE_SECONDS = 30
_REFUSED = Rejection(ErrorCode.AUTH_INVALID_SIGNATURE, SIGNED_DOCUMENT_REJECTED, "R-6.3-04")
UNSUPPORTED = Rejection(
    ErrorCode.UNSUPPORTED_VERSION, "this node speaks 0.1 only: offer it in supportedVersions", "R-19-09"
)


class Challenge(Struct, frozen=True):
    """What was asked of one client: used once, also when the answer is wrong."""

    agent_id: str
    key_id: str
    client_nonce: str
    server_nonce: str
    transcript: bytes
    expires_at: Instant


def read_client_init(raw: bytes, depth_max: int, bytes_max: int) -> frames.HelloClientInit | Rejection:
    """A first frame that ``decode_client_frame`` found not to fit: perhaps only for the versions it names (C2).

    The frame schema knows 0.1 alone, so versions are looked at before it: a list that contains 0.1 is served, whatever
    else it names; a HELLO in another version, or a list without 0.1, shares none with this node. Raises SchemaFault.
    """
    tree = strict_json.parse(raw, depth_max=depth_max, bytes_max=bytes_max)
    if not isinstance(tree, dict):
        raise SchemaFault("", "Expected `object`")
    stated, offered = tree.get("protocolVersion"), tree.get("supportedVersions")
    if isinstance(stated, str) and stated != frames.PROTOCOL_VERSION:
        return UNSUPPORTED
    if isinstance(offered, list) and offered and all(isinstance(version, str) for version in offered):
        if frames.PROTOCOL_VERSION not in offered:
            return UNSUPPORTED
        if len(set(offered)) == len(offered):
            tree = {**tree, "supportedVersions": [frames.PROTOCOL_VERSION]}
    hello: frames.HelloClientInit = strict_json.convert(tree, frames.HelloClientInit)
    return hello


def is_hello(tree: Any) -> bool:
    """Whether a parsed message means to be a HELLO."""
    return isinstance(tree, dict) and tree.get("frameType") == "HELLO"


def challenge(
    hello: frames.HelloClientInit, registry: Registry, now: Instant, entropy: Entropy
) -> Challenge | Rejection:
    """A fresh transcript for an Agent's key that is valid now (R-6.3-03). Exactly the members of wire facts 1.3."""
    if not _key_is_good(registry, hello.agent_id, hello.key_id, now):
        return _REFUSED
    server_nonce = ed25519.encode_base64url(entropy.random(32))
    expires_at = now.plus(CHALLENGE_SECONDS)
    transcript = jcs.canonical(
        {
            "agentId": hello.agent_id,
            "challengeId": ed25519.encode_base64url(entropy.random(18)),
            "clientNonce": hello.client_nonce,
            "expiresAt": _offset_text(expires_at),
            "keyId": hello.key_id,
            "protocolVersion": frames.PROTOCOL_VERSION,
            "serverNonce": server_nonce,
        }
    )
    if len(transcript) > 3072:
        # The challenge member holds 4096 characters; only the client's own nonce and IDs can be that long.
        return Rejection(
            ErrorCode.SCHEMA_VALIDATION_FAILED, "clientNonce is too long for a challenge to hold it", "R-6.3-02"
        )
    return Challenge(hello.agent_id, hello.key_id, hello.client_nonce, server_nonce, transcript, expires_at)


def answer(asked: Challenge, hello: frames.HelloClientResponse, registry: Registry, now: Instant) -> Rejection | None:
    """What is wrong with a response, or ``None`` when it proves possession of the key (R-6.3-04)."""
    same = (
        hello.agent_id == asked.agent_id
        and hello.key_id == asked.key_id
        and hello.client_nonce == asked.client_nonce
        and hello.server_nonce == asked.server_nonce
    )
    binding = registry.resolve(asked.key_id)
    if not same or now >= asked.expires_at or binding is None:
        return _REFUSED
    try:
        signature = ed25519.decode_base64url(hello.challenge_signature)
    except ValueError:
        return _REFUSED
    if not _key_is_good(registry, asked.agent_id, asked.key_id, now) or len(signature) != ed25519.SIGNATURE_BYTES:
        return _REFUSED
    return None if ed25519.verify(binding.public_key, asked.transcript, signature) else _REFUSED


def card_fault(row: AgentRow | None, now: Instant) -> Rejection | None:
    """Why an Agent with a good key may not connect: its Card (decision C15)."""
    if row is None:
        return Rejection(ErrorCode.AUTH_FORBIDDEN, "this Agent has no registered Agent Card", "R-19-14")
    card = row.card
    if card.status != "active":
        return Rejection(ErrorCode.AUTH_FORBIDDEN, f"this Agent's Card is {card.status}", "R-19-14")
    if card.valid_until is not UNSET and parse(card.valid_until) <= now:
        return Rejection(ErrorCode.AUTH_FORBIDDEN, "this Agent's Card has run out", "R-19-14")
    return None


def _key_is_good(registry: Registry, agent_id: str, key_id: str, now: Instant) -> bool:
    binding = registry.resolve(key_id)
    return binding is not None and binding.principal == Actor(type="agent", id=agent_id) and binding.valid_at(now)


def _offset_text(instant: Instant) -> str:
    """The spelling of wire facts 1.3: ``+00:00`` for the offset, six fractional digits or none."""
    digits = instant.fraction[:6]
    whole = Instant(instant.seconds).text()[:-1]
    point = f".{digits.ljust(6, '0')}" if digits else ""
    return f"{whole}{point}+00:00"
