"""Small makers of content: hashes, and damage that is still well formed."""

from __future__ import annotations

import base64
import hashlib


def content_hash(content: bytes) -> str:
    """``sha256:`` and the digest of some bytes."""
    return "sha256:" + hashlib.sha256(content).hexdigest()


def flip_base64url(text: str) -> str:
    """Another well-formed base64url text of the same length: for damaged signatures."""
    data = bytearray(base64.urlsafe_b64decode(text + "=" * (-len(text) % 4)))
    data[len(data) // 2] ^= 1
    return base64.urlsafe_b64encode(bytes(data)).rstrip(b"=").decode()
