"""Which rows a batch will ask for, so that they are read in a few large calls."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from typing import Any, Final

from msgspec import UNSET

from mwnode.authority.request import Request
from mwnode.authority.state import (
    AGENTS,
    APPROVALS,
    ARTIFACTS,
    CONVERSATIONS,
    EVIDENCE,
    GROUPS,
    LEASES,
    MEMBERSHIPS,
    MESSAGES,
    MISSIONS,
    PROPOSALS,
    WORK_ITEMS,
    Table,
    membership_key,
)
from mwnode.protocol.documents import Command

Wanted = tuple[Table[Any], str]

_MEMBERS: Final[dict[str, Table[Any]]] = {
    "amendment_id": MESSAGES,
    "message_id": MESSAGES,
    "work_item_id": WORK_ITEMS,
    "conversation_id": CONVERSATIONS,
    "execution_lease_id": LEASES,
    "proposal_id": PROPOSALS,
    "mission_id": MISSIONS,
}
"""Payload members that name a row."""
_DOCUMENTS: Final[dict[str, tuple[Table[Any], str]]] = {
    "artifact": (ARTIFACTS, "artifact_id"),
    "approval": (APPROVALS, "approval_id"),
    "evidence": (EVIDENCE, "evidence_id"),
}
"""Payload members that are documents, or arrays of them, whose identifier must be new."""
_Finder = Callable[[Any], Iterable[Wanted]]
_finders: dict[type, _Finder] = {}


def _finder(payload: type) -> _Finder:
    """Finds the rows that a payload of that type names; made once for each type."""
    names = getattr(payload, "__struct_fields__", ())
    members = tuple((name, _MEMBERS[name]) for name in names if name in _MEMBERS)
    documents = tuple((name, *_DOCUMENTS[name]) for name in names if name in _DOCUMENTS)

    def find(value: Any) -> Iterable[Wanted]:
        found = [(table, key) for name, table in members if type(key := getattr(value, name)) is str]
        for name, table, identifier in documents:
            held = getattr(value, name)
            for document in held if isinstance(held, tuple) else (held,):
                key = getattr(document, identifier, None)
                if type(key) is str:
                    found.append((table, key))
        return found

    return find


def rows_wanted(requests: Iterable[Request]) -> set[Wanted]:
    """Rows that deciding will probably read; those that are missing here are read alone."""
    wanted: set[Wanted] = set()
    seen: set[tuple[str, object]] = set()
    for request in requests:
        command = request.verified.document
        assert isinstance(command, Command)
        actor_and_group = (command.actor.id, command.group_id)
        if actor_and_group not in seen:
            seen.add(actor_and_group)
            wanted.add((AGENTS, command.actor.id))
            if command.group_id is not UNSET:
                wanted.add((GROUPS, command.group_id))
                wanted.add((MEMBERSHIPS, membership_key(command.group_id, command.actor)))
        kind = type(request.payload)
        finder = _finders.get(kind)
        if finder is None:
            finder = _finders[kind] = _finder(kind)
        wanted.update(finder(request.payload))
    return wanted
