"""Shell: a Worker's loop. Moves Events, answers and exits into the engine, and carries out its effects."""

from __future__ import annotations

import asyncio
import os
import shutil
import signal
import tempfile
from collections.abc import Callable, Coroutine, Mapping
from contextlib import suppress
from pathlib import Path
from typing import Any

import msgspec
from msgspec import UNSET, Struct

import mwnode
from mwnode.client import Client, ClientError
from mwnode.client.http import segment
from mwnode.protocol.documents import (
    AgentCard,
    CapabilityAvailability,
    CapabilityRef,
    Capacity,
    Event,
    PresenceRecord,
)
from mwnode.protocol.errors import MissionWeaveError
from mwnode.protocol.ports import Clock, Entropy
from mwnode.system import OsEntropy, SystemClock
from mwnode.trust.keys import SigningKey
from mwnode.worker.effects import (
    AskToStop,
    Buffer,
    Collect,
    Discard,
    Effect,
    Exit,
    Forget,
    Kill,
    Launch,
    Note,
    Output,
    Remember,
    SaveState,
    Send,
    Unbuffer,
)
from mwnode.worker.engine import GroupState, WorkerEngine
from mwnode.worker.executor import Executor, ExecutorLimits, Handler, HandlerExecutor, Stop, SubprocessExecutor
from mwnode.worker.inbox import Inbox
from mwnode.worker.memory import Buffered, GroupMemory, Memory
from mwnode.worker.papers import Papers
from mwnode.worker.settings import WorkerSettings
from mwnode.worker.slots import Slot, SlotError

TICK_SECONDS = 0.1
LOOK_SECONDS = 5.0
"""How often the list of Missions is read, beside the notices that come by themselves."""
PRESENCE_SECONDS = 60
FETCH_TRIES = 3

Log = Callable[[str, Mapping[str, Any]], None]


class WorkerError(Exception):
    """The Worker cannot work; one line that says what to do."""


class WorkerOptions(Struct, frozen=True, kw_only=True):
    """What ``mwnode worker`` was told. Seconds where a length of time is meant."""

    url: str
    key: SigningKey
    command: str
    ca: Path | None = None
    slots: int | None = None
    """Slots; the Agent Card's ``maxConcurrency`` unless given, and never more."""
    offline_grace: float = 900.0
    directory: Path | None = None
    """Where slots live; a temporary directory unless given."""
    working_directory: Path | None = None
    """What relative paths in the command are relative to; the present one unless given."""
    limits: ExecutorLimits = ExecutorLimits()
    settings: WorkerSettings = WorkerSettings()
    patient: bool = True
    """Keep trying when the node cannot be reached at first."""
    log: Log = lambda event, details: None


async def run_worker(options: WorkerOptions, stop: asyncio.Event | None = None) -> None:
    """Work until SIGTERM or SIGINT (or ``stop``); what runs then is brought to a checkpoint first.

    Raises ExecutorError when the command cannot be run, WorkerError, ClientError, or the MissionWeaveError of a refused
    handshake.
    """
    here = options.working_directory or Path.cwd()
    executor = SubprocessExecutor(options.command, directory=here, environment=os.environ, limits=options.limits)
    if options.key.principal.type != "agent":
        raise WorkerError(f"the key is {options.key.principal.type} {options.key.principal.id}: give an Agent's key")
    stop = stop or asyncio.Event()
    loop = asyncio.get_running_loop()
    handled = []
    for number in (signal.SIGTERM, signal.SIGINT):
        with suppress(ValueError, NotImplementedError, RuntimeError):  # not in the main thread: others stop us
            loop.add_signal_handler(number, stop.set)
            handled.append(number)
    try:
        client = await _connect(options, stop)
        if client is None:
            return
        async with client:
            settings = msgspec.structs.replace(options.settings, offline_grace_seconds=options.offline_grace)
            worker = Worker(
                client,
                executor=executor,
                key=options.key,
                slots=options.slots,
                settings=settings,
                directory=options.directory,
                log=options.log,
            )
            await worker.run(stop)
    finally:
        for number in handled:
            loop.remove_signal_handler(number)


