"""Keys and values inside one transaction: reads, and buffered writes that reach LMDB in a few large calls.

Every single call of LMDB gives the interpreter lock away and must win it back from busy threads; so writes gather in
dictionaries and go in sorted runs, one call for each database.
"""

from __future__ import annotations

from bisect import bisect_left
from collections.abc import Iterable, Iterator, Sequence
from itertools import islice
from operator import ge
from typing import Any, Final

import lmdb
from lmdb import Transaction

from mwnode.store.errors import StoreCorrupt

APPENDED: Final = frozenset({"log", "commands", "admissions", "audit", "group_names"})
"""Databases whose new keys are always higher than all before: appending fills pages to the brim."""

TAKEN_AT_ONCE: Final = 64
"""Entries that are read before the last key of them is looked at."""

DAMAGE: Final = (lmdb.CorruptedError, lmdb.PageNotFoundError, lmdb.InvalidError, lmdb.BadTxnError, lmdb.PageFullError)
"""What LMDB says when the pages that it follows make no sense."""


def damaged(db: str, error: lmdb.Error) -> StoreCorrupt:
    """Our error for pages that cannot be followed."""
    return StoreCorrupt(f"the pages of {db!r} are damaged ({error}): restore a backup", f"pages of {db}")


class ReadPages:
    """Reads of one transaction. StoreCorrupt when the pages of a database cannot be followed."""

    def __init__(self, txn: Transaction[bytes], dbs: dict[str, Any]) -> None:
        self.txn = txn
        self.dbs = dbs

    def get(self, db: str, key: bytes) -> bytes | None:
        """The value of a key."""
        handle = self.dbs.get(db)
        try:
            return None if handle is None else self.txn.get(key, db=handle)
        except DAMAGE as error:
            raise damaged(db, error) from error

    def get_many(self, db: str, keys: Iterable[bytes]) -> dict[bytes, bytes]:
        """The values of those keys that exist."""
        handle = self.dbs.get(db)
        if handle is None:
            return {}
        try:
            with self.txn.cursor(handle) as cursor:
                return dict(cursor.getmulti(sorted(keys)))
        except DAMAGE as error:
            raise damaged(db, error) from error

    def scan(self, db: str, start: bytes, stop: bytes | None = None) -> Iterator[tuple[bytes, bytes]]:
        """Entries with ``start <= key < stop`` in order."""
        handle = self.dbs.get(db)
        if handle is None:
            return
        try:
            with self.txn.cursor(handle) as cursor:
                if not cursor.set_range(start):
                    return
                # Keys of damaged pages may lead in circles.
                before = b""
                for key, value in cursor.iternext():
                    if stop is not None and key >= stop:
                        return
                    if key <= before:
                        raise StoreCorrupt(f"the keys of {db!r} are out of order: restore a backup", f"pages of {db}")
                    before = key
                    yield key, value
        except DAMAGE as error:
            raise damaged(db, error) from error

    def take(self, db: str, start: bytes, stop: bytes, limit: int) -> list[tuple[bytes, bytes]]:
        """The first entries of ``scan``, as many as ``limit`` allows: quicker where all of them are wanted."""
        handle = self.dbs.get(db)
        if handle is None:
            return []
        found: list[tuple[bytes, bytes]] = []
        try:
            with self.txn.cursor(handle) as cursor:
                entries = cursor.iternext() if cursor.set_range(start) else iter(())
                # By the piece, so that little is read in vain behind the stop.
                while piece := list(islice(entries, min(limit - len(found), TAKEN_AT_ONCE))):
                    found += piece
                    if piece[-1][0] >= stop:
                        break
        except DAMAGE as error:
            raise damaged(db, error) from error
        keys = [key for key, _ in found]
        if any(map(ge, keys, keys[1:])):
            raise StoreCorrupt(f"the keys of {db!r} are out of order: restore a backup", f"pages of {db}")
        return found if not keys or keys[-1] < stop else found[: bisect_left(keys, stop)]

    def values(self, db: str, keys: Sequence[bytes]) -> list[bytes]:
        """The values of those keys that exist, in the order of the keys."""
        handle = self.dbs.get(db)
        if handle is None:
            return []
        try:
            with self.txn.cursor(handle) as cursor:
                return [value for _, value in cursor.getmulti(keys)]
        except DAMAGE as error:
            raise damaged(db, error) from error

    def last(self, db: str, start: bytes, stop: bytes | None = None) -> tuple[bytes, bytes] | None:
        """The entry with the highest key in ``start <= key < stop``."""
        handle = self.dbs.get(db)
        if handle is None:
            return None
        try:
            with self.txn.cursor(handle) as cursor:
                found = cursor.last() if stop is None or not cursor.set_range(stop) else cursor.prev()
                if not found:
                    return None
                key, value = cursor.item()
                return (key, value) if key >= start else None
        except DAMAGE as error:
            raise damaged(db, error) from error

    def count(self, db: str) -> int:
        """Number of entries."""
        handle = self.dbs.get(db)
        try:
            return 0 if handle is None else int(self.txn.stat(handle)["entries"])
        except DAMAGE as error:
            raise damaged(db, error) from error


