"""What deciding sees while a batch fills: the transaction, and in front of it what the batch decided and did not write
yet."""

from __future__ import annotations

from collections.abc import Callable, Mapping

from mwnode.authority.request import Decision
from mwnode.authority.state import R, Row, Table
from mwnode.protocol.documents import PolicyLogEntry
from mwnode.store.environment import LmdbWriting


class BatchView:
    """A ``View`` over a transaction whose newest Events still wait to be signed.

    Rows, listings and due times stand in the transaction at once. Heads and times of logs are kept here; the few
    questions that need the Events themselves, receipts or whole tables have them written first.
    """

    def __init__(self, txn: LmdbWriting, settle: Callable[[], None]) -> None:
        self.txn = txn
        self.settle = settle
        self.heads: dict[str, tuple[int, str]] = {}
        """Sequence and time of the newest Event of every Group for which some wait."""
        self.get = txn.get

    @property
    def known_rows(self) -> Mapping[tuple[int, str], Row | None]:
        """Rows that were read or written in this transaction."""
        return self.txn.touched

    def advance(self, decision: Decision) -> None:
        """Count what was decided."""
        for fact in decision.facts:
            if fact.group_id is not None and fact.sequence is not None:
                self.heads[fact.group_id] = (fact.sequence, fact.occurred_at)

    def in_group(self, table: Table[R], group_id: str) -> list[R]:
        return self.txn.in_group(table, group_id)

    def all(self, table: Table[R]) -> list[R]:
        self.settle()
        return self.txn.all(table)

    def head(self, group_id: str) -> int:
        waiting = self.heads.get(group_id)
        return self.txn.head(group_id) if waiting is None else waiting[0]

    def last_occurred_at(self, group_id: str) -> str | None:
        waiting = self.heads.get(group_id)
        return self.txn.last_occurred_at(group_id) if waiting is None else waiting[1]

    def accepted(self, actor_id: str, action_id: str) -> bool:
        self.settle()
        return self.txn.accepted(actor_id, action_id)

    def has_content(self, content_hash: str) -> int | None:
        return self.txn.has_content(content_hash)

    def event_ids(self, group_id: str, after: int, through: int) -> list[str]:
        self.settle()
        return self.txn.event_ids(group_id, after, through)

    def policy_log(self, group_id: str | None, after: int = 0, limit: int = 1000) -> list[PolicyLogEntry]:
        return self.txn.policy_log(group_id, after, limit)
