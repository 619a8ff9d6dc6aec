"""The client: one Agent's lasting connection to a node, over however many sockets it takes.

async with await Client.connect("wss://127.0.0.1:8765/ws", key, "mwnode-home/tls/ca.pem") as client:
    await client.subscribe({group_id: 0})
    receipt = await client.send("message.post", {...}, group_id=group_id)
    async for event in client.events():
        ...
"""

from __future__ import annotations

import asyncio
import random
from collections.abc import AsyncIterator, Awaitable, Callable, Coroutine, Mapping
from contextlib import suppress
from pathlib import Path
from types import TracebackType
from typing import Any, BinaryIO

from msgspec import Struct

from mwnode.client.commands import RECEIPT_KINDS, signed_command
from mwnode.client.engine import (
    Answered,
    CaughtUp,
    ClientEngine,
    Delivered,
    Denied,
    Ended,
    Notice,
    Opened,
    Paused,
    Pending,
    Phase,
    Problem,
    Refused,
    StaleRegistry,
)
from mwnode.client.errors import ChallengeRefused, ClientError, ConnectionLost, Unreachable, Untrusted
from mwnode.client.http import HttpClient
from mwnode.client.transports import Dial, Transport, websocket_dialer
from mwnode.protocol.documents import Event, PresenceRecord
from mwnode.protocol.errors import ErrorCode, MissionWeaveError
from mwnode.protocol.frames import AttentionFilter
from mwnode.protocol.identifiers import uuid7_urn
from mwnode.protocol.instants import parse
from mwnode.protocol.ports import Clock, Entropy
from mwnode.system import OsEntropy, SystemClock
from mwnode.trust.keys import SigningKey
from mwnode.trust.registry import Registry
from mwnode.trust.verification import Failure, verify

BACKOFF_FIRST_SECONDS = 0.2
BACKOFF_MAX_SECONDS = 30.0
STABLE_SECONDS = 10.0
"""A session that lasted so long was a good one: the next wait starts small again."""
FRESHNESS_SECONDS = 300
"""Age from which a refused signature of ours may only mean that the Command had grown old on the way (R-19-07)."""

RegistrySource = Callable[[], Awaitable[Registry]]
Observer = Callable[[str, dict[str, Any]], None]
"""Told what happens to the connection: ``connected``, ``lost``, ``waiting``, ``paused``, ``denied``, ``problem``."""

_FINAL = frozenset(
    {
        ErrorCode.AUTH_INVALID_SIGNATURE,
        ErrorCode.AUTH_FORBIDDEN,
        ErrorCode.AUTH_STALE_SESSION,
        ErrorCode.UNSUPPORTED_VERSION,
    }
)
"""After these a new connection can only be refused again, or would fence the runtime that fenced this one."""


class _Order(Struct):
    """A Command that somebody waits for, and what it was last signed under."""

    kind: str
    payload: Mapping[str, Any] | Struct
    group_id: str
    envelope: dict[str, Any]
    answer: asyncio.Future[Event]
    given_membership_epoch: int | None
    session_epoch: int = 0
    membership_epoch: int = 0
    issued_at: str = ""
    action_id: str = ""


