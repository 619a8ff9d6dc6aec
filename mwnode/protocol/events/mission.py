"""Payloads of the Events about a Mission as a whole, its Coordinator and its leases."""

from __future__ import annotations

from msgspec import UNSET, UnsetType

from mwnode.protocol.commands import FailurePolicy, Priority
from mwnode.protocol.documents import (
    Approval,
    Budget,
    Conversation,
    Evidence,
    Group,
    Lease,
    LeaseType,
    Membership,
    Mission,
    Offer,
    Owner,
    SelectionBasis,
)
from mwnode.protocol.events.base import Fact, WorkFact
from mwnode.protocol.scalars import Id, PositiveInteger, SafeInteger, Sha256, Text4000, Text10000


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


class RootApprovalGranted(Fact):
    approval: Approval


class BudgetAmended(Fact):
    budget: Budget
    reason: Text4000


class MissionPrioritized(Fact):
    priority: Priority
    reason: Text4000


class ThresholdCrossed(Fact):
    """A soft limit was reached; work goes on (R-20-04)."""

    threshold: str
    limit: SafeInteger
    value: SafeInteger
