"""The payload of every Event kind, typed.

Each payload states the new ``revision`` and ``state`` of its aggregate, so that a client always knows the
``expectedRevision`` to state next. Members of the aggregate that are gone are named in ``cleared``; every lease that
was opened, moved or closed stands in the Event. Events never carry ``null``: an absent member is ``UNSET``. The fold of
a Group's Events is the state of the Group, so whatever the authority must know again stands here.
"""

from __future__ import annotations

from msgspec import UNSET, UnsetType

from mwnode.protocol.commands import CORE, EXT, Binding, Checkpoint, FailurePolicy, Payload, Usage
from mwnode.protocol.documents import (
    Actor,
    Approval,
    Artifact,
    Budget,
    Classification,
    ContextPackage,
    Conversation,
    DelegationGrant,
    Evidence,
    ExtensionProfile,
    Group,
    JsonObject,
    Lease,
    LeaseType,
    Membership,
    Message,
    Mission,
    Offer,
    Owner,
    Progress,
    ResourceGrant,
    ScheduleEstimate,
    SelectionBasis,
    Submission,
    WorkContract,
    WorkItem,
)
from mwnode.protocol.scalars import Id, Operation, PositiveInteger, SafeInteger, Sha256, Text4000, Text10000, Timestamp


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


class MissionCreated(Fact):
    mission: Mission
    group: Group
    conversation: Conversation
    memberships: tuple[Membership, ...]
    coordinator_lease: Lease
    parent_event_id: Id | UnsetType = UNSET
    follow_up_to_mission_id: Id | UnsetType = UNSET
    revocation: Approval | UnsetType = UNSET


class MissionChildCreated(WorkFact, kw_only=True):
    parent_work_item_id: Id
    child_mission_id: Id
    child_group_id: Id
    failure_policy: FailurePolicy
    ownership_epoch: PositiveInteger
    owner: Owner | UnsetType = UNSET
    selection_basis: SelectionBasis | UnsetType = UNSET
    offers: tuple[Offer, ...] | UnsetType = UNSET
    work_item_state: str | UnsetType = UNSET
    work_item_revision: SafeInteger | UnsetType = UNSET


class CoordinatorAssigned(Fact):
    previous_coordinator_id: Id
    coordinator_agent_id: Id
    coordinator_epoch: PositiveInteger
    agent_card_version: PositiveInteger
    memberships: tuple[Membership, ...]
    coordinator_lease: Lease
    previous_coordinator_lease: Lease
    context_package_id: Id | UnsetType = UNSET
    context_package_hash: Sha256 | UnsetType = UNSET


class CoordinatorRenewed(Fact):
    coordinator_epoch: PositiveInteger
    coordinator_lease: Lease


class MissionSubmitted(Fact):
    mission_id: Id
    mission_revision: SafeInteger
    artifact_hashes: tuple[Sha256, ...]


class MissionApproved(Fact):
    approval: Approval
    coordinator_lease: Lease | UnsetType = UNSET


class MissionChangesRequested(Fact):
    approval: Approval
    feedback: Text10000 | UnsetType = UNSET


class MissionCancelled(Fact):
    reason: Text4000
    coordinator_lease: Lease | UnsetType = UNSET


class MissionTerminated(Fact):
    reason: Text4000
    evidence: tuple[Evidence, ...] | UnsetType = UNSET
    coordinator_lease: Lease | UnsetType = UNSET


class MembershipChanged(Fact):
    membership: Membership
    context_package_id: Id | UnsetType = UNSET
    context_package_hash: Sha256 | UnsetType = UNSET
    mission_revision: SafeInteger | UnsetType = UNSET


class MembershipEnded(Fact):
    membership: Membership
    reason: Text4000 | UnsetType = UNSET


class DelegationGranted(Fact):
    delegation_grant: DelegationGrant
    membership: Membership


class MessageCommitted(Fact):
    """``message.posted`` and its three amendments; ``revision`` and ``state`` are the Conversation's."""

    message: Message
    announcement: bool | UnsetType = UNSET


class WorkProposal(Payload):
    """A proposal: no WorkItem, no owner, no obligation (R-10.2-02)."""

    proposal_id: Id
    mission_id: Id
    group_id: Id
    proposed_by: Actor
    contract: WorkContract
    status: str
    created_at: Timestamp
    parent_work_item_id: Id | UnsetType = UNSET
    authorized_work_item_id: Id | UnsetType = UNSET


