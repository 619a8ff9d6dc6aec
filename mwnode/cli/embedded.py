"""A HOME that nobody serves, opened by the command itself: served to it alone, for as long as it runs.

Commands read the very views that a served node shows, so there is one implementation of what anybody may see.
"""

from __future__ import annotations

import asyncio
import threading
from collections.abc import Iterator
from concurrent.futures import Future
from contextlib import contextmanager

from mwnode.cli.keyless import is_keyless
from mwnode.gateway.server import serve
from mwnode.home import Home
from mwnode.node import Node

START_SECONDS = 30
STOP_SECONDS = 1.0


@contextmanager
def embedded(home: Home) -> Iterator[str]:
    """Open HOME's store and serve it on a free loopback port; its address. StoreBusy when another process has it.

    Where the authority's key is not, it is opened for reading alone.
    """
    with Node.open_reading(home.path) if is_keyless(home) else Node.open(home.path) as node:
        started: Future[str] = Future()
        stop = threading.Event()
        thread = threading.Thread(target=lambda: asyncio.run(_serve(node, started, stop)), name="embedded")
        thread.start()
        try:
            yield started.result(START_SECONDS)
        finally:
            stop.set()
            thread.join()


async def _serve(node: Node, started: Future[str], stop: threading.Event) -> None:
    try:
        server = await serve(node)
    except BaseException as error:
        started.set_exception(error)
        return
    started.set_result(server.http)
    await asyncio.to_thread(stop.wait)
    await server.close(STOP_SECONDS)
