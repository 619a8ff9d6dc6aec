"""The machines: a node that can crash at any commit, and agents that are started again whenever they end."""

from __future__ import annotations

import asyncio
import errno
import hashlib
import itertools
import random
import shutil
from collections.abc import Awaitable, Callable
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any

import lmdb

from mwnode.client import Client, ClientError
from mwnode.coordinator.plan import load_plan
from mwnode.coordinator.runner import Coordinator
from mwnode.gateway.ports import Origin
from mwnode.gateway.server import assemble
from mwnode.node import Node
from mwnode.protocol.errors import MissionWeaveError
from mwnode.protocol.instants import Instant, from_microseconds, parse
from mwnode.testing import START
from mwnode.trust.keys import SigningKey
from mwnode.trust.registry import Registry
from mwnode.worker.settings import WorkerSettings
from mwnode.worker.worker import Worker
from tests.simulation.loop import OUTSIDE, Killed, Process, VirtualLoop
from tests.simulation.network import Network, ServerTransport, SimExchange, SimHttp

if TYPE_CHECKING:
    from tests.simulation.invariants import Checker

BASE_MICROSECONDS = parse(START).whole_microseconds()
SETTINGS = WorkerSettings(
    execution_lease_seconds=20,
    ownership_lease_seconds=60,
    resume_within_seconds=60,
    blocked_lease_seconds=60,
    offline_grace_seconds=15.0,
    stop_grace_seconds=3.0,
    run_seconds=5.0,
    usage_seconds=10.0,
)
FOREVER = 1 << 40


class MachineClock:
    """A machine's clock: virtual time, and how far this machine's is off."""

    def __init__(self, loop: VirtualLoop) -> None:
        self._loop = loop
        self.off = 0.0

    def now(self) -> Instant:
        return from_microseconds(BASE_MICROSECONDS + round((self._loop.time() + self.off) * 1_000_000))

    def monotonic(self) -> float:
        return self._loop.time()


class Chance:
    """A machine's entropy: looks random, and is the same for the same seed."""

    def __init__(self, name: str) -> None:
        self._name = name
        self._drawn = 0

    def random(self, n: int) -> bytes:
        self._drawn += 1
        return hashlib.shake_256(f"{self._name} {self._drawn}".encode()).digest(n)


class Crash(Killed):
    """The node's process dies at this very point."""


class Disk:
    """What goes wrong when the node writes."""

    def __init__(self) -> None:
        self.crash: str | None = None
        """``before`` or ``after`` the next commit."""
        self.failing = False
        """Commits fail: the disk is full when the pages are written."""
        self.pages: int | None = None
        """The file may grow by so many pages only: LMDB itself fails wherever it needs the next."""


