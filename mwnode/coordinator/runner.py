"""Shell: a Coordinator's loop over all Missions of one plan."""

from __future__ import annotations

import asyncio
import signal
from collections.abc import Callable, Coroutine, Mapping
from contextlib import suppress
from pathlib import Path
from typing import Any

import msgspec
from msgspec import UNSET, Struct

from mwnode.client import Client, ClientError
from mwnode.client.fold import decode_payload
from mwnode.coordinator.board import plan_hash_of
from mwnode.coordinator.candidates import Candidate
from mwnode.coordinator.effects import Check, Effect, LookUp, Note, Send, Upload
from mwnode.coordinator.engine import MissionEngine
from mwnode.coordinator.inputs import input_files
from mwnode.coordinator.papers import CoordinatorPapers
from mwnode.coordinator.plan import Plan, load_plan
from mwnode.coordinator.review import Checked
from mwnode.protocol.assessments import ASSESSMENT_BYTES_MAX
from mwnode.protocol.documents import AgentCard, Event, PresenceRecord
from mwnode.protocol.errors import ErrorCode, MissionWeaveError
from mwnode.protocol.events import CoordinatorAssigned, MissionCreated
from mwnode.protocol.ports import Clock, Entropy
from mwnode.system import OsEntropy, SystemClock
from mwnode.trust.keys import SigningKey

TICK_SECONDS = 0.2
LOOK_SECONDS = 2.0
"""How often the list of Missions is read."""

Log = Callable[[str, Mapping[str, Any]], None]


class CoordinatorError(Exception):
    """The Coordinator cannot work; one line that says what to do."""


class CoordinatorOptions(Struct, frozen=True, kw_only=True):
    """What ``mwnode coordinator`` was told."""

    url: str
    key: SigningKey
    plan: Path
    ca: Path | None = None
    mission: str | None = None
    """Only this Mission, whatever plan it was made from; the Coordinator ends with it."""
    patient: bool = True
    """Keep trying when the node cannot be reached at first."""
    log: Log = lambda event, details: None


async def run_coordinator(options: CoordinatorOptions, stop: asyncio.Event | None = None) -> None:
    """Coordinate until SIGTERM or SIGINT (or ``stop``), or until the one Mission that was named has ended.

    Raises PlanError, CoordinatorError, ClientError, or the MissionWeaveError of a refused handshake.
    """
    plan = load_plan(options.plan)
    if options.key.principal.type != "agent":
        raise CoordinatorError(
            f"the key is {options.key.principal.type} {options.key.principal.id}: give an Agent's key"
        )
    stop = stop or asyncio.Event()
    loop = asyncio.get_running_loop()
    handled = []
    for number in (signal.SIGTERM, signal.SIGINT):
        with suppress(ValueError, NotImplementedError, RuntimeError):  # not in the main thread: others stop us
            loop.add_signal_handler(number, stop.set)
            handled.append(number)
    connecting = asyncio.create_task(
        Client.connect(options.url, options.key, options.ca, patient=options.patient, observer=options.log)
    )
    stopped = asyncio.create_task(stop.wait())
    try:
        await asyncio.wait((connecting, stopped), return_when=asyncio.FIRST_COMPLETED)
        if not connecting.done():
            return
        async with connecting.result() as client:
            await Coordinator(client, plan, mission=options.mission, log=options.log).run(stop)
    finally:
        stopped.cancel()
        connecting.cancel()
        for number in handled:
            loop.remove_signal_handler(number)


