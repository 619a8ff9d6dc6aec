"""Payloads of the Events about the Organization, archives and what crosses Groups."""

from __future__ import annotations

from msgspec import UNSET, UnsetType

from mwnode.protocol.commands import Binding, Payload
from mwnode.protocol.documents import Actor, Classification, ExtensionProfile
from mwnode.protocol.events.base import Fact
from mwnode.protocol.scalars import Id, PositiveInteger, Sha256, Text4000, Timestamp


class CooperationOverrideGrant(Payload):
    """Passes one policy limit once, for one Command (R-20-08)."""

    grant_id: Id
    mission_id: Id
    group_id: Id
    policy_name: str
    beneficiary: Actor
    target_command_kind: str
    target_action_id: Id
    approver: Actor
    reason: Text4000
    granted_at: Timestamp
    expires_at: Timestamp
    consumed_at: Timestamp | UnsetType = UNSET
    consumed_event_id: Id | UnsetType = UNSET


class OverrideGranted(Fact):
    cooperation_override_grant: CooperationOverrideGrant


class SnapshotCreated(Fact):
    snapshot_id: Id
    through_sequence: PositiveInteger
    state_hash: Sha256
    snapshot_hash: Sha256 | UnsetType = UNSET


class GroupArchived(Fact):
    snapshot_id: Id
    archived_at: Timestamp


class AgentCardRegistered(Payload):
    """Organization-scoped: no revision, no state."""

    agent_id: Id
    card_version: PositiveInteger


class SessionOpened(Payload):
    """Organization-scoped: no revision, no state."""

    agent_id: Id
    session_epoch: PositiveInteger


class ArtifactForwarded(Fact):
    artifact_hash: Sha256
    from_group_id: Id
    to_group_id: Id
    reason: Text4000
    classification: Classification


class KnowledgePublished(Fact):
    artifact_hash: Sha256
    classification: Classification
    reason: Text4000


class EventTombstoned(Fact):
    event_id: Id
    sequence: PositiveInteger
    policy_reason: Text4000


class RegistryRecord(Payload):
    """What a Registry Command leaves behind; not an Event."""

    binding: Binding | UnsetType = UNSET
    profile: ExtensionProfile | UnsetType = UNSET
