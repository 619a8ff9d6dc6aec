"""Group commit: one thread that lives as long as the store takes Commands in batches, decides, writes, waits for one
fsync, and only then answers (design, section 2).

A lone Command is committed at once. While a commit waits for the disk, others gather and share the next one.
"""

from __future__ import annotations

import logging
from collections import deque
from collections.abc import Callable, Sequence
from concurrent.futures import Future
from threading import Condition, Thread
from typing import Any, Final, TypeVar

import lmdb
from msgspec import Struct

from mwnode.authority.case import Services
from mwnode.authority.policy import Policy
from mwnode.authority.request import Request
from mwnode.protocol.errors import ErrorCode, Rejection
from mwnode.protocol.instants import Instant
from mwnode.protocol.ports import Clock, Entropy
from mwnode.seldom import Seldom
from mwnode.store.batch import Batch, Poisoned, Waiting
from mwnode.store.dues import is_sound, rebuild_dues
from mwnode.store.environment import LmdbStore, LmdbWriting
from mwnode.store.errors import StoreError, StoreUnavailable
from mwnode.store.outcome import INTERNAL, Accepted, CommittedEvent, Outcome
from mwnode.store.port import AuditRow
from mwnode.store.sealing import Sealer
from mwnode.store.stepping import OnWork, future
from mwnode.trust.keys import SigningKey
from mwnode.trust.registry import Registry

__all__ = ["Accepted", "CommittedEvent", "Committer", "Outcome"]

T = TypeVar("T")
Reply = Callable[[Outcome], None]

BATCH_MAX: Final = 128
"""Commands in one commit."""
BATCH_BYTES_MAX: Final = 4 * 1024**2
QUEUE_MAX: Final = 8192
"""Waiting Commands beyond which the next is refused with BACKPRESSURE."""
QUEUE_BYTES_MAX: Final = 128 * 1024**2
RETRY_MS: Final = 200
LINGER_SECONDS: Final = 0.0005
"""How long a batch waits for company when the one before had plenty."""
LINGER_BELOW: Final = 16
TIMER_WAIT_MAX: Final = 1.0
"""Seconds between two looks at the clock while something will come due: the wall clock may be set forward."""
AUDIT_BURST: Final = 1000
AUDIT_PER_SECOND: Final = 50.0
"""Protected diagnostics kept at most: a flood of garbage must not fill the disk. What was left out is counted."""

_log = logging.getLogger("mwnode.store")


class _Command(Struct):
    request: Request
    reply: Reply
    size: int
    outcome: Outcome | Waiting = INTERNAL


class _Call(Struct):
    change: Callable[[LmdbWriting], Any]
    future: Future[Any]
    result: Any = None
    error: BaseException | None = None
    size: int = 0


class _Timers(Struct):
    future: Future[None] | None = None
    size: int = 0


_Item = _Command | _Call | _Timers


