"""The LMDB file: opened once, grown when full, its errors turned into ours.

Growing replaces the memory map, which readers must not be using: they pass a gate that the grower closes for a moment.
"""

from __future__ import annotations

import errno
import logging
import os
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Final, TypeVar

import lmdb

from mwnode.store import ownership
from mwnode.store.ahead import WrittenAhead
from mwnode.store.errors import (
    StoreCorrupt,
    StoreError,
    StoreFull,
    StoreMissing,
    StoreReadOnly,
    StoreTooNew,
    StoreUnavailable,
)
from mwnode.store.layout import DATABASES, FORMAT
from mwnode.store.migration import keep_copy, migrate

T = TypeVar("T")

MAP_BYTES_FIRST: Final = 256 * 1024**2
MAP_BYTES_MAX: Final = 1024**4
READERS_MAX: Final = 1024
SPARE_TRANSACTIONS: Final = 16
GROW_WAIT_SECONDS: Final = 10.0
"""How long growing waits for readers before the batch is refused; it is tried again with the next one."""
UNWRITTEN_PAGES_MAX: Final = 64
NEARLY_FULL_BYTES: Final = 1024**2
ROOM_SECONDS: Final = 1.0
DEAD_READERS_SECONDS: Final = 5.0
"""How often a writer that has work frees the slots of readers whose process died: they pin freed pages."""
SPARE_SHARE: Final = 8
"""The map is doubled ahead of need when less than one such part of it is free."""

_log = logging.getLogger("mwnode.store")
_FULL = frozenset({errno.ENOSPC, errno.EDQUOT, errno.EFBIG})
_READ_ONLY = frozenset({errno.EACCES, errno.EROFS, errno.EPERM})


def translated(error: lmdb.Error, path: Path) -> StoreError:
    """Our error for one of LMDB's; the text says what to do."""
    code = getattr(error, "code", 0)
    if isinstance(error, lmdb.MapFullError):
        return StoreFull(f"{path} has reached its ceiling (map_bytes); raise it or archive and trim Groups")
    if isinstance(error, lmdb.DiskError) or code in _FULL:
        return StoreFull(f"no room left for {path}: free some space, the node goes on by itself")
    if isinstance(error, lmdb.ReadonlyError) or code in _READ_ONLY:
        return StoreReadOnly(f"{path} cannot be written: {error}")
    if isinstance(error, (lmdb.CorruptedError, lmdb.PageNotFoundError, lmdb.InvalidError, lmdb.VersionMismatchError)):
        return StoreCorrupt(
            f"{path} is damaged ({error}); restore a backup and compare with 'mwnode verify'", str(path)
        )
    return StoreUnavailable(f"{path} could not be used: {error}")


