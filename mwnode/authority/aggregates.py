"""Every aggregate's handlers in one table of Command kinds and one of Event kinds.

Checked when imported: no kind has two owners, and none that the vocabulary names is left without one.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import TypeVar

from mwnode.authority import (
    archival,
    artifacts,
    cooperation,
    coordination,
    delegation,
    endings,
    execution,
    founding,
    lineage,
    membership,
    messages,
    mission,
    offers,
    organization,
    packages,
    results,
    work_item,
)
from mwnode.authority.case import Case
from mwnode.authority.request import EventFact
from mwnode.authority.standing import MAY_SEND
from mwnode.authority.view import Overlay
from mwnode.protocol.commands import PAYLOADS
from mwnode.protocol.documents import GENESIS_COMMAND_KINDS
from mwnode.protocol.events import EVENT_PAYLOADS

T = TypeVar("T")
Decider = Callable[[Case], None]
Evolver = Callable[[Overlay, EventFact], None]

_AGGREGATES = (
    archival,
    artifacts,
    cooperation,
    coordination,
    delegation,
    endings,
    execution,
    founding,
    lineage,
    membership,
    messages,
    mission,
    offers,
    organization,
    packages,
    results,
    work_item,
)


def _merged(tables: list[dict[str, T]], expected: set[str], what: str) -> dict[str, T]:
    merged: dict[str, T] = {}
    for table in tables:
        if twice := merged.keys() & table.keys():
            raise RuntimeError(f"two modules own {what} {sorted(twice)}")
        merged.update(table)
    if differing := merged.keys() ^ expected:
        raise RuntimeError(f"{what} without an owner, or unknown: {sorted(differing)}")
    return merged


DECIDERS: dict[str, Decider] = _merged([each.DECIDERS for each in _AGGREGATES], set(PAYLOADS), "Command kinds")
"""Who decides each Command kind."""
EVOLVERS: dict[str, Evolver] = _merged([each.EVOLVERS for each in _AGGREGATES], set(EVENT_PAYLOADS), "Event kinds")
"""Who folds each Event kind."""
if differing := (MAY_SEND.keys() | GENESIS_COMMAND_KINDS) ^ PAYLOADS.keys():
    raise RuntimeError(f"Command kinds that nobody or anybody may send: {sorted(differing)}")
