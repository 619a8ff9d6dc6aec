"""Finds what looks like one of the node's tokens in the bytes of a Command, so that none enters the record (R-12-13).

A token is ``base64url(claims).base64url(signature)``, and every Ed25519 signature has 86 characters there. What only
looks like one is told apart by verifying it, which is the caller's to do (decision F27).
"""

from __future__ import annotations

import re
from collections.abc import Iterator
from itertools import islice

_ALPHABET = b"ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz0123456789-_"
_SIGNATURE = re.compile(rb"\.[A-Za-z0-9_-]{86}(?![A-Za-z0-9_-])")
_CLAIMS_MAX = 8192
CANDIDATES_MAX = 256
"""Texts looked at in one document. Each costs a verification on the writer, and the search is a net against mistakes,
not a wall: who wants to publish a token of their own can spell it otherwise (decision A45)."""


def may_hold_token(document: bytes) -> bool:
    """Whether a JSON document holds anything of the shape of a token's signature: one scan, which most end with."""
    return _SIGNATURE.search(document) is not None


def token_shaped(document: bytes) -> Iterator[str]:
    """The texts of a JSON document that have the shape of a token, wherever they stand, the first
    ``CANDIDATES_MAX`` of them. Takes linear time."""
    for match in islice(_SIGNATURE.finditer(document), CANDIDATES_MAX):
        before = document[max(0, match.start() - _CLAIMS_MAX) : match.start()]
        claims = before[len(before.rstrip(_ALPHABET)) :]
        if claims:
            yield (claims + match[0]).decode()
