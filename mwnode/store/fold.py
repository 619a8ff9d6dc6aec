"""Replay: the rows as the log alone tells them, folded into a file of their own.

``mwnode verify`` compares them with the rows that are there; ``mwnode doctor --rebuild`` puts them in their place.
"""

from __future__ import annotations

import tempfile
from collections import ChainMap, deque
from collections.abc import Callable, Iterator, Mapping
from contextlib import ExitStack, contextmanager
from itertools import islice
from pathlib import Path
from typing import Any, Final

import lmdb
import msgspec
from msgspec import UNSET, Struct

from mwnode.authority.cooperation import rated_in
from mwnode.authority.evolve import evolve, fact_of
from mwnode.authority.intake import typed_payload
from mwnode.authority.organization import answer, record
from mwnode.authority.request import EventFact
from mwnode.authority.state import (
    AGENTS,
    CONTENTS,
    KEYS,
    MISSIONS,
    PRINCIPALS,
    PROFILES,
    TABLES,
    WORK_ITEMS,
    AccountRow,
    ContentRow,
    DuplicateRow,
    EvidenceRow,
    GroupRow,
    LeaseRow,
    MissionRow,
    OverrideRow,
    R,
    RateRow,
    Row,
    Table,
)
from mwnode.authority.view import Overlay
from mwnode.authority.work_item import duplicated_under
from mwnode.protocol import jcs, strict_json
from mwnode.protocol.commands import CORE, Payload
from mwnode.protocol.documents import Command, Event, PolicyLogEntry
from mwnode.store import organization_rows
from mwnode.store.environment import LmdbReading, LmdbStore, LmdbWriting
from mwnode.store.errors import StoreCorrupt
from mwnode.store.founding import founding_of, put_founding
from mwnode.store.log_records import LogRecord, decode_command_record
from mwnode.store.projections import decode_row
from mwnode.store.trim import related_groups, trimmed_groups

Progress = Callable[[str, int, int], None]

ROOTS: Final[tuple[Table[Any], ...]] = (KEYS, PRINCIPALS, PROFILES)
"""Tables that Registry Commands and the founding of the store write without any Event; trimming touches none."""
FOLDED: Final[tuple[Table[Any], ...]] = tuple(TABLES)
REGISTRY_KINDS: Final = frozenset({f"{CORE}.key_bind", f"{CORE}.key_restrict", f"{CORE}.profile_register"})
"""Commands that leave rows and a record, and no Event (decision F7)."""
_REGISTRY_NEEDLES: Final = tuple(f'"kind":"{kind}"'.encode() for kind in sorted(REGISTRY_KINDS))
RECORDS_PER_STEP: Final = 512
ROWS_PER_FLUSH: Final = 4096


class _Folded:
    """What evolving may read: rows folded so far, and of the log only what lies before the Event being folded."""

    def __init__(self, rows: LmdbWriting, source: LmdbReading, heads: Mapping[str, tuple[int, str]]) -> None:
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
        event = strict_json.trusted(record.event, Event)
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
    command = strict_json.trusted(raw, Command)
    grant = command.cooperation_override_grant_id
    return typed_payload(command), None if grant is UNSET else grant


class Scope:
    """Which rows the log still tells. All of them, unless Groups were trimmed: then those of other families only, for
    what happened in a trimmed Group is in its snapshot (decision C8)."""

    def __init__(self, source: LmdbReading) -> None:
        trimmed = set(trimmed_groups(source))
        self.untold: frozenset[str] = frozenset(related_groups(source, trimmed) if trimmed else ())
        self._accounts: dict[str, str] = {}
        """Accounts of the untold Groups only: rows of the others may still have to be made."""
        if self.untold:
            owned = [(row.mission.mission_id, row.mission.group_id) for row in source.each(MISSIONS)]
            owned += [(row.item.work_item_id, row.item.group_id) for row in source.each(WORK_ITEMS)]
            self._accounts.update((name, group_id) for name, group_id in owned if group_id in self.untold)

    def tells(self, table: Table[Any], row: Row) -> bool:
        """Whether folding the log gives this very row."""
        if not self.untold or table in ROOTS:
            return True
        match row:
            case AccountRow():
                return row.account_id not in self._accounts
            case DuplicateRow():
                return duplicated_under(row) not in self._accounts
            case ContentRow():
                return self.untold.isdisjoint(row.group_ids)
        group_id = self.group_of(table, row)
        return group_id is not None and group_id not in self.untold

    def seeds(self, table: Table[Any], row: Row) -> bool:
        """Whether the row is taken as it is, for others may refer to it."""
        if isinstance(row, ContentRow):
            return not self.untold.isdisjoint(row.group_ids)
        return self.group_of(table, row) in self.untold

    def group_of(self, table: Table[Any], row: Row) -> str | None:
        """The Group that a row belongs to; ``None`` for what belongs to the Organization."""
        if table.group is not None:
            return table.group(row)
        match row:
            case GroupRow():
                return row.group.group_id
            case MissionRow():
                return row.mission.group_id
            case EvidenceRow():
                return row.evidence.group_id
            case OverrideRow():
                return row.grant.group_id
            case LeaseRow():
                return row.lease.group_id
            case RateRow():
                return rated_in(row)
            case AccountRow():
                return self._accounts.get(row.account_id)
            case DuplicateRow():
                return self._accounts.get(duplicated_under(row))
        return None