class NodeMachine:
    """The node: its HOME outlives its process."""

    def __init__(
        self, loop: VirtualLoop, network: Network, home: Path, seed: int, trace: Callable[..., None], checker: Checker
    ) -> None:
        self.loop = loop
        self.network = network
        self.home = home
        self.seed = seed
        self.trace = trace
        self.checker = checker
        self.clock = MachineClock(loop)
        self.disk = Disk()
        self.up = False
        self.restart_after = 1.0
        self.silent = False
        self.life = 0
        self.process = Process("node")
        self.dead: list[Process] = []
        self.node: Node
        self._wires = itertools.count(1)
        self._scheduled = False
        self._due: Any = None
        self._chance = random.Random(f"{seed} node")

    def next_wire(self) -> int:
        return next(self._wires)

    async def start(self) -> None:
        """Open the file and serve; again a second later when the disk does not let it."""
        self.process = Process("node")
        self.life += 1
        await self.loop.spawn(self.process, self._start())

    async def _start(self) -> None:
        self.node = Node.open(
            self.home,
            clock=self.clock,
            entropy=Chance(f"{self.seed} node {self.life}"),
            durable=False,
            on_work=self._work,
        )
        self.hub, runner, self.listener = assemble(self.node)
        await runner.setup()
        self.server = runner.server
        self.hub.start()
        self._attach_disk()
        self._watch()
        self.up = True
        if self.disk.pages is not None:
            self.fill(self.disk.pages)
        self.trace("node", "up", self.life)
        self._work()

    def _watch(self) -> None:
        """See everything that is answered and committed."""
        submit, node, life = self.node.submit, self.node, self.life

        def watched(raw: bytes, origin: Origin, reply: Callable[[Any], None]) -> None:
            def answered(outcome: Any) -> None:
                if self.life == life and self.up:
                    self.checker.answered(raw, outcome)
                reply(outcome)

            submit(raw, origin, answered)

        node.submit = watched  # type: ignore[method-assign]
        node.add_listener(self.checker.committed)
        self.checker.opened(node)

    # --- stepping ---

    def _work(self) -> None:
        if not self._scheduled and self.process.alive:
            self._scheduled = True
            delay = 0.0002 + 0.002 * self._chance.random()
            self.loop.call_later(delay, self._step, context=self.process.context)

    def _step(self) -> None:
        self._scheduled = False
        try:
            if self.node.step():
                self._work()
        except Crash:
            return
        if self._due is not None:
            self._due.cancel()
        seconds = self.node.seconds_to_due()
        if seconds is not None:
            self._due = self.loop.call_later(max(seconds, 0.01), self._work, context=self.process.context)

    # --- the disk ---

    def _attach_disk(self) -> None:
        file = self.node.store.file
        attempt = file._attempt

        def attempted(change: Callable[[Any], Any]) -> Any:
            def then(txn: Any) -> Any:
                result = change(txn)
                if self.disk.crash == "before":
                    self._die()
                if self.disk.failing:
                    self.network.injected["commits with the disk full"] += 1
                    error = lmdb.DiskError("mdb_txn_commit: No space left on device")
                    error.code = errno.ENOSPC
                    raise error
                return result

            try:
                result = attempt(then)
            except lmdb.MapFullError:
                self.network.injected["commits with the file full"] += 1
                raise
            if self.disk.crash == "after":
                self._die()
            return result

        file._attempt = attempted  # type: ignore[method-assign]

    def _die(self) -> None:
        self.network.injected[f"node killed {self.disk.crash} a commit"] += 1
        self.disk.crash = None
        self.loop.call_soon(self.crash, context=OUTSIDE)
        raise Crash

    def fill(self, pages: int | None) -> None:
        """Let the file grow by so many pages only; ``None`` lets it grow as it likes."""
        self.disk.pages = pages
        if self.up:
            file = self.node.store.file
            size = file.used_bytes() + 4096 * (pages or 0)
            file.map_bytes_max = size if pages is not None else FOREVER
            file.lmdb.set_mapsize(size if pages is not None else max(size * 2, 64 * 1024 * 1024))

    # --- death ---

    def crash(self) -> None:
        """SIGKILL: what is committed stays, nothing else."""
        if not self.up:
            return
        self.up = False
        self.network.injected["node lost without a word" if self.silent else "node killed"] += 1
        self.trace("node", "crash", self.life)
        self.disk.crash = None
        self.loop.kill(self.process)
        self.dead.append(self.process)
        self._scheduled = False
        self.network.node_down(silent=self.silent)
        self.node.store.close()
        self.checker.closed()
        self.loop.call_later(self.restart_after, self._again, context=OUTSIDE)

    def _again(self) -> None:
        self.loop.create_task(self.start())

    # --- HTTP ---

    def exchange(self, raw: bytes, answer: Callable[[bytes], None]) -> None:
        """One request on a connection of its own, by the node's own HTTP server."""
        visit = self.listener.doors.enter("127.0.0.1", self.loop.time(), lambda: None)
        if visit is None:
            return
        transport = ServerTransport(answer)
        protocol = SimExchange(self.server, self.listener, visit)
        transport.protocol = protocol
        protocol.connection_made(transport)
        protocol.data_received(raw)

    def post(self, raw: bytes) -> None:
        """One Command by HTTP, from somebody who does not wait for the answer."""
        head = f"POST /v0.1/commands HTTP/1.1\r\nHost: x\r\nConnection: close\r\nContent-Length: {len(raw)}\r\n\r\n"
        self.loop.call_soon(self.exchange, head.encode() + raw, lambda answer: None, context=self.process.context)

    def overheard(self, frame: bytes) -> None:
        """A Command went by; somebody may send it again later, elsewhere."""
        start = frame.index(b'"command":') + len(b'"command":')
        depth = 0
        quoted = escaped = False
        for position in range(start, len(frame)):
            byte = frame[position]
            if quoted:
                quoted = escaped or byte != 0x22
                escaped = byte == 0x5C and not escaped
            elif byte == 0x22:
                quoted = True
            elif byte == 0x7B:
                depth += 1
            elif byte == 0x7D:
                depth -= 1
                if not depth:
                    self.network.commands.append(frame[start : position + 1])
                    return


