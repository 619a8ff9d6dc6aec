"""Shell: what a Worker keeps over a restart, in a small LMDB file of its own.

Nothing in it is authoritative: losing the file loses no state of any Mission, and it is rebuilt by replay (R-5-03). It
saves that replay, keeps what an executor finished from being done again, and holds signed Commands that were buffered
while the node could not be reached (R-11.5-05).
"""

from __future__ import annotations

import fcntl
import hashlib
import os
from collections.abc import Callable, Iterable
from pathlib import Path
from typing import Any

import lmdb
import msgspec
from msgspec import Struct

from mwnode.client.fold import WorkView
from mwnode.store.ownership import allocate_readers
from mwnode.worker.errors import DirectoryBusy
from mwnode.worker.jobs import Kept

FORMAT = b"1"
MAP_BYTES = 64 * 1024 * 1024
MAP_BYTES_MAX = 16 * 1024**3
READERS = 126
"""LMDB's own default."""
_DATABASES = ("meta", "groups", "views", "runs", "buffer")


class GroupMemory(Struct, frozen=True):
    """One Group as it was processed durably; ``cursor`` is its last sequence (R-16-56)."""

    group_id: str
    mission_id: str | None
    scopes: tuple[str, ...]
    cursor: int
    package_id: str | None = None


class Buffered(Struct, frozen=True):
    """One Command that was signed while offline, with what it was signed for."""

    number: int
    work_item_id: str
    raw: bytes


_groups = msgspec.msgpack.Decoder(GroupMemory)
_views = msgspec.msgpack.Decoder(WorkView)
_runs = msgspec.msgpack.Decoder(Kept)
_buffer = msgspec.msgpack.Decoder(Buffered)
_encode = msgspec.msgpack.encode


def _key(*parts: str) -> bytes:
    """Identifiers can be longer than an LMDB key: each is named by a hash."""
    return b"".join(hashlib.blake2b(part.encode(), digest_size=16).digest() for part in parts)


def _only_here(path: Path) -> int:
    """The lock of a Worker's directory, which is one process's at a time; DirectoryBusy when another one has it."""
    lock = os.open(path, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC | os.O_NOFOLLOW, 0o600)
    try:
        fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError:
        os.close(lock)
        raise DirectoryBusy(f"{path.parent} is in use by another Worker: give each its own --directory") from None
    return lock


