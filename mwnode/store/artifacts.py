"""Artifact bytes: streamed in and out, cut into chunks that are kept once, named by the SHA-256 of the whole.

A chunk is kept under its BLAKE3 hash with a count of the places that name it. An upload counts its chunks from the
first one on; what is left of an upload that ended half-way is released when it is aborted, or when the store is opened
next. Nothing that is published or named is ever changed or deleted (R-13.1-01; ``collecting``).
"""

from __future__ import annotations

import hashlib
import threading
from collections import Counter, deque
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import Future
from contextlib import contextmanager
from typing import Final, Protocol, TypeVar

import msgspec
from blake3 import blake3
from msgspec import Struct

from mwnode.authority.state import CONTENTS
from mwnode.protocol.errors import InvalidCommand, ProtocolViolation
from mwnode.protocol.instants import Instant, from_microseconds
from mwnode.protocol.limits import Limits
from mwnode.protocol.ports import Clock
from mwnode.store.chunking import Chunker
from mwnode.store.environment import LmdbReading, LmdbStore, LmdbWriting
from mwnode.store.errors import StoreCorrupt
from mwnode.store.layout import ARTIFACT_HEAD, CHUNK_ENTRY, RECORD, U32, U64, checked, hash_bytes, unchecked

T = TypeVar("T")

FLIGHT_BYTES: Final = 4 * 1024**2
"""Chunks of so many bytes go to the writer together."""
FLIGHTS_MAX: Final = 2
"""Such loads that may wait for the writer before the upload waits too: bounds the memory of an upload."""


_UPLOADERS: Final = b"uploaders sha256:"
_UPLOADERS_END: Final = b"uploaders sha256;"


class Writer(Protocol):
    """Who runs changes inside the store's batches: the ``Committer``."""

    def call(self, change: Callable[[LmdbWriting], T]) -> Future[T]:
        """See ``Committer.call``."""
        ...

    def now(self) -> Instant:
        """The node's time."""
        ...


class DirectWriter:
    """Runs each change in a transaction of its own, for stores that no node serves."""

    def __init__(self, store: LmdbStore, clock: Clock) -> None:
        self._store = store
        self._clock = clock

    def now(self) -> Instant:
        return self._clock.now()

    def call(self, change: Callable[[LmdbWriting], T]) -> Future[T]:
        future: Future[T] = Future()
        try:
            future.set_result(self._store.write(change))
        except Exception as error:
            future.set_exception(error)
        return future


class ArtifactInfo(Struct, frozen=True):
    """One stored Artifact: ``sha256:`` hash, size in bytes, when its put ended, and whether this put was the first."""

    content_hash: str
    size: int
    stored_at: Instant
    new: bool = False


class Manifest(Struct, frozen=True):
    """Where the bytes of an Artifact lie: BLAKE3 and size of each chunk, in order."""

    size: int
    stored_at: Instant
    chunks: tuple[tuple[bytes, int], ...]


def encode_manifest(size: int, microseconds: int, chunks: Sequence[tuple[bytes, int]]) -> bytes:
    """The record of an Artifact."""
    head = ARTIFACT_HEAD.pack(RECORD, size, microseconds, len(chunks))
    return checked(head + b"".join([CHUNK_ENTRY.pack(*chunk) for chunk in chunks]))


def decode_manifest(content_hash: str, value: bytes) -> Manifest:
    """The manifest in a record. StoreCorrupt when it cannot be one."""
    where = f"artifact {content_hash}"
    if len(value) < ARTIFACT_HEAD.size:
        raise StoreCorrupt(f"the record of {where} is cut short; restore it from a backup", where)
    version, size, microseconds, count = ARTIFACT_HEAD.unpack_from(value)
    record = unchecked(value)
    body = b"" if record is None else record[ARTIFACT_HEAD.size :]
    if version != RECORD or record is None or len(body) != count * CHUNK_ENTRY.size:
        raise StoreCorrupt(f"the record of {where} is damaged; restore it from a backup", where)
    chunks = tuple(CHUNK_ENTRY.iter_unpack(body))
    if sum(length for _, length in chunks) != size:
        raise StoreCorrupt(f"the chunks of {where} do not add up to its size; restore it from a backup", where)
    return Manifest(size, from_microseconds(microseconds), chunks)


