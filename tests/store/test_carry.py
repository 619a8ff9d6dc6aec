"""Copies of a live store, and a compacted one in its place."""

from __future__ import annotations

import itertools
import threading
from pathlib import Path

import pytest

from mwnode.store.carry import TargetExists, backup, compact, describe
from mwnode.store.environment import LmdbStore
from mwnode.store.errors import StoreBusy, StoreMissing
from mwnode.store.verify import verify
from mwnode.testing import Harness
from tests.store.makers import G1, append, head


@pytest.mark.parametrize("compacting", [False, True])
def test_a_backup_of_a_node_at_work_is_one_state_and_restores_with_a_plain_copy(
    mwnode: Harness, tmp_path: Path, compacting: bool
) -> None:
    mission = mwnode.mission()
    stop = threading.Event()

    def work() -> None:
        for number in itertools.count():
            if stop.is_set():
                return
            mission.authorize(goal=f"goal {number}")

    worker = threading.Thread(target=work)
    worker.start()
    try:
        copies = [backup(mwnode.node.store, tmp_path / f"copy-{number}.mdb", compact=compacting) for number in range(3)]
    finally:
        stop.set()
        worker.join()
    assert [copy.groups for copy in copies] == [1, 1, 1]
    for copy in copies:
        report = verify(copy.path)
        assert report.ok, report.findings
        assert report.events == copy.events
        assert copy.path.stat().st_mode & 0o777 == 0o600
    mwnode.node.close()
    path = mwnode.node.store.path
    path.write_bytes(copies[-1].path.read_bytes())
    mwnode.restart()
    assert mission.state == "active"
    assert mission.authorize(goal="after the restoration").row is not None
    assert verify(mwnode.node.store).ok


def test_a_backup_never_overwrites(tmp_path: Path) -> None:
    store = LmdbStore.open(tmp_path / "node.mdb", durable=False)
    target = tmp_path / "copy.mdb"
    target.write_bytes(b"precious")
    with pytest.raises(TargetExists):
        backup(store, target)
    assert target.read_bytes() == b"precious"
    store.close()


def test_a_backup_to_nowhere_says_so_and_leaves_nothing(tmp_path: Path) -> None:
    store = LmdbStore.open(tmp_path / "node.mdb", durable=False)
    with pytest.raises(StoreMissing, match="could not be written: No such file or directory: make the directory"):
        backup(store, tmp_path / "missing" / "copy.mdb")
    assert not (tmp_path / "missing").exists()
    store.close()


def test_a_backup_of_nothing_is_refused(tmp_path: Path) -> None:
    with pytest.raises(StoreMissing):
        backup(tmp_path / "node.mdb", tmp_path / "copy.mdb")
    assert not (tmp_path / "copy.mdb").exists()


def test_compacting_gives_back_the_room_of_what_is_gone(tmp_path: Path) -> None:
    path = tmp_path / "node.mdb"
    store = LmdbStore.open(path, durable=False)
    append(store, 1, 50)
    for number in range(200):
        store.write(lambda txn, number=number: txn.put_meta(f"{number}", b"x" * 50_000))  # type: ignore[misc]
    store.write(lambda txn: [txn.pages.delete("meta", f"{number}".encode()) for number in range(200)])
    with pytest.raises(StoreBusy):
        compact(path)
    store.close()
    before, after = compact(path)
    assert before > 10_000_000 > 1_000_000 > after
    assert describe(path).events == 50
    again = LmdbStore.open(path, durable=False)
    append(again, 51, 60)
    assert head(again) == 60
    with again.read() as view:
        assert [stored.sequence for stored in view.events(G1, 0, 100)] == list(range(1, 61))
    again.close()
