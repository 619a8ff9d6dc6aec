"""Artifact bytes: in and out as they were, shared where they are alike, gone when nobody finished them."""

from __future__ import annotations

import hashlib
import random
import resource
import subprocess
import sys
import threading
from collections.abc import Iterator
from pathlib import Path

import pytest

from mwnode.protocol.errors import InvalidCommand, ProtocolViolation
from mwnode.protocol.limits import Limits
from mwnode.store.artifacts import Artifacts, DirectWriter
from mwnode.store.chunking import CHUNK_BYTES_MAX, CHUNK_BYTES_MIN, Chunker
from mwnode.store.collecting import Collector
from mwnode.store.environment import LmdbStore
from mwnode.store.errors import StoreCorrupt
from mwnode.testing import ManualClock
from tests.store.damage import change, flip, keys

MIB = 1024**2


@pytest.fixture
def store(tmp_path: Path) -> Iterator[LmdbStore]:
    opened = LmdbStore.open(tmp_path / "node.mdb", durable=False)
    yield opened
    opened.close()


@pytest.fixture
def clock() -> ManualClock:
    return ManualClock()


@pytest.fixture
def artifacts(store: LmdbStore, clock: ManualClock) -> Artifacts:
    return Artifacts(store, DirectWriter(store, clock), Limits())


def content(size: int, seed: int = 1) -> bytes:
    return random.Random(seed).randbytes(size)


def put(artifacts: Artifacts, data: bytes, piece: int = MIB) -> str:
    writer = artifacts.begin_put()
    for start in range(0, len(data), piece):
        writer.write(data[start : start + piece])
    return writer.finish().content_hash


def left_over(store: LmdbStore) -> dict[str, int]:
    """How much of Artifacts is in the file."""
    with store.read() as view:
        return {db: view.pages.count(db) for db in ("artifacts", "chunks", "chunk_references", "uploads")}


NOTHING = {"artifacts": 0, "chunks": 0, "chunk_references": 0, "uploads": 0}
SIZES = {
    "nothing at all": 0,
    "one byte": 1,
    "just a smallest chunk": CHUNK_BYTES_MIN,
    "just a largest chunk": CHUNK_BYTES_MAX,
    "one byte more than a largest chunk": CHUNK_BYTES_MAX + 1,
    "several loads": 11 * MIB + 17,
}


@pytest.mark.req("R-13.1-02")
@pytest.mark.parametrize("size", SIZES.values(), ids=list(SIZES))
@pytest.mark.parametrize("piece", [4096, 3 * MIB])
def test_what_went_in_comes_out_under_its_sha256(artifacts: Artifacts, size: int, piece: int) -> None:
    data = content(size)
    content_hash = put(artifacts, data, piece)
    assert content_hash == f"sha256:{hashlib.sha256(data).hexdigest()}"
    assert b"".join(artifacts.read(content_hash)) == data
    info = artifacts.info(content_hash)
    assert info is not None
    assert info.size == size


RANGES = {
    "the beginning": (0, 10),
    "the end": (5 * MIB - 10, None),
    "inside one chunk": (1000, 2000),
    "over several chunks": (100, 4 * MIB),
    "beyond the end": (5 * MIB - 5, 9 * MIB),
    "nothing": (1000, 1000),
    "all of it": (0, 5 * MIB),
    "behind the end": (5 * MIB, None),
}


@pytest.mark.parametrize("start,stop", RANGES.values(), ids=list(RANGES))
def test_a_range_is_exactly_those_bytes(artifacts: Artifacts, start: int, stop: int | None) -> None:
    data = content(5 * MIB)
    content_hash = put(artifacts, data)
    assert b"".join(artifacts.read(content_hash, start, stop)) == data[start:stop]


@pytest.mark.req("R-13.1-21", "R-5-05")
def test_the_same_bytes_again_are_one_artifact(artifacts: Artifacts, store: LmdbStore) -> None:
    data = content(3 * MIB)
    writer = artifacts.begin_put()
    writer.write(data)
    assert writer.finish().new
    before = left_over(store)
    again = artifacts.begin_put()
    again.write(data)
    assert not again.finish().new
    assert left_over(store) == before
    assert [info.size for info in artifacts.list()] == [len(data)]


