"""A file of an older format is migrated in one transaction, after a copy."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import lmdb
import pytest

from mwnode.store import doctor, mapped_file, migration
from mwnode.store.environment import LmdbStore
from mwnode.store.errors import StoreFull, StoreTooNew
from mwnode.store.layout import FORMAT
from mwnode.store.verify import verify
from mwnode.testing import Harness
from tests.store.makers import append, head


def format_of(path: Path) -> bytes | None:
    with lmdb.open(str(path), subdir=False, max_dbs=64, readonly=True) as env:
        handle = env.open_db(b"meta", create=False)
        with env.begin() as txn:
            value: bytes | None = txn.get(b"format", db=handle)
            return value


@pytest.fixture
def old(tmp_path: Path) -> Path:
    """A file of the present format, which the next one will find old."""
    path = tmp_path / "node.mdb"
    store = LmdbStore.open(path, durable=False)
    append(store, 1, 20)
    store.write(lambda txn: txn.put_meta("colour", b"blue"))
    store.close()
    return path


def rename_colour(env: lmdb.Environment, txn: Any) -> None:
    """What the next format does differently: its own name for one value."""
    handle = env.open_db(b"meta", txn=txn, create=False)
    txn.put(b"color", txn.pop(b"colour", db=handle), db=handle)


def next_format(monkeypatch: pytest.MonkeyPatch, step: Any) -> None:
    for module in (migration, mapped_file, doctor):
        monkeypatch.setattr(module, "FORMAT", FORMAT + 1)
    monkeypatch.setitem(migration.STEPS, FORMAT, step)


def test_an_older_file_is_copied_and_migrated_when_it_is_opened(old: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    next_format(monkeypatch, rename_colour)
    taken = old.with_name(f"node.mdb.format-{FORMAT}")
    taken.write_bytes(b"precious")
    store = LmdbStore.open(old, durable=False)
    assert head(store) == 20
    with store.read() as view:
        assert (view.meta("colour"), view.meta("color")) == (None, b"blue")
    append(store, 21, 22)
    store.close()
    assert format_of(old) == b"%d" % (FORMAT + 1)
    copy = old.with_name(f"node.mdb.format-{FORMAT}.2")
    assert taken.read_bytes() == b"precious"
    assert copy.stat().st_mode & 0o777 == 0o600
    # Once is enough, and the older mwnode can go back to its copy; it refuses the new file.
    LmdbStore.open(old, durable=False).close()
    assert sorted(old.parent.glob("node.mdb.format-*")) == [taken, copy]
    monkeypatch.undo()
    with pytest.raises(StoreTooNew, match="install a newer mwnode"):
        LmdbStore.open(old)
    store = LmdbStore.open(copy, durable=False)
    assert head(store) == 20
    with store.read() as view:
        assert view.meta("colour") == b"blue"
    store.close()


def test_a_migration_that_fails_changes_nothing(old: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def fail(env: lmdb.Environment, txn: Any) -> None:
        rename_colour(env, txn)
        raise RuntimeError("half way")

    next_format(monkeypatch, fail)
    for _ in range(2):
        with pytest.raises(RuntimeError, match="half way"):
            LmdbStore.open(old, durable=False)
    assert list(old.parent.glob("node.mdb.format-*")) == []
    monkeypatch.undo()
    store = LmdbStore.open(old, durable=False)
    assert head(store) == 20
    with store.read() as view:
        assert view.meta("colour") == b"blue"
    store.close()


def test_without_room_for_the_copy_nothing_is_migrated(old: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    next_format(monkeypatch, rename_colour)

    def full(env: lmdb.Environment, path: Path, known: int) -> Path:
        return kept(env, path.parent / "missing" / path.name, known)

    kept = mapped_file.keep_copy
    monkeypatch.setattr(mapped_file, "keep_copy", full)
    with pytest.raises(StoreFull, match="copied before it is migrated"):
        LmdbStore.open(old, durable=False)
    assert format_of(old) == b"%d" % FORMAT


def test_an_older_file_is_read_as_it_is(old: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    next_format(monkeypatch, rename_colour)
    store = LmdbStore.open(old, read_only=True)
    assert head(store) == 20
    with store.read() as view:
        assert "it is migrated when a node opens it" in doctor._format(view).advice
    store.close()
    assert format_of(old) == b"%d" % FORMAT


def test_what_was_made_of_artifacts_is_found_in_a_file_of_format_1(tmp_path: Path) -> None:
    home = tmp_path / "home"
    harness = Harness(home)
    work = harness.mission().work("active")
    sources = [work.publish(b"%d" % number) for number in range(3)]
    work.publish(b"made", sourceArtifactHashes=sources)
    work.publish(b"made again", sourceArtifactHashes=sources[:1])
    harness.close()
    path = home / "node.mdb"
    whole = derivations(path)
    assert len(whole) == 4
    # Made what it was before there was that index.
    with lmdb.open(str(path), subdir=False, max_dbs=64, map_size=1 << 28) as env:
        made = env.open_db(b"derivations")
        meta = env.open_db(b"meta")
        with env.begin(write=True) as txn:
            txn.drop(made, delete=True)
            txn.put(b"format", b"1", db=meta)
    assert verify(path).findings == (), "an older file is whole as it is"
    assert derivations(path) == []
    store = LmdbStore.open(path)
    with store.read() as view:
        assert list(view.pages.scan("derivations", b"")) == whole
    store.close()
    assert verify(path).findings == ()
    assert format_of(path.with_name("node.mdb.format-1")) == b"1"
    # Only a file that has no index may say that it is older than that.
    with lmdb.open(str(path), subdir=False, max_dbs=64, map_size=1 << 28) as env:
        meta = env.open_db(b"meta")
        with env.begin(write=True) as txn:
            txn.put(b"format", b"1", db=meta)
    assert {finding.where for finding in verify(path).findings} == {"meta format"}


def derivations(path: Path) -> list[tuple[bytes, bytes]]:
    store = LmdbStore.open(path, read_only=True)
    with store.read() as view:
        found = list(view.pages.scan("derivations", b""))
    store.close()
    return found


def test_every_older_format_has_its_step() -> None:
    assert set(migration.STEPS) == set(range(1, FORMAT))
