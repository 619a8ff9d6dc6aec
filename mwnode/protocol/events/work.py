"""Payloads of the Events about WorkItems."""

from __future__ import annotations

from msgspec import UNSET, UnsetType

from mwnode.protocol.commands import Checkpoint, Payload, Usage
from mwnode.protocol.documents import (
    Actor,
    Approval,
    Artifact,
    Budget,
    Conversation,
    Evidence,
    JsonObject,
    Lease,
    Membership,
    Offer,
    Owner,
    Progress,
    ResourceGrant,
    ScheduleEstimate,
    Submission,
    WorkContract,
    WorkItem,
)
from mwnode.protocol.events.base import Fact, WorkFact
from mwnode.protocol.scalars import Id, Operation, PositiveInteger, SafeInteger, Sha256, Text4000, Timestamp


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
