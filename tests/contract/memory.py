"""A store in memory: the port once more, in the plainest way, used by nothing but the contract suite.

Every commit makes a new state out of copies, so that readers keep theirs. Nothing here is shared with the LMDB adapter
but the port's types.
"""

from __future__ import annotations

import copy
import hashlib
from collections import defaultdict
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from threading import RLock
from typing import TypeVar

import msgspec
from blake3 import blake3

from mwnode.authority.state import ARTIFACTS, TABLES, R, Row, Table
from mwnode.protocol.documents import FirstAdmissionRecord, PolicyLogEntry
from mwnode.protocol.instants import Instant, parse
from mwnode.store.errors import StoreCorrupt
from mwnode.store.port import (
    NO_CHAIN,
    ORGANIZATION,
    AuditRow,
    DueEntry,
    EventFacts,
    Head,
    NewEvent,
    Receipt,
    StoredEvent,
    Trim,
)
from mwnode.store.shapes import check_of

T = TypeVar("T")
_CHECKS = {table.code: check_of(table.row) for table in TABLES}


class State:
    """Everything the store holds."""

    def __init__(self) -> None:
        self.logs: dict[str, list[tuple[NewEvent, StoredEvent, int]]] = {}
        self.rows: dict[tuple[int, str], Row] = {}
        self.dues: dict[tuple[int, str], str] = {}
        self.receipts: dict[tuple[str, str], Receipt] = {}
        self.commands: list[tuple[bytes, bytes, str]] = []
        self.admissions: dict[str, FirstAdmissionRecord] = {}
        self.policy: dict[str | None, list[PolicyLogEntry]] = defaultdict(list)
        self.cursors: dict[tuple[str, str], int] = {}
        self.documents: dict[str, bytes] = {}
        self.audits: list[AuditRow] = []
        self.metas: dict[str, bytes] = {}
        self.count = 0

    def fork(self) -> State:
        """A copy that can be changed without this one noticing; rows and Events are immutable themselves."""
        forked = State()
        for name, value in vars(self).items():
            setattr(forked, name, copy.copy(value))
        forked.logs = {group: list(log) for group, log in self.logs.items()}
        forked.policy = defaultdict(list, {group: list(log) for group, log in self.policy.items()})
        return forked


