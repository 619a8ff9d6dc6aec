"""Shell: a Worker's loop. Moves Events and answers into the engine, and carries out its effects."""

from __future__ import annotations

import asyncio
import shutil
import tempfile
from collections.abc import Mapping
from contextlib import suppress
from pathlib import Path
from typing import Any

import msgspec
from msgspec import UNSET

import mwnode
from mwnode.client import Client, ClientError
from mwnode.client.http import segment
from mwnode.client.tasks import Tasks
from mwnode.protocol.documents import AgentCard, CapabilityRef, Event
from mwnode.protocol.errors import CursorTooOld, MissionWeaveError
from mwnode.protocol.ports import Clock, Entropy
from mwnode.system import OsEntropy, SystemClock
from mwnode.trust.keys import SigningKey
from mwnode.worker.effects import (
    AskToStop,
    Buffer,
    Collect,
    Discard,
    Effect,
    FetchToken,
    Forget,
    Kill,
    Launch,
    Note,
    Remember,
    Revoke,
    SaveState,
    Send,
    Unbuffer,
)
from mwnode.worker.engine import WorkerEngine
from mwnode.worker.errors import WorkerError
from mwnode.worker.executor import Executor, Handler, HandlerExecutor
from mwnode.worker.groups import GroupState
from mwnode.worker.hands import Hands, Log
from mwnode.worker.inbox import Inbox
from mwnode.worker.memory import Buffered, GroupMemory, Memory
from mwnode.worker.papers import Papers
from mwnode.worker.presence import presence
from mwnode.worker.settings import WorkerSettings

