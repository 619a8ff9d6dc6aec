"""How messages travel: the shell under the client's engine. A node in the same process has a transport of its own."""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Sequence
from pathlib import Path
from typing import Protocol

import aiohttp

from mwnode.client.address import client_tls, parse_address
from mwnode.client.engine import FRAME_BYTES
from mwnode.client.errors import NotTrusted, Unreachable
from mwnode.protocol.errors import AuthStaleSession, ErrorCode

_CONNECT_SECONDS = 15.0


class Transport(Protocol):
    """One connection; each message is one frame."""

    async def send(self, messages: Sequence[bytes]) -> None:
        """Send messages in order; returns when there is room for more. OSError when the connection is gone."""

    async def receive(self) -> bytes | None:
        """The next message, or ``None`` when the connection is over.

        AuthStaleSession when the node closed it because a newer session of the Agent has fenced it: one that had
        nothing to say is told by nothing else (decision A20).
        """

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
        if message.type is aiohttp.WSMsgType.CLOSE and message.extra == ErrorCode.AUTH_STALE_SESSION:
            raise AuthStaleSession("the node closed this connection for a newer one of the same Agent", rule="R-6.3-06")
        # A binary message is none of the protocol's (R-17.1-04); everything else is an end.
        return None

    async def close(self) -> None:
        try:
            await self._socket.close()
        finally:
            # Also when the close handshake is cut short, by a cancellation or by a dead link.
            await self._session.close()


def websocket_dialer(url: str, ca: Path | str | None = None, newest: Callable[[], int | None] = lambda: None) -> Dial:
    """Connections to a node's ``/ws``, by TLS 1.3 to a server of the expected CA (R-17.1-01).

    ``newest`` gives the highest Session Epoch that is the caller's own, for the node to refuse with AUTH_STALE_SESSION
    what would fence a newer process with the same key.
    """
    address = parse_address(url)
    tls = client_tls(address, ca)

    async def dial() -> Transport:
        session = aiohttp.ClientSession(timeout=aiohttp.ClientTimeout(total=None, connect=_CONNECT_SECONDS))
        try:
            socket = await session.ws_connect(
                f"{address.websocket}{'' if (own := newest()) is None else f'?newest={own}'}",
                ssl=tls if tls is not None else True,
                compress=0,
                max_msg_size=FRAME_BYTES,
                autoping=True,
            )
        except aiohttp.ClientConnectorCertificateError as error:
            await session.close()
            raise NotTrusted(
                f"{address.websocket} is not trusted ({error.certificate_error}): give its CA by --ca"
            ) from error
        except aiohttp.ClientConnectorError as error:
            await session.close()
            # The error's own text shows the TLS context as Python prints it.
            why = error.os_error.strerror or str(error.os_error)
            raise Unreachable(f"{address.websocket} cannot be reached: {why}") from error
        except (TimeoutError, aiohttp.ClientError, OSError) as error:
            await session.close()
            raise Unreachable(f"{address.websocket} cannot be reached: {error or type(error).__name__}") from error
        except BaseException:
            await session.close()
            raise
        return WebSocketTransport(session, socket)

    return dial
