"""The virtual network: messages take time, links are cut and parted, and what was sent may come twice.

On one connection order holds, as TCP has it. WebSockets are carried message by message between the client's transport
and the node's hub; HTTP is carried as bytes between the client's own ``http.client`` and the node's own aiohttp.
"""

from __future__ import annotations

import asyncio
import hashlib
import io
import random
from collections import Counter
from collections.abc import Callable, Sequence
from functools import partial
from http.client import HTTPConnection
from typing import TYPE_CHECKING, Any

from mwnode.client.errors import Unreachable
from mwnode.client.http import HttpClient
from mwnode.gateway.connection import Connection
from mwnode.gateway.flow import Parcel
from mwnode.gateway.listener import Exchange
from mwnode.protocol.errors import Rejection
from tests.simulation.loop import OUTSIDE, BatonLock, Process, VirtualLoop, wait

if TYPE_CHECKING:
    from tests.simulation.machines import NodeMachine

CONNECT_SECONDS = 5.0
CONGESTED_BYTES = 64 * 1024
FORGET_SECONDS = 30.0
"""When a sender learns that a silent link is dead."""


class Route:
    """How one machine reaches the node at this moment."""

    def __init__(self, name: str, seed: int, injected: Counter[str]) -> None:
        self.name = name
        self.injected = injected
        self.chance = random.Random(f"{seed} route {name}")
        self.parted = False
        self.extra = 0.0
        self.doubling = False
        self.losing = False
        """HTTP answers get lost on their way back."""
        self.overtaking = False
        """A copy of each Command goes another way, which may be shorter or much longer."""
        self.wires: list[Wire] = []
        self.requests: list[Request] = []

    def latency(self) -> float:
        if self.extra:
            self.injected["delayed"] += 1
        return 0.0005 + self.chance.random() ** 3 * 0.02 + self.extra * self.chance.random()


class Network:
    """All routes to one node."""

    def __init__(self, loop: VirtualLoop, seed: int, trace: Callable[..., None]) -> None:
        self.loop = loop
        self.seed = seed
        self.trace = trace
        self.routes: dict[str, Route] = {}
        self.node: NodeMachine
        self.injected: Counter[str] = Counter()
        """What really went wrong, how often: a fault that meets nobody is none."""
        self.commands: list[bytes] = []
        """Commands that went over the network, for somebody to send again."""

    def route(self, name: str) -> Route:
        return self.routes.setdefault(name, Route(name, self.seed, self.injected))

    def part(self, name: str, parted: bool) -> None:
        """Let nothing through, or everything that waited and what comes."""
        route = self.route(name)
        route.parted = parted
        if not parted:
            for wire in list(route.wires):
                wire.go_on()
            for request in list(route.requests):
                request.go_on()

    def cut(self, name: str) -> None:
        """End every connection of a machine at once, with whatever is on its way."""
        route = self.route(name)
        self.injected["connections cut"] += len(route.wires) + len(route.requests)
        for wire in list(route.wires):
            wire.cut()
        for request in list(route.requests):
            request.fail(ConnectionResetError("cut"))

    def deafen(self, name: str) -> None:
        """What the machine's present connections carry to it is lost from now on, and nobody is told."""
        for wire in self.route(name).wires:
            self.injected["links deafened"] += 1
            wire.down.lost = True

    def silence(self, name: str) -> None:
        """What the machine sends by its present connections is lost from now on, and nobody is told."""
        for wire in self.route(name).wires:
            self.injected["links silenced"] += 1
            wire.up.lost = True

    def detour(self, wire: Wire, raw: bytes) -> None:
        """Bring a copy of the Command that the machine has just sent by the other door, before or after it."""
        number = wire.sent

        def arrive() -> None:
            if not self.node.up:
                return
            if wire.arrived != number:
                self.injected["delivered out of order"] += 1
            self.node.post(raw)

        delay = wire.route.chance.choice((0.0001, 0.05, 4.0)) * (0.5 + wire.route.chance.random())
        self.loop.call_later(delay, arrive, context=OUTSIDE)

    def node_down(self, *, silent: bool) -> None:
        """The node is gone. Its machine resets the connections, or went with it and says nothing."""
        for route in self.routes.values():
            for wire in list(route.wires):
                if silent:
                    wire.up.lost = wire.down.lost = True
                    self.loop.call_later(FORGET_SECONDS, wire.cut, context=OUTSIDE)
                else:
                    wire.cut()
            for request in list(route.requests):
                error = TimeoutError("no answer") if silent else ConnectionResetError("reset")
                delay = FORGET_SECONDS if silent else 0.01
                self.loop.call_later(delay, request.fail, error, context=OUTSIDE)

    async def dial(self, process: Process) -> ClientEnd:
        """A WebSocket of a machine."""
        route = self.route(process.name)
        await asyncio.sleep(route.latency())
        if route.parted:
            self.injected["held by a partition"] += 1
            await asyncio.sleep(CONNECT_SECONDS)
            raise Unreachable("no answer")
        if not self.node.up:
            raise Unreachable("nobody listens")
        wire = Wire(self, route, process)
        self.loop.call_later(route.latency(), wire.arrive, context=self.node.process.context)
        return wire.client


