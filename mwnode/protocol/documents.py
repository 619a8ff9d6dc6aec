"""The documents of the protocol, one frozen struct per normative schema.

Member names are the schemas' names in snake case. Absent optional members are ``UNSET`` and never an empty default, so
that encoding a document gives back exactly the members that were received: signatures depend on it. Conditional rules
of the schemas are checked in ``__post_init__``; msgspec reports them as a ``ValidationError`` with the path.
"""

from __future__ import annotations

import re
from collections.abc import Iterable
from typing import Any, ClassVar, Literal, TypeVar, dataclass_transform

import msgspec
from msgspec import UNSET, Struct, UnsetType

from mwnode.protocol.scalars import (
    Base64Url,
    CapabilityId,
    Currency,
    Duration,
    FailureName,
    Fraction,
    Id,
    IdOrSha256,
    LocalName,
    MediaType,
    Number,
    Operation,
    PositiveInteger,
    ProtocolVersion,
    SafeInteger,
    Scope,
    Semver,
    Sha256,
    Text200,
    Text500,
    Text2000,
    Text4000,
    Text10000,
    Text50000,
    Text100000,
    Timestamp,
    Uri,
    WssUri,
)

T = TypeVar("T")
PrincipalType = Literal["agent", "human", "service"]
Classification = Literal["public", "internal", "confidential", "restricted"]
JsonObject = dict[str, Any]


# Says to type checkers what msgspec does by inheritance: every subclass is frozen and takes members by name only.
@dataclass_transform(frozen_default=True, kw_only_default=True, field_specifiers=(msgspec.field,))
class Document(
    Struct, frozen=True, rename="camel", forbid_unknown_fields=True, omit_defaults=True, kw_only=True, eq=True
):
    """Base of every protocol object: closed, immutable, camel case on the wire."""


def require_unique(name: str, values: Iterable[Any]) -> None:
    """Refuse a repeated entry (JSON Schema ``uniqueItems``)."""
    seen: set[bytes | str] = set()
    for value in values:
        key = value if type(value) is str else msgspec.json.encode(value, order="sorted")
        if key in seen:
            raise ValueError(f"{name} repeats an entry")
        seen.add(key)


def require_some(name: str, values: tuple[Any, ...] | UnsetType) -> None:
    """Refuse an empty array (JSON Schema ``minItems`` 1)."""
    if values is not UNSET and not values:
        raise ValueError(f"{name} must have at least one entry")


# --- kinds ------------------------------------------------------------------------------------------------------------

CORE_COMMAND_KINDS: frozenset[str] = frozenset(
    {
        "mission.create",
        "mission.assign_coordinator",
        "mission.renew_coordinator",
        "mission.submit_for_approval",
        "mission.approve",
        "mission.request_changes",
        "mission.cancel",
        "mission.terminate",
        "mission.create_child",
        "mission.create_follow_up",
        "membership.change",
        "membership.end",
        "membership.grant_delegation",
        "message.post",
        "message.correct",
        "message.retract",
        "message.redact",
        "work.propose",
        "work.authorize",
        "work.offer",
        "work.accept_offer",
        "work.start",
        "work.checkpoint",
        "work.block",
        "work.unblock",
        "work.submit",
        "work.accept_result",
        "work.fail",
        "work.cancel",
        "artifact.publish",
        "approval.grant_execution",
        "policy.grant_cooperation_override",
    }
)
"""The 32 core Command kinds (R-15.1-16)."""
CORE_EVENT_KINDS: frozenset[str] = frozenset(
    {
        "mission.created",
        "mission.coordinator.assigned",
        "mission.coordinator.renewed",
        "mission.submitted_for_approval",
        "mission.approved",
        "mission.changes_requested",
        "mission.cancelled",
        "mission.terminated",
        "mission.child.created",
        "mission.follow_up.created",
        "membership.changed",
        "membership.ended",
        "membership.delegation.granted",
        "message.posted",
        "message.corrected",
        "message.retracted",
        "message.redacted",
        "work.proposed",
        "work.authorized",
        "work.offer.created",
        "work.offer.accepted",
        "work.contract.revised",
        "work.started",
        "work.progressed",
        "work.checkpointed",
        "work.blocked",
        "work.unblocked",
        "work.submitted",
        "work.result.accepted",
        "work.failed",
        "work.cancelled",
        "artifact.published",
        "approval.execution.granted",
        "policy.cooperation_override.granted",
        "group.snapshot.created",
        "group.archived",
    }
)
"""The 36 core Event kinds."""
GENESIS_COMMAND_KINDS = frozenset({"mission.create", "mission.create_follow_up"})
ORGANIZATION_COMMAND_KINDS = frozenset(
    {
        "ext.missionweaveprotocol.registry.agent_card_register",
        "ext.missionweaveprotocol.identity.session_open",
    }
)
ORGANIZATION_EVENT_KINDS = frozenset(
    {
        "ext.missionweaveprotocol.registry.agent_card_registered",
        "ext.missionweaveprotocol.identity.session_opened",
    }
)
COORDINATOR_COMMAND_KINDS = frozenset(
    {
        "mission.renew_coordinator",
        "mission.submit_for_approval",
        "mission.create_child",
        "membership.grant_delegation",
        "work.accept_result",
    }
)
_EXTENSION_KIND = re.compile(r"\Aext\.[a-z0-9][a-z0-9_-]*(?:\.[a-z0-9][a-z0-9_-]*){2,}\Z")


