"""Shell: all connections of a node on one event loop, and the way between the loop and the writer's threads."""

from __future__ import annotations

import asyncio
import logging
from collections import deque
from collections.abc import Callable, Sequence
from concurrent.futures import Future
from typing import Any

from mwnode.authority.state import AGENTS
from mwnode.gateway.budget import ACCEPTED_SECONDS, COMMAND_SECONDS, REFUSED_SECONDS, SEND_SECONDS
from mwnode.gateway.connection import Connection, Peer
from mwnode.gateway.cursors import Cursors
from mwnode.gateway.delivery import Delivery
from mwnode.gateway.engine import (
    BACKPRESSURE_MS,
    GOING_AWAY,
    POLICY,
    STALE_SESSION,
    TRY_AGAIN,
    Acknowledge,
    Close,
    Effect,
    Follow,
    OpenSession,
    Phase,
    Present,
    Send,
    Submit,
    action_id_of,
)
from mwnode.gateway.handshake import card_fault
from mwnode.gateway.mailbox import Mailbox
from mwnode.gateway.ports import Authority, Origin, SessionGrant
from mwnode.gateway.replies import Replies
from mwnode.gateway.sessions import Sessions
from mwnode.protocol.documents import PresenceRecord
from mwnode.protocol.errors import ErrorCode, Rejection
from mwnode.protocol.events import AgentCardRegistered, SessionOpened
from mwnode.protocol.instants import Instant, parse
from mwnode.protocol.scalars import SAFE_INTEGER_MAX
from mwnode.seldom import Seldom
from mwnode.store.batch import Accepted, CommittedEvent
from mwnode.trust.registry import Binding, Registry
from mwnode.trust.verification import Failure

FLUSH_BYTES = 256 * 1024
"""How much is handed to a transport at once."""
REFUSALS_LOGGED = 20
"""Refusals of one kind that are logged in a minute."""
CROWDED = Rejection(ErrorCode.BACKPRESSURE, "the node takes no more connections now", "R-19-32", retry_after_ms=1000)
NOT_READING = Rejection(
    ErrorCode.BACKPRESSURE,
    "this connection does not read what it is sent; connect again and read while you send",
    "R-19-32",
    retry_after_ms=BACKPRESSURE_MS,
)
FENCED_SECONDS = 5.0
"""How long a fenced connection may stay idle before it is closed (decision A20)."""

logger = logging.getLogger(__name__)


