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
from collections.abc import AsyncIterator, Awaitable, Callable, Iterable, Mapping
from pathlib import Path
from types import TracebackType
from typing import Any, BinaryIO

from msgspec import UNSET, Struct

from mwnode.client.cursors import CursorFile
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
    Phase,
    Problem,
    Refused,
    StaleRegistry,
    Unsent,
)
from mwnode.client.errors import ClientError, ConnectionLost, Untrusted, passes
from mwnode.client.http import HttpClient, segment
from mwnode.client.link import Link, Observer
from mwnode.client.orders import Order, Orders
from mwnode.client.restore import SNAPSHOT_ATTEMPTS, Restored, check_made, check_snapshot, check_state
from mwnode.client.succession import Succession
from mwnode.client.transports import Dial, websocket_dialer
from mwnode.home import load_key
from mwnode.protocol.documents import Event, PresenceRecord
from mwnode.protocol.errors import AuthStaleSession, ErrorCode, GroupNotFound, MissionWeaveError
from mwnode.protocol.frames import AttentionFilter
from mwnode.protocol.ports import Clock, Entropy
from mwnode.system import OsEntropy, SystemClock
from mwnode.trust.keys import SigningKey
from mwnode.trust.registry import Registry
from mwnode.trust.verification import Failure, verify

RegistrySource = Callable[[], Awaitable[Registry]]

_FINAL = frozenset(
    {
        ErrorCode.AUTH_INVALID_SIGNATURE,
        ErrorCode.AUTH_FORBIDDEN,
        ErrorCode.AUTH_STALE_SESSION,
        ErrorCode.UNSUPPORTED_VERSION,
    }
)
"""After these a new connection can only be refused again, or would fence the runtime that fenced this one."""


