"""The two envelopes: a Command asks, an Event tells."""

from __future__ import annotations

from typing import ClassVar, Literal

from msgspec import UNSET, UnsetType

from mwnode.protocol.documents.base import Document, JsonObject
from mwnode.protocol.documents.common import Actor, Extensions, Signature
from mwnode.protocol.documents.kinds import (
    COORDINATOR_COMMAND_KINDS,
    CORE_COMMAND_KINDS,
    CORE_EVENT_KINDS,
    GENESIS_COMMAND_KINDS,
    ORGANIZATION_COMMAND_KINDS,
    ORGANIZATION_EVENT_KINDS,
    is_extension_kind,
)
from mwnode.protocol.scalars import Id, PositiveInteger, ProtocolVersion, SafeInteger, Sha256, Timestamp


class Command(Document):
    """A signed request for one transition. Its conditional rules are in :mod:`mwnode.protocol.commands`."""

    protected_time: ClassVar[str] = "issued_at"

    protocol_version: ProtocolVersion
    action_id: Id
    actor: Actor
    kind: str
    correlation_id: Id
    issued_at: Timestamp
    payload: JsonObject
    signature: Signature
    session_epoch: PositiveInteger | UnsetType = UNSET
    membership_epoch: PositiveInteger | UnsetType = UNSET
    coordinator_epoch: PositiveInteger | UnsetType = UNSET
    group_id: Id | UnsetType = UNSET
    conversation_id: Id | UnsetType = UNSET
    work_item_id: Id | UnsetType = UNSET
    cooperation_override_grant_id: Id | UnsetType = UNSET
    expected_revision: SafeInteger | UnsetType = UNSET
    caused_by_event_id: Id | UnsetType = UNSET
    extensions: Extensions | UnsetType = UNSET

    def __post_init__(self) -> None:
        from_agent = self.actor.type == "agent"
        core = self.kind in CORE_COMMAND_KINDS
        if not core and not is_extension_kind(self.kind):
            raise ValueError("kind is neither a core Command kind nor an extension kind")
        if core and self.group_id is UNSET:
            raise ValueError("a core Command names its groupId")
        if from_agent:
            if self.group_id is UNSET or self.session_epoch is UNSET or self.membership_epoch is UNSET:
                raise ValueError("an Agent's Command carries groupId, sessionEpoch and membershipEpoch")
        elif self.session_epoch is not UNSET:
            raise ValueError("only an Agent's Command carries sessionEpoch")
        epochs = self.membership_epoch is not UNSET or self.coordinator_epoch is not UNSET
        if self.actor.type == "service" and epochs:
            raise ValueError("a service's Command carries neither membershipEpoch nor coordinatorEpoch")
        if self.kind in GENESIS_COMMAND_KINDS:
            if self.actor.type != "human" or epochs:
                raise ValueError(f"{self.kind} comes from a human and carries no epoch")
        elif self.actor.type == "human" and (self.group_id is UNSET or self.membership_epoch is UNSET):
            raise ValueError("a human's Command carries groupId and membershipEpoch")
        if self.kind in ORGANIZATION_COMMAND_KINDS and (
            self.actor.type != "service" or self.group_id is not UNSET or self.session_epoch is not UNSET or epochs
        ):
            raise ValueError(f"{self.kind} comes from a service and carries neither groupId nor epochs")
        if self.kind in COORDINATOR_COMMAND_KINDS and (not from_agent or self.coordinator_epoch is UNSET):
            raise ValueError(f"{self.kind} comes from an Agent and carries coordinatorEpoch")
        if self.kind == "mission.terminate" and (
            self.actor.type == "human" or (from_agent and self.coordinator_epoch is UNSET)
        ):
            raise ValueError("mission.terminate comes from a service, or from an Agent with coordinatorEpoch")


class Cause(Document):
    type: Literal["command", "event", "timer", "policy"]
    id: Id


class Event(Document):
    """One accepted fact, signed by the Group Authority."""

    protected_time: ClassVar[str] = "occurred_at"

    protocol_version: ProtocolVersion
    event_id: Id
    kind: str
    actor: Actor
    cause: Cause
    correlation_id: Id
    occurred_at: Timestamp
    payload: JsonObject
    accepted_by: Actor
    signature: Signature
    group_id: Id | UnsetType = UNSET
    sequence: PositiveInteger | UnsetType = UNSET
    aggregate_revision: SafeInteger | UnsetType = UNSET
    conversation_id: Id | UnsetType = UNSET
    work_item_id: Id | UnsetType = UNSET
    command_hash: Sha256 | UnsetType = UNSET
    extensions: Extensions | UnsetType = UNSET

    def __post_init__(self) -> None:
        if self.kind not in CORE_EVENT_KINDS and not is_extension_kind(self.kind):
            raise ValueError("kind is neither a core Event kind nor an extension kind")
        places = (self.group_id, self.sequence, self.aggregate_revision)
        if self.kind in ORGANIZATION_EVENT_KINDS:
            if self.actor.type != "service" or any(place is not UNSET for place in places):
                raise ValueError(f"{self.kind} has a service actor and no place in a Group")
        elif any(place is UNSET for place in places):
            raise ValueError("a Group Event carries groupId, sequence and aggregateRevision")