def test_two_versions_share_what_they_share(artifacts: Artifacts, store: LmdbStore) -> None:
    data = content(20 * MIB)
    put(artifacts, data)
    before = left_over(store)["chunks"]
    put(artifacts, data[: 7 * MIB] + b"an insertion" + data[7 * MIB :])
    assert left_over(store)["chunks"] <= before + 3
    put(artifacts, data + content(10_000, seed=2))
    assert left_over(store)["chunks"] <= before + 5


def test_chunks_are_cut_alike_however_the_stream_arrives() -> None:
    data = content(9 * MIB)

    def cut(piece: int) -> list[int]:
        chunker = Chunker()
        sizes = []
        for start in range(0, len(data), piece):
            sizes += [len(chunk) for chunk in chunker.feed(data[start : start + piece])]
        return sizes + [len(chunk) for chunk in chunker.rest()]

    expected = cut(len(data))
    assert sum(expected) == len(data)
    assert all(CHUNK_BYTES_MIN <= size <= CHUNK_BYTES_MAX for size in expected[:-1])
    assert [cut(piece) for piece in (1000, 65_536, 5 * MIB)] == [expected] * 3


# --- uploads that do not end well ---


def test_other_bytes_than_claimed_are_refused_and_leave_nothing(artifacts: Artifacts, store: LmdbStore) -> None:
    writer = artifacts.begin_put()
    writer.write(content(6 * MIB))
    with pytest.raises(InvalidCommand, match="send them again"):
        writer.finish(f"sha256:{'0' * 64}")
    assert left_over(store) == NOTHING


def test_the_claimed_bytes_are_accepted(artifacts: Artifacts) -> None:
    data = content(1000)
    writer = artifacts.begin_put()
    writer.write(data)
    claimed = f"sha256:{hashlib.sha256(data).hexdigest()}"
    assert writer.finish(claimed).content_hash == claimed


def test_an_aborted_upload_leaves_nothing_and_spares_what_others_share(artifacts: Artifacts, store: LmdbStore) -> None:
    data = content(9 * MIB)
    kept = put(artifacts, data[: 6 * MIB])
    before = left_over(store)
    writer = artifacts.begin_put()
    writer.write(data)
    writer.abort()
    writer.abort()
    assert left_over(store) == before
    assert b"".join(artifacts.read(kept)) == data[: 6 * MIB]


def test_an_upload_that_a_dead_process_left_is_gone_after_the_next_start(tmp_path: Path) -> None:
    path = tmp_path / "node.mdb"
    script = (
        "import os, sys; from pathlib import Path; from mwnode.store.environment import LmdbStore\n"
        "from mwnode.store.artifacts import *; from mwnode.protocol.limits import Limits\n"
        "from mwnode.testing import ManualClock; from tests.store.test_artifacts import content\n"
        "store = LmdbStore.open(Path(sys.argv[1]))\n"
        "writer = Artifacts(store, DirectWriter(store, ManualClock()), Limits()).begin_put()\n"
        "writer.write(content(12 * 1024 ** 2)); os.kill(os.getpid(), 9)"
    )
    done = subprocess.run([sys.executable, "-c", script, str(path)], check=False, capture_output=True)
    assert done.returncode == -9, done.stderr
    store = LmdbStore.open(path)
    assert left_over(store)["uploads"] > 0
    Artifacts(store, DirectWriter(store, ManualClock()), Limits())
    assert left_over(store) == NOTHING
    store.close()


def test_more_than_the_largest_size_is_refused_and_leaves_nothing(store: LmdbStore, clock: ManualClock) -> None:
    artifacts = Artifacts(store, DirectWriter(store, clock), Limits(artifact_bytes=5 * MIB))
    writer = artifacts.begin_put()
    writer.write(content(5 * MIB))
    with pytest.raises(ProtocolViolation, match="artifact_bytes"):
        writer.write(b"x")
    assert left_over(store) == NOTHING
    assert len(put(artifacts, content(5 * MIB))) == 71


