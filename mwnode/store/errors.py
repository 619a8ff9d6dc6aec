"""What a store can fail with. Each says what happened and what to do; ``retryable`` says whether waiting can help."""

from __future__ import annotations

import errno
from pathlib import Path
from typing import ClassVar

_NO_ROOM = frozenset({errno.ENOSPC, errno.EDQUOT, errno.EFBIG})


class StoreError(Exception):
    """Root of the store's errors. Nothing of the failed transaction was kept."""

    retryable: ClassVar[bool] = False


class StoreBusy(StoreError):
    """Another process owns the file. ``pid`` and ``url`` name it where it said so."""

    def __init__(self, path: str, pid: int | None, url: str | None) -> None:
        who = f"process {pid}" if pid else "another process"
        where = f" at {url}" if url else ""
        super().__init__(f"{path} is in use by {who}{where}; stop it, or talk to it instead of opening the file")
        self.path, self.pid, self.url = path, pid, url


class StoreFull(StoreError):
    """No room: the disk, the free-space reserve or the configured ceiling. Goes on by itself once there is room."""

    retryable = True


class StoreCorrupt(StoreError):
    """Stored bytes are not what was written; restore from a backup. ``where`` names the place."""

    def __init__(self, message: str, where: str = "") -> None:
        super().__init__(message)
        self.where = where


class StoreTooNew(StoreError):
    """The file was written by a newer mwnode; upgrade, never delete."""

    def __init__(self, path: str, found: int, known: int) -> None:
        super().__init__(f"{path} has format {found}, this mwnode knows up to {known}: install a newer mwnode")
        self.found, self.known = found, known


class StoreReadOnly(StoreError):
    """The file or its directory cannot be written, or was opened for reading."""


class WriterRefused(StoreError):
    """Somebody else than the accepting service would write to the Admission Log (R-6.4-61)."""


class StoreUnavailable(StoreError):
    """The operating system refused; trying again may help. Silence is never absence (R-6.4-62)."""

    retryable = True


class StoreMissing(StoreError):
    """There is no such file; ``mwnode init`` makes one."""


def not_written(path: Path, error: OSError) -> StoreError:
    """What a failed write to a place that somebody named means: no room there, or no such place."""
    told = f"{path} could not be written: {error.strerror}"
    if error.errno in _NO_ROOM:
        return StoreFull(f"{told}; free some space or choose another place")
    if error.errno == errno.ENOENT:
        return StoreMissing(f"{told}: make the directory {path.parent} first, or choose another place")
    return StoreReadOnly(f"{told}; choose another place")