class Way:
    """One direction of a connection."""

    def __init__(self, wire: Wire, name: str, deliver: Callable[[bytes | None], None], process: Process) -> None:
        self._wire = wire
        self._name = name
        self._deliver = deliver
        self._process = process
        self._last = 0.0
        self._held: list[bytes | None] = []
        self._ended = False
        self.lost = False

    @property
    def held_bytes(self) -> int:
        return sum(len(message or b"") for message in self._held)

    def send(self, message: bytes | None) -> None:
        """Send a message, or ``None``: the sender has closed."""
        if self._ended or self._wire.over:
            return
        self._ended = message is None
        if self._wire.route.parted:
            self._wire.network.injected["held by a partition"] += 1
            self._held.append(message)
        elif not self.lost:
            self._schedule(message)
        elif message is not None:
            self._wire.network.injected["lost on the way"] += 1

    def go_on(self) -> None:
        held, self._held = self._held, []
        for message in held:
            if not self.lost:
                self._schedule(message)

    def _schedule(self, message: bytes | None) -> None:
        loop = self._wire.network.loop
        # Timers of the same moment have no order among them.
        self._last = max(self._last + 0.000001, loop.time() + self._wire.route.latency())
        loop.call_at(self._last, self._arrive, message, context=self._process.context)

    def _arrive(self, message: bytes | None) -> None:
        if self._wire.over or self.lost:
            if self.lost and message is not None:
                self._wire.network.injected["lost on the way"] += 1
            return
        self._wire.network.trace(self._name, self._wire.number, digest(message))
        self._deliver(message)


class Wire:
    """One WebSocket connection."""

    def __init__(self, network: Network, route: Route, process: Process) -> None:
        self.network = network
        self.route = route
        self.over = False
        self.sent = self.arrived = 0
        """Commands from this machine."""
        self.number = network.node.next_wire()
        self.client = ClientEnd(self)
        self.peer = PeerEnd(self)
        self.up = Way(self, f"up {route.name}", self.peer.arrived, network.node.process)
        self.down = Way(self, f"down {route.name}", self.client.arrived, process)
        route.wires.append(self)

    def arrive(self) -> None:
        """The connection has reached the node."""
        if self.over:
            return
        loop = self.network.loop
        loop.create_task(self.peer.serve(self.network.node))

    def go_on(self) -> None:
        self.up.go_on()
        self.down.go_on()

    def cut(self) -> None:
        """Both ends learn at once that it is over."""
        if self.over:
            return
        self.over = True
        self.route.wires.remove(self)
        self.client.queue.put_nowait(None)
        self.peer.queue.put_nowait(None)