def is_extension_kind(kind: str) -> bool:
    """Whether a kind reads ``ext.<organization>.<profile>.<name>`` (R-18-04)."""
    return len(kind) <= 160 and _EXTENSION_KIND.match(kind) is not None


# --- common -----------------------------------------------------------------------------------------------------------


class Actor(Document):
    """A Principal: an Agent, a human or a service of the Organization."""

    type: PrincipalType
    id: Id


class AgentActor(Document):
    type: Literal["agent"]
    id: Id


class HumanActor(Document):
    type: Literal["human"]
    id: Id


class ServiceActor(Document):
    type: Literal["service"]
    id: Id


class Signature(Document):
    """The signature envelope of a Signed Document."""

    algorithm: Literal["Ed25519"]
    key_id: Id
    created_at: Timestamp
    value: Base64Url


class PublicKey(Document):
    key_id: Id
    algorithm: Literal["Ed25519"]
    public_key: Base64Url
    valid_from: Timestamp
    valid_until: Timestamp | UnsetType = UNSET
    revoked_at: Timestamp | UnsetType = UNSET


class CapabilityRef(Document):
    id: CapabilityId
    version: Semver


class Budget(Document):
    """Hard limits: money in currency units, tokens, calls, seconds of compute and of wall clock, external actions."""

    currency: Currency | UnsetType = UNSET
    financial_limit: Number | UnsetType = UNSET
    model_token_limit: SafeInteger | UnsetType = UNSET
    tool_call_limit: SafeInteger | UnsetType = UNSET
    compute_seconds_limit: SafeInteger | UnsetType = UNSET
    wall_clock_seconds_limit: SafeInteger | UnsetType = UNSET
    external_side_effect_limit: SafeInteger | UnsetType = UNSET

    def __post_init__(self) -> None:
        money = self.financial_limit is not UNSET and self.currency is not UNSET
        counts = (
            self.model_token_limit,
            self.tool_call_limit,
            self.compute_seconds_limit,
            self.wall_clock_seconds_limit,
            self.external_side_effect_limit,
        )
        if not money and all(count is UNSET for count in counts):
            raise ValueError("a budget limits at least one dimension; money needs both financialLimit and currency")


EvidenceRequirement = Literal[
    "artifact_integrity",
    "schema_validation",
    "deterministic_test",
    "business_rule",
    "reviewer_assessment",
    "human_review",
    "policy_check",
]
EvidenceType = Literal[
    "artifact_integrity",
    "schema_validation",
    "deterministic_test",
    "business_rule",
    "reviewer_assessment",
    "human_review",
    "policy_check",
    "failure_report",
]


class AcceptanceCriterion(Document):
    criterion_id: LocalName
    description: Text4000
    evidence_required: tuple[EvidenceRequirement, ...]

    def __post_init__(self) -> None:
        require_some("evidenceRequired", self.evidence_required)
        require_unique("evidenceRequired", self.evidence_required)


class ResourceGrant(Document):
    resource: Id
    operations: tuple[Operation, ...]
    constraints: JsonObject | UnsetType = UNSET

    def __post_init__(self) -> None:
        require_some("operations", self.operations)
        require_unique("operations", self.operations)


class Extension(Document):
    version: Semver
    critical: bool
    data: Any


Extensions = dict[Id, Extension]


# --- Registry ---------------------------------------------------------------------------------------------------------


class Endpoint(Document):
    transport: Literal["wss"]
    uri: WssUri


class CardCapability(Document):
    id: CapabilityId
    version: Semver
    input_schema: Uri
    input_schema_hash: Sha256
    output_schema: Uri
    output_schema_hash: Sha256
    constraints: JsonObject
    verified_evidence: tuple[Id, ...]

    def __post_init__(self) -> None:
        require_some("verifiedEvidence", self.verified_evidence)
        require_unique("verifiedEvidence", self.verified_evidence)


