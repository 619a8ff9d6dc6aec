"""What a Worker knows of one Group: its place in it, and the WorkItems that it sees there."""

from __future__ import annotations

from msgspec import Struct, field

from mwnode.client.fold import WorkView


class GroupState(Struct):
    """One Group as this Worker sees it."""

    group_id: str
    mission_id: str | None = None
    scopes: frozenset[str] = frozenset()
    membership_epoch: int = 1
    live: bool = False
    """Whether everything up to the present was replayed: before that nothing is decided."""
    member: bool = True
    package_id: str | None = None
    """The Context Package of the Agent's own Membership."""
    priority: str = "usual"
    """The Organization's priority class of the Mission."""
    views: dict[str, WorkView] = field(default_factory=dict)
    dirty: set[str] = field(default_factory=set)
    """WorkItems that changed since the shell last kept them."""