class Registered(Struct, frozen=True):
    """What a Registry Command left, as replay tells it."""

    number: int
    actor_id: str
    action_id: str
    record: bytes


class _RegistryCommands:
    """The Registry Commands of a store in the order in which they were accepted."""

    def __init__(self, source: LmdbReading) -> None:
        self._found = _registry_commands(source)
        self._left: deque[tuple[int, str, Command]] = deque(islice(self._found, 1))
        self._taken: list[tuple[int, str, Command]] = []
        self.registered: list[Registered] = []

    def begin(self) -> None:
        """A transaction begins, perhaps the same one anew because the file had to grow: so does what it folded."""
        self._left.extendleft(reversed(self._taken))
        del self.registered[len(self.registered) - len(self._taken) :]
        self._taken.clear()

    def keep(self) -> None:
        """The transaction is committed."""
        self._taken.clear()

    def fold_before(self, txn: LmdbWriting, view: _Folded, number: int | None) -> None:
        """Make the rows of those before the Command of that number; ``None`` = of all."""
        while self._left and (number is None or self._left[0][0] < number):
            own, accepted_at, command = self._left[0]
            where = f"command {own}"
            try:
                payload: Any = typed_payload(command)
                overlay = Overlay(view)
                record(overlay, payload, accepted_at)
                for table, row in overlay.changes.values():
                    txn.put(table, row)
                told = jcs.canonical(answer(overlay, payload))
            except lmdb.MapFullError:
                raise  # room is made, and all of this is done again
            except Exception as error:
                raise StoreCorrupt(f"{where} ({command.kind}) cannot be folded: {error!r}", where) from error
            self.registered.append(Registered(own, command.actor.id, command.action_id, told))
            self._taken.append(self._left.popleft())
            if not self._left:
                self._left.extend(islice(self._found, 1))


def _registry_commands(source: LmdbReading) -> Iterator[tuple[int, str, Command]]:
    for key, value in source.pages.scan("commands", b""):
        if not any(needle in value for needle in _REGISTRY_NEEDLES):
            continue
        number = int.from_bytes(key, "big")
        _, accepted_at, raw = decode_command_record(number, value)
        try:
            command = strict_json.trusted(raw, Command)
        except msgspec.MsgspecError as error:
            raise StoreCorrupt(f"command {number} cannot be read: {error}", f"command {number}") from error
        if command.kind in REGISTRY_KINDS:
            yield number, accepted_at, command


@contextmanager
def folded_rows(
    source: LmdbReading, progress: Progress, scope: Scope | None = None, registered: list[Registered] | None = None
) -> Iterator[LmdbStore]:
    """A store of its own that holds the rows of every folded table. StoreCorrupt names the Event that stops it.

    ``registered`` is filled with what the Registry Commands left.
    """
    scope = scope or Scope(source)
    with tempfile.TemporaryDirectory(prefix="mwnode-fold-") as directory:
        target = LmdbStore.open(Path(directory) / "fold.mdb", durable=False)
        try:
            target.write(lambda txn: _seed(txn, source, scope))
            registry = _RegistryCommands(source)
            _fold(target, source, progress, scope, registry)
            if registered is not None:
                registered += registry.registered
            yield target
        finally:
            target.close()


def _seed(txn: LmdbWriting, source: LmdbReading, scope: Scope) -> None:
    founding = founding_of(source)
    if founding is not None:
        put_founding(txn, founding)
    else:
        # The file does not tell its root: what it says of keys is taken as it is.
        for table in ROOTS:
            for row in source.each(table):
                txn.put(table, row)
    if scope.untold:
        for table in FOLDED:
            for row in source.each(table):
                if scope.seeds(table, row):
                    txn.put(table, row)


