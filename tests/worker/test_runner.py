"""Workers and Coordinators over real sockets, by real TLS, with real processes as executors."""

from __future__ import annotations

import asyncio
import os
import signal
import subprocess
import sys
from collections.abc import AsyncIterator, Mapping
from contextlib import suppress
from pathlib import Path
from typing import Any

import pytest

from mwnode.client import Client
from mwnode.client.errors import ClientError, NotTrusted, Unreachable, passes
from mwnode.client.http import HttpClient
from mwnode.coordinator.plan import load_plan
from mwnode.coordinator.runner import CoordinatorError, CoordinatorOptions, run_coordinator
from mwnode.enrolment import Capability
from mwnode.gateway.server import Server, serve, server_tls
from mwnode.protocol.errors import AuthRequired, GroupNotFound
from mwnode.system import OsEntropy, SystemClock, lasting_port
from mwnode.testing import Harness, MissionHandle, Participant, RunningClock
from mwnode.trust.keys import sign_mapping
from mwnode.worker.executor import ExecutorError, Work
from mwnode.worker.runner import Worker, WorkerError, WorkerOptions, run_worker
from tests.patience import PATIENCE_SECONDS, until

PLAN = """\
[mission]
objective = "Digest the source"
deadline = "P1D"
budget = { wallClockSecondsLimit = 3600, toolCallLimit = 100 }

[[mission.definitionOfDone]]
criterionId = "done"
description = "Everything has its digest"
evidenceRequired = ["deterministic_test"]

[[work]]
id = "one"
goal = "Digest the first half"
inputs = ["source/"]
run = "one"
deliverables = [ { id = "digest", path = "one.txt", mediaType = "text/plain" } ]
criteria = [ { id = "ok", description = "digested", check = "exit 0" } ]

[[work]]
id = "two"
goal = "Digest the second half"
inputs = ["source/"]
run = "two"
deliverables = [ { id = "digest", path = "two.txt", mediaType = "text/plain" } ]
criteria = [ { id = "ok", description = "digested", check = "exit 0" } ]

[[work]]
id = "sum"
goal = "Digest the digests"
after = ["one", "two"]
run = "sum"
deliverables = [ { id = "digest", path = "sum.txt", mediaType = "text/plain" } ]
criteria = [ { id = "ok", description = "digested", check = "exit 0" } ]
"""
SORT = """\
[mission]
objective = "Sort the words"
deadline = "P1D"
budget = { wallClockSecondsLimit = 600 }

[[mission.definitionOfDone]]
criterionId = "sorted"
description = "The words are in order"
evidenceRequired = ["deterministic_test"]

[[work]]
id = "sort"
goal = "Sort words.txt"
inputs = ["words.txt"]
deliverables = [ { id = "sorted", path = "sorted.txt", mediaType = "text/plain" } ]
criteria = [ { id = "sorted", description = "in order", check = "exit 0" } ]
"""
ASSESSED = '{ id = "clear", description = "reads well", evidence = ["reviewer_assessment"] }'
CRITIC = """\
grep -q pear inputs/sort/sorted.txt
line='{"criterionId": "clear", "type": "reviewer_assessment", "result": "passed", "method": "read it"}'
echo "{\\"evidence\\": $line}" >> "$MWNODE_PROGRESS"
"""
EXECUTOR = """\
import hashlib, json, os, sys, time
from pathlib import Path
item = json.loads(Path(os.environ["MWNODE_WORK_ITEM"]).read_text())
with open(sys.argv[1], "a") as ledger:
    ledger.write(item["idempotencyKey"] + "\\n")
time.sleep(float(sys.argv[2]))
name = item["contract"]["constraints"]["run"]
digest = hashlib.sha256(b"".join(p.read_bytes() for p in sorted(Path("inputs").rglob("*")) if p.is_file()))
Path("outputs", name + ".txt").write_text(digest.hexdigest())
"""


