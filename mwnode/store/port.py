"""What every store promises. The contract suite in ``tests/contract`` holds adapters to it.

A store keeps, per Group, a gap-free log of signed Events with a hash chain, and beside it what the log means: receipts,
rows, due times, policy entries. One writer at a time; readers see one commit's state and never wait for the writer.
Within one ``write`` all is kept or nothing (R-15.1-15).
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager
from typing import Any, Protocol, TypeVar

from msgspec import Struct

from mwnode.authority.state import R, Row, Table
from mwnode.authority.view import View
from mwnode.protocol.documents import FirstAdmissionRecord, PolicyLogEntry
from mwnode.protocol.instants import Instant
from mwnode.store.layout import event_id_in

T = TypeVar("T")

ORGANIZATION = ""
"""The pseudo Group whose log holds the Organization-scoped Events, under an internal numbering of its own."""
NO_CHAIN = bytes(32)
"""The chain value before the first Event."""


class StoredEvent(Struct, frozen=True, gc=False):
    """One Event as it lies in a log.

    ``event`` holds the exact canonical bytes that were signed, signature included; ``signing_hash`` is SHA-256 of them
    without it; ``chain`` is BLAKE3 of the previous chain value and the signing hash.
    """

    sequence: int
    event: bytes
    signing_hash: bytes
    chain: bytes

    @property
    def event_id(self) -> str:
        """The Event's ID, read from its bytes."""
        return event_id_in(self.event)


class EventFacts(Struct, frozen=True):
    """What the log keeps about an Event beside its bytes: its first admission, the number of its Command, and its
    position among all Events of the store in the order of commits."""

    accepted_at: str
    command_number: int | None
    position: int


class Head(Struct, frozen=True):
    """The newest Event of a log."""

    sequence: int
    chain: bytes
    last_occurred_at: str


class Trim(Struct, frozen=True):
    """What remains of a trimmed prefix: Events up to ``through`` are only in the snapshot (decision C8)."""

    through: int
    chain: bytes
    last_occurred_at: str
    snapshot_artifact_hash: str


class Receipt(Struct, frozen=True):
    """What an accepted Command led to: the receipt Event first, then its other Events by sequence (decision B17)."""

    signing_hash: bytes
    events: tuple[tuple[str, int], ...]
    record: bytes | None
    command_number: int


class NewEvent(Struct, frozen=True):
    """An Event to append. ``group_id`` is ``""`` for Organization-scoped ones."""

    group_id: str
    event_id: str
    occurred_at: str
    accepted_at: str
    event: bytes
    signing_hash: bytes
    command_number: int | None = None


class AuditRow(Struct, frozen=True, omit_defaults=True):
    """A protected diagnostic: which stage refused a document and exactly why (R-6.4-82). Never leaves the node."""

    at: str
    stage: str
    reason: str
    document_kind: str = ""
    key_id: str | None = None
    signing_hash: str | None = None
    group_id: str | None = None
    actor: str | None = None
    details: dict[str, Any] | None = None


class DueEntry(Struct, frozen=True):
    """A row that the timer must look at. ``due`` is the timestamp's text as the row gives it."""

    table_code: int
    key: str
    due: str
    stands_for: str = ""
    """The due text that the row gave, where the entry was postponed since."""


