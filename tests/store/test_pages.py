"""Reading many entries at once gives what reading them one by one gives."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from mwnode.store.environment import LmdbStore, LmdbWriting
from mwnode.store.pages import TAKEN_AT_ONCE

KEYS = [number.to_bytes(2, "big") for number in range(3 * TAKEN_AT_ONCE)]


@pytest.mark.parametrize("start", [0, 1, TAKEN_AT_ONCE, len(KEYS) - 1, len(KEYS)])
@pytest.mark.parametrize("length", [0, 1, TAKEN_AT_ONCE - 1, TAKEN_AT_ONCE, TAKEN_AT_ONCE + 1, len(KEYS)])
@pytest.mark.parametrize("limit", [1, TAKEN_AT_ONCE, TAKEN_AT_ONCE + 1, 10 * len(KEYS)])
def test_entries_are_taken_up_to_the_stop_and_the_limit(store: LmdbStore, start: int, length: int, limit: int) -> None:
    first, stop = start.to_bytes(2, "big"), (start + length).to_bytes(2, "big")
    expected = [(key, key * 2) for key in KEYS if first <= key < stop][:limit]
    with store.read() as view:
        assert view.pages.take("places", first, stop, limit) == expected
        assert view.pages.values("places", [key for key, _ in expected]) == [value for _, value in expected]


def test_what_is_missing_is_left_out_and_what_waits_to_be_written_is_seen(store: LmdbStore) -> None:
    with store.read() as view:
        assert view.pages.values("places", [b"none", KEYS[3]]) == [KEYS[3] * 2]

    def change(txn: LmdbWriting) -> None:
        txn.pages.put("places", b"\x00\x01\x01", b"new")
        assert txn.pages.take("places", KEYS[1], KEYS[3], 9)[1] == (b"\x00\x01\x01", b"new")
        assert txn.pages.values("places", [b"\x00\x01\x01"]) == [b"new"]

    store.write(change)


@pytest.fixture(scope="module")
def store(tmp_path_factory: pytest.TempPathFactory) -> Iterator[LmdbStore]:
    path = tmp_path_factory.mktemp("pages") / "node.mdb"
    store = LmdbStore.open(path, durable=False)
    store.write(lambda txn: [txn.pages.put("places", key, key * 2) for key in KEYS])
    yield store
    store.close()
