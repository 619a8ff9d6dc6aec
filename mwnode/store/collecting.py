"""Uploads that nothing came to name: found by reading everything that may name one, and deleted.

Somebody uploads first and sends the Command that names the bytes afterwards, so an upload has its grace; each put of
the same bytes begins it anew. What any Event, Command, document or row names by its hash stays for good, whether or not
it was ever published: inputs of WorkItems, Evidence, Context Packages, proposals, snapshots (R-13.1-01). Whether
something is named is asked once more inside the transaction that deletes, of whatever was committed meanwhile.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator
from itertools import islice
from typing import Any, Final

from msgspec import Struct

from mwnode.authority.state import CONTENTS
from mwnode.protocol.instants import Instant
from mwnode.store.artifacts import Artifacts, drop_artifact, manifest_of
from mwnode.store.environment import LmdbReading, LmdbStore, LmdbWriting
from mwnode.store.layout import ARTIFACT_HEAD

ENTRIES_PER_STEP: Final = 1000
"""Entries that one view of the file is read for: a long one keeps freed pages from being used again."""
TAIL_MAX: Final = 5000
"""Entries of a log that the deleting transaction looks through at most; when more came, the next time decides."""
_NAMES: Final = ("log", "commands", "documents", "entities")
"""Databases whose values may name an Artifact. The first two only grow at their ends."""
_HASH: Final = re.compile(rb"sha256:([0-9a-f]{64})")

Write = Callable[[Callable[[LmdbWriting], Any]], Any]


class Collected(Struct, frozen=True):
    """What went, and its bytes as they were uploaded."""

    artifacts: int = 0
    bytes: int = 0


class Collector:
    """Collects in one store; remembers what it found named, so that this is looked for once."""

    def __init__(self, store: LmdbStore, artifacts: Artifacts, write: Write) -> None:
        """``write`` runs a change in one durable transaction: of a live node's writer, or of the store itself."""
        self._store = store
        self._artifacts = artifacts
        self._write = write
        self._named: set[bytes] = set()

    def collect(self, stored_before: Instant) -> Collected:
        """Delete what was put before then and is named nowhere. Not for several threads at once."""
        idle = self._idle(stored_before)
        if not idle:
            return Collected()
        # Where the logs end now: what comes behind is looked at by the transaction that deletes.
        with self._store.read() as view:
            ends = {db: _end(view, db) for db in ("log", "commands")}
        named = self._search(set(idle))
        self._named |= named
        gone, size = 0, 0
        for key, content_hash in idle.items():
            if key in named:
                continue
            with self._artifacts.withheld(content_hash) as free:
                if free:
                    dropped = self._write(
                        lambda txn, named=content_hash: drop_unnamed(txn, named, stored_before, ends)  # type: ignore[misc]  # mypy does not type the default
                    )
                    gone, size = gone + (dropped > 0), size + max(dropped - 1, 0)
        return Collected(gone, size)

    def _idle(self, stored_before: Instant) -> dict[bytes, str]:
        """Artifacts that are old enough and not published, by their hash's digits; without those known to be named."""
        before = stored_before.whole_microseconds()
        idle: dict[bytes, str] = {}
        with self._store.read() as view:
            for sha256, record in view.pages.scan("artifacts", b""):
                digits = sha256.hex()
                # The head alone: a manifest may name a million chunks. A record cut short is for ``verify`` to tell.
                if len(record) < ARTIFACT_HEAD.size or ARTIFACT_HEAD.unpack_from(record)[2] >= before:
                    continue
                if digits.encode() not in self._named and view.get(CONTENTS, f"sha256:{digits}") is None:
                    idle[digits.encode()] = f"sha256:{digits}"
        return idle

    def _search(self, wanted: set[bytes]) -> set[bytes]:
        """Which of those hashes are named anywhere."""
        found: set[bytes] = set()
        for db in _NAMES:
            after = b""
            while found != wanted:
                with self._store.read() as view:
                    step = list(islice(view.pages.scan(db, after), ENTRIES_PER_STEP))
                if not step:
                    break
                found |= wanted.intersection(_hashes(step))
                after = step[-1][0] + b"\0"
        return found


def _end(view: LmdbReading, db: str) -> bytes:
    last = view.pages.last(db, b"")
    return b"" if last is None else last[0] + b"\0"


def _hashes(entries: list[tuple[bytes, bytes]]) -> Iterator[bytes]:
    for _, value in entries:
        yield from _HASH.findall(value)


def drop_unnamed(txn: LmdbWriting, content_hash: str, stored_before: Instant, ends: dict[str, bytes]) -> int:
    """Delete an Artifact that was not named up to those ends, unless it is by now, or was put again; its size and one
    more when it went, else 0."""
    manifest = manifest_of(txn, content_hash)
    if manifest is None or manifest.stored_at >= stored_before or txn.get(CONTENTS, content_hash) is not None:
        return 0
    key = content_hash.removeprefix("sha256:").encode()
    for db, end in ends.items():
        tail = list(islice(txn.pages.scan(db, end), TAIL_MAX + 1))
        if len(tail) > TAIL_MAX or key in _hashes(tail):
            return 0
    drop_artifact(txn, content_hash, manifest)
    return manifest.size + 1
