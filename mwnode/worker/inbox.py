"""One Group's inbox: every Event once, in sequence order, and a Cursor that never passes a gap. Pure.

A node keeps order on one connection and never drops, so an Event in its place proves that everything below it was
delivered or withheld (visibility, attention filters). Whoever knows that says so with ``prove``; by numbers alone, a
gap stays a gap.
"""

from __future__ import annotations

from msgspec import UNSET, Struct

from mwnode.protocol.documents import Event

BUFFER_MAX = 10_000
"""Early Events held for one Group; beyond it the furthest is let go and fetched again by replay."""


class Inbox(Struct):
    """The inbox of one Group. ``cursor`` is the highest sequence up to which everything was processed (R-16-56)."""

    group_id: str
    cursor: int = 0
    proven: int = 0
    early: dict[int, Event] = {}
    recent: dict[str, int] = {}
    """Sequence of the Event IDs processed; an Event is dropped by its ID, whatever place it claims (R-16-52)."""

    def receive(self, event: Event) -> list[Event]:
        """The Events that are now due, in order (R-16-53). Duplicates give nothing; early ones wait (R-16-54)."""
        sequence = event.sequence
        if sequence is UNSET or event.group_id != self.group_id:
            return []
        if sequence <= self.cursor or event.event_id in self.recent:
            return []
        self.early[sequence] = event
        due = self._due()
        while len(self.early) > BUFFER_MAX:
            del self.early[max(self.early)]
        return due

    def prove(self, sequence: int) -> list[Event]:
        """Everything up to and including ``sequence`` was delivered or withheld; the Events that are now due."""
        self.proven = max(self.proven, sequence)
        return self._due()

    def _due(self) -> list[Event]:
        due: list[Event] = []
        while True:
            step = self.cursor + 1
            event = self.early.pop(step, None)
            if event is not None:
                self.cursor = step
                if event.event_id not in self.recent:
                    self.recent[event.event_id] = step
                    due.append(event)
            elif step <= self.proven:
                # Nothing between here and the next early Event will ever come.
                waiting = [sequence for sequence in self.early if sequence <= self.proven]
                self.cursor = min(waiting) - 1 if waiting else self.proven
            else:
                break
        while len(self.recent) > BUFFER_MAX:
            del self.recent[next(iter(self.recent))]
        return due

    @property
    def gap(self) -> tuple[int, int] | None:
        """First and last sequence that is missing below the lowest early Event, or ``None``."""
        return (self.cursor + 1, min(self.early) - 1) if self.early else None