class World:
    """A node served by TLS in real time, and what runs against it."""

    def __init__(self, path: Path) -> None:
        self.path = path
        self.harness = Harness(path / "home", clock=RunningClock())
        self.home = self.harness.node.home
        self.server: Server | None = None
        # The node comes back here, and nobody must have taken it meanwhile.
        self.port = lasting_port("127.0.0.1")
        self.tasks: dict[str, tuple[asyncio.Task[None], asyncio.Event]] = {}
        self.log: list[tuple[str, str, Mapping[str, Any]]] = []
        self.ledger = path / "ledger"
        (path / "source").mkdir()
        (path / "source" / "a.txt").write_text("a")
        (path / "source" / "b.txt").write_text("b")
        (path / "plan.toml").write_text(PLAN)
        (path / "executor.py").write_text(EXECUTOR)

    async def serve(self) -> None:
        certificate, key = self.home.server_certificate("127.0.0.1", SystemClock(), OsEntropy())
        self.server = await serve(self.harness.node, "127.0.0.1", self.port, tls=server_tls(certificate, key))
        self.port = int(self.server.url.rpartition(":")[2].partition("/")[0])

    @property
    def url(self) -> str:
        return f"wss://127.0.0.1:{self.port}/ws"

    def _start(self, name: str, run: Any, options: Any) -> None:
        stop = asyncio.Event()
        self.tasks[name] = (asyncio.create_task(run(options, stop)), stop)

    def work(self, who: Participant, *, seconds: float = 0.0, command: str | None = None, slots: int = 2) -> None:
        program = f"{sys.executable} executor.py {self.ledger} {seconds}"
        options = WorkerOptions(
            url=self.url,
            key=who.key,
            ca=self.home.ca_path,
            command=command or program,
            slots=slots,
            directory=self.path / f"slots-{who.name}",
            working_directory=self.path,
            log=lambda event, details: self.log.append((who.name, event, details)),
        )
        # The program is named by a relative path: it must be found from where the Worker was started.
        (self.path / "x").mkdir(exist_ok=True)
        self._start(who.name, run_worker, options)

    def coordinate(self, *, mission: str | None = None) -> None:
        options = CoordinatorOptions(
            url=self.url,
            key=self.harness.coordinator.key,
            ca=self.home.ca_path,
            plans=(load_plan(self.path / "plan.toml"),),
            mission=mission,
            log=lambda event, details: self.log.append(("coordinator", event, details)),
        )
        self._start("coordinator", run_coordinator, options)

    async def stop(self, name: str) -> None:
        task, stop = self.tasks.pop(name)
        stop.set()
        await asyncio.wait_for(task, PATIENCE_SECONDS)

    async def mission(self) -> MissionHandle:
        plan = load_plan(self.path / "plan.toml")
        mission_id, group_id = self.harness.new_id(), self.harness.new_id()
        payload = plan.mission_payload(mission_id, group_id, self.harness.coordinator.id, self.harness.clock.now())
        await asyncio.to_thread(
            self.harness.owner.send, "mission.create", payload, group_id=group_id, extensions=plan.extensions
        )
        return MissionHandle(self.harness, mission_id, group_id)

    async def until(self, condition: Any, seconds: float = PATIENCE_SECONDS) -> None:
        deadline = asyncio.get_running_loop().time() + seconds
        while not condition():
            for name, (task, _) in self.tasks.items():
                assert not task.done(), f"{name} ended: {task.exception() if not task.cancelled() else 'cancelled'}"
            assert asyncio.get_running_loop().time() < deadline, self.log[-20:]
            await asyncio.sleep(0.05)

    async def approve(self, mission: MissionHandle) -> None:
        """The owner approves; the clock moves on, so one instant is both the Approval's and its signature's."""
        owner = self.harness.owner
        now = self.harness.clock.now().text()
        unsigned = {name: value for name, value in mission.approval().items() if name != "signature"}
        approval = sign_mapping({**unsigned, "occurredAt": now}, owner.key, now)
        await asyncio.to_thread(owner.send, "mission.approve", {"approval": approval}, group_id=mission.group_id)

    def runs(self) -> list[str]:
        return self.ledger.read_text().split() if self.ledger.exists() else []

    async def close(self) -> None:
        for task, _ in self.tasks.values():
            task.cancel()
        for task, _ in self.tasks.values():
            with suppress(asyncio.CancelledError, Exception):
                await task
        if self.server is not None:
            await self.server.close()
        self.harness.close()


