"""Shell: takes connections, at their own pace and within bounds, and ends those that do not get on.

asyncio's own servers take whoever comes, and aiohttp waits for ever for the request of a peer that says nothing. Here
every connection is counted from its first packet on, and has to finish its TLS handshake and the head of its request in
time.
"""

from __future__ import annotations

import asyncio
import contextlib
import logging
import socket
import ssl
import time
from asyncio import sslproto
from collections.abc import Awaitable, Callable, Coroutine
from typing import Any

from aiohttp import web
from aiohttp.http_exceptions import HttpProcessingError

from mwnode.gateway.budget import ACCEPT_SECONDS, BYTE_SECONDS, READ_SECONDS, REQUEST_SECONDS
from mwnode.gateway.doors import Doors, Visit
from mwnode.seldom import Seldom

BACKLOG = 1024
KEEPALIVE_SECONDS = 75.0
"""How long a known peer may be idle between two requests."""
LINGERING_SECONDS = 1.0
"""How long the rest of a refused body is read, so that its sender gets to read the refusal."""
EXHAUSTED_SECONDS = 0.1
"""How long to wait for a free file descriptor."""
BRAKE_SECONDS = 1.0
"""How long a peer over its budget is kept waiting at once, at most."""
PIECE_BYTES = 8 * 1024
"""How much of what came is looked at before the peer's budget is looked at again."""
PLAIN_BYTES = 64 * 1024
"""How much of a request without TLS is taken, to answer it."""
TLS_BUFFER_BYTES = 32 * 1024
"""What asyncio sets aside for each TLS connection; its own 256 KiB would be most of the memory of idle Agents."""
TLS_HANDSHAKE = 0x16
"""First byte of every TLS connection (RFC 8446, 5.1)."""

logger = logging.getLogger(__name__)

Malformed = Callable[[int, str], web.Response]
"""Makes the answer to what is no HTTP request, from its status and what is wrong."""


class Exchange(web.RequestHandler):
    """HTTP on one connection. What a peer does wrong is a line in the log now and then, never a traceback."""

    def __init__(self, server: web.Server, listener: Listener, visit: Visit) -> None:
        super().__init__(
            server,
            loop=asyncio.get_running_loop(),
            access_log=None,  # type: ignore[arg-type]  # aiohttp's own runner passes None for no log, too
            keepalive_timeout=KEEPALIVE_SECONDS,
            lingering_time=LINGERING_SECONDS,
            # What is uploaded is what was sent: bytes are never unpacked in silence.
            auto_decompress=False,
        )
        self._listener = listener
        self.visit = visit
        self._braked = False
        self._held = b""

    # --- what the peer costs ---

    def data_received(self, data: bytes) -> None:
        if not data or (self.visit.known and not self.visit.websocket):
            # Requests of known peers are charged one by one, and Artifacts come at any speed.
            super().data_received(data)
        elif self._braked:
            # Reading is paused: what was on its way already is no more than one read.
            self._held += data
        else:
            self._take(data)

    def _take(self, data: bytes) -> None:
        """Take what came, piece by piece, for as long as the peer is within its budget."""
        for start in range(0, len(data), PIECE_BYTES):
            begun = time.thread_time()
            super().data_received(data[start : start + PIECE_BYTES])
            self.spent(time.thread_time() - begun + READ_SECONDS)
            self.brake()
            if self._braked:
                self._held = data[start + PIECE_BYTES :]
                return

    def spent(self, seconds: float) -> None:
        """The peer has cost so much of the loop's time; less than nothing was of use."""
        self._listener.doors.spent(self.visit, seconds, self._loop.time())

    @property
    def owed(self) -> float:
        """How long the peer is to be kept waiting, in seconds (R-17.3-01)."""
        return min(BRAKE_SECONDS, self._listener.doors.owed(self.visit, self._loop.time()))

    def brake(self) -> None:
        """Read nothing more while the peer is over its budget."""
        owed = self.owed
        if owed > 0 and not self._braked:
            self._braked = True
            self._pause_transport_reading()
            self._loop.call_later(owed, self._ease)

    def _ease(self) -> None:
        self._braked = False
        held, self._held = self._held, b""
        if held:
            self._take(held)
        if not (self._braked or self._reading_paused or self._buffer_paused):
            self._resume_transport_reading()

    def _resume_transport_reading(self) -> None:
        # aiohttp resumes when its own buffers have room again; ours is another reason to wait.
        if not self._braked:
            super()._resume_transport_reading()

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        super().connection_made(transport)
        assert isinstance(transport, asyncio.Transport)
        self.visit.cut = transport.abort
        self.visit.waiting_since = self._loop.time()
        self._listener.made(self.visit, transport)

    def connection_lost(self, exc: BaseException | None) -> None:
        self._listener.lost(self.visit)
        super().connection_lost(exc)

    def handle_error(
        self,
        request: web.BaseRequest,
        status: int = 500,
        exc: BaseException | None = None,
        message: str | None = None,
    ) -> web.StreamResponse:
        if isinstance(exc, ConnectionError):
            # The peer has gone: whatever is answered is for nobody.
            self._listener.seldom.log(logging.INFO, "gone", "a peer went away before it was answered")
            return self._listener.malformed(status, "")
        if isinstance(exc, (HttpProcessingError, web.RequestPayloadError)) or status < 500:
            text = " ".join((message or "this is no HTTP request").split())[:200]
            where = "HTTP request from %s that cannot be read: %s"
            self._listener.seldom.log(logging.INFO, "malformed", where, self.visit.address, text)
            response = self._listener.malformed(400, text)
            response.force_close()
            return response
        return super().handle_error(request, status, exc, message)

    def log_exception(self, *arguments: object, **options: object) -> None:
        if isinstance(options.get("exc_info"), (ConnectionError, HttpProcessingError, web.RequestPayloadError)):
            self._listener.seldom.log(logging.INFO, "gone", "a peer went away before it was answered")
            return
        self.logger.exception(*arguments, **options)  # type: ignore[arg-type]  # handed on as they came


