"""The file itself: who owns it, how it grows, and what becomes of it when the machine lets it down."""

from __future__ import annotations

import errno
import os
import resource
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import lmdb
import pytest

from mwnode.protocol.limits import Limits
from mwnode.store import ahead, mapped_file, ownership
from mwnode.store.apart import verify_apart
from mwnode.store.environment import LmdbStore
from mwnode.store.errors import (
    StoreBusy,
    StoreCorrupt,
    StoreFull,
    StoreMissing,
    StoreReadOnly,
    StoreTooNew,
    StoreUnavailable,
)
from mwnode.store.layout import FORMAT, U64
from tests.patience import PATIENCE_SECONDS
from tests.store.makers import G1, append, head

MIB = 1024**2


@pytest.fixture
def path(tmp_path: Path) -> Path:
    return tmp_path / "node.mdb"


@pytest.fixture
def store(path: Path) -> Iterator[LmdbStore]:
    opened = LmdbStore.open(path, durable=False)
    yield opened
    opened.close()


@pytest.fixture
def small_map(monkeypatch: pytest.MonkeyPatch) -> None:
    """Maps that begin at 1 MiB, so that growing takes no gigabytes."""
    monkeypatch.setattr(mapped_file, "MAP_BYTES_FIRST", MIB)


# --- one owner ---


def test_the_second_opener_fails_at_once_and_learns_who_holds_the_file(store: LmdbStore, path: Path) -> None:
    store.set_holder("wss://127.0.0.1:8765/ws")
    with pytest.raises(StoreBusy) as refused:
        LmdbStore.open(path)
    assert refused.value.pid == os.getpid()
    assert refused.value.url == "wss://127.0.0.1:8765/ws"
    assert str(os.getpid()) in str(refused.value)
    assert ownership.held(path)


def test_a_closed_store_can_be_opened_by_the_next(path: Path) -> None:
    first = LmdbStore.open(path)
    append(first, 1, 3)
    first.close()
    first.close()
    assert not ownership.held(path)
    second = LmdbStore.open(path)
    assert head(second) == 3
    second.close()


def test_a_killed_owner_leaves_the_file_free(path: Path) -> None:
    script = (
        "import sys, time; from pathlib import Path; from mwnode.store.environment import LmdbStore\n"
        "LmdbStore.open(Path(sys.argv[1])); print('open', flush=True); time.sleep(3600)"
    )
    owner = subprocess.Popen([sys.executable, "-c", script, str(path)], stdout=subprocess.PIPE)
    assert owner.stdout is not None
    assert owner.stdout.readline() == b"open\n"
    with pytest.raises(StoreBusy) as refused:
        LmdbStore.open(path)
    assert refused.value.pid == owner.pid
    owner.kill()
    owner.wait()
    owner.stdout.close()
    LmdbStore.open(path).close()


def test_another_process_reads_while_the_owner_writes(store: LmdbStore, path: Path) -> None:
    append(store, 1, 5)
    script = (
        "import sys; from pathlib import Path; from mwnode.store.environment import LmdbStore\n"
        "store = LmdbStore.open(Path(sys.argv[1]), read_only=True)\n"
        "with store.read() as view: print(view.head(sys.argv[2]))\n"
        "store.close()"
    )
    seen = subprocess.run([sys.executable, "-c", script, str(path), G1], capture_output=True, check=True)
    assert seen.stdout == b"5\n"


READER = (
    "import sys; from pathlib import Path; from mwnode.store.environment import LmdbStore\n"
    "store = LmdbStore.open(Path(sys.argv[1]), read_only=True)\n"
    "with store.read() as view: print(view.head(sys.argv[2]), flush=True); sys.stdin.read()\n"
    "store.close()"
)


