"""What policy lets go by time: Events of archived Groups, protected diagnostics (R-7.4-04), uploads that nothing names.

``run`` does what is due and returns; a node calls it every now and then. Each step is a transaction of its own, so that
Commands are answered in between.
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Sequence
from concurrent.futures import Future
from threading import Lock
from typing import Any, Final, Protocol, TypeVar

from mwnode.authority.policy import Policy
from mwnode.authority.state import GROUPS
from mwnode.protocol.instants import Instant, parse
from mwnode.protocol.ports import Clock
from mwnode.store.artifacts import Artifacts
from mwnode.store.collecting import Collector
from mwnode.store.environment import LmdbStore, LmdbWriting
from mwnode.store.errors import StoreError
from mwnode.store.outcome import CommittedEvent
from mwnode.store.trim import trim_group

T = TypeVar("T")

AUDITS_PER_STEP: Final = 1000
COLLECT_FIRST_SECONDS: Final = 600
"""How long after its start a node first looks for uploads that nothing names: it reads the whole log when there are
any that are old."""
COLLECT_SECONDS: Final = 3600
"""How often it looks again."""
_ARCHIVED: Final = "group.archived"
_log = logging.getLogger("mwnode.store")


class Calls(Protocol):
    """A writer as far as it is used here."""

    def call(self, change: Callable[[LmdbWriting], T]) -> Future[T]: ...


class Upkeep:
    """The upkeep of one live store. ``note`` and ``run`` may be called from different threads."""

    def __init__(
        self, store: LmdbStore, artifacts: Artifacts, writer: Calls, policy: Callable[[], Policy], clock: Clock
    ) -> None:
        self._writer = writer
        self._policy = policy
        self._clock = clock
        self._store = store
        self._lock = Lock()
        self._collector = Collector(store, artifacts, self._write)
        self._collect_at = clock.now().plus(COLLECT_FIRST_SECONDS)
        self._archived: list[tuple[Instant, str]] = []
        """Archived Groups that still have Events to trim, and since when."""
        if policy().trim_archived_after is not None:
            with store.read() as view:
                self._archived = [found for found in map(_archival, view.each(GROUPS)) if found is not None]

    @property
    def needed(self) -> bool:
        """Whether policy lets anything go at all."""
        policy = self._policy()
        return (
            policy.trim_archived_after is not None or policy.audit_retention is not None or policy.upload_retention > 0
        )

    def note(self, events: Sequence[CommittedEvent]) -> None:
        """Learn which Groups were archived; a listener of the node."""
        for event in events:
            if event.kind == _ARCHIVED and event.group_id is not None:
                self._archived.append((self._clock.now(), event.group_id))

    def run(self) -> None:
        """Do what is due by now. What the store refuses is logged and tried again the next time."""
        with self._lock:
            policy, now = self._policy(), self._clock.now()
            if policy.trim_archived_after is not None:
                self._trim(now.plus(-policy.trim_archived_after))
            if policy.audit_retention is not None:
                self._forget_audits(now.plus(-policy.audit_retention))

            if policy.upload_retention and now >= self._collect_at:
                self._collect_at = now.plus(COLLECT_SECONDS)
                self._collect(now.plus(-policy.upload_retention))

    def _collect(self, stored_before: Instant) -> None:
        try:
            gone = self._collector.collect(stored_before)
        except StoreError as error:
            _log.error("uploads that nothing names could not be removed: %s", error)
            return
        if gone.artifacts:
            _log.info("%s uploads (%s bytes) were removed: nothing came to name them", gone.artifacts, gone.bytes)

    def _trim(self, archived_until: Instant) -> None:
        due = [entry for entry in self._archived if entry[0] <= archived_until]
        for entry in due:
            try:
                done = trim_group(self._write, entry[1])
            except StoreError as error:
                _log.error("%s could not be trimmed: %s", entry[1], error)
                continue
            self._archived.remove(entry)
            if done.events:
                _log.info("%s was trimmed through sequence %s", done.group_id, done.through_sequence)

    def _forget_audits(self, kept_from: Instant) -> None:
        while _has_audit_before(self._store, kept_from):
            try:
                self._write(lambda txn: forget_audits(txn, kept_from))
            except StoreError as error:
                _log.error("protected diagnostics could not be removed: %s", error)
                return

    def _write(self, change: Callable[[LmdbWriting], T]) -> T:
        return self._writer.call(change).result()


def _archival(row: Any) -> tuple[Instant, str] | None:
    group = row.group
    return (parse(group.archived_at), group.group_id) if group.state == "archived" else None


def _has_audit_before(store: LmdbStore, kept_from: Instant) -> bool:
    with store.read() as view:
        return any(parse(row.at) < kept_from for _, row in view.audit(0, 1))


def forget_audits(txn: LmdbWriting, kept_from: Instant) -> int:
    """Remove the oldest protected diagnostics up to the first one of ``kept_from`` or later; how many, at most a
    step's worth (R-7.4-04)."""
    gone = 0
    for number, row in txn.audit(0, AUDITS_PER_STEP):
        if parse(row.at) >= kept_from:
            break
        txn.forget_audit(number)
        gone += 1
    return gone
