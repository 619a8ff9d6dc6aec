"""How long tests wait for what must come, on whatever machine and beside whatever else runs there."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Callable

PATIENCE_SECONDS = 240.0
"""Longest wait for anything that comes about. It costs nothing where all is well: each such wait ends with what it is
for. Well below the `timeout` of one test, so that what did not come is told rather than that time was up."""
LOOK_SECONDS = 0.01


async def until(true: Callable[[], object]) -> None:
    """Wait until something is true; TimeoutError when it never is."""
    async with asyncio.timeout(PATIENCE_SECONDS):
        while not true():
            await asyncio.sleep(LOOK_SECONDS)


def wait_until(true: Callable[[], object], told: Callable[[], object] = lambda: "it never came to be") -> None:
    """As ``until``, of a thread; AssertionError with what is told by then."""
    deadline = time.monotonic() + PATIENCE_SECONDS
    while not true():
        assert time.monotonic() < deadline, told()
        time.sleep(LOOK_SECONDS)
