"""A link between an Agent and the node that can be cut: a forwarder of TCP connections, which sees only TLS."""

from __future__ import annotations

import asyncio
from contextlib import suppress
from urllib.parse import urlsplit

from mwnode.demo.background import Background

_CHUNK_BYTES = 65_536


class Link:
    """Forwards a port of its own to the node. ``cut`` ends what passes and lets nothing new through."""

    def __init__(self, background: Background, url: str) -> None:
        where = urlsplit(url)
        self._background = background
        self._node = (where.hostname or "127.0.0.1", where.port or 443)
        self._whole = True
        self._passing: set[asyncio.Task[None]] = set()
        self.carried = 0
        """Connections that were let through."""
        self._server = background.run(self._listen())
        port = self._server.sockets[0].getsockname()[1]
        self.url = f"{where.scheme}://{where.hostname}:{port}{where.path}"

    async def _listen(self) -> asyncio.Server:
        return await asyncio.start_server(self._accept, "127.0.0.1", 0)

    def cut(self) -> None:
        """End every connection, and refuse new ones until ``mend``."""
        self._background.run(self._cut())

    def mend(self) -> None:
        """Let connections through again."""
        self._whole = True

    def close(self) -> None:
        """Cut, and stop listening."""
        self._background.run(self._close())

    async def _cut(self) -> None:
        self._whole = False
        for task in self._passing:
            task.cancel()
        await asyncio.gather(*self._passing, return_exceptions=True)

    async def _close(self) -> None:
        await self._cut()
        self._server.close()

    async def _accept(self, near: asyncio.StreamReader, near_out: asyncio.StreamWriter) -> None:
        if not self._whole:
            near_out.transport.abort()
            return
        task = asyncio.current_task()
        assert task is not None, "a connection is served by a task"
        self._passing.add(task)
        try:
            far, far_out = await asyncio.open_connection(*self._node)
        except OSError:
            self._passing.discard(task)
            near_out.transport.abort()
            return
        self.carried += 1
        try:
            await asyncio.gather(_pump(near, far_out), _pump(far, near_out))
        except asyncio.CancelledError:
            # The link was cut: that is what cancelled this, and nobody waits for it.
            near_out.transport.abort()
            far_out.transport.abort()
        finally:
            self._passing.discard(task)


async def _pump(source: asyncio.StreamReader, target: asyncio.StreamWriter) -> None:
    """Carry bytes until either side ends; then the other side is told."""
    with suppress(ConnectionError):
        while data := await source.read(_CHUNK_BYTES):
            target.write(data)
            await target.drain()
    target.close()
