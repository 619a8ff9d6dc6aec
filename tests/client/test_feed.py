"""Order, duplicates and early receipts at the receiving end (section 16)."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from mwnode.client.feed import Feed


def feed(position: int = 0, replaying: bool = True) -> Feed[int]:
    made: Feed[int] = Feed(position)
    made.replaying = replaying
    return made


def take(target: Feed[int], *sequences: int, early: bool = False) -> list[int]:
    return [event for sequence in sequences for event in target.take(sequence, sequence, may_be_early=early)]


@pytest.mark.req("R-16-02", "R-16-52")
def test_each_event_comes_out_once() -> None:
    assert take(feed(), 1, 1, 2, 1, 2, 3, 3) == [1, 2, 3]


@pytest.mark.req("R-16-06", "R-16-59")
def test_repeats_around_a_reconnect_are_dropped() -> None:
    target = feed()
    assert take(target, 1, 2, 3) == [1, 2, 3]
    target.restart()
    assert take(target, 2, 3, 4) == [4]


def test_an_event_in_order_proves_that_what_lies_below_was_withheld() -> None:
    target = feed(4)
    assert take(target, 9) == [9]
    assert target.position == 9


@pytest.mark.req("R-16-03", "R-16-53", "R-16-54")
def test_an_early_receipt_waits_for_its_place() -> None:
    target = feed()
    assert take(target, 5, early=True) == []
    assert take(target, 1, 2, 3) == [1, 2, 3]
    assert target.position == 3
    assert take(target, 4) == [4, 5]
    assert take(target, 5) == []
    assert target.position == 5


@pytest.mark.req("R-16-04", "R-16-55")
def test_the_position_never_passes_a_gap_for_an_early_receipt() -> None:
    target = feed()
    take(target, 1)
    take(target, 3, early=True)
    assert target.position == 1


def test_an_early_receipt_whose_neighbours_were_withheld_comes_out_with_the_next_event() -> None:
    target = feed()
    take(target, 3, early=True)
    assert take(target, 7) == [3, 7]


def test_the_end_of_the_replay_releases_what_waits() -> None:
    target = feed()
    take(target, 3, early=True)
    take(target, 6, early=True)
    assert target.caught_up() == [3, 6]
    assert target.position == 6
    assert not target.replaying
    assert target.caught_up() == []


def test_a_lost_connection_forgets_early_receipts_which_come_again() -> None:
    target = feed()
    take(target, 4, early=True)
    target.restart()
    assert take(target, 1, 2, 3) == [1, 2, 3]
    assert take(target, 4) == [4]


@pytest.mark.req("R-16-02", "R-16-03", "R-16-04")
@given(
    st.lists(st.integers(1, 30), unique=True).map(sorted),
    st.data(),
)
def test_whatever_is_early_or_repeated_the_order_is_kept(visible: list[int], data: st.DataObject) -> None:
    """A server that sends visible Events in order, repeats any, and lets any future one come early as a receipt."""
    target = feed()
    out: list[int] = []
    for index, sequence in enumerate(visible):
        if data.draw(st.booleans(), "early first"):
            out += take(target, data.draw(st.sampled_from(visible[index:])), early=True)
        out += take(target, sequence)
        if data.draw(st.booleans(), "a repeat"):
            out += take(target, data.draw(st.sampled_from(visible[: index + 1])))
    out += target.caught_up()
    assert out == visible
