"""WorkItems: proposed, authorized, revised, cancelled. Their rows, fences and ``end_item`` are in ``items.py``."""

from __future__ import annotations

from collections.abc import Callable

from mwnode.authority.case import Case
from mwnode.authority.items import end_item
from mwnode.authority.request import EventFact
from mwnode.authority.view import Overlay

__all__ = ["DECIDERS", "EVOLVERS", "end_item"]

DECIDERS: dict[str, Callable[[Case], None]] = {}
EVOLVERS: dict[str, Callable[[Overlay, EventFact], None]] = {}