def test_uploads_side_by_side_do_not_disturb_each_other(artifacts: Artifacts, store: LmdbStore) -> None:
    data = [content(5 * MIB, seed) + content(MIB, 99) for seed in range(4)]
    hashes: dict[int, str] = {}

    def upload(number: int) -> None:
        writer = artifacts.begin_put()
        for start in range(0, len(data[number]), 100_000):
            writer.write(data[number][start : start + 100_000])
        if number == 3:
            writer.abort()
        else:
            hashes[number] = writer.finish().content_hash

    threads = [threading.Thread(target=upload, args=(number,)) for number in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    for number, content_hash in hashes.items():
        assert b"".join(artifacts.read(content_hash)) == data[number]
    assert left_over(store)["uploads"] == 0
    assert left_over(store)["artifacts"] == 3


# --- reading what is damaged or gone ---


@pytest.mark.req("R-13.1-20")
def test_a_flipped_byte_fails_the_retrieval_before_it_is_handed_out(artifacts: Artifacts, store: LmdbStore) -> None:
    data = content(4 * MIB)
    content_hash = put(artifacts, data)
    key = keys(store, "chunks")[0]
    change(store, "chunks", key, flip(100))
    got: list[bytes] = []
    with pytest.raises(StoreCorrupt, match=content_hash):
        got.extend(artifacts.read(content_hash))
    assert data.startswith(b"".join(got)), "what was handed out before was right"
    change(store, "chunks", key, flip(100))
    change(store, "chunks", key, lambda value: None)
    with pytest.raises(StoreCorrupt, match="missing"):
        list(artifacts.read(content_hash))


def test_chunks_in_a_wrong_order_fail_the_retrieval(artifacts: Artifacts, store: LmdbStore) -> None:
    content_hash = put(artifacts, content(4 * MIB))

    def swap(manifest: bytes) -> bytes:
        return manifest[:-72] + manifest[-36:] + manifest[-72:-36]

    change(store, "artifacts", bytes.fromhex(content_hash[7:]), swap)
    with pytest.raises(StoreCorrupt):
        list(artifacts.read(content_hash))


@pytest.mark.parametrize("content_hash", [f"sha256:{'0' * 64}", "0" * 64, "sha256:xyz", ""])
def test_an_unknown_hash_is_unknown(artifacts: Artifacts, content_hash: str) -> None:
    assert artifacts.info(content_hash) is None
    with pytest.raises(KeyError):
        artifacts.read(content_hash)


# --- collecting ---


def test_old_artifacts_that_nobody_published_are_collected(
    artifacts: Artifacts, store: LmdbStore, clock: ManualClock
) -> None:
    data = content(3 * MIB)
    put(artifacts, data)
    clock.advance(3600)
    young = put(artifacts, data + b"more")
    collecting = Collector(store, artifacts, store.write)
    gone = collecting.collect(clock.now())
    assert (gone.artifacts, gone.bytes) == (1, 3 * MIB)
    assert [info.content_hash for info in artifacts.list()] == [young]
    assert b"".join(artifacts.read(young)) == data + b"more", "shared chunks stay"
    assert collecting.collect(clock.now()).artifacts == 0
    assert collecting.collect(clock.now().plus(1)).artifacts == 1
    assert left_over(store) == NOTHING


@pytest.mark.long
def test_an_artifact_larger_than_memory_passes_through(tmp_path: Path) -> None:
    """10 GiB with less than 100 MiB of memory of its own; needs as much room on the disk."""
    script = (
        "import sys, hashlib, resource; from pathlib import Path\n"
        "from mwnode.store.environment import LmdbStore; from mwnode.store.artifacts import *\n"
        "from mwnode.protocol.limits import Limits; from mwnode.testing import ManualClock\n"
        "from tests.store.test_artifacts import content, private_memory\n"
        "store = LmdbStore.open(Path(sys.argv[1]))\n"
        "artifacts = Artifacts(store, DirectWriter(store, ManualClock()), Limits())\n"
        "writer = artifacts.begin_put(); block = content(1024 ** 2); most = 0\n"
        "for number in range(10 * 1024):\n"
        "    writer.write(number.to_bytes(8, 'big') + block[8:]); most = max(most, private_memory())\n"
        "info = writer.finish(); whole = hashlib.sha256()\n"
        "for piece in artifacts.read(info.content_hash):\n"
        "    whole.update(piece); most = max(most, private_memory())\n"
        "assert 'sha256:' + whole.hexdigest() == info.content_hash; print(most)"
    )
    done = subprocess.run([sys.executable, "-c", script, str(tmp_path / "node.mdb")], capture_output=True, check=True)
    assert int(done.stdout) < 100 * MIB


def private_memory() -> int:
    """Bytes of this process that no file backs."""
    for line in Path("/proc/self/status").read_text().splitlines():
        if line.startswith("RssAnon:"):
            return int(line.split()[1]) * 1024
    return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * 1024
