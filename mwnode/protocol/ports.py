"""What the pure layers ask of the world: the time and randomness, both passed in."""

from __future__ import annotations

from typing import Protocol

from mwnode.protocol.instants import Instant


class Clock(Protocol):
    """The node's clock. It alone ends leases and decides freshness."""

    def now(self) -> Instant:
        """The current instant in UTC."""
        ...

    def monotonic(self) -> float:
        """Seconds on a clock that never goes back; only differences mean something."""
        ...


class Entropy(Protocol):
    """A source of unpredictable bytes."""

    def random(self, n: int) -> bytes:
        """``n`` fresh random bytes."""
        ...
