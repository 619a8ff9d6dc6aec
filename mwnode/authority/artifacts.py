"""artifacts."""

from collections.abc import Callable

from mwnode.authority.case import Case
from mwnode.authority.request import EventFact
from mwnode.authority.view import Overlay

DECIDERS: dict[str, Callable[[Case], None]] = {}
EVOLVERS: dict[str, Callable[[Overlay, EventFact], None]] = {}