@web.middleware
async def watch(
    request: web.Request, handler: Callable[[web.Request], Awaitable[web.StreamResponse]]
) -> web.StreamResponse:
    """Keep in mind whether it is a peer or we who are waited for, and keep to the peer's budget."""
    exchange = request.protocol
    if not isinstance(exchange, Exchange):
        return await handler(request)
    visit = exchange.visit
    visit.waiting_since = None
    exchange.spent(REQUEST_SECONDS)
    try:
        while owed := exchange.owed:
            await asyncio.sleep(owed)
        response = await handler(request)
        if isinstance(response, web.Response):
            exchange.spent(BYTE_SECONDS * (response.content_length or 0))
        return response
    finally:
        visit.waiting_since = asyncio.get_running_loop().time()


def visit_of(request: web.Request) -> Visit | None:
    """The connection that a request came by."""
    return request.protocol.visit if isinstance(request.protocol, Exchange) else None


class Listener:
    """Listening sockets and the connections that came by them."""

    def __init__(
        self,
        runner: web.AppRunner,
        doors: Doors,
        malformed: Malformed,
        seldom: Seldom,
        *,
        tls: ssl.SSLContext | None,
        patience: float,
        send_timeout: float,
    ) -> None:
        """``patience``: seconds for a TLS handshake, and for the head of a request of an unknown peer."""
        self.doors = doors
        self.malformed = malformed
        self.seldom = seldom
        self._runner = runner
        self._tls = tls
        self._patience = patience
        self._send_timeout = send_timeout
        self._sockets: list[socket.socket] = []
        self._tasks: set[asyncio.Task[None]] = set()
        self._unsent: dict[Visit, tuple[asyncio.Transport, int, float]] = {}

    async def open(self, host: str, port: int) -> int:
        """Listen; the port that was taken. OSError when it cannot be."""
        if self._tls is not None:
            # For the whole process, as asyncio has no other way to say it: each connection takes its buffer at once.
            sslproto.SSLProtocol.max_size = TLS_BUFFER_BYTES
        loop = asyncio.get_running_loop()
        found = await loop.getaddrinfo(host, port, type=socket.SOCK_STREAM, flags=socket.AI_PASSIVE)
        try:
            for family, kind, protocol, _, address in dict.fromkeys(found):
                self._sockets.append(_listen(family, kind, protocol, (address[0], port, *address[2:])))
                # One port for all addresses of the host.
                port = self._sockets[0].getsockname()[1]
        except BaseException:
            self._close_sockets()
            raise
        for listening in self._sockets:
            self._spawn(self._accept_for_ever(listening))
        self._spawn(self._sweep_for_ever())
        return port

    async def close(self) -> None:
        """Take no more connections, and give up those that are no further than their TLS handshake."""
        tasks = tuple(self._tasks)
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)
        self._close_sockets()

    def _close_sockets(self) -> None:
        for listening in self._sockets:
            listening.close()
        self._sockets.clear()

    # --- connections ---

    async def _accept_for_ever(self, listening: socket.socket) -> None:
        loop = asyncio.get_running_loop()
        while True:
            try:
                accepted, address = await loop.sock_accept(listening)
            except ConnectionError:
                continue
            except OSError as error:
                # No file descriptor is left, mostly: whoever has been silent for longest makes room.
                self.seldom.log(logging.ERROR, "accept", "no connection can be taken now: %s", error)
                self.doors.expel(loop.time())
                await asyncio.sleep(EXHAUSTED_SECONDS)
                continue
            greeting: list[asyncio.Task[None]] = []
            visit = self.doors.enter(address[0], loop.time(), lambda greeting=greeting: greeting[0].cancel())  # type: ignore[misc]  # mypy does not type the default
            if visit is None:
                self.seldom.log(logging.WARNING, "crowd", "too many connections: one from %s is refused", address[0])
                accepted.close()
                continue
            greeting.append(self._spawn(self._greet(accepted, visit)))

    async def _greet(self, accepted: socket.socket, visit: Visit) -> None:
        """The TLS handshake, where there is one; from then on the connection lives by itself."""
        loop = asyncio.get_running_loop()
        handed_over = False

        def protocol() -> Exchange:
            assert self._runner.server is not None, "connections come while the runner is set up"
            return Exchange(self._runner.server, self, visit)

        try:
            if self._tls is not None and not await self._speaks_tls(accepted):
                return
            self.doors.spent(visit, ACCEPT_SECONDS, loop.time())
            visit.waiting_since = None
            while owed := self.doors.owed(visit, loop.time()):
                await asyncio.sleep(min(owed, BRAKE_SECONDS))
            visit.waiting_since = loop.time()
            visit.cut = lambda: _hang_up(accepted)
            handed_over = True
            await loop.connect_accepted_socket(
                protocol,
                accepted,
                ssl=self._tls,
                ssl_handshake_timeout=self._patience if self._tls is not None else None,
            )
        except OSError as error:
            text = "a connection from %s was given up in its TLS handshake: %s"
            self.seldom.log(logging.INFO, "handshake", text, visit.address, _said(error))
        finally:
            if visit not in self._unsent:
                self.doors.leave(visit)
                # A transport that has the socket closes it, and must: another connection may get its number at once.
                _hang_up(accepted) if handed_over else accepted.close()

    async def _speaks_tls(self, accepted: socket.socket) -> bool:
        """Look at the first byte, before TLS costs anything: a peer that says nothing or something else ends here.

        OSError when it has gone or takes too long.
        """
        async with asyncio.timeout(self._patience):
            await _readable(accepted)
        first = accepted.recv(1, socket.MSG_PEEK)
        if first and first[0] != TLS_HANDSHAKE:
            self.seldom.log(logging.INFO, "plain", "a connection that begins without TLS is refused")
            # What is left unread would turn the end of the connection into a reset, and an answer would be lost.
            accepted.recv(PLAIN_BYTES)
            if first.isalpha():
                body = self.malformed(400, "this port speaks TLS 1.3: use https:// or wss://").body
                assert isinstance(body, bytes)
                accepted.send(_PLAIN_ANSWER % (len(body), body))
            return False
        return bool(first)

    def made(self, visit: Visit, transport: asyncio.Transport) -> None:
        """A connection has its transport."""
        self._unsent[visit] = (transport, 0, 0.0)

    def lost(self, visit: Visit) -> None:
        """A connection is over."""
        self.doors.leave(visit)
        self._unsent.pop(visit, None)

    # --- time ---

    async def _sweep_for_ever(self) -> None:
        while True:
            await asyncio.sleep(min(1.0, self._patience / 4))
            self.sweep(asyncio.get_running_loop().time())

    def sweep(self, now: float) -> None:
        """End what does not get on."""
        for visit in self.doors.overdue(now, self._patience):
            self.doors.leave(visit)
            visit.cut()
        for visit, (transport, size, since) in tuple(self._unsent.items()):
            if visit.websocket or visit.waiting_since is None:
                # The hub looks after WebSockets; a handler waits for its peer, and is bounded, by itself.
                continue
            left = 0
            with contextlib.suppress(AttributeError):  # a TLS transport that is torn down has nothing unsent
                left = transport.get_write_buffer_size()
            if left == 0 or left < size or size == 0:
                self._unsent[visit] = (transport, left, now)
            elif now - since > self._send_timeout:
                transport.abort()

    def _spawn(self, work: Coroutine[Any, Any, None]) -> asyncio.Task[None]:
        task = asyncio.create_task(work)
        self._tasks.add(task)
        task.add_done_callback(self._tasks.discard)
        return task


