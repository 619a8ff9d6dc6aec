"""What an operator asks when something about the file is odd: who holds it, who reads it, where the space is, which
keys run out. Each finding says what to do; nothing is changed here.
"""

from __future__ import annotations

import os
import platform
import re
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Final, Literal

import lmdb
import msgspec
import nacl
from msgspec import Struct

from mwnode.authority.state import CONTENTS, KEYS
from mwnode.protocol.instants import Instant, parse
from mwnode.protocol.limits import Limits
from mwnode.store import ownership
from mwnode.store.artifacts import manifests
from mwnode.store.environment import LmdbReading, LmdbStore
from mwnode.store.errors import StoreError
from mwnode.store.layout import DATABASES, FORMAT
from mwnode.store.port import ORGANIZATION
from mwnode.store.trim import trimmed_groups
from mwnode.trust.registry import Registry, RegistryFault

Level = Literal["ok", "notice", "warning", "fault"]

LAG_TRANSACTIONS: Final = 1000
"""A reader that is so many commits behind keeps much freed space from being used again."""
EXPIRY_SECONDS: Final = 30 * 86_400
"""Keys that end within it are told of."""
OVERDUE_SECONDS: Final = 60
_READER = re.compile(r"^\s*(\d+)\s+([0-9a-f]+)\s+(\d+|-)\s*$", re.MULTILINE)


class Observation(Struct, frozen=True):
    """One thing that was looked at. ``advice`` is what to do, empty where nothing needs doing."""

    check: str
    level: Level
    detail: str
    advice: str = ""


class Reader(Struct, frozen=True):
    """A slot in the table of readers. ``behind`` counts commits since its view; ``None`` when it reads nothing."""

    pid: int
    behind: int | None
    alive: bool


def examine(target: LmdbStore | Path, now: Instant, limits: Limits) -> list[Observation]:
    """Look at a store, or at the file at a path, which may be in use by its node.

    Never raises for what is wrong with the file.
    """
    if isinstance(target, LmdbStore):
        return [*_around(target.path), *_inside(target, now, limits)]
    try:
        store = LmdbStore.open(target, read_only=True)
    except StoreError as error:
        unopened = Observation("file", "fault", str(error), "nothing more can be looked at until it opens")
        return [*_around(target), unopened]
    try:
        return [*_around(target), *_inside(store, now, limits)]
    finally:
        store.close()


def _around(path: Path) -> list[Observation]:
    return [_versions(), *_file_system(path), *_owner(path)]


def _inside(store: LmdbStore, now: Instant, limits: Limits) -> list[Observation]:
    found: list[Observation] = []
    try:
        found += _readers(store)
        found += _space(store, limits)
        with store.read() as view:
            found.append(_format(view))
            found += _clock(view, now)
            found += _keys(view, now)
            found += _contents(view)
    except StoreError as error:
        found.append(Observation("file", "fault", str(error), "run `mwnode verify`, and restore a backup"))
    return found


# --- the file ---------------------------------------------------------------------------------------------------------


def _versions() -> Observation:
    python = platform.python_version()
    engine = ".".join(map(str, lmdb.version()))
    text = f"Python {python} on {sys.platform}, LMDB {engine}, PyNaCl {nacl.__version__}, file format {FORMAT}"
    return Observation("versions", "ok", text)


def _format(view: LmdbReading) -> Observation:
    value = view.meta("format") or b"0"
    if int(value) < FORMAT:
        return Observation(
            "format",
            "notice",
            f"the file has format {int(value)}, this mwnode writes {FORMAT}",
            "it is migrated when a node opens it next; a copy is kept beside it",
        )
    return Observation("format", "ok", f"the file has format {int(value)}")


def _file_system(path: Path) -> Iterator[Observation]:
    kind = ownership.file_system(path if path.exists() else path.parent)
    name = kind or "of an unknown type"
    if kind in ownership.REMOTE_FILE_SYSTEMS:
        yield Observation(
            "file system",
            "fault",
            f"{path} lies on a network file system ({kind}): memory maps and locks are not reliable there",
            "move HOME to a local disk",
        )
    elif not kind or kind in ownership.DOUBTFUL_FILE_SYSTEMS or kind.startswith("fuse"):
        yield Observation(
            "file system",
            "warning",
            f"{path} lies on a file system {name}, where locks or memory maps may surprise",
            "keep HOME on a local disk (ext4, xfs, btrfs, apfs) where you can",
        )
    else:
        yield Observation("file system", "ok", f"{path} lies on {kind}")
    if path.exists() and not os.access(path, os.W_OK):
        yield Observation("permissions", "fault", f"{path} cannot be written by this user", "check its owner and mode")