class Committer:
    """The writer. ``submit`` and ``call`` may be used from any thread; ``on_commit``, ``on_registry`` and replies are
    called from the writer's thread, after the data is durable, and must not block.

    With ``on_work`` there is no thread: whoever is told by it calls ``step``, until there is nothing left to do."""

    def __init__(
        self,
        store: LmdbStore,
        *,
        authority_key: SigningKey,
        organization_id: str,
        services: Services,
        policy: Callable[[], Policy],
        clock: Clock,
        entropy: Entropy,
        registry: Registry,
        on_commit: Callable[[list[CommittedEvent]], None],
        on_registry: Callable[[Registry], None],
        is_token: Callable[[str], bool] | None = None,
        on_work: OnWork | None = None,
    ) -> None:
        self._on_work = on_work
        self._store = store
        self._sealer = Sealer(authority_key, services.authority)
        self._is_token = is_token
        self._organization_id = organization_id
        self._services = services
        self._policy = policy
        self._clock = clock
        self._seldom = Seldom(_log, clock.monotonic)
        self._entropy = entropy
        self._registry = registry
        self._on_commit = on_commit
        self._on_registry = on_registry
        self._queue: deque[_Item] = deque()
        self._queued_bytes = 0
        self._audits: list[AuditRow] = []
        self._audits_left_out = 0
        self._audit_tokens = float(AUDIT_BURST)
        self._audit_refilled = clock.monotonic()
        self._wake = Condition()
        self._idle = False
        self._closed = False
        self._last_size = 0
        self._next_due: Instant | None = None
        self.on_durable: Callable[[float, int], None] = lambda seconds, commands: None
        """Told of each durable batch: how long it took, and how many Commands were in it."""
        self._due_known = False
        """Whether that is what the file says, so that only a batch that changes it has to look again."""
        self.commits = 0
        """Batches made durable."""
        self.commands = 0
        """Commands accepted."""
        self._prepare_store()
        self._thread: Thread | None = None
        if on_work is None:
            self._thread = Thread(target=self._run, name="mwnode-writer", daemon=True)
            self._thread.start()

    def _prepare_store(self) -> None:
        """Say in the file which service accepts documents, and learn what is due."""
        authority = self._services.authority
        with self._store.read() as view:
            if view.authority == authority and is_sound(view):
                # Nothing to write: a node also opens where no room is left.
                self._next_due = view.next_due()
                return

        def prepare(txn: LmdbWriting) -> None:
            if txn.authority != authority:
                txn.put_authority(authority)
            if not is_sound(txn):
                _log.warning("the index of what comes due was damaged: %s entries made again", rebuild_dues(txn))
            self._next_due = txn.next_due()

        self._store.write(prepare)

    # --- any thread ---

    @property
    def queued(self) -> int:
        """Commands and calls that wait."""
        return len(self._queue)

    @property
    def idle(self) -> bool:
        """Whether the writer waits for work."""
        return self._idle

    def submit(self, request: Request, reply: Reply) -> None:
        """Take one verified Command. ``reply`` is called once: from the writer after the commit, or at once with
        BACKPRESSURE when too much waits already, or INTERNAL_ERROR once closed."""
        size = len(request.verified.canonical)
        with self._wake:
            if self._closed:
                refusal = INTERNAL
            elif len(self._queue) >= QUEUE_MAX or self._queued_bytes >= QUEUE_BYTES_MAX:
                refusal = Rejection(
                    ErrorCode.BACKPRESSURE, "too many Commands wait to be committed", "R-19-32", retry_after_ms=RETRY_MS
                )
            else:
                self._push(_Command(request, reply, size))
                return
        reply(refusal)

    def call(self, change: Callable[[LmdbWriting], T]) -> Future[T]:
        """Run ``change`` inside the next batch, alone all or nothing; its result once durable.

        ``change`` may be run again from its start, so it must have no effect but on its transaction.
        """
        answer: Future[T] = self._future()
        with self._wake:
            if not self._closed:
                self._push(_Call(change, answer))
                return answer
        answer.set_exception(StoreUnavailable("the writer is closed"))
        return answer

    def now(self) -> Instant:
        """The node's time."""
        return self._clock.now()

    def audit(self, row: AuditRow) -> None:
        """Keep a protected diagnostic with the next batch; nobody waits for it."""
        with self._wake:
            if not self._closed:
                self._keep_audit(row)
                self._notify()

    def submit_timer(self) -> None:
        """Look at what is due now."""
        with self._wake:
            if not self._closed:
                self._push(_Timers())

    poke = submit_timer

    def run_timers(self) -> None:
        """Look at what is due now and wait until its effects are durable."""
        done: Future[None] = self._future()
        with self._wake:
            if self._closed:
                return
            self._push(_Timers(done))
        done.result()

    def close(self) -> None:
        """Commit what is queued, then end the thread. Idempotent."""
        with self._wake:
            self._closed = True
            self._wake.notify_all()
        if self._thread is not None:
            self._thread.join()
            return
        while self.step():
            pass

    def abandon(self) -> None:
        """End as a crash would: what is queued is not committed, and who waits for it is told so. Idempotent."""
        with self._wake:
            self._closed = True
            items, self._queue = list(self._queue), deque()
            self._queued_bytes = 0
            self._audits = []
        for item in items:
            if isinstance(item, _Command):
                item.reply(INTERNAL)
            elif item.future is not None:
                item.future.set_exception(StoreUnavailable("the node has ended"))
        self.close()

    def _push(self, item: _Item) -> None:
        self._queue.append(item)
        self._queued_bytes += item.size
        self._notify()

    def _notify(self) -> None:
        if self._on_work is not None:
            self._on_work()
        # Waking a thread that is busy anyway would only cost a hand-off.
        elif self._idle:
            self._idle = False
            self._wake.notify()

    def _keep_audit(self, row: AuditRow) -> None:
        now = self._clock.monotonic()
        earned = (now - self._audit_refilled) * AUDIT_PER_SECOND
        self._audit_tokens = min(float(AUDIT_BURST), self._audit_tokens + earned)
        self._audit_refilled = now
        if self._audit_tokens < 1:
            self._audits_left_out += 1
            return
        self._audit_tokens -= 1
        if self._audits_left_out:
            details = {**(row.details or {}), "leftOutBefore": self._audits_left_out}
            row = AuditRow(
                row.at,
                row.stage,
                row.reason,
                row.document_kind,
                row.key_id,
                row.signing_hash,
                row.group_id,
                row.actor,
                details,
            )
            self._audits_left_out = 0
        self._audits.append(row)

    # --- the writer's thread ---

    def _run(self) -> None:
        while self._work(wait=True) or not self._over():
            pass

    def _over(self) -> bool:
        with self._wake:
            return self._closed and not self._queue and not self._audits

    def step(self) -> bool:
        """Without a thread: commit one batch of what waits or is due; whether there was any."""
        return self._work(wait=False)

    def seconds_to_due(self) -> float | None:
        """Seconds until something comes due, at most ``TIMER_WAIT_MAX``; ``None`` while nothing will."""
        return self._seconds_to_wait()

    def _future(self) -> Future[Any]:
        return future(None if self._on_work is None else self.step)

    def _work(self, *, wait: bool) -> bool:
        items, audits = self._take(wait=wait)
        if not (items or audits or self._due_now()):
            return False
        self._commit(items, audits)
        return True

    def _due_now(self) -> bool:
        return self._next_due is not None and self._next_due <= self._clock.now()

    def _take(self, *, wait: bool) -> tuple[list[_Item], list[AuditRow]]:
        """Wait for work; at most one batch of it. Empty when something came due or the writer closes."""
        with self._wake:
            if wait and not self._queue and not self._audits and not self._closed:
                self._idle = True
                self._wake.wait(self._seconds_to_wait())
                self._idle = False
            if wait and self._last_size >= LINGER_BELOW > len(self._queue) > 0 and not self._closed:
                # The wait gives the interpreter to whoever is about to submit.
                self._wake.wait(LINGER_SECONDS)
            items: list[_Item] = []
            size = 0
            while self._queue and len(items) < BATCH_MAX and size < BATCH_BYTES_MAX:
                item = self._queue.popleft()
                size += item.size
                items.append(item)
            self._queued_bytes -= size
            self._last_size = len(items)
            audits, self._audits = self._audits, []
            return items, audits

    def _seconds_to_wait(self) -> float | None:
        if self._next_due is None:
            return None
        left = (self._next_due.whole_microseconds() - self._clock.now().whole_microseconds()) / 1_000_000
        return min(max(left, 0.0), TIMER_WAIT_MAX)

    def _commit(self, items: list[_Item], audits: list[AuditRow]) -> None:
        """One batch: write it whole, then answer everybody."""
        begun = self._clock.monotonic()
        try:
            batch = self._store.write(lambda txn: self._fill(txn, items, audits))
        except Poisoned as poisoned:
            # Rare enough to run the rest again from its start: everything that is expected to fail failed before.
            _log.error("a Command could not be written and is refused", exc_info=poisoned.__cause__)
            self._commit(self._without(items, poisoned.request), audits)
            return
        except Exception as error:
            self._fail(items, error)
            if self._due_now():
                # What is due waits for better times too, or the thread would turn in place.
                self._next_due = self._clock.now().plus(1)
            return
        self.commits += 1
        self.on_durable(self._clock.monotonic() - begun, sum(isinstance(item, _Command) for item in items))
        self._due_known = self._next_due is None or self._next_due > batch.now
        if batch.registry is not self._registry:
            self._registry = batch.registry
            self._on_registry(batch.registry)
        self._answer(items)
        if batch.events:
            self._guard(self._on_commit, batch.events)

    def _fill(self, txn: LmdbWriting, items: Sequence[_Item], audits: Sequence[AuditRow]) -> Batch:
        """What the transaction of a batch does. May run more than once; the last run counts."""
        # Only what is committed is known, and only Commands tell which rows they touched.
        known = self._due_known and all(type(item) is _Command for item in items)
        self._due_known = False
        batch = Batch(
            txn,
            now=self._clock.now(),
            policy=self._policy(),
            organization_id=self._organization_id,
            services=self._services,
            registry=self._registry,
            sealer=self._sealer,
            entropy=self._entropy,
            is_token=self._is_token,
        )
        more_due = False
        if any(type(item) is _Timers for item in items) or self._due_now():
            more_due = batch.timers()
        batch.prefetch([item.request for item in items if type(item) is _Command])
        for item in items:
            if type(item) is _Command:
                item.outcome = batch.command(item.request)
            elif type(item) is _Call:
                batch.settle()
                self._run_call(txn, item)
                batch.look_again()
        batch.settle()
        for row in (*audits, *batch.audits):
            batch.put_audit(row)
        if more_due:
            self._next_due = batch.now
        elif not known or txn.wrote_to("due"):
            self._next_due = txn.next_due()
        return batch

    def _run_call(self, txn: LmdbWriting, item: _Call) -> None:
        item.result = item.error = None
        try:
            with self._store.nested(txn) as inner:
                item.result = item.change(inner)
        except lmdb.Error as error:
            if not isinstance(error, lmdb.BadValsizeError):
                # A full map is grown, and all else that is the file's own befalls the whole batch.
                raise
            item.error = error
        except (StoreError, Exception) as error:
            item.error = error

    def _without(self, items: Sequence[_Item], request: Request) -> list[_Item]:
        kept: list[_Item] = []
        for item in items:
            if type(item) is _Command and item.request is request:
                self._guard(item.reply, INTERNAL)
            else:
                kept.append(item)
        return kept

    def _answer(self, items: Sequence[_Item]) -> None:
        for item in items:
            if type(item) is _Command:
                outcome = item.outcome
                if type(outcome) is Waiting:
                    assert outcome.outcome is not None, "the batch was settled"
                    outcome = outcome.outcome
                    self.commands += 1
                self._guard(item.reply, outcome)
            elif type(item) is _Call:
                if item.error is None:
                    item.future.set_result(item.result)
                else:
                    item.future.set_exception(item.error)
            elif type(item) is _Timers and item.future is not None:
                item.future.set_result(None)

    def _fail(self, items: Sequence[_Item], error: Exception) -> None:
        """Nothing of the batch was kept: everybody may try again (R-15.1-15, R-19-35)."""
        if isinstance(error, StoreError):
            self._seldom.log(logging.ERROR, type(error).__name__, "a commit failed: %s", error)
        else:
            _log.exception("a commit failed")
        refusal = Rejection(INTERNAL.code, INTERNAL.message, INTERNAL.rule, retry_after_ms=INTERNAL.retry_after_ms)
        for item in items:
            if type(item) is _Command:
                self._guard(item.reply, refusal)
                continue
            waiting: Future[Any] | None = item.future if isinstance(item, (_Call, _Timers)) else None
            if waiting is not None:
                waiting.set_exception(error)

    def _guard(self, callback: Callable[[Any], None], value: Any) -> None:
        """Somebody else's callback must not end the thread that everybody depends on."""
        try:
            callback(value)
        except Exception:
            _log.exception("a callback of the writer failed")
