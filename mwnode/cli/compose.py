"""Signed documents made on the command line: an identifier, the present time, a signature."""

from __future__ import annotations

from mwnode.protocol.identifiers import uuid7_urn
from mwnode.protocol.instants import Instant
from mwnode.system import OsEntropy, SystemClock
from mwnode.trust.keys import SigningKey

CLOCK = SystemClock()
ENTROPY = OsEntropy()


def new_id() -> str:
    """A fresh identifier, ordered by time (R-2-17)."""
    return uuid7_urn(CLOCK.now(), ENTROPY.random(10))


def now() -> Instant:
    """The present instant."""
    return CLOCK.now()


def principal(key: SigningKey) -> dict[str, str]:
    """The Principal of a key, as it stands in documents."""
    return {"type": key.principal.type, "id": key.principal.id}
