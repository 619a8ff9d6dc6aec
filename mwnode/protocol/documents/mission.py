"""Mission, Group and Membership."""

from __future__ import annotations

from typing import Literal

from msgspec import UNSET, UnsetType

from mwnode.protocol.documents.base import Document, require_some, require_unique
from mwnode.protocol.documents.common import AcceptanceCriterion, Actor, AgentActor, Budget, CapabilityRef, Extensions
from mwnode.protocol.scalars import Id, PositiveInteger, SafeInteger, Scope, Semver, Text10000, Timestamp


class MissionCoordinator(Document):
    agent_id: Id
    agent_card_version: PositiveInteger
    coordinator_epoch: PositiveInteger
    lease_id: Id


class ApprovalPolicy(Document):
    final_human_approval: bool
    high_risk_execution_approval: bool
    policy_version: Semver | UnsetType = UNSET


class MissionParent(Document):
    mission_id: Id
    work_item_id: Id
    depth: PositiveInteger


class PinnedProfile(Document):
    profile_uri: Id
    major_version: SafeInteger


MissionStateName = Literal["active", "awaiting_approval", "approved", "failed", "cancelled"]


class Mission(Document):
    mission_id: Id
    group_id: Id
    revision: SafeInteger
    objective: Text10000
    definition_of_done: tuple[AcceptanceCriterion, ...]
    mission_owner: Actor
    coordinator: MissionCoordinator
    state: MissionStateName
    budget: Budget
    deadline: Timestamp
    approval_policy: ApprovalPolicy
    created_at: Timestamp
    parent: MissionParent | UnsetType = UNSET
    follow_up_to_mission_id: Id | UnsetType = UNSET
    pinned_profiles: tuple[PinnedProfile, ...] | UnsetType = UNSET
    extensions: Extensions | UnsetType = UNSET

    def __post_init__(self) -> None:
        require_some("definitionOfDone", self.definition_of_done)
        if self.pinned_profiles is not UNSET:
            require_unique("pinnedProfiles", self.pinned_profiles)
        if self.parent is UNSET:
            if self.mission_owner.type != "human" or not self.approval_policy.final_human_approval:
                raise ValueError("a root Mission has a human missionOwner and finalHumanApproval true")
        elif self.mission_owner.type != "agent":
            raise ValueError("a child Mission's missionOwner is an agent")


class Group(Document):
    group_id: Id
    mission_id: Id
    state: Literal["active", "archived"]
    main_conversation_id: Id
    created_at: Timestamp
    archived_at: Timestamp | UnsetType = UNSET
    archive_snapshot_id: Id | UnsetType = UNSET
    extensions: Extensions | UnsetType = UNSET

    def __post_init__(self) -> None:
        ends = (self.archived_at, self.archive_snapshot_id)
        if self.state == "archived" and any(end is UNSET for end in ends):
            raise ValueError("an archived Group carries archivedAt and archiveSnapshotId")
        if self.state == "active" and any(end is not UNSET for end in ends):
            raise ValueError("an active Group carries neither archivedAt nor archiveSnapshotId")


Role = Literal["mission_owner", "coordinator", "worker", "reviewer", "observer", "work_delegate"]


class DelegationGrant(Document):
    grant_id: Id
    grantee_agent_id: Id
    mission_id: Id
    group_id: Id
    target_work_item_id: Id
    allowed_capabilities: tuple[CapabilityRef, ...]
    budget: Budget
    max_descendant_depth: SafeInteger
    grantee_membership_epoch: PositiveInteger
    coordinator_epoch: PositiveInteger
    granted_by: AgentActor
    granted_at: Timestamp
    expires_at: Timestamp

    def __post_init__(self) -> None:
        require_some("allowedCapabilities", self.allowed_capabilities)
        require_unique("allowedCapabilities", self.allowed_capabilities)
        require_full_budget(self.budget)


def require_full_budget(budget: Budget) -> None:
    """Refuse a Delegation Grant's budget that leaves out a ceiling or the currency (R-9.1-11)."""
    for name in budget.__struct_fields__:
        if getattr(budget, name) is UNSET:
            raise ValueError("a Delegation Grant's budget states the currency and all six ceilings")


class Membership(Document):
    membership_id: Id
    mission_id: Id
    group_id: Id
    member: Actor
    role: Role
    state: Literal["provisional", "active", "ended"]
    membership_epoch: PositiveInteger
    scopes: tuple[Scope, ...]
    visibility_start_sequence: SafeInteger
    granted_at: Timestamp
    delegation_grants: tuple[DelegationGrant, ...] | UnsetType = UNSET
    context_package_id: Id | UnsetType = UNSET
    provisional_expires_at: Timestamp | UnsetType = UNSET
    activated_at: Timestamp | UnsetType = UNSET
    ended_at: Timestamp | UnsetType = UNSET
    extensions: Extensions | UnsetType = UNSET

    def __post_init__(self) -> None:
        require_some("scopes", self.scopes)
        require_unique("scopes", self.scopes)
        if self.delegation_grants is not UNSET:
            require_unique("delegationGrants", self.delegation_grants)
        if self.state == "provisional" and UNSET in (self.provisional_expires_at, self.context_package_id):
            raise ValueError("a provisional Membership carries provisionalExpiresAt and contextPackageId")
        if self.state == "active" and self.activated_at is UNSET:
            raise ValueError("an active Membership carries activatedAt")
        if self.state == "ended" and self.ended_at is UNSET:
            raise ValueError("an ended Membership carries endedAt")
