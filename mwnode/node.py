"""The composition root: ``Node.open`` builds every part of a node, in plain sight, and ``close`` takes it down again.

A Command's way: ``submit`` -> verifier thread (six stages, payload) -> writer thread (receipt, freshness, admission,
decide, sign, commit) -> reply and fan-out. Nothing is answered before it is durable.
"""

from __future__ import annotations

import logging
import threading
from collections.abc import Callable, Sequence
from concurrent.futures import Future
from contextlib import AbstractContextManager
from pathlib import Path
from types import TracebackType
from typing import Any, TypeVar

from mwnode import genesis
from mwnode import home as homes
from mwnode.authority.policy import Policy
from mwnode.authority.request import Request
from mwnode.gateway.ports import Listener, Meter, Origin, Reply, SessionGrant
from mwnode.home import Home, HomeError
from mwnode.policy_versions import adopt_policy, policy_in_force
from mwnode.protocol.commands import EXT
from mwnode.protocol.documents import Actor, Command
from mwnode.protocol.errors import SIGNED_DOCUMENT_REJECTED, ErrorCode, MissionWeaveError, Rejection
from mwnode.protocol.instants import Instant
from mwnode.protocol.limits import Limits
from mwnode.protocol.ports import Clock, Entropy
from mwnode.seldom import Seldom
from mwnode.store.artifacts import Artifacts
from mwnode.store.commit import Accepted, CommittedEvent, Committer, Outcome
from mwnode.store.doctor import Reader, Space, readers_of, space_of
from mwnode.store.environment import LmdbStore
from mwnode.store.errors import StoreError, StoreFull, StoreUnavailable
from mwnode.store.port import AuditRow, ReadTransaction, WriteTransaction
from mwnode.store.snapshots import Snapshots, with_uploaded
from mwnode.store.stepping import OnWork, future
from mwnode.store.upkeep import Upkeep
from mwnode.system import OsEntropy, SystemClock
from mwnode.tokens import NodeTokens
from mwnode.trust.keys import SigningKey, is_sealed
from mwnode.trust.registry import Registry
from mwnode.trust.verification import Failure
from mwnode.verifier import Submission, Verifier

T = TypeVar("T")
_log = logging.getLogger("mwnode.node")
UPKEEP_SECONDS = 1.0
"""How often a node looks for what policy lets go."""
EMBEDDED = Origin(transport="http")
"""Where Commands come from that are handed over in process: the signature is the credential (decision B7)."""


