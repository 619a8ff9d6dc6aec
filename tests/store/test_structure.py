"""Damage to the pages themselves: named, never a traceback, never an endless check."""

from __future__ import annotations

import faulthandler
import json
import os
import random
import shutil
import stat
import sys
from collections.abc import Callable
from pathlib import Path

import pytest

from mwnode.store.apart import verify_apart
from mwnode.store.environment import LmdbStore
from mwnode.store.errors import StoreCorrupt, StoreMissing, StoreTooNew
from mwnode.store.layout import U64
from mwnode.store.verify import verify
from mwnode.testing import Harness
from tests.cli.support import cli
from tests.patience import PATIENCE_SECONDS
from tests.store.archives import archived
from tests.store.damage import keys

PAGE = 4096


@pytest.fixture(scope="module")
def worked(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A HOME in which Missions were done."""
    home = tmp_path_factory.mktemp("worked") / "home"
    harness = Harness(home)
    archived(harness)
    for _ in range(3):
        harness.mission().authorize().run(content=random.Random(1).randbytes(40_000))
    harness.close()
    return home


@pytest.fixture
def home(worked: Path, tmp_path: Path) -> Path:
    return Path(shutil.copytree(worked, tmp_path / "home"))


def test_a_file_that_is_whole_gives_the_same_report_from_another_process(home: Path) -> None:
    told: list[str] = []
    report = verify_apart(home / "node.mdb", progress=lambda what, done, total: told.append(what))
    assert report == verify(home / "node.mdb")
    assert report.ok
    assert {"events", "commands", "rows"} <= set(told)
    with pytest.raises(StoreMissing, match="there is no store"):
        verify_apart(home / "elsewhere.mdb")


def flip_bits(data: bytearray, draw: random.Random) -> None:
    for _ in range(50):
        data[draw.randrange(len(data))] ^= 1 << draw.randrange(8)


def flip_page_header(data: bytearray, draw: random.Random) -> None:
    data[draw.randrange(len(data) // PAGE) * PAGE + draw.randrange(48)] ^= draw.randrange(1, 256)


def flip_root(data: bytearray, draw: random.Random) -> None:
    data[draw.randrange(2 * PAGE)] ^= draw.randrange(1, 256)


def zero_page(data: bytearray, draw: random.Random) -> None:
    start = draw.randrange(2, len(data) // PAGE) * PAGE
    data[start : start + PAGE] = bytes(PAGE)


def cut_off(data: bytearray, draw: random.Random) -> None:
    del data[draw.randrange(len(data)) :]


@pytest.mark.parametrize("damage", [flip_bits, flip_page_header, flip_root, zero_page, cut_off])
def test_damaged_pages_give_a_report_or_one_plain_refusal(
    home: Path, damage: Callable[[bytearray, random.Random], None], scale: Callable[[int, int], int]
) -> None:
    draw = random.Random(damage.__name__)
    store = home / "node.mdb"
    whole = store.read_bytes()
    for _ in range(scale(5, 300)):
        data = bytearray(whole)
        damage(data, draw)
        store.write_bytes(data)
        try:
            report = verify_apart(store, stalled_seconds=30)
        except StoreTooNew:
            # A digit of the format was hit.
            continue
        # What lies on free pages is no part of the store.
        assert report.ok == (not report.findings)
    store.write_bytes(whole)
    assert verify_apart(store).ok


def test_a_check_that_is_killed_by_the_file_is_a_finding(home: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Every second page of the branches and leaves is gone: LMDB asserts, and takes the process with it."""
    store = home / "node.mdb"
    data = bytearray(store.read_bytes())
    data[2 * PAGE :] = bytes(len(data) - 2 * PAGE)
    store.write_bytes(data)
    done = cli("verify", "--home", home)
    assert done.status == 1
    assert "structure: " in done.out
    assert "restore a backup" in done.out
    assert "Traceback" not in done.out + done.err
    done = cli("verify", "--home", home, "--json")
    assert done.status == 1
    document = json.loads(done.out)
    assert set(document) >= {"ok", "groups", "events", "artifacts", "findings"}
    assert not document["ok"]
    assert document["findings"][-1]["kind"] == "structure"


# How long nothing is said by one that stalls has to be longer than what an interpreter needs to start.
@pytest.mark.parametrize(
    "ending, stalled_seconds",
    [("os.abort()", PATIENCE_SECONDS), ("time.sleep(3600)", 5.0), ("os._exit(3)", PATIENCE_SECONDS)],
)
def test_a_child_that_ends_or_stalls_keeps_what_it_had_found(
    home: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, ending: str, stalled_seconds: float
) -> None:
    script = tmp_path / "python"
    lines = ['{"progress":["events",1,2]}', '{"finding":{"kind":"hash","where":"there","detail":"so"}}']
    said = f"import os, time\nfor line in {lines!r}: print(line, flush=True)\n{ending}\n"
    script.write_text(f"#!{sys.executable}\n{said}")
    script.chmod(script.stat().st_mode | stat.S_IXUSR)
    monkeypatch.setattr(sys, "executable", str(script))
    report = verify_apart(home / "node.mdb", stalled_seconds=stalled_seconds)
    assert not report.ok
    assert [finding.kind for finding in report.findings] == ["hash", "structure"]
    assert "events" in report.findings[-1].detail


def test_a_command_key_with_a_high_bit_ends_no_search_late(home: Path) -> None:
    store = LmdbStore.open(home / "node.mdb", durable=False)
    handle = store.file.dbs["commands"]
    for bit in (31, 45, 62):
        key = keys(store, "commands")[5]
        flipped = U64.pack(int.from_bytes(key, "big") ^ 1 << bit)
        with store.file.lmdb.begin(write=True, db=handle) as txn:
            value = txn.pop(key) or b""
            txn.put(flipped, value)
        with store.read() as view:
            assert view.command_number(bytes(32)) is None
        assert ("command", f"command {int.from_bytes(flipped, 'big')}") in {
            (finding.kind, finding.where) for finding in verify(store).findings
        }
        with store.file.lmdb.begin(write=True, db=handle) as txn:
            txn.pop(flipped)
            txn.put(key, value)
    assert verify(store).ok
    store.close()


def test_reads_of_damaged_pages_raise_our_error(home: Path) -> None:
    path = home / "node.mdb"
    data = bytearray(path.read_bytes())
    draw = random.Random(3)
    seen = 0
    for _ in range(40):
        damaged = bytearray(data)
        page = draw.randrange(2, len(data) // PAGE)
        # The page's flags: LMDB says that it is corrupted, and does not follow it.
        damaged[page * PAGE + 10] ^= 0x0F
        path.write_bytes(damaged)
        pid = os.fork()
        if not pid:
            os._exit(_reads(path))
        _, status = os.waitpid(pid, 0)
        assert not os.WIFEXITED(status) or os.WEXITSTATUS(status) in (0, 7)
        seen += os.WIFEXITED(status) and os.WEXITSTATUS(status) == 7
    assert seen > 0


def _reads(path: Path) -> int:
    """Read everything: 0 when all could be read, 7 when our error said what is wrong, 9 for any other."""
    faulthandler.disable()
    try:
        store = LmdbStore.open(path, read_only=True)
        with store.read() as view:
            for db in view.pages.dbs:
                for _ in view.pages.scan(db, b""):
                    pass
    except StoreCorrupt:
        return 7
    except BaseException:
        return 9
    return 0
