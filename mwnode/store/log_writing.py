"""Appending to the logs: every write goes to the end and is never changed (R-4-06), but for the one erasure that
policy may order (decision F17)."""

from __future__ import annotations

import struct
from collections.abc import Iterable, Sequence

from mwnode.protocol.documents import FirstAdmissionRecord, PolicyLogEntry
from mwnode.store.errors import StoreCorrupt, WriterRefused
from mwnode.store.group_log import (
    AUDIT_END,
    AUDIT_START,
    ERASED,
    HASH_PREFIX,
    ORGANIZATION_NUMBER,
    POSITION,
    Heads,
    LogReading,
    encode_json,
    receipt_places,
    unchained,
)
from mwnode.store.layout import (
    CHAIN_END,
    CHAINED_HEAD,
    HASH_BUCKET,
    PLACE,
    RECEIPT_HEAD,
    RECORD,
    U32,
    U64,
    admission_check,
    meta_check,
    next_chain,
    policy_end,
    receipt_key,
    text_key,
)
from mwnode.store.log_records import (
    LogRecord,
    decode_command_record,
    decode_log_record,
    encode_command_record,
    encode_log_record,
)
from mwnode.store.pages import WritePages
from mwnode.store.port import NO_CHAIN, AuditRow, Head, NewEvent, Receipt, StoredEvent