class Node:
    """One Organization's Group Authority over one store. Make it with ``open``; close it, or use it as a context."""

    def __init__(
        self,
        home: Home,
        store: LmdbStore,
        clock: Clock,
        entropy: Entropy,
        authority_key: SigningKey,
        organization_key: SigningKey | None,
        policy: Policy,
        registry: Registry,
        on_work: OnWork | None = None,
    ) -> None:
        self._stepped = on_work is not None
        self.home = home
        self.store = store
        self.authority_key = authority_key
        self.organization_key = organization_key
        self._clock = clock
        self._entropy = entropy
        self._policy = policy
        self._registry = registry
        self._listeners: list[Listener] = []
        self._listeners_lock = threading.Lock()
        self._tokens = NodeTokens(authority_key)
        self._committer = Committer(
            store,
            authority_key=authority_key,
            organization_id=home.organization_id,
            services=genesis.services_of(home),
            policy=lambda: self._policy,
            clock=clock,
            entropy=entropy,
            registry=registry,
            on_commit=self._publish,
            on_registry=self._replace_registry,
            is_token=lambda text: self._tokens.claims(text) is not None,
            on_work=on_work,
        )
        self._artifacts = Artifacts(store, self._committer, home.limits)
        self._snapshots = Snapshots(store, self._committer, authority_key, clock, entropy)
        self._seldom = Seldom(_log, clock.monotonic)
        self._upkeep = Upkeep(store, self._artifacts, self._committer, lambda: self._policy, clock)
        self._listeners.append(self._upkeep.note)
        self._stop = threading.Event()
        self._keeper: threading.Thread | None = None
        self._policy_waits = False
        """Whether [policy] changed and there was no room to note it."""
        if not self._stepped:
            self._keeper = threading.Thread(target=self._keep_up, name="mwnode-upkeep", daemon=True)
            self._keeper.start()
        self._verifier = Verifier(lambda: self._registry, on_work, quiet=lambda: self._committer.idle)
        self._closed = False
        self._reading = False
        """Whether the store is only read: then no Command is taken."""

    @classmethod
    def open(
        cls,
        path: Path | str | Home,
        *,
        clock: Clock | None = None,
        entropy: Entropy | None = None,
        durable: bool = True,
        new_store: bool = False,
        new_keys: bool = False,
        on_work: OnWork | None = None,
    ) -> Node:
        """Open the node of a HOME, or of the ``node.mdb`` in one; makes the HOME when there is nothing yet.

        ``path`` may also be a HOME that is open already.

        ``durable=False`` leaves out the fsync: for tests, where losing power loses nothing of value. ``new_store``
        begins an empty store in a HOME whose own is gone; ``new_keys`` binds authority.key and owner.key also where
        others of theirs are valid. ``on_work`` makes a node without threads of its own: it is called when there is
        something to do, and whoever holds the node calls ``step`` then.

        Raises HomeError, StoreBusy (another process owns the file), and the other errors of the store.
        """
        clock = clock or SystemClock()
        entropy = entropy or OsEntropy()
        home = path if isinstance(path, Home) else _home_at(Path(path), clock, entropy, durable)
        authority_key = home.key("authority")
        organization_key = _open_key(home, "organization")
        if not new_store:
            home.check_store(there=home.store_path.exists())
        store = LmdbStore.open(home.store_path, durable=durable, limits=home.limits)
        try:
            with store.read() as view:
                genesis.check_owner(view, home)
                new = genesis.is_empty(view)
            if new:
                if not new_store:
                    home.check_store(there=False)
                if organization_key is None:
                    raise HomeError(f"{home.key_path('organization')} is missing or sealed: a new store needs it once")
                genesis.found(store, home, organization_key, clock.now())
            home.note_founded()
            store.audit_seal = genesis.audit_seal(store, home, entropy)
            policy, policy_waits = _policy_of(store, home, clock, entropy)
            with store.read() as view:
                registry = genesis.read_registry(view, home.organization_id)
            if not new_keys:
                own = [("authority", authority_key)]
                owner_key = _open_key(home, "owner")
                own += [] if owner_key is None else [("owner", owner_key)]
                genesis.check_own_keys(registry, home, own, clock.now())
            node = cls(home, store, clock, entropy, authority_key, organization_key, policy, registry, on_work)
        except BaseException:
            store.close()
            raise
        node._policy_waits = policy_waits
        try:
            store.file.keep_reserve()
        except StoreFull as error:
            _log.warning("%s; until then Commands are refused and reading goes on", error)
        try:
            node._bind_own_keys()
        except BaseException:
            node.close()
            raise
        return node

    @classmethod
    def open_reading(cls, path: Path | str, *, clock: Clock | None = None, entropy: Entropy | None = None) -> Node:
        """Open the store of a HOME to read it without its authority's key, as one that was imported has none.

        The file is opened for reading alone: no Command is taken, no timer runs, nothing is noted. Sessions are good
        with this node object only. Raises HomeError, and the errors of the store.
        """
        home, clock, entropy = homes.open_home(path), clock or SystemClock(), entropy or OsEntropy()
        home.check_store(there=home.store_path.exists())
        passing = homes.make_key("reading", home.authority_service, home.organization_id, entropy)
        store = LmdbStore.open(home.store_path, read_only=True, limits=home.limits)
        try:
            with store.read() as view:
                genesis.check_owner(view, home)
                policy = policy_in_force(view) or home.policy
                registry = genesis.read_registry(view, home.organization_id)
            # Nobody ever steps it, so nothing is done; what would wait for that is refused by `submit`.
            node = cls(home, store, clock, entropy, passing, None, policy, registry, on_work=_nothing)
        except BaseException:
            store.close()
            raise
        node._reading = True
        return node

    def close(self) -> None:
        """Finish what is queued, then give the file back. Idempotent."""
        if self._closed:
            return
        self._closed = True
        self._stop.set()
        if self._keeper is not None:
            self._keeper.join()
        if not self._reading:
            self._verifier.close()
            self._committer.close()
        self.store.close()

    @property
    def closed(self) -> bool:
        return self._closed

    def abandon(self) -> None:
        """End as a crash would, for tests of one: what waits is neither decided nor kept. Idempotent."""
        if not self._closed:
            self._committer.abandon()
            self.close()

    def __enter__(self) -> Node:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, value: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()

    # --- what the gateway sees (gateway.ports.Authority) ---

    @property
    def organization_id(self) -> str:
        return self.home.organization_id

    @property
    def limits(self) -> Limits:
        return self.home.limits

    @property
    def policy(self) -> Policy:
        return self._policy

    @property
    def clock(self) -> Clock:
        return self._clock

    @property
    def entropy(self) -> Entropy:
        return self._entropy

    @property
    def registry(self) -> Registry:
        return self._registry

    @property
    def tokens(self) -> NodeTokens:
        return self._tokens

    @property
    def artifacts(self) -> Artifacts:
        return self._artifacts

    def submit(self, raw: bytes, origin: Origin, reply: Reply) -> None:
        """Hand over the exact bytes of one Command; ``reply`` is called once, from another thread."""
        if self._reading:
            reply(Rejection(ErrorCode.INTERNAL_ERROR, "this node only reads: the authority's key is not here"))
            return

        def deliver(verdict: Request | Failure) -> None:
            if isinstance(verdict, Failure):
                self._committer.audit(self._audit_row(verdict, raw))
                reply(verdict)
                return
            refusal = self._check_origin(verdict, origin)
            if refusal is not None:
                reply(refusal)
            else:
                self._committer.submit(with_uploaded(verdict, self._artifacts, self._registry), reply)

        if not self._verifier.submit(Submission(raw, deliver)):
            reply(Rejection(ErrorCode.INTERNAL_ERROR, "the node is closing; send it again later", "R-19-35"))

    def open_session(self, agent_id: str, key_id: str) -> Future[SessionGrant | Rejection]:
        """Issue the Agent's next Session Epoch by a signed Command of the authority service."""
        answer: Future[SessionGrant | Rejection] = self._future()
        raw = genesis.service_command(
            self.authority_key,
            f"{EXT}.identity.session_open",
            {"agentId": agent_id},
            self._clock,
            self._entropy,
        )

        def reply(outcome: Outcome | Failure) -> None:
            if isinstance(outcome, Accepted):
                answer.set_result(SessionGrant(_session_epoch(outcome)))
            elif isinstance(outcome, Rejection):
                answer.set_result(outcome)
            else:
                answer.set_result(Rejection(ErrorCode.INTERNAL_ERROR, "the node could not verify its own Command"))

        self.submit(raw, EMBEDDED, reply)
        return answer

    def snapshots(self, group_id: str, *, live: bool = False) -> list[bytes]:
        """The Group's signed snapshots as canonical bytes, oldest first; see ``Snapshots.of``."""
        return self._snapshots.of(group_id, live=live)

    def read(self) -> AbstractContextManager[ReadTransaction]:
        """A snapshot of the store, for a short while."""
        return self.store.read()

    def call(self, work: Callable[[WriteTransaction], T]) -> Future[T]:
        """Run something in the writer, within its next batch."""
        if self._reading:
            refused: Future[T] = Future()
            refused.set_exception(StoreUnavailable("this node only reads: the authority's key is not here"))
            return refused
        return self._committer.call(work)

    def add_listener(self, listener: Listener) -> None:
        """Call ``listener`` from the writer thread with every durable batch."""
        with self._listeners_lock:
            self._listeners = [*self._listeners, listener]

    def meter(self, meter: Meter) -> None:
        """Have ``meter`` told of each durable batch, from the writer thread; there is one of them."""
        self._committer.on_durable = meter

    def file(self) -> tuple[Space, list[Reader]]:
        """Where the bytes of the file are, and who reads which state of it."""
        return space_of(self.store), readers_of(self.store)

    def remove_listener(self, listener: Listener) -> None:
        with self._listeners_lock:
            self._listeners = [known for known in self._listeners if known is not listener]

    # --- in process ---

    def decide(self, raw: bytes, *, bearer: Actor | None = None) -> Accepted:
        """Send one Command and wait until it is durable.

        Raises the MissionWeaveError of the code with which it was refused.
        """
        answer: Future[Outcome | Failure] = self._future()
        self.submit(raw, Origin(transport="http", bearer=bearer), answer.set_result)
        outcome = answer.result()
        if isinstance(outcome, Accepted):
            return outcome
        if isinstance(outcome, Failure):
            raise MissionWeaveError.of(outcome.rejection())
        raise MissionWeaveError.of(outcome)

    def send(self, raw: bytes, *, bearer: Actor | None = None) -> list[bytes]:
        """As ``decide``; the Events' exact bytes, receipt first."""
        return list(self.decide(raw, bearer=bearer).events)

    def run_timers(self) -> None:
        """Let the authority look at everything due by its clock, and wait for it. A system clock needs no call."""
        self._committer.run_timers()
        self._look_after()

    # --- without threads ---

    def step(self) -> bool:
        """Verify and commit what waits now, or is due; whether there was anything. For a node with ``on_work``."""
        verified = self._verifier.step()
        return self._committer.step() or verified

    def seconds_to_due(self) -> float | None:
        """Seconds after which ``step`` is to be called even if nothing comes in; ``None`` while nothing will be due."""
        return self._committer.seconds_to_due()

    # --- inside ---

    def _future(self) -> Future[Any]:
        return future(self.step if self._stepped else None)

    def _keep_up(self) -> None:
        while not self._stop.wait(UPKEEP_SECONDS):
            self._look_after()

    def _look_after(self) -> None:
        if self._policy_waits:
            try:
                self._policy = adopt_policy(
                    self.store, self.home, self._clock, self._entropy, lambda note: self.call(note).result()
                )
                self._policy_waits = False
            except StoreError as error:
                self._seldom.log(logging.WARNING, "policy", "the changed [policy] still waits: %s", error)
        self._upkeep.run()

    def _bind_own_keys(self) -> None:
        """Bind the authority's and the first human's key once; later starts find them bound."""
        missing = [
            key
            for key in (self.authority_key, _open_key(self.home, "owner"))
            if key is not None and self._registry.resolve(key.key_id) is None
        ]
        if missing and self.organization_key is not None:
            genesis.bind_keys(self.send, self.organization_key, missing, self.home, self._clock, self._entropy)

    def _check_origin(self, request: Request, origin: Origin) -> Rejection | None:
        """A Command's bytes are no credential on somebody else's connection (decision A28)."""
        command = request.verified.document
        assert isinstance(command, Command)
        if origin.transport == "ws":
            if command.actor != origin.agent:
                return Rejection(
                    ErrorCode.AUTH_FORBIDDEN, "the actor is not the Agent that authenticated here", "R-6.3-07"
                )
            return None
        if origin.bearer != command.actor and not self._is_fresh(request.verified.protected_time):
            return Rejection(ErrorCode.AUTH_INVALID_SIGNATURE, SIGNED_DOCUMENT_REJECTED, "R-6.4-77")
        return None

    def _is_fresh(self, issued: Instant) -> bool:
        now, policy = self._clock.now(), self._policy
        # Whole seconds decide nearly always, without making two more instants.
        if now.seconds - policy.freshness_window < issued.seconds < now.seconds + policy.clock_skew:
            return True
        return now.plus(-policy.freshness_window) <= issued <= now.plus(policy.clock_skew)

    def _audit_row(self, failure: Failure, raw: bytes) -> AuditRow:
        return AuditRow(
            at=self._clock.now().text(),
            stage=failure.stage,
            reason=failure.reason,
            document_kind="command",
            details={"bytes": len(raw)},
        )

    def _publish(self, events: Sequence[CommittedEvent]) -> None:
        for listener in self._listeners:
            listener(events)

    def _replace_registry(self, registry: Registry) -> None:
        self._registry = registry