def _owner(path: Path) -> Iterator[Observation]:
    who = ownership.holder(path)
    if not ownership.held(path):
        if who is not None:
            yield Observation(
                "owner", "notice", f"process {who.pid} held the file and ended without closing it", "nothing to do"
            )
        else:
            yield Observation("owner", "ok", "nobody has the file open for writing")
        return
    url = f" and listens at {who.url}" if who is not None and who.url else ""
    pid = f"process {who.pid}" if who is not None else "a process that does not say who it is"
    yield Observation("owner", "ok", f"{pid} owns the file{url}")


def readers_of(store: LmdbStore) -> list[Reader]:
    """The table of readers."""
    newest = int(store.file.lmdb.info()["last_txnid"])
    found = []
    for pid, _, at in _READER.findall(store.file.lmdb.readers()):
        behind = None if at == "-" else max(0, newest - int(at))
        found.append(Reader(int(pid), behind, _is_alive(int(pid))))
    return found


def _is_alive(pid: int) -> bool:
    try:
        os.kill(pid, 0)
    except ProcessLookupError:
        return False
    except PermissionError:
        return True
    return True


def _readers(store: LmdbStore) -> Iterator[Observation]:
    readers = readers_of(store)
    dead = [reader for reader in readers if not reader.alive]
    if dead:
        pids = ", ".join(sorted({str(reader.pid) for reader in dead}))
        yield Observation(
            "readers",
            "warning",
            f"{len(dead)} slots belong to processes that are gone ({pids}): freed pages wait for them",
            "the next node that opens the file frees them; restart yours, or run `mwnode compact` while none serves",
        )
    slow = [reader for reader in readers if reader.alive and (reader.behind or 0) > LAG_TRANSACTIONS]
    for reader in slow:
        yield Observation(
            "readers",
            "warning",
            f"process {reader.pid} reads a state {reader.behind} commits old: what was freed since is not used again",
            f"wait for it to end (a verify or backup?), or stop process {reader.pid}",
        )
    if not dead and not slow:
        active = sum(reader.behind is not None for reader in readers)
        yield Observation("readers", "ok", f"{active} views of the file are open, none of them old")


class Space(Struct, frozen=True):
    """Where the bytes of the file are."""

    file: int
    data: int
    free: int
    map: int
    disk_free: int


def space_of(store: LmdbStore) -> Space:
    """The sizes, in bytes: ``data`` in use, ``free`` inside the file and used again by later writes."""
    file = store.file
    page = int(file.lmdb.stat()["psize"])
    with store.read() as view:
        trees = [file.lmdb.stat(), *(view.pages.txn.stat(handle) for handle in file.dbs.values())]
    pages = sum(int(tree[name]) for tree in trees for name in ("branch_pages", "leaf_pages", "overflow_pages"))
    used, data = file.used_bytes(), (pages + 2) * page
    return Space(file.path.stat().st_size, data, max(0, used - data), file.map_bytes(), file.free_bytes())


def _space(store: LmdbStore, limits: Limits) -> Iterator[Observation]:
    space = space_of(store)
    text = f"{_size(space.data)} hold data, {_size(space.free)} are free inside a file of {_size(space.file)}"
    if space.free > max(space.data, 16 * 1024**2):
        yield Observation(
            "space",
            "notice",
            f"{text}: the file never shrinks by itself, later writes use free pages first",
            "stop the node and run `mwnode compact` to give them back",
        )
    else:
        yield Observation("space", "ok", text)
    if space.disk_free < limits.free_bytes_reserve:
        yield Observation(
            "disk",
            "fault",
            f"{_size(space.disk_free)} are free on the disk, {_size(limits.free_bytes_reserve)} are kept in reserve: "
            "Commands are refused",
            "free some space; the node goes on by itself",
        )
    elif space.disk_free < 4 * limits.free_bytes_reserve:
        yield Observation("disk", "warning", f"only {_size(space.disk_free)} are free on the disk", "make room soon")
    else:
        yield Observation("disk", "ok", f"{_size(space.disk_free)} are free on the disk")
    used = store.file.used_bytes()
    if used > limits.map_bytes // 10 * 9:
        yield Observation(
            "ceiling",
            "warning",
            f"the file uses {_size(used)} of at most {_size(limits.map_bytes)} ([limits] map_bytes)",
            "raise map_bytes, or archive and trim Groups",
        )