class Coordinator:
    """One Agent that coordinates every Mission made from one plan."""

    def __init__(
        self,
        client: Client,
        plan: Plan,
        *,
        mission: str | None = None,
        key: SigningKey | None = None,
        clock: Clock | None = None,
        entropy: Entropy | None = None,
        log: Log | None = None,
    ) -> None:
        self.client = client
        self.plan = plan
        self.key = key or client.key
        self.mission = mission
        self._clock = clock or SystemClock()
        self._papers = CoordinatorPapers(self.key, self._clock, entropy or OsEntropy())
        self._log = log or (lambda event, details: None)
        self.engines: dict[str, MissionEngine] = {}
        self._ignored: set[str] = set()
        self._catching_up: dict[str, int] = {}
        self._looking = False
        self._tasks: set[asyncio.Task[None]] = set()
        self._wake = asyncio.Event()
        self._failure: BaseException | None = None

    async def run(self, stop: asyncio.Event | None = None) -> None:
        """Coordinate until ``stop`` is set, or until the one Mission asked for has ended."""
        stop = stop or asyncio.Event()
        self._log("coordinating", {"agentId": self.key.principal.id, "planHash": self.plan.plan_hash})
        background = [asyncio.create_task(self._guard(work)) for work in (self._listen, self._look_for_missions)]
        try:
            while not stop.is_set() and self._failure is None and not self._done():
                for engine in list(self.engines.values()):
                    engine.advance()
                    self._carry_out(engine)
                with suppress(TimeoutError):
                    async with asyncio.timeout(TICK_SECONDS):
                        await self._wake.wait()
                self._wake.clear()
        finally:
            for task in (*background, *self._tasks):
                task.cancel()
            await asyncio.gather(*background, *self._tasks, return_exceptions=True)
        if self._failure is not None:
            raise self._failure

    def _done(self) -> bool:
        return self.mission is not None and any(engine.finished for engine in self.engines.values())

    async def _guard(self, work: Callable[..., Coroutine[Any, Any, None]], *arguments: Any) -> None:
        """What ends a part of the Coordinator ends the Coordinator."""
        try:
            await work(*arguments)
        except asyncio.CancelledError:
            raise
        except BaseException as error:
            self._failure = self._failure or error
        self._wake.set()

    def _spawn(self, work: Callable[..., Coroutine[Any, Any, None]], *arguments: Any) -> None:
        task = asyncio.create_task(self._guard(work, *arguments))
        self._tasks.add(task)
        task.add_done_callback(self._tasks.discard)

    # --- Missions and Events ------------------------------------------------------------------------------------------

    async def _look_for_missions(self) -> None:
        """Follow every Group that this Agent coordinates; which of them are the plan's, their first Event tells."""
        while True:
            with suppress(ClientError):
                listed = await self.client.get("/v0.1/missions")
                for mission in listed["missions"]:
                    membership = mission.get("membership") or {}
                    wanted = self.mission is None or mission["missionId"] == self.mission
                    if wanted and membership.get("role") == "coordinator" and membership.get("state") == "active":
                        self._follow(mission["groupId"])
            await asyncio.sleep(LOOK_SECONDS)

    def _follow(self, group_id: str) -> None:
        if group_id in self.engines or group_id in self._ignored:
            return
        self.engines[group_id] = MissionEngine(self.key.principal.id, group_id, self.plan, self._papers)
        self._spawn(self._subscribe, group_id)

    async def _subscribe(self, group_id: str) -> None:
        try:
            await self.client.subscribe({group_id: 0}, caught_up=True)
        except MissionWeaveError as error:
            self._log("not_followed", {"groupId": group_id, "code": error.code.value})
            self.engines.pop(group_id, None)
            if error.code is ErrorCode.CURSOR_TOO_OLD:
                # Its beginning is in a snapshot, so it was archived: there is nothing left to coordinate.
                self._ignored.add(group_id)
            return
        self._catching_up[group_id] = self.client.position(group_id) or 0
        self._caught_up(group_id)
        self._wake.set()

    def _caught_up(self, group_id: str) -> None:
        engine = self.engines.get(group_id)
        if engine is not None and engine.board.sequence >= self._catching_up.get(group_id, 1 << 62):
            del self._catching_up[group_id]
            self._begin(engine)

    def _begin(self, engine: MissionEngine) -> None:
        board = engine.board
        if self.mission is None and board.plan_hash != self.plan.plan_hash:
            self._ignored.add(board.group_id)
            del self.engines[board.group_id]
            self.client.unsubscribe(board.group_id)
            return
        mission_id = None if board.mission is None else board.mission.mission_id
        self._log("mission", {"missionId": mission_id, "groupId": board.group_id, "state": board.state})
        engine.caught_up()

    async def _listen(self) -> None:
        async for event in self.client.events():
            self._take(event)
            self._wake.set()

    def _take(self, event: Event) -> None:
        if event.group_id is UNSET:
            return
        engine = self.engines.get(event.group_id)
        if engine is None:
            self._notice(event)
            return
        was = engine.board.state
        engine.event(event)
        if engine.board.state != was:
            self._log("mission_state", {"groupId": event.group_id, "state": engine.board.state})
        if event.group_id in self._catching_up:
            self._caught_up(event.group_id)
        if event.sequence is not UNSET and engine.live:
            self.client.acknowledge(event.group_id, event.sequence)

    def _notice(self, event: Event) -> None:
        """A Mission was given to this Agent: follow it at once instead of at the next look."""
        payload = decode_payload(event)
        if isinstance(payload, MissionCreated) and event.group_id is not UNSET:
            mine = payload.mission.coordinator.agent_id == self.key.principal.id
            wanted = self.mission in (None, payload.mission.mission_id)
            if mine and wanted and (self.mission or plan_hash_of(event, payload.mission) == self.plan.plan_hash):
                self._follow(event.group_id)
        elif isinstance(payload, CoordinatorAssigned) and event.group_id is not UNSET:
            # With a Mission of its own the Coordinator finds it in the list; others are no business of it.
            self._follow_assigned(payload.coordinator_agent_id, event.group_id)

    def _follow_assigned(self, agent_id: str, group_id: str) -> None:
        if agent_id == self.key.principal.id and self.mission is None:
            self._follow(group_id)

    # --- effects ------------------------------------------------------------------------------------------------------

    def _carry_out(self, engine: MissionEngine) -> None:
        for effect in engine.effects():
            self._effect(engine, effect)

    def _effect(self, engine: MissionEngine, effect: Effect) -> None:
        match effect:
            case Send():
                self._spawn(self._send, engine, effect)
            case Upload():
                self._spawn(self._upload, engine, effect.local)
            case Check():
                self._spawn(self._check, engine, effect)
            case LookUp():
                if not self._looking:
                    self._looking = True
                    self._spawn(self._look_up)
            case Note(event, details):
                self._log(event, details)

    async def _send(self, engine: MissionEngine, effect: Send) -> None:
        try:
            receipt = await self.client.send(
                effect.kind,
                effect.payload,
                group_id=effect.group_id,
                work_item_id=effect.work_item_id,
                coordinator_epoch=effect.coordinator_epoch,
                expected_revision=effect.expected_revision,
            )
        except MissionWeaveError as error:
            engine.refused(effect.ticket, error)
        else:
            engine.answered(effect.ticket, receipt)
        self._wake.set()

    async def _upload(self, engine: MissionEngine, local: str) -> None:
        """Store a work's input files. A put is idempotent, so a Coordinator that starts anew may do it again."""
        files: dict[str, str] = {}
        for shown, source in input_files(self.plan, self.plan.by_id[local]).items():
            files[shown] = source if isinstance(source, str) else await self._put(source)
        engine.uploaded(local, files)
        self._wake.set()

    async def _put(self, path: Path) -> str:
        while True:
            try:
                stored = await self.client.put_artifact(path)
                return str(stored["contentHash"])
            except ClientError as error:
                self._log("upload_waits", {"file": str(path), "because": str(error)})
                await asyncio.sleep(1.0)
                await self.client.until_connected()

    async def _check(self, engine: MissionEngine, effect: Check) -> None:
        results = []
        for content_hash in effect.content_hashes:
            try:
                results.append(await asyncio.to_thread(self._fetch, content_hash, effect.read))
            except ClientError as error:
                self._log("check_waits", {"contentHash": content_hash, "because": str(error)})
                return  # asked for again when the wait is over
        engine.checked(effect.work_item_id, results)
        self._wake.set()

    def _fetch(self, content_hash: str, read: bool) -> Checked:
        """Read an Artifact to its end; its bytes are compared with its hash on the way (R-13.2-02)."""
        http = self.client.http
        if http is None:
            raise CoordinatorError("this client has no HTTP side")
        try:
            size, kept = 0, bytearray()
            for chunk in http.artifact_chunks(content_hash):
                size += len(chunk)
                if read and size <= ASSESSMENT_BYTES_MAX:
                    kept += chunk
        except MissionWeaveError as error:
            return Checked(content_hash, 0, f"{error.code.value}: {error.message}")
        return Checked(content_hash, size, content=bytes(kept) if read and size == len(kept) else None)

    async def _look_up(self) -> None:
        """Every registered Agent's Card, and who is present."""
        try:
            cards = (await self.client.get("/v0.1/agents"))["agents"]
            present = (await self.client.get("/v0.1/presence"))["presence"]
            records = [msgspec.convert(one, PresenceRecord) for one in present]
            presence = {record.agent_id: record for record in records}
            people = [Candidate(card, presence.get(card.agent_id)) for card in msgspec.convert(cards, list[AgentCard])]
            for engine in list(self.engines.values()):
                engine.candidates(people)
        except ClientError as error:
            self._log("look_up_waits", {"because": str(error)})
        finally:
            self._looking = False
        self._wake.set()
