"""Instants keep their order on the Worker's own clock, however often that clock is read in between."""

from __future__ import annotations

import pytest

from mwnode.protocol.instants import Instant, from_microseconds
from mwnode.worker.timeline import Timeline

START = 1_800_000_000_000_000


class Restless:
    """Two clocks of which each reading takes its time, and a wall clock that can be set."""

    def __init__(self) -> None:
        self.passed = 0
        self.set_by = 0

    def now(self) -> Instant:
        self.passed += 137
        return from_microseconds(START + self.passed + self.set_by)

    def monotonic(self) -> float:
        self.passed += 211
        return self.passed / 1_000_000


def text(microseconds: int) -> str:
    return from_microseconds(START + microseconds).text()


@pytest.mark.req("R-11.1-03")
def test_one_instant_has_one_place_and_order_is_kept() -> None:
    timeline = Timeline(Restless())
    first, next_to_it = timeline.at(text(0)), timeline.at(text(1))
    assert [timeline.at(text(0)) for _ in range(50)] == [first] * 50
    assert next_to_it - first == pytest.approx(1e-6, abs=1e-7)


@pytest.mark.req("R-11.1-03")
def test_a_wall_clock_that_was_set_is_read_anew() -> None:
    clock = Restless()
    timeline = Timeline(clock)
    before = timeline.at(text(0))
    clock.set_by = 3_600_000_000
    assert timeline.at(text(0)) == pytest.approx(before - 3600, abs=0.01)
    assert timeline.at(text(3_600_000_000)) == pytest.approx(before, abs=0.01)