class Client:
    """An Agent's client. Make one by ``Client.connect``; use it from one event loop.

    ``http`` is the synchronous client of the same node, where there is one.
    """

    def __init__(
        self,
        key: SigningKey,
        dial: Dial,
        *,
        http: HttpClient | None = None,
        registry: RegistrySource | None = None,
        clock: Clock | None = None,
        entropy: Entropy | None = None,
        observer: Observer | None = None,
    ) -> None:
        """``registry`` gives what Event signatures are verified against; ``None`` leaves them unverified."""
        self.key = key
        self.http = http
        self._dial = dial
        self._clock = clock or SystemClock()
        self._entropy = entropy or OsEntropy()
        self._registry_source = registry
        self._registry: Registry | None = None
        self._observe = observer or (lambda event, details: None)
        self._engine = ClientEngine(key, self._clock, self._entropy, self._check if registry else None)
        self._orders: dict[str, _Order] = {}
        self._events: asyncio.Queue[Event | None] = asyncio.Queue()
        self._caught_up: dict[str, asyncio.Future[None]] = {}
        self._cursors: dict[str, int] = {}
        self._live = asyncio.Event()
        self._wake = asyncio.Event()
        self._first: asyncio.Future[None] | None = None
        self._runner: asyncio.Task[None] | None = None
        self._tasks: set[asyncio.Task[None]] = set()
        self._failure: BaseException | None = None
        self._jitter = random.Random(int.from_bytes(self._entropy.random(8), "big"))

    @classmethod
    async def connect(
        cls,
        url: str,
        key: SigningKey,
        ca: Path | str | None = None,
        *,
        patient: bool = False,
        clock: Clock | None = None,
        entropy: Entropy | None = None,
        observer: Observer | None = None,
    ) -> Client:
        """Connect and authenticate.

        ``patient`` keeps trying when the node cannot be reached yet; without it ``Unreachable`` is raised at once.
        Raises the ``MissionWeaveError`` of a refused handshake, ChallengeRefused. Once connected, a lost link is
        mended for ever, until ``close`` or until the node says that this Agent may not connect.
        """
        http = HttpClient(url, key, ca, clock=clock, entropy=entropy)

        async def registry() -> Registry:
            return Registry.from_evidence(await asyncio.to_thread(http.get, "/v0.1/registry"))

        client = cls(
            key,
            websocket_dialer(url, ca),
            http=http,
            registry=registry,
            clock=clock,
            entropy=entropy,
            observer=observer,
        )
        await client.start(patient=patient)
        return client

    async def start(self, *, patient: bool = False) -> None:
        """Begin to connect, and return when the first session is open."""
        self._first = asyncio.get_running_loop().create_future()
        self._runner = asyncio.create_task(self._run(patient), name=f"mwnode client {self.key.principal.id}")
        try:
            await self._first
        except BaseException:
            await self.close()
            raise

    async def close(self) -> None:
        """End the connection. Whatever still waits gets ConnectionLost."""
        if self._runner is not None and not self._runner.done():
            self._runner.cancel()
            with suppress(asyncio.CancelledError):
                await self._runner
        for task in tuple(self._tasks):
            task.cancel()
        self._end(ConnectionLost("the client was closed"))
        if self.http is not None:
            self.http.close()

    async def __aenter__(self) -> Client:
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        await self.close()

    # --- Commands ---

    async def send(
        self,
        kind: str,
        payload: Mapping[str, Any] | Struct,
        *,
        group_id: str,
        membership_epoch: int | None = None,
        coordinator_epoch: int | None = None,
        conversation_id: str | None = None,
        work_item_id: str | None = None,
        expected_revision: int | None = None,
        correlation_id: str | None = None,
        cooperation_override_grant_id: str | None = None,
        caused_by_event_id: str | None = None,
        extensions: Mapping[str, Any] | None = None,
        action_id: str | None = None,
    ) -> Event:
        """Sign a Command, send it, and return its receipt Event. Any number may be under way at once.

        Over a lost link the same bytes are sent again, so that it is accepted once at most (R-19-04). Where only an
        epoch of ours had moved, or its freshness ran out on the way, a new Command is made (R-19-07, R-19-08); every
        other refusal is raised as the ``MissionWeaveError`` of its code. ConnectionLost when the client is closed.
        ``membership_epoch`` is looked up when it is not given.
        """
        order = _Order(
            kind=kind,
            payload=payload,
            group_id=group_id,
            envelope={
                "coordinator_epoch": coordinator_epoch,
                "conversation_id": conversation_id,
                "work_item_id": work_item_id,
                "expected_revision": expected_revision,
                "correlation_id": correlation_id,
                "cooperation_override_grant_id": cooperation_override_grant_id,
                "caused_by_event_id": caused_by_event_id,
                "extensions": extensions,
            },
            answer=asyncio.get_running_loop().create_future(),
            given_membership_epoch=membership_epoch,
        )
        try:
            await self._place(order, action_id)
            return await order.answer
        finally:
            if self._orders.pop(order.action_id, None) is not None:
                self._engine.forget(order.action_id)

    async def _place(self, order: _Order, action_id: str | None = None) -> None:
        """Sign the order's Command under the epochs of now and hand it to the engine."""
        await self._until_live()
        epoch = order.given_membership_epoch
        if epoch is None:
            epoch = await self._membership_epoch(order.group_id)
        now = self._clock.now()
        order.action_id = action_id or uuid7_urn(now, self._entropy.random(10))
        order.session_epoch = self._engine.session_epoch
        order.membership_epoch = epoch
        order.issued_at = now.text()
        raw = signed_command(
            self.key,
            order.kind,
            order.payload,
            action_id=order.action_id,
            issued_at=order.issued_at,
            group_id=order.group_id,
            session_epoch=order.session_epoch,
            membership_epoch=epoch,
            **order.envelope,
        )
        self._orders[order.action_id] = order
        self._engine.submit(Pending(order.action_id, raw, RECEIPT_KINDS.get(order.kind, order.kind)))
        self._wake.set()

    async def _membership_epoch(self, group_id: str) -> int:
        known = self._engine.membership_epochs.get(group_id)
        if known is None:
            await self._look_up_memberships()
            known = self._engine.membership_epochs.get(group_id)
        # Epoch 1 of a Group that we know nothing of: the node answers whether there is such a Group for us.
        return 1 if known is None else known

    async def _look_up_memberships(self) -> None:
        if self.http is None:
            return
        listed = await self.get("/v0.1/missions")
        for mission in listed["missions"]:
            membership = mission.get("membership")
            if membership:
                self._engine.membership_epochs[mission["groupId"]] = membership["membershipEpoch"]

    def _refused(self, action_id: str, error: MissionWeaveError) -> None:
        order = self._orders.get(action_id)
        if order is None or order.answer.done():
            return
        if error.code is ErrorCode.BACKPRESSURE:
            self._spawn(self._send_later(action_id, (error.rejection.retry_after_ms or 1000) / 1000))
        elif self._outdated(order, error.code):
            del self._orders[action_id]
            self._spawn(self._replace(order, error))
        else:
            order.answer.set_exception(error)

    def _outdated(self, order: _Order, code: ErrorCode) -> bool:
        """Whether the refusal can come from nothing but time passing between signing and arrival."""
        if code is ErrorCode.AUTH_STALE_SESSION:
            return order.session_epoch != self._engine.session_epoch
        if code is ErrorCode.MEMBERSHIP_STALE:
            return order.given_membership_epoch is None
        if code is ErrorCode.AUTH_INVALID_SIGNATURE:
            age = self._clock.now().whole_microseconds() - parse(order.issued_at).whole_microseconds()
            return age >= FRESHNESS_SECONDS * 1_000_000
        return False

    async def _replace(self, order: _Order, error: MissionWeaveError) -> None:
        if error.code is ErrorCode.MEMBERSHIP_STALE:
            if self._engine.membership_epochs.get(order.group_id) == order.membership_epoch:
                self._engine.membership_epochs.pop(order.group_id)
            if await self._membership_epoch(order.group_id) == order.membership_epoch:
                order.answer.set_exception(error)
                return
        await self._place(order)

    async def _send_later(self, action_id: str, seconds: float) -> None:
        await asyncio.sleep(seconds)
        self._engine.again(action_id)
        self._wake.set()

    # --- Events ---

    async def subscribe(
        self, positions: Mapping[str, int], attention: AttentionFilter | None = None, *, caught_up: bool = False
    ) -> None:
        """Follow Groups: everything above each position, in order, now and after every reconnection.

        ``attention`` narrows what arrives live, never the replay (R-17.2-01). With ``caught_up`` this returns when
        all that exists now has been delivered, and raises what the node answered for a Group that it refused.
        """
        waits = []
        for group_id in positions:
            previous = self._caught_up.get(group_id)
            if previous is None or previous.done():
                self._caught_up[group_id] = asyncio.get_running_loop().create_future()
                # Nobody has to wait for it, so its exception is nobody's fault.
                self._caught_up[group_id].add_done_callback(lambda done: done.cancelled() or done.exception())
            waits.append(self._caught_up[group_id])
        self._engine.subscribe(dict(positions), attention)
        self._wake.set()
        if caught_up:
            for wait in waits:
                await asyncio.shield(wait)

    def unsubscribe(self, group_id: str) -> None:
        """Hear no more of a Group."""
        self._engine.unsubscribe(group_id)

    def position(self, group_id: str) -> int | None:
        """The sequence up to which a subscribed Group was handed to ``events``; ``None`` when it is not subscribed."""
        return self._engine.position(group_id)

    async def events(self) -> AsyncIterator[Event]:
        """Events of all subscribed Groups, each Group in order and without duplicates, across connections.

        A notice that this Agent was put into a Group (``membership.changed``, ``mission.created``,
        ``mission.coordinator.assigned``) also comes here before the Group is subscribed, and may come again then. Ends
        when the client is closed; raises what ended it otherwise.
        """
        while True:
            event = await self._events.get()
            if event is None:
                self._events.put_nowait(None)
                if self._failure is not None and not isinstance(self._failure, ConnectionLost):
                    raise self._failure
                return
            yield event

    def acknowledge(self, group_id: str, sequence: int) -> None:
        """Tell the node that a Group was processed durably up to here; sent with the next frames (R-16-04)."""
        if sequence > self._cursors.get(group_id, 0):
            self._cursors[group_id] = sequence
            self._wake.set()

    # --- Presence, HTTP ---

    def present(self, presence: Callable[[int], PresenceRecord] | None) -> None:
        """Send Presence with every PING; ``presence`` makes it from the Session Epoch."""
        self._engine.presence = presence
        if presence is not None and self._engine.phase is Phase.LIVE:
            self._engine.ping()
            self._wake.set()

    @property
    def session_epoch(self) -> int:
        """The present Session Epoch."""
        return self._engine.session_epoch

    @property
    def connected(self) -> bool:
        """Whether there is a session at this moment."""
        return self._live.is_set()

    async def until_connected(self) -> None:
        """Wait until there is a session."""
        await self._until_live()

    async def get(self, path: str, **query: Any) -> dict[str, Any]:
        """``HttpClient.get`` without holding up the event loop."""
        return await asyncio.to_thread(self._need_http().get, path, **query)

    async def put_artifact(self, source: Path | str | bytes | BinaryIO) -> dict[str, Any]:
        """``HttpClient.put_artifact`` without holding up the event loop."""
        return await asyncio.to_thread(self._need_http().put_artifact, source)

    async def get_artifact(self, content_hash: str, path: Path | str) -> int:
        """``HttpClient.get_artifact`` without holding up the event loop."""
        return await asyncio.to_thread(self._need_http().get_artifact, content_hash, path)

    def _need_http(self) -> HttpClient:
        if self.http is None:
            raise ClientError("this client has no HTTP side: it was made over a pipe")
        return self.http

    # --- the connection ---

    async def _run(self, patient: bool) -> None:
        failures = 0
        try:
            while True:
                opened_at: float | None = None
                try:
                    opened_at = await self._session()
                    cause: BaseException = ConnectionLost("the node closed the connection")
                except (Unreachable, ConnectionLost, OSError) as error:
                    cause = error
                    opened_at = self._opened_at
                first = self._first
                if first is not None and not first.done() and not patient:
                    raise cause
                if opened_at is not None and self._clock.monotonic() - opened_at >= STABLE_SECONDS:
                    failures = 0
                wait = self._backoff(failures)
                failures += 1
                self._observe("waiting", {"seconds": wait, "because": str(cause)})
                await asyncio.sleep(wait)
        except asyncio.CancelledError:
            raise
        except BaseException as error:
            self._end(error)

    def _backoff(self, failures: int) -> float:
        """Seconds to wait: growing, never above the maximum, and jittered so that clients do not march in step."""
        ceiling = min(BACKOFF_MAX_SECONDS, BACKOFF_FIRST_SECONDS * 2.0 ** min(failures, 30))
        return ceiling * self._jitter.uniform(0.5, 1.0)

    _opened_at: float | None = None

    async def _session(self) -> float | None:
        """One connection from dialing to its end."""
        self._opened_at = None
        transport = await self._dial()
        try:
            self._engine.connect()
            writer = asyncio.create_task(self._write(transport))
            try:
                await self._read(transport)
            finally:
                writer.cancel()
                with suppress(asyncio.CancelledError, OSError, ConnectionLost):
                    await writer
        finally:
            self._live.clear()
            self._engine.disconnected()
            self._observe("lost", {})
            with suppress(OSError, asyncio.TimeoutError):
                await transport.close()
        return self._opened_at

    async def _read(self, transport: Transport) -> None:
        self._wake.set()
        while True:
            message = await transport.receive()
            if message is None:
                return
            try:
                notices = self._engine.receive(message)
            except StaleRegistry:
                await self._refresh_registry()
                notices = self._engine.receive(message)
            for notice in notices:
                self._take(notice)
            self._wake.set()

    async def _write(self, transport: Transport) -> None:
        """Send what the engine has to send, and keep the connection alive."""
        try:
            while True:
                with suppress(asyncio.TimeoutError):
                    await asyncio.wait_for(self._wake.wait(), 1.0)
                self._wake.clear()
                self._engine.tick()
                if self._cursors and self._engine.phase is Phase.LIVE:
                    cursors, self._cursors = self._cursors, {}
                    self._engine.acknowledge(cursors)
                messages = self._engine.outgoing()
                if messages:
                    await transport.send(messages)
        except (OSError, ConnectionLost):
            # The reader is waiting for a message that will not come: closing ends its wait.
            await transport.close()

    def _take(self, notice: Notice) -> None:
        match notice:
            case Delivered():
                self._events.put_nowait(notice.event)
            case Answered():
                order = self._orders.get(notice.action_id)
                if order is not None and not order.answer.done():
                    order.answer.set_result(notice.event)
            case Refused():
                self._refused(notice.action_id, notice.error)
            case CaughtUp():
                for group_id in notice.group_ids:
                    waiting = self._caught_up.get(group_id)
                    if waiting is not None and not waiting.done():
                        waiting.set_result(None)
            case Opened():
                self._opened(notice)
            case Denied():
                self._observe("denied", {"groupId": notice.group_id, "code": notice.error.code.value})
                waiting = self._caught_up.get(notice.group_id)
                if waiting is not None and not waiting.done():
                    waiting.set_exception(notice.error)
            case Paused():
                self._observe("paused", {"groupId": notice.group_id, "retryAfterMs": notice.retry_after_ms})
                self._spawn(self._resume(notice.group_id, notice.retry_after_ms / 1000))
            case Problem():
                self._observe("problem", {"code": notice.error.code.value, "message": notice.error.message})
            case Ended():
                if notice.error.code in _FINAL:
                    raise notice.error
                raise ConnectionLost(f"the node ended the connection: {notice.error.message}")

    def _opened(self, notice: Opened) -> None:
        self._opened_at = self._clock.monotonic()
        if self.http is not None:
            self.http.use_token(notice.token)
        self._live.set()
        self._observe("connected", {"sessionEpoch": notice.session_epoch})
        if self._first is not None and not self._first.done():
            self._first.set_result(None)

    async def _resume(self, group_id: str, seconds: float) -> None:
        await asyncio.sleep(seconds)
        self._engine.resume(group_id)
        self._wake.set()

    async def _refresh_registry(self) -> None:
        assert self._registry_source is not None, "only a check against a Registry finds it stale"
        self._registry = await self._registry_source()
        self._refreshed = True

    _refreshed = False

    def _check(self, raw: bytes) -> None:
        """Verify an Event's signature by ourselves, whatever the connection promises (R-17.1-09)."""
        if self._registry is None:
            raise StaleRegistry
        verdict = verify(raw, "event", self._registry)
        if isinstance(verdict, Failure):
            if verdict.stage == "key-resolution" and not self._refreshed:
                raise StaleRegistry
            raise Untrusted(f"the node sent an Event that does not verify: {verdict.stage}, {verdict.reason}")
        self._refreshed = False

    async def _until_live(self) -> None:
        while not self._live.is_set():
            if self._failure is not None:
                raise self._failure
            await self._live.wait()
        if self._failure is not None:
            raise self._failure

    def _end(self, error: BaseException) -> None:
        if self._failure is None:
            self._failure = error
            self._events.put_nowait(None)
        for order in self._orders.values():
            if not order.answer.done():
                order.answer.set_exception(self._failure)
        for waiting in self._caught_up.values():
            if not waiting.done():
                waiting.set_exception(self._failure)
        if self._first is not None and not self._first.done():
            self._first.set_exception(self._failure)
        # Wakes whoever waits for a session; `_until_live` then raises the failure.
        self._live.set()

    def _spawn(self, work: Coroutine[Any, Any, None]) -> None:
        task = asyncio.create_task(work)
        self._tasks.add(task)
        task.add_done_callback(self._tasks.discard)


__all__ = ["ChallengeRefused", "Client", "Observer", "RegistrySource"]
