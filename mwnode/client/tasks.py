"""The tasks of one Agent's loop: what ends one of them ends the loop, and the loop ends them all."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Coroutine
from contextlib import suppress
from typing import Any

Work = Callable[..., Coroutine[Any, Any, None]]


class Tasks:
    """Tasks beside a loop that looks at ``failure`` each time it wakes. Errors never pass silently."""

    def __init__(self) -> None:
        self.failure: BaseException | None = None
        """What ended a task first; the loop ends and raises it."""
        self._running: set[asyncio.Task[None]] = set()
        self._wake = asyncio.Event()

    def spawn(self, work: Work, *arguments: Any) -> None:
        """Run this beside the loop."""
        task = asyncio.create_task(self._guard(work, *arguments))
        self._running.add(task)
        task.add_done_callback(self._running.discard)

    async def _guard(self, work: Work, *arguments: Any) -> None:
        try:
            await work(*arguments)
        except asyncio.CancelledError:
            raise
        except BaseException as error:
            self.failure = self.failure or error
        self.wake()

    def wake(self) -> None:
        """Have the loop look at once."""
        self._wake.set()

    async def rest(self, seconds: float) -> None:
        """Wait until somebody wakes the loop, or so many seconds."""
        with suppress(TimeoutError):
            async with asyncio.timeout(seconds):
                await self._wake.wait()
        self._wake.clear()

    async def end(self) -> None:
        """Cancel whatever still runs, and see it end."""
        running = list(self._running)
        for task in running:
            task.cancel()
        await asyncio.gather(*running, return_exceptions=True)