class ArtifactWriter:
    """One upload. ``write`` as often as there are bytes, then ``finish`` or ``abort``; not for several threads."""

    def __init__(self, artifacts: Artifacts, number: int, bytes_max: int) -> None:
        self._artifacts = artifacts
        self._number = number
        self._bytes_max = bytes_max
        self._digest = hashlib.sha256()
        self._chunker = Chunker()
        self._chunks: list[tuple[bytes, int]] = []
        self._load: list[tuple[int, bytes, bytes]] = []
        self._load_bytes = 0
        self._flights: deque[Future[None]] = deque()
        self._ended = False
        self.size = 0
        """Bytes written so far."""

    def write(self, data: bytes) -> None:
        """Take more bytes; waits while the store is behind. Raises ProtocolViolation beyond the largest size."""
        self.size += len(data)
        if self.size > self._bytes_max:
            self.abort()
            raise ProtocolViolation(f"an Artifact has at most {self._bytes_max} bytes (limits.artifact_bytes)")
        self._digest.update(data)
        for chunk in self._chunker.feed(data):
            self._take(chunk)

    def _take(self, chunk: bytes) -> None:
        key = blake3(chunk).digest()
        self._load.append((len(self._chunks), key, chunk))
        self._chunks.append((key, len(chunk)))
        self._load_bytes += len(chunk)
        if self._load_bytes >= FLIGHT_BYTES:
            self._send()

    def _send(self) -> None:
        if not self._load:
            return
        load, self._load, self._load_bytes = self._load, [], 0
        number = self._number
        self._flights.append(self._artifacts.writer.call(lambda txn: hold_chunks(txn, number, load)))
        while len(self._flights) >= FLIGHTS_MAX:
            self._flights.popleft().result()

    def finish(self, expected: str | None = None) -> ArtifactInfo:
        """Make the Artifact durable and readable. ``expected`` is the ``sha256:`` hash the sender claims.

        Raises InvalidCommand when the bytes are others; nothing is left of them then.
        """
        try:
            for chunk in self._chunker.rest():
                self._take(chunk)
            self._send()
            while self._flights:
                self._flights.popleft().result()
            digest = self._digest.digest()
            content_hash = f"sha256:{digest.hex()}"
            if expected is not None and expected != content_hash:
                raise InvalidCommand(f"the bytes are {content_hash}, not {expected}; send them again", rule="R-13.1-02")
            info = self._artifacts.writer.call(
                lambda txn: settle(txn, self._number, digest, self.size, self._artifacts.writer.now(), self._chunks)
            ).result()
        except BaseException:
            self.abort()
            raise
        self._ended = True
        return info

    def abort(self) -> None:
        """Leave nothing behind. Idempotent; does nothing after ``finish``."""
        if self._ended:
            return
        self._ended = True
        self._load = []
        number = self._number
        self._artifacts.writer.call(lambda txn: release_upload(txn, number)).result()