_PLAIN_ANSWER = (
    b"HTTP/1.1 400 Bad Request\r\nContent-Type: application/json\r\nContent-Length: %d\r\nConnection: close\r\n\r\n%b"
)


def _hang_up(connection: socket.socket) -> None:
    """End a connection whose socket belongs to a transport: it finds nothing more to read, and closes."""
    with contextlib.suppress(OSError):
        connection.shutdown(socket.SHUT_RDWR)


def _said(error: OSError) -> str:
    """An error in few words: the library's own name for it rather than its place in the library's source."""
    return str(getattr(error, "reason", None) or error.strerror or error or type(error).__name__)


async def _readable(connection: socket.socket) -> None:
    """Wait until there is something to read, without reading it."""
    loop = asyncio.get_running_loop()
    ready = asyncio.Event()
    loop.add_reader(connection, ready.set)
    try:
        await ready.wait()
    finally:
        loop.remove_reader(connection)


def _listen(family: int, kind: int, protocol: int, address: tuple[object, ...]) -> socket.socket:
    listening = socket.socket(family, kind, protocol)
    try:
        listening.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        if family == socket.AF_INET6:
            # Each family has a socket of its own.
            listening.setsockopt(socket.IPPROTO_IPV6, socket.IPV6_V6ONLY, 1)
        listening.setblocking(False)
        listening.bind(address)
        listening.listen(BACKLOG)
    except BaseException:
        listening.close()
        raise
    return listening


LISTENER = web.AppKey("listener", Listener)
