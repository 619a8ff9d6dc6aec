"""Shell: the listening socket. WebSocket at ``/ws`` and HTTP beside it, on one port, by TLS 1.3.

``serve`` is all that a program needs:

    server = await serve(node, "127.0.0.1", 8765, tls=server_tls(certificate, key))
    ...
    await server.close()
"""

from __future__ import annotations

import asyncio
import contextlib
import ipaddress
import logging
import resource
import ssl
import time
from collections.abc import Callable, Sequence
from pathlib import Path

from aiohttp import WSCloseCode, WSMsgType, web
from aiohttp.abc import AbstractStreamWriter

from mwnode.authority.state import principal_key
from mwnode.gateway.budget import READ_SECONDS
from mwnode.gateway.connection import Connection
from mwnode.gateway.doors import Doors
from mwnode.gateway.flow import Parcel
from mwnode.gateway.http import add_routes
from mwnode.gateway.hub import CROWDED, Hub
from mwnode.gateway.listener import LISTENER, Exchange, Listener, watch
from mwnode.gateway.metrics import Metrics
from mwnode.gateway.ports import Authority
from mwnode.protocol.documents import Actor
from mwnode.protocol.errors import Rejection
from mwnode.protocol.limits import Limits
from mwnode.protocol.scalars import SAFE_INTEGER_MAX
from mwnode.seldom import Seldom

CONGESTED_BYTES = 256 * 1024
"""Unsent bytes in a transport beyond which frames wait in the outbox instead."""
TURN_MESSAGES = 64
"""Messages of one connection handled in a row before others have their turn."""
CLOSE_SECONDS = 2.0
"""How long the peer may take to answer a WebSocket close."""
CLOSE_POLL_SECONDS = 0.02
LINGER_SECONDS = 10.0
"""How long what was written before a close may take to leave."""
FILES_APART = 64
"""File descriptors for everything but connections."""
HUB = web.AppKey("hub", Hub)


class _DeadSends(logging.Filter):
    """asyncio warns of each write to a peer that has gone; that there was one, now and then, is enough."""

    def __init__(self) -> None:
        super().__init__()
        self._seldom = Seldom(logger, time.monotonic)

    def filter(self, record: logging.LogRecord) -> bool:
        return record.msg != "socket.send() raised exception." or self._seldom.left_out("send") is not None


logger = logging.getLogger(__name__)


class _Socket(web.WebSocketResponse):
    """A WebSocket that says in the protocol's words why an oversized message ends it, before it closes."""

    connection: Connection | None = None
    hub: Hub | None = None

    async def close(self, *, code: int = WSCloseCode.OK, message: bytes = b"", drain: bool = True) -> bool:
        if code == WSCloseCode.MESSAGE_TOO_BIG and self.connection is not None and self.hub is not None:
            self.hub.perform(self.connection, self.connection.engine.too_large())
            self.hub.flush()
            if self.connection.writer is not None:
                await asyncio.wait((self.connection.writer,))
        return await super().close(code=code, message=message, drain=drain)


class _SocketPeer:
    """Writes whole WebSocket frames straight to the transport; a batch of them is one write.

    Frames are neither compressed nor masked (RFC 6455: a server masks nothing), so that many receivers share the bytes.
    """

    def __init__(
        self,
        transport: asyncio.Transport,
        writer: AbstractStreamWriter,
        *,
        known: Callable[[Actor], None] = lambda principal: None,
        spent: Callable[[float], None] = lambda seconds: None,
    ) -> None:
        self.known = known
        self.spent = spent
        self._transport = transport
        self._writer = writer
        self.ended = asyncio.Event()
        """Set when nothing is received any more."""

    def write(self, parcels: Sequence[Parcel]) -> None:
        if not self._transport.is_closing():
            self._transport.write(b"".join([parcel.joined or _join(parcel) for parcel in parcels]))

    @property
    def congested(self) -> bool:
        # A TLS transport that is torn down has no buffer to ask about any more.
        return not self._transport.is_closing() and self._transport.get_write_buffer_size() > CONGESTED_BYTES

    async def drained(self) -> None:
        if self._transport.is_closing():
            raise ConnectionResetError("the connection is closed")
        await self._writer.drain()
        # The transport signals room at its own marks; ours may lie between them.
        while self.congested and not self._transport.is_closing():
            await asyncio.sleep(0.01)

    async def close(self, code: int, reason: str) -> None:
        """Say why, then let the peer close: closing over what it still sends would destroy what it was told."""
        if self._transport.is_closing():
            return
        payload = code.to_bytes(2, "big") + reason.encode()[:120]
        self._transport.write(b"\x88%c" % len(payload) + payload)
        with contextlib.suppress(TimeoutError):
            async with asyncio.timeout(CLOSE_SECONDS):
                while not self.ended.is_set() and not self._transport.is_closing():
                    await asyncio.sleep(CLOSE_POLL_SECONDS)
        self._transport.close()
        # What the peer does not take would keep the transport open for ever.
        asyncio.get_running_loop().call_later(LINGER_SECONDS, self._transport.abort)

    def abort(self) -> None:
        self._transport.abort()