async def _connect(options: WorkerOptions, stop: asyncio.Event) -> Client | None:
    """The first session, or ``None`` when the Worker was stopped while it waited for one."""
    connecting = asyncio.create_task(
        Client.connect(
            options.url,
            options.key,
            options.ca,
            patient=options.patient,
            observer=lambda event, details: options.log(event, details),
        )
    )
    stopped = asyncio.create_task(stop.wait())
    await asyncio.wait((connecting, stopped), return_when=asyncio.FIRST_COMPLETED)
    if connecting.done():
        stopped.cancel()
        return connecting.result()
    connecting.cancel()
    with suppress(asyncio.CancelledError):
        await connecting
    return None


class Worker:
    """An Agent that takes work from all its Groups.

    async def handler(work: Work) -> None:
        (work.outputs / "report.txt").write_text("done")

    async with await Client.connect(url, key, ca) as client:
        await Worker(client, handler).run()
    """

    def __init__(
        self,
        client: Client,
        handler: Handler | None = None,
        *,
        executor: Executor | None = None,
        key: SigningKey | None = None,
        slots: int | None = None,
        settings: WorkerSettings | None = None,
        directory: Path | None = None,
        clock: Clock | None = None,
        entropy: Entropy | None = None,
        log: Log | None = None,
    ) -> None:
        if (handler is None) == (executor is None):
            raise WorkerError("a Worker has either a handler or an executor")
        self.client = client
        self.key = key or client.key
        self._executor: Executor = executor if executor is not None else HandlerExecutor(handler)  # type: ignore[arg-type]  # one of them is given
        self._limits = getattr(self._executor, "limits", ExecutorLimits())
        self._slots = slots
        self._settings = settings or WorkerSettings()
        self._directory = directory
        self._clock = clock or SystemClock()
        self._entropy = entropy or OsEntropy()
        self._log = log or (lambda event, details: None)
        self._tasks: set[asyncio.Task[None]] = set()
        self._runs: dict[str, tuple[Slot, Stop]] = {}
        self._inboxes: dict[str, Inbox] = {}
        self._changed: set[str] = set()
        self._catching_up: dict[str, int | None] = {}
        self._card: AgentCard | None = None
        self._wake = asyncio.Event()
        self._failure: BaseException | None = None
        self.engine: WorkerEngine

    # --- the loop -----------------------------------------------------------------------------------------------------

    async def run(self, stop: asyncio.Event | None = None) -> None:
        """Work until ``stop`` is set or the task is cancelled."""
        stop = stop or asyncio.Event()
        self._card = await self._agent_card()
        own = self._directory
        root = own if own is not None else Path(tempfile.mkdtemp(prefix="mwnode-worker-"))
        self._root = root / "slots"
        self._stale = root / "stale"
        # What a crash left here belongs to no run any more.
        shutil.rmtree(self._root, ignore_errors=True)
        capabilities = tuple(CapabilityRef(id=one.id, version=one.version) for one in self._card.capabilities)
        slots = min(self._slots or self._card.max_concurrency, self._card.max_concurrency)
        scheduling = msgspec.structs.replace(self._settings.scheduling, slots=slots)
        settings = msgspec.structs.replace(self._settings, scheduling=scheduling)
        papers = Papers(self.key, self._clock, self._entropy, mwnode.__version__)
        self.engine = WorkerEngine(papers, capabilities, settings)
        self._online = self.client.connected
        if self._online:
            self.engine.connected()
        self.client.present(self._presence)
        self._memory = Memory.open(root / "worker.mdb", f"{self.key.organization_id} {self.key.principal.id}")
        self._restore()
        self._note("working", {"agentId": self.key.principal.id, "slots": slots, "directory": str(root)})
        background = [asyncio.create_task(self._guard(work)) for work in (self._listen, self._look_for_groups)]
        try:
            await self._loop(stop)
        finally:
            self.client.present(None)
            for task in (*background, *self._tasks):
                task.cancel()
            await asyncio.gather(*background, *self._tasks, return_exceptions=True)
            self._keep()
            self._memory.close()
            if own is None:
                shutil.rmtree(root, ignore_errors=True)
        if self._failure is not None:
            raise self._failure

    async def _loop(self, stop: asyncio.Event) -> None:
        stopped_at: float | None = None
        while self._failure is None:
            if stop.is_set() and stopped_at is None:
                stopped_at = self._clock.monotonic()
                self.engine.shut_down()
            self._link()
            self.engine.tick()
            self._carry_out()
            self._keep()
            if stopped_at is not None:
                patience = self.engine.settings.stop_grace_seconds + 10
                if self.engine.idle or self._clock.monotonic() - stopped_at > patience:
                    break
            with suppress(TimeoutError):
                async with asyncio.timeout(TICK_SECONDS):
                    await self._wake.wait()
            self._wake.clear()
        for _, run_stop in self._runs.values():
            run_stop.kill()

    def _link(self) -> None:
        """Tell the engine when the link went or came back."""
        if self.client.connected != self._online:
            self._online = self.client.connected
            if self._online:
                self.engine.connected()
            else:
                self.engine.disconnected()

    async def _guard(self, work: Callable[..., Coroutine[Any, Any, None]], *arguments: Any) -> None:
        """What ends a part of the Worker ends the Worker."""
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

    def _note(self, event: str, details: Mapping[str, Any]) -> None:
        self._log(event, details)

    # --- what outlives a restart --------------------------------------------------------------------------------------

    def _restore(self) -> None:
        """Take up where an earlier run of this Worker was; what it lacks comes by replay."""
        self.engine.kept = self._memory.runs()
        self.engine.offline.restore([(one.number, one.raw) for one in self._memory.buffered()])
        for group, views in self._memory.groups():
            self._inboxes[group.group_id] = Inbox(group.group_id, group.cursor)
            state = GroupState(group.group_id, group.mission_id, frozenset(group.scopes), package_id=group.package_id)
            state.views = {view.work_item_id: view for view in views}
            self.engine.restore(state)
            self._catching_up[group.group_id] = None
            self._spawn(self._subscribe, group.group_id)

    def _keep(self) -> None:
        """Keep what was processed, then acknowledge it: the Cursor never runs ahead of durable work (R-16-56)."""
        rows = []
        for group_id in self._changed:
            state = self.engine.groups.get(group_id)
            if state is None:
                continue
            views = [state.views[name] for name in state.dirty if name in state.views]
            state.dirty.clear()
            cursor = self._inboxes[group_id].cursor
            group = GroupMemory(group_id, state.mission_id, tuple(sorted(state.scopes)), cursor, state.package_id)
            rows.append((group, views))
        self._changed.clear()
        if not rows:
            return
        self._memory.save(rows)
        for group, _ in rows:
            if group.group_id not in self._catching_up:
                self.client.acknowledge(group.group_id, group.cursor)

    # --- Groups and Events --------------------------------------------------------------------------------------------

    async def _agent_card(self) -> AgentCard:
        answer = await self.client.get(f"/v0.1/agents/{segment(self.key.principal.id)}")
        card = answer.get("card", answer)
        try:
            return msgspec.convert(card, AgentCard)
        except msgspec.ValidationError as error:
            raise WorkerError(f"the node's Agent Card of {self.key.principal.id} cannot be read: {error}") from None

    async def _look_for_groups(self) -> None:
        """Join every Group that lists this Agent; notices make it quick, this makes it sure (decision A1)."""
        while True:
            with suppress(ClientError):
                listed = await self.client.get("/v0.1/missions")
                for mission in listed["missions"]:
                    membership = mission.get("membership") or {}
                    if membership.get("state") in ("provisional", "active"):
                        scopes = tuple(membership.get("scopes", ()))
                        self._join(mission["groupId"], mission["missionId"], scopes)
            await asyncio.sleep(LOOK_SECONDS)

    def _join(self, group_id: str, mission_id: str | None, scopes: tuple[str, ...]) -> None:
        if self.engine.join(group_id, mission_id, scopes):
            self._catching_up[group_id] = None
            self._spawn(self._subscribe, group_id)
            self._note("joined", {"groupId": group_id, "missionId": mission_id})

    async def _subscribe(self, group_id: str) -> None:
        """Replay a Group from where we are; what it holds for us is decided on once all of it is here."""
        inbox = self._inboxes.setdefault(group_id, Inbox(group_id))
        try:
            await self.client.subscribe({group_id: inbox.cursor}, caught_up=True)
        except MissionWeaveError as error:
            self._note("not_joined", {"groupId": group_id, "code": error.code.value})
            self.engine.leave(group_id)
            self._memory.forget_group(group_id)
            del self._inboxes[group_id]
            return
        self._catching_up[group_id] = self.client.position(group_id) or 0
        self._caught_up(group_id)
        self._wake.set()

    def _caught_up(self, group_id: str) -> None:
        wanted = self._catching_up.get(group_id)
        if wanted is not None and self._inboxes[group_id].cursor >= wanted:
            del self._catching_up[group_id]
            self.engine.caught_up(group_id)

    async def _listen(self) -> None:
        async for event in self.client.events():
            self._link()  # an Event of a new session must not find an engine that thinks it is offline
            self._take(event)
            self._wake.set()

    def _take(self, event: Event) -> None:
        group_id = event.group_id
        if group_id is UNSET:
            return
        membership = self.engine.membership_in(event)
        if membership is not None and membership.state != "ended":
            self._join(membership.group_id, membership.mission_id, membership.scopes)
        inbox = self._inboxes.get(group_id)
        if inbox is None or event.sequence is UNSET:
            return
        # The client hands on each Group in order, so what lies below was delivered or withheld.
        for due in (*inbox.prove(event.sequence - 1), *inbox.receive(event)):
            self.engine.event(due)
        self._changed.add(group_id)
        self._caught_up(group_id)

    def _presence(self, session_epoch: int) -> PresenceRecord:
        """What may be known of this Worker: slots and capabilities, nothing of any Group (R-6.2-05)."""
        card = self._card
        assert card is not None, "the card is read before Presence is offered"
        engine = self.engine
        slots, running = engine.settings.scheduling.slots, engine.scheduler.running
        now = self._clock.now()
        return PresenceRecord(
            agent_id=self.key.principal.id,
            session_epoch=session_epoch,
            status="draining" if engine.draining else "busy" if running >= slots else "online",
            capacity=Capacity(
                max_slots=slots,
                active_slots=running,
                available_slots=max(0, slots - running),
                queued_items=engine.scheduler.queued,
            ),
            capability_availability=tuple(
                CapabilityAvailability(capability=one, status="available") for one in engine.capabilities
            ),
            last_heartbeat=now.text(),
            expires_at=now.plus(PRESENCE_SECONDS).text(),
        )

    # --- effects ------------------------------------------------------------------------------------------------------

    def _carry_out(self) -> None:
        while effects := self.engine.effects():
            for effect in effects:
                self._effect(effect)

    def _effect(self, effect: Effect) -> None:
        match effect:
            case Send():
                self._spawn(self._send, effect)
            case Launch():
                self._spawn(self._launch, effect)
            case AskToStop(run_id, grace_seconds):
                if run_id in self._runs:
                    self._runs[run_id][1].ask(grace_seconds)
            case Kill(run_id, reason):
                if run_id in self._runs:
                    self._note("killed", {"runId": run_id, "because": reason})
                    self._runs[run_id][1].kill()
            case Collect(run_id):
                self._spawn(self._collect, run_id)
            case SaveState(run_id, path):
                self._spawn(self._save_state, run_id, path)
            case Discard(run_id, keep):
                self._discard(run_id, keep)
            case Note(event, details):
                self._note(event, details)
            case Remember(kept):
                self._memory.keep_run(kept)
            case Forget(work_item_id, epoch):
                self._memory.forget_run(work_item_id, epoch)
            case Buffer(number, work_item_id, raw):
                self._memory.buffer(Buffered(number, work_item_id, raw))
            case Unbuffer(number, raw, refused):
                self._memory.unbuffer(number)
                if refused is not None:
                    self._set_aside(number, raw, refused)

    def _set_aside(self, number: int, raw: bytes, refused: str) -> None:
        """A buffered Command that the authority did not take is kept for audit, with the reason."""
        self._stale.mkdir(mode=0o700, parents=True, exist_ok=True)
        name = f"command-{self._clock.now().whole_microseconds()}-{number}.json"
        (self._stale / name).write_bytes(msgspec.json.encode({"refused": refused, "command": msgspec.Raw(raw)}))

    async def _send(self, effect: Send) -> None:
        try:
            receipt = await self.client.send(
                effect.kind,
                effect.payload,
                group_id=effect.group_id,
                work_item_id=effect.work_item_id,
                expected_revision=effect.expected_revision,
                action_id=effect.action_id,
                correlation_id=effect.correlation_id,
                extensions=effect.extensions,
            )
        except MissionWeaveError as error:
            self.engine.refused(effect.ticket, error)
        else:
            self.engine.answered(effect.ticket, receipt)
        self._wake.set()

    async def _launch(self, effect: Launch) -> None:
        assignment = effect.assignment
        kept = self._runs.get(assignment.run_id)
        slot, stop = (kept[0] if kept is not None else Slot(self._root, assignment)), Stop()
        slot.assignment = assignment
        self._runs[assignment.run_id] = (slot, stop)
        self._note("launch", {"workItemId": assignment.work_item_id, "attempt": assignment.attempt})
        try:
            await slot.prepare(self._fetch, await self._context_package(assignment.context_package_id))
        except (SlotError, ClientError, MissionWeaveError, OSError) as error:
            ended = Exit(-1, 0.0, 0.0, f"the slot cannot be prepared: {error}")
        else:
            ended = await self._executor.run(
                slot,
                stop,
                lambda line: self._reported(assignment.run_id, line),
                lambda seconds: self.engine.runs.sampled(assignment.run_id, seconds),
            )
        self.engine.runs.exited(assignment.run_id, ended)
        self._wake.set()

    def _reported(self, run_id: str, line: Mapping[str, Any]) -> None:
        self.engine.runs.reported(run_id, line)
        self._wake.set()

    async def _fetch(self, content_hash: str, path: Path) -> object:
        """Fetch an Artifact; a node that is away for a moment is waited for."""
        for attempt in range(1, FETCH_TRIES + 1):
            try:
                return await self.client.get_artifact(content_hash, path)
            except ClientError:
                if attempt == FETCH_TRIES:
                    raise
                await self.client.until_connected()
                await asyncio.sleep(attempt)
        raise AssertionError("the loop returns or raises")

    async def _context_package(self, context_package_id: str | None) -> dict[str, Any] | None:
        if context_package_id is None:
            return None
        try:
            return await self.client.get(f"/v0.1/context-packages/{segment(context_package_id)}")
        except (ClientError, MissionWeaveError) as error:
            # The contract is what binds; a summary that cannot be read is no reason not to work.
            self._note("no_context_package", {"contextPackageId": context_package_id, "because": str(error)})
            return None

    async def _collect(self, run_id: str) -> None:
        slot = self._runs[run_id][0]
        outputs: list[Output] = []
        try:
            for deliverable, path in slot.deliverables(self._limits.output_bytes):
                stored = await self._put(path)
                outputs.append(
                    Output(
                        deliverable.deliverable_id,
                        path.relative_to(slot.outputs).as_posix(),
                        stored["contentHash"],
                        stored["sizeBytes"],
                        stored["uri"],
                        deliverable.media_type,
                        deliverable.schema,
                    )
                )
        except SlotError as error:
            self.engine.runs.collected(run_id, (), str(error))
        else:
            self.engine.runs.collected(run_id, tuple(outputs))
        self._wake.set()

    async def _put(self, path: Path) -> dict[str, Any]:
        """Upload a file, over as many connections as it takes: a put is idempotent."""
        pause = 0.2
        while True:
            try:
                return await self.client.put_artifact(path)
            except ClientError as error:
                self._note("upload_waits", {"because": str(error)})
                await asyncio.sleep(pause)
                pause = min(2 * pause, 10.0)
                await self.client.until_connected()

    async def _save_state(self, run_id: str, path: str) -> None:
        slot = self._runs[run_id][0]
        try:
            file = slot.inside(slot.path / path)
            stored = await self._put(file)
        except (SlotError, ValueError, OSError) as error:
            self._note("state_not_saved", {"runId": run_id, "because": str(error)})
            return
        output = Output(
            "state",
            path,
            stored["contentHash"],
            stored["sizeBytes"],
            stored["uri"],
            "application/octet-stream",
            "urn:mwnode:schema:any",
        )
        self.engine.runs.saved(run_id, output)
        self._wake.set()

    def _discard(self, run_id: str, keep: bool) -> None:
        kept = self._runs.pop(run_id, None)
        if kept is None:
            return
        slot, stop = kept
        stop.kill()
        self._spawn(self._clear, slot, keep)

    async def _clear(self, slot: Slot, keep: bool) -> None:
        # The executor may take a moment to die; a directory in use is not removed under it.
        await asyncio.sleep(2 * TICK_SECONDS)
        if keep:
            where = await asyncio.to_thread(slot.set_aside, self._stale)
            self._note("kept_aside", {"directory": str(where)})
        else:
            await asyncio.to_thread(slot.discard)
