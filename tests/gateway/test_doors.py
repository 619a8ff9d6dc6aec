"""Bounds and fair shares of connections (section 17.3)."""

from __future__ import annotations

import pytest

from mwnode.gateway.doors import PATIENCE_SECONDS, SHARE_MIN, Doors, Visit

cut: list[Visit] = []


def enter(doors: Doors, address: str, now: float = 0.0) -> Visit | None:
    cut.clear()
    visit = doors.enter(address, now, lambda: cut.append(visit) if visit is not None else None)
    return visit


def crowd(doors: Doors, address: str, count: int, now: float = 0.0) -> list[Visit]:
    made = [enter(doors, address, now) for _ in range(count)]
    assert None not in made
    return [visit for visit in made if visit is not None]


@pytest.mark.req("R-17.3-01")
def test_no_address_has_more_than_its_share_of_the_unknown() -> None:
    doors = Doors(1000, 32)
    crowd(doors, "192.0.2.1", 32)
    assert enter(doors, "192.0.2.1") is None
    crowd(doors, "192.0.2.2", 32)
    assert len(doors) == 64
    # All is full, and nobody has been silent for long.
    assert enter(doors, "192.0.2.3") is None


@pytest.mark.req("R-17.3-01")
def test_who_has_been_silent_for_longest_makes_room() -> None:
    doors = Doors(1000, 32)
    ones = crowd(doors, "192.0.2.1", 32, now=0.0)
    first = ones[0]
    first.waiting_since = -1.0
    others = crowd(doors, "192.0.2.2", 31, now=0.0)
    later = PATIENCE_SECONDS + 0.5
    crowd(doors, "192.0.2.3", 1, now=later)
    assert enter(doors, "192.0.2.4", later) is not None
    assert cut == [first]
    assert len(doors) == 64
    # Whoever is served at this moment keeps nobody waiting.
    for visit in (*ones, *others):
        visit.waiting_since = None
    assert enter(doors, "192.0.2.5", later + 0.1) is None


@pytest.mark.req("R-17.3-01")
def test_silent_websockets_make_room_for_others() -> None:
    doors = Doors(1000, 16)
    silent = crowd(doors, "192.0.2.1", 16)
    assert sum(doors.greet(visit, 0.0) for visit in silent) == SHARE_MIN
    other = crowd(doors, "192.0.2.2", 1)[0]
    assert doors.greet(other, 0.0)
    newcomer = silent[-1]
    assert not doors.greet(newcomer, 0.5)
    assert doors.greet(newcomer, PATIENCE_SECONDS)
    assert len(doors) == 16


@pytest.mark.req("R-17.3-01")
def test_known_peers_are_bounded_by_their_number_only() -> None:
    doors = Doors(20, 8)
    known = []
    for _ in range(30):
        known += crowd(doors, "192.0.2.1", 1)
        doors.know(known[-1], f"agent {len(known)}", 0.0)
    crowd(doors, "192.0.2.1", 6)
    assert enter(doors, "192.0.2.2") is None
    doors.leave(known[0])
    doors.leave(known[0])
    assert enter(doors, "192.0.2.2") is not None
    assert doors.overdue(100.0, 10.0) != []
    assert not any(visit.known for visit in doors.overdue(100.0, 10.0))


def test_a_network_of_ipv6_counts_as_one_address() -> None:
    doors = Doors(1000, 8)
    for number in range(8):
        assert enter(doors, f"2001:db8::{number}") is not None
    assert enter(doors, "2001:db8::ffff%eth0") is None
    assert enter(doors, "2001:db8:0:1::1") is not None


def test_the_machine_makes_room_at_the_cost_of_the_silent() -> None:
    doors = Doors(10, 8)
    assert not doors.expel(100.0)
    silent = crowd(doors, "192.0.2.1", 2)[1]
    silent.waiting_since = -5.0
    assert doors.expel(PATIENCE_SECONDS)
    assert len(doors) == 1