class ClientEnd:
    """The client's transport."""

    def __init__(self, wire: Wire) -> None:
        self._wire = wire
        self.queue: asyncio.Queue[bytes | None] = asyncio.Queue()
        self._closed = False
        self.seen: Callable[[bytes], None] = lambda message: None

    async def send(self, messages: Sequence[bytes]) -> None:
        if self._wire.over or self._closed:
            raise ConnectionResetError("the connection is over")
        for message in messages:
            self._wire.up.send(message)
            if b'"frameType":"COMMAND"' in message:
                network = self._wire.network
                if self._wire.route.doubling:
                    network.injected["delivered twice"] += 1
                    self._wire.up.send(message)
                network.node.overheard(message)
                self._wire.sent += 1
                if self._wire.route.overtaking and network.commands:
                    network.detour(self._wire, network.commands[-1])

    async def receive(self) -> bytes | None:
        if self._closed:
            return None
        message = await self.queue.get()
        if message is None:
            self._closed = True
        else:
            self.seen(message)
        return message

    def arrived(self, message: bytes | None) -> None:
        self.queue.put_nowait(message)
        if message is not None and self._wire.route.doubling and b'"frameType":"EVENT"' in message:
            self._wire.network.injected["delivered twice"] += 1
            self.queue.put_nowait(message)

    async def close(self) -> None:
        self._closed = True
        self.queue.put_nowait(None)
        self._wire.up.send(None)


class PeerEnd:
    """The node's end: what the hub writes to and is fed from."""

    def __init__(self, wire: Wire) -> None:
        self._wire = wire
        self.queue: asyncio.Queue[bytes | None] = asyncio.Queue()
        self._closed = False

    def arrived(self, message: bytes | None) -> None:
        if message is not None and b'"frameType":"COMMAND"' in message:
            self._wire.arrived += 1
        self.queue.put_nowait(message)

    async def serve(self, node: NodeMachine) -> None:
        """What the server does with a WebSocket."""
        hub = node.hub
        connection = hub.attach(self)
        if isinstance(connection, Rejection):
            self._wire.down.send(hub.replies.error(connection, fatal=True))
            self._wire.down.send(None)
            return
        try:
            await self._receive(hub, connection)
        finally:
            hub.detach(connection)
            self._wire.down.send(None)

    async def _receive(self, hub: Any, connection: Connection) -> None:
        while True:
            message = await self.queue.get()
            if message is None:
                return
            hub.receive(connection, message)
            if connection.braked:
                await hub.room(connection)

    # --- gateway.connection.Peer ---

    def write(self, parcels: Sequence[Parcel]) -> None:
        for parcel in parcels:
            for frame in parcel.frames:
                self._wire.down.send(frame)

    @property
    def congested(self) -> bool:
        return not self._wire.over and self._wire.down.held_bytes > CONGESTED_BYTES

    async def drained(self) -> None:
        while True:
            if self._wire.over or self._closed:
                raise ConnectionResetError("the connection is closed")
            if not self.congested:
                return
            await asyncio.sleep(0.05)

    async def close(self, code: int, reason: str) -> None:
        self._closed = True
        self._wire.down.send(None)
        self.queue.put_nowait(None)

    def known(self, principal: Any) -> None:
        """There is no bound on connections of unknown peers here."""

    def spent(self, seconds: float) -> None:
        """What a peer costs is measured in real time, which no two runs share."""

    def abort(self) -> None:
        self._wire.cut()


# --- HTTP -------------------------------------------------------------------------------------------------------------


class Request:
    """One HTTP request on its way, over a connection of its own."""

    def __init__(self, network: Network, process: Process, raw: bytes, timeout: float) -> None:
        self.network = network
        self.process = process
        self.route = network.route(process.name)
        self.raw = raw
        self.timeout = timeout
        self.answer: bytes | None = None
        self.error: OSError | None = None
        self._done: Callable[[], None] | None = None
        self._held: list[Callable[[], None]] = []

    def start(self, done: Callable[[], None]) -> None:
        """On the loop: send it; ``done`` is called when there is an answer or an error."""
        self._done = done
        self.route.requests.append(self)
        loop = self.network.loop
        loop.call_later(self.timeout, self.fail, TimeoutError("timed out"), context=OUTSIDE)
        self._pass(lambda: loop.call_later(self.route.latency(), self._reach, context=OUTSIDE))

    def _pass(self, go: Callable[[], object]) -> None:
        if self.route.parted:
            self.network.injected["held by a partition"] += 1
            self._held.append(go)  # type: ignore[arg-type]
        else:
            go()

    def go_on(self) -> None:
        held, self._held = self._held, []
        for go in held:
            go()

    def _reach(self) -> None:
        if self._done is None:
            return
        node = self.network.node
        if not node.up:
            self.fail(ConnectionRefusedError("nobody listens"))
            return
        self.network.trace(f"http {self.route.name}", digest(self.raw))
        node.process.context.run(partial(node.exchange, self.raw, self._answered))
        doubled = self.route.doubling and self.raw.startswith(b"POST /v0.1/commands ")
        if doubled:
            self.network.injected["delivered twice"] += 1
            node.process.context.run(partial(node.exchange, self.raw, lambda answer: None))

    def _answered(self, answer: bytes) -> None:
        if self.route.losing:
            self.network.injected["answers lost"] += 1
            self.fail(ConnectionResetError("the answer was lost"))
            return
        self._pass(lambda: self.network.loop.call_later(self.route.latency(), self._finish, answer, context=OUTSIDE))

    def _finish(self, answer: bytes) -> None:
        if self._done is not None:
            self.answer = answer
            self._end()

    def fail(self, error: OSError) -> None:
        if self._done is not None:
            self.error = error
            self._end()

    def _end(self) -> None:
        done, self._done = self._done, None
        self.route.requests.remove(self)
        assert done is not None
        done()


