"""Instants of documents on the Worker's monotonic clock."""

from __future__ import annotations

from mwnode.protocol.instants import parse
from mwnode.protocol.ports import Clock

STEP_MICROSECONDS = 500_000
"""By how much the two clocks may part before the wall clock is taken to have been set."""


class Timeline:
    """Where instants lie on the monotonic clock.

    Both clocks are read together once, not for every instant: instants keep their order and their distance, and what
    has one instant has one place (R-11.1-03). After a wall clock was set, they are read together anew.
    """

    def __init__(self, clock: Clock) -> None:
        self._clock = clock
        self._wall, self._monotonic = self._read()

    def _read(self) -> tuple[int, float]:
        return self._clock.now().whole_microseconds(), self._clock.monotonic()

    def at(self, timestamp: str) -> float:
        """Seconds of the monotonic clock at which a timestamp lies."""
        wall, monotonic = self._read()
        if abs((wall - self._wall) - (monotonic - self._monotonic) * 1_000_000) > STEP_MICROSECONDS:
            self._wall, self._monotonic = wall, monotonic
        return self._monotonic + (parse(timestamp).whole_microseconds() - self._wall) / 1_000_000