class WorkProposed(Fact):
    """``revision`` and ``state`` are the Mission's (decision D24)."""

    proposal: WorkProposal
    mission_revision: SafeInteger | UnsetType = UNSET


class WorkAuthorized(Fact):
    work_item: WorkItem
    conversation: Conversation
    mission_revision: SafeInteger
    proposal_id: Id | UnsetType = UNSET
    parent_work_item_id: Id | UnsetType = UNSET
    replaces_work_item_id: Id | UnsetType = UNSET
    delegation_grant_id: Id | UnsetType = UNSET
    delegation_depth: SafeInteger | UnsetType = UNSET
    emergency_reason: Text4000 | UnsetType = UNSET


class OfferCreated(Fact):
    """Carries the whole WorkItem, so that a late joiner has the contract it is asked to accept (decision A3)."""

    work_item: WorkItem
    cleared: tuple[str, ...] | UnsetType = UNSET
    ownership_lease: Lease | UnsetType = UNSET
    execution_lease: Lease | UnsetType = UNSET
    blocked_lease: Lease | UnsetType = UNSET
    context_package_id: Id | UnsetType = UNSET
    context_package_hash: Sha256 | UnsetType = UNSET
    delegation_grant_id: Id | UnsetType = UNSET
    emergency_reason: Text4000 | UnsetType = UNSET


class OfferAccepted(WorkFact, kw_only=True):
    owner: Owner
    offers: tuple[Offer, ...]
    membership: Membership | UnsetType = UNSET
    schedule_estimate: ScheduleEstimate | UnsetType = UNSET


class OfferDeclined(WorkFact, kw_only=True):
    offers: tuple[Offer, ...]
    detail: Text4000 | UnsetType = UNSET


class ContractRevised(WorkFact, kw_only=True):
    contract: WorkContract


class WorkStarted(WorkFact, kw_only=True):
    ownership_epoch: PositiveInteger


class WorkProgressed(WorkFact, kw_only=True):
    ownership_epoch: PositiveInteger
    progress: Progress | UnsetType = UNSET
    schedule_estimate: ScheduleEstimate | UnsetType = UNSET


class OwnershipLeaseRenewed(WorkFact, kw_only=True):
    ownership_epoch: PositiveInteger


class WorkCheckpointed(WorkFact, kw_only=True):
    checkpoint: Checkpoint
    progress: Progress | UnsetType = UNSET


class WorkBlocked(WorkFact, kw_only=True):
    reason: Text4000
    required_resolution: Text4000 | UnsetType = UNSET
    checkpoint: Checkpoint | UnsetType = UNSET
    child_mission_id: Id | UnsetType = UNSET


class WorkUnblocked(WorkFact, kw_only=True):
    resolution: Text4000 | UnsetType = UNSET


class ArtifactPublished(WorkFact, kw_only=True):
    artifact: Artifact


class WorkSubmitted(WorkFact, kw_only=True):
    submission: Submission
    evidence: tuple[Evidence, ...]


class ResultAccepted(WorkFact, kw_only=True):
    evidence: tuple[Evidence, ...] | UnsetType = UNSET
    child_mission_id: Id | UnsetType = UNSET
    child_approval_id: Id | UnsetType = UNSET
    submission: Submission | UnsetType = UNSET
    owner: Owner | UnsetType = UNSET


class WorkFailed(WorkFact, kw_only=True):
    reason: Text4000
    evidence: tuple[Evidence, ...]
    attempt: PositiveInteger


class WorkCancelled(WorkFact, kw_only=True):
    reason: Text4000


class ExecutionApproved(Fact):
    """``revision`` and ``state`` are the WorkItem's."""

    approval: Approval
    work_item_id: Id
    ownership_epoch: PositiveInteger
    operations: tuple[Operation, ...]
    resources: tuple[ResourceGrant, ...]
    expires_at: Timestamp
    budget: Budget | UnsetType = UNSET


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


class ExecutionLeaseRevoked(WorkFact, kw_only=True):
    execution_lease_id: Id
    reason: Text4000
    session_epoch: PositiveInteger


class ResourceUsageRecorded(WorkFact, kw_only=True):
    execution_lease_id: Id
    ownership_epoch: PositiveInteger
    usage_delta: Usage
    cumulative_usage: Usage
    remaining_budget: JsonObject
    offline_reconciliation: JsonObject | UnsetType = UNSET