class Hub:
    """Connects peers to an authority. Everything but ``_post`` happens on the event loop."""

    def __init__(self, authority: Authority) -> None:
        self.authority = authority
        self.replies = Replies(authority.clock, authority.entropy)
        self.sessions = Sessions(authority)
        self._opening: dict[str, deque[tuple[Connection, OpenSession]]] = {}
        """By Agent, the sessions that are being opened, one after the other."""
        self._fenced: dict[str, Connection] = {}
        """By Agent, the connection that was fenced last and is not closed yet."""
        self.delivery = Delivery(authority, self.replies, self._schedule_pump)
        self._dirty: dict[int, Connection] = {}
        self.connections: dict[int, Connection] = {}
        self.presence: dict[str, PresenceRecord] = {}
        self.stopping = False
        self._seldom = Seldom(logger, authority.clock.monotonic)
        self._refused = Seldom(logger, authority.clock.monotonic, burst=REFUSALS_LOGGED)
        self.on_batch: list[Callable[[Sequence[CommittedEvent]], None]] = []
        self.on_command: Callable[[str, bytes, str], None] = lambda transport, raw, outcome: None
        """Told the transport, bytes and outcome of every Command, for the metrics."""
        self._mailbox = Mailbox(self._publish, self.flush)
        self._cursors = Cursors(authority, self.post)
        self._loop: asyncio.AbstractEventLoop | None = None
        self._pump_scheduled = False
        self._flush_scheduled = False
        self._ticker: asyncio.Task[None] | None = None
        self._tasks: set[asyncio.Task[None]] = set()
        self._keys_checked: Registry | None = None
        """The Registry that all live keys were held against, where none of them has ended since."""
        self._next_end: Instant | None = None
        """When the first of those keys ends."""

    # --- life ---

    def start(self) -> None:
        """Begin to serve on the running loop."""
        self._loop = asyncio.get_running_loop()
        self._mailbox.start()
        self.authority.add_listener(self._mailbox.committed)
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
        self.authority.remove_listener(self._mailbox.committed)
        if self._ticker is not None:
            self._ticker.cancel()
        for task in tuple(self._tasks):
            task.cancel()
        await asyncio.gather(*self._tasks, return_exceptions=True)

    def _busy(self) -> bool:
        return (
            any(connection.engine.in_flight or connection.outbox for connection in self.connections.values())
            or self._cursors.busy
        )

    # --- what was committed ---

    def post(self, work: Callable[[], None]) -> None:
        """Run something on the loop soon; from any thread."""
        self._mailbox.post(work)

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

    def attach(self, peer: Peer, address: str = "", newest: int = SAFE_INTEGER_MAX) -> Connection | Rejection:
        """Take a new connection, unless there are too many (R-17.3-01).

        ``newest`` is the highest Session Epoch that whoever connects again knows to be its own. A higher one is a newer
        process's with the same key: that one is left alone, and this one told so.
        """
        limits = self.authority.limits
        if self.stopping or len(self.connections) >= limits.connections:
            return CROWDED
        connection = Connection(self.authority, self.replies, peer, self._touched, address, newest)
        connection.engine.accepting = not self.stopping
        self.connections[id(connection)] = connection
        return connection

    def detach(self, connection: Connection) -> None:
        """The transport is gone. Idempotent."""
        connection.peer.spent(connection.cost())
        connection.gone = True
        connection.engine.phase = Phase.CLOSED
        self.delivery.leave(connection)
        connection.outbox.drop()
        connection.relieve()
        self.connections.pop(id(connection), None)
        if connection.fenced_at is not None and self._fenced.get(connection.actor.id) is connection:
            del self._fenced[connection.actor.id]
        self._dirty.pop(id(connection), None)
        writer = connection.writer
        # A writer that is closing the transport ends by itself; the close handshake is bounded in time.
        if writer is not None and not writer.done() and connection.closing is None:
            writer.cancel()

    def receive(self, connection: Connection, raw: bytes) -> None:
        """One text message came."""
        self.perform(connection, connection.engine.receive(raw))

    async def room(self, connection: Connection) -> None:
        """Wait until more may be read from a connection that does not read its own answers (R-17.3-01)."""
        self.flush()
        while connection.braked and not connection.gone and connection.engine.phase is not Phase.CLOSED:
            connection.braked_at = self.authority.clock.monotonic()
            connection.room.clear()
            await connection.room.wait()
            self.heard(connection)

    def heard(self, connection: Connection) -> None:
        """The connection's silence until now was ours: nothing was read."""
        connection.engine.heard_at = self.authority.clock.monotonic()

    def perform(self, connection: Connection, effects: Sequence[Effect]) -> None:
        """Carry out what the engine wants."""
        for effect in effects:
            match effect:
                case Submit():
                    self._submit(connection, effect)
                case Send():
                    self._send(connection, effect.frame)
                case Follow():
                    self.delivery.follow(connection, effect.frame)
                case Acknowledge():
                    for fault in self._cursors.acknowledge(connection.actor, effect.frame):
                        self._send(connection, self.replies.error(fault, related_frame_id=effect.frame.frame_id))
                case Present():
                    self.presence[effect.record.agent_id] = effect.record
                case OpenSession():
                    self._open_session(connection, effect)
                case Close():
                    self._close(connection, effect)
        self._schedule_flush()

    def _send(self, connection: Connection, frame: bytes) -> None:
        connection.outbox.put_first(frame)
        connection.spent(SEND_SECONDS)
        connection.touched()

    def _submit(self, connection: Connection, submit: Submit) -> None:
        origin = connection.origin
        assert origin is not None, "only an authenticated connection submits"
        connection.engine.in_flight += 1
        connection.in_flight_bytes += len(submit.raw)
        connection.spent(COMMAND_SECONDS)

        def reply(outcome: Accepted | Rejection | Failure) -> None:
            self.post(lambda: self._answered(connection, submit, outcome))

        self.authority.submit(submit.raw, origin, reply)

    def _answered(self, connection: Connection, submit: Submit, outcome: Accepted | Rejection | Failure) -> None:
        connection.engine.in_flight -= 1
        connection.in_flight_bytes -= len(submit.raw)
        connection.relieve()
        if isinstance(outcome, Accepted):
            self.on_command("ws", submit.raw, "duplicate" if outcome.duplicate else "accepted")
            if not outcome.duplicate:
                connection.spent(-ACCEPTED_SECONDS)
            self.delivery.receipt(connection, outcome)
            return
        rejection = outcome.rejection() if isinstance(outcome, Failure) else outcome
        self.on_command("ws", submit.raw, rejection.code.value)
        connection.spent(REFUSED_SECONDS)
        if connection.gone or connection.engine.phase is Phase.CLOSED:
            return
        frame = self.replies.error(
            rejection, related_frame_id=submit.frame_id, related_action_id=action_id_of(submit.raw)
        )
        self._send(connection, frame)

    # --- sessions ---

    def _open_session(self, connection: Connection, effect: OpenSession) -> None:
        """Open a session, after those of the same Agent that are being opened: who is the newest is known then."""
        waiting = self._opening.setdefault(effect.agent_id, deque())
        waiting.append((connection, effect))
        if len(waiting) == 1:
            self._open_next(effect.agent_id)

    def _open_next(self, agent_id: str) -> None:
        waiting = self._opening[agent_id]
        while waiting:
            connection, effect = waiting[0]
            with self.authority.read() as view:
                row = view.get(AGENTS, agent_id)
            fault = card_fault(row, self.authority.clock.now())
            if fault is None and row is not None and row.session_epoch > connection.newest:
                fault = STALE_SESSION
            if fault is None:
                granted = self.authority.open_session(agent_id, effect.key_id)
                granted.add_done_callback(lambda done: self.post(lambda: self._session_opened(agent_id, done)))
                return
            waiting.popleft()
            self.perform(connection, connection.engine.session_opened(fault, "", ""))
        del self._opening[agent_id]

    def _session_opened(self, agent_id: str, done: Future[SessionGrant | Rejection]) -> None:
        connection, _ = self._opening[agent_id].popleft()
        try:
            self._settle_session(connection, done)
        finally:
            self._open_next(agent_id)

    def _settle_session(self, connection: Connection, done: Future[SessionGrant | Rejection]) -> None:
        failure = done.exception()
        if failure is not None:
            self._seldom.log(logging.ERROR, "session", "a session could not be opened: %s", failure)
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
        fenced = self._fenced.get(actor.id)
        connection.replaced = None if fenced is None else fenced.told()
        connection.opened_at = self.authority.clock.now().text()
        if connection.gone:
            return
        token, expires_at = self.sessions.issue(actor, engine.key_id, epoch)
        connection.origin = Origin(transport="ws", agent=actor, session_epoch=epoch, key_id=engine.key_id)
        self.delivery.live_by_agent[actor.id] = connection
        # The new one's key has an end of its own.
        self._keys_checked = None
        connection.peer.known(actor)
        self.perform(connection, engine.session_opened(outcome, token, expires_at))

    def session_of(self, agent_id: str) -> dict[str, Any]:
        """An Agent's newest Session Epoch, and of its live connection since when, from where, and whom it replaced."""
        with self.authority.read() as view:
            row = view.get(AGENTS, agent_id)
        told: dict[str, Any] = {"sessionEpoch": 0 if row is None else row.session_epoch, "connected": False}
        live = self.delivery.live_by_agent.get(agent_id)
        if isinstance(live, Connection) and live.engine.session_epoch == told["sessionEpoch"]:
            told |= live.told() | {"connected": True}
            if live.replaced is not None:
                told["replaced"] = live.replaced
        return told

    def _fence(self, connection: Connection) -> None:
        """From this moment the older connection gets no Event (R-6.3-06, decision A20)."""
        if connection.engine.fence():
            connection.fenced_at = self.authority.clock.monotonic()
            self._fenced[connection.actor.id] = connection
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

    # --- sending ---

    def _touched(self, connection: Connection) -> None:
        self._dirty[id(connection)] = connection

    def _schedule_flush(self) -> None:
        if self._dirty and not self._flush_scheduled and self._loop is not None:
            self._flush_scheduled = True
            self._loop.call_soon(self.flush)

    def flush(self) -> None:
        """Write what was queued, once for each connection."""
        self._flush_scheduled = False
        while self._dirty:
            _, connection = self._dirty.popitem()
            if connection.gone:
                continue
            if connection.outbox.flooded and connection.closing is None:
                self._cut_off(connection)
            if connection.writer is None:
                try:
                    self._flush_one(connection)
                except Exception:
                    # Whatever ails one connection, the others get what is theirs.
                    logger.exception("a connection could not be written to and is cut")
                    connection.peer.abort()

    def _cut_off(self, connection: Connection) -> None:
        """Close the one connection that does not take what it is sent; nobody else's (R-17.3-01, R-19-32)."""
        connection.outbox.drop()
        self.perform(connection, connection.engine.end(NOT_READING, TRY_AGAIN))

    def _flush_one(self, connection: Connection) -> None:
        peer, outbox = connection.peer, connection.outbox
        while outbox and not peer.congested:
            peer.write(outbox.take(FLUSH_BYTES))
        connection.relieve()
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
                    connection.relieve()
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
                text = "a connection did not take anything for too long and is cut (%s)"
                self._seldom.log(logging.WARNING, "stuck", text, TRY_AGAIN)
            connection.engine.phase = Phase.CLOSED
            connection.relieve()
            peer.abort()
        finally:
            if connection.writer is asyncio.current_task():
                connection.writer = None

    def _close(self, connection: Connection, close: Close) -> None:
        connection.engine.phase = Phase.CLOSED
        if not connection.engine.session_epoch and close.code != GOING_AWAY:
            text = "refused a connection before its handshake was complete: %s"
            self._refused.log(logging.INFO, close.reason, text, close.reason)
        connection.relieve()
        self.delivery.leave(connection)
        if connection.closing is None:
            connection.closing = close
            connection.touched()
            self._schedule_flush()

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
            elif engine.phase is Phase.LIVE and connection.braked_at is not None:
                # It is we who do not listen. What waits for answers of ours is no fault of the peer's.
                if now - connection.braked_at > limits.dead_after and not connection.outbox.eased(0):
                    self._cut_off(connection)
            elif engine.phase is Phase.LIVE:
                if silent > limits.dead_after:
                    self._close(connection, Close(GOING_AWAY, "nothing was heard from you"))
                elif silent > limits.ping_interval and now - connection.pinged_at > limits.ping_interval:
                    connection.pinged_at = now
                    self._send(connection, self.replies.ping())
        self._check_keys()
        instant = self.authority.clock.now()
        for agent_id in [agent for agent, record in self.presence.items() if parse(record.expires_at) <= instant]:
            del self.presence[agent_id]
        self.flush()

    def _check_keys(self) -> None:
        """After any change of the Registry, and as time passes, close what its key no longer carries."""
        registry, now = self.authority.registry, self.authority.clock.now()
        if registry is self._keys_checked and (self._next_end is None or now < self._next_end):
            return
        self._keys_checked, self._next_end = registry, None
        for agent_id, receiver in tuple(self.delivery.live_by_agent.items()):
            binding = registry.resolve(receiver.engine.key_id) if isinstance(receiver, Connection) else None
            if binding is None or not binding.valid_at(now):
                self._check_standing(agent_id)
            else:
                self._note_end(binding)

    def _note_end(self, binding: Binding) -> None:
        for end in (binding.valid_until, binding.revoked_at):
            if end is not None and (self._next_end is None or end < self._next_end):
                self._next_end = end

    def registry_changed(self) -> None:
        """A Command has just changed the Registry: do not wait for the next tick."""
        self._check_keys()
        self.flush()

    def _spawn(self, work: Any) -> asyncio.Task[None]:
        task: asyncio.Task[None] = asyncio.create_task(work)
        self._tasks.add(task)
        task.add_done_callback(self._tasks.discard)
        return task
