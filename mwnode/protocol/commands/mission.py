"""Payloads of the Commands about a Mission as a whole."""

from __future__ import annotations

from typing import Literal

from mwnode.protocol.commands.base import Payload
from mwnode.protocol.documents import (
    AcceptanceCriterion,
    Approval,
    ApprovalPolicy,
    Budget,
    ContextPackage,
    Evidence,
    PinnedProfile,
    ResourceGrant,
    require_some,
    require_unique,
)
from mwnode.protocol.scalars import Id, SafeInteger, Seconds, Sha256, Text500, Text4000, Text10000, Timestamp

Priority = Literal["low", "usual", "high"]
"""The Organization's priority class of a Mission (R-11.1-08)."""
FailurePolicy = Literal["block_parent_work_item", "fail_parent_work_item", "fail_parent_mission"]


class _NewMission(Payload):
    mission_id: Id
    group_id: Id
    objective: Text10000
    definition_of_done: tuple[AcceptanceCriterion, ...]
    budget: Budget
    deadline: Timestamp
    approval_policy: ApprovalPolicy
    coordinator_agent_id: Id | None = None
    coordinator_id: Id | None = None
    title: Text500 | None = None
    permissions: tuple[ResourceGrant, ...] = ()
    pinned_profiles: tuple[PinnedProfile, ...] | None = None
    coordinator_lease_seconds: Seconds = 300

    def __post_init__(self) -> None:
        require_some("definitionOfDone", self.definition_of_done)
        if (self.coordinator_agent_id is None) == (self.coordinator_id is None):
            raise ValueError("exactly one of coordinatorAgentId and its alias coordinatorId names the Coordinator")

    @property
    def coordinator(self) -> str:
        """The Agent that shall coordinate the Mission."""
        return self.coordinator_agent_id or self.coordinator_id or ""


class MissionCreate(_NewMission):
    follow_up_of_mission_id: None = None


class MissionCreateFollowUp(_NewMission, kw_only=True):
    follow_up_to_mission_id: Id
    revocation: Approval | None = None


class MissionCreateChild(_NewMission, kw_only=True):
    parent_work_item_id: Id
    failure_policy: FailurePolicy = "block_parent_work_item"


class MissionAssignCoordinator(Payload):
    coordinator_agent_id: Id | None = None
    coordinator_id: Id | None = None
    lease_seconds: Seconds = 300
    context_package: ContextPackage | None = None

    def __post_init__(self) -> None:
        if (self.coordinator_agent_id is None) == (self.coordinator_id is None):
            raise ValueError("exactly one of coordinatorAgentId and its alias coordinatorId names the Coordinator")

    @property
    def coordinator(self) -> str:
        """The Agent that shall coordinate the Mission."""
        return self.coordinator_agent_id or self.coordinator_id or ""


class MissionRenewCoordinator(Payload):
    lease_seconds: Seconds = 300
    renewal_count: SafeInteger | None = None


class MissionSubmitForApproval(Payload):
    artifact_hashes: tuple[Sha256, ...]
    mission_revision: SafeInteger | None = None

    def __post_init__(self) -> None:
        require_some("artifactHashes", self.artifact_hashes)
        require_unique("artifactHashes", self.artifact_hashes)


class MissionApprove(Payload):
    approval: Approval


class MissionRequestChanges(Payload):
    approval: Approval
    feedback: Text10000 | None = None


class MissionCancel(Payload):
    reason: Text4000


class MissionTerminate(Payload):
    reason: Text4000
    evidence: tuple[Evidence, ...] | None = None


class ReconciledWorkItem(Payload):
    work_item_id: Id
    revision: SafeInteger


class CoordinatorReconcile(Payload):
    context_package: ContextPackage
    work_items: tuple[ReconciledWorkItem, ...]


class RootApprovalGrant(Payload):
    approval: Approval


class BudgetAmend(Payload):
    budget: Budget
    reason: Text4000


class MissionPrioritize(Payload):
    priority: Priority
    reason: Text4000
