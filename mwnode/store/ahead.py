"""Zeros behind the used part of the file, so that a small commit overwrites blocks instead of adding some.

Adding blocks makes the file system write its own journal in every fsync, which costs as much again as the data, and
more while others write. Large batches share that cost and need no zeros.
"""

from __future__ import annotations

import logging
import os
from pathlib import Path
from typing import Final

AHEAD_BYTES: Final = 1024**2
"""How much is written at once; some is added when less than half of it is left."""
LOOK_EVERY: Final = 8
"""Commits between two looks at the file."""
FREE_SHARE: Final = 64
"""A disk with less free bytes than so many times the zeros is left alone."""

_log = logging.getLogger("mwnode.store")


class WrittenAhead:
    """The zeros behind one file. Only the holder of the write lock may use it: nobody else adds to the file."""

    def __init__(self, path: Path) -> None:
        """OSError when it cannot be written to."""
        self._path = path
        # Not by its path: whoever compacts the file puts another one there.
        self._file = os.open(path, os.O_RDWR | os.O_CLOEXEC)
        self._commits = 0
        self._used_before = 0

    @property
    def wants_to_look(self) -> bool:
        """Counts a commit; whether ``keep`` should follow."""
        self._commits += 1
        return self._commits % LOOK_EVERY == 0

    def keep(self, used: int, ceiling: int) -> None:
        """Add zeros when they run out. ``used`` and ``ceiling`` are bytes of the file in use, and of its map."""
        grown, self._used_before = used - self._used_before, used
        # Where commits add this much, zeros would be written only to be written over.
        if grown > AHEAD_BYTES // 2 or used + AHEAD_BYTES > ceiling:
            return
        try:
            size = os.fstat(self._file).st_size
            disk = os.fstatvfs(self._file)
            if size - used >= AHEAD_BYTES // 2 or disk.f_bavail * disk.f_frsize < FREE_SHARE * AHEAD_BYTES:
                return
            start = max(size, used)
            os.pwrite(self._file, bytes(used + AHEAD_BYTES - start), start)
        except OSError as error:
            # The commit that came before is durable all the same.
            _log.info("%s: no room was made ahead: %s", self._path, error.strerror)

    def close(self, used: int | None) -> None:
        """Cut the zeros off, where it is known what is in use, and let go of the file."""
        try:
            if used is not None and os.fstat(self._file).st_size > used:
                os.ftruncate(self._file, used)
        except OSError as error:
            _log.info("%s: the room made ahead stays: %s", self._path, error.strerror)
        finally:
            os.close(self._file)
