"""The transient Presence Record."""

from __future__ import annotations

from typing import Literal

from msgspec import UNSET, UnsetType

from mwnode.protocol.documents.base import Document
from mwnode.protocol.documents.common import CapabilityRef
from mwnode.protocol.scalars import Id, PositiveInteger, SafeInteger, Timestamp


class Capacity(Document):
    max_slots: PositiveInteger
    active_slots: SafeInteger
    available_slots: SafeInteger
    queued_items: SafeInteger


class CapabilityAvailability(Document):
    capability: CapabilityRef
    status: Literal["available", "degraded", "unavailable"]


class PresenceRecord(Document):
    agent_id: Id
    session_epoch: PositiveInteger
    status: Literal["online", "busy", "away", "draining", "offline"]
    capacity: Capacity
    capability_availability: tuple[CapabilityAvailability, ...]
    last_heartbeat: Timestamp
    expires_at: Timestamp
    estimated_response_ms: SafeInteger | UnsetType = UNSET
