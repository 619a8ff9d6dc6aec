"""Carrying the file about: a consistent copy of a live store, and a compacted one in its place."""

from __future__ import annotations

import os
from itertools import islice
from pathlib import Path
from typing import Final

import lmdb
from msgspec import Struct

from mwnode.files import make_durable
from mwnode.store.environment import LmdbStore
from mwnode.store.errors import StoreError, StoreFull, not_written
from mwnode.store.mapped_file import MAP_BYTES_FIRST, translated

ENTRIES_PER_STEP: Final = 10_000


class CopyInfo(Struct, frozen=True):
    """What a copy holds. ``bytes`` is the size of the file."""

    path: Path
    bytes: int
    groups: int
    events: int


class TargetExists(StoreError):
    """The copy would overwrite a file; choose another name."""


def backup(source: LmdbStore | Path, target: Path, *, compact: bool = False) -> CopyInfo:
    """Copy a store, which may be in use, to a new file; ``compact`` leaves free pages out.

    The copy is one committed state, durable when this returns, and is a store of its own: put it in the place of
    ``node.mdb`` to restore it. Raises TargetExists, StoreFull and the errors of opening ``source``.
    """
    if isinstance(source, Path):
        store = LmdbStore.open(source, read_only=True)
        try:
            return backup(store, target, compact=compact)
        finally:
            store.close()
    if target.exists():
        raise TargetExists(f"{target} exists already; choose another name or move it away")
    part = target.with_name(target.name + ".part")
    part.unlink(missing_ok=True)
    try:
        source.file.copy(part, compact=compact)
        make_durable(part)
        os.rename(part, target)
        make_durable(target.parent)
    except lmdb.Error as error:
        raise translated(error, target) from error
    except OSError as error:
        raise not_written(target, error) from error
    finally:
        part.unlink(missing_ok=True)
        part.with_name(part.name + "-lock").unlink(missing_ok=True)
    return describe(target)


def describe(path: Path) -> CopyInfo:
    """What a store's file holds."""
    store = LmdbStore.open(path, read_only=True)
    try:
        with store.read() as view:
            groups, events = len(view.groups()), view.pages.count("log")
    finally:
        store.close()
    return CopyInfo(path, path.stat().st_size, groups, events)


def compact(path: Path) -> tuple[int, int]:
    """Rewrite a store that nobody has open without its free pages; size before and after, in bytes.

    The old file stays in place until the new one is durable, so that a crash leaves one or the other. What was erased
    by tombstones is gone for good afterwards (decision F41). Raises StoreBusy when the store is in use, StoreFull when
    there is no room for the second file.
    """
    before = path.stat().st_size if path.exists() else 0
    store = LmdbStore.open(path, create=False)
    part = path.with_name(path.name + ".part")
    part.unlink(missing_ok=True)
    try:
        lingered = store.write(lambda txn: txn.forget_erasures())
        try:
            if lingered:
                _rewrite(store, part)
            else:
                store.file.copy(part, compact=True)
            make_durable(part)
        except (lmdb.Error, OSError) as error:
            store.write(lambda txn: txn.remember_erasures(lingered))
            raise StoreFull(f"no room for a compacted copy of {path}: {error}") from error
        # The owner's lock is a file beside the store: it is held until the new file is in place.
        os.rename(part, path)
        make_durable(path.parent)
    finally:
        store.close()
        part.unlink(missing_ok=True)
        part.with_name(part.name + "-lock").unlink(missing_ok=True)
    return before, path.stat().st_size


def _rewrite(store: LmdbStore, target: Path) -> None:
    """Write every entry into fresh pages. LMDB's own compacting copies pages as they are, and a page keeps the bytes of
    what was replaced in it."""
    file = store.file
    made = lmdb.open(
        str(target),
        map_size=max(file.map_bytes(), MAP_BYTES_FIRST),
        subdir=False,
        mode=0o600,
        sync=False,
        # Pages are cleared before use: memory of this process may hold the very bytes.
        meminit=True,
        max_dbs=len(file.dbs) + 8,
        lock=False,
    )
    try:
        with store.read() as view:
            for name in file.dbs:
                handle = made.open_db(name.encode())
                entries = view.pages.scan(name, b"")
                while step := list(islice(entries, ENTRIES_PER_STEP)):
                    with made.begin(write=True, db=handle) as txn, txn.cursor() as cursor:
                        cursor.putmulti(step, append=True)
        made.sync(True)
    finally:
        made.close()
