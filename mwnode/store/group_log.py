"""Group logs, receipts, Commands, admissions and policy entries: what is appended and never changed (R-4-06)."""

from __future__ import annotations

import struct
from itertools import islice
from typing import Final

import msgspec

from mwnode.protocol import jcs, strict_json
from mwnode.protocol.documents import Actor, Command, FirstAdmissionRecord, PolicyLogEntry
from mwnode.store.errors import StoreCorrupt
from mwnode.store.layout import (
    CHAIN_END,
    CHAINED_HEAD,
    HASH_BUCKET,
    PLACE,
    RECEIPT_HEAD,
    RECORD,
    TRIM_HEAD,
    U32,
    U64,
    admission_check,
    receipt_key,
    text_key,
    unchecked,
)
from mwnode.store.log_records import (
    LogRecord,
    decode_command_record,
    decode_events,
    decode_log_record,
)
from mwnode.store.pages import ReadPages
from mwnode.store.port import (
    NO_CHAIN,
    ORGANIZATION,
    AuditRow,
    EventFacts,
    Head,
    Receipt,
    StoredEvent,
    Trim,
)

_POLICY = msgspec.json.Decoder(PolicyLogEntry)
_ADMISSION = msgspec.json.Decoder(FirstAdmissionRecord)
_AUDIT = msgspec.json.Decoder(AuditRow)
encode_json = msgspec.json.Encoder().encode

ORGANIZATION_NUMBER: Final = 0
AUDIT_END: Final = b"audit"
AUDIT_START: Final = b"audit start"
"""In ``proofs``: the newest audit row, and the newest of those that were forgotten."""
HASH_PREFIX: Final = 16
POSITION: Final = b"position"
ERASED: Final = b"erased"
"""Set while pages may still hold the bytes of erased Events."""


class Heads:
    """Group numbers and heads that were committed; the writer trusts them, readers use the numbers only."""

    def __init__(self) -> None:
        self.number_of: dict[str, int] = {ORGANIZATION: ORGANIZATION_NUMBER}
        self.name_of: dict[int, str] = {ORGANIZATION_NUMBER: ORGANIZATION}
        self.heads: dict[int, Head | None] = {}


def admission_id(signing_hash: bytes) -> str:
    """The record ID of a Command's or Event's admission: one per signing hash (R-6.4-52)."""
    return f"urn:mwnode:admission:{signing_hash.hex()}"


def unchained(value: bytes, where: str) -> tuple[bytes, bytes]:
    """Chain value and JSON of an entry of a chained log. StoreCorrupt when it is none."""
    if len(value) < CHAINED_HEAD.size:
        raise StoreCorrupt(f"{where} is cut short; run 'mwnode verify'", where)
    version, chain = CHAINED_HEAD.unpack_from(value)
    if version != RECORD:
        raise StoreCorrupt(f"{where} has record version {version}; run 'mwnode verify'", where)
    return chain, value[CHAINED_HEAD.size :]


def decode_policy(value: bytes, where: str) -> PolicyLogEntry:
    """The entry of a policy log in a record. StoreCorrupt when there is none."""
    try:
        return _POLICY.decode(unchained(value, where)[1])
    except msgspec.MsgspecError as error:
        raise StoreCorrupt(f"{where} cannot be read: {error}", where) from error


def decode_audit(value: bytes, where: str) -> AuditRow:
    """The protected diagnostic in a record. StoreCorrupt when there is none."""
    try:
        return _AUDIT.decode(unchained(value, where)[1])
    except msgspec.MsgspecError as error:
        raise StoreCorrupt(f"{where} cannot be read: {error}", where) from error


def receipt_places(value: bytes) -> list[bytes]:
    """The keys in ``places`` of the Events that a receipt names; as many as there are in a receipt cut short."""
    if len(value) < RECEIPT_HEAD.size:
        return []
    end = RECEIPT_HEAD.size + RECEIPT_HEAD.unpack_from(value)[3] * PLACE.size
    return [value[start : start + PLACE.size] for start in range(RECEIPT_HEAD.size, min(end, len(value)), PLACE.size)]


