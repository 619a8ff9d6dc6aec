"""Rows: what the log means, one row an entity, with their listings by Group and their due times.

A row costs what it touches, whatever the length of the log. The writer keeps decoded rows between commits; they are
frozen, so that sharing them is safe.
"""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Iterable, Iterator
from itertools import islice
from typing import Any, Final

import msgspec

from mwnode.authority.state import TABLES, R, Row, Table
from mwnode.protocol.instants import Instant, parse
from mwnode.store.errors import StoreCorrupt
from mwnode.store.group_log import LogReading
from mwnode.store.layout import (
    PARKED,
    RECORD,
    U32,
    after_prefix,
    derivation_key,
    due_bound,
    due_key,
    hash_bytes,
    parked_key,
    text_key,
)
from mwnode.store.log_writing import LogWriting
from mwnode.store.port import DueEntry
from mwnode.store.shapes import check_of

RowKey = tuple[int, str]

_BY_CODE: Final = {table.code: table for table in TABLES}
_DECODERS: Final[dict[int, msgspec.msgpack.Decoder[Any]]] = {
    table.code: msgspec.msgpack.Decoder(table.row) for table in TABLES
}
_CHECKS: Final = {table.code: check_of(table.row) for table in TABLES}
_CODES: Final = {table.code: bytes((table.code,)) for table in TABLES}
_encode = msgspec.msgpack.Encoder().encode
_VERSION: Final = bytes((RECORD,))
_UNKNOWN: Final = object()

if len(_BY_CODE) != len(TABLES):
    raise RuntimeError("two tables share a code")


class RowCache:
    """Decoded rows by table and key, ``None`` for rows known to be absent; the least recently used go first."""

    def __init__(self, rows_max: int = 8192) -> None:
        self.rows_max = rows_max
        self._rows: OrderedDict[RowKey, Row | None] = OrderedDict()

    def get(self, key: RowKey) -> Row | object | None:
        """The row, ``None`` for absence, or ``_UNKNOWN``."""
        row = self._rows.get(key, _UNKNOWN)
        if row is not _UNKNOWN:
            self._rows.move_to_end(key)
        return row

    def set_all(self, rows: Iterable[tuple[RowKey, Row | None]]) -> None:
        """Remember rows as they are now in the file."""
        for key, row in rows:
            self._rows[key] = row
            self._rows.move_to_end(key)
        while len(self._rows) > self.rows_max:
            self._rows.popitem(last=False)

    def clear(self) -> None:
        """Forget everything, after a commit that failed."""
        self._rows.clear()


def entity_key(code: int, key: str) -> bytes:
    """Key of a row."""
    return _CODES[code] + text_key(key)


def decode_row(table: Table[R], value: bytes, key: str) -> R:
    """The row in a record. StoreCorrupt when it cannot be read."""
    try:
        if value[0] != RECORD:
            raise StoreCorrupt(f"{table.name} {key} has record version {value[0]}", f"{table.name} {key}")
        row: R = _DECODERS[table.code].decode(memoryview(value)[1:])
    except (msgspec.MsgspecError, IndexError) as error:
        raise StoreCorrupt(f"{table.name} {key} cannot be read: {error}", f"{table.name} {key}") from error
    return row


def encode_row(table: Table[R], row: R) -> bytes:
    """The record of a row. Raises msgspec.ValidationError when a document in it lacks a member (R-2-02)."""
    encoded = _encode(row)
    _CHECKS[table.code].decode(encoded)
    return _VERSION + encoded


def due_parts(value: bytes) -> tuple[str, str, str]:
    """Time of an entry of the due index, key of its row, and the due text of the row that it stands for."""
    try:
        due, key, *stands_for = value.decode().split("\0")
    except ValueError as error:
        raise StoreCorrupt("an entry of the due index cannot be read; restart the node", "due") from error
    return due, key, stands_for[0] if stands_for else due


class RowReading(LogReading):
    """Adds the rows to a read transaction."""

    def get(self, table: Table[R], key: str) -> R | None:
        value = self.pages.get("entities", entity_key(table.code, key))
        return None if value is None else decode_row(table, value, key)

    def in_group(self, table: Table[R], group_id: str) -> list[R]:
        if table.group is None:
            raise ValueError(f"{table} is not listed by Group")
        number = self.group_number(group_id)
        if number is None:
            return []
        code = _CODES[table.code]
        listed = self.pages.scan("listing", code + U32.pack(number), code + U32.pack(number + 1))
        names = sorted(value.decode() for _, value in listed)
        return self._rows(table, names)

    def _rows(self, table: Table[R], keys: list[str]) -> list[R]:
        places = {entity_key(table.code, key): key for key in keys}
        values = self.pages.get_many("entities", places)
        rows = {places[place]: value for place, value in values.items()}
        missing = [key for key in keys if key not in rows]
        if missing:
            raise StoreCorrupt(f"{table.name} {missing[0]} is listed and missing", f"{table.name} {missing[0]}")
        return [decode_row(table, rows[key], key) for key in keys]

    def deriving_groups(self, content_hash: str) -> Iterator[str]:
        source = hash_bytes(content_hash)
        if source is None:
            return
        place = source
        # From one Group's entries to the next Group's, whatever lies between.
        while entry := next(self.pages.scan("derivations", place, after_prefix(source)), None):
            number = int(U32.unpack_from(entry[0], len(source))[0])
            yield self.group_name(number)
            place = source + U32.pack(number + 1)

    def derivations(self, content_hash: str, group_id: str, after: str | None, limit: int) -> list[str]:
        source, number = hash_bytes(content_hash), self.group_number(group_id)
        if source is None or number is None:
            return []
        first = source + U32.pack(number)
        place = first if after is None else first + after_prefix(text_key(after))
        found = self.pages.scan("derivations", place, source + U32.pack(number + 1))
        return [value.decode() for _, value in islice(found, limit)]

    def all(self, table: Table[R]) -> list[R]:
        return sorted(self.each(table), key=table.key)

    def each(self, table: Table[R]) -> Iterator[R]:
        """All rows of a table in the order of their stored keys, one at a time."""
        code = table.code
        for place, value in self.pages.scan("entities", bytes((code,)), bytes((code + 1,))):
            yield decode_row(table, value, place.hex())

    def due(self, until: Instant, limit: int) -> list[DueEntry]:
        bound = due_bound(until)
        found: list[DueEntry] = []
        for place, value in self.pages.scan("due", b""):
            if place[:8] > bound or len(found) >= limit:
                break
            due, key, stands_for = due_parts(value)
            # Equal in whole microseconds is not yet due: the digits beyond decide (R-2-06).
            if parse(due) <= until:
                found.append(DueEntry(place[8], key, due, stands_for))
        return found

    def next_due(self) -> Instant | None:
        for _, value in islice(self.pages.scan("due", b"", PARKED), 1):
            return parse(due_parts(value)[0])
        return None