@contextmanager
def reader(path: Path) -> Iterator[subprocess.Popen[bytes]]:
    """Another process that reads the file until its standard input is closed."""
    command = [sys.executable, "-c", READER, str(path), G1]
    with subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE) as process:
        assert process.stdout is not None
        assert process.stdout.readline() == b"5\n"
        yield process


@pytest.fixture
def copy(store: LmdbStore, tmp_path: Path) -> Path:
    """A backup, in a directory where nothing else lies."""
    append(store, 1, 5)
    directory = tmp_path / "stick"
    directory.mkdir()
    store.file.copy(directory / "copy.mdb", compact=False)
    return directory / "copy.mdb"


def test_who_only_reads_a_backup_leaves_nothing_beside_it(copy: Path) -> None:
    before = copy.read_bytes()
    opened = LmdbStore.open(copy, read_only=True)
    assert head(opened) == 5
    opened.close()
    assert verify_apart(copy).groups == 1
    assert list(copy.parent.iterdir()) == [copy]
    assert copy.read_bytes() == before
    copy.write_bytes(b"no store" * 4096)
    with pytest.raises(StoreCorrupt):
        LmdbStore.open(copy, read_only=True)
    assert list(copy.parent.iterdir()) == [copy]


def test_readers_of_a_backup_take_away_only_what_nobody_uses(copy: Path) -> None:
    table = copy.with_name("copy.mdb-lock")
    with reader(copy) as other:
        ours = LmdbStore.open(copy, read_only=True)
        ours.close()
        assert table.exists(), "the other one is listed there"
        other.communicate()
    assert not table.exists()
    # One that was killed leaves it; the next one takes it away.
    with reader(copy) as other:
        other.kill()
    assert table.exists()
    with ownership.opening(copy):
        ownership.drop_readers(copy)
        assert table.exists(), "somebody is about to use it"
    LmdbStore.open(copy, read_only=True).close()
    assert not table.exists()


def test_a_reader_leaves_the_table_of_readers_to_an_owner(copy: Path) -> None:
    with reader(copy) as other:
        owner = LmdbStore.open(copy, durable=False)
        table = copy.with_name("copy.mdb-lock").stat().st_ino
        other.communicate()
        append(owner, 6, 6)
        assert copy.with_name("copy.mdb-lock").stat().st_ino == table
        owner.close()
    later = LmdbStore.open(copy, read_only=True)
    assert head(later) == 6
    later.close()
    assert copy.with_name("copy.mdb-lock").stat().st_ino == table


def test_a_second_opening_in_one_process_is_refused_and_leaves_the_first_its_lock(store: LmdbStore, path: Path) -> None:
    append(store, 1, 1)
    with pytest.raises(StoreUnavailable, match="already open"):
        LmdbStore.open(path, read_only=True)
    # LMDB tells by this lock that the table of readers is in use; closing any handle of that file would end it.
    script = "import fcntl, sys; fcntl.lockf(open(sys.argv[1], 'r+b'), fcntl.LOCK_EX | fcntl.LOCK_NB, 1)"
    tried = subprocess.run([sys.executable, "-c", script, f"{path}-lock"], capture_output=True, check=False)
    assert b"BlockingIOError" in tried.stderr


def test_a_reader_of_a_missing_file_is_told_how_to_make_one(path: Path) -> None:
    with pytest.raises(StoreMissing, match="mwnode init"):
        LmdbStore.open(path, read_only=True)
    assert not path.exists()


def test_a_reader_cannot_write(store: LmdbStore, path: Path) -> None:
    store.close()
    reader = LmdbStore.open(path, read_only=True)
    with pytest.raises(StoreReadOnly):
        append(reader, 1, 1)
    reader.close()