@pytest.fixture
async def world(tmp_path: Path) -> AsyncIterator[World]:
    made = World(tmp_path)
    await made.serve()
    yield made
    await made.close()


async def test_a_mission_from_plan_to_approval(world: World) -> None:
    world.coordinate()
    for who in world.harness.workers:
        world.work(who)
    mission = await world.mission()
    await world.until(lambda: mission.state == "awaiting_approval")
    assert len(world.runs()) == 3
    await world.approve(mission)
    assert mission.state == "approved"
    kinds = [event["kind"] for event in mission.events()]
    assert kinds.count("work.result.accepted") == 3


async def test_a_node_that_goes_away_three_times_costs_nothing_twice(world: World) -> None:
    world.coordinate()
    world.work(world.harness.workers[0], seconds=1.0)
    mission = await world.mission()
    for _ in range(3):
        await asyncio.sleep(1.2)
        assert world.server is not None
        await world.server.close()
        await asyncio.to_thread(world.harness.restart)
        await world.serve()
    await world.until(lambda: mission.state == "awaiting_approval")
    assert len(world.runs()) == len(set(world.runs())) == 3


async def test_a_stopped_worker_leaves_a_checkpoint_and_its_successor_goes_on(world: World) -> None:
    world.coordinate()
    who = world.harness.workers[0]
    world.work(who, seconds=600.0)
    mission = await world.mission()
    await world.until(lambda: len(world.runs()) == 2)
    await world.stop(who.name)
    kinds = [event["kind"] for event in mission.events()]
    assert kinds.count("work.checkpointed") == 2
    world.work(who, seconds=0.0)
    await world.until(lambda: mission.state == "awaiting_approval")
    # The same owner and epoch: the same keys once more, so that outside effects are recognised.
    assert len(world.runs()) == 5
    assert len(set(world.runs())) == 3


@pytest.mark.req("R-5-03")
async def test_a_worker_that_lost_everything_rebuilds_by_replay(world: World) -> None:
    world.coordinate()
    who = world.harness.workers[0]
    world.work(who, seconds=600.0, slots=1)
    mission = await world.mission()
    await world.until(lambda: len(world.runs()) == 1)
    task, _ = world.tasks.pop(who.name)
    task.cancel()
    with suppress(asyncio.CancelledError):
        await task
    before = [(event["sequence"], event["eventId"]) for event in mission.events()]
    subprocess.run(["rm", "-rf", str(world.path / f"slots-{who.name}")], check=True)
    world.work(who, seconds=0.0)
    await world.until(lambda: mission.state == "awaiting_approval")
    after = [(event["sequence"], event["eventId"]) for event in mission.events()]
    assert after[: len(before)] == before
    assert [event["kind"] for event in mission.events()].count("work.offer.accepted") == 3


async def test_a_function_embedded_in_a_program_is_a_worker(world: World) -> None:
    async def handler(work: Work) -> None:
        name = work.contract.constraints["run"]
        (work.outputs / f"{name}.txt").write_text(name)

    who = world.harness.workers[0]
    world.coordinate()
    mission = await world.mission()
    async with await Client.connect(world.url, who.key, world.home.ca_path) as client:
        stop = asyncio.Event()
        working = asyncio.create_task(Worker(client, handler).run(stop))
        await world.until(lambda: mission.state == "awaiting_approval")
        stop.set()
        await asyncio.wait_for(working, PATIENCE_SECONDS)


