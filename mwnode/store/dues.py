"""The due index beside the rows that it stands for: found wanting, and made again.

Without its entry a lease never ends. A node looks when it opens the file, at little cost; ``verify`` looks at all
rows.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any, Final

from mwnode.authority.state import TABLES, Row, Table
from mwnode.protocol.instants import parse
from mwnode.store.environment import LmdbReading, LmdbWriting
from mwnode.store.errors import StoreCorrupt
from mwnode.store.layout import PARKED, U64, due_key, parked_key, text_key
from mwnode.store.projections import due_parts

TIMED: Final[dict[int, Table[Any]]] = {table.code: table for table in TABLES if table.due is not None}
"""Tables whose rows come due."""


def entry_faults(view: LmdbReading) -> Iterator[tuple[str, str]]:
    """Entries that stand for no row as they are: where and what."""
    for place, value in view.pages.scan("due", b""):
        try:
            fault = _fault(view, place, value)
        except (StoreCorrupt, ValueError) as error:
            fault = str(error)
        if fault is not None:
            yield f"due {place.hex()}", fault


def _fault(view: LmdbReading, place: bytes, value: bytes) -> str | None:
    due, key, stands_for = due_parts(value)
    table = TIMED.get(place[8]) if len(place) > 8 else None
    if table is None:
        return "no table has rows that come due there"
    parked = place[:8] == PARKED
    expected = parked_key(table.code, text_key(key)) if parked else due_key(parse(due), table.code, text_key(key))
    if place != expected or (parked and due):
        return f"the entry of {table.name} {key} lies at another time than it tells"
    row = view.get(table, key)
    if row is None:
        return f"{table.name} {key} is not there"
    assert table.due is not None
    if due == stands_for and table.due(row) != due:
        return f"{table.name} {key} does not come due at {due}"
    return None


def is_counted(view: LmdbReading) -> bool:
    """Whether there are as many entries as were kept count of."""
    value = view.pages.get("proofs", b"count due")
    found = view.pages.count("due")
    return value == U64.pack(found) if found else value in (None, U64.pack(0))


def is_sound(view: LmdbReading) -> bool:
    """Whether every entry is as it must be and none is gone; costs what is due some day, not all rows."""
    try:
        return is_counted(view) and next(entry_faults(view), None) is None
    except StoreCorrupt:
        return False


def rows_without_entry(view: LmdbReading) -> Iterator[tuple[Table[Any], Row]]:
    """Rows that name a due time of which no entry tells; looks at all rows of the tables that come due."""
    entries: set[tuple[int, bytes, str]] = set()
    for place, value in view.pages.scan("due", b""):
        try:
            entries.add((place[8], place[9:], due_parts(value)[2]))
        except (StoreCorrupt, IndexError):
            continue
    for table in TIMED.values():
        assert table.due is not None
        for row in view.each(table):
            due = table.due(row)
            if due is not None and (table.code, text_key(table.key(row)), due) not in entries:
                yield table, row


def rebuild_dues(txn: LmdbWriting) -> int:
    """Make the index again from the rows; how many entries were wrong or gone.

    What had been looked at is looked at again.
    """
    wrong = [bytes.fromhex(where.removeprefix("due ")) for where, _ in entry_faults(txn)]
    for place in wrong:
        txn.pages.delete("due", place)
    missing = list(rows_without_entry(txn))
    for table, row in missing:
        assert table.due is not None
        due, key = table.due(row), table.key(row)
        assert due is not None
        place = due_key(parse(due), table.code, text_key(key))
        txn.pages.put("due", place, f"{due}\0{key}".encode())
    # Counted again even where nothing but the count was wrong.
    txn.pages.changed.add("due")
    return len(wrong) + len(missing)