def _size(count: int) -> str:
    size = float(count)
    for unit in ("bytes", "KiB", "MiB", "GiB"):
        if size < 1024:
            return f"{size:.0f} {unit}" if unit == "bytes" else f"{size:.1f} {unit}"
        size /= 1024
    return f"{size:.1f} TiB"


# --- what is in it ----------------------------------------------------------------------------------------------------


def _clock(view: LmdbReading, now: Instant) -> Iterator[Observation]:
    newest = max(
        (head.last_occurred_at for group_id in (ORGANIZATION, *view.groups()) if (head := view.head_record(group_id))),
        key=parse,
        default=None,
    )
    if newest is not None and parse(newest) > now:
        yield Observation(
            "clock",
            "fault",
            f"it is {now.text()} here, but the newest Event is of {newest}: the clock was set back, or the file comes "
            "from a machine that was ahead",
            "set the clock by NTP; until then Commands are dated wrongly and leases end late",
        )
    else:
        yield Observation("clock", "ok", f"it is {now.text()}, later than every Event in the file")
    due = view.next_due()
    if due is not None and due.plus(OVERDUE_SECONDS) < now:
        yield Observation(
            "timers",
            "notice",
            f"something has been due since {due.text()}: a lease or an offer that nobody ended yet",
            "a node does it within a second of starting; if one serves now, look at its log",
        )


def _keys(view: LmdbReading, now: Instant) -> Iterator[Observation]:
    bindings = [{"validityHistory": [], **msgspec.to_builtins(row.binding)} for row in view.all(KEYS)]
    try:
        registry = Registry.from_evidence({"organizationId": view.organization_id, "bindings": bindings})
    except RegistryFault as fault:
        yield Observation("keys", "fault", f"the Registry cannot be read: {fault}", "run `mwnode verify`")
        return
    soon = now.plus(EXPIRY_SECONDS)
    ending = 0
    for binding in bindings:
        key = registry.resolve(binding["keyId"])
        ends = [end for end in (key.valid_until, key.revoked_at) if end is not None] if key is not None else []
        if key is None or not ends or min(ends) > soon:
            continue
        ending += 1
        who = f"{key.principal.type} {key.principal.id}"
        past = min(ends) <= now
        service = key.principal.type == "service"
        yield Observation(
            "keys",
            "fault" if past and service else "notice" if past else "warning",
            f"{binding['keyId']} of {who} {'ended' if past else 'ends'} at {min(ends).text()}",
            "nothing to do where that is meant; else bind a new key with `mwnode key add`",
        )
    if not ending:
        yield Observation("keys", "ok", f"{len(bindings)} keys are bound, none ends within 30 days")


def _contents(view: LmdbReading) -> Iterator[Observation]:
    if view.erasures_linger():
        yield Observation(
            "erasures",
            "warning",
            "free pages may still hold the bytes of erased Events",
            "stop the node and run `mwnode compact`",
        )
    idle = [manifest.size for named, manifest in manifests(view) if view.get(CONTENTS, named) is None]
    if idle:
        yield Observation(
            "uploads",
            "notice",
            f"{len(idle)} uploads ({_size(sum(idle))}) are named by no published Artifact",
            "nothing: what no Event, Command or document names either goes by itself after [policy] upload_retention, "
            "and on `mwnode compact`",
        )
    if trims := trimmed_groups(view):
        events = sum(trim.through for trim in trims.values())
        yield Observation("trimmed", "ok", f"{events} Events of {len(trims)} archived Groups are only in snapshots")
    missing = [name for name in DATABASES if name not in view.pages.dbs]
    if missing:
        yield Observation(
            "databases", "notice", f"the file has no {', '.join(missing)} yet", "a node makes them when it opens it"
        )
