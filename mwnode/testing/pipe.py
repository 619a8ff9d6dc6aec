"""Connections to the node without a socket: the client's engine and the gateway's, joined by two queues in one loop.

All that happens on a WebSocket happens here: HELLO, SUBSCRIBE, flow control, fencing, closing with a code. The faults
of the Harness hold for each message.
"""

from __future__ import annotations

import asyncio
from collections import deque
from collections.abc import Sequence
from types import TracebackType
from typing import TYPE_CHECKING

from mwnode.client import Client
from mwnode.client.errors import Unreachable
from mwnode.client.transports import Transport
from mwnode.gateway.connection import Connection
from mwnode.gateway.flow import Parcel
from mwnode.gateway.hub import Hub
from mwnode.protocol.documents import Actor
from mwnode.protocol.errors import AuthStaleSession, ErrorCode, Rejection
from mwnode.trust.registry import Registry

if TYPE_CHECKING:
    from mwnode.testing.harness import Harness
    from mwnode.testing.people import Participant

CONGESTED_BYTES = 256 * 1024
"""Bytes that the client has not taken beyond which the node sends no more."""


class Pipe:
    """One connection: the node's ``gateway.connection.Peer`` and the client's ``Transport`` in one."""

    def __init__(self, harness: Harness, agent_id: str) -> None:
        self._harness = harness
        self.agent_id = agent_id
        self._hub: Hub | None = None
        self._connection: Connection | None = None
        self._waiting: deque[bytes] = deque()
        self._bytes = 0
        self._something = asyncio.Event()
        self._room = asyncio.Event()
        self.over = False
        self._fenced = False
        self.close_code: int | None = None
        """Why the node closed the connection, where it did."""

    def attach(self, hub: Hub) -> None:
        """Begin; Unreachable when the node takes no more connections."""
        connection = hub.attach(self)
        if isinstance(connection, Rejection):
            raise Unreachable(f"the node takes no connection: {connection.message}")
        self._hub, self._connection = hub, connection

    # --- the node's end ---

    def write(self, parcels: Sequence[Parcel]) -> None:
        if self.over or self._harness.faults.way_of(self.agent_id).deaf:
            return
        for parcel in parcels:
            for frame in parcel.frames:
                self._waiting.append(frame)
                self._bytes += len(frame)
        self._something.set()

    @property
    def congested(self) -> bool:
        return self._bytes > CONGESTED_BYTES

    async def drained(self) -> None:
        while self.congested:
            self._room.clear()
            await self._room.wait()
        if self.over:
            raise ConnectionResetError("the connection is over")

    async def close(self, code: int = 1000, reason: str = "") -> None:
        """Either end closes: what was written before is still received."""
        self.close_code = self.close_code or code
        self._fenced = reason == ErrorCode.AUTH_STALE_SESSION
        self.abort()

    def known(self, principal: Actor) -> None:
        """The Agent has authenticated; there is no door to tell."""

    def spent(self, seconds: float) -> None:
        """Nobody else is on this loop: there is no budget to charge."""

    def abort(self) -> None:
        if self.over:
            return
        self.over = True
        self._bytes = 0
        self._something.set()
        self._room.set()
        if self._hub is not None and self._connection is not None:
            self._hub.detach(self._connection)

    # --- the client's end ---

    async def send(self, messages: Sequence[bytes]) -> None:
        hub, connection = self._hub, self._connection
        if hub is None or connection is None:
            raise ConnectionResetError("the connection was never made")
        for message in messages:
            way = self._harness.faults.way_of(self.agent_id)
            if self.over or way.cut:
                self.abort()
                raise ConnectionResetError("the connection is over")
            if way.delay:
                await asyncio.to_thread(self._harness.advance, way.delay)
            for _ in range(way.copies if b'"COMMAND"' in message else 1):
                hub.receive(connection, message)
                if connection.braked:
                    await hub.room(connection)

    async def receive(self) -> bytes | None:
        while not self._waiting:
            if self._fenced:
                raise AuthStaleSession("the node closed this connection for a newer one of the same Agent")
            if self.over:
                return None
            self._something.clear()
            await self._something.wait()
        message = self._waiting.popleft()
        self._bytes = max(0, self._bytes - len(message))
        self._room.set()
        return message


class Switchboard:
    """Joins clients to the node of a Harness on the running event loop, without a socket; an asynchronous context.

    When the node is restarted, connections end and clients connect again, as over a network.
    """

    def __init__(self, harness: Harness) -> None:
        self._harness = harness
        self.hub = Hub(harness.node)
        self._loop = asyncio.get_running_loop()
        self._pipes: list[Pipe] = []
        self._clients: list[Client] = []

    async def __aenter__(self) -> Switchboard:
        self.hub.start()
        self._harness.faults.on_cut.append(self._look)
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, value: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._harness.faults.on_cut.remove(self._look)
        for client in self._clients:
            await client.close()
        await self.hub.stop()

    async def connect(self, who: Participant, *, patient: bool = False) -> Client:
        """An Agent's lasting connection. ``who`` signs under its Session from now on.

        Raises Unreachable while the way of ``who`` is cut, and the MissionWeaveError of a refused handshake.
        """
        harness = self._harness

        async def registry() -> Registry:
            return harness.node.registry

        client = Client(
            who.key, lambda: self._dial(who), registry=registry, clock=harness.clock, entropy=harness.entropy
        )
        await client.start(patient=patient)
        who.session_epoch = client.session_epoch
        self._clients.append(client)
        return client

    async def _dial(self, who: Participant) -> Transport:
        if self._harness.faults.way_of(who.id).cut:
            raise Unreachable(f"the way of {who.name} is cut")
        node = self._harness.node
        if node.closed:
            raise Unreachable("the node is not there: mwnode.restart() starts it again")
        if self.hub.authority is not node:
            await self.hub.stop(0.0)
            self.hub = Hub(node)
            self.hub.start()
        pipe = Pipe(self._harness, who.id)
        pipe.attach(self.hub)
        self._pipes = [each for each in self._pipes if not each.over]
        self._pipes.append(pipe)
        return pipe

    def _look(self) -> None:
        """End what cannot go on; from any thread."""
        self._loop.call_soon_threadsafe(self._end)

    def _end(self) -> None:
        gone = self.hub.authority is not self._harness.node or self._harness.node.closed
        for pipe in self._pipes:
            if gone or self._harness.faults.way_of(pipe.agent_id).cut:
                pipe.abort()
