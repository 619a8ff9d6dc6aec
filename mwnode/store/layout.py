"""The file's format: named databases, keys, records. Everything that the bytes on disk depend on stands here.

Keys are fixed-width and big-endian, so that ranges are scans. Records begin with a version byte.
"""

from __future__ import annotations

import struct
from functools import lru_cache
from typing import Final

from blake3 import blake3

from mwnode.protocol.instants import Instant

FORMAT: Final = 1
"""Version of the whole file, in ``meta`` under ``format``. A reader refuses a newer one."""
RECORD: Final = 1
"""Version byte of every record."""

DATABASES: Final[dict[str, str]] = {
    "meta": "name -> value",
    "groups": "text key of the Group ID -> Group number",
    "group_names": "Group number -> Group ID",
    "log": "position -> log record; positions count all Events of the file in the order of commits",
    "places": "Group number, sequence -> position",
    "event_ids": "text key of the Event ID -> position",
    "trims": "Group number -> what remains of a trimmed prefix",
    "receipts": "text key of the Action ID, hash of the actor -> receipt record",
    "commands": "Command number -> command record",
    "command_hashes": "bucket of Command numbers, signing hash prefix -> Command number",
    "admissions": "number -> First-Admission Record of an embedded document",
    "admission_hashes": "signing hash -> number in admissions",
    "registry": "revision -> Registry evidence",
    "entities": "table code, text key -> row",
    "listing": "table code, Group number, text key -> nothing",
    "due": "microseconds, table code, text key -> due text, key",
    "policy_log": "Group number, number -> PolicyLogEntry",
    "cursors": "text key of the Agent, Group number -> sequence",
    "documents": "SHA-256 -> bytes",
    "audit": "number -> AuditRow",
    "artifacts": "SHA-256 -> manifest record",
    "chunks": "BLAKE3 -> bytes",
    "chunk_references": "BLAKE3 -> how many places in manifests name the chunk",
    "uploads": "upload, place -> BLAKE3 of a chunk whose Artifact is not finished",
    "snapshots": "Group number, through sequence -> signed snapshot",
}

U32 = struct.Struct(">I")
U64 = struct.Struct(">Q")
PLACE = struct.Struct(">IQ")
"""Group number and sequence: a place in a Group's log."""
LOG_HEAD = struct.Struct(">BIQQ32s32sBB")
"""Version, Group number, sequence, Command number (0 = none), chain, signing hash, lengths of the two times that
follow: when the Event occurred, and when it was accepted (empty when the same). The Event's bytes are the rest."""
COMMAND_HEAD = struct.Struct(">B32sB")
"""Version, signing hash, length of the acceptance time that follows. The Command's bytes are the rest."""
RECEIPT_HEAD = struct.Struct(">B32sQH")
"""Version, signing hash, Command number, how many places follow. The rest is the Registry record, if any."""
TRIM_HEAD = struct.Struct(">BQ32s32sB")
"""Version, through sequence, chain, SHA-256 of the snapshot, length of the time that follows."""

HASH_BUCKET: Final = 1024
"""Command hashes are indexed in buckets of so many Commands: an insert then touches a few pages near the end of the
index instead of a random one, and a look-up costs one seek a bucket, a millisecond for a million Commands."""

_EVENT_ID = b'"eventId":"'
_BIAS = 1 << 63


@lru_cache(maxsize=16384)
def text_key(text: str) -> bytes:
    """17 bytes that stand for an identifier.

    The canonical spelling of a UUID URN is its own key, so that time-ordered UUIDs lie side by side and a commit
    touches few pages; every other text goes by its BLAKE3 hash.
    """
    if len(text) == 45 and text[:9] == "urn:uuid:" and text[17:33:5] == "----":
        digits = text[9:].replace("-", "")
        try:
            key = bytes.fromhex(digits)
        except ValueError:
            key = b""
        # Identifiers are compared byte for byte (R-2-18): only the one spelling that gives the same digits back counts.
        if len(key) == 16 and key.hex() == digits:
            return b"\x01" + key
    return b"\x02" + blake3(text.encode()).digest(16)


def receipt_key(actor_id: str, action_id: str) -> bytes:
    """25 bytes for an actor's Action ID."""
    return text_key(action_id) + _actor_hash(actor_id)


@lru_cache(maxsize=4096)
def _actor_hash(actor_id: str) -> bytes:
    return blake3(actor_id.encode()).digest(8)


def due_key(due: Instant, table_code: int, key: bytes) -> bytes:
    """Place in the due index: whole microseconds, so the exact text in the value decides within one."""
    return U64.pack(due.whole_microseconds() + _BIAS) + bytes((table_code,)) + key


def due_bound(until: Instant) -> bytes:
    """The first 8 bytes of the last due keys that can be due at ``until``."""
    return U64.pack(until.whole_microseconds() + _BIAS)


def event_id_in(event: bytes) -> str:
    """The Event ID out of an Event's canonical bytes.

    Members are sorted: only ``acceptedBy``, ``actor``, ``aggregateRevision``, ``cause``, ``commandHash``,
    ``conversationId`` and ``correlationId`` come before; none holds a member of this name, and quotes in texts are
    escaped.
    """
    start = event.index(_EVENT_ID) + len(_EVENT_ID)
    return event[start : event.index(b'"', start)].decode()


def next_chain(chain: bytes, signing_hash: bytes) -> bytes:
    """The chain value after one more Event."""
    return blake3(chain + signing_hash).digest()


ARTIFACT_HEAD = struct.Struct(">BQQI")
"""Version, size in bytes, microseconds at which the put ended, how many chunks follow (CHUNK_ENTRY each)."""
CHUNK_ENTRY = struct.Struct(">32sI")
"""BLAKE3 of a chunk, its size in bytes."""
