"""Log records and command records: what an Event and an accepted Command look like in the file."""

from __future__ import annotations

import struct
from collections.abc import Iterable

from msgspec import Struct

from mwnode.store.errors import StoreCorrupt
from mwnode.store.layout import COMMAND_HEAD, LOG_HEAD, RECORD
from mwnode.store.port import NewEvent, StoredEvent


class LogRecord(Struct, frozen=True):
    """One Event with everything that the log keeps about it."""

    position: int
    group_number: int
    sequence: int
    command_number: int | None
    chain: bytes
    signing_hash: bytes
    occurred_at: str
    accepted_at: str
    event: bytes

    def stored(self) -> StoredEvent:
        """What readers get."""
        return StoredEvent(self.sequence, self.event, self.signing_hash, self.chain)


def encode_log_record(event: NewEvent, group_number: int, sequence: int, chain: bytes) -> bytes:
    """The record of a new Event."""
    occurred = event.occurred_at.encode()
    accepted = b"" if event.accepted_at == event.occurred_at else event.accepted_at.encode()
    head = LOG_HEAD.pack(
        RECORD,
        group_number,
        sequence,
        event.command_number or 0,
        chain,
        event.signing_hash,
        len(occurred),
        len(accepted),
    )
    return b"".join((head, occurred, accepted, event.event))


def decode_log_record(position: int, value: bytes) -> LogRecord:
    """The record at a position. StoreCorrupt when it is none."""
    try:
        version, group, sequence, number, chain, signing_hash, occurred_size, size = LOG_HEAD.unpack_from(value)
        start = LOG_HEAD.size + occurred_size
        occurred = value[LOG_HEAD.size : start].decode()
        accepted = value[start : start + size].decode() if size else occurred
    except (ValueError, struct.error) as error:
        raise StoreCorrupt(f"log record {position} cannot be read; run 'mwnode verify'", f"log {position}") from error
    if version != RECORD:
        raise StoreCorrupt(f"log record {position} has version {version}; run 'mwnode verify'", f"log {position}")
    event = value[start + size :]
    return LogRecord(position, group, sequence, number or None, chain, signing_hash, occurred, accepted, event)


def decode_events(values: Iterable[bytes]) -> list[StoredEvent]:
    """As ``decode_log_record``, only what readers get, for long scans."""
    unpack, head_size = LOG_HEAD.unpack_from, LOG_HEAD.size
    events: list[StoredEvent] = []
    try:
        for value in values:
            version, _, sequence, _, chain, signing_hash, occurred_size, size = unpack(value)
            if version != RECORD:
                raise StoreCorrupt(f"a log record has version {version}; run 'mwnode verify'", "log")
            events.append(StoredEvent(sequence, value[head_size + occurred_size + size :], signing_hash, chain))
    except struct.error as error:
        raise StoreCorrupt("a log record cannot be read; run 'mwnode verify'", "log") from error
    return events


def encode_command_record(signing_hash: bytes, command: bytes, accepted_at: str) -> bytes:
    """The record of an accepted Command."""
    accepted = accepted_at.encode()
    return b"".join((COMMAND_HEAD.pack(RECORD, signing_hash, len(accepted)), accepted, command))


def decode_command_record(number: int, value: bytes) -> tuple[bytes, str, bytes]:
    """Signing hash, acceptance time and bytes of an accepted Command."""
    try:
        version, signing_hash, size = COMMAND_HEAD.unpack_from(value)
        accepted = value[COMMAND_HEAD.size : COMMAND_HEAD.size + size].decode()
    except (ValueError, struct.error) as error:
        raise StoreCorrupt(f"the record of Command {number} cannot be read", f"command {number}") from error
    if version != RECORD:
        raise StoreCorrupt(f"the record of Command {number} has version {version}", f"command {number}")
    return signing_hash, accepted, value[COMMAND_HEAD.size + size :]