def _fold(
    target: LmdbStore, source: LmdbReading, progress: Progress, scope: Scope, registry: _RegistryCommands
) -> None:
    heads: dict[str, tuple[int, str]] = {}
    told: dict[str, tuple[int, str]] = {}
    """Of the present transaction."""
    untold = {source.group_number(group_id) for group_id in scope.untold}
    total = source.pages.count("log")
    position = done = 0
    while records := source.records(position, RECORDS_PER_STEP):
        facts = [
            (record.command_number, replayed_fact(source, record))
            for record in records
            if record.group_number not in untold
        ]

        def step(txn: LmdbWriting, facts: list[tuple[int | None, EventFact]] = facts) -> None:
            registry.begin()
            told.clear()
            view = _Folded(txn, source, ChainMap(told, heads))
            for number, fact in facts:
                if number is not None:
                    registry.fold_before(txn, view, number)
                overlay = Overlay(view)
                if fact.group_id is not None and fact.sequence is not None:
                    told[fact.group_id] = (fact.sequence, fact.occurred_at)
                try:
                    evolve(overlay, fact)
                    for table, row in overlay.changes.values():
                        txn.put(table, row)
                except lmdb.MapFullError:
                    raise  # as above
                except Exception as error:
                    where = f"group {fact.group_id} sequence {fact.sequence}"
                    raise StoreCorrupt(f"{where} ({fact.kind}) cannot be folded: {error!r}", where) from error

        target.write(step)
        registry.keep()
        heads.update(told)
        position = records[-1].position
        done += len(records)
        progress("rows", done, total)

    def rest(txn: LmdbWriting) -> None:
        registry.begin()
        registry.fold_before(txn, _Folded(txn, source, heads), None)

    target.write(rest)
    registry.keep()


def compare_rows(source: LmdbReading, progress: Progress) -> Iterator[tuple[str, str, str]]:
    """Where the rows, and the records of Registry Commands, are not what the log tells: kind, where, detail."""
    try:
        scope = Scope(source)
        registered: list[Registered] = []
        with folded_rows(source, progress, scope, registered) as store, store.read() as folded:
            for table in FOLDED:
                yield from _compare_table(table, source, folded, scope)
            if scope.untold:
                yield from organization_rows.faults(source, folded)
        for each in registered:
            receipt = source.receipt(each.actor_id, each.action_id)
            if receipt is None or receipt.record != each.record:
                yield "receipt", f"command {each.number}", "the record in its receipt is not what the Command leaves"
    except StoreCorrupt as error:
        yield "projection", error.where, str(error)


def _compare_table(
    table: Table[Row], source: LmdbReading, folded: LmdbReading, scope: Scope
) -> Iterator[tuple[str, str, str]]:
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
        if not scope.tells(table, row):
            continue
        where = f"{table.name} {table.key(row)}"
        if expected is None:
            yield "projection", where, "the log does not tell of this row"
        elif decode_row(table, expected, place.hex()) != row:
            yield "projection", where, "the row is not what the log tells"
    for place, value in ours.items():
        row = decode_row(table, value, place.hex())
        if scope.tells(table, row):
            yield "projection", f"{table.name} {table.key(row)}", "the row is missing"


def rebuild(store: LmdbStore, progress: Progress) -> int:
    """Put the rows that the log tells in the place of those that are there, in one transaction; how many.

    Rows that only a snapshot tells of, and those that no Event makes, stay as they are. Raises StoreCorrupt when the
    log itself cannot be folded: nothing was changed then.
    """
    with ExitStack() as stack:
        # The source is let go before the write: a file that is being read cannot grow.
        with store.read() as source:
            scope = Scope(source)
            made = stack.enter_context(folded_rows(source, progress, scope))
        with made.read() as folded:
            return store.write(lambda txn: _replace(txn, folded, scope))


def _replace(txn: LmdbWriting, folded: LmdbReading, scope: Scope) -> int:
    kept: list[tuple[Table[Row], Row]] = []
    for table in FOLDED:
        if scope.untold:
            kept += [(table, row) for row in txn.each(table) if table is not AGENTS and not scope.tells(table, row)]
    for table in FOLDED:
        code = bytes((table.code,)), bytes((table.code + 1,))
        for db in ("entities", "listing"):
            for key, _ in list(txn.pages.scan(db, *code)):
                txn.pages.delete(db, key)
    for key, _ in list(txn.pages.scan("derivations", b"")):
        txn.pages.delete("derivations", key)
    for key, _ in list(txn.pages.scan("due", b"")):
        txn.pages.delete("due", key)
    txn.pages.flush_all()
    txn.touched.clear()
    txn.cache.clear()
    put = 0
    for table in FOLDED:
        for row in folded.each(table):
            if scope.tells(table, row):
                txn.put(table, row)
                put += 1
                if put % ROWS_PER_FLUSH == 0:
                    txn.pages.flush_all()
    for table, row in kept:
        txn.put(table, row)
    if scope.untold:
        txn.pages.flush_all()
        for agent in list(organization_rows.agents(txn, folded)):
            txn.put(AGENTS, agent)
            put += 1
        for content in list(organization_rows.contents(txn, folded, scope.untold)):
            txn.put(CONTENTS, content)
            put += 1
    return put