TICK_SECONDS = 0.1
TAKE_OVER_SECONDS = 8.0
"""How long a Worker waits that has replaced another one: five until that one is told, and some for it to stop."""
LOOK_SECONDS = 5.0
"""How often the list of Missions is read, beside the notices that come by themselves."""


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
        self._slots = slots
        self._settings = settings or WorkerSettings()
        self._directory = directory
        self._clock = clock or SystemClock()
        self._executor: Executor = executor or HandlerExecutor(handler, clock=self._clock)  # type: ignore[arg-type]  # one of them is given
        self._entropy = entropy or OsEntropy()
        self._log = log or (lambda event, details: None)
        self._tasks = Tasks()
        self._inboxes: dict[str, Inbox] = {}
        self._changed: set[str] = set()
        self._catching_up: dict[str, int | None] = {}
        self._card: AgentCard | None = None
        self.engine: WorkerEngine

    # --- the loop -----------------------------------------------------------------------------------------------------

    async def run(self, stop: asyncio.Event | None = None) -> None:
        """Work until ``stop`` is set or the task is cancelled."""
        stop = stop or asyncio.Event()
        self._card = await self._agent_card()
        own = self._directory
        # Absolute, because executors run in directories of their own.
        root = own.absolute() if own is not None else Path(tempfile.mkdtemp(prefix="mwnode-worker-"))
        slots = self._slots_of(self._card)
        scheduling = msgspec.structs.replace(self._settings.scheduling, slots=slots)
        settings = msgspec.structs.replace(self._settings, scheduling=scheduling)
        papers = Papers(self.key, self._clock, self._entropy, mwnode.__version__)
        self.engine = WorkerEngine(papers, _capabilities(self._card), settings)
        self._hands = Hands(self.client, self.engine, self._executor, root, self._log, self._tasks.wake)
        await self._let_the_older_end(stop)
        # It is ours alone from here on: clearing it would clear what another process runs there.
        self._memory = Memory.open(root / "worker.mdb", f"{self.key.organization_id} {self.key.principal.id}")
        # What a crash left here belongs to no run any more.
        shutil.rmtree(self._hands.slots, ignore_errors=True)
        self._session: int | None = None
        self._link()
        self.client.present(lambda epoch: presence(self.engine, epoch))
        self._restore()
        self._note("working", {"agentId": self.key.principal.id, "slots": slots, "directory": str(root)})
        for work in (self._listen, self._look_for_groups):
            self._tasks.spawn(work)
        try:
            await self._loop(stop)
        finally:
            # Also after a failure: a Worker that was replaced leaves nothing running that the newer one begins anew.
            self._hands.kill_all()
            self.client.present(None)
            await self._tasks.end()
            self._keep()
            self._memory.close()
            if own is None and not self._kept_aside():
                shutil.rmtree(root, ignore_errors=True)
        if self._tasks.failure is not None:
            raise self._tasks.failure

    async def _loop(self, stop: asyncio.Event) -> None:
        stopped_at: float | None = None
        while self._tasks.failure is None:
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
            await self._tasks.rest(TICK_SECONDS)

    async def _let_the_older_end(self, stop: asyncio.Event) -> None:
        """Begin nothing while another process with this key may still run it: the newer wins, nothing is done twice."""
        replaced = await self.client.replaced()
        if replaced is None:
            return
        note = f"another process with this key, connected{replaced}, has been replaced; waiting for it to stop"
        self._note("took_over", {"note": note, "seconds": TAKE_OVER_SECONDS})
        with suppress(TimeoutError):
            async with asyncio.timeout(TAKE_OVER_SECONDS):
                await stop.wait()

    def _kept_aside(self) -> bool:
        """Whether somebody wanted to look at failed runs, and there are some."""
        return self._settings.keep_failed and self._hands.stale.exists()

    def _link(self) -> None:
        """Tell the engine when the link went, came back, or is another session than it knew."""
        session = self.client.session_epoch if self.client.connected else None
        if session != self._session:
            self._session = session
            if session is None:
                self.engine.disconnected()
            else:
                self.engine.connected(session)

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
            self._tasks.spawn(self._subscribe, group.group_id)

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
        answer = await self.client.get_at_last(f"/v0.1/agents/{segment(self.key.principal.id)}")
        card = answer.get("card", answer)
        try:
            return msgspec.convert(card, AgentCard)
        except msgspec.ValidationError as error:
            raise WorkerError(f"the node's Agent Card of {self.key.principal.id} cannot be read: {error}") from None

    def _slots_of(self, card: AgentCard) -> int:
        """What was asked for, and never more than the Agent Card says (R-11.1-13)."""
        return min(self._slots or card.max_concurrency, card.max_concurrency)

    async def _look_for_groups(self) -> None:
        """Join every Group that lists this Agent; notices make it quick, this makes it sure (decision A1)."""
        while True:
            listed = await self.client.get_at_last("/v0.1/missions")
            await self._look_at_card()
            for mission in listed["missions"]:
                membership = mission.get("membership") or {}
                if membership.get("state") in ("provisional", "active"):
                    scopes = tuple(membership.get("scopes", ()))
                    self._join(mission["groupId"], mission["missionId"], scopes)
                    # A late joiner never saw the Event that said so.
                    self.engine.prioritize(mission["groupId"], mission.get("priority", "usual"))
            await asyncio.sleep(LOOK_SECONDS)

    async def _look_at_card(self) -> None:
        """A new Agent Card may say other things of what we can do (R-6.1-08)."""
        card = await self._agent_card()
        if self._card is not None and card.card_version != self._card.card_version:
            self._note("upgraded", {"from": self._card.card_version, "to": card.card_version})
            self.engine.upgraded(_capabilities(card), self._slots_of(card))
        self._card = card

    def _join(self, group_id: str, mission_id: str | None, scopes: tuple[str, ...]) -> None:
        if self.engine.join(group_id, mission_id, scopes):
            self._catching_up[group_id] = None
            self._tasks.spawn(self._subscribe, group_id)
            self._note("joined", {"groupId": group_id, "missionId": mission_id})

    async def _subscribe(self, group_id: str) -> None:
        """Replay a Group from where we are; what it holds for us is decided on once all of it is here."""
        inbox = self._inboxes.setdefault(group_id, Inbox(group_id))
        try:
            try:
                await self.client.subscribe({group_id: inbox.cursor}, caught_up=True)
            except CursorTooOld:
                if not await self._go_on_from_snapshot(inbox):
                    return
                await self.client.subscribe({group_id: inbox.cursor}, caught_up=True)
        except MissionWeaveError as error:
            if self.client.failure is not None:
                raise  # it says nothing about the Group
            self._note("not_joined", {"groupId": group_id, "code": error.code.value})
            self.engine.leave(group_id)
            self._memory.forget_group(group_id)
            del self._inboxes[group_id]
            return
        self._catching_up[group_id] = self.client.position(group_id) or 0
        self._caught_up(group_id)
        self._tasks.wake()

    async def _go_on_from_snapshot(self, inbox: Inbox) -> bool:
        """Go on behind the verified snapshot of a Group whose beginning is gone; whether it could be (R-16-07).

        Only archived Groups are trimmed, so the snapshot holds no work for anybody: there is nothing to take over.
        """
        try:
            restored = await self.client.restore(inbox.group_id)
        except ClientError as error:
            # What was remembered of the Group stays as it is, its cursor too.
            self._note("not_restored", {"groupId": inbox.group_id, "error": str(error)})
            self.engine.leave(inbox.group_id)
            return False
        inbox.cursor = restored.through_sequence
        self._note("restored", {"groupId": inbox.group_id, "throughSequence": restored.through_sequence})
        return True

    def _caught_up(self, group_id: str) -> None:
        wanted = self._catching_up.get(group_id)
        if wanted is not None and self._inboxes[group_id].cursor >= wanted:
            del self._catching_up[group_id]
            self.engine.caught_up(group_id)

    async def _listen(self) -> None:
        async for event in self.client.events():
            self._link()  # an Event of a new session must not find an engine that thinks it is offline
            self._take(event)
            self._tasks.wake()

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

    # --- effects ------------------------------------------------------------------------------------------------------

    def _carry_out(self) -> None:
        while effects := self.engine.effects():
            for effect in effects:
                self._effect(effect)

    def _effect(self, effect: Effect) -> None:
        match effect:
            case Send():
                self._tasks.spawn(self._send, effect)
            case Launch():
                self._tasks.spawn(self._hands.launch, effect)
            case FetchToken(run_id, request):
                self._tasks.spawn(self._hands.fetch_token, run_id, request)
            case Revoke(run_id):
                self._hands.revoke(run_id)
            case AskToStop(run_id, grace_seconds):
                self._hands.ask(run_id, grace_seconds)
            case Kill(run_id, reason):
                self._hands.kill(run_id, reason)
            case Collect(run_id, _, made):
                self._tasks.spawn(self._hands.collect, run_id, made)
            case SaveState(run_id, path):
                self._tasks.spawn(self._hands.save_state, run_id, path)
            case Discard(run_id, keep):
                slot = self._hands.drop(run_id)
                if slot is not None:
                    self._tasks.spawn(self._hands.clear, slot, keep)
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
        self._hands.stale.mkdir(mode=0o700, parents=True, exist_ok=True)
        name = f"command-{self._clock.now().whole_microseconds()}-{number}.json"
        (self._hands.stale / name).write_bytes(msgspec.json.encode({"refused": refused, "command": msgspec.Raw(raw)}))

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
            if self.client.failure is not None:
                raise  # it says nothing about the Command
            self._link()
            self.engine.refused(effect.ticket, error)
        else:
            self._link()  # nor must the answer of a new session find one
            self.engine.answered(effect.ticket, receipt)
        self._tasks.wake()


def _capabilities(card: AgentCard) -> tuple[CapabilityRef, ...]:
    return tuple(CapabilityRef(id=one.id, version=one.version) for one in card.capabilities)
