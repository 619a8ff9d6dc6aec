"""Claims signed by the node, small enough for a header: ``base64url(JCS(claims)).base64url(Ed25519 signature)``."""

from __future__ import annotations

import base64
import binascii
import json
from collections.abc import Mapping
from typing import Any

from mwnode.protocol.jcs import canonical
from mwnode.trust import ed25519
from mwnode.trust.keys import SigningKey

TOKEN_BYTES_MAX = 8192


class NodeTokens:
    """Issues and recognises the node's own tokens. What the claims allow is for the caller to judge (decision B2)."""

    def __init__(self, key: SigningKey) -> None:
        self._key = key
        self._public_key = _decode(key.public_key)

    def issue(self, claims: Mapping[str, Any]) -> str:
        """The token of these claims."""
        body = canonical(dict(claims))
        return f"{_encode(body)}.{_encode(self._key.sign(body))}"

    def claims(self, token: str) -> dict[str, Any] | None:
        """The claims of a token that this node issued, or ``None`` for anything else."""
        if len(token) > TOKEN_BYTES_MAX or token.count(".") != 1:
            return None
        body_text, signature_text = token.split(".")
        try:
            body, signature = _decode(body_text), _decode(signature_text)
        except (ValueError, binascii.Error):
            return None
        if _encode(body) != body_text or _encode(signature) != signature_text:
            return None
        if len(signature) != 64 or not ed25519.verify(self._public_key, body, signature):
            return None
        claims = json.loads(body)
        return claims if isinstance(claims, dict) else None


def _encode(data: bytes) -> str:
    return base64.urlsafe_b64encode(data).rstrip(b"=").decode()


def _decode(text: str) -> bytes:
    return base64.urlsafe_b64decode(text + "=" * (-len(text) % 4))
