"""The LMDB adapter of the store port: transactions over one mapped file."""

from __future__ import annotations

import hashlib
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any, TypeVar

import lmdb
import msgspec

from mwnode.protocol.documents import Actor, GroupSnapshot
from mwnode.protocol.limits import Limits
from mwnode.store.errors import StoreCorrupt
from mwnode.store.group_log import Heads
from mwnode.store.layout import ARTIFACT_HEAD, COUNTED, U32, U64, checked, hash_bytes, text_key
from mwnode.store.mapped_file import MappedFile
from mwnode.store.pages import ReadPages, WritePages
from mwnode.store.port import AuditRow
from mwnode.store.projections import RowCache, RowReading, RowWriting

T = TypeVar("T")


class LmdbReading(RowReading):
    """One consistent state of the file; a ``ReadTransaction``."""

    def __init__(self, pages: ReadPages, shared: Heads) -> None:
        self.pages = pages
        self.shared = shared

    @property
    def organization_id(self) -> str:  # type: ignore[override]  # read from the file on demand
        value = self.pages.get("meta", b"organization")
        return "" if value is None else value.decode()

    @property
    def authority(self) -> Actor | None:  # type: ignore[override]  # read from the file on demand
        value = self.pages.get("meta", b"authority")
        return None if value is None else msgspec.json.decode(value, type=Actor)

    def has_content(self, content_hash: str) -> int | None:
        key = hash_bytes(content_hash)
        value = None if key is None else self.pages.get("artifacts", key)
        return None if value is None else int(ARTIFACT_HEAD.unpack_from(value)[1])

    def event_ids(self, group_id: str, after: int, through: int) -> list[str]:
        trim = self.trimmed(group_id)
        if trim is None or after >= trim.through:
            return super().event_ids(group_id, after, through)
        # The snapshot names what the log no longer holds.
        content = self.document(trim.snapshot_artifact_hash)
        if content is None:
            raise StoreCorrupt(f"the snapshot of {group_id} is gone; restore a backup", f"group {group_id}")
        named = msgspec.json.decode(content, type=GroupSnapshot).event_ids
        told = list(named[max(after, 0) : min(through, trim.through)])
        return told + super().event_ids(group_id, trim.through, through)

    def cursor(self, agent_id: str, group_id: str) -> int:
        number = self.group_number(group_id)
        value = None if number is None else self.pages.get("cursors", text_key(agent_id) + U32.pack(number))
        return 0 if value is None else int(U64.unpack_from(value)[0])

    def cursors(self, agent_id: str) -> list[tuple[str, int]]:
        agent = text_key(agent_id)
        found = self.pages.scan("cursors", agent, agent + b"\xff" * 5)
        return [(self.group_name(U32.unpack(key[-4:])[0]), U64.unpack_from(value)[0]) for key, value in found]

    def document(self, content_hash: str) -> bytes | None:
        key = hash_bytes(content_hash)
        content = None if key is None else self.pages.get("documents", key)
        if content is not None and hashlib.sha256(content).digest() != key:
            raise StoreCorrupt(
                f"document {content_hash} is damaged; restore it from a backup", f"document {content_hash}"
            )
        return content

    def meta(self, name: str) -> bytes | None:
        return self.pages.get("meta", name.encode())