class Artifacts:
    """The Artifacts of one store."""

    def __init__(self, store: LmdbStore, writer: Writer, limits: Limits) -> None:
        self._store = store
        self.writer = writer
        self._limits = limits
        self._lock = threading.Lock()
        self._uploads = 0
        self._reading: Counter[str] = Counter()
        """How many read an Artifact now, by its hash."""
        self._withheld: set[str] = set()
        # Uploads that a dead process left half-way.
        with store.read() as view:
            left = view.pages.count("uploads")
        if left:
            writer.call(release_all_uploads).result()

    def begin_put(self) -> ArtifactWriter:
        """Start an upload."""
        with self._lock:
            self._uploads += 1
            return ArtifactWriter(self, self._uploads, self._limits.artifact_bytes)

    def info(self, content_hash: str) -> ArtifactInfo | None:
        """Size and age of a stored Artifact."""
        with self._store.read() as view:
            manifest = manifest_of(view, content_hash)
        return None if manifest is None else ArtifactInfo(content_hash, manifest.size, manifest.stored_at)

    def uploads_of(self, principal: str, most: int) -> list[ArtifactInfo]:
        """What a Principal put and no Group has published, newest first, at most so many.

        Whether a Command or document names it otherwise is not looked for here: ``collecting`` reads all of them.
        """
        found = []
        with self._store.read() as view:
            for name, value in view.pages.scan("meta", _UPLOADERS, _UPLOADERS_END):
                if principal not in msgspec.json.decode(value, type=list[str]):
                    continue
                content_hash = name.decode().rpartition(" ")[2]
                manifest = manifest_of(view, content_hash)
                if manifest is not None and view.get(CONTENTS, content_hash) is None:
                    found.append(ArtifactInfo(content_hash, manifest.size, manifest.stored_at))
        return sorted(found, key=lambda info: info.stored_at, reverse=True)[:most]

    def read(self, content_hash: str, start: int = 0, stop: int | None = None) -> Iterator[bytes]:
        """The bytes from ``start`` up to ``stop``, piece by piece, each checked before it is handed out (R-13.1-20).

        Reading the whole also checks the SHA-256 of it, before the last piece. Raises KeyError for an unknown hash,
        StoreCorrupt for damage; each piece is read in a transaction of its own.
        """
        with self._store.read() as view:
            manifest = manifest_of(view, content_hash)
        if manifest is None:
            raise KeyError(content_hash)
        return self._pieces(content_hash, manifest, max(start, 0), manifest.size if stop is None else stop)

    def _pieces(self, content_hash: str, manifest: Manifest, start: int, stop: int) -> Iterator[bytes]:
        with self._read_by_one_more(content_hash):
            # Collected since it was asked for, or here for as long as this goes on.
            if self.info(content_hash) is None:
                raise KeyError(content_hash)
            yield from self._checked_pieces(content_hash, manifest, start, min(stop, manifest.size))

    def _checked_pieces(self, content_hash: str, manifest: Manifest, start: int, stop: int) -> Iterator[bytes]:
        whole = hashlib.sha256() if start == 0 and stop == manifest.size else None
        place = 0
        for key, size in manifest.chunks:
            begin, place = place, place + size
            if place <= start:
                continue
            if begin >= stop:
                return
            with self._store.read() as view:
                chunk = checked_chunk(view, content_hash, key, size)
            if whole is not None:
                whole.update(chunk)
                if place == manifest.size and f"sha256:{whole.hexdigest()}" != content_hash:
                    raise StoreCorrupt(f"artifact {content_hash} is damaged; restore it", f"artifact {content_hash}")
            inside = chunk if begin >= start and place <= stop else chunk[max(start - begin, 0) : stop - begin]
            yield inside

    def list(self) -> list[ArtifactInfo]:
        """Every stored Artifact, by hash."""
        with self._store.read() as view:
            return [
                ArtifactInfo(content_hash, manifest.size, manifest.stored_at)
                for content_hash, manifest in manifests(view)
            ]

    @contextmanager
    def withheld(self, content_hash: str) -> Iterator[bool]:
        """Let nobody begin to read the Artifact meanwhile; false when somebody is reading it."""
        with self._lock:
            free = self._reading[content_hash] == 0
            if free:
                self._withheld.add(content_hash)
        try:
            yield free
        finally:
            with self._lock:
                self._withheld.discard(content_hash)

    @contextmanager
    def _read_by_one_more(self, content_hash: str) -> Iterator[None]:
        with self._lock:
            if content_hash in self._withheld:
                raise KeyError(content_hash)
            self._reading[content_hash] += 1
        try:
            yield
        finally:
            with self._lock:
                self._reading[content_hash] -= 1
                self._reading += Counter()


# --- inside a transaction ---------------------------------------------------------------------------------------------


def manifest_of(view: LmdbReading, content_hash: str) -> Manifest | None:
    """The manifest of a stored Artifact."""
    key = hash_bytes(content_hash)
    value = None if key is None else view.pages.get("artifacts", key)
    return None if value is None else decode_manifest(content_hash, value)