class SimSocket:
    """What ``http.client`` takes for its socket."""

    def __init__(self, network: Network, process: Process) -> None:
        self._network = network
        self._process = process
        self._sent = bytearray()
        self._timeout = 30.0

    def settimeout(self, timeout: float) -> None:
        self._timeout = timeout

    def sendall(self, data: Any) -> None:
        self._sent += data

    def makefile(self, mode: str, *_: object) -> io.BytesIO:
        line, _sep, rest = bytes(self._sent).partition(b"\r\n")
        request = Request(self._network, self._process, line + b"\r\nConnection: close\r\n" + rest, self._timeout)
        wait(request.start)
        if request.error is not None:
            raise request.error
        assert request.answer is not None, "a request ends with an answer or an error"
        return io.BytesIO(request.answer)

    def close(self) -> None:
        """Each connection carries one request."""

    def shutdown(self, how: int) -> None:
        """As ``close``."""


class SimHttp(HttpClient):
    """The product's own HTTP client over the virtual network; its locks and threads take turns."""

    def __init__(self, network: Network, process: Process, key: Any, clock: Any, entropy: Any) -> None:
        super().__init__("ws://127.0.0.1:1/ws", key, clock=clock, entropy=entropy)
        self._network = network
        self._process = process
        self._authenticating = BatonLock()  # type: ignore[assignment]

    def _connection(self, kept: bool) -> HTTPConnection | None:
        if kept:
            return None
        connection = HTTPConnection("127.0.0.1", 1)
        connection.sock = SimSocket(self._network, self._process)  # type: ignore[assignment]
        return connection

    def _forget(self) -> None:
        """Each connection carries one request."""


class SimExchange(Exchange):
    """The node's own HTTP on one connection, but for the real time that it counts against its peer."""

    def spent(self, seconds: float) -> None:
        """As ``PeerEnd.spent``."""


class ServerTransport(asyncio.Transport):
    """The node's end of one HTTP connection."""

    def __init__(self, over: Callable[[bytes], None]) -> None:
        super().__init__()
        self._over = over
        self._written = bytearray()
        self._closing = False
        self.protocol: Exchange | None = None

    def write(self, data: Any) -> None:
        self._written += data

    def writelines(self, pieces: Any) -> None:
        for piece in pieces:
            self.write(piece)

    def close(self) -> None:
        if self._closing:
            return
        self._closing = True
        assert self.protocol is not None
        asyncio.get_running_loop().call_soon(self.protocol.connection_lost, None)
        self._over(bytes(self._written))

    abort = close

    def is_closing(self) -> bool:
        return self._closing

    def get_extra_info(self, name: str, default: Any = None) -> Any:
        return ("127.0.0.1", 1) if name == "peername" else default

    def get_write_buffer_size(self) -> int:
        return 0

    def set_write_buffer_limits(self, high: int | None = None, low: int | None = None) -> None:
        """Everything fits."""

    def pause_reading(self) -> None:
        """The whole request is there already."""

    def resume_reading(self) -> None:
        """As ``pause_reading``."""


def digest(message: bytes | None) -> str:
    return "closed" if message is None else hashlib.blake2b(message, digest_size=6).hexdigest()


__all__ = ["ClientEnd", "Network", "Route", "ServerTransport", "SimHttp"]
