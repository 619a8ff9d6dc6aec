"""Payloads of the Commands about the Organization: policy, Registry, archive and what crosses Groups."""

from __future__ import annotations

from typing import Literal

from msgspec import UNSET, UnsetType

from mwnode.protocol.commands.base import Payload
from mwnode.protocol.documents import Actor, AgentCard, Classification, ExtensionProfile, GroupSnapshot
from mwnode.protocol.scalars import EventKindName, Id, PositiveInteger, Sha256, Text200, Text4000, Timestamp

PolicyName = Literal["message_rate", "proposal_rate", "delegation_depth", "queued_work_items", "active_work_items"]


class PolicyGrantCooperationOverride(Payload):
    grant_id: Id
    policy_name: PolicyName
    beneficiary: Actor
    target_command_kind: EventKindName
    target_action_id: Id
    reason: Text4000
    expires_at: Timestamp


class AgentCardRegister(Payload):
    card: AgentCard


class SessionOpen(Payload):
    agent_id: Id


class GroupArchive(Payload):
    snapshot: GroupSnapshot | None = None
    snapshot_hash: Sha256 | None = None

    def __post_init__(self) -> None:
        if (self.snapshot is None) == (self.snapshot_hash is None):
            raise ValueError("exactly one of snapshot and snapshotHash is given")


class ArtifactForward(Payload):
    artifact_hash: Sha256
    to_group_id: Id
    reason: Text4000


class KnowledgePublish(Payload):
    artifact_hash: Sha256
    classification: Classification
    reason: Text4000


class ProfileRegister(Payload):
    profile: ExtensionProfile


class ValidityChange(Payload):
    """One later statement about a key's validity; boundaries only ever move earlier (R-6.4-33)."""

    sequence: PositiveInteger
    recorded_at: Timestamp
    valid_until: Timestamp | UnsetType = UNSET
    revoked_at: Timestamp | UnsetType = UNSET


class Binding(Payload):
    """A key bound to one Principal, in the form that Registry evidence has."""

    key_id: Id
    principal: Actor
    algorithm: Literal["Ed25519"]
    public_key: str
    valid_from: Timestamp
    validity_history: tuple[ValidityChange, ...] = ()


class KeyBind(Payload):
    binding: Binding
    display_name: Text200 | None = None


class KeyRestrict(Payload):
    key_id: Id
    valid_until: Timestamp | None = None
    revoked_at: Timestamp | None = None

    def __post_init__(self) -> None:
        if (self.valid_until is None) == (self.revoked_at is None):
            raise ValueError("exactly one of validUntil and revokedAt is given")


class EventTombstone(Payload):
    event_id: Id
    policy_reason: Text4000
