"""Shell: all connections of a node on one event loop, and the way between the loop and the writer's threads."""

from __future__ import annotations

import asyncio
import logging
from collections import deque
from collections.abc import Callable, Sequence
from concurrent.futures import Future
from functools import partial
from typing import Any, Protocol

from mwnode.authority.access import sight_of
from mwnode.authority.state import AGENTS
from mwnode.gateway.delivery import Delivery
from mwnode.gateway.engine import (
    GOING_AWAY,
    POLICY,
    TRY_AGAIN,
    Acknowledge,
    Close,
    Effect,
    Engine,
    Follow,
    OpenSession,
    Phase,
    Present,
    Send,
    Submit,
    action_id_of,
)
from mwnode.gateway.flow import Outbox, Parcel
from mwnode.gateway.handshake import card_fault
from mwnode.gateway.ports import Authority, Origin, SessionGrant
from mwnode.gateway.replies import Replies
from mwnode.gateway.sessions import Sessions
from mwnode.gateway.subscription import Subscription
from mwnode.protocol.documents import Actor, PresenceRecord
from mwnode.protocol.errors import ErrorCode, Rejection
from mwnode.protocol.events import AgentCardRegistered, SessionOpened
from mwnode.protocol.instants import parse
from mwnode.store.batch import Accepted, CommittedEvent
from mwnode.store.port import WriteTransaction
from mwnode.trust.verification import Failure

FLUSH_BYTES = 256 * 1024
"""How much is handed to a transport at once."""
MAIL_TURN = 1024
"""Messages from other threads handled before sockets have their turn again."""
FENCED_SECONDS = 5.0
"""How long a fenced connection may stay idle before it is closed (decision A20)."""

logger = logging.getLogger(__name__)


class Peer(Protocol):
    """The transport of one connection."""

    def write(self, parcels: Sequence[Parcel]) -> None:
        """Hand frames to the transport, which may buffer them."""

    @property
    def congested(self) -> bool:
        """Whether the transport holds so much unsent that no more should be written."""

    async def drained(self) -> None:
        """Wait until the transport can take more; OSError when it is gone."""

    async def close(self, code: int, reason: str) -> None:
        """Close after what was written, by the WebSocket's own handshake."""

    def abort(self) -> None:
        """Cut the connection."""


class Connection:
    """One connection: protocol engine, outbox, transport."""

    def __init__(self, hub: Hub, peer: Peer) -> None:
        limits = hub.authority.limits
        self._hub = hub
        self.peer = peer
        self.engine = Engine(hub.authority, hub.replies)
        self.outbox = Outbox(limits.outbox_frames, limits.outbox_bytes)
        self.subscriptions: dict[str, Subscription] = {}
        self.withheld: dict[tuple[str, int], None] = {}
        self.origin: Origin | None = None
        self.pinged_at = self.engine.connected_at
        self.fenced_at: float | None = None
        self.closing: Close | None = None
        self.writer: asyncio.Task[None] | None = None
        self.gone = False

    @property
    def actor(self) -> Actor:
        return self.engine.actor

    @property
    def receiving(self) -> bool:
        return self.engine.phase is Phase.LIVE

    def touched(self) -> None:
        self._hub.dirty[id(self)] = self


