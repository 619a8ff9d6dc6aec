"""The way from the writer's threads to the event loop. Many messages, few wake-ups. Shell."""

from __future__ import annotations

import asyncio
import logging
from collections import deque
from collections.abc import Callable, Sequence
from functools import partial

from mwnode.store.batch import CommittedEvent

TURN_MESSAGES = 1024
"""Messages handled before sockets have their turn again."""

logger = logging.getLogger(__name__)


class Mailbox:
    """``post`` and ``committed`` from any thread; everything is handled on the loop that ``start`` was called on."""

    def __init__(self, publish: Callable[[Sequence[CommittedEvent]], None], afterwards: Callable[[], None]) -> None:
        """``publish`` takes each batch of Events; ``afterwards`` is called once after each turn."""
        self._publish = publish
        self._afterwards = afterwards
        self._messages: deque[Callable[[], None]] = deque()
        self._batches: deque[Sequence[CommittedEvent]] = deque()
        self._loop: asyncio.AbstractEventLoop | None = None
        self._called = False

    def start(self) -> None:
        """Handle messages on the running loop."""
        self._loop = asyncio.get_running_loop()

    def post(self, message: Callable[[], None]) -> None:
        """Run something on the loop soon, in the order of posting."""
        self._messages.append(message)
        self._call()

    def committed(self, events: Sequence[CommittedEvent]) -> None:
        """Publish a durable batch soon, ahead of messages that were not handled yet."""
        self._batches.append(events)
        self._call()

    def _call(self) -> None:
        # Set before the loop looks into the boxes: whoever finds it set has put its message where it will be seen.
        if self._called or self._loop is None:
            return
        self._called = True
        try:
            self._loop.call_soon_threadsafe(self._open)
        except RuntimeError:
            # The loop has ended: nobody is left to be told.
            self._messages.clear()
            self._batches.clear()

    def _open(self) -> None:
        self._called = False
        for _ in range(TURN_MESSAGES):
            # Events go first: a receipt that was delivered in its place need not be sent again.
            if self._batches:
                work: Callable[[], None] = partial(self._publish, self._batches.popleft())
            elif self._messages:
                work = self._messages.popleft()
            else:
                break
            try:
                work()
            except Exception:
                logger.exception("a message from the writer could not be handled")
        else:
            self._call()
        self._afterwards()
