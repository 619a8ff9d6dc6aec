"""Artifacts, Evidence, Approvals, Context Packages and Group Snapshots."""

from __future__ import annotations

from typing import ClassVar, Literal

from msgspec import UNSET, UnsetType

from mwnode.protocol.documents.base import Classification, Document, JsonObject, require_some, require_unique
from mwnode.protocol.documents.common import (
    Actor,
    AgentActor,
    CapabilityRef,
    EvidenceType,
    Extensions,
    ServiceActor,
    Signature,
)
from mwnode.protocol.scalars import (
    Id,
    IdOrSha256,
    LocalName,
    MediaType,
    PositiveInteger,
    SafeInteger,
    Semver,
    Sha256,
    Text200,
    Text2000,
    Text4000,
    Text50000,
    Timestamp,
    Uri,
)


class Producer(Document):
    agent_id: Id
    agent_card_version: PositiveInteger
    capabilities: tuple[CapabilityRef, ...]

    def __post_init__(self) -> None:
        require_some("capabilities", self.capabilities)


class ToolVersion(Document):
    name: Text200
    version: Text200


class ModelVersion(Document):
    provider: Text200
    model: Text200
    version: Text200


class Artifact(Document):
    """A signed manifest of immutable bytes, addressed by their SHA-256."""

    protected_time: ClassVar[str] = "created_at"

    artifact_id: Id
    content_hash: Sha256
    uri: Uri
    size_bytes: SafeInteger
    media_type: MediaType
    schema_uri: Uri
    producer: Producer
    mission_id: Id
    group_id: Id
    work_item_id: Id
    source_artifact_hashes: tuple[Sha256, ...]
    tool_versions: tuple[ToolVersion, ...]
    model_versions: tuple[ModelVersion, ...]
    classification: Classification
    created_at: Timestamp
    signature: Signature
    extensions: Extensions | UnsetType = UNSET

    def __post_init__(self) -> None:
        require_unique("sourceArtifactHashes", self.source_artifact_hashes)


class EvidenceSubject(Document):
    type: Literal["work_item", "artifact", "mission"]
    id: IdOrSha256


class Evidence(Document):
    protected_time: ClassVar[str] = "created_at"

    evidence_id: Id
    mission_id: Id
    group_id: Id
    work_item_id: Id
    type: EvidenceType
    subject: EvidenceSubject
    criterion_ids: tuple[LocalName, ...]
    method: Text4000
    result: Literal["passed", "failed", "inconclusive"]
    artifact_hashes: tuple[Sha256, ...]
    generated_by: Actor
    created_at: Timestamp
    signature: Signature
    details: JsonObject | UnsetType = UNSET
    tool_version: str | UnsetType = UNSET
    model_version: str | UnsetType = UNSET

    def __post_init__(self) -> None:
        require_some("criterionIds", self.criterion_ids)
        require_unique("criterionIds", self.criterion_ids)
        require_unique("artifactHashes", self.artifact_hashes)
        for version in (self.tool_version, self.model_version):
            if version is not UNSET and len(version) > 500:
                raise ValueError("toolVersion and modelVersion have at most 500 characters")


class Approval(Document):
    protected_time: ClassVar[str] = "occurred_at"

    approval_id: Id
    kind: Literal["mission_final", "child_mission", "work_execution"]
    decision: Literal["approved", "changes_requested", "denied", "revoked"]
    mission_id: Id
    group_id: Id
    mission_revision: SafeInteger
    artifact_hashes: tuple[Sha256, ...]
    acceptance_policy_version: Semver
    approver: Actor
    comments: str
    conditions: tuple[Text2000, ...]
    occurred_at: Timestamp
    signature: Signature
    work_item_id: Id | UnsetType = UNSET
    revokes_approval_id: Id | UnsetType = UNSET

    def __post_init__(self) -> None:
        require_unique("artifactHashes", self.artifact_hashes)
        if len(self.comments) > 10_000:
            raise ValueError("comments has at most 10000 characters")
        if self.kind != "work_execution" and self.decision == "approved":
            require_some("artifactHashes", self.artifact_hashes)
        if self.kind == "mission_final" and self.approver.type != "human":
            raise ValueError("a mission_final Approval has a human approver")
        if self.kind == "work_execution" and self.work_item_id is UNSET:
            raise ValueError("a work_execution Approval names its workItemId")
        if self.decision == "revoked" and self.revokes_approval_id is UNSET:
            raise ValueError("a revoked Approval names revokesApprovalId")


class SourceEventRange(Document):
    from_sequence: PositiveInteger
    to_sequence: PositiveInteger
    event_ids: tuple[Id, ...]

    def __post_init__(self) -> None:
        require_some("eventIds", self.event_ids)
        require_unique("eventIds", self.event_ids)


class ContextDecision(Document):
    description: Text4000
    source_event_ids: tuple[Id, ...]

    def __post_init__(self) -> None:
        require_some("sourceEventIds", self.source_event_ids)
        require_unique("sourceEventIds", self.source_event_ids)


class ContextPackage(Document):
    protected_time: ClassVar[str] = "generated_at"

    context_package_id: Id
    version: PositiveInteger
    mission_id: Id
    group_id: Id
    source_event_range: SourceEventRange
    artifact_hashes: tuple[Sha256, ...]
    summary: Text50000
    decisions: tuple[ContextDecision, ...]
    constraints: tuple[Text4000, ...]
    unresolved_questions: tuple[Text4000, ...]
    generated_by: AgentActor
    generated_at: Timestamp
    signature: Signature
    previous_context_package_id: Id | UnsetType = UNSET
    work_item_id: Id | UnsetType = UNSET
    extensions: Extensions | UnsetType = UNSET

    def __post_init__(self) -> None:
        require_unique("artifactHashes", self.artifact_hashes)


class PolicyLogEntry(Document):
    entry_id: Id
    decision: Text4000
    actor: Actor
    occurred_at: Timestamp
    details: JsonObject


class GroupSnapshot(Document):
    protected_time: ClassVar[str] = "created_at"

    snapshot_id: Id
    group_id: Id
    through_sequence: PositiveInteger
    event_ids: tuple[Id, ...]
    state_hash: Sha256
    policy_log: tuple[PolicyLogEntry, ...]
    created_by: ServiceActor
    created_at: Timestamp
    signature: Signature

    def __post_init__(self) -> None:
        require_some("eventIds", self.event_ids)
        require_unique("eventIds", self.event_ids)
        require_some("policyLog", self.policy_log)
