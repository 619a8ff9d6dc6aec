"""The fenced lease, in its four kinds."""

from __future__ import annotations

from typing import Literal

from msgspec import UNSET, UnsetType

from mwnode.protocol.documents.base import Document
from mwnode.protocol.scalars import ClosureReason, Id, PositiveInteger, SafeInteger, Timestamp

LeaseType = Literal["coordinator", "ownership", "execution", "blocked"]


class Lease(Document):
    """A fenced right for a bounded time, held by one Agent under one Session Epoch."""

    lease_id: Id
    lease_type: LeaseType
    mission_id: Id
    group_id: Id
    holder_agent_id: Id
    session_epoch: PositiveInteger
    issued_at: Timestamp
    starts_at: Timestamp
    expires_at: Timestamp
    state: Literal["active", "expired", "revoked", "released"]
    renewal_count: SafeInteger
    work_item_id: Id | UnsetType = UNSET
    coordinator_epoch: PositiveInteger | UnsetType = UNSET
    ownership_epoch: PositiveInteger | UnsetType = UNSET
    start_by: Timestamp | UnsetType = UNSET
    grace_expires_at: Timestamp | UnsetType = UNSET
    last_renewed_at: Timestamp | UnsetType = UNSET
    closed_at: Timestamp | UnsetType = UNSET
    closure_reason: ClosureReason | UnsetType = UNSET

    def __post_init__(self) -> None:
        if self.lease_type == "coordinator":
            if self.coordinator_epoch is UNSET:
                raise ValueError("a coordinator lease carries coordinatorEpoch")
        elif self.work_item_id is UNSET or self.ownership_epoch is UNSET:
            raise ValueError("a lease on work carries workItemId and ownershipEpoch")
        if self.lease_type == "ownership" and self.start_by is UNSET:
            raise ValueError("an ownership lease carries startBy")
        if self.lease_type == "execution" and any(
            value is not UNSET for value in (self.coordinator_epoch, self.start_by, self.grace_expires_at)
        ):
            raise ValueError("an execution lease carries neither coordinatorEpoch, startBy nor graceExpiresAt")
        if (self.renewal_count > 0) != (self.last_renewed_at is not UNSET):
            raise ValueError("lastRenewedAt stands exactly in leases that were renewed")
        closed = (self.closed_at, self.closure_reason)
        if self.state == "active" and any(value is not UNSET for value in closed):
            raise ValueError("an active lease carries neither closedAt nor closureReason")
        if self.state != "active" and any(value is UNSET for value in closed):
            raise ValueError("a closed lease carries closedAt and closureReason")