class Hub:
    """Connects peers to an authority. Everything but ``_post`` happens on the event loop."""

    def __init__(self, authority: Authority) -> None:
        self.authority = authority
        self.replies = Replies(authority.clock, authority.entropy)
        self.sessions = Sessions(authority)
        self.delivery = Delivery(authority, self.replies, self._schedule_pump)
        self.dirty: dict[int, Connection] = {}
        self.connections: dict[int, Connection] = {}
        self.presence: dict[str, PresenceRecord] = {}
        self.stopping = False
        self.on_batch: list[Callable[[Sequence[CommittedEvent]], None]] = []
        self.on_command: Callable[[str, str], None] = lambda transport, outcome: None
        """Told the transport and outcome of every Command, for the metrics."""
        self._mail: deque[Callable[[], None]] = deque()
        self._batches: deque[Sequence[CommittedEvent]] = deque()
        self._called = False
        self._handshaking: set[int] = set()
        self._loop: asyncio.AbstractEventLoop | None = None
        self._pump_scheduled = False
        self._flush_scheduled = False
        self._cursors: dict[tuple[str, str], int] = {}
        self._saving: Future[None] | None = None
        self._ticker: asyncio.Task[None] | None = None
        self._tasks: set[asyncio.Task[None]] = set()
        self._registry_seen: object = None

    # --- life ---

    def start(self) -> None:
        """Begin to serve on the running loop."""
        self._loop = asyncio.get_running_loop()
        self.authority.add_listener(self._committed)
        self._ticker = asyncio.create_task(self._tick_for_ever(), name="mwnode gateway timer")

    async def stop(self, seconds: float = 5.0) -> None:
        """No new Commands; everything accepted is answered, Cursors are saved, then close 1001 (decision E15)."""
        if self._loop is None:
            return
        self.stopping = True
        for connection in self.connections.values():
            connection.engine.accepting = False
        deadline = self._loop.time() + seconds
        while self._busy() and self._loop.time() < deadline:
            await asyncio.sleep(0.01)
        for connection in tuple(self.connections.values()):
            self._close(connection, Close(GOING_AWAY, "the node is stopping"))
        while self.connections and self._loop.time() < deadline:
            await asyncio.sleep(0.01)
        for connection in tuple(self.connections.values()):
            connection.peer.abort()
            self.detach(connection)
        self.authority.remove_listener(self._committed)
        if self._ticker is not None:
            self._ticker.cancel()
        for task in tuple(self._tasks):
            task.cancel()
        await asyncio.gather(*self._tasks, return_exceptions=True)

    def _busy(self) -> bool:
        return (
            any(connection.engine.in_flight or connection.outbox for connection in self.connections.values())
            or bool(self._cursors)
            or self._saving is not None
        )

    # --- between threads ---

    def post(self, work: Callable[[], None]) -> None:
        """Run something on the loop soon; from any thread. One wake-up serves all that gathers until then."""
        self._mail.append(work)
        self._call()

    def _committed(self, events: Sequence[CommittedEvent]) -> None:
        self._batches.append(events)
        self._call()

    def _call(self) -> None:
        # Set before the loop looks into the boxes: whoever finds it set has put its message where it will be seen.
        if self._called or self._loop is None:
            return
        self._called = True
        try:
            self._loop.call_soon_threadsafe(self._open_mail)
        except RuntimeError:
            # The loop has ended: nobody is left to be told.
            self._mail.clear()
            self._batches.clear()

    def _open_mail(self) -> None:
        self._called = False
        for _ in range(MAIL_TURN):
            # Events go first: a receipt that was delivered in its place need not be sent again.
            if self._batches:
                work: Callable[[], None] = partial(self._publish, self._batches.popleft())
            elif self._mail:
                work = self._mail.popleft()
            else:
                break
            try:
                work()
            except Exception:
                logger.exception("a message from the writer could not be handled")
        else:
            self._call()
        self.flush()

    def _publish(self, events: Sequence[CommittedEvent]) -> None:
        for event in events:
            if event.group_id is None:
                self._organization_event(event)
        self.delivery.publish(events)
        for listener in self.on_batch:
            listener(events)

    def _organization_event(self, event: CommittedEvent) -> None:
        if isinstance(event.payload, SessionOpened):
            connection = self.delivery.live_by_agent.get(event.payload.agent_id)
            if isinstance(connection, Connection) and connection.engine.session_epoch < event.payload.session_epoch:
                self._fence(connection)
        elif isinstance(event.payload, AgentCardRegistered):
            self._check_standing(event.payload.agent_id)

    # --- connections ---

    def attach(self, peer: Peer) -> Connection | Rejection:
        """Take a new connection, unless there are too many (R-17.3-01)."""
        limits = self.authority.limits
        waiting = sum(1 for each in self.connections.values() if not each.origin)
        if (
            self.stopping
            or len(self.connections) >= limits.connections
            or waiting >= limits.unauthenticated_connections
        ):
            return Rejection(
                ErrorCode.BACKPRESSURE, "the node takes no more connections now", "R-19-32", retry_after_ms=1000
            )
        connection = Connection(self, peer)
        connection.engine.accepting = not self.stopping
        self.connections[id(connection)] = connection
        self._handshaking.add(id(connection))
        return connection

    def detach(self, connection: Connection) -> None:
        """The transport is gone. Idempotent."""
        connection.gone = True
        connection.engine.phase = Phase.CLOSED
        self.delivery.leave(connection)
        connection.outbox.drop()
        self.connections.pop(id(connection), None)
        self._handshaking.discard(id(connection))
        self.dirty.pop(id(connection), None)
        if connection.writer is not None and not connection.writer.done():
            connection.writer.cancel()

    def receive(self, connection: Connection, raw: bytes) -> None:
        """One text message came."""
        self.perform(connection, connection.engine.receive(raw))

    def perform(self, connection: Connection, effects: Sequence[Effect]) -> None:
        """Carry out what the engine wants."""
        for effect in effects:
            match effect:
                case Submit():
                    self._submit(connection, effect)
                case Send():
                    connection.outbox.put_first(effect.frame)
                    connection.touched()
                case Follow():
                    self.delivery.follow(connection, effect.frame)
                case Acknowledge():
                    self._acknowledge(connection, effect)
                case Present():
                    self.presence[effect.record.agent_id] = effect.record
                case OpenSession():
                    self._open_session(connection, effect)
                case Close():
                    self._close(connection, effect)
        if self.dirty and not self._flush_scheduled and self._loop is not None:
            self._flush_scheduled = True
            self._loop.call_soon(self.flush)

    def _submit(self, connection: Connection, submit: Submit) -> None:
        origin = connection.origin
        assert origin is not None, "only an authenticated connection submits"
        connection.engine.in_flight += 1

        def reply(outcome: Accepted | Rejection | Failure) -> None:
            self.post(lambda: self._answered(connection, submit, outcome))

        self.authority.submit(submit.raw, origin, reply)

    def _answered(self, connection: Connection, submit: Submit, outcome: Accepted | Rejection | Failure) -> None:
        connection.engine.in_flight -= 1
        if isinstance(outcome, Accepted):
            self.on_command("ws", "duplicate" if outcome.duplicate else "accepted")
            self.delivery.receipt(connection, outcome)
            return
        rejection = outcome.rejection() if isinstance(outcome, Failure) else outcome
        self.on_command("ws", rejection.code.value)
        if connection.gone or connection.engine.phase is Phase.CLOSED:
            return
        frame = self.replies.error(
            rejection, related_frame_id=submit.frame_id, related_action_id=action_id_of(submit.raw)
        )
        connection.outbox.put_first(frame)
        connection.touched()

    # --- sessions ---

    def _open_session(self, connection: Connection, effect: OpenSession) -> None:
        with self.authority.read() as view:
            fault = card_fault(view.get(AGENTS, effect.agent_id), self.authority.clock.now())
        if fault is not None:
            self.perform(connection, connection.engine.session_opened(fault, "", ""))
            return
        granted = self.authority.open_session(effect.agent_id, effect.key_id)
        granted.add_done_callback(lambda done: self.post(lambda: self._session_opened(connection, done)))

    def _session_opened(self, connection: Connection, done: Future[SessionGrant | Rejection]) -> None:
        failure = done.exception()
        if failure is not None:
            logger.error("a session could not be opened: %s", failure)
        outcome = (
            Rejection(ErrorCode.INTERNAL_ERROR, "the session could not be opened; try again", "R-19-35")
            if failure is not None
            else done.result()
        )
        if isinstance(outcome, Rejection):
            self.perform(connection, connection.engine.session_opened(outcome, "", ""))
            return
        engine = connection.engine
        actor, epoch = engine.actor, outcome.session_epoch
        older = self.delivery.live_by_agent.get(actor.id)
        if isinstance(older, Connection) and older is not connection:
            if older.engine.session_epoch > epoch:
                engine.fence()
                return
            self._fence(older)
        if connection.gone:
            return
        token, expires_at = self.sessions.issue(actor, engine.key_id, epoch)
        connection.origin = Origin(transport="ws", agent=actor, session_epoch=epoch, key_id=engine.key_id)
        self.delivery.live_by_agent[actor.id] = connection
        self._handshaking.discard(id(connection))
        self.perform(connection, engine.session_opened(outcome, token, expires_at))

    def _fence(self, connection: Connection) -> None:
        """From this moment the older connection gets no Event (R-6.3-06, decision A20)."""
        if connection.engine.fence():
            connection.fenced_at = self.authority.clock.monotonic()
            self.delivery.leave(connection)
            connection.outbox.drop()

    def _check_standing(self, agent_id: str) -> None:
        """Close the connection of an Agent whose Card or key is no longer good (decisions C15, E18)."""
        connection = self.delivery.live_by_agent.get(agent_id)
        if not isinstance(connection, Connection):
            return
        now = self.authority.clock.now()
        binding = self.authority.registry.resolve(connection.engine.key_id)
        with self.authority.read() as view:
            fault = card_fault(view.get(AGENTS, agent_id), now)
        if fault is None and (binding is None or not binding.valid_at(now)):
            fault = Rejection(ErrorCode.AUTH_FORBIDDEN, "this Agent's key is no longer valid", "R-19-14")
        if fault is not None:
            self.perform(connection, connection.engine.end(fault))

    # --- ACK ---

    def _acknowledge(self, connection: Connection, effect: Acknowledge) -> None:
        """Move durable Cursors: never beyond the head, never back (decision A10)."""
        actor = connection.actor
        now = self.authority.clock.now()
        with self.authority.read() as view:
            for entry in effect.frame.acknowledgements:
                sight = sight_of(view, actor, entry.group_id, now)
                if isinstance(sight, Rejection):
                    fault = sight
                elif entry.sequence > view.head(entry.group_id):
                    text = "the Cursor lies beyond the newest Event of the Group"
                    fault = Rejection(ErrorCode.INVALID_COMMAND, text, "R-16-04")
                else:
                    key = (actor.id, entry.group_id)
                    self._cursors[key] = max(entry.sequence, self._cursors.get(key, 0))
                    continue
                details = {**(fault.details or {}), "groupId": entry.group_id}
                refusal = Rejection(fault.code, fault.message, fault.rule, details)
                connection.outbox.put_first(self.replies.error(refusal, related_frame_id=effect.frame.frame_id))
                connection.touched()
        self._save_cursors()

    def _save_cursors(self) -> None:
        """Write what gathered, one write at a time."""
        if self._saving is not None or not self._cursors:
            return
        cursors, self._cursors = self._cursors, {}

        def write(txn: WriteTransaction) -> None:
            for (agent_id, group_id), sequence in cursors.items():
                txn.put_cursor(agent_id, group_id, sequence)

        self._saving = self.authority.call(write)
        self._saving.add_done_callback(lambda done: self.post(lambda: self._saved(done)))

    def _saved(self, done: Future[None]) -> None:
        self._saving = None
        failure = done.exception()
        if failure is not None:
            # A Cursor that was not kept only means that more is sent again after a reconnect.
            logger.error("Cursors could not be saved: %s", failure)
        self._save_cursors()

    # --- sending ---

    def flush(self) -> None:
        """Write what was queued, once for each connection."""
        self._flush_scheduled = False
        while self.dirty:
            _, connection = self.dirty.popitem()
            if connection.writer is None and not connection.gone:
                self._flush_one(connection)

    def _flush_one(self, connection: Connection) -> None:
        peer, outbox = connection.peer, connection.outbox
        while outbox and not peer.congested:
            peer.write(outbox.take(FLUSH_BYTES))
        if outbox or peer.congested or connection.closing is not None:
            connection.writer = self._spawn(self._write(connection))
        else:
            self.delivery.drained(connection)

    async def _write(self, connection: Connection) -> None:
        """Send to a connection that cannot take everything at once; close the one that is stuck (R-17.3-01)."""
        peer, outbox = connection.peer, connection.outbox
        try:
            while True:
                async with asyncio.timeout(self.authority.limits.send_timeout):
                    await peer.drained()
                if outbox:
                    while outbox and not peer.congested:
                        peer.write(outbox.take(FLUSH_BYTES))
                    self.delivery.drained(connection)
                elif connection.closing is not None:
                    await peer.close(connection.closing.code, connection.closing.reason)
                    return
                elif not peer.congested:
                    connection.writer = None
                    self.delivery.drained(connection)
                    return
        except (OSError, TimeoutError) as error:
            if isinstance(error, TimeoutError):
                logger.warning("a connection did not take anything for too long and is cut (%s)", TRY_AGAIN)
            peer.abort()
        finally:
            if connection.writer is asyncio.current_task():
                connection.writer = None

    def _close(self, connection: Connection, close: Close) -> None:
        connection.engine.phase = Phase.CLOSED
        self.delivery.leave(connection)
        if connection.closing is None:
            connection.closing = close
            connection.touched()
            if not self._flush_scheduled and self._loop is not None:
                self._flush_scheduled = True
                self._loop.call_soon(self.flush)

    # --- replay ---

    def _schedule_pump(self) -> None:
        if not self._pump_scheduled and self._loop is not None:
            self._pump_scheduled = True
            self._loop.call_soon(self._pump)

    def _pump(self) -> None:
        self._pump_scheduled = False
        more = self.delivery.pump()
        self.flush()
        if more:
            self._schedule_pump()

    # --- time ---

    async def _tick_for_ever(self) -> None:
        while True:
            await asyncio.sleep(1.0)
            self.tick()

    def tick(self) -> None:
        """Look after handshakes, silence, fenced connections, run-out keys and Presence."""
        limits, now = self.authority.limits, self.authority.clock.monotonic()
        for connection in tuple(self.connections.values()):
            engine = connection.engine
            silent = now - engine.heard_at
            if engine.phase in (Phase.GREETING, Phase.CHALLENGED, Phase.OPENING):
                if now - engine.connected_at > limits.handshake_timeout:
                    text = "the handshake took too long"
                    self.perform(connection, engine.end(Rejection(ErrorCode.AUTH_REQUIRED, text, "R-19-10")))
            elif engine.phase is Phase.FENCED:
                if connection.fenced_at is None or now - connection.fenced_at > FENCED_SECONDS:
                    self._close(connection, Close(POLICY, ErrorCode.AUTH_STALE_SESSION.value))
            elif engine.phase is Phase.LIVE:
                if silent > limits.dead_after:
                    self._close(connection, Close(GOING_AWAY, "nothing was heard from you"))
                elif silent > limits.ping_interval and now - connection.pinged_at > limits.ping_interval:
                    connection.pinged_at = now
                    connection.outbox.put_first(self.replies.ping())
                    connection.touched()
        self._check_keys()
        instant = self.authority.clock.now()
        for agent_id in [agent for agent, record in self.presence.items() if parse(record.expires_at) <= instant]:
            del self.presence[agent_id]
        self.flush()

    def _check_keys(self) -> None:
        """After any change of the Registry, and as time passes, close what its key no longer carries."""
        registry, now = self.authority.registry, self.authority.clock.now()
        for agent_id, receiver in tuple(self.delivery.live_by_agent.items()):
            binding = registry.resolve(receiver.engine.key_id) if isinstance(receiver, Connection) else None
            if binding is None or not binding.valid_at(now):
                self._check_standing(agent_id)

    def registry_changed(self) -> None:
        """A Command has just changed the Registry: do not wait for the next tick."""
        self._check_keys()
        self.flush()

    def _spawn(self, work: Any) -> asyncio.Task[None]:
        task: asyncio.Task[None] = asyncio.create_task(work)
        self._tasks.add(task)
        task.add_done_callback(self._tasks.discard)
        return task
