"""Files that are there whole or not at all. Shell."""

from __future__ import annotations

import os
from pathlib import Path


def write_whole(path: Path, data: bytes, *, durable: bool = True) -> None:
    """Write a file that nobody but this user may read, at no moment of its life; all of it, or what was there before.

    ``durable`` waits until content and name are on the disk. Raises OSError; half a file is never left behind.
    """
    partial = path.with_name(f".{path.name}.new")
    descriptor = os.open(partial, os.O_WRONLY | os.O_CREAT | os.O_TRUNC | os.O_CLOEXEC, 0o600)
    try:
        with os.fdopen(descriptor, "wb") as file:
            file.write(data)
            if durable:
                file.flush()
                os.fsync(file.fileno())
        os.replace(partial, path)
    except BaseException:
        # Half a secret helps nobody, and lies in the way of the next attempt.
        partial.unlink(missing_ok=True)
        raise
    if durable:
        # The new name is on the disk once its directory is.
        make_durable(path.parent)


def make_durable(path: Path) -> None:
    """Wait until a file's content, or a directory's names, are on the disk."""
    descriptor = os.open(path, os.O_RDONLY)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)
