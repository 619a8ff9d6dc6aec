"""What every Agent's process does around its loop: end in order when asked to, and wait for its session. Shell."""

from __future__ import annotations

import asyncio
import signal
import threading
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Any

from mwnode.client.client import Client
from mwnode.trust.keys import SigningKey

Log = Callable[[str, Mapping[str, Any]], None]


@contextmanager
def stopped_by_signals(stop: asyncio.Event) -> Iterator[None]:
    """Have SIGTERM and SIGINT set ``stop`` meanwhile. In another thread than the main one nothing is done: Python tells
    signals to the main thread only, and whoever runs it stops the others."""
    handled = (signal.SIGTERM, signal.SIGINT) if threading.current_thread() is threading.main_thread() else ()
    loop = asyncio.get_running_loop()
    for number in handled:
        loop.add_signal_handler(number, stop.set)
    try:
        yield
    finally:
        for number in handled:
            loop.remove_signal_handler(number)


async def first_session(
    url: str, key: SigningKey, ca: Path | str | None, *, patient: bool, log: Log, stop: asyncio.Event
) -> Client | None:
    """The first session, or ``None`` when the Agent was stopped while it waited for one.

    Raises ClientError, or the MissionWeaveError of a refused handshake.
    """
    connecting = asyncio.create_task(Client.connect(url, key, ca, patient=patient, observer=log))
    stopped = asyncio.create_task(stop.wait())
    try:
        await asyncio.wait((connecting, stopped), return_when=asyncio.FIRST_COMPLETED)
        if not connecting.done():
            return None
        return connecting.result()
    finally:
        stopped.cancel()
        if not connecting.done():
            connecting.cancel()
            with suppress(asyncio.CancelledError):
                await connecting