class LogReading:
    """The append-only half of a read transaction."""

    pages: ReadPages
    shared: Heads
    organization_id: str
    authority: Actor | None

    # --- Group numbers ---

    def group_number(self, group_id: str) -> int | None:
        """The number that stands for a Group in keys."""
        number = self.shared.number_of.get(group_id)
        if number is None:
            value = self.pages.get("groups", text_key(group_id))
            if value is None:
                return None
            number = U32.unpack(value)[0]
            self.shared.number_of[group_id] = number
            self.shared.name_of[number] = group_id
        return number

    def group_name(self, number: int) -> str:
        """The Group of a number."""
        name = self.shared.name_of.get(number)
        if name is None:
            value = self.pages.get("group_names", U32.pack(number))
            if value is None:
                raise StoreCorrupt(f"Group number {number} has no name", f"group_names {number}")
            name = _text(value, f"group_names {number}")
            self.shared.name_of[number] = name
            self.shared.number_of[name] = number
        return name

    def groups(self) -> list[str]:
        return [_text(value, f"group_names {key.hex()}") for key, value in self.pages.scan("group_names", b"")]

    # --- Events ---

    def _head(self, number: int) -> Head | None:
        found = self.pages.last("places", PLACE.pack(number, 0), PLACE.pack(number + 1, 0))
        if found is not None:
            record = self._at(found[1])
            return Head(record.sequence, record.chain, record.occurred_at)
        trim = self._trim(number)
        return None if trim is None else Head(trim.through, trim.chain, trim.last_occurred_at)

    def _at(self, position: bytes) -> LogRecord:
        """The record at a position that an index names."""
        value = self.pages.get("log", position)
        if value is None:
            place = int(U64.unpack(position)[0])
            raise StoreCorrupt(f"log record {place} is indexed and missing; run 'mwnode verify'", f"log {place}")
        return decode_log_record(int(U64.unpack(position)[0]), value)

    def head_record(self, group_id: str) -> Head | None:
        number = self.group_number(group_id)
        return None if number is None else self._head(number)

    def head(self, group_id: str) -> int:
        record = self.head_record(group_id)
        return 0 if record is None else record.sequence

    def last_occurred_at(self, group_id: str) -> str | None:
        record = self.head_record(group_id)
        return None if record is None else record.last_occurred_at

    def events(self, group_id: str, after: int, limit: int) -> list[StoredEvent]:
        number = self.group_number(group_id)
        if number is None or limit <= 0:
            return []
        first, end = PLACE.pack(number, max(after, 0) + 1), PLACE.pack(number + 1, 0)
        indexed = self.pages.take("places", first, end, limit)
        found = self.pages.values("log", [position for _, position in indexed])
        if len(found) != len(indexed):
            raise StoreCorrupt(f"{group_id or 'the Organization'}: an indexed Event is missing", f"group {group_id}")
        events = decode_events(found)
        if events and events[-1].sequence != PLACE.unpack(indexed[-1][0])[1]:
            # Whoever pages through by sequence would never come to an end.
            raise StoreCorrupt(f"{group_id or 'the Organization'}: an Event lies elsewhere", f"group {group_id}")
        return events

    def organization_events(self, after: int, limit: int) -> list[StoredEvent]:
        return self.events(ORGANIZATION, after, limit)

    def record(self, group_id: str, sequence: int) -> LogRecord | None:
        """Everything that the log keeps about the Event at one place."""
        number = self.group_number(group_id)
        position = None if number is None or sequence < 1 else self.pages.get("places", PLACE.pack(number, sequence))
        return None if position is None else self._at(position)

    def event(self, group_id: str, sequence: int) -> StoredEvent | None:
        record = self.record(group_id, sequence)
        return None if record is None else record.stored()

    def event_facts(self, group_id: str, sequence: int) -> EventFacts | None:
        record = self.record(group_id, sequence)
        return None if record is None else EventFacts(record.accepted_at, record.command_number, record.position)

    def event_place(self, event_id: str) -> tuple[str, int] | None:
        """In which log an Event lies, and where."""
        position = self.pages.get("event_ids", text_key(event_id))
        if position is None:
            return None
        record = self._at(position)
        return self.group_name(record.group_number), record.sequence

    def event_by_id(self, event_id: str) -> StoredEvent | None:
        position = self.pages.get("event_ids", text_key(event_id))
        return None if position is None else self._at(position).stored()

    def records(self, after: int, limit: int) -> list[LogRecord]:
        """Events of all logs in the order in which they were committed, from behind a position on."""
        found = islice(self.pages.scan("log", U64.pack(after + 1)), limit)
        return [decode_log_record(int(U64.unpack(key)[0]), value) for key, value in found]

    def event_ids(self, group_id: str, after: int, through: int) -> list[str]:
        return [stored.event_id for stored in self.events(group_id, after, through - max(after, 0))]

    def _trim(self, number: int) -> Trim | None:
        value = self.pages.get("trims", U32.pack(number))
        if value is None:
            return None
        where = f"trims {number}"
        if len(value) < TRIM_HEAD.size:
            raise StoreCorrupt(f"{where} is cut short; restore a backup", where)
        version, through, chain, snapshot, size = TRIM_HEAD.unpack_from(value)
        if version != RECORD or unchecked(value) is None:
            raise StoreCorrupt(f"{where} is damaged; restore a backup", where)
        time = _text(value[TRIM_HEAD.size : TRIM_HEAD.size + size], where)
        return Trim(through, chain, time, f"sha256:{snapshot.hex()}")

    def trimmed(self, group_id: str) -> Trim | None:
        number = self.group_number(group_id)
        return None if number is None else self._trim(number)

    # --- Commands and admissions ---

    def receipt(self, actor_id: str, action_id: str) -> Receipt | None:
        value = self._receipt_record(receipt_key(actor_id, action_id))
        return None if value is None else self._receipt(value)

    def _receipt_record(self, key: bytes) -> bytes | None:
        return self.pages.get("receipts", key)

    def _receipt(self, value: bytes) -> Receipt:
        try:
            version, signing_hash, number, count = RECEIPT_HEAD.unpack_from(value)
        except struct.error as error:
            raise StoreCorrupt("a receipt is cut short; run 'mwnode verify'", "receipts") from error
        end = RECEIPT_HEAD.size + count * PLACE.size
        if version != RECORD or end > len(value):
            raise StoreCorrupt(f"the receipt of Command {number} is damaged; run 'mwnode verify'", f"command {number}")
        places = PLACE.iter_unpack(value[RECEIPT_HEAD.size : end])
        events = tuple((self.group_name(group), sequence) for group, sequence in places)
        return Receipt(signing_hash, events, value[end:] or None, number)

    def accepted(self, actor_id: str, action_id: str) -> bool:
        return self._receipt_record(receipt_key(actor_id, action_id)) is not None

    def command_number(self, signing_hash: bytes) -> int | None:
        """Number of the accepted Command of that signing hash; one seek for each bucket of the index."""
        # Numbers are gap-free from 1, so that the count is the highest; a damaged key must not make this loop long.
        prefix = signing_hash[:HASH_PREFIX]
        for bucket in range(self.pages.count("commands") // HASH_BUCKET, -1, -1):
            value = self.pages.get("command_hashes", U32.pack(bucket) + prefix)
            if value is None:
                continue
            for (number,) in U64.iter_unpack(value):
                record = self.pages.get("commands", U64.pack(number))
                if record is not None and decode_command_record(number, record)[0] == signing_hash:
                    return int(number)
        return None

    def command(self, signing_hash: bytes) -> bytes | None:
        number = self.command_number(signing_hash)
        return None if number is None else self.command_by_number(number)

    def command_by_number(self, number: int) -> bytes | None:
        value = self.pages.get("commands", U64.pack(number))
        return None if value is None else decode_command_record(number, value)[2]

    def command_admission(self, number: int) -> FirstAdmissionRecord | None:
        """The First-Admission Record of the Command of that number."""
        value = self.pages.get("commands", U64.pack(number))
        if value is None:
            return None
        signing_hash, accepted_at, raw = decode_command_record(number, value)
        command = strict_json.trusted(raw, Command)
        if jcs.signing_hash(jcs.signing_bytes(command)) != f"sha256:{signing_hash.hex()}":
            where = f"command {number}"
            raise StoreCorrupt(f"{where} is not as it was signed: run 'mwnode verify', restore a backup", where)
        self._check_accepted(number, command, accepted_at)
        return self._admission_record("command", signing_hash, command.signature.key_id, command.actor, accepted_at)

    def _check_accepted(self, number: int, command: Command, accepted_at: str) -> None:
        """An accepted Command and its Events were admitted together: StoreCorrupt where one record says otherwise."""
        receipt = self.receipt(command.actor.id, command.action_id)
        events = () if receipt is None else receipt.events
        for facts in (self.event_facts(group_id, sequence) for group_id, sequence in events):
            if facts is not None and facts.accepted_at != accepted_at:
                where = f"command {number}"
                raise StoreCorrupt(f"{where} and its Events were not accepted at one time: run 'mwnode verify'", where)

    def _admission_record(
        self, kind: str, signing_hash: bytes, key_id: str, principal: Actor, accepted_at: str
    ) -> FirstAdmissionRecord:
        if self.authority is None:
            raise StoreCorrupt("the store does not say which service accepts documents", "meta authority")
        return msgspec.convert(
            {
                "protocolVersion": "0.1",
                "admissionRecordId": admission_id(signing_hash),
                "organizationId": self.organization_id,
                "documentKind": kind,
                "signingHash": f"sha256:{signing_hash.hex()}",
                "keyId": key_id,
                "principal": {"type": principal.type, "id": principal.id},
                "trustedAcceptedAt": accepted_at,
                "acceptedBy": {"type": self.authority.type, "id": self.authority.id},
            },
            FirstAdmissionRecord,
        )

    def admission(self, signing_hash: bytes) -> FirstAdmissionRecord | None:
        value = self.pages.get("admission_hashes", signing_hash)
        if value is not None:
            key, check = value[: U64.size], value[U64.size :]
            record = self.pages.get("admissions", key)
            where = f"admission {signing_hash.hex()}"
            if record is None:
                raise StoreCorrupt("an admission is indexed and missing", where)
            if check != admission_check(key, record):
                raise StoreCorrupt(f"{where} is not as it was written: run 'mwnode verify', restore a backup", where)
            return _ADMISSION.decode(record)
        number = self.command_number(signing_hash)
        return None if number is None else self.command_admission(number)

    def erasures_linger(self) -> bool:
        """Whether free pages may still hold the bytes of erased Events."""
        return self.pages.get("meta", ERASED) is not None

    def policy_log(self, group_id: str | None, after: int = 0, limit: int = 1000) -> list[PolicyLogEntry]:
        number = ORGANIZATION_NUMBER if group_id is None else self.group_number(group_id)
        if number is None or limit <= 0:
            return []
        found = self.pages.scan("policy_log", PLACE.pack(number, after + 1), PLACE.pack(number + 1, 0))
        entries: list[PolicyLogEntry] = []
        for key, value in islice(found, limit):
            where = f"policy log entry {key.hex()}"
            if PLACE.unpack(key)[1] != after + len(entries) + 1:
                # Whoever pages through by counting would never come to an end.
                raise StoreCorrupt(f"{where} does not follow the one before; run 'mwnode verify'", where)
            entries.append(decode_policy(value, where))
        return entries

    def audit(self, after: int, limit: int) -> list[tuple[int, AuditRow]]:
        found = self.pages.scan("audit", U64.pack(after + 1))
        return [(U64.unpack(key)[0], decode_audit(value, f"audit {key.hex()}")) for key, value in islice(found, limit)]

    def chain_end(self, name: bytes) -> tuple[int, bytes]:
        """Number and chain value of a chained log's newest entry."""
        value = self.pages.get("proofs", name)
        if value is None:
            return 0, NO_CHAIN
        if len(value) != CHAIN_END.size:
            raise StoreCorrupt(f"the end of a log is damaged ({name.hex()}); run 'mwnode verify'", "proofs")
        number, chain = CHAIN_END.unpack(value)
        return number, chain


def _text(value: bytes, where: str) -> str:
    try:
        return value.decode()
    except UnicodeDecodeError as error:
        raise StoreCorrupt(f"{where} is no text; run 'mwnode verify'", where) from error