def _join(parcel: Parcel) -> bytes:
    """The frames of a parcel as unmasked WebSocket text frames, made once for all who get it."""
    parts: list[bytes] = []
    for frame in parcel.frames:
        size = len(frame)
        if size < 126:
            parts.append(b"\x81%c" % size)
        elif size < 65_536:
            parts.append(b"\x81\x7e" + size.to_bytes(2, "big"))
        else:
            parts.append(b"\x81\x7f" + size.to_bytes(8, "big"))
        parts.append(frame)
    parcel.joined = b"".join(parts)
    return parcel.joined


def _newest(request: web.Request) -> int:
    """What ``/ws?newest=N`` says; a client that does not say it means to be the newest whatever there is."""
    said = request.query.get("newest", "")
    return int(said) if said.isascii() and said.isdigit() and len(said) <= 16 else SAFE_INTEGER_MAX


async def _websocket(request: web.Request) -> web.StreamResponse:
    hub = request.app[HUB]
    socket = _Socket(
        timeout=CLOSE_SECONDS,
        autoping=False,
        compress=False,
        max_msg_size=hub.authority.limits.frame_bytes,
        decode_text=False,
    )
    writer = await socket.prepare(request)
    transport = request.transport
    if transport is None:
        return socket
    doors, exchange, now = request.app[LISTENER].doors, request.protocol, asyncio.get_running_loop().time
    assert isinstance(exchange, Exchange), "every connection came by the listener"
    visit = exchange.visit
    peer = _SocketPeer(
        transport,
        writer,
        known=lambda principal: doors.know(visit, principal_key(principal), now()),
        spent=exchange.spent,
    )
    fits = doors.greet(visit, now())
    connection = hub.attach(peer, request.remote or "", _newest(request)) if fits else CROWDED
    if isinstance(connection, Rejection):
        await socket.send_str(hub.replies.error(connection, fatal=True).decode())
        await socket.close(code=WSCloseCode.TRY_AGAIN_LATER)
        return socket
    socket.connection, socket.hub = connection, hub
    try:
        await _receive(hub, connection, socket, exchange)
    finally:
        peer.ended.set()
        hub.detach(connection)
    return socket


async def _receive(hub: Hub, connection: Connection, socket: _Socket, exchange: Exchange) -> None:
    in_a_row = 0
    while True:
        message = await socket.receive()
        begun = time.thread_time()
        if message.type is WSMsgType.TEXT:
            hub.receive(connection, message.data)
        elif message.type is WSMsgType.BINARY:
            hub.perform(connection, connection.engine.binary())
        elif message.type is WSMsgType.PING:
            await socket.pong(message.data)
        elif message.type is not WSMsgType.PONG:
            return
        exchange.spent(time.thread_time() - begun + READ_SECONDS + connection.cost())
        if owed := exchange.owed:
            # Kept waiting by us, so its silence meanwhile is none of its own.
            hub.flush()
            await asyncio.sleep(owed)
            hub.heard(connection)
        if connection.braked:
            await hub.room(connection)
        in_a_row += 1
        if in_a_row >= TURN_MESSAGES:
            in_a_row = 0
            await asyncio.sleep(0)