@pytest.mark.parametrize("kind", sorted(ownership.REMOTE_FILE_SYSTEMS))
def test_network_file_systems_are_refused(path: Path, kind: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(ownership, "file_system", lambda path: kind)
    with pytest.raises(StoreUnavailable, match=kind):
        LmdbStore.open(path)
    assert not path.exists()


def test_doubtful_file_systems_are_reported(
    path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    monkeypatch.setattr(ownership, "file_system", lambda path: "fuse.somefs")
    LmdbStore.open(path).close()
    assert "fuse.somefs" in caplog.text


# --- versions and damage ---


def test_a_file_of_a_newer_format_is_refused_and_left_alone(store: LmdbStore, path: Path) -> None:
    store.write(lambda txn: txn.put_meta("format", b"%d" % (FORMAT + 1)))
    store.close()
    before = path.read_bytes()
    with pytest.raises(StoreTooNew, match="newer mwnode") as refused:
        LmdbStore.open(path)
    assert (refused.value.found, refused.value.known) == (FORMAT + 1, FORMAT)
    assert path.read_bytes() == before


def test_an_empty_file_is_no_new_store(path: Path) -> None:
    path.touch()
    with pytest.raises(StoreCorrupt, match="restore a backup"):
        LmdbStore.open(path)


def test_a_file_of_something_else_is_refused(path: Path) -> None:
    path.write_bytes(b"not a store " * 10_000)
    with pytest.raises(StoreCorrupt):
        LmdbStore.open(path)


@pytest.mark.parametrize("read_only", [False, True])
def test_a_file_that_was_cut_off_is_refused_instead_of_killing_the_process(
    store: LmdbStore, path: Path, read_only: bool
) -> None:
    append(store, 1, 500, padding=4000)
    store.close()
    os.truncate(path, path.stat().st_size // 2)
    with pytest.raises(StoreCorrupt, match="cut off"):
        LmdbStore.open(path, read_only=read_only)


def test_a_file_short_of_its_last_page_opens_and_its_damage_is_found(store: LmdbStore, path: Path) -> None:
    append(store, 1, 500, padding=4000)
    store.close()
    os.truncate(path, path.stat().st_size - 4096)
    opened = LmdbStore.open(path)
    try:
        with opened.read() as view:
            view.events(G1, 0, 1000)
    except StoreCorrupt:
        pass
    finally:
        opened.close()


# --- growing ---


@pytest.mark.usefixtures("small_map")
def test_the_file_grows_by_itself(path: Path) -> None:
    store = LmdbStore.open(path, durable=False)
    assert store.file.map_bytes() == MIB
    for number in range(40):
        append(store, number * 100 + 1, number * 100 + 100, padding=2000)
    assert store.file.map_bytes() >= 8 * MIB
    assert head(store) == 4000
    store.close()


@pytest.mark.usefixtures("small_map")
def test_one_transaction_larger_than_the_map_grows_it_and_is_written_once(path: Path) -> None:
    store = LmdbStore.open(path, durable=False)
    append(store, 1, 4000, padding=2000)
    assert head(store) == 4000
    store.close()


@pytest.mark.usefixtures("small_map")
def test_growing_waits_for_readers_and_lets_them_go_on(path: Path) -> None:
    store = LmdbStore.open(path, durable=False)
    append(store, 1, 100)
    seen: list[int] = []
    stop = threading.Event()

    def read() -> None:
        while not stop.is_set():
            with store.read() as view:
                events = view.events(G1, 0, 100_000)
                assert len(events) == view.head(G1), "one state, whatever is written meanwhile"
                seen.append(len(events))
            time.sleep(0.001)

    readers = [threading.Thread(target=read) for _ in range(3)]
    for reader in readers:
        reader.start()
    try:
        for number in range(1, 8):
            append(store, number * 100 + 1, number * 100 + 100, padding=8000)
    finally:
        stop.set()
        for reader in readers:
            reader.join()
    assert store.file.map_bytes() > MIB
    assert head(store) == 800
    assert seen
    store.close()


@pytest.mark.usefixtures("small_map")
def test_a_reader_that_stays_does_not_hang_the_writer_for_ever(path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(mapped_file, "GROW_WAIT_SECONDS", 0.2)
    store = LmdbStore.open(path, durable=False)
    append(store, 1, 1)
    with store.read() as view:
        with pytest.raises(StoreUnavailable, match="must grow"):
            append(store, 2, 1000, padding=4000)
        assert view.head(G1) == 1
    append(store, 2, 1000, padding=4000)
    assert head(store) == 1000
    store.close()


@pytest.mark.usefixtures("small_map")
def test_a_reader_in_another_process_follows_the_growth(path: Path) -> None:
    store = LmdbStore.open(path, durable=False)
    append(store, 1, 1)
    script = (
        "import sys; from pathlib import Path; from mwnode.store.environment import LmdbStore\n"
        "from mwnode.store import mapped_file; mapped_file.MAP_BYTES_FIRST = 1024 ** 2\n"
        "store = LmdbStore.open(Path(sys.argv[1]), read_only=True)\n"
        "for line in sys.stdin:\n"
        "    with store.read() as view: print(len(view.events(sys.argv[2], 0, 100_000)), flush=True)\n"
    )
    reader = subprocess.Popen(
        [sys.executable, "-c", script, str(path), G1], stdin=subprocess.PIPE, stdout=subprocess.PIPE
    )
    assert reader.stdin is not None
    assert reader.stdout is not None
    for last in (1, 2000):
        if last > 1:
            append(store, 2, last, padding=4000)
        reader.stdin.write(b"read\n")
        reader.stdin.flush()
        assert reader.stdout.readline() == b"%d\n" % last
    reader.stdin.close()
    assert reader.wait(timeout=PATIENCE_SECONDS) == 0
    reader.stdout.close()
    store.close()


# --- no room ---


@pytest.mark.usefixtures("small_map")
def test_at_its_ceiling_the_store_refuses_keeps_what_it_has_and_goes_on_when_it_may(path: Path) -> None:
    limits = Limits(map_bytes=4 * MIB, free_bytes_reserve=0)
    store = LmdbStore.open(path, durable=False, limits=limits)
    append(store, 1, 100)
    with pytest.raises(StoreFull, match="map_bytes") as refused:
        append(store, 101, 5000, padding=4000)
    assert refused.value.retryable
    assert head(store) == 100
    append(store, 101, 110)
    store.close()
    larger = LmdbStore.open(path, durable=False)
    append(larger, 111, 5000, padding=4000)
    assert head(larger) == 5000
    larger.close()


def test_below_the_reserve_of_free_disk_every_write_is_refused_until_there_is_room(
    path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(mapped_file, "ROOM_SECONDS", 0.0)
    store = LmdbStore.open(path, durable=False, limits=Limits(free_bytes_reserve=64 * MIB))
    append(store, 1, 1)
    real = os.statvfs(path)

    class Disk:
        f_frsize = 1
        f_blocks = 100 * 1024 * MIB
        f_bavail = 63 * MIB

    monkeypatch.setattr(mapped_file.os, "statvfs", lambda path: Disk)
    with pytest.raises(StoreFull, match="free some"):
        append(store, 2, 2)
    assert head(store) == 1, "reading goes on"
    monkeypatch.setattr(mapped_file.os, "statvfs", lambda path: real)
    append(store, 2, 2)
    assert head(store) == 2
    store.close()


def fill_under_a_file_size_limit(path: str) -> None:
    """In a process of its own: the kernel refuses to let the file grow, as a full disk would."""
    signal.signal(signal.SIGXFSZ, signal.SIG_IGN)
    store = LmdbStore.open(Path(path))
    append(store, 1, 100, padding=1000)
    soft, hard = resource.getrlimit(resource.RLIMIT_FSIZE)
    resource.setrlimit(resource.RLIMIT_FSIZE, (store.file.used_bytes() + 64 * 1024, hard))
    refused, written = 0, 100
    for _ in range(20):
        try:
            append(store, written + 1, written + 20, padding=4000)
            written += 20
        except (StoreFull, StoreUnavailable):
            # A write that fits in part is reported by LMDB as an I/O error.
            refused += 1
            assert head(store) == written
    assert refused, "the limit must have been met"
    resource.setrlimit(resource.RLIMIT_FSIZE, (soft, hard))
    append(store, written + 1, written + 20, padding=4000)
    assert head(store) == written + 20
    store.close()


@pytest.mark.req("R-19-35")
def test_a_write_that_the_disk_refuses_loses_nothing_and_the_store_goes_on(path: Path) -> None:
    script = "import sys; from tests.store.test_mapped_file import *; fill_under_a_file_size_limit(sys.argv[1])"
    done = subprocess.run([sys.executable, "-c", script, str(path)], capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
    store = LmdbStore.open(path)
    with store.read() as view:
        sequences = [stored.sequence for stored in view.events(G1, 0, 10_000)]
    assert sequences == list(range(1, len(sequences) + 1))
    store.close()


# --- transactions and readers left behind ---


def test_an_interrupted_transaction_does_not_block_the_next(store: LmdbStore) -> None:
    def interrupted(txn: object) -> None:
        raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        store.write(interrupted)
    append(store, 1, 1)
    assert head(store) == 1


class Panicking:
    """The environment after a write of its root failed: nobody can write until it is opened anew."""

    def __init__(self, env: lmdb.Environment) -> None:
        self._env = env

    def begin(self, *arguments: Any, write: bool = False, **options: Any) -> Any:
        if write:
            raise lmdb.PanicError("mdb_txn_begin")
        return self._env.begin(*arguments, **options)

    def __getattr__(self, name: str) -> Any:
        return getattr(self._env, name)


def test_a_root_that_could_not_be_written_costs_one_batch_and_no_restart(store: LmdbStore, path: Path) -> None:
    append(store, 1, 5)
    store.file.lmdb = Panicking(store.file.lmdb)  # type: ignore[assignment]
    with pytest.raises(StoreUnavailable, match="opened anew; send it again"):
        append(store, 6, 6)
    assert head(store) == 5
    append(store, 6, 6)
    assert head(store) == 6
    with pytest.raises(StoreBusy):
        LmdbStore.open(path)
    store.close()
    again = LmdbStore.open(path)
    assert head(again) == 6
    again.close()


@pytest.mark.parametrize("asked", [True, False], ids=["when asked", "by the writer itself"])
def test_space_that_a_killed_reader_held_is_used_again(
    store: LmdbStore, path: Path, monkeypatch: pytest.MonkeyPatch, asked: bool
) -> None:
    append(store, 1, 200, padding=4000)
    script = (
        "import sys, time; from pathlib import Path; from mwnode.store.environment import LmdbStore\n"
        "store = LmdbStore.open(Path(sys.argv[1]), read_only=True)\n"
        "with store.read() as view: print(view.head(sys.argv[2]), flush=True); time.sleep(3600)"
    )
    reader = subprocess.Popen([sys.executable, "-c", script, str(path), G1], stdout=subprocess.PIPE)
    assert reader.stdout is not None
    reader.stdout.readline()
    reader.kill()
    reader.wait()
    reader.stdout.close()

    def rewrite(times: int) -> int:
        before = store.file.used_bytes()
        for number in range(times):
            store.write(lambda txn, number=number: txn.put_meta("changing", b"%d" % number * 2000))  # type: ignore[misc]
        return store.file.used_bytes() - before

    if asked:
        assert store.clear_dead_readers() == 1
    else:
        monkeypatch.setattr(mapped_file, "ROOM_SECONDS", 0.0)
        monkeypatch.setattr(mapped_file, "DEAD_READERS_SECONDS", 0.0)
        time.sleep(1.1)
    rewrite(5)
    assert rewrite(100) < 100 * 4096


@pytest.mark.parametrize("value", [b"x", b"1.5", b"9" * 5000, b""])
def test_a_format_that_is_no_number_is_damage(store: LmdbStore, path: Path, value: bytes) -> None:
    with store.file.lmdb.begin(write=True) as txn:
        txn.put(b"format", value, db=store.file.dbs["meta"])
    store.close()
    for read_only in (False, True):
        with pytest.raises(StoreCorrupt, match="does not tell its format"):
            LmdbStore.open(path, read_only=read_only)


def test_a_store_closed_is_closed_for_everybody(store: LmdbStore) -> None:
    store.close()
    with pytest.raises(StoreUnavailable):
        append(store, 1, 1)
    with pytest.raises(StoreUnavailable), store.read():
        pass


# --- zeros ahead of the end ---


def one_by_one(store: LmdbStore, count: int) -> None:
    for _ in range(count):
        append(store, head(store) + 1, head(store) + 1)


def test_small_commits_find_zeros_behind_the_end_and_closing_cuts_them_off(path: Path) -> None:
    store = LmdbStore.open(path)
    one_by_one(store, 2 * ahead.LOOK_EVERY)
    used = store.file.used_bytes()
    assert path.stat().st_size - used >= ahead.AHEAD_BYTES // 2
    assert not any(path.read_bytes()[used:]), "nothing of the process's memory is in them"
    left = path.read_bytes()
    store.close()
    assert path.stat().st_size == used
    # As after a kill: the zeros are still there.
    path.write_bytes(left)
    store = LmdbStore.open(path)
    assert head(store) == 2 * ahead.LOOK_EVERY
    one_by_one(store, 2 * ahead.LOOK_EVERY)
    assert path.stat().st_size == len(left), "what is there is used first"
    store.close()
    store = LmdbStore.open(path)
    assert head(store) == 4 * ahead.LOOK_EVERY
    store.close()


def test_large_commits_and_full_disks_get_no_zeros(path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    store = LmdbStore.open(path)
    for number in range(2 * ahead.LOOK_EVERY):
        append(store, number * 40 + 1, number * 40 + 40, padding=3000)
        assert path.stat().st_size - store.file.used_bytes() < 64 * 4096
    free = os.statvfs(path)
    monkeypatch.setattr(ahead, "FREE_SHARE", free.f_bavail * free.f_frsize)
    one_by_one(store, 3 * ahead.LOOK_EVERY)
    assert path.stat().st_size - store.file.used_bytes() < 64 * 4096
    store.close()


def test_zeros_that_cannot_be_written_hurt_nobody(
    path: Path, caplog: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch
) -> None:
    def refuse(*_: object, **__: object) -> None:
        raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))

    store = LmdbStore.open(path)
    with caplog.at_level("INFO"), monkeypatch.context() as patch:
        patch.setattr(os, "pwrite", refuse)
        one_by_one(store, 2 * ahead.LOOK_EVERY)
    assert "no room was made ahead: No space left" in caplog.text
    assert head(store) == 2 * ahead.LOOK_EVERY
    store.close()


def test_a_file_that_was_put_in_its_place_is_left_alone(path: Path) -> None:
    store = LmdbStore.open(path)
    one_by_one(store, 2 * ahead.LOOK_EVERY)
    other = b"somebody else's" * 500_000
    path.with_name("other").write_bytes(other)
    os.rename(path.with_name("other"), path)
    one_by_one(store, 200)
    store.close()
    assert path.read_bytes() == other


def test_one_new_number_that_is_not_higher_than_all_before_is_refused(store: LmdbStore) -> None:
    append(store, 1, 3)
    for numbers in ([2], [1, 2], [3]):
        with pytest.raises(StoreCorrupt, match="not higher"):
            store.write(lambda txn, numbers=numbers: [txn.pages.put("log", U64.pack(n), b"x") for n in numbers])  # type: ignore[misc]
    assert head(store) == 3
