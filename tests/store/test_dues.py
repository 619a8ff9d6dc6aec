"""The due index is made again when its entries are gone or wrong, and a row that was looked at is not taken for one
that was lost."""

from __future__ import annotations

from collections.abc import Callable

import pytest

from mwnode.authority.state import LEASES, MEMBERSHIPS
from mwnode.protocol.instants import parse
from mwnode.store.dues import entry_faults, is_sound, rows_without_entry
from mwnode.store.layout import PARKED
from mwnode.testing import Harness, WorkHandle
from tests.store.damage import change, flip, keys


def working(mwnode: Harness) -> WorkHandle:
    work = mwnode.mission().authorize()
    work.offer()
    work.accept()
    work.start()
    return work


Damage = Callable[[Harness], None]


def lose_all(mwnode: Harness) -> None:
    for key in keys(mwnode.node.store, "due"):
        change(mwnode.node.store, "due", key, lambda value: None)


def flip_every_value(mwnode: Harness) -> None:
    for key in keys(mwnode.node.store, "due"):
        change(mwnode.node.store, "due", key, flip(3))


def move_every_key(mwnode: Harness) -> None:
    store = mwnode.node.store
    handle = store.file.dbs["due"]
    with store.file.lmdb.begin(write=True) as txn:
        for key, value in [*txn.cursor(handle)]:
            txn.delete(key, db=handle)
            txn.put(bytes([key[0] ^ 0x10]) + key[1:], value, db=handle)


@pytest.mark.parametrize("damage", [lose_all, flip_every_value, move_every_key])
def test_leases_still_end_after_the_index_was_damaged(mwnode: Harness, damage: Damage) -> None:
    work = working(mwnode)
    assert is_sound_now(mwnode)
    damage(mwnode)
    assert not is_sound_now(mwnode)
    mwnode.restart()
    assert is_sound_now(mwnode)
    with mwnode.node.store.read() as view:
        assert list(rows_without_entry(view)) == []
    before = len(mission_events(mwnode, work))
    mwnode.advance(100_000)
    now = mwnode.clock.now()
    expired = [kind for kind in mission_events(mwnode, work)[before:] if kind.endswith("lease_expired")]
    assert len(expired) == 3, "of execution, ownership and coordination"
    with mwnode.node.store.read() as view:
        assert all(row.lease.state != "active" or parse(row.lease.expires_at) > now for row in view.each(LEASES))


def mission_events(mwnode: Harness, work: WorkHandle) -> list[str]:
    return [event["kind"] for event in work.mission.events()]


def is_sound_now(mwnode: Harness) -> bool:
    with mwnode.node.store.read() as view:
        return is_sound(view)


def test_what_was_looked_at_is_kept_apart_and_not_looked_at_again(mwnode: Harness) -> None:
    mission = mwnode.mission()
    work = mission.authorize()
    work.run()
    with mwnode.node.store.read() as view:
        assert any(row.idle_since for row in view.each(MEMBERSHIPS))
    mwnode.advance(5)
    for _ in range(3):
        mwnode.advance(200_000)
    store = mwnode.node.store
    with store.read() as view:
        assert list(entry_faults(view)) == []
        assert list(rows_without_entry(view)) == []
        parked = [key for key in keys(store, "due") if key.startswith(PARKED)]
        upcoming = view.next_due()
    # Nothing that is parked makes the timer turn.
    assert upcoming is None or upcoming > mwnode.clock.now()
    mwnode.restart()
    assert [key for key in keys(mwnode.node.store, "due") if key.startswith(PARKED)] == parked
