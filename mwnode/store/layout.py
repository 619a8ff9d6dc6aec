"""The file's format: named databases, keys, records. Everything that the bytes on disk depend on stands here.

Keys are fixed-width and big-endian, so that ranges are scans. Records begin with a version byte.
"""

from __future__ import annotations

import struct
from functools import lru_cache
from typing import Final

from blake3 import blake3

from mwnode.protocol.instants import Instant

FORMAT: Final = 2
"""Version of the whole file, in ``meta`` under ``format``. A newer one is refused, an older one migrated."""
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
    "admission_hashes": "signing hash -> number in admissions, and a check of the record there",
    "entities": "table code, text key -> row",
    "listing": "table code, Group number, text key -> nothing",
    "derivations": "SHA-256 of a source, Group number, text key of the Artifact made of it -> ID of that",
    "due": "microseconds, table code, text key -> time, key, and the due text it stands for where that is another",
    "policy_log": "Group number, number -> chained PolicyLogEntry",
    "cursors": "text key of the Agent, Group number -> sequence",
    "documents": "SHA-256 -> bytes",
    "audit": "number -> chained AuditRow",
    "artifacts": "SHA-256 -> manifest record",
    "chunks": "BLAKE3 -> bytes",
    "chunk_references": "BLAKE3 -> how many places in manifests name the chunk",
    "uploads": "upload, place -> BLAKE3 of a chunk whose Artifact is not finished",
    "proofs": "what verify compares with where nothing else tells: heads of chains, checks of meta, counts of entries",
}

SINCE: Final = {"derivations": 2}
"""Databases that files of an older format than this do not have yet."""

COUNTED: Final = frozenset({"due", "documents", "cursors", "artifacts", "trims"})
"""Databases of whose entries the number is kept: that one is gone could not be told otherwise."""

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
CHAINED_HEAD = struct.Struct(">B32s")
"""Version, chain value: BLAKE3 of the one before and of the JSON that is the rest."""
CHAIN_END = struct.Struct(">Q32s")
"""Number of an entry and its chain value, in ``proofs``."""
CHECK_BYTES: Final = 8
"""Bytes of BLAKE3 at the end of a record that nothing else proves."""

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


def hash_bytes(content_hash: str) -> bytes | None:
    """The 32 bytes of a ``sha256:`` hash; ``None`` for a text that is none."""
    digits = content_hash.removeprefix("sha256:")
    if len(digits) != 64 or len(content_hash) != 71:
        return None
    try:
        return bytes.fromhex(digits)
    except ValueError:
        return None


def derivation_key(content_hash: str, group: bytes, name: str) -> bytes:
    """Where it stands that the row of that name, in the Group of that number, was made of some bytes."""
    source = hash_bytes(content_hash)
    assert source is not None, "a manifest's schema allows nothing but hashes"
    return source + group + text_key(name)


def after_prefix(prefix: bytes) -> bytes:
    """The first key behind all that begin with ``prefix``."""
    bare = prefix.rstrip(b"\xff")
    return bare[:-1] + bytes((bare[-1] + 1,)) if bare else b"\xff" * (len(prefix) + 1)


def due_key(due: Instant, table_code: int, key: bytes) -> bytes:
    """Place in the due index: whole microseconds, so the exact text in the value decides within one."""
    return U64.pack(due.whole_microseconds() + _BIAS) + bytes((table_code,)) + key


PARKED: Final = b"\xff" * 8
"""In the place of a time: the row was looked at, and nothing more comes of the due time that it still names."""


def parked_key(table_code: int, key: bytes) -> bytes:
    """Place in the due index of a row that has been looked at for good."""
    return PARKED + bytes((table_code,)) + key


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


def next_chain(chain: bytes, content: bytes) -> bytes:
    """The chain value after one more Event, given its signing hash, or after one more entry, given its JSON."""
    return blake3(chain + content).digest()


def admission_check(key: bytes, content: bytes) -> bytes:
    """What the index keeps of a First-Admission Record, so that the next look-up notices a change (R-6.4-61)."""
    return blake3(key + content).digest(CHECK_BYTES)


def policy_end(number: int) -> bytes:
    """Where in ``proofs`` the end of a Group's policy log stands."""
    return b"policy" + U32.pack(number)


def meta_check(key: bytes, value: bytes) -> bytes:
    """What ``proofs`` keeps of a value in ``meta``."""
    return blake3(key + b"\0" + value).digest()


def checked(record: bytes, key: bytes = b"") -> bytes:
    """The record with a check of itself and of its key at its end."""
    return record + blake3(key + record).digest(CHECK_BYTES)


def unchecked(value: bytes, key: bytes = b"") -> bytes | None:
    """The record without its check; ``None`` when the check is another."""
    record = value[:-CHECK_BYTES]
    return record if blake3(key + record).digest(CHECK_BYTES) == value[-CHECK_BYTES:] else None


ARTIFACT_HEAD = struct.Struct(">BQQI")
"""Version, size in bytes, microseconds at which the put ended, how many chunks follow (CHUNK_ENTRY each)."""
CHUNK_ENTRY = struct.Struct(">32sI")
"""BLAKE3 of a chunk, its size in bytes."""
