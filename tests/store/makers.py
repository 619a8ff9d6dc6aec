"""Events as far as a store looks at them, and other small things that the store's tests are made of."""

from __future__ import annotations

import hashlib

import msgspec

from mwnode.store.environment import LmdbStore
from mwnode.store.port import NewEvent

G1, G2 = "urn:example:group:1", "urn:example:group:2"
AT = "2030-01-01T00:00:00Z"


def event(group_id: str, number: int, padding: int = 0) -> NewEvent:
    """An Event of about ``padding`` bytes."""
    event_id = f"urn:example:event:{group_id[-1:]}:{number}"
    raw = msgspec.json.encode({"eventId": event_id, "padding": "x" * padding})
    return NewEvent(group_id, event_id, AT, AT, raw, hashlib.sha256(raw).digest())


def append(store: LmdbStore, first: int, last: int, group_id: str = G1, padding: int = 0) -> None:
    """Append Events with those numbers, one transaction for all."""
    store.write(lambda txn: [txn.append_event(event(group_id, n, padding)) for n in range(first, last + 1)])


def head(store: LmdbStore, group_id: str = G1) -> int:
    with store.read() as view:
        return view.head(group_id)
