"""The zeros that a node keeps behind the end of its file, when somebody copies it, kills the node or fills the disk."""

from __future__ import annotations

import os
import shutil
import signal
import subprocess
import sys
from collections.abc import Callable
from contextlib import suppress
from pathlib import Path

import pytest

from mwnode.store import carry
from mwnode.store.ahead import AHEAD_BYTES, LOOK_EVERY
from mwnode.store.environment import LmdbStore
from mwnode.store.errors import StoreFull
from mwnode.store.verify import verify
from mwnode.testing import Harness, MissionHandle
from tests.crash.disks import small_disk
from tests.store.archives import say

MIB = 1024**2


def with_zeros(home: Path) -> tuple[Harness, MissionHandle]:
    """A durable node at work, with room made ahead in its file."""
    harness = Harness(home, durable=True)
    mission = harness.mission()
    for number in range(2 * LOOK_EVERY):
        say(mission, f"line {number}")
    assert zeros(harness) >= AHEAD_BYTES // 2
    return harness, mission


def zeros(harness: Harness) -> int:
    """Bytes behind the end of what the file holds."""
    file = harness.node.store.file
    return file.path.stat().st_size - file.used_bytes()


def heads(path: Path) -> dict[str, int]:
    """Every Group of a file and its newest Event; reads only."""
    store = LmdbStore.open(path, read_only=True)
    try:
        with store.read() as view:
            return {group_id: view.head(group_id) for group_id in view.groups()}
    finally:
        store.close()


@pytest.mark.parametrize("how", ["backup", "compacting backup", "plain copy", "plain copy without the zeros"])
def test_copies_that_are_taken_while_there_are_zeros_are_whole(tmp_path: Path, how: str) -> None:
    harness, mission = with_zeros(tmp_path / "home")
    path, copy = harness.node.home.store_path, tmp_path / "copy" / "node.mdb"
    copy.parent.mkdir()
    used = harness.node.store.file.used_bytes()
    if how.endswith("backup"):
        carry.backup(harness.node.store, copy, compact=how.startswith("compacting"))
        assert copy.stat().st_size <= used, "a backup carries no zeros"
    else:
        shutil.copy(path, copy)
        if how.endswith("zeros"):
            os.truncate(copy, used)
    known = len(mission.events())
    say(mission, "after the copy")
    assert heads(copy) == {mission.group_id: known}
    assert verify(copy).findings == ()
    # It is a store to go on with, and so is the one that it was copied from.
    store = LmdbStore.open(copy)
    store.write(lambda txn: txn.put_meta("colour", b"blue"))
    store.close()
    assert verify(copy).ok
    harness.close()
    assert verify(path).ok
    assert heads(path) == {mission.group_id: known + 1}


CHILD = """
import sys
from pathlib import Path
from mwnode.testing import Harness
from tests.crash.test_room_ahead import with_zeros
from tests.store.archives import say
harness, mission = with_zeros(Path(sys.argv[1]))
number = 0
while True:
    say(mission, f"more {number}")
    number += 1
    print(len(mission.events()), flush=True)
"""


@pytest.mark.parametrize("then", ["goes on", "is compacted", "is backed up", "loses its zeros"])
def test_a_node_that_was_killed_leaves_a_file_that_is_whole(tmp_path: Path, then: str) -> None:
    home = tmp_path / "home"
    child = subprocess.Popen([sys.executable, "-c", CHILD, str(home)], stdout=subprocess.PIPE, text=True)
    assert child.stdout is not None
    for _ in range(5):
        acknowledged = int(child.stdout.readline())
    child.send_signal(signal.SIGKILL)
    rest = child.communicate()[0].split()
    acknowledged = int(rest[-1]) if rest else acknowledged
    path = home / "node.mdb"
    size = path.stat().st_size
    assert verify(path).findings == ()
    (head,) = heads(path).values()
    assert head in {acknowledged, acknowledged + 1}, "of one commit nobody may have been told"
    if then == "is compacted":
        assert carry.compact(path)[1] < size
    elif then == "is backed up":
        carry.backup(path, tmp_path / "copy.mdb")
        shutil.copy(tmp_path / "copy.mdb", path)
    else:
        store = LmdbStore.open(path)
        if then == "loses its zeros":
            used = store.file.used_bytes()
            store.close()
            assert path.stat().st_size == used < size
        else:
            store.write(lambda txn: txn.put_meta("colour", b"blue"))
            store.close()
    assert verify(path).findings == ()
    assert list(heads(path).values()) == [head]


def test_a_disk_that_fills_up_behind_the_zeros_refuses_when_they_are_used_up(tmp_path: Path) -> None:
    with small_disk(tmp_path / "disk", 96) as disk:
        harness, mission = with_zeros(disk / "home")
        ballast = disk / "ballast"
        with open(ballast, "wb", buffering=0) as file, suppress(OSError):
            while file.write(bytes(MIB)):
                pass
        store = harness.node.store
        # Nobody looks at the reserve of free disk here: what is tried is the disk itself.
        store.file.free_bytes_reserve = 0
        room, written = zeros(harness), 0

        def write_one(number: int) -> int:
            store.write(lambda txn: txn.put_meta(f"name {number}", bytes(3000)))
            return number + 1

        def write_on() -> None:
            nonlocal written
            while True:
                written = write_one(written)

        with pytest.raises(StoreFull, match="no room left"):
            write_on()
        assert written * 3000 > room // 2, "the zeros were room"
        with store.read() as view:
            assert view.meta(f"name {written - 1}") == bytes(3000)
            assert view.meta(f"name {written}") is None
        ballast.unlink()
        say(mission, "there is room again")
        known = len(mission.events())
        harness.close()
        assert verify(disk / "home" / "node.mdb").findings == ()
        assert heads(disk / "home" / "node.mdb") == {mission.group_id: known}


Damage = Callable[[Path, int], None]


def cut(path: Path, used: int) -> None:
    os.truncate(path, used - 300 * 4096)


def overwrite(path: Path, used: int) -> None:
    with path.open("r+b") as file:
        file.seek(used)
        file.write(b"garbage" * 1000)


@pytest.mark.parametrize("damage", [cut, overwrite])
def test_what_lies_behind_the_end_is_nobodys_data_and_what_lies_before_is(tmp_path: Path, damage: Damage) -> None:
    harness, mission = with_zeros(tmp_path / "home")
    harness.store_bytes(os.urandom(4 * MIB))
    for number in range(2 * LOOK_EVERY):
        say(mission, f"again {number}")
    known, used, path = len(mission.events()), harness.node.store.file.used_bytes(), harness.node.home.store_path
    copy = tmp_path / "copy.mdb"
    shutil.copy(path, copy)
    harness.close()
    damage(copy, used)
    if damage is cut:
        assert "cut off" in verify(copy).findings[0].detail
        return
    assert verify(copy).findings == ()
    store = LmdbStore.open(copy)
    store.write(lambda txn: txn.put_meta("colour", b"blue"))
    store.close()
    assert verify(copy).findings == ()
    assert heads(copy) == {mission.group_id: known}