class AgentCard(Document):
    """What the Organization vouches for about one Agent (R-6.1-01 to R-6.1-04)."""

    protected_time: ClassVar[str] = "issued_at"

    agent_id: Id
    organization_id: Id
    card_version: PositiveInteger
    display_name: Text200
    owner: Actor
    status: Literal["active", "deprecated", "revoked"]
    protocol_versions: tuple[ProtocolVersion, ...]
    endpoints: tuple[Endpoint, ...]
    public_keys: tuple[PublicKey, ...]
    capabilities: tuple[CardCapability, ...]
    max_concurrency: PositiveInteger
    issued_at: Timestamp
    signature: Signature
    description: str | UnsetType = UNSET
    valid_until: Timestamp | UnsetType = UNSET
    extensions: Extensions | UnsetType = UNSET

    def __post_init__(self) -> None:
        require_some("protocolVersions", self.protocol_versions)
        require_unique("protocolVersions", self.protocol_versions)
        require_some("endpoints", self.endpoints)
        require_some("publicKeys", self.public_keys)
        require_some("capabilities", self.capabilities)
        if self.description is not UNSET and len(self.description) > 4000:
            raise ValueError("description is longer than 4000 characters")


class ExtensionProfile(Document):
    protected_time: ClassVar[str] = "approved_at"

    profile_uri: Id
    name: Text200
    version: Semver
    schema_uri: Uri
    schema_hash: Sha256
    required_capabilities: tuple[CapabilityRef, ...]
    critical: bool
    command_kinds: tuple[str, ...]
    event_kinds: tuple[str, ...]
    overrides_core_invariants: bool
    approved_by: Actor
    approved_at: Timestamp
    signature: Signature

    def __post_init__(self) -> None:
        if self.overrides_core_invariants:
            raise ValueError("overridesCoreInvariants must be false")
        require_unique("commandKinds", self.command_kinds)
        require_unique("eventKinds", self.event_kinds)


class FirstAdmissionRecord(Document):
    """The trusted time at which a Signed Document was first accepted; never signed itself (R-6.4-49)."""

    protocol_version: ProtocolVersion
    admission_record_id: Id
    organization_id: Id
    document_kind: Literal[
        "agent-card",
        "approval",
        "artifact",
        "command",
        "context-package",
        "event",
        "evidence",
        "extension-profile",
        "group-snapshot",
    ]
    signing_hash: Sha256
    key_id: Id
    principal: Actor
    trusted_accepted_at: Timestamp
    accepted_by: ServiceActor


# --- Envelopes --------------------------------------------------------------------------------------------------------


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


# --- Mission, Group, Membership ---------------------------------------------------------------------------------------


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


LeaseType = Literal["coordinator", "ownership", "execution", "blocked"]


class Lease(Document):
    """A fenced right for a bounded time, held by one Agent under one Session Epoch."""

    lease_id: Id
    lease_type: LeaseType
    mission_id: Id
    group_id: Id
    holder_agent_id: Id
    session_epoch: PositiveInteger
    issued_at: Timestamp
    starts_at: Timestamp
    expires_at: Timestamp
    state: Literal["active", "expired", "revoked", "released"]
    renewal_count: SafeInteger
    work_item_id: Id | UnsetType = UNSET
    coordinator_epoch: PositiveInteger | UnsetType = UNSET
    ownership_epoch: PositiveInteger | UnsetType = UNSET
    start_by: Timestamp | UnsetType = UNSET
    grace_expires_at: Timestamp | UnsetType = UNSET
    last_renewed_at: Timestamp | UnsetType = UNSET
    closed_at: Timestamp | UnsetType = UNSET
    closure_reason: str | UnsetType = UNSET

    def __post_init__(self) -> None:
        if self.lease_type == "coordinator":
            if self.coordinator_epoch is UNSET:
                raise ValueError("a coordinator lease carries coordinatorEpoch")
        elif self.work_item_id is UNSET or self.ownership_epoch is UNSET:
            raise ValueError("a lease on work carries workItemId and ownershipEpoch")
        if self.lease_type == "ownership" and self.start_by is UNSET:
            raise ValueError("an ownership lease carries startBy")
        if self.lease_type == "execution" and any(
            value is not UNSET for value in (self.coordinator_epoch, self.start_by, self.grace_expires_at)
        ):
            raise ValueError("an execution lease carries neither coordinatorEpoch, startBy nor graceExpiresAt")
        if (self.renewal_count > 0) != (self.last_renewed_at is not UNSET):
            raise ValueError("lastRenewedAt stands exactly in leases that were renewed")
        closed = (self.closed_at, self.closure_reason)
        if self.state == "active" and any(value is not UNSET for value in closed):
            raise ValueError("an active lease carries neither closedAt nor closureReason")
        if self.state != "active" and any(value is UNSET for value in closed):
            raise ValueError("a closed lease carries closedAt and closureReason")
        if self.closure_reason is not UNSET and (len(self.closure_reason) > 512 or not self.closure_reason.strip()):
            raise ValueError("closureReason has 1 to 512 characters and is not blank")


