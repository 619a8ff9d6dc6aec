"""One subscribed Group at the receiving end: order, duplicates, and what an early receipt means. Pure.

On one connection a server never drops and keeps order, so an Event in its place proves that everything below it was
delivered or withheld (decision A11). Only during a replay may the receipts of our own Commands come ahead of their
place (decision A12): those wait here until their place is reached.
"""

from __future__ import annotations

from typing import Generic, TypeVar

E = TypeVar("E")


class Feed(Generic[E]):
    """Puts the Events of one Group in order. ``position`` is the sequence up to which everything was handed on."""

    def __init__(self, position: int) -> None:
        self.position = position
        self.replaying = True
        """Between a SUBSCRIBE and the mark that ends its replay."""
        self._held: dict[int, E] = {}

    def take(self, sequence: int, event: E, *, may_be_early: bool) -> list[E]:
        """The Events that are now in order. Duplicates yield nothing (R-16-02, R-16-03).

        ``may_be_early``: the Event answers a Command of ours, so its sequence alone proves nothing.
        """
        if sequence <= self.position:
            return []
        if may_be_early and sequence > self.position + 1:
            self._held[sequence] = event
            return []
        ready = self._release(sequence - 1)
        self._held.pop(sequence, None)
        ready.append(event)
        self.position = sequence
        while self.position + 1 in self._held:
            ready.extend(self._release(self.position + 1))
        return ready

    def caught_up(self) -> list[E]:
        """The replay has ended: whatever waited is in order now."""
        self.replaying = False
        return self._release(max(self._held, default=self.position))

    def restart(self, position: int | None = None) -> None:
        """A new SUBSCRIBE goes out: early receipts of the old connection come again by replay."""
        self.replaying = True
        self._held.clear()
        if position is not None:
            self.position = position

    def _release(self, through: int) -> list[E]:
        released = [self._held.pop(sequence) for sequence in sorted(self._held) if sequence <= through]
        self.position = max(self.position, through)
        return released
