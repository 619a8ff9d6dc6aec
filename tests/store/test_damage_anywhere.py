"""Whatever is flipped or deleted in whatever named database: ``verify`` finds it."""

from __future__ import annotations

import random
import shutil
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import lmdb
import pytest
from blake3 import blake3

from mwnode.node import EMBEDDED
from mwnode.store import proving
from mwnode.store.apart import verify_apart
from mwnode.store.artifacts import hold_chunks
from mwnode.store.checking import Report
from mwnode.store.environment import LmdbStore
from mwnode.store.errors import StoreTooNew
from mwnode.store.layout import DATABASES
from mwnode.store.trim import trim_group
from mwnode.store.verify import verify
from mwnode.testing import Harness
from tests.store.archives import archived

Entry = tuple[bytes, bytes]
Edit = Callable[[random.Random, Any, Entry], None]


@pytest.fixture(scope="module")
def worked(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A file in which every named database but ``trims`` has entries."""
    home = tmp_path_factory.mktemp("worked") / "home"
    harness = Harness(home)
    archived(harness)
    mission = harness.mission()
    source = mission.authorize(budget={"wallClockSecondsLimit": 100}).run(content=bytes(range(256)) * 2000)
    running = mission.authorize(budget={"wallClockSecondsLimit": 100})
    running.offer()
    running.accept()
    running.start()
    running.publish(b"made of it", sourceArtifactHashes=[source])
    for garbage in (b"garbage", b"{}"):
        harness.node.submit(garbage, EMBEDDED, lambda outcome: None)
    harness.node.call(lambda txn: txn.put_cursor("urn:mwnode:agent:x", mission.group_id, 3)).result()
    harness.node.call(lambda txn: hold_chunks(txn, 7, [(0, blake3(b"left").digest(), b"left")])).result()  # type: ignore[arg-type]
    harness.close()
    return home / "node.mdb"


@pytest.fixture(scope="module")
def trimmed(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A file in which a Group was trimmed."""
    home = tmp_path_factory.mktemp("trimmed") / "home"
    harness = Harness(home)
    mission = archived(harness)
    trim_group(lambda step: harness.node.call(step).result(), mission.group_id)  # type: ignore[arg-type]
    harness.close()
    return home / "node.mdb"


def flip_value(draw: random.Random, put: Any, entry: Entry) -> None:
    key, value = entry
    if value:
        damaged = bytearray(value)
        damaged[draw.randrange(len(value))] ^= 1 << draw.randrange(8)
        put(key, bytes(damaged))


def flip_key(draw: random.Random, put: Any, entry: Entry) -> None:
    key, value = entry
    damaged = bytearray(key)
    damaged[draw.randrange(len(key))] ^= 1 << draw.randrange(8)
    put(key, None)
    put(bytes(damaged), value)


def delete(draw: random.Random, put: Any, entry: Entry) -> None:
    put(entry[0], None)


def cut(draw: random.Random, put: Any, entry: Entry) -> None:
    key, value = entry
    if value:
        put(key, value[: draw.randrange(len(value))])


def test_the_files_are_whole_and_every_database_holds_something(worked: Path, trimmed: Path) -> None:
    for path, empty in ((worked, ["trims"]), (trimmed, ["uploads", "cursors", "audit", "derivations"])):
        assert verify(path).findings == ()
        store = LmdbStore.open(path, read_only=True)
        with store.read() as view:
            assert sorted(db for db in DATABASES if not view.pages.count(db)) == sorted(empty)
        store.close()


@pytest.mark.parametrize("edit", [flip_value, flip_key, delete, cut])
@pytest.mark.parametrize("db", DATABASES)
def test_damage_to_any_entry_is_found(
    worked: Path, trimmed: Path, tmp_path: Path, db: str, edit: Edit, scale: Callable[[int, int], int]
) -> None:
    source = trimmed if db == "trims" else worked
    draw = random.Random(f"{db} {edit.__name__}")
    path = tmp_path / "node.mdb"
    with opened(source, db) as (env, handle), env.begin(db=handle) as txn:
        entries = [(bytes(key), bytes(value)) for key, value in txn.cursor()]
    for entry in draw.sample(entries, min(len(entries), scale(2, 200))):
        shutil.copy(source, path)
        done: list[tuple[bytes, bytes | None]] = []
        edit(draw, lambda key, value, done=done: done.append((key, value)), entry)
        with opened(path, db) as (env, handle), env.begin(write=True, db=handle) as txn:
            for key, value in done:
                txn.delete(key) if value is None else txn.put(key, value)
        assert not done or not verify(path).ok, f"{entry!r} became {done!r}"


def damaged_somewhere(path: Path, draw: random.Random, times: int) -> None:
    """So many entries anywhere in the file are damaged, most in the databases that hold signed documents."""
    for _ in range(times):
        db = draw.choice([*DATABASES, *["log", "commands", "admissions"] * 6])
        with opened(path, db) as (env, handle), env.begin(write=True, db=handle) as txn:
            entries = [(bytes(key), bytes(value)) for key, value in txn.cursor()]
            if not entries:
                continue

            def put(key: bytes, value: bytes | None, txn: Any = txn) -> None:
                txn.delete(key) if value is None else txn.put(key, value)

            draw.choice([flip_value, flip_value, flip_key, delete, cut])(draw, put, draw.choice(entries))


def test_several_processes_come_to_the_verdict_of_one_whatever_is_damaged(
    worked: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, scale: Callable[[int, int], int]
) -> None:
    monkeypatch.setattr(proving, "BATCH", 5)
    monkeypatch.setattr(proving, "HELP_FROM", 1)
    path = tmp_path / "node.mdb"
    for seed in range(scale(4, 200)):
        draw = random.Random(seed)
        shutil.copy(worked, path)
        damaged_somewhere(path, draw, draw.randint(0, 6))
        alone = verdict(path, 1)
        for jobs in (2, 4):
            assert verdict(path, jobs) == alone, f"seed {seed}, {jobs} processes"


def verdict(path: Path, jobs: int) -> Report | str:
    """The report, or why there is none: a damaged format may look like a newer one."""
    try:
        return verify(path, jobs=jobs)
    except StoreTooNew as error:
        return str(error)


def test_flipped_bytes_of_the_file_get_one_verdict_from_however_many_processes(
    worked: Path, tmp_path: Path, scale: Callable[[int, int], int]
) -> None:
    path = tmp_path / "node.mdb"
    whole = worked.read_bytes()
    for seed in range(scale(2, 60)):
        draw = random.Random(seed)
        raw = bytearray(whole)
        for _ in range(draw.randint(1, 8)):
            raw[draw.randrange(8192, len(raw))] ^= 1 << draw.randrange(8)
        path.write_bytes(raw)
        alone, several = verify_apart(path), verify_apart(path, jobs=3)
        assert several == alone, f"seed {seed}"
        assert list(tmp_path.iterdir()) == [path]


@contextmanager
def opened(path: str | Path, db: str) -> Iterator[tuple[lmdb.Environment, Any]]:
    """One named database of a file, for damage."""
    env = lmdb.open(str(path), subdir=False, max_dbs=len(DATABASES) + 8, map_size=1 << 28, sync=False)
    try:
        yield env, env.open_db(db.encode(), create=False)
    finally:
        env.close()
