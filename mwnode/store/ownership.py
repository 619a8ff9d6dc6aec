"""Who may write the file: one process at a time, held by a lock of our own beside it (``<file>.owner``).

LMDB itself lets two processes interleave; a node must not, because it remembers heads and rows between commits.
"""

from __future__ import annotations

import errno
import fcntl
import logging
import os
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Final

import msgspec
from msgspec import Struct

from mwnode.store.errors import StoreBusy, StoreFull, StoreReadOnly

SUFFIX: Final = ".owner"
_log = logging.getLogger("mwnode.store")

REMOTE_FILE_SYSTEMS: Final = frozenset(
    {"nfs", "nfs4", "cifs", "smb3", "smbfs", "afs", "ceph", "fuse.sshfs", "fuse.glusterfs"}
)
"""No coherent memory maps or locks between machines: refused."""
DOUBTFUL_FILE_SYSTEMS: Final = frozenset({"9p", "virtiofs", "overlay"})
"""Usable by one machine, with locks or maps that may surprise: reported."""


READER_BYTES: Final = 64
READERS_HEAD_BYTES: Final = 128
"""How LMDB lays out its table of readers."""
READERS_SUFFIX: Final = "-lock"
_BLOCK_BYTES: Final = 512
"""What ``st_blocks`` counts."""
_NO_ROOM: Final = frozenset({errno.ENOSPC, errno.EDQUOT})


class Holder(Struct, frozen=True):
    """What the owner's lock file says."""

    pid: int
    url: str | None = None


class OwnerLock:
    """The lock, held from construction to ``release``. Raises StoreBusy at once when somebody else holds it."""

    def __init__(self, store: Path) -> None:
        self.path = store.with_name(store.name + SUFFIX)
        try:
            self._file = os.open(self.path, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o600)
        except OSError as error:
            raise StoreReadOnly(
                f"cannot write {self.path}: {error.strerror}; check the owner and mode of its directory"
            ) from error
        try:
            fcntl.flock(self._file, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            os.close(self._file)
            found = holder(store)
            raise StoreBusy(str(store), found.pid if found else None, found.url if found else None) from None
        self._write(Holder(os.getpid()))

    def set_url(self, url: str | None) -> None:
        """Say where the owner listens, for whoever finds the lock taken."""
        self._write(Holder(os.getpid(), url))

    def _write(self, who: Holder) -> None:
        content = msgspec.json.encode(who) + b"\n"
        os.ftruncate(self._file, 0)
        # Where the disk is full nobody hears who holds the lock; it is held all the same.
        with suppress(OSError):
            os.pwrite(self._file, content, 0)

    def release(self) -> None:
        """Give the file free. Idempotent."""
        if self._file >= 0:
            os.ftruncate(self._file, 0)
            os.close(self._file)
            self._file = -1


def allocate_readers(store: Path, readers: int) -> None:
    """Make room for LMDB's table of readers, in ``<file>-lock``.

    LMDB maps that file and writes into it: without room on the disk for its pages that would kill the process (SIGBUS).
    StoreFull when there is none. What else may be wrong with the place LMDB tells itself. Where the system cannot be
    asked for room (macOS), there is nothing to do.
    """
    if not hasattr(os, "posix_fallocate"):
        return
    path = store.with_name(store.name + READERS_SUFFIX)
    needed = READERS_HEAD_BYTES + readers * READER_BYTES
    with suppress(OSError):
        there = os.stat(path)
        # Not even opened then: closing it again would end what this process has locked in it.
        if there.st_size >= needed and there.st_blocks * _BLOCK_BYTES >= needed:
            return
    try:
        file = os.open(path, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o600)
    except OSError as error:
        if error.errno in _NO_ROOM:
            raise StoreFull(f"no room left for {path}: free some space") from error
        return
    try:
        os.posix_fallocate(file, 0, needed)
    except OSError as error:
        if error.errno in _NO_ROOM:
            raise StoreFull(f"no room left for {path}: free some space") from error
    finally:
        os.close(file)


@contextmanager
def opening(store: Path) -> Iterator[None]:
    """Held while a file is being opened, so that nobody takes the table of readers away between its two uses."""
    try:
        file = os.open(store, os.O_RDONLY | os.O_CLOEXEC)
    except OSError:
        # A new file, or one that LMDB will say more about.
        yield
        return
    try:
        fcntl.flock(file, fcntl.LOCK_SH)
        yield
    finally:
        os.close(file)


def drop_readers(store: Path) -> None:
    """Remove LMDB's table of readers beside a file that nobody owns or ever did, such as a backup, once nobody uses it:
    who only read a file leaves nothing beside it.

    LMDB locks the first byte of the table for as long as it has it open, so that whoever can lock it is alone; and
    nobody opens it meanwhile (``opening``). Call it when this process has closed the file.
    """
    path = store.with_name(store.name + READERS_SUFFIX)
    if store.with_name(store.name + SUFFIX).exists() or not path.exists():
        return
    held_here: list[int] = []
    try:
        held_here.append(os.open(store, os.O_RDONLY | os.O_CLOEXEC))
        fcntl.flock(held_here[0], fcntl.LOCK_EX | fcntl.LOCK_NB)
        held_here.append(os.open(path, os.O_RDWR | os.O_CLOEXEC))
        fcntl.lockf(held_here[1], fcntl.LOCK_EX | fcntl.LOCK_NB, 1)
        path.unlink()
    except OSError as error:
        # Somebody else reads it, and removes it in the end; or the directory may not be changed.
        _log.debug("%s stays: %s", path, error)
    finally:
        for file in reversed(held_here):
            os.close(file)


def holder(store: Path) -> Holder | None:
    """Who holds the file now, as far as its lock file says; ``None`` when nobody does or it cannot be told."""
    try:
        return msgspec.json.decode(store.with_name(store.name + SUFFIX).read_bytes(), type=Holder)
    except (OSError, msgspec.DecodeError):
        return None


def held(store: Path) -> bool:
    """Whether any process holds the lock now."""
    try:
        file = os.open(store.with_name(store.name + SUFFIX), os.O_RDWR | os.O_CLOEXEC)
    except OSError:
        return False
    try:
        fcntl.flock(file, fcntl.LOCK_SH | fcntl.LOCK_NB)
        return False
    except BlockingIOError:
        return True
    finally:
        os.close(file)


def file_system(path: Path) -> str:
    """The type of the file system that holds ``path``, or ``""`` where the system does not tell."""
    try:
        device = os.stat(path).st_dev
        table = Path("/proc/self/mountinfo").read_text(encoding="utf-8", errors="replace")
    except OSError:
        return ""
    # The third field is the device. Some file systems (btrfs) show files another one: then the longest path decides.
    _, _, rest = table.partition(f" {os.major(device)}:{os.minor(device)} ")
    if rest:
        return rest.partition(" - ")[2].split(" ", 1)[0]
    best, kind = -1, ""
    real = os.path.realpath(path)
    for line in table.splitlines():
        left, _, right = line.partition(" - ")
        mount = left.split(" ")[4].encode().decode("unicode_escape")
        inside = real == mount or real.startswith(mount.rstrip("/") + "/")
        if inside and len(mount) >= best:
            best, kind = len(mount), right.split(" ", 1)[0]
    return kind
