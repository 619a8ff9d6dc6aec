"""Shell: a Coordinator's loop over all Missions of its plans."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any

import msgspec
from msgspec import UNSET, Struct

from mwnode.client import Client, ClientError
from mwnode.client.errors import passes
from mwnode.client.fold import decode_payload
from mwnode.client.running import first_session, stopped_by_signals
from mwnode.client.tasks import Tasks
from mwnode.coordinator.board import plan_hash_of
from mwnode.coordinator.candidates import Candidate
from mwnode.coordinator.effects import Check, Effect, Follow, LookUp, Note, Send, Upload
from mwnode.coordinator.engine import MissionEngine
from mwnode.coordinator.inputs import input_files
from mwnode.coordinator.papers import CoordinatorPapers
from mwnode.coordinator.plan import Plan
from mwnode.coordinator.review import Checked
from mwnode.protocol.assessments import ASSESSMENT_BYTES_MAX
from mwnode.protocol.documents import AgentCard, Event, PresenceRecord
from mwnode.protocol.errors import ErrorCode, MissionWeaveError
from mwnode.protocol.events import EVENT_PAYLOADS, CoordinatorAssigned, MissionCreated
from mwnode.protocol.frames import AttentionFilter
from mwnode.protocol.ports import Clock, Entropy
from mwnode.system import OsEntropy, SystemClock
from mwnode.trust.keys import SigningKey

TICK_SECONDS = 0.2
LOOK_SECONDS = 2.0
"""How often the list of Missions is read."""

CHILD_ATTENTION = AttentionFilter(
    event_kinds=tuple(kind for kind in EVENT_PAYLOADS if not kind.startswith("message.")), announcements=True
)

Log = Callable[[str, Mapping[str, Any]], None]


class CoordinatorError(Exception):
    """The Coordinator cannot work; one line that says what to do."""


class CoordinatorOptions(Struct, frozen=True, kw_only=True):
    """What ``mwnode coordinator`` was told."""

    url: str
    key: SigningKey
    plans: tuple[Plan, ...]
    ca: Path | None = None
    mission: str | None = None
    """Only this Mission, whatever plan it was made from; the Coordinator ends with it."""
    patient: bool = True
    """Keep trying when the node cannot be reached at first."""
    log: Log = lambda event, details: None


async def run_coordinator(options: CoordinatorOptions, stop: asyncio.Event | None = None) -> None:
    """Coordinate until SIGTERM or SIGINT (or ``stop``), or until the one Mission that was named has ended.

    Raises CoordinatorError, ClientError, or the MissionWeaveError of a refused handshake.
    """
    if options.key.principal.type != "agent":
        raise CoordinatorError(
            f"the key is {options.key.principal.type} {options.key.principal.id}: give an Agent's key"
        )
    stop = stop or asyncio.Event()
    with stopped_by_signals(stop):
        client = await first_session(
            options.url, options.key, options.ca, patient=options.patient, log=options.log, stop=stop
        )
        if client is None:
            return
        async with client:
            await Coordinator(client, options.plans, mission=options.mission, log=options.log).run(stop)


class Coordinator:
    """One Agent that coordinates every Mission made from one of its plans, or from a plan that one of them contains."""

    def __init__(
        self,
        client: Client,
        plans: Sequence[Plan],
        *,
        mission: str | None = None,
        key: SigningKey | None = None,
        clock: Clock | None = None,
        entropy: Entropy | None = None,
        log: Log | None = None,
    ) -> None:
        self.client = client
        if not plans:
            raise CoordinatorError("a Coordinator follows at least one plan")
        self.plans = {plan.plan_hash: plan for given in plans for plan in given.every()}
        self._first = plans[0]
        self.key = key or client.key
        self.mission = mission
        self._clock = clock or SystemClock()
        self._papers = CoordinatorPapers(self.key, self._clock, entropy or OsEntropy())
        self._log = log or (lambda event, details: None)
        self.engines: dict[str, MissionEngine] = {}
        self._parents: dict[str, MissionEngine] = {}
        """By the Group of each child Mission, who owns it."""
        self._ignored: set[str] = set()
        self._catching_up: dict[str, int] = {}
        self._looking = False
        self._tasks = Tasks()

    async def run(self, stop: asyncio.Event | None = None) -> None:
        """Coordinate until ``stop`` is set, or until the one Mission asked for has ended."""
        stop = stop or asyncio.Event()
        self._log("coordinating", {"agentId": self.key.principal.id, "planHashes": list(self.plans)})
        replaced = await self.client.replaced()
        if replaced is not None:
            self._log("took_over", {"note": f"another process with this key, connected{replaced}, has been replaced"})
        for work in (self._listen, self._look_for_missions):
            self._tasks.spawn(work)
        try:
            while not stop.is_set() and self._tasks.failure is None and not self._done():
                for engine in list(self.engines.values()):
                    engine.advance()
                    self._carry_out(engine)
                    if engine.live and engine.finished and self.mission is None:
                        self._forget(engine)
                await self._tasks.rest(TICK_SECONDS)
        finally:
            await self._tasks.end()
        if self._tasks.failure is not None:
            raise self._tasks.failure

    def _done(self) -> bool:
        return self.mission is not None and any(engine.finished for engine in self.engines.values())

    # --- Missions and Events ------------------------------------------------------------------------------------------

    async def _look_for_missions(self) -> None:
        """Follow every Group that this Agent coordinates; which of them are the plans', their first Event tells."""
        while True:
            listed = await self.client.get_at_last("/v0.1/missions")
            for mission in listed["missions"]:
                membership = mission.get("membership") or {}
                wanted = self.mission is None or mission["missionId"] == self.mission
                if wanted and membership.get("role") == "coordinator" and membership.get("state") == "active":
                    self._follow(mission["groupId"])
            await asyncio.sleep(LOOK_SECONDS)

    def _follow(self, group_id: str) -> None:
        if group_id in self.engines or group_id in self._ignored:
            return
        engine = MissionEngine(self.key.principal.id, group_id, self._first, self._papers)
        engine.fellows = self.engines.values
        self.engines[group_id] = engine
        self._tasks.spawn(self._subscribe, group_id)

    def _forget(self, engine: MissionEngine) -> None:
        """A Mission has ended: nothing more is decided there, and nothing of it or of its children is kept."""
        group_id = engine.board.group_id
        for child_group_id in engine.children.by_group:
            self._parents.pop(child_group_id, None)
            self._catching_up.pop(child_group_id, None)
            self.client.unsubscribe(child_group_id)
        self.client.unsubscribe(group_id)
        self._ignored.add(group_id)
        del self.engines[group_id]

    async def _subscribe(self, group_id: str) -> None:
        try:
            await self.client.subscribe({group_id: 0}, caught_up=True)
        except MissionWeaveError as error:
            if self.client.failure is not None:
                raise  # it says nothing about the Group
            self._log("not_followed", {"groupId": group_id, "code": error.code.value})
            self.engines.pop(group_id, None)
            if error.code is ErrorCode.CURSOR_TOO_OLD:
                # Its beginning is in a snapshot, so it was archived: there is nothing left to coordinate.
                self._ignored.add(group_id)
            return
        self._catching_up[group_id] = self.client.position(group_id) or 0
        self._caught_up(group_id)
        self._tasks.wake()

    async def _subscribe_child(self, group_id: str) -> None:
        """Follow a child Mission's facts and announcements; its other Messages wake nobody here (R-14-22)."""
        try:
            await self.client.subscribe({group_id: 0}, CHILD_ATTENTION, caught_up=True)
        except MissionWeaveError as error:
            if self.client.failure is not None:
                raise  # it says nothing about the Group
            # A child that is archived, or that another Coordinator's owner took over, tells nothing any more.
            self._log("child_not_followed", {"groupId": group_id, "code": error.code.value})
            if error.code is ErrorCode.CURSOR_TOO_OLD:
                await self._restore_child(group_id)
            if group_id in self._parents:  # it is not where the parent has ended meanwhile
                self._parents[group_id].children.caught_up(group_id)
            self._tasks.wake()
            return
        self._catching_up[group_id] = self.client.position(group_id) or 0
        self._caught_up(group_id)
        self._tasks.wake()

    async def _restore_child(self, group_id: str) -> None:
        """Take what an archived child came to from its signed snapshot, at the next try where this one fails."""
        while True:
            try:
                restored = await self.client.restore(group_id)
            except (ClientError, MissionWeaveError) as error:
                self._log("not_restored", {"groupId": group_id, "error": str(error)})
                if not passes(error):
                    return
                await asyncio.sleep(LOOK_SECONDS)
            else:
                if restored.state is not None and group_id in self._parents:
                    self._parents[group_id].children.restored(group_id, restored.state)
                return

    def _caught_up(self, group_id: str) -> None:
        engine, parent = self.engines.get(group_id), self._parents.get(group_id)
        if parent is not None:
            if parent.children.by_group[group_id].board.sequence >= self._catching_up.get(group_id, 1 << 62):
                del self._catching_up[group_id]
                parent.children.caught_up(group_id)
        elif engine is not None and engine.board.sequence >= self._catching_up.get(group_id, 1 << 62):
            del self._catching_up[group_id]
            self._begin(engine)

    def _begin(self, engine: MissionEngine) -> None:
        board = engine.board
        plan = self.plans.get(board.plan_hash or "")
        if plan is not None:
            engine.follow(plan)
        elif self.mission is None:
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
            self._tasks.wake()

    def _take(self, event: Event) -> None:
        if event.group_id is UNSET:
            return
        engine, parent = self.engines.get(event.group_id), self._parents.get(event.group_id)
        if parent is not None:
            parent.children.event(event)
            if event.group_id in self._catching_up:
                self._caught_up(event.group_id)
            return
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
            if mine and wanted and (self.mission or plan_hash_of(event, payload.mission) in self.plans):
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
                self._tasks.spawn(self._send, engine, effect)
            case Upload():
                self._tasks.spawn(self._upload, engine, effect.local)
            case Check():
                self._tasks.spawn(self._check, engine, effect)
            case Follow():
                if effect.child_group_id not in self._parents:
                    self._parents[effect.child_group_id] = engine
                    self._tasks.spawn(self._subscribe_child, effect.child_group_id)
            case LookUp():
                if not self._looking:
                    self._looking = True
                    self._tasks.spawn(self._look_up)
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
                extensions=effect.extensions,
                action_id=effect.action_id,
                cooperation_override_grant_id=effect.cooperation_override_grant_id,
            )
        except MissionWeaveError as error:
            if self.client.failure is not None:
                raise  # it says nothing about the Command
            engine.refused(effect.ticket, error)
        else:
            engine.answered(effect.ticket, receipt)
        self._tasks.wake()

    async def _upload(self, engine: MissionEngine, local: str) -> None:
        """Store a work's input files. A put is idempotent, so a Coordinator that starts anew may do it again."""
        files: dict[str, str] = {}
        for shown, source in input_files(engine.plan, engine.plan.by_id[local]).items():
            files[shown] = source if isinstance(source, str) else await self._put(source)
        engine.uploaded(local, files)
        self._tasks.wake()

    async def _put(self, path: Path) -> str:
        while True:
            try:
                stored = await self.client.put_artifact(path)
                return str(stored["contentHash"])
            except (ClientError, MissionWeaveError) as error:
                if not passes(error):
                    raise
                self._log("upload_waits", {"file": str(path), "because": str(error)})
                await asyncio.sleep(1.0)
                await self.client.until_connected()

    async def _check(self, engine: MissionEngine, effect: Check) -> None:
        results = []
        for content_hash in effect.content_hashes:
            try:
                results.append(await asyncio.to_thread(self._fetch, content_hash, effect.read))
            except (ClientError, MissionWeaveError) as error:
                self._log("check_waits", {"contentHash": content_hash, "because": str(error)})
                return  # asked for again when the wait is over
        engine.checked(effect.work_item_id, results)
        self._tasks.wake()

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
        except (ClientError, MissionWeaveError) as error:
            if passes(error):
                raise  # that says nothing about the bytes
            code = f"{error.code.value}: " if isinstance(error, MissionWeaveError) else ""
            return Checked(content_hash, 0, f"{code}{error}")
        return Checked(content_hash, size, content=bytes(kept) if read and size == len(kept) else None)

    async def _look_up(self) -> None:
        """Every registered Agent's Card, and who is present."""
        try:
            cards = (await self.client.get_at_last("/v0.1/agents"))["agents"]
            present = (await self.client.get_at_last("/v0.1/presence"))["presence"]
            records = [msgspec.convert(one, PresenceRecord) for one in present]
            presence = {record.agent_id: record for record in records}
            people = [Candidate(card, presence.get(card.agent_id)) for card in msgspec.convert(cards, list[AgentCard])]
            for engine in list(self.engines.values()):
                engine.candidates(people)
        finally:
            self._looking = False
        self._tasks.wake()