def _policy_of(store: LmdbStore, home: Home, clock: Clock, entropy: Entropy) -> tuple[Policy, bool]:
    """The policy to begin with, and whether a changed one waits for room to be noted: until then no Command is accepted
    anyway, and what is decided by the clock is decided by the policy that the log tells of."""
    try:
        return adopt_policy(store, home, clock, entropy, store.write), False
    except StoreFull as error:
        with store.read() as view:
            known = policy_in_force(view)
        if known is None:
            raise
        _log.warning("[policy] changed, which cannot be noted: %s; until then the one before stays in force", error)
        return known, True


def _open_key(home: Home, name: str) -> SigningKey | None:
    """A key of HOME that lies open in its file; ``None`` when it is kept elsewhere or sealed: then people sign."""
    try:
        return home.key(name)
    except HomeError:
        path = home.key_path(name)
        if not path.exists() or is_sealed(path.read_bytes()):
            return None
        raise


def _nothing() -> None:
    """What a node that only reads does about work."""


def _session_epoch(accepted: Accepted) -> int:
    payload: dict[str, Any] = accepted.receipt_payload
    epoch = payload["sessionEpoch"]
    assert isinstance(epoch, int)
    return epoch


def _home_at(path: Path, clock: Clock, entropy: Entropy, durable: bool) -> Home:
    directory = path.parent if path.suffix == ".mdb" else path
    if (directory / "mwnode.toml").exists():
        return homes.open_home(directory)
    return homes.create_home(directory, clock, entropy, durable=durable)