class ReadTransaction(View, Protocol):
    """One consistent state of the store; valid until its context ends."""

    # --- logs ---

    def head_record(self, group_id: str) -> Head | None:
        """The newest Event's place, chain and time; ``None`` for an empty log."""

    def groups(self) -> list[str]:
        """Every Group with a log, in order of creation; without the Organization's pseudo Group."""

    def events(self, group_id: str, after: int, limit: int) -> list[StoredEvent]:
        """At most ``limit`` Events with a higher sequence than ``after``, in order. Trimmed ones are missing."""

    def event(self, group_id: str, sequence: int) -> StoredEvent | None:
        """The Event at one place."""

    def event_by_id(self, event_id: str) -> StoredEvent | None:
        """The Event of that ID, in whatever log."""

    def organization_events(self, after: int, limit: int) -> list[StoredEvent]:
        """As ``events`` for the Organization-scoped log."""

    def event_facts(self, group_id: str, sequence: int) -> EventFacts | None:
        """Admission and Command of the Event at one place."""

    def trimmed(self, group_id: str) -> Trim | None:
        """Up to where the log was trimmed, if it was."""

    # --- provenance (R-13.1-19) ---

    def deriving_groups(self, content_hash: str) -> Iterator[str]:
        """Groups in which something was made of those bytes, each once; costs what is taken from it."""

    def derivations(self, content_hash: str, group_id: str, after: str | None, limit: int) -> list[str]:
        """IDs of at most ``limit`` Artifacts of one Group that state the hash as a source, in an order that new ones
        do not change; those behind the ID ``after``, which need not be one of them."""

    # --- Commands and admissions ---

    def receipt(self, actor_id: str, action_id: str) -> Receipt | None:
        """The receipt of an accepted Command."""

    def command(self, signing_hash: bytes) -> bytes | None:
        """The accepted Command of that signing hash: canonical bytes with its signature. For auditors."""

    def command_by_number(self, number: int) -> bytes | None:
        """The accepted Command of that number, as ``command``; numbers count acceptances from 1."""

    def admission(self, signing_hash: bytes) -> FirstAdmissionRecord | None:
        """The First-Admission Record of an accepted Command or of a document inside one (R-6.4-60)."""

    def policy_log(self, group_id: str | None, after: int = 0, limit: int = 1000) -> list[PolicyLogEntry]:
        """Entries of one Group's policy log, or the Organization's (``None``), in order of writing."""

    # --- delivery ---

    def cursor(self, agent_id: str, group_id: str) -> int:
        """The Agent's durable Cursor, 0 when it never acknowledged."""

    def cursors(self, agent_id: str) -> list[tuple[str, int]]:
        """All durable Cursors of an Agent: Group and sequence."""

    # --- time ---

    def due(self, until: Instant, limit: int) -> list[DueEntry]:
        """Rows that came due at or before ``until``, earliest first."""

    def next_due(self) -> Instant | None:
        """When the earliest row comes due."""

    # --- the rest ---

    def document(self, content_hash: str) -> bytes | None:
        """A small document by the ``sha256:`` hash of its bytes; checked on reading."""

    def audit(self, after: int, limit: int) -> list[tuple[int, AuditRow]]:
        """Protected diagnostics with their numbers, in order of writing."""

    def meta(self, name: str) -> bytes | None:
        """A named value of the store itself."""


class WriteTransaction(ReadTransaction, Protocol):
    """Changes to the store; reads see them. Kept whole when the closure of ``Store.write`` returns."""

    def put(self, table: Table[R], row: R) -> None:
        """Set a row. Keeps its listing and its due time. Refuses one that lacks required members (R-2-02)."""

    def append_event(self, event: NewEvent) -> StoredEvent:
        """Append to a log at the next sequence and chain on."""

    def erase_event(self, group_id: str, sequence: int, event: bytes) -> None:
        """Put a signed tombstone in an Event's place; ID, place, signing hash and chain value stay (decision F17)."""

    def put_command(self, signing_hash: bytes, command: bytes, accepted_at: str) -> int:
        """Keep an accepted Command with its first admission; its number."""

    def put_receipt(self, actor_id: str, action_id: str, receipt: Receipt) -> None:
        """Bind an Action ID. StoreCorrupt when it is bound already."""

    def put_admission(self, record: FirstAdmissionRecord) -> FirstAdmissionRecord:
        """Append the record, or return the one that stands already under its signing hash (R-6.4-60)."""

    def put_policy(self, group_id: str | None, entry: PolicyLogEntry) -> None:
        """Append to a policy log (R-G-10)."""

    def put_document(self, content: bytes) -> str:
        """Keep a small document; its ``sha256:`` hash."""

    def drop_document(self, content_hash: str) -> None:
        """Forget a small document that nothing names any more."""

    def put_cursor(self, agent_id: str, group_id: str, sequence: int) -> None:
        """Move a Cursor forward; a lower value is ignored (decision A10). Deletes no history (R-16-05)."""

    def put_audit(self, row: AuditRow) -> int:
        """Append a protected diagnostic; its number."""

    def put_meta(self, name: str, value: bytes) -> None:
        """Set a named value of the store itself."""

    def drop_due(self, entry: DueEntry) -> None:
        """Forget one due time; the row stays."""

    def postpone_due(self, entry: DueEntry, until: Instant) -> None:
        """Look at the row again at ``until`` instead."""


class Store(Protocol):
    """A store that is open."""

    def read(self) -> AbstractContextManager[ReadTransaction]:
        """A consistent view. Keep it short: an old view keeps freed space from being used again."""

    def write(self, change: Callable[[WriteTransaction], T]) -> T:
        """Run ``change`` and make all of it durable before returning its result.

        An exception out of ``change`` undoes everything. ``change`` may be run again from the start when the store
        has to grow, so it must have no effect but on its transaction. StoreFull, StoreUnavailable: nothing was kept.
        """

    def close(self) -> None:
        """Give the file back. Idempotent."""


__all__ = [
    "NO_CHAIN",
    "ORGANIZATION",
    "AuditRow",
    "DueEntry",
    "EventFacts",
    "Head",
    "NewEvent",
    "ReadTransaction",
    "Receipt",
    "Row",
    "Store",
    "StoredEvent",
    "Trim",
    "WriteTransaction",
]