class MappedFile:
    """One open file. ``open`` is the only way to make one."""

    def __init__(
        self, path: Path, *, durable: bool, map_bytes_max: int, free_bytes_reserve: int, read_only: bool
    ) -> None:
        self.path = path
        self.durable = durable
        self.read_only = read_only
        self.map_bytes_max = map_bytes_max
        self.free_bytes_reserve = free_bytes_reserve
        self.file_system = ownership.file_system(path.parent if not path.exists() else path)
        self.writer = threading.RLock()
        """Held around every write transaction; LMDB wants begin and commit on one thread."""
        self._gate = threading.Condition()
        self._readers = 0
        self._growing = False
        self._room_until = 0.0
        self._readers_looked_at = 0.0
        self._room = self._ask_disk
        self._ahead: WrittenAhead | None = None
        self._owner: ownership.OwnerLock | None = None
        self._closed = False

    @classmethod
    def open(
        cls,
        path: Path,
        *,
        durable: bool = True,
        map_bytes_max: int = MAP_BYTES_MAX,
        free_bytes_reserve: int = 0,
        read_only: bool = False,
        create: bool = True,
    ) -> MappedFile:
        """Open or make the file.

        ``durable=False`` leaves out the fsync: for tests only. ``map_bytes_max`` is the ceiling of the file in bytes;
        below ``free_bytes_reserve`` bytes of free disk every write is refused. Readers in other processes use
        ``read_only``; without ``create`` there must be a file. Raises StoreBusy, StoreTooNew, StoreMissing,
        StoreReadOnly, StoreCorrupt, StoreUnavailable.
        """
        self = cls(
            path,
            durable=durable,
            map_bytes_max=map_bytes_max,
            free_bytes_reserve=free_bytes_reserve,
            read_only=read_only,
        )
        if self.file_system in ownership.REMOTE_FILE_SYSTEMS:
            raise StoreUnavailable(
                f"{path} lies on a network file system ({self.file_system}), where memory maps and locks are not "
                "reliable; put HOME on a local disk"
            )
        if self.file_system in ownership.DOUBTFUL_FILE_SYSTEMS or self.file_system.startswith("fuse"):
            _log.warning("%s lies on %s: keep it on a local disk where you can", path, self.file_system)
        if (read_only or not create) and not path.exists():
            raise StoreMissing(f"there is no store at {path}: restore a backup of it, or make a HOME by 'mwnode init'")
        if not read_only:
            self._owner = ownership.OwnerLock(path)
        try:
            self._map()
            self._prepare()
            if durable and not read_only:
                self._ahead = WrittenAhead(path)
        except BaseException:
            self.close()
            raise
        return self

    def _map(self) -> None:
        size = self.path.stat().st_size if self.path.exists() else 0
        if self.path.exists() and not size:
            # LMDB would take it for a new store and nobody would hear that everything is gone.
            raise StoreCorrupt(f"{self.path} is empty: restore a backup, or remove it to begin anew", str(self.path))
        wanted = MAP_BYTES_FIRST
        while wanted < size * 2 and wanted < self.map_bytes_max:
            wanted *= 2
        writable_directory = os.access(self.path.parent, os.W_OK)
        # A read-only medium has no lock file and no writer either.
        locked = not self.read_only or writable_directory
        with ownership.opening(self.path):
            if locked:
                ownership.allocate_readers(self.path, READERS_MAX)
            self._open_map(max(min(wanted, self.map_bytes_max), size), locked)
        self._check_length()

    def _open_map(self, map_size: int, locked: bool) -> None:
        try:
            self.lmdb = lmdb.open(
                str(self.path),
                map_size=map_size,
                subdir=False,
                readonly=self.read_only,
                sync=self.durable,
                metasync=self.durable,
                lock=locked,
                mode=0o600,
                readahead=False,
                # Otherwise what the process had in memory, keys included, lies in the unused parts of pages.
                meminit=True,
                max_readers=READERS_MAX,
                max_dbs=len(DATABASES) + 8,
                max_spare_txns=SPARE_TRANSACTIONS,
            )
        except lmdb.Error as error:
            raise translated(error, self.path) from error

    def _check_length(self) -> None:
        """Refuse a file that was cut off: touching a page behind its end would kill the process.

        LMDB leaves pages at the end unwritten that a transaction took and gave back; a file that is short by a few
        pages may be whole. It is made longer, so that a missing page reads as damage.
        """
        needed, size = self.used_bytes(), self.path.stat().st_size
        if size >= needed:
            return
        if needed - size > UNWRITTEN_PAGES_MAX * int(self.lmdb.stat()["psize"]):
            raise StoreCorrupt(f"{self.path} is cut off: {size} of {needed} bytes; restore a backup", str(self.path))
        try:
            with self.path.open("r+b") as file:
                file.truncate(needed)
        except OSError as error:
            raise StoreReadOnly(f"{self.path} must be made {needed} bytes long: {error.strerror}") from error

    def _prepare(self) -> None:
        """Open the named databases; check the format or set it in a new file."""
        try:
            known = self._format()
            if known is not None and known > FORMAT:
                raise StoreTooNew(str(self.path), known, FORMAT)
            if known is None and self.read_only:
                raise StoreCorrupt(f"{self.path} is no store of mwnode", str(self.path))
            if self.read_only:
                # Handles opened inside a read transaction die with it: here each call opens and commits one of its own.
                with self.lmdb.begin() as txn:
                    present = [name for name in DATABASES if self._has(txn, name)]
                self.dbs = {name: self.lmdb.open_db(name.encode(), create=False) for name in present}
                return
            if known is not None and known < FORMAT:
                self._migrate(known)
            with self.lmdb.begin(write=True) as txn:
                self.dbs = {name: self.lmdb.open_db(name.encode(), txn=txn, create=True) for name in DATABASES}
                if known is None:
                    txn.put(b"format", b"%d" % FORMAT, db=self.dbs["meta"])
        except lmdb.Error as error:
            raise translated(error, self.path) from error

    def _migrate(self, known: int) -> None:
        """Bring the file to the present format in one transaction; a copy of it as it was is kept beside it."""
        copied = keep_copy(self.lmdb, self.path, known)
        try:
            with self.lmdb.begin(write=True) as txn:
                migrate(self.lmdb, txn, known)
                txn.put(b"format", b"%d" % FORMAT, db=self.lmdb.open_db(b"meta", txn=txn))
        except BaseException:
            # Nothing was changed: a node that is started again and again must not fill the disk with copies.
            copied.unlink(missing_ok=True)
            raise
        _log.warning("%s: format %d became %d; the old file is kept as %s", self.path, known, FORMAT, copied)

    def _has(self, txn: lmdb.Transaction[bytes], name: str) -> bool:
        return txn.get(name.encode()) is not None

    def _format(self) -> int | None:
        with self.lmdb.begin() as txn:
            if not self._has(txn, "meta"):
                return None
            meta = self.lmdb.open_db(b"meta", txn=txn, create=False)
            value = txn.get(b"format", db=meta)
        if value is None:
            return None
        if not value.isdigit() or len(value) > 9:
            raise StoreCorrupt(f"{self.path} does not tell its format ({value!r}): restore a backup", "meta format")
        return int(value)

    def set_holder(self, url: str | None) -> None:
        """Say where this owner listens, for a second opener's error."""
        if self._owner is not None:
            self._owner.set_url(url)

    # --- transactions ---

    @contextmanager
    def reading(self) -> Iterator[lmdb.Transaction[bytes]]:
        """A read transaction, closed at the end whatever happens."""
        self.enter_reader()
        try:
            txn = self.begin_read()
            try:
                yield txn
            finally:
                txn.abort()
        finally:
            self.leave_reader()

    def enter_reader(self) -> None:
        """Pass the gate; ``leave_reader`` must follow."""
        with self._gate:
            while self._growing:
                self._gate.wait()
            if self._closed:
                raise StoreUnavailable(f"{self.path} is closed")
            self._readers += 1

    def leave_reader(self) -> None:
        with self._gate:
            self._readers -= 1
            if not self._readers:
                self._gate.notify_all()

    def begin_read(self) -> lmdb.Transaction[bytes]:
        """Begin reading; the caller has passed the gate."""
        try:
            return self.lmdb.begin()
        except lmdb.ReadersFullError:
            self.lmdb.reader_check()
            return self._begin_again()
        except lmdb.MapResizedError:
            # The owner, another process, has grown the file.
            self.leave_reader()
            try:
                self._replace_map(0)
            finally:
                self.enter_reader()
            return self._begin_again()
        except lmdb.Error as error:
            raise translated(error, self.path) from error

    def _begin_again(self) -> lmdb.Transaction[bytes]:
        try:
            return self.lmdb.begin()
        except lmdb.Error as error:
            raise translated(error, self.path) from error

    def writing(self, change: Callable[[lmdb.Transaction[bytes]], T]) -> T:
        """Run ``change`` in one write transaction and commit it durably; grow and run it again when the map is full.

        Raises StoreFull, StoreReadOnly, StoreUnavailable, StoreCorrupt: nothing was kept. Other exceptions of
        ``change`` pass through, and nothing was kept either.
        """
        if self.read_only:
            raise StoreReadOnly(f"{self.path} was opened for reading only")
        with self.writer:
            if self._closed:
                raise StoreUnavailable(f"{self.path} is closed")
            self._look_at_room()
            while True:
                try:
                    return self._attempt(change)
                except lmdb.MapFullError:
                    self.grow()
                except lmdb.PanicError:
                    _log.error("%s: a write to the file's root failed; opening it anew", self.path)
                    self._reopen()
                    raise StoreUnavailable(f"{self.path} had to be opened anew; send it again") from None
                except lmdb.Error as error:
                    if error.code == errno.EIO and self.free_bytes() < NEARLY_FULL_BYTES:
                        # The last write that fits in part is reported as an I/O error.
                        raise StoreFull(f"no room left for {self.path}: free some space, the node goes on") from error
                    raise translated(error, self.path) from error

    def _attempt(self, change: Callable[[lmdb.Transaction[bytes]], T]) -> T:
        txn = self.lmdb.begin(write=True)
        try:
            result = change(txn)
            txn.commit()
            if self._ahead is not None and self._ahead.wants_to_look:
                self._ahead.keep(self.used_bytes(), self.map_bytes())
            return result
        finally:
            # After commit this does nothing. A write transaction left open would block the file for ever.
            txn.abort()

    def copy(self, target: Path, *, compact: bool) -> None:
        """Write one committed state to a new file.

        The map is grown first, so that a writer need not wait for the copy's end to grow it.
        """
        if not self.read_only:
            with self.writer:
                if self.map_bytes() < min(self.used_bytes() * 2, self.map_bytes_max):
                    self.grow(self.used_bytes() * 2)
        self.enter_reader()
        try:
            file = os.open(target, os.O_CREAT | os.O_EXCL | os.O_WRONLY | os.O_CLOEXEC, 0o600)
            try:
                self.lmdb.copyfd(file, compact=compact)
            finally:
                os.close(file)
        finally:
            self.leave_reader()

    # --- room ---

    def used_bytes(self) -> int:
        """Bytes of the file in use or waiting to be used again."""
        return (int(self.lmdb.info()["last_pgno"]) + 1) * int(self.lmdb.stat()["psize"])

    def map_bytes(self) -> int:
        """Present size of the memory map in bytes."""
        return int(self.lmdb.info()["map_size"])

    def free_bytes(self) -> int:
        """Free bytes of the disk that holds the file."""
        disk = os.statvfs(self.path)
        return disk.f_bavail * disk.f_frsize

    def tell_room(self, room: Callable[[], tuple[int, int]] | None) -> None:
        """Take another word than the system's for the disk's free bytes and size: for tests of a full one."""
        self._room = room or self._ask_disk
        self._room_until = 0.0

    def _ask_disk(self) -> tuple[int, int]:
        disk = os.statvfs(self.path)
        return disk.f_bavail * disk.f_frsize, disk.f_blocks * disk.f_frsize

    def _look_at_room(self) -> None:
        """Ask the disk and the map, at most once a second while there is room: each question costs a hand-off."""
        now = time.monotonic()
        if now < self._room_until:
            return
        self._room_until = 0.0
        if now >= self._readers_looked_at + DEAD_READERS_SECONDS:
            self._readers_looked_at = now
            self.clear_dead_readers()
        self.keep_reserve()
        self._grow_ahead()
        self._room_until = now + ROOM_SECONDS

    def clear_dead_readers(self) -> int:
        """Free the slots of readers whose process died; they keep freed pages from being used again. How many."""
        try:
            freed = int(self.lmdb.reader_check())
        except lmdb.Error as error:
            raise translated(error, self.path) from error
        if freed:
            _log.info("%s: %s readers had died without closing it", self.path, freed)
        return freed

    def keep_reserve(self) -> None:
        """Raise StoreFull when less disk is free than is to be left alone."""
        if not self.free_bytes_reserve:
            return
        free, size = self._room()
        # On a very small disk the reserve shrinks with it.
        reserve = min(self.free_bytes_reserve, size // 16)
        if free < reserve:
            raise StoreFull(
                f"less than {reserve} bytes are free on the disk of {self.path}; free some, the node goes on by itself"
            )

    def _grow_ahead(self) -> None:
        """Double the map before it is full, when that costs no waiting."""
        size = self.map_bytes()
        if size < self.map_bytes_max and size - self.used_bytes() < size // SPARE_SHARE:
            with self._gate:
                idle = not self._readers
            if idle:
                self.grow()

    def grow(self, at_least: int = 0) -> None:
        """Double the map, or more, up to the ceiling. Raises StoreFull there, StoreUnavailable when readers stay."""
        size = self.map_bytes()
        self.clear_dead_readers()
        if size >= self.map_bytes_max:
            raise StoreFull(f"{self.path} has reached its ceiling of {size} bytes (map_bytes); raise it or trim Groups")
        self._replace_map(min(max(size * 2, at_least), self.map_bytes_max))

    def _replace_map(self, size: int) -> None:
        deadline = time.monotonic() + GROW_WAIT_SECONDS
        with self._gate:
            self._growing = True
            try:
                while self._readers:
                    left = deadline - time.monotonic()
                    if left <= 0 or not self._gate.wait(left):
                        raise StoreUnavailable(f"{self.path} must grow while it is being read; try again")
                self.lmdb.set_mapsize(size)
            except lmdb.Error as error:
                raise translated(error, self.path) from error
            finally:
                self._growing = False
                self._gate.notify_all()

    def _reopen(self) -> None:
        with self._gate:
            self._growing = True
            try:
                while self._readers:
                    self._gate.wait()
                self.lmdb.close()
                self._map()
                self._prepare()
            finally:
                self._growing = False
                self._gate.notify_all()

    def close(self) -> None:
        """Give the file back. Waits for readers. Idempotent."""
        with self.writer:
            with self._gate:
                if not self._closed:
                    self._closed = True
                    while self._readers:
                        self._gate.wait()
                    if hasattr(self, "lmdb"):
                        self._close_map()
                    if self.read_only:
                        ownership.drop_readers(self.path)
            if self._owner is not None:
                self._owner.release()
                self._owner = None

    def _close_map(self) -> None:
        used = None
        try:
            used = self.used_bytes()
        except lmdb.Error as error:
            # Opening it anew had failed.
            _log.info("%s: closed without a map (%s)", self.path, error)
        self.lmdb.close()
        if self._ahead is not None:
            self._ahead.close(used)
