"""The sliding minute of rate limits against the obvious way to count it."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any, cast

import pytest
from hypothesis import given
from hypothesis import strategies as st

from mwnode.authority.cooperation import WINDOW_MICROSECONDS, _wait_for_room, count_rate
from mwnode.authority.request import EventFact
from mwnode.authority.state import RATE_TIMES_KEPT, RATES, RateRow
from mwnode.authority.view import Overlay
from mwnode.protocol.documents import Actor
from mwnode.protocol.instants import from_microseconds

START = 1_900_000_000_000_000
ACTOR = Actor(type="human", id="urn:example:human:1")


def rows_of(times: list[int]) -> RateRow:
    """The row after Events at these times were folded."""
    view = Overlay(cast(Any, SimpleNamespace(get=lambda table, key: None)))
    for time in times:
        fact = SimpleNamespace(group_id="urn:example:group:1", actor=ACTOR, occurred_at=from_microseconds(time).text())
        count_rate(view, "message_rate", cast(EventFact, fact))
    rows = [row for table, row in view.changes.values() if table is RATES]
    return cast(RateRow, rows[0]) if rows else RateRow("")


STEPS = st.lists(st.sampled_from([0, 1, 1_000, 250_000, 999_999, 1_000_000, 7_000_000, 59_999_999]), max_size=60)


@pytest.mark.req("R-20-01")
@given(steps=STEPS, after=st.integers(0, WINDOW_MICROSECONDS + 5), limit=st.integers(1, 20))
def test_a_limit_within_what_is_kept_is_exact_to_the_microsecond(steps: list[int], after: int, limit: int) -> None:
    times = [START + sum(steps[: number + 1]) for number in range(len(steps))]
    now = (times[-1] if times else START) + after
    recent = [time for time in times if time > now - WINDOW_MICROSECONDS]
    wait = _wait_for_room(rows_of(times), now, limit) if len(times) >= limit else None
    assert (wait is not None) == (len(recent) >= limit)
    if wait is not None:
        freed = now + wait * 1_000
        assert sum(time > freed - WINDOW_MICROSECONDS for time in times) < limit, "told to come back too early"
        assert sum(time > freed - 1_000 - WINDOW_MICROSECONDS for time in times) >= limit, "told to wait too long"


@pytest.mark.req("R-20-01")
@pytest.mark.parametrize("limit", [RATE_TIMES_KEPT + 1, 300, 1_000])
def test_a_higher_limit_never_lets_more_through_and_waits_a_second_too_long_at_most(limit: int) -> None:
    times = [START + number * 40_000 for number in range(limit)]
    row = rows_of(times)
    now = times[-1]
    assert len(row.times) == RATE_TIMES_KEPT
    assert len(row.older) <= WINDOW_MICROSECONDS // 1_000_000 + 1
    wait = _wait_for_room(row, now, limit)
    assert wait is not None
    freed = now + wait * 1_000
    assert sum(time > freed - WINDOW_MICROSECONDS for time in times) < limit
    assert sum(time > freed - 1_001_000 - WINDOW_MICROSECONDS for time in times) >= limit
    assert _wait_for_room(row, now, limit + 1) is None
