"""Replay: the rows as the log alone tells them, folded into a file of their own.

``mwnode verify`` compares them with the rows that are there; ``mwnode doctor --rebuild`` puts them in their place.
"""

from __future__ import annotations

import tempfile
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any, Final

import msgspec
from msgspec import UNSET

from mwnode.authority.evolve import evolve, fact_of
from mwnode.authority.request import EventFact
from mwnode.authority.state import KEYS, PRINCIPALS, PROFILES, TABLES, R, Row, Table
from mwnode.authority.view import Overlay
from mwnode.protocol.commands import PAYLOADS, Payload
from mwnode.protocol.documents import Command, Event, PolicyLogEntry
from mwnode.store.environment import LmdbReading, LmdbStore, LmdbWriting
from mwnode.store.errors import StoreCorrupt
from mwnode.store.log_records import LogRecord
from mwnode.store.projections import decode_row

Progress = Callable[[str, int, int], None]

ROOTS: Final[tuple[Table[Any], ...]] = (KEYS, PRINCIPALS, PROFILES)
"""Tables that Registry Commands and the founding of the store write without any Event; they are no fold of the log."""
FOLDED: Final[tuple[Table[Any], ...]] = tuple(table for table in TABLES if table not in ROOTS)
RECORDS_PER_STEP: Final = 512


class _Folded:
    """What evolving may read: rows folded so far, and of the log only what lies before the Event being folded."""

    def __init__(self, rows: LmdbWriting, source: LmdbReading, heads: dict[str, tuple[int, str]]) -> None:
        self.rows = rows
        self.source = source
        self.heads = heads

    def get(self, table: Table[R], key: str) -> R | None:
        return self.rows.get(table, key)

    def in_group(self, table: Table[R], group_id: str) -> list[R]:
        return self.rows.in_group(table, group_id)

    def all(self, table: Table[R]) -> list[R]:
        return self.rows.all(table)

    def head(self, group_id: str) -> int:
        return self.heads.get(group_id, (0, ""))[0]

    def last_occurred_at(self, group_id: str) -> str | None:
        return self.heads.get(group_id, (0, None))[1]

    def accepted(self, actor_id: str, action_id: str) -> bool:
        return self.source.accepted(actor_id, action_id)

    def has_content(self, content_hash: str) -> int | None:
        return self.source.has_content(content_hash)

    def event_ids(self, group_id: str, after: int, through: int) -> list[str]:
        return self.source.event_ids(group_id, after, min(through, self.head(group_id)))

    def policy_log(self, group_id: str | None, after: int = 0, limit: int = 1000) -> list[PolicyLogEntry]:
        return self.source.policy_log(group_id, after, limit)


def replayed_fact(source: LmdbReading, record: LogRecord) -> EventFact:
    """A stored Event made ready to be folded. StoreCorrupt when it does not fit its kind."""
    where = f"group {source.group_name(record.group_number)} sequence {record.sequence}"
    try:
        event = msgspec.json.decode(record.event, type=Event)
        payload, grant = None, None
        if event.cause.type == "command" and record.command_number is not None:
            payload, grant = _command_parts(source.command_by_number(record.command_number))
        return fact_of(event, payload, grant)
    except (msgspec.MsgspecError, KeyError, ValueError) as error:
        raise StoreCorrupt(f"{where} cannot be folded: {error}", where) from error


def _command_parts(raw: bytes | None) -> tuple[Payload | None, str | None]:
    """Typed payload of a Command, and the Cooperation Override Grant it cites; nothing of an erased one."""
    if not raw:
        return None, None
    command = msgspec.json.decode(raw, type=Command)
    grant = command.cooperation_override_grant_id
    payload = msgspec.convert(command.payload, PAYLOADS[command.kind])
    return payload, None if grant is UNSET else grant


@contextmanager
def folded_rows(source: LmdbReading, progress: Progress) -> Iterator[LmdbStore]:
    """A store of its own that holds the rows of every folded table. StoreCorrupt names the Event that stops it."""
    with tempfile.TemporaryDirectory(prefix="mwnode-fold-") as directory:
        target = LmdbStore.open(Path(directory) / "fold.mdb", durable=False)
        try:
            target.write(lambda txn: _seed(txn, source))
            _fold(target, source, progress)
            yield target
        finally:
            target.close()


def _seed(txn: LmdbWriting, source: LmdbReading) -> None:
    for table in ROOTS:
        for row in source.each(table):
            txn.put(table, row)


def _fold(target: LmdbStore, source: LmdbReading, progress: Progress) -> None:
    heads: dict[str, tuple[int, str]] = {}
    total = source.pages.count("log")
    position = done = 0
    while records := source.records(position, RECORDS_PER_STEP):
        facts = [replayed_fact(source, record) for record in records]

        def step(txn: LmdbWriting, facts: list[EventFact] = facts) -> None:
            for fact in facts:
                overlay = Overlay(_Folded(txn, source, heads))
                if fact.group_id is not None and fact.sequence is not None:
                    heads[fact.group_id] = (fact.sequence, fact.occurred_at)
                try:
                    evolve(overlay, fact)
                    for table, row in overlay.changes.values():
                        txn.put(table, row)
                except Exception as error:
                    where = f"group {fact.group_id} sequence {fact.sequence}"
                    raise StoreCorrupt(f"{where} ({fact.kind}) cannot be folded: {error!r}", where) from error

        target.write(step)
        position = records[-1].position
        done += len(records)
        progress("rows", done, total)


def compare_rows(source: LmdbReading, progress: Progress) -> Iterator[tuple[str, str, str]]:
    """Where the rows are not the fold of the log: kind, where, detail."""
    if any(source.trimmed(group_id) for group_id in source.groups()):
        # What was trimmed is only in a snapshot; the rest of the log no longer tells every row.
        return
    try:
        with folded_rows(source, progress) as store, store.read() as folded:
            for table in FOLDED:
                yield from _compare_table(table, source, folded)
    except StoreCorrupt as error:
        yield "projection", error.where, str(error)


def _compare_table(table: Table[Row], source: LmdbReading, folded: LmdbReading) -> Iterator[tuple[str, str, str]]:
    code = bytes((table.code,)), bytes((table.code + 1,))
    ours = dict(folded.pages.scan("entities", *code))
    for place, value in source.pages.scan("entities", *code):
        expected = ours.pop(place, None)
        if expected == value:
            continue
        try:
            row = decode_row(table, value, place.hex())
        except StoreCorrupt as error:
            yield "projection", f"{table.name} {place.hex()}", str(error)
            continue
        where = f"{table.name} {table.key(row)}"
        if expected is None:
            yield "projection", where, "the log does not tell of this row"
        elif decode_row(table, expected, place.hex()) != row:
            yield "projection", where, "the row is not what the log tells"
    for place, value in ours.items():
        yield "projection", f"{table.name} {table.key(decode_row(table, value, place.hex()))}", "the row is missing"
