"""The acts of the demonstration, in order. Each is one module: what it does, and which checks it makes."""

from __future__ import annotations

from collections.abc import Callable

from msgspec import Struct

from mwnode.demo.stage import Stage


class Act(Struct, frozen=True):
    """One part of the demonstration, which needs nothing but the founding act."""

    name: str
    about: str
    play: Callable[[Stage], None]
    fault: bool = False
    """Whether ``--fault`` may name it."""
