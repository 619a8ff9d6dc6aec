"""Bearer tokens, and the challenge by which humans, services and Agents get one over HTTP (decisions A27, B5, B6, B8).

A token limits reading and Artifact transfer only: a state change always needs a signed Command. It is void once its key
is no longer valid, or its Session Epoch is fenced.
"""

from __future__ import annotations

from typing import Any

from msgspec import Struct

from mwnode.authority.state import AGENTS
from mwnode.gateway.handshake import card_fault
from mwnode.gateway.ports import Authority
from mwnode.protocol import jcs
from mwnode.protocol.documents import Actor
from mwnode.protocol.errors import SIGNED_DOCUMENT_REJECTED, ErrorCode, Rejection
from mwnode.protocol.instants import Instant, parse
from mwnode.trust import ed25519
from mwnode.trust.registry import Binding

CHALLENGE_SECONDS = 30
CHALLENGES_MAX = 4096
"""Open challenges; the oldest make room for new ones, so that abandoned ones cost nothing."""
PURPOSE = "mwnode-session"
_REFUSED = Rejection(ErrorCode.AUTH_INVALID_SIGNATURE, SIGNED_DOCUMENT_REJECTED, "R-6.4-81")
NO_BEARER = Rejection(
    ErrorCode.AUTH_REQUIRED, "this needs a valid bearer token: POST /v0.1/sessions/challenge, then /v0.1/sessions", "B8"
)


class Bearer(Struct, frozen=True):
    """Who a valid token stands for."""

    principal: Actor
    key_id: str
    session_epoch: int | None = None


class _Challenge(Struct, frozen=True):
    principal: Actor
    key_id: str
    expires_at: Instant


class Sessions:
    """Issues and checks bearer tokens. Used from one thread only."""

    def __init__(self, authority: Authority) -> None:
        self._authority = authority
        self._challenges: dict[bytes, _Challenge] = {}

    def challenge(self, principal: Actor, key_id: str) -> dict[str, Any]:
        """A challenge for anybody who asks: an unknown Principal is told so by ``open`` only, like a wrong key."""
        now = self._authority.clock.now()
        expires_at = now.plus(CHALLENGE_SECONDS)
        text = jcs.canonical(
            {
                "purpose": PURPOSE,
                "principal": {"type": principal.type, "id": principal.id},
                "keyId": key_id,
                "challengeId": ed25519.encode_base64url(self._authority.entropy.random(18)),
                "expiresAt": expires_at.text(),
                "audience": self._authority.organization_id,
            }
        )
        while len(self._challenges) >= CHALLENGES_MAX:
            del self._challenges[next(iter(self._challenges))]
        self._challenges[text] = _Challenge(principal, key_id, expires_at)
        return {"challenge": ed25519.encode_base64url(text), "expiresAt": expires_at.text()}

    def open(self, challenge: str, signature: str) -> dict[str, Any] | Rejection:
        """The token that a signed challenge earns. The challenge is used up, whatever the outcome."""
        try:
            text = ed25519.decode_base64url(challenge)
            value = ed25519.decode_base64url(signature)
        except ValueError:
            return _REFUSED
        asked = self._challenges.pop(text, None)
        now = self._authority.clock.now()
        if asked is None or now >= asked.expires_at or len(value) != ed25519.SIGNATURE_BYTES:
            return _REFUSED
        binding = self._valid_key(asked.principal, asked.key_id, now)
        if binding is None or not ed25519.verify(binding.public_key, text, value):
            return _REFUSED
        if asked.principal.type == "agent":
            with self._authority.read() as view:
                fault = card_fault(view.get(AGENTS, asked.principal.id), now)
            if fault is not None:
                return fault
        token, expires = self.issue(asked.principal, asked.key_id, None)
        return {"token": token, "expiresAt": expires}

    def issue(self, principal: Actor, key_id: str, session_epoch: int | None) -> tuple[str, str]:
        """A token and when it ends. ``session_epoch`` binds an Agent's token to its WebSocket session."""
        now = self._authority.clock.now()
        expires = now.plus(self._authority.policy.session_token_lifetime).text()
        claims: dict[str, Any] = {
            "use": "session",
            "tokenId": ed25519.encode_base64url(self._authority.entropy.random(16)),
            "principal": {"type": principal.type, "id": principal.id},
            "keyId": key_id,
            "issuedAt": now.text(),
            "expiresAt": expires,
        }
        if session_epoch is not None:
            claims["sessionEpoch"] = session_epoch
        return self._authority.tokens.issue(claims), expires

    def bearer(self, authorization: str | None) -> Bearer | Rejection:
        """Who an ``Authorization`` header stands for."""
        scheme, _, token = (authorization or "").partition(" ")
        if scheme.lower() != "bearer" or not token:
            return NO_BEARER
        claims = self._authority.tokens.claims(token.strip())
        if claims is None or claims.get("use") != "session":
            return NO_BEARER
        now = self._authority.clock.now()
        principal = Actor(type=claims["principal"]["type"], id=claims["principal"]["id"])
        if parse(claims["expiresAt"]) <= now or self._valid_key(principal, claims["keyId"], now) is None:
            return NO_BEARER
        epoch: int | None = claims.get("sessionEpoch")
        if principal.type == "agent":
            with self._authority.read() as view:
                row = view.get(AGENTS, principal.id)
            fenced = epoch is not None and row is not None and row.session_epoch != epoch
            if fenced or card_fault(row, now) is not None:
                return NO_BEARER
        return Bearer(principal, claims["keyId"], epoch)

    def _valid_key(self, principal: Actor, key_id: str, now: Instant) -> Binding | None:
        binding = self._authority.registry.resolve(key_id)
        if binding is None or binding.principal != principal or not binding.valid_at(now):
            return None
        return binding
