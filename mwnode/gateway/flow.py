"""What waits to be sent on one connection: bounded, and fair between Groups. Pure.

Each Group has a queue of its own; they take turns by bytes (deficit round robin), so that a noisy Group delays a quiet
one by one turn at most (R-8-23). A Group over its share of the bounds is for the caller to pause (R-17.3-01); what is
queued for it still goes out. Frames of no Group (errors, PINGs, the handshake) go first.

The bounds are for all frames together, whatever they answer: at them, nothing more is read from the connection; at
twice of them, which only what others cause can reach, it is to be closed.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Sequence

from msgspec import Struct

QUANTUM_BYTES = 32 * 1024
"""How much of one Group goes out before the next Group has its turn."""
PARCEL_BYTES = 128 * 1024
"""How much is put into one parcel, unless a single frame is larger."""


class Mark(Struct):
    """A frame that follows the last parcel of several Groups: the end of a replay (decision A11)."""

    frame: bytes
    waiting: int


class Parcel(Struct):
    """Some frames in order, shared by all connections that get them. ``joined`` is made by the first WebSocket."""

    frames: Sequence[bytes]
    size: int
    mark: Mark | None = None
    joined: bytes | None = None


def parcel(frames: Sequence[bytes]) -> Parcel:
    """Frames that go out together."""
    return Parcel(frames, sum(map(len, frames)))


def parcels(frames: Sequence[bytes]) -> list[Parcel]:
    """Frames in order, cut into parcels of a bounded size."""
    made: list[Parcel] = []
    start = size = 0
    for position, frame in enumerate(frames):
        if size and size + len(frame) > PARCEL_BYTES:
            made.append(Parcel(frames[start:position], size))
            start, size = position, 0
        size += len(frame)
    if start < len(frames):
        made.append(Parcel(frames[start:], size))
    return made


class _Queue:
    __slots__ = ("bytes", "deficit", "frames", "waiting")

    def __init__(self) -> None:
        self.waiting: deque[Parcel] = deque()
        self.frames = 0
        self.bytes = 0
        self.deficit = 0


class Outbox:
    """One connection's frames that were not handed to the transport yet."""

    def __init__(self, frames_max: int, bytes_max: int) -> None:
        self._frames_max = frames_max
        self._bytes_max = bytes_max
        self._group_frames_max = max(1, frames_max // 4)
        self._group_bytes_max = max(1, bytes_max // 4)
        self._first: deque[Parcel] = deque()
        self._queues: dict[str, _Queue] = {}
        self._turns: deque[str] = deque()
        self.frames = 0
        self.bytes = 0

    def __bool__(self) -> bool:
        return bool(self._first) or bool(self._queues)

    def put_first(self, frame: bytes) -> None:
        """Queue a frame of no Group."""
        self._first.append(Parcel((frame,), len(frame)))
        self.frames += 1
        self.bytes += len(frame)

    def put(self, group_id: str, added: Parcel) -> None:
        """Queue a parcel of one Group, behind what waits for it already."""
        queue = self._queues.get(group_id)
        if queue is None:
            queue = self._queues[group_id] = _Queue()
            self._turns.append(group_id)
        queue.waiting.append(added)
        count = len(added.frames)
        queue.frames += count
        queue.bytes += added.size
        self.frames += count
        self.bytes += added.size

    def over(self, group_id: str) -> bool:
        """Whether a Group has more waiting than its quarter of the bounds, or all that waits fills them."""
        queue = self._queues.get(group_id)
        return queue is not None and (
            queue.frames > self._group_frames_max
            or queue.bytes > self._group_bytes_max
            or self.frames > self._frames_max
            or self.bytes > self._bytes_max
        )

    @property
    def full(self) -> bool:
        """Whether the connection as a whole has more waiting than its bounds."""
        return self.holds(0)

    def holds(self, expected: int) -> bool:
        """Whether it has with ``expected`` more bytes."""
        return self.frames > self._frames_max or self.bytes + expected > self._bytes_max

    def eased(self, expected: int) -> bool:
        """Whether no more than half of its bounds would wait with ``expected`` more bytes."""
        return self.frames <= self._frames_max // 2 and self.bytes + expected <= self._bytes_max // 2

    @property
    def flooded(self) -> bool:
        """Whether it has more waiting than twice its bounds."""
        return self.frames > 2 * self._frames_max or self.bytes > 2 * self._bytes_max

    def waiting(self, group_id: str) -> int:
        """Bytes waiting for a Group."""
        queue = self._queues.get(group_id)
        return 0 if queue is None else queue.bytes

    def drop(self) -> None:
        """Forget everything: the connection gets nothing more."""
        self._first.clear()
        self._queues.clear()
        self._turns.clear()
        self.frames = self.bytes = 0

    def take(self, bytes_max: int) -> list[Parcel]:
        """Parcels to send now, about ``bytes_max`` of them, in a fair order."""
        taken: list[Parcel] = []
        room = bytes_max
        while self._first:
            first = self._first.popleft()
            taken.append(first)
            room -= first.size
            self.frames -= 1
            self.bytes -= first.size
        while self._turns and room > 0:
            group_id = self._turns[0]
            queue = self._queues[group_id]
            if queue.deficit <= 0:
                queue.deficit += QUANTUM_BYTES
            while queue.waiting and queue.deficit > 0 and room > 0:
                room -= self._take_one(queue, taken)
            if queue.waiting:
                if queue.deficit <= 0:
                    self._turns.rotate(-1)
            else:
                del self._queues[group_id]
                self._turns.popleft()
        return taken

    def _take_one(self, queue: _Queue, taken: list[Parcel]) -> int:
        next_parcel = queue.waiting.popleft()
        count = len(next_parcel.frames)
        queue.frames -= count
        queue.bytes -= next_parcel.size
        queue.deficit -= next_parcel.size
        self.frames -= count
        self.bytes -= next_parcel.size
        if count:
            taken.append(next_parcel)
        mark = next_parcel.mark
        if mark is not None:
            mark.waiting -= 1
            if mark.waiting == 0:
                taken.append(parcel((mark.frame,)))
        return next_parcel.size
