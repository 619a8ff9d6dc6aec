"""The node of a Harness on a real socket: a free port of the loopback interface, by TLS 1.3 or in plain text.

The server has an event loop in a thread of its own, so that synchronous and asynchronous tests use it alike.
"""

from __future__ import annotations

import asyncio
import threading
from concurrent.futures import Future
from pathlib import Path
from types import TracebackType
from typing import TYPE_CHECKING, Any

from mwnode import certificates
from mwnode.client import Client, HttpClient
from mwnode.gateway.server import Server, serve, server_tls
from mwnode.system import OsEntropy, SystemClock

if TYPE_CHECKING:
    from mwnode.testing.harness import Harness
    from mwnode.testing.people import Participant

HOST = "127.0.0.1"


class Served:
    """A served node; a context manager, also an asynchronous one. ``close`` also closes the clients made here.

    ``url`` is where Agents connect, ``http`` where everybody else does, ``ca`` the certificate to trust, ``None`` in
    plain text.
    """

    def __init__(self, harness: Harness, *, tls: bool = True) -> None:
        self._harness = harness
        self.ca = _certificates(harness) if tls else None
        self._https: list[HttpClient] = []
        self._stop: asyncio.Event | None = None
        self._loop: asyncio.AbstractEventLoop | None = None
        self._dying = False
        listening: Future[Server] = Future()
        self._thread = threading.Thread(target=self._run, args=(listening,), name="mwnode-testing-server", daemon=True)
        self._thread.start()
        self.server = listening.result()
        self.url, self.http = self.server.url, self.server.http

    def client(self, who: Participant, **options: Any) -> HttpClient:
        """A synchronous client of the HTTP surface, as somebody."""
        client = HttpClient(self.url, who.key, self.ca, clock=self._harness.clock, **options)
        self._https.append(client)
        return client

    async def connect(self, who: Participant, **options: Any) -> Client:
        """An Agent's lasting connection over the WebSocket; close it yourself. ``who`` then signs under its Session."""
        client = await Client.connect(self.url, who.key, self.ca, clock=self._harness.clock, **options)
        who.session_epoch = client.session_epoch
        return client

    def close(self) -> None:
        """Stop in order. Idempotent."""
        for client in self._https:
            client.close()
        if self._thread.is_alive() and self._loop is not None and self._stop is not None:
            self._loop.call_soon_threadsafe(self._stop.set)
        self._thread.join()

    def kill(self) -> None:
        """Die with the node: connections end without a word, and what waited is neither decided nor kept."""
        self._dying = True
        self._harness.faults.kill()
        self.close()

    def __enter__(self) -> Served:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, value: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()

    async def __aenter__(self) -> Served:
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, value: BaseException | None, trace: TracebackType | None
    ) -> None:
        await asyncio.to_thread(self.close)

    def _run(self, listening: Future[Server]) -> None:
        asyncio.run(self._serve(listening))

    async def _serve(self, listening: Future[Server]) -> None:
        self._stop, self._loop = asyncio.Event(), asyncio.get_running_loop()
        try:
            tls = server_tls(self.ca.parent / "server.pem", self.ca.parent / "server.key") if self.ca else None
            server = await serve(self._harness.node, HOST, 0, tls=tls)
        except BaseException as error:
            listening.set_exception(error)
            return
        listening.set_result(server)
        await self._stop.wait()
        if self._dying:
            for connection in tuple(server.hub.connections.values()):
                connection.peer.abort()
        await server.close()


def _certificates(harness: Harness) -> Path:
    """A local CA and a server certificate that are valid by the machine's clock, whatever the test's clock shows."""
    folder = harness.home.parent / f"{harness.home.name}-tls"
    ca = folder / "ca.pem"
    if not ca.exists():
        clock, entropy = SystemClock(), OsEntropy()
        folder.mkdir(mode=0o700)
        authority = certificates.issue_authority(harness.node.organization_id, clock.now(), entropy)
        certificate, key = certificates.issue_server(authority, (HOST,), clock.now(), entropy)
        (folder / "server.pem").write_bytes(certificate)
        (folder / "server.key").touch(mode=0o600)
        (folder / "server.key").write_bytes(key)
        ca.write_bytes(authority[0])
    return ca
