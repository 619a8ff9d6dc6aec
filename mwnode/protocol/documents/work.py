"""WorkItems, their contracts, offers and owners."""

from __future__ import annotations

from typing import Literal

from msgspec import UNSET, UnsetType

from mwnode.protocol.documents.base import Document, JsonObject, require_some, require_unique
from mwnode.protocol.documents.common import (
    AcceptanceCriterion,
    Actor,
    Budget,
    CapabilityRef,
    Extensions,
    ResourceGrant,
)
from mwnode.protocol.scalars import (
    Duration,
    FailureName,
    Fraction,
    Id,
    LocalName,
    MediaType,
    Number,
    PositiveInteger,
    SafeInteger,
    Sha256,
    Text200,
    Text500,
    Text2000,
    Text4000,
    Text10000,
    Timestamp,
    Uri,
)


class Deliverable(Document):
    deliverable_id: LocalName
    description: Text4000
    media_type: MediaType
    schema: Uri


class RetryPolicy(Document):
    max_attempts: PositiveInteger
    backoff: Literal["none", "fixed", "exponential"]
    max_delay: Duration
    retryable_failures: tuple[FailureName, ...]

    def __post_init__(self) -> None:
        require_unique("retryableFailures", self.retryable_failures)


class WorkContract(Document):
    contract_version: PositiveInteger
    goal: Text10000
    required_deliverables: tuple[Deliverable, ...]
    acceptance_criteria: tuple[AcceptanceCriterion, ...]
    input_artifacts: tuple[Sha256, ...]
    dependency_work_item_ids: tuple[Id, ...]
    allowed_resources: tuple[ResourceGrant, ...]
    required_capabilities: tuple[CapabilityRef, ...]
    deadline: Timestamp
    requested_urgency: Literal["routine", "normal", "high", "critical"]
    business_impact: Text4000
    retry_policy: RetryPolicy
    budget: Budget
    side_effect_risk: Literal["none", "reversible", "external", "high_risk", "destructive"]
    execution_approval: Literal["not_required", "policy_required", "human_required"]
    constraints: JsonObject | UnsetType = UNSET
    extensions: Extensions | UnsetType = UNSET

    def __post_init__(self) -> None:
        require_some("requiredDeliverables", self.required_deliverables)
        require_some("acceptanceCriteria", self.acceptance_criteria)
        require_some("requiredCapabilities", self.required_capabilities)
        require_unique("inputArtifacts", self.input_artifacts)
        require_unique("dependencyWorkItemIds", self.dependency_work_item_ids)


OfferStatus = Literal["pending", "accepted", "declined", "withdrawn", "expired", "lost_race"]
DeclineReason = Literal["capacity", "deadline", "capability", "authorization", "dependency", "budget", "other"]


class Offer(Document):
    offer_id: Id
    agent_id: Id
    agent_card_version: PositiveInteger
    expires_at: Timestamp
    status: OfferStatus
    decline_reason: DeclineReason | UnsetType = UNSET


class Owner(Document):
    agent_id: Id
    agent_card_version: PositiveInteger
    capability_pins: tuple[CapabilityRef, ...]
    ownership_epoch: PositiveInteger
    ownership_lease_id: Id
    accepted_at: Timestamp

    def __post_init__(self) -> None:
        require_some("capabilityPins", self.capability_pins)


class SelectionBasis(Document):
    required_capabilities: tuple[CapabilityRef, ...]
    verified_matches: tuple[CapabilityRef, ...]
    authorization_eligible: bool
    availability_estimate: Timestamp
    expected_cost: Number
    reliability_evidence: tuple[Id, ...]
    policy_rules_applied: tuple[Text200, ...]

    def __post_init__(self) -> None:
        require_some("requiredCapabilities", self.required_capabilities)
        require_some("verifiedMatches", self.verified_matches)
        require_some("policyRulesApplied", self.policy_rules_applied)


class ScheduleEstimate(Document):
    estimated_start: Timestamp
    estimated_completion: Timestamp
    confidence: Fraction
    capacity_status: Literal["available", "queued", "constrained", "blocked"]
    last_calculated_at: Timestamp


class Progress(Document):
    current_phase: Text500
    completed_milestones: tuple[Text500, ...]
    next_checkpoint: Text500
    blockers: tuple[Text2000, ...]
    updated_completion_estimate: Timestamp
    evidence_ids: tuple[Id, ...]

    def __post_init__(self) -> None:
        require_unique("evidenceIds", self.evidence_ids)


class Submission(Document):
    artifact_hashes: tuple[Sha256, ...]
    evidence_ids: tuple[Id, ...]
    submitted_at: Timestamp

    def __post_init__(self) -> None:
        require_some("artifactHashes", self.artifact_hashes)
        require_unique("artifactHashes", self.artifact_hashes)
        require_some("evidenceIds", self.evidence_ids)
        require_unique("evidenceIds", self.evidence_ids)


WorkItemStateName = Literal[
    "open", "offered", "queued", "active", "blocked", "submitted", "verified", "failed", "cancelled"
]


class WorkItem(Document):
    work_item_id: Id
    mission_id: Id
    group_id: Id
    conversation_id: Id
    revision: SafeInteger
    state: WorkItemStateName
    exclusive: bool
    contract: WorkContract
    created_by: Actor
    created_at: Timestamp
    offers: tuple[Offer, ...] | UnsetType = UNSET
    owner: Owner | UnsetType = UNSET
    selection_basis: SelectionBasis | UnsetType = UNSET
    schedule_estimate: ScheduleEstimate | UnsetType = UNSET
    progress: Progress | UnsetType = UNSET
    submission: Submission | UnsetType = UNSET
    authorized_by: Actor | UnsetType = UNSET
    updated_at: Timestamp | UnsetType = UNSET
    extensions: Extensions | UnsetType = UNSET

    def __post_init__(self) -> None:
        if self.state in ("queued", "active", "blocked", "submitted", "verified") and (
            self.owner is UNSET or self.selection_basis is UNSET
        ):
            raise ValueError(f"a {self.state} WorkItem carries owner and selectionBasis")
        if self.state in ("submitted", "verified") and self.submission is UNSET:
            raise ValueError(f"a {self.state} WorkItem carries submission")