@pytest.mark.req("R-13.2-04")
async def test_a_reviewer_is_asked_and_its_assessment_counts(world: World) -> None:
    (world.path / "words.txt").write_text("pear\napple\n")
    asked = SORT.replace('check = "exit 0" } ]', f'check = "exit 0" }}, {ASSESSED} ]')
    (world.path / "plan.toml").write_text(asked)
    (world.path / "critic.sh").write_text(CRITIC)
    critic = await asyncio.to_thread(world.harness.agent, "critic", (Capability(id="mwnode.review"),))
    world.coordinate()
    world.work(world.harness.workers[0], command="sh -c 'sort inputs/words.txt > outputs/sorted.txt'")
    world.work(critic, command=f"sh {world.path / 'critic.sh'}")
    mission = await world.mission()
    await world.until(lambda: mission.state == "awaiting_approval")
    accepted = [event["payload"] for event in mission.events() if event["kind"] == "work.result.accepted"]
    given = [one for payload in accepted for one in payload["evidence"] if one["type"] == "reviewer_assessment"]
    assert [(one["generatedBy"]["id"], one["method"]) for one in given] == [(critic.id, "read it")]
    assert len(mission.row.submitted_artifacts) == 1, "what was said about the work is no result of the Mission"


async def test_the_coordinator_of_one_mission_ends_with_it(world: World) -> None:
    world.work(world.harness.workers[0])
    mission = await world.mission()
    world.coordinate(mission=mission.mission_id)
    await world.until(lambda: mission.state == "awaiting_approval")
    task, _ = world.tasks.pop("coordinator")
    await world.approve(mission)
    await asyncio.wait_for(task, PATIENCE_SECONDS)


async def test_what_a_newcomer_gets_wrong_is_told_in_one_line(world: World) -> None:
    harness = world.harness
    good = WorkerOptions(url=world.url, key=harness.workers[0].key, ca=world.home.ca_path, command="true")
    with pytest.raises(WorkerError, match="give an Agent's key"):
        await run_worker(WorkerOptions(url=world.url, key=harness.owner.key, ca=world.home.ca_path, command="true"))
    with pytest.raises(ExecutorError, match="no program 'nowhere-to-be-found'"):
        await run_worker(WorkerOptions(url=good.url, key=good.key, ca=good.ca, command="nowhere-to-be-found"))
    with pytest.raises(CoordinatorError, match="give an Agent's key"):
        await run_coordinator(
            CoordinatorOptions(
                url=world.url,
                key=harness.owner.key,
                ca=world.home.ca_path,
                plans=(load_plan(world.path / "plan.toml"),),
            )
        )


async def test_sigterm_ends_a_worker_cleanly(world: World) -> None:
    who = world.harness.workers[0]
    world.work(who)
    await world.until(lambda: any(event == "working" for _, event, _ in world.log))
    os.kill(os.getpid(), signal.SIGTERM)
    task, _ = world.tasks.pop(who.name)
    await asyncio.wait_for(task, PATIENCE_SECONDS)


@pytest.mark.req("R-16-62")
async def test_a_worker_that_starts_as_the_node_dies_waits_for_it(world: World) -> None:
    who = world.harness.workers[0]
    noted: list[str] = []
    stop = asyncio.Event()

    async def nothing(work: Any) -> None:
        del work

    async with await Client.connect(
        world.url, who.key, world.home.ca_path, observer=lambda event, details: noted.append(event)
    ) as client:
        # The connection stands, and what is read beside it finds nobody.
        reachable, client.http = client.http, HttpClient("https://127.0.0.1:1", who.key, world.home.ca_path)
        worker = Worker(client, nothing, log=lambda event, details: noted.append(event))
        running = asyncio.create_task(worker.run(stop))
        await until(lambda: "waits" in noted)
        assert not running.done()
        client.http = reachable
        await until(lambda: "working" in noted)
        stop.set()
        await asyncio.wait_for(running, PATIENCE_SECONDS)


def test_only_what_may_pass_is_tried_again() -> None:
    assert passes(Unreachable("the node is away"))
    assert passes(AuthRequired("the token is from before"))
    assert not passes(NotTrusted("another CA"))
    assert not passes(ClientError("the node sent other bytes"))
    assert not passes(GroupNotFound("no such Group"))