class Memory:
    """One Agent's memory on this machine. Use it from one thread."""

    def __init__(self, environment: lmdb.Environment, databases: dict[str, Any], lock: int) -> None:
        self._environment = environment
        self._lock = lock
        self._databases = databases

    @classmethod
    def open(cls, path: Path, agent_id: str) -> Memory:
        """Open the file, or make it. A file of another Agent, of another version or a damaged one is begun anew.

        Raises DirectoryBusy when another process has the directory, StoreFull when the disk has no room for it.
        """
        path.parent.mkdir(mode=0o700, parents=True, exist_ok=True)
        lock = _only_here(path.with_name("worker.lock"))
        try:
            try:
                return cls._open(path, agent_id, lock)
            except (lmdb.InvalidError, lmdb.VersionMismatchError, lmdb.CorruptedError, _Foreign):
                # Nothing of value is lost: it is rebuilt by replay.
                for name in (path, path.with_name(path.name + "-lock")):
                    name.unlink(missing_ok=True)
                return cls._open(path, agent_id, lock)
        except BaseException:
            os.close(lock)
            raise

    @classmethod
    def _open(cls, path: Path, agent_id: str, lock: int) -> Memory:
        allocate_readers(path, READERS)
        try:
            # With meminit unused parts of pages hold nothing of what the process has in its memory, keys included.
            environment = lmdb.open(
                str(path), subdir=False, max_dbs=len(_DATABASES), map_size=MAP_BYTES, mode=0o600, meminit=True
            )
        except lmdb.LockError as error:
            raise DirectoryBusy(f"{path} is in use by another Worker: give each its own --directory") from error
        databases: dict[str, Any] = {name: environment.open_db(name.encode()) for name in _DATABASES}
        memory = cls(environment, databases, lock)
        with environment.begin(write=True, db=databases["meta"]) as txn:
            stamp = FORMAT + b" " + agent_id.encode()
            known = txn.get(b"stamp")
            if known is None:
                txn.put(b"stamp", stamp)
            elif known != stamp:
                environment.close()
                raise _Foreign
        return memory

    def close(self) -> None:
        """Give the file and its directory back. Idempotent."""
        self._environment.close()
        if self._lock >= 0:
            os.close(self._lock)
            self._lock = -1

    # --- Groups -------------------------------------------------------------------------------------------------------

    def groups(self) -> list[tuple[GroupMemory, list[WorkView]]]:
        """Every Group and its WorkItems, as of its cursor."""
        with self._environment.begin() as txn:
            found = []
            for key, value in txn.cursor(self._databases["groups"]):
                cursor = txn.cursor(self._databases["views"])
                views = []
                if cursor.set_range(key):
                    for name, view in cursor:
                        if not name.startswith(key):
                            break
                        views.append(_views.decode(view))
                found.append((_groups.decode(value), views))
        return found

    def save(self, groups: Iterable[tuple[GroupMemory, Iterable[WorkView]]]) -> None:
        """Keep Groups and the WorkItems that changed in them, in one durable step."""
        rows = [(group, list(views)) for group, views in groups]

        def write(txn: lmdb.Transaction[bytes]) -> None:
            for group, views in rows:
                txn.put(_key(group.group_id), _encode(group), db=self._databases["groups"])
                for view in views:
                    name = _key(group.group_id, view.work_item_id)
                    txn.put(name, _encode(view), db=self._databases["views"])

        self._write(write)

    def forget_group(self, group_id: str) -> None:
        """Drop a Group and all that is known of it."""
        prefix = _key(group_id)

        def write(txn: lmdb.Transaction[bytes]) -> None:
            txn.delete(prefix, db=self._databases["groups"])
            cursor = txn.cursor(self._databases["views"])
            while cursor.set_range(prefix) and cursor.key().startswith(prefix):
                cursor.delete()

        self._write(write)

    # --- runs ---------------------------------------------------------------------------------------------------------

    def runs(self) -> dict[tuple[str, int], Kept]:
        """What is remembered of runs that are not over, by WorkItem and Ownership Epoch."""
        with self._environment.begin() as txn:
            kept = [_runs.decode(value) for _, value in txn.cursor(self._databases["runs"])]
        return {(one.work_item_id, one.epoch): one for one in kept}

    def keep_run(self, kept: Kept) -> None:
        """Remember how far a run is."""
        name = _key(kept.work_item_id, str(kept.epoch))
        self._write(lambda txn: txn.put(name, _encode(kept), db=self._databases["runs"]))

    def forget_run(self, work_item_id: str, epoch: int) -> None:
        """The run is over."""
        name = _key(work_item_id, str(epoch))
        self._write(lambda txn: txn.delete(name, db=self._databases["runs"]))

    # --- the offline buffer -------------------------------------------------------------------------------------------

    def buffered(self) -> list[Buffered]:
        """Commands signed while offline, in order."""
        with self._environment.begin() as txn:
            return [_buffer.decode(value) for _, value in txn.cursor(self._databases["buffer"])]

    def buffer(self, entry: Buffered) -> None:
        """Keep one Command until it has been reconciled."""
        name = entry.number.to_bytes(8, "big")
        self._write(lambda txn: txn.put(name, _encode(entry), db=self._databases["buffer"]))

    def unbuffer(self, number: int) -> None:
        """The Command was reconciled, or given up."""
        self._write(lambda txn: txn.delete(number.to_bytes(8, "big"), db=self._databases["buffer"]))

    # --- inside -------------------------------------------------------------------------------------------------------

    def _write(self, change: Callable[[lmdb.Transaction[bytes]], object]) -> None:
        while True:
            try:
                with self._environment.begin(write=True) as txn:
                    change(txn)
                return
            except lmdb.MapFullError:
                size = self._environment.info()["map_size"] * 2
                if size > MAP_BYTES_MAX:
                    raise
                self._environment.set_mapsize(size)


class _Foreign(Exception):
    """The file belongs to another Agent or another version."""
