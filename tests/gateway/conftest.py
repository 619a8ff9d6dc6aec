"""A node with a clock that stands still, served on a real socket of the loopback interface."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Awaitable, Callable
from typing import Any

import pytest

from mwnode.client import Client, HttpClient
from mwnode.gateway.server import Server, serve
from mwnode.protocol.limits import Limits
from mwnode.testing import Harness, Participant
from tests.gateway.wire import Wire


class Served:
    """A harness and the server in front of its node; closes what tests have opened."""

    def __init__(self, harness: Harness, server: Server) -> None:
        self.harness = harness
        self.server = server
        self._wires: list[Wire] = []
        self._clients: list[Client] = []
        self._https: list[HttpClient] = []

    @property
    def hub(self) -> Any:
        return self.server.hub

    async def dial(self) -> Wire:
        """A raw connection that has said nothing yet."""
        wire = await Wire.dial(self.server.url)
        self._wires.append(wire)
        return wire

    async def agent(self, who: Participant) -> Wire:
        """A raw connection that an Agent has authenticated on."""
        wire = await self.dial()
        await wire.hello(who)
        return wire

    async def client(self, who: Participant, **options: Any) -> Client:
        """A whole client."""
        client = await Client.connect(self.server.url, who.key, clock=self.harness.clock, **options)
        who.session_epoch = client.session_epoch
        self._clients.append(client)
        return client

    def http(self, who: Participant | None = None) -> HttpClient:
        """A synchronous client; call it by ``asyncio.to_thread``."""
        client = HttpClient(self.server.url, who.key if who is not None else None, clock=self.harness.clock)
        self._https.append(client)
        return client

    async def advance(self, seconds: int) -> None:
        """Let time pass for the node and the gateway."""
        self.harness.advance(seconds)
        self.server.hub.tick()
        await asyncio.sleep(0)

    async def close(self) -> None:
        for client in self._clients:
            await client.close()
        for http in self._https:
            http.close()
        for wire in self._wires:
            await wire.close()
        await self.server.close()


Start = Callable[..., Awaitable[Served]]


@pytest.fixture
async def start(mwnode: Harness, monkeypatch: pytest.MonkeyPatch) -> AsyncIterator[Start]:
    """Serve the harness's node, with limits of the test's own choice: ``await start(outbox_frames=8)``."""
    running: list[Served] = []

    async def begin(**limits: Any) -> Served:
        if limits:
            monkeypatch.setattr(type(mwnode.node), "limits", Limits(**limits))
        served = Served(mwnode, await serve(mwnode.node))
        running.append(served)
        return served

    yield begin
    for served in running:
        await served.close()


@pytest.fixture
async def served(start: Start) -> Served:
    """The harness's node, served with ordinary limits."""
    return await start()