class Client:
    """An Agent's client. Make one by ``Client.connect``; use it from one event loop.

    ``http`` is the synchronous client of the same node, where there is one; ``key`` the Agent's key.
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
        cursors: CursorFile | None = None,
    ) -> None:
        """``registry`` gives what Event signatures are verified against; ``None`` leaves them unverified."""
        clock, entropy = clock or SystemClock(), entropy or OsEntropy()
        self.key = key
        self.http = http
        self._registry_source = registry
        self._registry: Registry | None = None
        self._registry_is_new = False
        self._observe = observer or (lambda event, details: None)
        self._engine = ClientEngine(key, clock, entropy, self._check if registry is not None else None)
        self._succession = Succession(key, self._engine, http, self._observe)
        self._link = Link(
            self._engine,
            dial,
            clock=clock,
            jitter=random.Random(int.from_bytes(entropy.random(8), "big")),
            take=self._take,
            refresh=self._refresh_registry,
            before_send=self._send_cursors,
            observe=self._observe,
        )
        self._orders = Orders(
            key,
            self._engine,
            clock,
            entropy,
            until_live=self.until_connected,
            look_up_memberships=self._look_up_memberships,
            wake=self._link.wake,
        )
        self._events: asyncio.Queue[Event | None] = asyncio.Queue()
        self._caught_up: dict[str, asyncio.Future[None]] = {}
        self._cursors: dict[str, int] = {}
        self._cursor_file = cursors
        self._snapshots: dict[str, str] = {}
        """Groups whose beginning is no longer online, and the hash of the snapshot that stands for it."""
        self._first: asyncio.Future[None] | None = None
        self._runner: asyncio.Task[None] | None = None
        self._failure: BaseException | None = None

    @classmethod
    async def connect(
        cls,
        url: str,
        key: SigningKey | Path | str,
        ca: Path | str | None = None,
        *,
        patient: bool = False,
        clock: Clock | None = None,
        entropy: Entropy | None = None,
        observer: Observer | None = None,
        cursors: CursorFile | Path | str | None = None,
    ) -> Client:
        """Connect and authenticate.

        ``key`` is the Agent's, or the path of its key file (HomeError when that is no open one). ``cursors`` is a
        file that ``follow`` and ``done`` keep this Agent's place in each Group in.

        ``patient`` keeps trying when the node cannot be reached yet; without it ``Unreachable`` is raised at once.
        Raises the ``MissionWeaveError`` of a refused handshake, ChallengeRefused. Once connected, a lost link is
        mended for ever, until ``close`` or until the node says that this Agent may not connect.
        """
        if not isinstance(key, SigningKey):
            key = load_key(Path(key))
        http = HttpClient(url, key, ca, clock=clock, entropy=entropy)

        async def registry() -> Registry:
            return Registry.from_evidence(await asyncio.to_thread(http.get, "/v0.1/registry"))

        client = cls(
            key,
            websocket_dialer(url, ca, lambda: client._engine.newest),
            http=http,
            registry=registry,
            clock=clock,
            entropy=entropy,
            observer=observer,
            cursors=CursorFile(cursors) if isinstance(cursors, (str, Path)) else cursors,
        )
        await client.start(patient=patient)
        return client

    async def start(self, *, patient: bool = False) -> None:
        """Begin to connect, and return when the first session is open."""
        first = self._first = asyncio.get_running_loop().create_future()
        self._runner = asyncio.create_task(self._run(patient), name=f"mwnode client {self.key.principal.id}")
        try:
            await first
        except BaseException:
            await self.close()
            raise

    async def _run(self, patient: bool) -> None:
        first = self._first
        try:
            await self._link.run(lambda: patient or (first is not None and first.done()))
        except AuthStaleSession as error:
            self._end(await self._succession.told(error))
        except Exception as error:
            # What another attempt cannot mend ends the client: whoever waits for something is told.
            self._end(error)

    async def close(self) -> None:
        """End the connection. Whatever still waits gets ConnectionLost."""
        if self._runner is not None:
            self._runner.cancel()
            await asyncio.wait((self._runner,))
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
        order = Order(
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
            membership_epoch=membership_epoch,
        )
        return await self._orders.run(order, action_id)

    async def _look_up_memberships(self) -> None:
        if self.http is None:
            return
        for mission in (await self.get_at_last("/v0.1/missions"))["missions"]:
            membership = mission.get("membership")
            if membership:
                self._engine.membership_epochs[mission["groupId"]] = membership["membershipEpoch"]

    # --- Events ---

    async def subscribe(
        self,
        groups: Mapping[str, int] | Iterable[str],
        attention: AttentionFilter | None = None,
        *,
        caught_up: bool = False,
    ) -> None:
        """Follow Groups: everything above each one's position, in order, now and after every reconnection.

        ``groups`` gives the position of each Group by its ID; Groups that are only listed are followed from their first
        visible Event on. ``attention`` narrows what arrives live, never the replay (R-17.2-01). With ``caught_up`` this
        returns when all that exists now has been delivered, and raises what the node answered for a Group that it
        refused. TypeError for a bare string.
        """
        if isinstance(groups, str):
            raise TypeError(
                "groups is a mapping of Group IDs to positions, or several Group IDs: put this one in a list"
            )
        positions = dict(groups) if isinstance(groups, Mapping) else dict.fromkeys(groups, 0)
        loop = asyncio.get_running_loop()
        for group_id in positions:
            known = self._caught_up.get(group_id)
            if known is None or known.done():
                known = self._caught_up[group_id] = loop.create_future()
                # Nobody has to wait for it, so an exception in it is nobody's fault.
                known.add_done_callback(lambda done: done.cancelled() or done.exception())
        waits = [self._caught_up[group_id] for group_id in positions]
        self._engine.subscribe(positions, attention)
        self._link.wake()
        if caught_up:
            for wait in waits:
                await asyncio.shield(wait)

    async def restore(self, group_id: str) -> Restored:
        """The signed snapshot of a Group for which ``subscribe`` raised CursorTooOld (R-16-07, R-16-61).

        Loads the snapshot and, where this Agent may read it, the state body, and checks hashes and signature. The
        caller puts the state in the place of its own, subscribes from ``through_sequence`` on, and acknowledges that
        once it is durable. Raises Untrusted for a snapshot that is not what it should be, ClientError when the node
        named none or sent other bytes; no position changes here.
        """
        named = self._snapshots.get(group_id)
        if named is None:
            raise ClientError(f"the node named no snapshot for {group_id}: subscribe first, from where you are")
        registry = await self._registry_to_check()
        snapshot = check_snapshot(await self._bytes_of(named), group_id, named, registry)
        try:
            state = check_state(await self._bytes_of(snapshot.state_hash), snapshot)
        except GroupNotFound:
            state = None
        del self._snapshots[group_id]
        return Restored(snapshot, state)

    async def snapshot(self, group_id: str) -> Restored:
        """The state of a Group under a snapshot that the node signs for it now, instead of its history (R-7.4-07).

        For those who may inspect the Mission, whether it is at work or has ended. The caller goes on as after
        ``restore``: it subscribes from ``through_sequence`` on. Raises Untrusted for what is not what it should be or
        ends before what this client has heard already, AuthForbidden, GroupNotFound, ClientError.
        """
        registry = await self._registry_to_check()
        path = f"/v0.1/groups/{segment(group_id)}/snapshots"
        for _ in range(SNAPSHOT_ATTEMPTS):
            made = (await self.get(path, live=1))["snapshots"]
            snapshot = check_made(made, group_id, self.position(group_id) or 0, registry)
            try:
                return Restored(snapshot, check_state(await self._bytes_of(snapshot.state_hash), snapshot))
            except GroupNotFound:
                # A newer one took its place meanwhile.
                continue
        raise ClientError(f"{group_id} moves on faster than its snapshots can be fetched: try again, or replay it")

    async def _registry_to_check(self) -> Registry:
        registry = await self._registry_source() if self._registry_source is not None else None
        if registry is None:
            raise ClientError("a snapshot can only be checked against a Registry; this client was made without one")
        return registry

    async def _bytes_of(self, content_hash: str) -> bytes:
        http = self._need_http()
        return await asyncio.to_thread(lambda: b"".join(http.artifact_chunks(content_hash)))

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
            self._link.wake()

    async def follow(self, *group_ids: str, caught_up: bool = False) -> None:
        """Subscribe Groups from where the file of Cursors says; ClientError when there is no such file."""
        await self.subscribe(self._need_cursors().positions(group_ids), caught_up=caught_up)

    def done(self, event: Event) -> None:
        """The Event, and all before it in its Group, was processed: keep that in the file, then tell the node.

        After a restart ``follow`` goes on behind it, without a gap and without doing anything twice (R-16-04).
        """
        if event.group_id is UNSET or event.sequence is UNSET:
            return
        if self._need_cursors().keep(event.group_id, event.sequence):
            self.acknowledge(event.group_id, event.sequence)

    def _need_cursors(self) -> CursorFile:
        if self._cursor_file is None:
            raise ClientError("this client keeps no Cursors: name a file by cursors=PATH when you connect")
        return self._cursor_file

    def _send_cursors(self) -> None:
        cursors, self._cursors = self._cursors, {}
        self._engine.acknowledge(cursors)

    # --- Presence, HTTP ---

    def present(self, presence: Callable[[int], PresenceRecord] | None) -> None:
        """Send Presence with every PING; ``presence`` makes it from the Session Epoch."""
        self._engine.presence = presence
        if presence is not None and self._engine.phase is Phase.LIVE:
            self._engine.ping()
            self._link.wake()

    @property
    def session_epoch(self) -> int:
        """The present Session Epoch."""
        return self._engine.session_epoch

    @property
    def failure(self) -> BaseException | None:
        """What ended the client for good, AuthStaleSession for another process with its key; None while it lives."""
        return self._failure

    async def replaced(self) -> str | None:
        """Since when and from where another process was connected that this client has just put an end to, if any.

        It learns so with its next frame, or within five seconds when it has nothing to say (decision A20).
        """
        return await self._succession.replaced(self.get_at_last)

    @property
    def connected(self) -> bool:
        """Whether there is a session at this moment."""
        return self._failure is None and self._link.live.is_set()

    async def until_connected(self) -> None:
        """Wait until there is a session; raises what ended the client."""
        while self._failure is None and not self._link.live.is_set():
            await self._link.live.wait()
        if self._failure is not None:
            raise self._failure

    async def get(self, path: str, **query: Any) -> dict[str, Any]:
        """``HttpClient.get`` without holding up the event loop."""
        return await asyncio.to_thread(self._need_http().get, path, **query)

    async def get_at_last(self, path: str, **query: Any) -> dict[str, Any]:
        """``get``, over as many tries as it takes while what fails may pass; raises what ended the client."""
        pause = 0.2
        while True:
            try:
                return await self.get(path, **query)
            except (ClientError, MissionWeaveError) as error:
                if not passes(error):
                    raise
                self._observe("waits", {"path": path, "because": str(error)})
            await asyncio.sleep(pause)
            pause = min(2 * pause, 10.0)
            await self.until_connected()

    async def put_artifact(self, source: Path | str | bytes | BinaryIO) -> dict[str, Any]:
        """``HttpClient.put_artifact`` without holding up the event loop."""
        return await asyncio.to_thread(self._need_http().put_artifact, source)

    async def get_artifact(self, content_hash: str, path: Path | str) -> int:
        """``HttpClient.get_artifact`` without holding up the event loop."""
        return await asyncio.to_thread(self._need_http().get_artifact, content_hash, path)

    def _need_http(self) -> HttpClient:
        if self.http is None:
            raise ClientError("this client has no HTTP side: it was made without one")
        return self.http

    # --- what comes in ---

    def _take(self, notice: Notice) -> None:
        match notice:
            case Delivered():
                self._events.put_nowait(notice.event)
            case Answered():
                self._orders.answered(notice.action_id, notice.event)
            case Refused():
                self._orders.refused(notice.action_id, notice.error)
            case Unsent():
                self._orders.unsent(notice.action_id)
            case CaughtUp():
                for group_id in notice.group_ids:
                    self._settle(group_id, None)
            case Opened():
                self._opened(notice)
            case Denied():
                if notice.snapshot_artifact_hash is not None:
                    self._snapshots[notice.group_id] = notice.snapshot_artifact_hash
                self._observe("denied", {"groupId": notice.group_id, "code": notice.error.code.value})
                self._settle(notice.group_id, notice.error)
            case Paused():
                self._observe("paused", {"groupId": notice.group_id, "retryAfterMs": notice.retry_after_ms})
                asyncio.get_running_loop().call_later(
                    notice.retry_after_ms / 1000, self._resume, notice.group_id, self._engine.session_epoch
                )
            case Problem():
                self._observe("problem", {"code": notice.error.code.value, "message": notice.error.message})
            case Ended():
                if notice.error.code in _FINAL:
                    raise notice.error
                raise ConnectionLost(f"the node ended the connection: {notice.error.message}")

    def _opened(self, notice: Opened) -> None:
        if self.http is not None:
            self.http.use_token(notice.token)
        self._link.opened()
        self._observe("connected", {"sessionEpoch": notice.session_epoch})
        if self._first is not None and not self._first.done():
            self._first.set_result(None)

    def _settle(self, group_id: str, error: BaseException | None) -> None:
        waiting = self._caught_up.get(group_id)
        if waiting is None or waiting.done():
            return
        if error is None:
            waiting.set_result(None)
        else:
            waiting.set_exception(error)

    def _resume(self, group_id: str, session_epoch: int) -> None:
        # A connection made meanwhile has subscribed everything anew already.
        if session_epoch == self._engine.session_epoch:
            self._engine.resume(group_id)
            self._link.wake()

    async def _refresh_registry(self) -> None:
        assert self._registry_source is not None, "only a check against a Registry finds it stale"
        self._registry = await self._registry_source()
        self._registry_is_new = True

    def _check(self, raw: bytes) -> None:
        """Verify an Event's signature by ourselves, whatever the connection promises (R-17.1-09)."""
        if self._registry is None:
            raise StaleRegistry
        verdict = verify(raw, "event", self._registry)
        if isinstance(verdict, Failure):
            if verdict.stage == "key-resolution" and not self._registry_is_new:
                raise StaleRegistry
            raise Untrusted(f"the node sent an Event that does not verify: {verdict.stage}, {verdict.reason}")
        self._registry_is_new = False

    def _end(self, error: BaseException) -> None:
        if self._failure is None:
            self._failure = error
            self._events.put_nowait(None)
        self._orders.fail(self._failure)
        for group_id in self._caught_up:
            self._settle(group_id, self._failure)
        if self._first is not None and not self._first.done():
            self._first.set_exception(self._failure)
        # Wakes whoever waits for a session; they find the failure.
        self._link.live.set()


__all__ = ["Client", "Observer", "RegistrySource"]
