"""Read access to the authority's state, and the overlay in which one Command's effects gather."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, Final, Protocol

from mwnode.authority.state import R, Row, Table
from mwnode.protocol.documents import PolicyLogEntry

_NOTHING: Final[Mapping[tuple[int, str], Row | None]] = {}
_UNKNOWN: Final = object()


class View(Protocol):
    """What ``decide`` may read. A store's transaction is one; so is the overlay over another view."""

    def get(self, table: Table[R], key: str) -> R | None:
        """The row of that key, or ``None``."""

    def in_group(self, table: Table[R], group_id: str) -> list[R]:
        """All rows of a table that is listed by Group, sorted by key."""

    def all(self, table: Table[R]) -> list[R]:
        """All rows of a table, sorted by key. Only for views and start-up: costs the whole table."""

    def head(self, group_id: str) -> int:
        """Sequence of the Group's newest Event, 0 when there is none."""

    def last_occurred_at(self, group_id: str) -> str | None:
        """Time of the Group's newest Event: the next one never carries an earlier time (decision A44)."""

    def accepted(self, actor_id: str, action_id: str) -> bool:
        """Whether a Command with this Action ID of this actor was accepted."""

    def has_content(self, content_hash: str) -> int | None:
        """Size in bytes of the stored Artifact bytes of that hash, or ``None``."""

    def event_ids(self, group_id: str, after: int, through: int) -> list[str]:
        """IDs of the Group's Events with ``after < sequence <= through``, in order."""

    def policy_log(self, group_id: str | None, after: int = 0, limit: int = 1000) -> list[PolicyLogEntry]:
        """Entries of one Group's policy log, or the Organization's (``None``), in order of writing."""


class Overlay:
    """Changes over a base view; nothing reaches the base until a writer takes ``changes``.

    Dropping the overlay undoes everything: a refused Command cannot leave half a state.
    """

    def __init__(self, base: View) -> None:
        self.base = base
        self._known: Mapping[tuple[int, str], Row | None] = getattr(base, "known_rows", _NOTHING)
        """Rows that the base has at hand, by table code and key; asked first, because a Command asks a dozen times."""
        self.changes: dict[tuple[int, str], tuple[Table[Any], Row]] = {}
        self.heads: dict[str, int] = {}
        self.times: dict[str, str] = {}
        self.new_event_ids: dict[str, list[str]] = {}

    def get(self, table: Table[R], key: str) -> R | None:
        place = (table.code, key)
        changed = self.changes.get(place)
        if changed is not None:
            row: R = changed[1]  # type: ignore[assignment]  # put() stores each row under its own table
            return row
        known: Any = self._known.get(place, _UNKNOWN)
        return self.base.get(table, key) if known is _UNKNOWN else known

    def put(self, table: Table[R], row: R) -> None:
        """Set the row of its key."""
        self.changes[(table.code, table.key(row))] = (table, row)

    def in_group(self, table: Table[R], group_id: str) -> list[R]:
        rows = {table.key(row): row for row in self.base.in_group(table, group_id)}
        of_group = table.group
        for (code, key), (_, row) in self.changes.items():
            if code == table.code and of_group is not None and of_group(row) == group_id:  # type: ignore[arg-type]  # as in get()
                rows[key] = row  # type: ignore[assignment]  # as in get()
        return [rows[key] for key in sorted(rows)]

    def all(self, table: Table[R]) -> list[R]:
        rows = {table.key(row): row for row in self.base.all(table)}
        for (code, key), (_, row) in self.changes.items():
            if code == table.code:
                rows[key] = row  # type: ignore[assignment]  # as in get()
        return [rows[key] for key in sorted(rows)]

    def head(self, group_id: str) -> int:
        head = self.heads.get(group_id)
        return self.base.head(group_id) if head is None else head

    def last_occurred_at(self, group_id: str) -> str | None:
        return self.times.get(group_id) or self.base.last_occurred_at(group_id)

    def accepted(self, actor_id: str, action_id: str) -> bool:
        return self.base.accepted(actor_id, action_id)

    def has_content(self, content_hash: str) -> int | None:
        return self.base.has_content(content_hash)

    def event_ids(self, group_id: str, after: int, through: int) -> list[str]:
        new = self.new_event_ids.get(group_id, [])
        stored = self.head(group_id) - len(new)
        found = self.base.event_ids(group_id, after, min(through, stored)) if after < stored else []
        return found + new[max(0, after - stored) : max(0, through - stored)]

    def policy_log(self, group_id: str | None, after: int = 0, limit: int = 1000) -> list[PolicyLogEntry]:
        return self.base.policy_log(group_id, after, limit)

    def advance(self, group_id: str, event_id: str, occurred_at: str) -> int:
        """Take the Group's next sequence for an Event of that time."""
        sequence = self.head(group_id) + 1
        self.times[group_id] = occurred_at
        self.heads[group_id] = sequence
        self.new_event_ids.setdefault(group_id, []).append(event_id)
        return sequence
