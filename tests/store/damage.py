"""Damage to a store's bytes, done behind its back as a failing disk would."""

from __future__ import annotations

from collections.abc import Callable

from mwnode.store.environment import LmdbStore
from mwnode.store.layout import LOG_HEAD, PLACE, U64


def change(store: LmdbStore, db: str, key: bytes, edit: Callable[[bytes], bytes | None]) -> None:
    """Put something else under a key; ``None`` removes it."""
    handle = store.file.dbs[db]
    with store.file.lmdb.begin(write=True) as txn:
        before = txn.get(key, db=handle)
        assert before is not None, f"{db} has no such key"
        after = edit(before)
        if after is None:
            txn.delete(key, db=handle)
        else:
            txn.put(key, after, db=handle)


def flip(place: int) -> Callable[[bytes], bytes]:
    """Flip one bit of the byte at ``place``; negative places count from the end."""

    def edit(value: bytes) -> bytes:
        damaged = bytearray(value)
        damaged[place] ^= 1
        return bytes(damaged)

    return edit


def keys(store: LmdbStore, db: str) -> list[bytes]:
    """Every key of a database."""
    with store.read() as view:
        return [key for key, _ in view.pages.scan(db, b"")]


def log_key(store: LmdbStore, group_id: str, sequence: int) -> bytes:
    """Key of an Event's record."""
    with store.read() as view:
        number = view.group_number(group_id)
        assert number is not None
        position = view.pages.get("places", PLACE.pack(number, sequence))
        assert position is not None
        return position


def event_start(store: LmdbStore, key: bytes) -> int:
    """Where in a log record the Event's own bytes begin."""
    with store.read() as view:
        value = view.pages.get("log", key)
    assert value is not None
    return LOG_HEAD.size + value[LOG_HEAD.size - 2] + value[LOG_HEAD.size - 1]


def number_key(number: int) -> bytes:
    """Key of a numbered record."""
    return U64.pack(number)