class LogWriting(LogReading):
    """The append-only half of a write transaction."""

    pages: WritePages
    own: Heads
    """Numbers and heads of this transaction; they join ``shared`` when it is committed."""
    counters: dict[str, int]
    known_receipts: dict[bytes, bytes | None]
    """Receipt records of this batch's Commands as they were before it; ``None`` for absence."""
    known_places: dict[bytes, tuple[int, bytes]]
    """Position and record of the Events that those receipts name."""

    def prefetch_receipts(self, commands: Sequence[tuple[str, str]]) -> set[tuple[str, str]]:
        """Look up the receipts of a batch's Commands, (actor ID, Action ID), in one call; those that have none."""
        keys = [receipt_key(actor_id, action_id) for actor_id, action_id in commands]
        found = self.pages.get_many("receipts", keys)
        known = self.known_receipts
        for key in keys:
            known[key] = found.get(key)
        if found:
            self._prefetch_events(found.values())
        return {command for command, key in zip(commands, keys, strict=True) if key not in found}

    def _prefetch_events(self, receipts: Iterable[bytes]) -> None:
        """Read what Commands that were accepted before are answered with."""
        places = {place for receipt in receipts for place in receipt_places(receipt)}
        positions = self.pages.get_many("places", places)
        records = self.pages.get_many("log", positions.values())
        for place, position in positions.items():
            if position in records:
                self.known_places[place] = (int(U64.unpack(position)[0]), records[position])

    def record(self, group_id: str, sequence: int) -> LogRecord | None:
        if self.known_places:
            number = self.group_number(group_id)
            known = None if number is None else self.known_places.get(PLACE.pack(number, sequence))
            if known is not None:
                return decode_log_record(*known)
        return super().record(group_id, sequence)

    def forget_prefetched(self) -> None:
        """Somebody else wrote to the transaction: what was read ahead may be older."""
        self.known_receipts.clear()
        self.known_places.clear()

    def _receipt_record(self, key: bytes) -> bytes | None:
        fresh = self.pages.buffers["receipts"].get(key)
        if fresh is not None or key not in self.known_receipts:
            return fresh or super()._receipt_record(key)
        return self.known_receipts[key]

    def group_number(self, group_id: str) -> int | None:
        number = self.own.number_of.get(group_id)
        if number is None:
            number = self.shared.number_of.get(group_id)
        return super().group_number(group_id) if number is None else number

    def group_name(self, number: int) -> str:
        name = self.own.name_of.get(number)
        return super().group_name(number) if name is None else name

    def number_for(self, group_id: str) -> int:
        """The Group's number, made when it has none."""
        number = self.group_number(group_id)
        if number is None:
            number = self._next("group_names", U32)
            self.pages.put("groups", text_key(group_id), U32.pack(number))
            self.pages.put("group_names", U32.pack(number), group_id.encode())
            self.own.number_of[group_id] = number
            self.own.name_of[number] = group_id
        return number

    def _head(self, number: int) -> Head | None:
        head = self.own.heads.get(number)
        if head is not None:
            return head
        if number in self.own.heads:
            return None
        if number in self.shared.heads:
            return self.shared.heads[number]
        head = super()._head(number)
        self.own.heads[number] = head
        return head

    def _next(self, db: str, width: struct.Struct) -> int:
        """The next number of a database that counts from 1."""
        number = self.counters.get(db)
        if number is None:
            newest = self.pages.last(db, b"")
            number = 0 if newest is None else int(width.unpack(newest[0])[0])
            if db == "log":
                used = self.pages.get("meta", POSITION)
                number = max(number, 0 if used is None else int(U64.unpack(used)[0]))
        self.counters[db] = number + 1
        return number + 1

    def append_event(self, event: NewEvent) -> StoredEvent:
        head = self.append(event)
        return StoredEvent(head.sequence, event.event, event.signing_hash, head.chain)

    def append(self, event: NewEvent) -> Head:
        """As ``append_event``; the log's new head."""
        number = self.number_for(event.group_id)
        head = self._head(number)
        sequence, chain = (1, NO_CHAIN) if head is None else (head.sequence + 1, head.chain)
        chain = next_chain(chain, event.signing_hash)
        position = U64.pack(self._next("log", U64))
        buffers = self.pages.buffers
        # Positions are never used twice, not even after the newest Events were trimmed.
        buffers["meta"][POSITION] = position
        buffers["log"][position] = encode_log_record(event, number, sequence, chain)
        buffers["places"][PLACE.pack(number, sequence)] = position
        buffers["event_ids"][text_key(event.event_id)] = position
        new = self.own.heads[number] = Head(sequence, chain, event.occurred_at)
        return new

    def erase_event(self, group_id: str, sequence: int, event: bytes) -> None:
        """Put other bytes in an Event's place; its signing hash and chain value stay (decision F17).

        The Command that caused it said the same words: only its hash is kept. Freed pages hold the old bytes until
        ``mwnode compact`` (decision F41).
        """
        record = self.record(group_id, sequence)
        if record is None:
            raise StoreCorrupt(f"{group_id} has no Event {sequence}", f"group {group_id} sequence {sequence}")
        erased = NewEvent(
            group_id, "", record.occurred_at, record.accepted_at, event, record.signing_hash, record.command_number
        )
        value = encode_log_record(erased, record.group_number, sequence, record.chain)
        self.pages.replace("log", U64.pack(record.position), value)
        self.known_places.clear()
        if record.command_number is not None:
            key = U64.pack(record.command_number)
            command = self.pages.get("commands", key)
            if command is not None:
                signing_hash, accepted_at, _ = decode_command_record(record.command_number, command)
                self.pages.replace("commands", key, encode_command_record(signing_hash, b"", accepted_at))
        self.remember_erasures()

    def forget_erasures(self) -> bool:
        """Free pages hold no erased Event any more; whether any did."""
        pending = self.pages.get("meta", ERASED) is not None
        self.drop_meta(ERASED.decode())
        return pending

    def remember_erasures(self, pending: bool = True) -> None:
        """Free pages may hold bytes of erased Events until the file is compacted (decision F41)."""
        if pending:
            self.put_meta(ERASED.decode(), b"1")

    def put_meta(self, name: str, value: bytes) -> None:
        key = name.encode()
        self.pages.put("meta", key, value)
        self.pages.put("proofs", b"meta " + key, meta_check(key, value))

    def drop_meta(self, name: str) -> None:
        """Forget a value."""
        self.pages.delete("meta", name.encode())
        self.pages.delete("proofs", b"meta " + name.encode())

    def put_command(self, signing_hash: bytes, command: bytes, accepted_at: str) -> int:
        number = self._next("commands", U64)
        key = U64.pack(number)
        self.pages.put("commands", key, encode_command_record(signing_hash, command, accepted_at))
        bucket = U32.pack(number // HASH_BUCKET) + signing_hash[:HASH_PREFIX]
        before = self.pages.buffers["command_hashes"].get(bucket) or b""
        self.pages.put("command_hashes", bucket, before + key)
        return number

    def put_receipt(self, actor_id: str, action_id: str, receipt: Receipt) -> None:
        key = receipt_key(actor_id, action_id)
        receipts = self.pages.buffers["receipts"]
        if key in receipts or (self.known_receipts[key] if key in self.known_receipts else self._receipt_record(key)):
            raise StoreCorrupt(f"Action ID {action_id} of {actor_id} is bound already", f"receipt {action_id}")
        number_for = self.number_for
        places = b"".join([PLACE.pack(number_for(group), sequence) for group, sequence in receipt.events])
        head = RECEIPT_HEAD.pack(RECORD, receipt.signing_hash, receipt.command_number, len(receipt.events))
        receipts[key] = b"".join((head, places, receipt.record or b""))

    def put_admission(self, record: FirstAdmissionRecord) -> FirstAdmissionRecord:
        signing_hash = bytes.fromhex(record.signing_hash.removeprefix("sha256:"))
        accepting = self.authority
        if accepting is not None and record.accepted_by.id != accepting.id:
            raise WriterRefused(f"{record.accepted_by.id} is not the service that accepts here ({accepting.id})")
        standing = self.admission(signing_hash)
        if standing is not None:
            return standing
        key = U64.pack(self._next("admissions", U64))
        content = encode_json(record)
        self.pages.put("admissions", key, content)
        self.pages.put("admission_hashes", signing_hash, key + admission_check(key, content))
        return record

    def put_policy(self, group_id: str | None, entry: PolicyLogEntry) -> None:
        number = ORGANIZATION_NUMBER if group_id is None else self.number_for(group_id)
        count, value = self._chained(policy_end(number), encode_json(entry))
        self.pages.put("policy_log", PLACE.pack(number, count), value)

    def put_audit(self, row: AuditRow) -> int:
        number, value = self._chained(AUDIT_END, encode_json(row))
        self.pages.put("audit", U64.pack(number), value)
        return number

    def forget_audit(self, number: int) -> None:
        """Remove the oldest protected diagnostic; the chain goes on from it."""
        key = U64.pack(number)
        value = self.pages.get("audit", key)
        if value is not None:
            self.pages.put("proofs", AUDIT_START, CHAIN_END.pack(number, unchained(value, f"audit {number}")[0]))
            self.pages.delete("audit", key)

    def _chained(self, end: bytes, content: bytes) -> tuple[int, bytes]:
        """Number and record of a chained log's next entry."""
        number, chain = self.chain_end(end)
        chain = next_chain(chain, content)
        self.pages.put("proofs", end, CHAIN_END.pack(number + 1, chain))
        return number + 1, CHAINED_HEAD.pack(RECORD, chain) + content