def manifests(view: LmdbReading) -> Iterator[tuple[str, Manifest]]:
    """Every stored Artifact's hash and manifest."""
    for key, value in view.pages.scan("artifacts", b""):
        content_hash = f"sha256:{key.hex()}"
        yield content_hash, decode_manifest(content_hash, value)


def checked_chunk(view: LmdbReading, content_hash: str, key: bytes, size: int) -> bytes:
    """One chunk, compared with its hash. StoreCorrupt names the Artifact."""
    chunk = view.pages.get("chunks", key)
    where = f"artifact {content_hash}"
    if chunk is None:
        raise StoreCorrupt(f"a chunk of {where} is missing; restore it from a backup", where)
    if len(chunk) != size or blake3(chunk).digest() != key:
        raise StoreCorrupt(f"a chunk of {where} is damaged; restore it from a backup", where)
    return chunk


def hold_chunks(txn: LmdbWriting, upload: int, load: list[tuple[int, bytes, bytes]]) -> None:
    """Keep an upload's chunks, each counted once for its place."""
    pages = txn.pages
    for place, key, chunk in load:
        count = pages.get("chunk_references", key)
        if count is None:
            pages.put("chunks", key, chunk)
        pages.put("chunk_references", key, U64.pack(1 if count is None else U64.unpack(count)[0] + 1))
        pages.put("uploads", U64.pack(upload) + U32.pack(place), key)


def settle(
    txn: LmdbWriting, upload: int, digest: bytes, size: int, now: Instant, chunks: list[tuple[bytes, int]]
) -> ArtifactInfo:
    """Make the manifest take over what the upload held; release it when the Artifact is there already."""
    content_hash = f"sha256:{digest.hex()}"
    standing = manifest_of(txn, content_hash)
    if standing is not None:
        release_upload(txn, upload)
        if txn.get(CONTENTS, content_hash) is None:
            # Whoever puts it again may be about to name it: its grace begins anew.
            renewed = encode_manifest(standing.size, now.whole_microseconds(), standing.chunks)
            txn.pages.put("artifacts", digest, renewed)
            return ArtifactInfo(content_hash, standing.size, now)
        return ArtifactInfo(content_hash, standing.size, standing.stored_at)
    txn.pages.put("artifacts", digest, encode_manifest(size, now.whole_microseconds(), chunks))
    for key, _ in _upload_rows(txn, upload):
        txn.pages.delete("uploads", key)
    return ArtifactInfo(content_hash, size, now, new=True)


def _upload_rows(txn: LmdbWriting, upload: int) -> list[tuple[bytes, bytes]]:
    return list(txn.pages.scan("uploads", U64.pack(upload), U64.pack(upload + 1)))


def release_upload(txn: LmdbWriting, upload: int) -> None:
    """Forget an upload and the chunks that only it named."""
    for key, chunk in _upload_rows(txn, upload):
        _release_chunk(txn, chunk)
        txn.pages.delete("uploads", key)


def release_all_uploads(txn: LmdbWriting) -> None:
    """Forget every upload; none can be running."""
    for key, chunk in list(txn.pages.scan("uploads", b"")):
        _release_chunk(txn, chunk)
        txn.pages.delete("uploads", key)


def _release_chunk(txn: LmdbWriting, key: bytes) -> None:
    count = txn.pages.get("chunk_references", key)
    left = 0 if count is None else int(U64.unpack(count)[0]) - 1
    if left > 0:
        txn.pages.put("chunk_references", key, U64.pack(left))
    else:
        txn.pages.delete("chunk_references", key)
        txn.pages.delete("chunks", key)


def drop_artifact(txn: LmdbWriting, content_hash: str, manifest: Manifest) -> None:
    """Delete an Artifact, the chunks that only it names, and the note of who put it."""
    for key, _ in manifest.chunks:
        _release_chunk(txn, key)
    txn.pages.delete("artifacts", hash_bytes(content_hash) or b"")
    txn.drop_meta(uploaders_name(content_hash))


def uploaders_name(content_hash: str) -> str:
    """Where in ``meta`` it is noted who put an Artifact."""
    return f"uploaders {content_hash}"
