"""Finds what looks like one of the node's tokens in the bytes of a Command, so that none enters the record (R-12-13).

A token is ``base64url(claims).base64url(signature)``, and every Ed25519 signature has 86 characters there. What only
looks like one is told apart by verifying it, which is the caller's to do (decision F27).
"""

from __future__ import annotations

import re
from collections.abc import Iterator

_ALPHABET = b"ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz0123456789-_"
_SIGNATURE = re.compile(rb"\.[A-Za-z0-9_-]{86}(?![A-Za-z0-9_-])")
_CLAIMS_MAX = 8192


def may_hold_token(document: bytes) -> bool:
    """Whether a JSON document holds anything of the shape of a token's signature: one scan, which most end with."""
    return _SIGNATURE.search(document) is not None


def token_shaped(document: bytes) -> Iterator[str]:
    """Every text of a JSON document that has the shape of a token, wherever it stands. Takes linear time."""
    for match in _SIGNATURE.finditer(document):
        before = document[max(0, match.start() - _CLAIMS_MAX) : match.start()]
        claims = before[len(before.rstrip(_ALPHABET)) :]
        if claims:
            yield (claims + match[0]).decode()