class MemoryTransaction:
    """Reads and writes of one state."""

    def __init__(self, state: State) -> None:
        self.state = state

    # --- rows ---

    def get(self, table: Table[R], key: str) -> R | None:
        return self.state.rows.get((table.code, key))  # type: ignore[return-value]

    def all(self, table: Table[R]) -> list[R]:
        return [row for (code, _), row in sorted(self.state.rows.items()) if code == table.code]  # type: ignore[misc]

    def in_group(self, table: Table[R], group_id: str) -> list[R]:
        assert table.group is not None
        return [row for row in self.all(table) if table.group(row) == group_id]

    def deriving_groups(self, content_hash: str) -> Iterator[str]:
        rows = [row.artifact for row in self.all(ARTIFACTS) if content_hash in row.artifact.source_artifact_hashes]
        return iter(sorted({artifact.group_id for artifact in rows}))

    def derivations(self, content_hash: str, group_id: str, after: str | None, limit: int) -> list[str]:
        rows = [row.artifact for row in self.in_group(ARTIFACTS, group_id)]
        found = [artifact.artifact_id for artifact in rows if content_hash in artifact.source_artifact_hashes]
        return [name for name in sorted(found) if after is None or name > after][:limit]

    def put(self, table: Table[R], row: R) -> None:
        _CHECKS[table.code].decode(msgspec.msgpack.encode(row))
        place = (table.code, table.key(row))
        before = self.state.rows.get(place)
        self.state.rows[place] = row
        if table.due is not None:
            old, new = None if before is None else table.due(before), table.due(row)  # type: ignore[arg-type]
            if new is None:
                self.state.dues.pop(place, None)
            elif new != old:
                self.state.dues[place] = new

    def due(self, until: Instant, limit: int) -> list[DueEntry]:
        entries = [DueEntry(code, key, due) for (code, key), due in self.state.dues.items() if parse(due) <= until]
        return sorted(entries, key=lambda entry: parse(entry.due))[:limit]

    def next_due(self) -> Instant | None:
        return min((parse(due) for due in self.state.dues.values()), default=None)

    def drop_due(self, entry: DueEntry) -> None:
        self.state.dues.pop((entry.table_code, entry.key), None)

    def postpone_due(self, entry: DueEntry, until: Instant) -> None:
        self.state.dues[(entry.table_code, entry.key)] = until.text()

    # --- logs ---

    def groups(self) -> list[str]:
        return [group for group in self.state.logs if group != ORGANIZATION]

    def head_record(self, group_id: str) -> Head | None:
        log = self.state.logs.get(group_id)
        return Head(log[-1][1].sequence, log[-1][1].chain, log[-1][0].occurred_at) if log else None

    def head(self, group_id: str) -> int:
        return len(self.state.logs.get(group_id, ()))

    def last_occurred_at(self, group_id: str) -> str | None:
        head = self.head_record(group_id)
        return None if head is None else head.last_occurred_at

    def events(self, group_id: str, after: int, limit: int) -> list[StoredEvent]:
        start = max(after, 0)
        return [entry[1] for entry in self.state.logs.get(group_id, ())[start : start + max(limit, 0)]]

    def organization_events(self, after: int, limit: int) -> list[StoredEvent]:
        return self.events(ORGANIZATION, after, limit)

    def event(self, group_id: str, sequence: int) -> StoredEvent | None:
        return next(iter(self.events(group_id, sequence - 1, 1)), None) if sequence > 0 else None

    def event_by_id(self, event_id: str) -> StoredEvent | None:
        logs = self.state.logs.values()
        return next((stored for log in logs for new, stored, _ in log if new.event_id == event_id), None)

    def event_ids(self, group_id: str, after: int, through: int) -> list[str]:
        return [stored.event_id for stored in self.events(group_id, after, through - max(after, 0))]

    def event_facts(self, group_id: str, sequence: int) -> EventFacts | None:
        log = self.state.logs.get(group_id, ())
        if not 0 < sequence <= len(log):
            return None
        new, _, position = log[sequence - 1]
        return EventFacts(new.accepted_at, new.command_number, position)

    def trimmed(self, group_id: str) -> Trim | None:
        return None

    def append_event(self, event: NewEvent) -> StoredEvent:
        log = self.state.logs.setdefault(event.group_id, [])
        chain = blake3((log[-1][1].chain if log else NO_CHAIN) + event.signing_hash).digest()
        stored = StoredEvent(len(log) + 1, event.event, event.signing_hash, chain)
        self.state.count += 1
        log.append((event, stored, self.state.count))
        return stored

    def erase_event(self, group_id: str, sequence: int, event: bytes) -> None:
        new, stored, position = self.state.logs[group_id][sequence - 1]
        erased = StoredEvent(sequence, event, stored.signing_hash, stored.chain)
        self.state.logs[group_id][sequence - 1] = (new, erased, position)
        if new.command_number is not None:
            signing_hash, _, accepted_at = self.state.commands[new.command_number - 1]
            self.state.commands[new.command_number - 1] = (signing_hash, b"", accepted_at)

    # --- Commands ---

    def put_command(self, signing_hash: bytes, command: bytes, accepted_at: str) -> int:
        self.state.commands.append((signing_hash, command, accepted_at))
        return len(self.state.commands)

    def command(self, signing_hash: bytes) -> bytes | None:
        return next((raw for known, raw, _ in self.state.commands if known == signing_hash), None)

    def command_by_number(self, number: int) -> bytes | None:
        return self.state.commands[number - 1][1] if 0 < number <= len(self.state.commands) else None

    def put_receipt(self, actor_id: str, action_id: str, receipt: Receipt) -> None:
        if (actor_id, action_id) in self.state.receipts:
            raise StoreCorrupt(f"Action ID {action_id} of {actor_id} is bound already")
        self.state.receipts[(actor_id, action_id)] = receipt

    def receipt(self, actor_id: str, action_id: str) -> Receipt | None:
        return self.state.receipts.get((actor_id, action_id))

    def accepted(self, actor_id: str, action_id: str) -> bool:
        return (actor_id, action_id) in self.state.receipts

    def put_admission(self, record: FirstAdmissionRecord) -> FirstAdmissionRecord:
        return self.state.admissions.setdefault(record.signing_hash, record)

    def admission(self, signing_hash: bytes) -> FirstAdmissionRecord | None:
        return self.state.admissions.get(f"sha256:{signing_hash.hex()}")

    # --- the rest ---

    def put_policy(self, group_id: str | None, entry: PolicyLogEntry) -> None:
        self.state.policy[group_id].append(entry)

    def policy_log(self, group_id: str | None, after: int = 0, limit: int = 1000) -> list[PolicyLogEntry]:
        return self.state.policy.get(group_id, [])[after : after + limit]

    def put_cursor(self, agent_id: str, group_id: str, sequence: int) -> None:
        place = (agent_id, group_id)
        self.state.cursors[place] = max(sequence, self.state.cursors.get(place, 0))

    def cursor(self, agent_id: str, group_id: str) -> int:
        return self.state.cursors.get((agent_id, group_id), 0)

    def cursors(self, agent_id: str) -> list[tuple[str, int]]:
        return [(group, sequence) for (agent, group), sequence in self.state.cursors.items() if agent == agent_id]

    def put_document(self, content: bytes) -> str:
        content_hash = f"sha256:{hashlib.sha256(content).hexdigest()}"
        self.state.documents[content_hash] = content
        return content_hash

    def drop_document(self, content_hash: str) -> None:
        self.state.documents.pop(content_hash, None)

    def document(self, content_hash: str) -> bytes | None:
        return self.state.documents.get(content_hash)

    def has_content(self, content_hash: str) -> int | None:
        return None

    def put_audit(self, row: AuditRow) -> int:
        self.state.audits.append(row)
        return len(self.state.audits)

    def audit(self, after: int, limit: int) -> list[tuple[int, AuditRow]]:
        return list(enumerate(self.state.audits, start=1))[after : after + limit]

    def put_meta(self, name: str, value: bytes) -> None:
        self.state.metas[name] = value

    def meta(self, name: str) -> bytes | None:
        return self.state.metas.get(name)


class MemoryStore:
    """The port over states in memory."""

    def __init__(self) -> None:
        self._state = State()
        self._lock = RLock()

    @contextmanager
    def read(self) -> Iterator[MemoryTransaction]:
        yield MemoryTransaction(self._state)

    def write(self, change: Callable[[MemoryTransaction], T]) -> T:
        with self._lock:
            forked = self._state.fork()
            result = change(MemoryTransaction(forked))
            self._state = forked
            return result

    def close(self) -> None:
        self._state = State()
