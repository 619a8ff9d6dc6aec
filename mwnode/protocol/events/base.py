"""What payloads of Events share."""

from __future__ import annotations

from msgspec import UNSET, UnsetType

from mwnode.protocol.commands import Payload
from mwnode.protocol.documents import Lease
from mwnode.protocol.scalars import Id, SafeInteger


class Fact(Payload):
    """Base of every Group Event's payload."""

    revision: SafeInteger
    state: str


class WorkFact(Fact):
    """Base of the Events about one WorkItem."""

    work_item_id: Id
    mission_revision: SafeInteger | UnsetType = UNSET
    cleared: tuple[str, ...] | UnsetType = UNSET
    ownership_lease: Lease | UnsetType = UNSET
    execution_lease: Lease | UnsetType = UNSET
    blocked_lease: Lease | UnsetType = UNSET
