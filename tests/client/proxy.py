"""A proxy between clients and a node that cuts WebSocket connections after a number of frames; HTTP passes."""

from __future__ import annotations

import asyncio
from collections.abc import Callable

PIECE = 65_536


class CuttingProxy:
    """Listens on a port of its own. ``limit`` gives, for each WebSocket in turn, how many frames it lasts."""

    def __init__(self, port: int, limit: Callable[[int], int]) -> None:
        self._port = port
        self._limit = limit
        self._tasks: set[asyncio.Task[None]] = set()
        self._server: asyncio.Server | None = None
        self._open: set[asyncio.StreamWriter] = set()
        self.websockets = 0
        self.cuts = 0
        self.shut = False
        """Whether every new connection is ended at once."""

    async def start(self) -> int:
        """The port to connect to."""
        self._server = await asyncio.start_server(self._serve, "127.0.0.1", 0)
        port: int = self._server.sockets[0].getsockname()[1]
        return port

    @property
    def carries(self) -> int:
        """How many connections there are now."""
        return len(self._open)

    def cut(self) -> None:
        """End every connection there is now."""
        for end in self._open:
            end.transport.abort()

    async def close(self) -> None:
        assert self._server is not None
        self._server.close()
        for task in tuple(self._tasks):
            task.cancel()
        await asyncio.gather(*self._tasks, return_exceptions=True)

    async def _serve(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        task = asyncio.current_task()
        assert task is not None
        self._tasks.add(task)
        task.add_done_callback(self._tasks.discard)
        if self.shut:
            writer.transport.abort()
            return
        ends = [writer]
        self._open.add(writer)
        try:
            node_reader, node_writer = await asyncio.open_connection("127.0.0.1", self._port)
            ends.append(node_writer)
            head = await reader.readuntil(b"\r\n\r\n")
            node_writer.write(head)
            left: _Left | None = None
            if b"upgrade: websocket" in head.lower():
                left = _Left(self._limit(self.websockets))
                self.websockets += 1
                writer.write(await node_reader.readuntil(b"\r\n\r\n"))
            pumps = [
                asyncio.ensure_future(_pump(reader, node_writer, left)),
                asyncio.ensure_future(_pump(node_reader, writer, left)),
            ]
            try:
                await asyncio.wait(pumps, return_when=asyncio.FIRST_COMPLETED)
            finally:
                for pump in pumps:
                    pump.cancel()
                await asyncio.gather(*pumps, return_exceptions=True)
            if left is not None and left.frames <= 0:
                self.cuts += 1
        except (OSError, asyncio.IncompleteReadError):
            return
        finally:
            self._open.discard(writer)
            for end in ends:
                end.transport.abort()


class _Left:
    """How many more frames pass, in both directions together."""

    def __init__(self, frames: int) -> None:
        self.frames = frames


async def _pump(reader: asyncio.StreamReader, writer: asyncio.StreamWriter, left: _Left | None) -> None:
    """Pass bytes on, or whole frames while any are left; returns when one end is over or nothing more may pass."""
    try:
        if left is None:
            while data := await reader.read(PIECE):
                writer.write(data)
                await writer.drain()
            return
        while left.frames > 0:
            frame = await _frame(reader)
            if left.frames <= 0:
                # It was on its way when the link was cut.
                return
            writer.write(frame)
            await writer.drain()
            if frame[0] & 0x0F < 8:
                left.frames -= 1
    except (OSError, asyncio.IncompleteReadError):
        return


async def _frame(reader: asyncio.StreamReader) -> bytes:
    """The bytes of the next WebSocket frame."""
    head = await reader.readexactly(2)
    size = head[1] & 0x7F
    if size >= 126:
        extended = await reader.readexactly(2 if size == 126 else 8)
        head += extended
        size = int.from_bytes(extended, "big")
    if head[1] & 0x80:
        head += await reader.readexactly(4)
    return head + await reader.readexactly(size)
