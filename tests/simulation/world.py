"""One run: machines, network, faults, and the end."""

from __future__ import annotations

import asyncio
import gc
import hashlib
import logging
import random
import shutil
import tempfile
from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from msgspec import Struct

from mwnode.authority.state import MISSIONS, WORK_ITEMS
from mwnode.authority.waiting import to_json, waiting
from mwnode.trust.ed25519 import encode_base64url
from mwnode.trust.keys import SigningKey
from tests.simulation.faults import QUIET_AFTER, Fault, schedule
from tests.simulation.homes import Template, write_plans
from tests.simulation.invariants import Checker, Ears
from tests.simulation.loop import OUTSIDE, VirtualLoop
from tests.simulation.machines import CoordinatorMachine, Machine, NodeMachine, WorkerMachine
from tests.simulation.network import Network
from tests.simulation.operating import OperatorMachine
from tests.simulation.people import Order, Outside, OwnerMachine, handler_of
from tests.simulation.shape import AGENTS, shape_of

END_AFTER = 900.0
"""Seconds after the last fault in which every Mission must have ended. Where the node's clock was ahead, offers and
leases that it gave then last that much longer: a Group's time never steps back (decision A44)."""
LOOK_SECONDS = 0.5

Mutation = Callable[["World"], None]
"""Breaks something on purpose, to see that it is found."""


class Outcome(Struct):
    """What came of one run."""

    seed: int
    violation: str | None
    trace_hash: str
    seconds: float
    """Virtual time."""
    events: int
    commits: int
    faults: list[Fault]
    states: list[str]
    injected: Counter[str]
    """What went wrong, and what was done besides, by kind."""
    cause: BaseException | None = None