class Machine:
    """A machine with one program that is started again whenever it ends, as a service manager does."""

    def __init__(
        self,
        loop: VirtualLoop,
        network: Network,
        name: str,
        key: SigningKey,
        directory: Path,
        seed: int,
        trace: Callable[..., None],
        checker: Checker,
    ) -> None:
        self.loop = loop
        self.network = network
        self.name = name
        self.key = key
        self.directory = directory
        self.seed = seed
        self.trace = trace
        self.checker = checker
        self.clock = MachineClock(loop)
        self.life = 0
        self.process = Process(name)
        self.dead: list[Process] = []
        self.client: Client | None = None
        self.http: SimHttp | None = None
        self._chance = random.Random(f"{seed} machine {name}")

    def start(self) -> None:
        """Start the program in a new process."""
        self.life += 1
        self.process = Process(self.name)
        self.trace(self.name, "start", self.life)
        self.loop.spawn(self.process, self._run(self.process))

    def crash(self, seconds: float, *, lose_disk: bool = False) -> None:
        """SIGKILL; started again after so many seconds. Nothing where it is down already."""
        if not self.process.alive:
            return
        self.trace(self.name, "crash", self.life)
        role = self.name.partition("-")[0]
        self.network.injected[f"{role} killed" + (", its disk lost" if lose_disk else "")] += 1
        self.loop.kill(self.process)
        self.dead.append(self.process)
        self.network.cut(self.name)
        self.let_go()
        if lose_disk:
            shutil.rmtree(self.directory, ignore_errors=True)
        self.loop.call_later(seconds, self.start, context=OUTSIDE)

    def let_go(self) -> None:
        """Give back what the operating system would."""

    async def _run(self, process: Process) -> None:
        entropy = Chance(f"{self.seed} {self.name} {self.life}")
        http = self.http = SimHttp(self.network, process, self.key, self.clock, entropy)
        try:
            await self.program(process, http, entropy)
            how = "ended"
        except (MissionWeaveError, ClientError) as error:
            how = f"{type(error).__name__}: {error}"
        except Exception as error:
            if not process.alive:
                raise
            self.checker.fail(f"{self.name} died of {type(error).__name__}: {error}", error)
            raise
        self.trace(self.name, how)
        self.let_go()
        self.loop.call_later(0.5 + self._chance.random(), self._again, process, context=OUTSIDE)

    def _again(self, process: Process) -> None:
        if self.process is process and process.alive:
            process.alive = False
            self.start()

    async def program(self, process: Process, http: SimHttp, entropy: Chance) -> None:
        """What runs on the machine."""
        raise AssertionError("each kind of machine has its program")

    async def _client(self, process: Process, http: SimHttp, entropy: Chance) -> Client:
        async def registry() -> Registry:
            return Registry.from_evidence(await asyncio.to_thread(http.get, "/v0.1/registry"))

        async def dial() -> Any:
            end = await self.network.dial(process)
            end.seen = partial(self.checker.delivered, self.key.principal.id)
            return end

        client = self.client = Client(
            self.key, dial, http=http, registry=registry, clock=self.clock, entropy=entropy, observer=self._observed
        )
        await client.start(patient=True)
        return client

    def _observed(self, event: str, details: Any) -> None:
        self.trace(self.name, event)


class WorkerMachine(Machine):
    """A Worker with the product's own loop and memory."""

    def __init__(self, *arguments: Any, handler: Callable[[Any], Awaitable[int | None]], **options: Any) -> None:
        super().__init__(*arguments, **options)
        self._handler = handler
        self.worker: Worker | None = None

    def let_go(self) -> None:
        worker, self.worker = self.worker, None
        memory = getattr(worker, "_memory", None)
        if memory is not None:
            memory.close()

    async def program(self, process: Process, http: SimHttp, entropy: Chance) -> None:
        client = await self._client(process, http, entropy)
        async with client:
            self.worker = Worker(
                client,
                self._handler,
                key=self.key,
                slots=2,
                settings=SETTINGS,
                directory=self.directory,
                clock=self.clock,
                entropy=entropy,
                log=self._logged,
            )
            await self.worker.run()

    def _logged(self, event: str, details: Any) -> None:
        self.trace(self.name, event, told(details))


class CoordinatorMachine(Machine):
    """A Coordinator of the one plan."""

    def __init__(self, *arguments: Any, plan: Path, **options: Any) -> None:
        super().__init__(*arguments, **options)
        self._plan = plan

    async def program(self, process: Process, http: SimHttp, entropy: Chance) -> None:
        client = await self._client(process, http, entropy)
        async with client:
            plan = load_plan(self._plan)
            await Coordinator(client, (plan,), key=self.key, clock=self.clock, entropy=entropy, log=self._logged).run()

    def _logged(self, event: str, details: Any) -> None:
        self.trace(self.name, event, told(details))


def told(details: Any) -> str:
    """What a program says of an occurrence, without what differs from run to run."""
    kept = ("step", "code", "message", "because", "text", "error", "status", "work")
    return " ".join(str(details[name]) for name in kept if details.get(name) is not None)


__all__ = ["CoordinatorMachine", "Machine", "MachineClock", "NodeMachine", "WorkerMachine"]
