"""A HOME on a medium that cannot be written: proven, copied and explained there, and never taken for an empty one."""

from __future__ import annotations

import subprocess
from collections.abc import Iterator
from pathlib import Path

import pytest

from mwnode.store.environment import LmdbStore
from mwnode.store.errors import StoreReadOnly
from mwnode.store.verify import verify
from mwnode.testing import Harness
from tests.cli.support import cli
from tests.crash.disks import small_disk
from tests.store.archives import archived, say


@pytest.fixture
def read_only(tmp_path: Path) -> Iterator[Path]:
    """A HOME with an archived Group and one at work, on a disk that has become read-only."""
    with small_disk(tmp_path / "disk", 16) as disk:
        harness = Harness(disk / "home")
        archived(harness)
        say(harness.mission(), "hello")
        harness.close()
        remount(disk, "ro")
        yield disk / "home"


def remount(disk: Path, how: str) -> None:
    subprocess.run(["mount", "-o", f"remount,{how}", str(disk)], check=True)


def names(home: Path) -> set[str]:
    return {path.name for path in home.iterdir()}


def test_what_only_reads_works_there_and_leaves_nothing(read_only: Path, tmp_path: Path) -> None:
    before = names(read_only)
    report = cli("verify", "--home", read_only, "--json").json
    assert (report["ok"], report["groups"]) == (True, 2)
    told = cli("doctor", "--home", read_only)
    assert told.status == 1
    assert "cannot be written by this user" in told.out
    for name, words in (("copy.mdb", ("backup",)), ("bundle", ("export",))):
        assert cli(*words, tmp_path / name, "--home", read_only).status == 0
    assert cli("verify", tmp_path / "copy.mdb", "--json").json["ok"]
    assert names(read_only) == before
    assert {path.name for path in tmp_path.iterdir()} == {"disk", "copy.mdb", "bundle"}


@pytest.mark.parametrize(
    "words", [("compact",), ("doctor", "--rebuild"), ("serve", "--port", "0"), ("agent", "add", "late")]
)
def test_what_would_write_says_why_it_does_not(read_only: Path, words: tuple[str, ...]) -> None:
    before = (read_only / "node.mdb").read_bytes()
    done = cli(*words, "--home", read_only)
    assert done.status == 1
    assert "Read-only file system" in done.err
    assert "Traceback" not in done.err
    with pytest.raises(StoreReadOnly, match="check the owner and mode"):
        LmdbStore.open(read_only / "node.mdb")
    assert (read_only / "node.mdb").read_bytes() == before
    # Once it can be written again, everything goes on.
    remount(read_only.parent, "rw")
    assert cli("compact", "--home", read_only).status == 0
    assert verify(read_only / "node.mdb").ok
