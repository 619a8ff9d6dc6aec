"""A clock and chance that the test controls: the same run, every time."""

from __future__ import annotations

import hashlib

from mwnode.protocol.instants import Instant, parse
from mwnode.system import SystemClock

START = "2030-01-01T00:00:00Z"
"""When a ManualClock starts, unless it is told otherwise."""


class ManualClock:
    """A clock that stands until it is told to move; a ``protocol.ports.Clock``."""

    def __init__(self, start: str = START) -> None:
        self._now = parse(start)
        self._elapsed = 0.0

    def now(self) -> Instant:
        return self._now

    def monotonic(self) -> float:
        return self._elapsed

    def advance(self, seconds: int) -> None:
        """Let that many seconds pass."""
        if seconds < 0:
            raise ValueError("advance only goes forward; use step to set the wall clock back")
        self._now = self._now.plus(seconds)
        self._elapsed += seconds

    def step(self, seconds: int) -> None:
        """Set the wall clock forward or back without any time passing, as an operator or NTP might."""
        self._now = self._now.plus(seconds)


class RunningClock(ManualClock):
    """The machine's own clock, which can be moved as well: for tests in which real programs take part.

    ``advance`` and ``step`` add to what passes by itself, in whole seconds.
    """

    def __init__(self) -> None:
        super().__init__()
        self._system = SystemClock()
        self._advanced = 0
        self._stepped = 0

    def now(self) -> Instant:
        return self._system.now().plus(self._advanced + self._stepped)

    def monotonic(self) -> float:
        return self._system.monotonic() + self._advanced

    def advance(self, seconds: int) -> None:
        """Let that many seconds pass at once."""
        if seconds < 0:
            raise ValueError("advance only goes forward; use step to set the wall clock back")
        self._advanced += seconds

    def step(self, seconds: int) -> None:
        """Set the wall clock forward or back without any time passing."""
        self._stepped += seconds


class SeededEntropy:
    """Bytes that look random and are the same for the same seed; a ``protocol.ports.Entropy``. Never for real keys."""

    def __init__(self, seed: int = 0) -> None:
        self._seed = seed
        self.drawn = 0
        """How often something was drawn."""

    def random(self, n: int) -> bytes:
        self.drawn += 1
        return hashlib.shake_256(f"{self._seed} {self.drawn}".encode()).digest(n)

    def skip_to(self, drawn: int) -> None:
        """Go on as if so much had been drawn already."""
        self.drawn = drawn