# --- Conversations ----------------------------------------------------------------------------------------------------


class ConversationAccess(Document):
    mode: Literal["group", "restricted"]
    members: tuple[Actor, ...] | UnsetType = UNSET

    def __post_init__(self) -> None:
        require_some("members", self.members)
        if self.mode == "restricted" and self.members is UNSET:
            raise ValueError("restricted access names its members")


class Conversation(Document):
    conversation_id: Id
    mission_id: Id
    group_id: Id
    type: Literal["group", "work_item", "review", "restricted"]
    title: Text500
    access: ConversationAccess
    created_by: Actor
    created_at: Timestamp
    state: Literal["active", "closed"]
    revision: SafeInteger
    primary_work_item_id: Id | UnsetType = UNSET
    extensions: Extensions | UnsetType = UNSET

    def __post_init__(self) -> None:
        if self.type == "work_item" and self.primary_work_item_id is UNSET:
            raise ValueError("a WorkItem's Conversation carries primaryWorkItemId")
        if self.type == "restricted" and self.access.mode != "restricted":
            raise ValueError("a restricted Conversation has restricted access")


class TextBlock(Document, tag_field="type", tag="text"):
    text: Text100000


class ArtifactBlock(Document, tag_field="type", tag="artifact_ref"):
    artifact_hash: Sha256


class DataBlock(Document, tag_field="type", tag="data_ref"):
    schema: Uri
    data: Any


ContentBlock = TextBlock | ArtifactBlock | DataBlock


class Message(Document):
    message_id: Id
    mission_id: Id
    group_id: Id
    conversation_id: Id
    author: Actor
    kind: Literal["message", "correction", "retraction", "redaction"]
    authority: bool
    content: tuple[ContentBlock, ...]
    committed_at: Timestamp
    target_message_id: Id | UnsetType = UNSET
    mentions: tuple[Actor, ...] | UnsetType = UNSET
    references: tuple[Id, ...] | UnsetType = UNSET
    reason: Text4000 | UnsetType = UNSET
    extensions: Extensions | UnsetType = UNSET

    def __post_init__(self) -> None:
        if self.authority:
            raise ValueError("a Message never carries authority")
        require_some("content", self.content)
        if self.mentions is not UNSET:
            require_unique("mentions", self.mentions)
        if self.references is not UNSET:
            require_unique("references", self.references)
        if self.kind != "message" and UNSET in (self.target_message_id, self.reason):
            raise ValueError(f"a {self.kind} carries targetMessageId and reason")


# --- Work -------------------------------------------------------------------------------------------------------------


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


# --- Artifacts, Evidence, Approvals, context --------------------------------------------------------------------------


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


class Capacity(Document):
    max_slots: PositiveInteger
    active_slots: SafeInteger
    available_slots: SafeInteger
    queued_items: SafeInteger


class CapabilityAvailability(Document):
    capability: CapabilityRef
    status: Literal["available", "degraded", "unavailable"]


class PresenceRecord(Document):
    agent_id: Id
    session_epoch: PositiveInteger
    status: Literal["online", "busy", "away", "draining", "offline"]
    capacity: Capacity
    capability_availability: tuple[CapabilityAvailability, ...]
    last_heartbeat: Timestamp
    expires_at: Timestamp
    estimated_response_ms: SafeInteger | UnsetType = UNSET


DocumentKind = Literal[
    "agent-card",
    "approval",
    "artifact",
    "command",
    "context-package",
    "event",
    "evidence",
    "extension-profile",
    "group-snapshot",
]
SignedDocument = (
    AgentCard | Approval | Artifact | Command | ContextPackage | Event | Evidence | ExtensionProfile | GroupSnapshot
)
SIGNED_DOCUMENTS: dict[DocumentKind, type[SignedDocument]] = {
    "agent-card": AgentCard,
    "approval": Approval,
    "artifact": Artifact,
    "command": Command,
    "context-package": ContextPackage,
    "event": Event,
    "evidence": Evidence,
    "extension-profile": ExtensionProfile,
    "group-snapshot": GroupSnapshot,
}
"""The nine kinds of Signed Document and their types."""