class World:
    """Everything of one run."""

    def __init__(
        self, seed: int, faults: Sequence[Fault], directory: Path, template: Template, out: Callable[[str], None] | None
    ) -> None:
        self.seed = seed
        self.faults = list(faults)
        self.directory = directory
        self.template = template
        self.loop = VirtualLoop()
        self._hash = hashlib.blake2b(digest_size=16)
        self._out = out
        self.shape = shape_of(seed)
        self.checker = Checker(rooted=self.shape.rooted)
        self.network = Network(self.loop, seed, self.trace)
        template.copy(directory / "home", self.shape)
        self.node = NodeMachine(self.loop, self.network, directory / "home", seed, self.trace, self.checker)
        self.network.node = self.node
        self.outside = Outside(self.checker, self.network.injected)
        self.machines: dict[str, Machine] = {}
        self.quiet = False
        self.undo: list[Callable[[], None]] = []
        """What a mutation changed beyond this world."""
        self._chance = random.Random(f"{seed} world")
        self._make_machines()

    def trace(self, *what: object) -> None:
        """Note what happened; two runs of a seed note the same."""
        line = f"{self.loop.time():.6f} {' '.join(map(str, what))}"
        self._hash.update(line.encode() + b"\n")
        if self._out is not None:
            self._out(line)

    @property
    def trace_hash(self) -> str:
        return self._hash.hexdigest()

    def _make_machines(self) -> None:
        seed, chance = self.seed, random.Random(f"{self.seed} orders")
        plan = write_plans(seed, self.directory)
        common = {"seed": seed, "trace": self.trace, "checker": self.checker}

        def place(name: str) -> tuple[Any, ...]:
            return self.loop, self.network, name, self.key(name), self.directory / name

        for name in self.shape.agents:
            if name.startswith("coordinator"):
                self.machines[name] = CoordinatorMachine(*place(name), plan=plan, **common)
            else:
                handler = handler_of(self.key(name).principal.id, seed, self.outside, self.loop, lambda: self.quiet)
                self.machines[name] = WorkerMachine(*place(name), handler=handler, **common)
        orders = [
            Order(
                after=chance.uniform(0, 20),
                changes=chance.choice((0, 0, 1)),
                cancel_at=chance.uniform(10, 80) if chance.random() < 0.15 else None,
                claims=chance.randrange(3),
                replace_at=chance.uniform(10, 80) if chance.random() < 0.3 else None,
            )
            for _ in range(chance.choice((1, 1, 2)))
        ]
        self.owner = OwnerMachine(
            *place("owner"),
            plan=plan,
            orders=orders,
            coordinators=[self.key(name).principal.id for name in AGENTS if name.startswith("coordinator")],
            generations=self.shape.generations,
            settled=lambda: self.quiet,
            **common,
        )
        self.machines["owner"] = self.owner
        self.operator: OperatorMachine | None = None
        if self.shape.archived:
            copies = self.directory / "copies"
            self.operator = OperatorMachine(*place("operator"), trims=self.shape.trimmed, copies=copies, **common)
            self.machines["operator"] = self.operator

    def key(self, name: str) -> SigningKey:
        return self.template.keys[name]

    # --- the run ---

    def run(self) -> Outcome:
        """From the start to the end, or to the first violation."""
        loop = self.loop
        loop.set_exception_handler(self._unhandled)
        ears = Ears(self.checker)
        logger = logging.getLogger("mwnode")
        logger.addHandler(ears)
        asyncio.set_event_loop(loop)
        try:
            loop.run_until_complete(self._main())
            seconds = loop.time()
            trace_hash = self.trace_hash
            self.checker.over = True
            loop.run_until_complete(loop.unwind())
        except Exception as error:
            self.checker.fail(f"{type(error).__name__}: {error}", error)
            seconds, trace_hash = loop.time(), self.trace_hash
        finally:
            logger.removeHandler(ears)
            for undo in self.undo:
                undo()
            self._give_back()
            asyncio.set_event_loop(None)
            loop.close()
        return Outcome(
            self.seed,
            self.checker.violation,
            trace_hash,
            seconds,
            sum(self.checker.heads.values()),
            self.checker.commits,
            self.faults,
            [order.state for order in self.owner.orders],
            self._injected(),
            self.checker.cause,
        )

    def _injected(self) -> Counter[str]:
        counts, rules = self.network.injected, self.checker.rules
        counts["child Missions"] += len(rules.parents)
        counts["gated work started"] += rules.starts
        counts["assessments by others"] += rules.assessed
        return counts

    def _give_back(self) -> None:
        for machine in self.machines.values():
            machine.let_go()
        if self.node.up:
            self.node.up = False
            self.node.node.store.close()

    def _unhandled(self, loop: asyncio.AbstractEventLoop, context: dict[str, Any]) -> None:
        error = context.get("exception")
        self.checker.fail(f"unhandled: {context.get('message')}: {error!r}", error)

    async def _main(self) -> None:
        await self.node.start()
        for machine in self.machines.values():
            machine.start()
        for fault in self.faults:
            self.loop.call_at(fault.at, self._apply, fault, context=OUTSIDE)
        last = max((fault.at + fault.seconds for fault in self.faults), default=20.0)
        quiet_at = min(max(last, 20.0), QUIET_AFTER) if self.faults else 20.0
        ahead = max((fault.how for fault in self.faults if (fault.kind, fault.on) == ("clock", "node")), default=0.0)
        patience = END_AFTER + max(ahead, 0.0)
        self.loop.call_at(quiet_at + 0.001, self._calm, context=OUTSIDE)
        while self.checker.violation is None:
            await asyncio.sleep(LOOK_SECONDS)
            operated = self.operator is None or self.operator.done
            if self.quiet and self.owner.done and operated and self.node.up:
                break
            if self.loop.time() > quiet_at + patience:
                states = [order.state or "not accepted" for order in self.owner.orders]
                self.checker.fail(f"Missions are {states} {patience:g} s after the last fault: {self._stuck()}")
        if self.checker.violation is None:
            # What is under way comes to its end, Cursors are saved.
            await asyncio.sleep(5.0)
            if self.shape.rebuilt:
                await self._rebuild()
            self._finish()

    async def _rebuild(self) -> None:
        """Everybody comes back without any memory, to what is left of the Groups."""
        for name in self.shape.agents:
            self.machines[name].crash(0.5, lose_disk=True)
        await asyncio.sleep(15.0)

    def _finish(self) -> None:
        seeds = []
        for key in self.template.keys.values():
            seed = self.template.seeds[key.key_id]
            seeds += [seed, encode_base64url(seed).encode()]
        files = [path for path in self.directory.rglob("*.mdb") if path.is_file()]
        for file, heads in self.operator.copied.items() if self.operator is not None else ():
            self.checker.copied(file, heads)
        agents = [self.key(name).principal.id for name in self.shape.agents]
        self.checker.finish(self.node.node, seeds, files, agents)
        for key, count in self.outside.done.items():
            if count > 1:
                self.checker.fail(f"the side effect of {self.outside.effects[key]} was done {count} times")
        self.trace("end", *[self.checker.heads[group] for group in self.checker.heads])
        for raw in self.checker.bytes.values():
            self._hash.update(raw)

    def _stuck(self) -> str:
        """What the node says that it waits for."""
        if not self.node.up:
            return "the node is down"
        found = []
        with self.node.node.read() as view:
            for row in view.all(MISSIONS):
                for entry in to_json(waiting(view, row, self.node.node.policy, self.node.clock.now())):
                    found.append(f"{entry['who']['id'].rpartition(':')[2]}: {entry['action'][:60]}")
            items = [f"{row.item.state}" for row in view.all(WORK_ITEMS)]
        return f"{found}; items {items}"

    # --- faults ---

    def _apply(self, fault: Fault) -> None:
        self.trace("fault", fault.text())
        network, on = self.network, fault.on
        later = lambda undo, *arguments: self.loop.call_later(  # noqa: E731
            fault.seconds, undo, *arguments, context=OUTSIDE
        )
        match fault.kind:
            case "cut":
                network.cut(on)
            case "silence":
                network.silence(on)
            case "deafen":
                network.deafen(on)
            case "lose":
                network.silence(on)
                later(network.cut, on)
            case "part":
                network.part(on, True)
                later(network.part, on, False)
            case "part all":
                for name in self.machines:
                    network.part(name, True)
                    later(network.part, name, False)
            case "slow":
                network.route(on).extra = 3.0
                later(setattr, network.route(on), "extra", 0.0)
            case "double":
                network.route(on).doubling = True
                later(setattr, network.route(on), "doubling", False)
            case "reorder":
                network.route(on).overtaking = True
                later(setattr, network.route(on), "overtaking", False)
            case "lose answers":
                network.route(on).losing = True
                later(setattr, network.route(on), "losing", False)
            case "replay":
                self._replay()
            case "crash":
                self.machines[on].crash(fault.seconds)
            case "crash and lose the disk":
                self.machines[on].crash(fault.seconds, lose_disk=True)
            case "crash node" | "lose node":
                self.node.silent = fault.kind == "lose node"
                self.node.restart_after = fault.seconds
                self.node.crash()
            case "crash node before commit" | "crash node after commit":
                self.node.silent = False
                self.node.restart_after = fault.seconds
                self.node.disk.crash = fault.kind.split()[2]
            case "clock":
                machine = self.node if on == "node" else self.machines[on]
                machine.clock.off = fault.how
                network.injected["clocks jumped on" if fault.how > 0 else "clocks jumped back"] += 1
                later(setattr, machine.clock, "off", 0.0)
            case "disk full":
                self.node.disk.failing = True
                later(setattr, self.node.disk, "failing", False)
            case "file full":
                self.node.fill(int(fault.how))
                later(self.node.fill, None)
            case _:
                raise AssertionError(fault.kind)

    def _replay(self) -> None:
        """Somebody sends an old Command again, by HTTP."""
        if not self.network.commands or not self.node.up:
            return
        self.network.injected["old Commands sent again"] += 1
        self.node.post(self._chance.choice(self.network.commands))

    def _calm(self) -> None:
        """Nothing goes wrong from now on."""
        self.trace("calm")
        self.quiet = True
        for name in self.machines:
            route = self.network.route(name)
            route.extra, route.doubling, route.losing, route.overtaking = 0.0, False, False, False
            self.network.part(name, False)
            self.machines[name].clock.off = 0.0
        self.node.clock.off = 0.0
        self.node.disk.crash, self.node.disk.failing = None, False
        self.node.fill(None)


# --- running ----------------------------------------------------------------------------------------------------------


@contextmanager
def scratch() -> Iterator[Path]:
    """A directory for one run; in memory where there is such a place."""
    memory = Path("/dev/shm")
    directory = Path(tempfile.mkdtemp(prefix="mwnode-simulation-", dir=memory if memory.is_dir() else None))
    try:
        yield directory
    finally:
        shutil.rmtree(directory, ignore_errors=True)


def simulate(
    seed: int,
    template: Template,
    *,
    faults: Sequence[Fault] | None = None,
    mutation: Mutation | None = None,
    out: Callable[[str], None] | None = None,
) -> Outcome:
    """Run one seed, with its own faults or with those given."""
    gc.collect()
    # Collecting runs what was killed: it must not happen in the middle of the run.
    gc.disable()
    try:
        with scratch() as directory:
            world = World(seed, schedule(seed) if faults is None else faults, directory, template, out)
            if mutation is not None:
                mutation(world)
            return world.run()
    finally:
        gc.enable()


__all__ = ["Outcome", "World", "simulate"]