class WritePages(ReadPages):
    """Reads and buffered writes of one transaction; reads see the buffered writes."""

    def __init__(self, txn: Transaction[bytes], dbs: dict[str, Any]) -> None:
        super().__init__(txn, dbs)
        self.buffers: dict[str, dict[bytes, bytes | None]] = {name: {} for name in dbs}
        self.changed: set[str] = set()
        """Databases that were written to."""

    def put(self, db: str, key: bytes, value: bytes) -> None:
        """Set a key."""
        self.buffers[db][key] = value

    def replace(self, db: str, key: bytes, value: bytes) -> None:
        """Set a key that exists already, also in a database that is appended to."""
        buffer = self.buffers[db]
        if key in buffer:
            buffer[key] = value
        else:
            self.txn.put(key, value, db=self.dbs[db])

    def delete(self, db: str, key: bytes) -> None:
        """Remove a key, if it is there."""
        self.buffers[db][key] = None

    def get(self, db: str, key: bytes) -> bytes | None:
        buffer = self.buffers[db]
        if key in buffer:
            return buffer[key]
        try:
            return self.txn.get(key, db=self.dbs[db])
        except DAMAGE as error:
            raise damaged(db, error) from error

    def get_many(self, db: str, keys: Iterable[bytes]) -> dict[bytes, bytes]:
        buffer = self.buffers[db]
        wanted = list(keys)
        found = super().get_many(db, (key for key in wanted if key not in buffer))
        for key in wanted:
            value = buffer.get(key)
            if value is not None:
                found[key] = value
        return found

    def scan(self, db: str, start: bytes, stop: bytes | None = None) -> Iterator[tuple[bytes, bytes]]:
        self.flush(db)
        return super().scan(db, start, stop)

    def take(self, db: str, start: bytes, stop: bytes, limit: int) -> list[tuple[bytes, bytes]]:
        self.flush(db)
        return super().take(db, start, stop, limit)

    def values(self, db: str, keys: Sequence[bytes]) -> list[bytes]:
        self.flush(db)
        return super().values(db, keys)

    def last(self, db: str, start: bytes, stop: bytes | None = None) -> tuple[bytes, bytes] | None:
        self.flush(db)
        return super().last(db, start, stop)

    def count(self, db: str) -> int:
        self.flush(db)
        return super().count(db)

    def flush(self, db: str) -> None:
        """Hand one database's buffered writes to LMDB."""
        buffer = self.buffers[db]
        if not buffer:
            return
        self.buffers[db] = {}
        self.changed.add(db)
        handle = self.dbs[db]
        puts: list[tuple[bytes, bytes]] = []
        for key, value in sorted(buffer.items()):
            if value is None:
                self.txn.delete(key, db=handle)
            else:
                puts.append((key, value))
        if not puts:
            return
        append = db in APPENDED
        if len(puts) == 1:
            added = int(self.txn.put(*puts[0], append=append, db=handle))
        else:
            with self.txn.cursor(handle) as cursor:
                _, added = cursor.putmulti(puts, append=append)
        if append and added != len(puts):
            raise StoreCorrupt(f"{db}: a new number is not higher than all before", db)

    def flush_all(self) -> None:
        """Hand everything to LMDB, before a commit or a nested transaction."""
        for db, buffer in self.buffers.items():
            if buffer:
                self.flush(db)
