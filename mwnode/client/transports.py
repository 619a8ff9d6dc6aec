"""How messages travel: a WebSocket, or a pipe inside one process. The shell under the client's engine."""

from __future__ import annotations

import asyncio
from collections import deque
from collections.abc import Awaitable, Callable, Sequence
from pathlib import Path
from typing import Protocol

import aiohttp

from mwnode.client.address import client_tls, parse_address
from mwnode.client.engine import FRAME_BYTES
from mwnode.client.errors import Unreachable

_CONNECT_SECONDS = 15.0


class Transport(Protocol):
    """One connection; each message is one frame."""

    async def send(self, messages: Sequence[bytes]) -> None:
        """Send messages in order; returns when there is room for more. OSError when the connection is gone."""

    async def receive(self) -> bytes | None:
        """The next message, or ``None`` when the connection is over."""

    async def close(self) -> None:
        """End the connection. Idempotent."""


Dial = Callable[[], Awaitable[Transport]]
"""Makes a new connection; raises Unreachable."""


class WebSocketTransport:
    """A WebSocket client connection of its own HTTP session."""

    def __init__(self, session: aiohttp.ClientSession, socket: aiohttp.ClientWebSocketResponse) -> None:
        self._session = session
        self._socket = socket

    async def send(self, messages: Sequence[bytes]) -> None:
        for message in messages:
            await self._socket.send_frame(message, aiohttp.WSMsgType.TEXT)

    async def receive(self) -> bytes | None:
        message = await self._socket.receive()
        if message.type is aiohttp.WSMsgType.TEXT:
            data: str | bytes = message.data
            return data.encode() if isinstance(data, str) else data
        # A binary message is none of the protocol's (R-17.1-04); everything else is an end.
        return None

    async def close(self) -> None:
        await self._socket.close()
        await self._session.close()


def websocket_dialer(url: str, ca: Path | str | None = None) -> Dial:
    """Connections to a node's ``/ws``, by TLS 1.3 to a server of the expected CA (R-17.1-01)."""
    address = parse_address(url)
    tls = client_tls(address, ca)

    async def dial() -> Transport:
        session = aiohttp.ClientSession(timeout=aiohttp.ClientTimeout(total=None, connect=_CONNECT_SECONDS))
        try:
            socket = await session.ws_connect(
                address.websocket,
                ssl=tls if tls is not None else True,
                compress=0,
                max_msg_size=FRAME_BYTES,
                autoping=True,
            )
        except aiohttp.ClientConnectorCertificateError as error:
            await session.close()
            raise Unreachable(
                f"{address.websocket} is not trusted ({error.certificate_error}): give its CA by --ca"
            ) from error
        except (TimeoutError, aiohttp.ClientError, OSError) as error:
            await session.close()
            raise Unreachable(f"{address.websocket} cannot be reached: {error or type(error).__name__}") from error
        except BaseException:
            await session.close()
            raise
        return WebSocketTransport(session, socket)

    return dial


class PipeEnd:
    """One end of a pipe between a client and a node in the same process and event loop; made by ``pipe``.

    ``send`` waits while the other end holds more than ``window`` messages unread.
    """

    def __init__(self, window: int) -> None:
        self._window = window
        self._inbox: deque[bytes] = deque()
        self._arrived = asyncio.Event()
        self._drained = asyncio.Event()
        self._drained.set()
        self._peer: PipeEnd | None = None

    async def send(self, messages: Sequence[bytes]) -> None:
        self.post(messages)
        if self._peer is not None:
            await self._peer._drained.wait()

    def post(self, messages: Sequence[bytes]) -> None:
        """Send without waiting."""
        peer = self._peer
        if peer is None:
            raise ConnectionResetError("the pipe is closed")
        peer._inbox.extend(messages)
        peer._arrived.set()
        if len(peer._inbox) > self._window:
            peer._drained.clear()

    @property
    def unread(self) -> int:
        """Messages that the other end has not taken yet."""
        return len(self._peer._inbox) if self._peer is not None else 0

    async def receive(self) -> bytes | None:
        while not self._inbox:
            if self._peer is None:
                return None
            self._arrived.clear()
            await self._arrived.wait()
        message = self._inbox.popleft()
        if len(self._inbox) <= self._window // 2:
            self._drained.set()
        return message

    async def close(self) -> None:
        self.cut()

    def cut(self) -> None:
        """End the connection at both ends; what was sent before is still received."""
        peer, self._peer = self._peer, None
        for end in (self, peer):
            if end is not None:
                end._peer = None
                end._arrived.set()
                end._drained.set()


def pipe(window: int = 1024) -> tuple[PipeEnd, PipeEnd]:
    """Two joined ends."""
    one, other = PipeEnd(window), PipeEnd(window)
    one._peer, other._peer = other, one
    return one, other