class LmdbWriting(RowWriting, LmdbReading):
    """Changes to the file; a ``WriteTransaction``."""

    def __init__(
        self,
        pages: WritePages,
        shared: Heads,
        cache: RowCache,
        audit_seal: Callable[[AuditRow], AuditRow] | None = None,
    ) -> None:
        self.audit_seal = audit_seal
        self.pages = pages
        self.shared = shared
        self.cache = cache
        self.own = Heads()
        self.touched = {}
        self.counters = {}
        self.known_receipts = {}
        self.known_places = {}

    def put_cursor(self, agent_id: str, group_id: str, sequence: int) -> None:
        if sequence > self.cursor(agent_id, group_id):
            key = text_key(agent_id) + U32.pack(self.number_for(group_id))
            self.pages.put("cursors", key, checked(U64.pack(sequence), key))

    def put_document(self, content: bytes) -> str:
        key = hashlib.sha256(content).digest()
        if self.pages.get("documents", key) is None:
            self.pages.put("documents", key, content)
        return f"sha256:{key.hex()}"

    def drop_document(self, content_hash: str) -> None:
        key = hash_bytes(content_hash)
        if key is not None:
            self.pages.delete("documents", key)

    def put_audit(self, row: AuditRow) -> int:
        return super().put_audit(row if self.audit_seal is None else self.audit_seal(row))

    def put_authority(self, authority: Actor) -> None:
        """Name the service that accepts documents and signs Events."""
        self.put_meta("authority", msgspec.json.encode(authority))

    @contextmanager
    def nested(self, env: lmdb.Environment) -> Iterator[LmdbWriting]:
        """A transaction inside this one: its changes join when the context ends, and are undone by an exception."""
        self.pages.flush_all()
        txn = env.begin(write=True, parent=self.pages.txn)
        inner = LmdbWriting(WritePages(txn, self.pages.dbs), self.shared, self.cache, self.audit_seal)
        inner.own.number_of.update(self.own.number_of)
        inner.own.name_of.update(self.own.name_of)
        inner.own.heads.update(self.own.heads)
        inner.touched.update(self.touched)
        inner.counters.update(self.counters)
        try:
            yield inner
            inner.pages.flush_all()
            txn.commit()
        finally:
            txn.abort()
        self.own, self.touched, self.counters = inner.own, inner.touched, inner.counters
        self.pages.changed |= inner.pages.changed

    def wrote_to(self, db: str) -> bool:
        """Whether this transaction changed a database."""
        return db in self.pages.changed or bool(self.pages.buffers[db])

    def keep_counts(self) -> None:
        """Note how many entries there are of what nothing else counts; the last thing before a commit."""
        for db in self.pages.changed & COUNTED:
            self.pages.put("proofs", b"count " + db.encode(), U64.pack(self.pages.count(db)))
        self.pages.flush("proofs")


class LmdbStore:
    """The store in one file. ``open`` makes one; ``close`` gives the file back."""

    def __init__(self, file: MappedFile) -> None:
        self.file = file
        self._shared = Heads()
        self._cache = RowCache()
        self.audit_seal: Callable[[AuditRow], AuditRow] | None = None
        """Closes protected diagnostics before they are written."""

    @classmethod
    def open(
        cls,
        path: Path,
        *,
        durable: bool = True,
        limits: Limits | None = None,
        read_only: bool = False,
        create: bool = True,
    ) -> LmdbStore:
        """Open the file at ``path``, or make it unless ``create`` forbids; errors as ``MappedFile.open``.

        ``limits`` gives the ceiling of the file and the free disk that is left alone, in bytes. ``durable=False`` is
        for tests: a power cut may then lose what was acknowledged.
        """
        bounds = limits or Limits()
        return cls(
            MappedFile.open(
                path,
                durable=durable,
                map_bytes_max=bounds.map_bytes,
                free_bytes_reserve=bounds.free_bytes_reserve,
                read_only=read_only,
                create=create,
            )
        )

    @property
    def path(self) -> Path:
        return self.file.path

    def set_holder(self, url: str | None) -> None:
        """Say where the node listens, for whoever finds the file taken."""
        self.file.set_holder(url)

    @contextmanager
    def read(self) -> Iterator[LmdbReading]:
        """A consistent view; see ``port.Store``."""
        with self.file.reading() as txn:
            yield LmdbReading(ReadPages(txn, self.file.dbs), self._shared)

    def write(self, change: Callable[[LmdbWriting], T]) -> T:
        """All of ``change`` or nothing; see ``port.Store``."""
        committed: list[LmdbWriting] = []

        def attempt(txn: lmdb.Transaction[bytes]) -> T:
            committed.clear()
            writing = LmdbWriting(WritePages(txn, self.file.dbs), self._shared, self._cache, self.audit_seal)
            result = change(writing)
            writing.pages.flush_all()
            writing.keep_counts()
            committed.append(writing)
            return result

        with self.file.writer:
            try:
                result = self.file.writing(attempt)
            except BaseException:
                # What was remembered of the file may be newer than the file now.
                self._cache.clear()
                self._shared.heads.clear()
                raise
            self._remember(committed[0])
            return result

    def _remember(self, writing: LmdbWriting) -> None:
        self._shared.number_of.update(writing.own.number_of)
        self._shared.name_of.update(writing.own.name_of)
        self._shared.heads.update(writing.own.heads)
        self._cache.set_all(writing.touched.items())

    def clear_dead_readers(self) -> int:
        """Free the slots of readers whose process died; they keep freed pages from being used again. How many."""
        return self.file.clear_dead_readers()

    def nested(self, writing: LmdbWriting) -> Any:
        """A context for changes that may fail alone; see ``LmdbWriting.nested``."""
        return writing.nested(self.file.lmdb)

    def close(self) -> None:
        self.file.close()