class LeaseExpired(Fact):
    """The fact that a lease ran out; it moves no state by itself (decision A18)."""

    lease_id: Id
    lease_type: LeaseType
    work_item_id: Id | UnsetType = UNSET
    ownership_lease: Lease | UnsetType = UNSET
    execution_lease: Lease | UnsetType = UNSET
    blocked_lease: Lease | UnsetType = UNSET
    coordinator_lease: Lease | UnsetType = UNSET


class CoordinatorReconciled(Fact):
    context_package_id: Id
    context_package_hash: Sha256
    coordinator_epoch: PositiveInteger


class ConversationOpened(Fact):
    conversation: Conversation


class ContextPackagePublished(Fact):
    context_package: ContextPackage
    recipient: Actor | UnsetType = UNSET


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


class RootApprovalGranted(Fact):
    approval: Approval


class BudgetAmended(Fact):
    budget: Budget
    reason: Text4000


class ThresholdCrossed(Fact):
    """A soft limit was reached; work goes on (R-20-04)."""

    threshold: str
    limit: SafeInteger
    value: SafeInteger


class RegistryRecord(Payload):
    """What a Registry Command leaves behind; not an Event."""

    binding: Binding | UnsetType = UNSET
    profile: ExtensionProfile | UnsetType = UNSET


EVENT_PAYLOADS: dict[str, type[Payload]] = {
    "mission.created": MissionCreated,
    "mission.follow_up.created": MissionCreated,
    "mission.child.created": MissionChildCreated,
    "mission.coordinator.assigned": CoordinatorAssigned,
    "mission.coordinator.renewed": CoordinatorRenewed,
    "mission.submitted_for_approval": MissionSubmitted,
    "mission.approved": MissionApproved,
    "mission.changes_requested": MissionChangesRequested,
    "mission.cancelled": MissionCancelled,
    "mission.terminated": MissionTerminated,
    "membership.changed": MembershipChanged,
    "membership.ended": MembershipEnded,
    "membership.delegation.granted": DelegationGranted,
    "message.posted": MessageCommitted,
    "message.corrected": MessageCommitted,
    "message.retracted": MessageCommitted,
    "message.redacted": MessageCommitted,
    "work.proposed": WorkProposed,
    "work.authorized": WorkAuthorized,
    "work.offer.created": OfferCreated,
    "work.offer.accepted": OfferAccepted,
    "work.contract.revised": ContractRevised,
    "work.started": WorkStarted,
    "work.progressed": WorkProgressed,
    "work.checkpointed": WorkCheckpointed,
    "work.blocked": WorkBlocked,
    "work.unblocked": WorkUnblocked,
    "work.submitted": WorkSubmitted,
    "work.result.accepted": ResultAccepted,
    "work.failed": WorkFailed,
    "work.cancelled": WorkCancelled,
    "artifact.published": ArtifactPublished,
    "approval.execution.granted": ExecutionApproved,
    "policy.cooperation_override.granted": OverrideGranted,
    "group.snapshot.created": SnapshotCreated,
    "group.archived": GroupArchived,
    f"{EXT}.registry.agent_card_registered": AgentCardRegistered,
    f"{EXT}.identity.session_opened": SessionOpened,
    f"{EXT}.core.work_execution_lease_revoked": ExecutionLeaseRevoked,
    f"{EXT}.core.resource_usage_recorded": ResourceUsageRecorded,
    f"{CORE}.offer_declined": OfferDeclined,
    f"{CORE}.ownership_lease_renewed": OwnershipLeaseRenewed,
    f"{CORE}.lease_expired": LeaseExpired,
    f"{CORE}.coordinator_reconciled": CoordinatorReconciled,
    f"{CORE}.conversation_opened": ConversationOpened,
    f"{CORE}.context_package_published": ContextPackagePublished,
    f"{CORE}.artifact_forwarded": ArtifactForwarded,
    f"{CORE}.knowledge_published": KnowledgePublished,
    f"{CORE}.event_tombstoned": EventTombstoned,
    f"{CORE}.root_approval_granted": RootApprovalGranted,
    f"{CORE}.budget_amended": BudgetAmended,
    f"{CORE}.threshold_crossed": ThresholdCrossed,
}
"""The payload type of every Event kind that this node makes."""