class Server:
    """A listening node. ``port`` is the one that was really taken."""

    def __init__(self, hub: Hub, runner: web.AppRunner, listener: Listener, host: str, port: int, secure: bool) -> None:
        self.hub = hub
        self._runner = runner
        self._listener = listener
        self.host = host
        self.port = port
        self.secure = secure

    @property
    def _netloc(self) -> str:
        # Nobody can connect to "every address": name this machine instead.
        host = {"0.0.0.0": "127.0.0.1", "::": "::1"}.get(self.host, self.host)
        return f"[{host}]:{self.port}" if ":" in host else f"{host}:{self.port}"

    @property
    def url(self) -> str:
        """Where Agents connect."""
        return f"{'wss' if self.secure else 'ws'}://{self._netloc}/ws"

    @property
    def http(self) -> str:
        """Where everybody else does."""
        return f"{'https' if self.secure else 'http'}://{self._netloc}"

    async def close(self, seconds: float = 5.0) -> None:
        """Stop in order: what was accepted is answered, connections are closed with 1001 (decision E15)."""
        await self.hub.stop(seconds)
        await self._listener.close()
        await self._runner.cleanup()


def server_tls(certificate: Path | str, key: Path | str, client_ca: Path | str | None = None) -> ssl.SSLContext:
    """TLS 1.3 and nothing older (R-17.1-01). ValueError when certificate and key cannot be used.

    ``client_ca`` wants of every client a certificate by that CA. It is a layer below: who an Agent is, the handshake of
    the protocol says all the same (R-6.3-09).
    """
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    context.minimum_version = ssl.TLSVersion.TLSv1_3
    try:
        context.load_cert_chain(certificate, key)
    except OSError as error:
        raise ValueError(f"the certificate {certificate} or its key {key} cannot be used: {error}") from error
    if client_ca is not None:
        context.verify_mode = ssl.CERT_REQUIRED
        context.load_verify_locations(client_ca)
    return context


def assemble(authority: Authority, tls: ssl.SSLContext | None = None) -> tuple[Hub, web.AppRunner, Listener]:
    """A server with everything but its socket: neither its runner is set up nor its hub started."""
    hub, limits = Hub(authority), authority.limits
    # Each body has a bound of its own.
    app = web.Application(client_max_size=limits.frame_bytes)
    app[HUB] = hub
    app.middlewares.append(watch)
    app.router.add_get("/ws", _websocket)
    tools = add_routes(app, hub, Metrics(hub))
    runner = web.AppRunner(app, access_log=None, handle_signals=False, shutdown_timeout=CLOSE_SECONDS)
    listening = app[LISTENER] = Listener(
        runner,
        _doors(limits),
        tools.malformed,
        tools.seldom,
        tls=tls,
        patience=limits.handshake_timeout,
        send_timeout=limits.send_timeout,
    )
    return hub, runner, listening


async def serve(
    authority: Authority, host: str = "127.0.0.1", port: int = 0, *, tls: ssl.SSLContext | None = None
) -> Server:
    """Listen on a host and port (0 = any free one). Without ``tls`` the host must be a loopback address.

    Raises ValueError for plain text elsewhere, OSError when the port cannot be taken.
    """
    if tls is None and not _is_loopback(host):
        raise ValueError(f"{host} is no loopback address: plain text is for loopback only, use TLS there")
    asyncio_log = logging.getLogger("asyncio")
    if not any(isinstance(each, _DeadSends) for each in asyncio_log.filters):
        asyncio_log.addFilter(_DeadSends())
    hub, runner, listening = assemble(authority, tls)
    await runner.setup()
    try:
        taken = await listening.open(host, port)
    except BaseException:
        await runner.cleanup()
        raise
    hub.start()
    return Server(hub, runner, listening, host, taken, tls is not None)


def _doors(limits: Limits) -> Doors:
    """Bounds that this process has file descriptors for, so that none of them is ever reached by running out."""
    known, unknown = limits.connections, limits.unauthenticated_connections
    allowed, _ = resource.getrlimit(resource.RLIMIT_NOFILE)
    room = allowed - FILES_APART
    if allowed != resource.RLIM_INFINITY and known + 2 * unknown > room:
        unknown = max(1, min(unknown, room // 4))
        known = max(1, room - 2 * unknown)
        text = "%d files may be open here, so at most %d connections are kept instead of %d (ulimit -n)"
        logger.warning(text, allowed, known, limits.connections)
    return Doors(known, unknown)


def _is_loopback(host: str) -> bool:
    with contextlib.suppress(ValueError):
        return ipaddress.ip_address(host).is_loopback
    return host == "localhost"