class RowWriting(LogWriting, RowReading):
    """Adds the rows to a write transaction."""

    cache: RowCache
    touched: dict[RowKey, Row | None]
    """Rows read or written by this transaction, as they are in it."""

    def get(self, table: Table[R], key: str) -> R | None:
        place = (table.code, key)
        row: Any = self.touched.get(place, _UNKNOWN)
        if row is _UNKNOWN:
            row = self.cache.get(place)
            if row is _UNKNOWN:
                row = super().get(table, key)
            self.touched[place] = row
        return row  # type: ignore[no-any-return]  # rows stand under the code of their own table

    def _rows(self, table: Table[R], keys: list[str]) -> list[R]:
        known: dict[str, R] = {}
        unknown: list[str] = []
        for key in keys:
            place = (table.code, key)
            row: Any = self.touched.get(place, _UNKNOWN)
            if row is _UNKNOWN:
                row = self.cache.get(place)
            if row is _UNKNOWN or row is None:
                unknown.append(key)
            else:
                known[key] = row
        for key, row in zip(unknown, super()._rows(table, unknown), strict=True):
            known[key] = row
            self.touched[(table.code, key)] = row
        return [known[key] for key in keys]

    def prefetch(self, wanted: Iterable[tuple[Table[Any], str]]) -> None:
        """Read rows that a batch will ask for in one call; absent ones are remembered as absent."""
        missing: dict[bytes, tuple[Table[Any], str]] = {}
        for table, key in wanted:
            place = (table.code, key)
            if place not in self.touched and self.cache.get(place) is _UNKNOWN:
                missing[entity_key(table.code, key)] = (table, key)
        if not missing:
            return
        values = self.pages.get_many("entities", missing)
        for stored_key, (table, key) in missing.items():
            value = values.get(stored_key)
            self.touched[(table.code, key)] = None if value is None else decode_row(table, value, key)

    def put(self, table: Table[R], row: R) -> None:
        encoded = encode_row(table, row)
        self.put_record(table, self.note(table, row), encoded)

    def note(self, table: Table[R], row: R) -> str:
        """Set a row for all readers of this transaction but ``each``; ``put_record`` must follow. Its key."""
        code = table.code
        key = table.key(row)
        place = (code, key)
        before: Any = self.touched.get(place, _UNKNOWN)
        if before is _UNKNOWN:
            before = self.get(table, key)
        self.touched[place] = row
        if table.group is not None and before is None:
            group = U32.pack(self.number_for(table.group(row)))
            self.pages.put("listing", _CODES[code] + group + text_key(key), key.encode())
            if table.sources is not None:
                for content_hash in table.sources(row):
                    self.pages.put("derivations", derivation_key(content_hash, group, key), key.encode())
        if table.due is not None:
            self._move_due(code, key, None if before is None else table.due(before), table.due(row))
        return key

    def put_record(self, table: Table[Any], key: str, encoded: bytes) -> None:
        """Write what ``encode_row`` gave for a row that was noted."""
        self.pages.put("entities", entity_key(table.code, key), encoded)

    def _move_due(self, code: int, key: str, before: str | None, after: str | None) -> None:
        if before == after:
            return
        if before is not None:
            self.pages.delete("due", due_key(parse(before), code, text_key(key)))
        if after is not None:
            self.pages.put("due", due_key(parse(after), code, text_key(key)), f"{after}\0{key}".encode())

    def drop_due(self, entry: DueEntry) -> None:
        self._remove_due(entry)
        table = _BY_CODE[entry.table_code]
        row = self.get(table, entry.key)
        named = None if row is None or table.due is None else table.due(row)
        if named is not None and named == entry.stands_for:
            # Kept where no time reaches it, so that a row whose entry is gone can be told from this one.
            place = parked_key(entry.table_code, text_key(entry.key))
            self.pages.put("due", place, f"\0{entry.key}\0{named}".encode())

    def postpone_due(self, entry: DueEntry, until: Instant) -> None:
        self._remove_due(entry)
        key = due_key(until, entry.table_code, text_key(entry.key))
        self.pages.put("due", key, f"{until.text()}\0{entry.key}\0{entry.stands_for}".encode())

    def _remove_due(self, entry: DueEntry) -> None:
        self.pages.delete("due", due_key(parse(entry.due), entry.table_code, text_key(entry.key)))
