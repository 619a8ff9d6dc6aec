"""What goes wrong on purpose: links that are cut, slow or stutter, clocks that differ, a full disk, a node that dies.

Each fault is a context manager; it ends with the block. Without Participants it holds for everybody::

    with mwnode.faults.cut(worker, arriving=True):
        with pytest.raises(ConnectionLost):
            work.submit(worker=worker)      # the Command arrives, and its answer is lost
    assert worker.resend()                  # the same bytes again: the same Events, and nothing done twice

``cut``, ``delay`` and ``duplicate`` also hold for what goes over an in-process connection (``mwnode.connections``).
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import TYPE_CHECKING, Any

from msgspec import Struct

from mwnode.client.errors import ConnectionLost

if TYPE_CHECKING:
    from mwnode.testing.harness import Harness
    from mwnode.testing.people import Participant

Events = list[dict[str, Any]]


class Way(Struct):
    """What ails the way of a Participant to the node, at this moment.

    ``cut`` and ``deaf``: how many faults let nothing through, or nothing back. ``delay``: seconds that pass on the way.
    ``copies``: how often each Command arrives.
    """

    cut: int = 0
    deaf: int = 0
    delay: int = 0
    copies: int = 1


class Faults:
    """The faults of one Harness; ``mwnode.faults``."""

    def __init__(self, harness: Harness) -> None:
        self._harness = harness
        self._everybody = Way()
        self._ways: dict[str, Way] = {}
        self.on_cut: list[Callable[[], None]] = []
        """Told when a way was cut, or the node died: connections that cannot go on end."""

    # --- the ways to the node ---

    @contextmanager
    def cut(self, *who: Participant, arriving: bool = False) -> Iterator[None]:
        """Nothing gets through: ``send`` raises ConnectionLost, connections end and cannot be made.

        With ``arriving`` what is sent still arrives and is decided; only what comes back is lost.
        """
        ways = self._of(who)
        for way in ways:
            way.cut += not arriving
            way.deaf += arriving
        self.announce()
        try:
            yield
        finally:
            for way in ways:
                way.cut -= not arriving
                way.deaf -= arriving

    @contextmanager
    def delay(self, seconds: int, *who: Participant) -> Iterator[None]:
        """Each Command is so many seconds of the test's clock on its way, and what comes due meanwhile happens."""
        ways = self._of(who)
        for way in ways:
            way.delay += seconds
        try:
            yield
        finally:
            for way in ways:
                way.delay -= seconds

    @contextmanager
    def duplicate(self, *who: Participant, times: int = 2) -> Iterator[None]:
        """Each Command arrives so often. Fails the test when the node answers a repetition otherwise."""
        ways = self._of(who)
        for way in ways:
            way.copies *= times
        try:
            yield
        finally:
            for way in ways:
                way.copies //= times

    def way_of(self, principal_id: str) -> Way:
        """What ails somebody's way, the faults that hold for everybody included."""
        own, common = self._ways.get(principal_id, Way()), self._everybody
        return Way(own.cut + common.cut, own.deaf + common.deaf, own.delay + common.delay, own.copies * common.copies)

    def carry(self, who: Participant, raw: bytes, send: Callable[[bytes], Events]) -> Events:
        """Bring a Command to the node as the way of ``who`` allows; the answer, or ConnectionLost."""
        way = self.way_of(who.id)
        if way.cut:
            raise ConnectionLost(f"the way of {who.name} is cut: the Command did not arrive")
        if way.delay:
            self._harness.advance(way.delay)
        events = send(raw)
        for _ in range(way.copies - 1):
            again = send(raw)
            assert again == events, f"a repeated Command was answered by {again}, its first arrival by {events}"
        if way.deaf:
            raise ConnectionLost(f"the way to {who.name} is cut: the Command was decided, and its answer is lost")
        return events

    def _of(self, who: tuple[Participant, ...]) -> list[Way]:
        return [self._ways.setdefault(each.id, Way()) for each in who] or [self._everybody]

    def announce(self) -> None:
        """Let connections that cannot go on end now."""
        for tell in tuple(self.on_cut):
            tell()

    # --- clocks, disk, node ---

    @contextmanager
    def skew(self, seconds: int, *who: Participant) -> Iterator[None]:
        """The clocks of these Participants (of all, without any) are so many seconds ahead of the node's."""
        harness = self._harness
        people = who or (harness.organization, harness.owner, harness.coordinator, *harness.workers)
        for each in people:
            each.skew += seconds
        try:
            yield
        finally:
            for each in people:
                each.skew -= seconds

    @contextmanager
    def fill(self) -> Iterator[None]:
        """The disk of the node is full: what must be written is refused with INTERNAL_ERROR, and reading goes on."""
        file = self._harness.node.store.file
        file.tell_room(lambda: (0, 1 << 40))
        try:
            yield
        finally:
            file.tell_room(None)

    def kill(self) -> None:
        """The node dies, as by SIGKILL between two commits; ``mwnode.restart()`` starts it again on what was durable.

        What waited for the node is neither decided nor kept; whoever waits for an answer gets INTERNAL_ERROR.
        """
        self._harness.node.abandon()
        self.announce()
