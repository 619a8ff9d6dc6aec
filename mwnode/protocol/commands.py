"""The payload of every Command kind, typed.

A payload that does not fit its type is ``INVALID_COMMAND``. Optional members may be absent or ``null``; both read as
``None``. Seconds are whole seconds from acceptance and are cut to the policy's maximum by the authority.
"""

from __future__ import annotations

from typing import Literal

import msgspec
from msgspec import UNSET, UnsetType

from mwnode.protocol.documents import (
    AcceptanceCriterion,
    Actor,
    AgentCard,
    Approval,
    ApprovalPolicy,
    Artifact,
    Budget,
    CapabilityRef,
    Classification,
    ContentBlock,
    ContextPackage,
    Conversation,
    DeclineReason,
    Document,
    Evidence,
    ExtensionProfile,
    GroupSnapshot,
    PinnedProfile,
    Progress,
    ResourceGrant,
    Role,
    ScheduleEstimate,
    SelectionBasis,
    WorkContract,
    require_some,
    require_unique,
)
from mwnode.protocol.scalars import (
    EventKindName,
    Id,
    Operation,
    PositiveInteger,
    SafeInteger,
    Scope,
    Seconds,
    Sha256,
    Text200,
    Text500,
    Text4000,
    Text10000,
    Text100000,
    Timestamp,
)

EXT = "ext.missionweaveprotocol"
CORE = "ext.mwnode.core"


class Payload(Document):
    """Base of every payload."""


class Usage(Payload):
    """Resource usage in the six dimensions: micro-units of currency, tokens, calls, seconds, seconds, actions."""

    financial_microunits: SafeInteger
    model_tokens: SafeInteger
    tool_calls: SafeInteger
    compute_seconds: SafeInteger
    wall_clock_seconds: SafeInteger
    external_actions: SafeInteger


class Checkpoint(Payload):
    """Durable progress of one execution; ``state_artifact_hash`` names the bytes to resume from."""

    checkpoint_id: Id
    phase: Text500
    completed_milestones: tuple[Text500, ...]
    created_at: Timestamp
    next_step: Text4000 | UnsetType = UNSET
    state_artifact_hash: Sha256 | UnsetType = UNSET


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


class MembershipChange(Payload):
    principal: Actor
    role: Role | None = None
    roles: tuple[Role, ...] | None = None
    scopes: tuple[Scope, ...] | None = None
    provisional: bool = False
    provisional_expires_at: Timestamp | None = None
    context_package: ContextPackage | None = None
    visibility_start_sequence: SafeInteger | None = None
    expected_membership_epoch: SafeInteger | None = None

    def __post_init__(self) -> None:
        if (self.role is None) == (self.roles is None):
            raise ValueError("exactly one of role and roles is given")
        if self.roles is not None and len(self.roles) != 1:
            raise ValueError("roles names exactly one role")
        if self.scopes is not None:
            require_some("scopes", self.scopes)
            require_unique("scopes", self.scopes)

    @property
    def granted_role(self) -> Role:
        """The one role of the Membership."""
        return self.role if self.role is not None else (self.roles or ("observer",))[0]


class MembershipEnd(Payload):
    principal: Actor
    reason: Text4000 | None = None
    expected_membership_epoch: SafeInteger | None = None


class MembershipGrantDelegation(Payload):
    grant_id: Id
    grantee_agent_id: Id
    target_work_item_id: Id
    allowed_capabilities: tuple[CapabilityRef, ...]
    budget: Budget
    max_descendant_depth: SafeInteger
    expires_at: Timestamp

    def __post_init__(self) -> None:
        require_some("allowedCapabilities", self.allowed_capabilities)
        require_unique("allowedCapabilities", self.allowed_capabilities)


Content = Text100000 | tuple[ContentBlock, ...]


class MessagePost(Payload):
    message_id: Id
    content: Content
    conversation_id: Id | None = None
    mentions: tuple[Actor, ...] = ()
    references: tuple[Id, ...] = ()
    announcement: bool = False
    authority: bool | None = None

    def __post_init__(self) -> None:
        if self.authority:
            raise ValueError("a Message never carries authority")
        if not isinstance(self.content, str):
            require_some("content", self.content)
        require_unique("mentions", self.mentions)
        require_unique("references", self.references)


class MessageCorrect(Payload):
    amendment_id: Id
    message_id: Id
    reason: Text4000
    replacement_content: Content

    def __post_init__(self) -> None:
        if not isinstance(self.replacement_content, str):
            require_some("replacementContent", self.replacement_content)


class MessageRetract(Payload):
    amendment_id: Id
    message_id: Id
    reason: Text4000


class MessageRedact(Payload):
    amendment_id: Id
    message_id: Id
    reason: Text4000


class WorkPropose(Payload):
    proposal_id: Id
    contract: WorkContract
    parent_work_item_id: Id | None = None


class WorkAuthorize(Payload):
    contract: WorkContract
    work_item_id: Id | None = None
    exclusive: bool = True
    replaces_work_item_id: Id | None = None
    proposal_id: Id | None = None
    parent_work_item_id: Id | None = None
    delegation_grant_id: Id | None = None
    emergency_reason: Text4000 | None = None


class WorkOffer(Payload):
    candidate_agent_ids: tuple[Id, ...]
    selection_basis: SelectionBasis
    work_item_id: Id | None = None
    offer_expires_in_seconds: Seconds = 300
    contract: WorkContract | None = None
    context_package: ContextPackage | None = None
    delegation_grant_id: Id | None = None
    emergency_reason: Text4000 | None = None

    def __post_init__(self) -> None:
        require_some("candidateAgentIds", self.candidate_agent_ids)
        require_unique("candidateAgentIds", self.candidate_agent_ids)


class WorkAcceptOffer(Payload):
    work_item_id: Id | None = None
    offer_id: Id | None = None
    contract_version: PositiveInteger | None = None
    ownership_lease_seconds: Seconds = 900
    start_by_seconds: Seconds | None = None
    schedule_estimate: ScheduleEstimate | None = None


class WorkStart(Payload):
    ownership_epoch: PositiveInteger
    work_item_id: Id | None = None
    execution_lease_seconds: Seconds = 300


class _Held(Payload):
    """What every Command under an Execution Lease cites (R-11.3-08)."""

    ownership_epoch: PositiveInteger
    execution_lease_id: Id
    work_item_id: Id | None = None


class WorkCheckpoint(_Held, kw_only=True):
    checkpoint: Checkpoint
    progress: Progress | None = None
    resume_within_seconds: Seconds = 900


class WorkBlock(_Held, kw_only=True):
    reason: Text4000
    required_resolution: Text4000
    checkpoint: Checkpoint
    blocked_lease_seconds: Seconds = 900


class WorkUnblock(Payload):
    work_item_id: Id | None = None
    resolution: Text4000 | None = None


class ArtifactPublish(Payload):
    artifact: Artifact
    ownership_epoch: PositiveInteger
    execution_lease_id: Id


class WorkSubmit(_Held, kw_only=True):
    evidence: tuple[Evidence, ...]
    artifact_hashes: tuple[Sha256, ...] | None = None
    artifact_ids: tuple[Id, ...] | None = None

    def __post_init__(self) -> None:
        if (self.artifact_hashes is None) == (self.artifact_ids is None):
            raise ValueError("exactly one of artifactHashes and artifactIds is given")
        for name, values in (("artifactHashes", self.artifact_hashes), ("artifactIds", self.artifact_ids)):
            if values is not None:
                require_some(name, values)
                require_unique(name, values)
        require_some("evidence", self.evidence)


class WorkAcceptResult(Payload):
    evidence: tuple[Evidence, ...]
    work_item_id: Id | None = None

    def __post_init__(self) -> None:
        require_some("evidence", self.evidence)


class WorkFail(Payload):
    reason: Text4000
    evidence: tuple[Evidence, ...]
    work_item_id: Id | None = None
    ownership_epoch: PositiveInteger | None = None
    execution_lease_id: Id | None = None

    def __post_init__(self) -> None:
        require_some("evidence", self.evidence)
        if (self.ownership_epoch is None) != (self.execution_lease_id is None):
            raise ValueError("ownershipEpoch and executionLeaseId stand together")


class WorkCancel(Payload):
    reason: Text4000
    work_item_id: Id | None = None


class ApprovalGrantExecution(Payload):
    approval: Approval
    ownership_epoch: PositiveInteger
    operations: tuple[Operation, ...]
    expires_at: Timestamp
    resources: tuple[ResourceGrant, ...] = ()
    budget: Budget | None = None

    def __post_init__(self) -> None:
        require_some("operations", self.operations)
        require_unique("operations", self.operations)


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


class WorkDependencyAdd(Payload):
    dependency_id: Id
    work_item_id: Id | None = None


class ExecutionLeaseRenew(_Held, kw_only=True):
    lease_seconds: Seconds = 300
    renewal_count: SafeInteger | None = None
    progress: Progress | None = None
    schedule_estimate: ScheduleEstimate | None = None


class ResourceUsageRecord(_Held, kw_only=True):
    usage_delta: Usage

    def __post_init__(self) -> None:
        if not any(getattr(self.usage_delta, name) for name in self.usage_delta.__struct_fields__):
            raise ValueError("usageDelta is not zero in every dimension")


class GroupArchive(Payload):
    snapshot: GroupSnapshot | None = None
    snapshot_hash: Sha256 | None = None

    def __post_init__(self) -> None:
        if (self.snapshot is None) == (self.snapshot_hash is None):
            raise ValueError("exactly one of snapshot and snapshotHash is given")


class OfferDecline(Payload):
    reason: DeclineReason
    work_item_id: Id | None = None
    offer_id: Id | None = None
    detail: Text4000 | None = None


class ReconciledWorkItem(Payload):
    work_item_id: Id
    revision: SafeInteger


class CoordinatorReconcile(Payload):
    context_package: ContextPackage
    work_items: tuple[ReconciledWorkItem, ...]


class ConversationOpen(Payload):
    conversation: Conversation


class ContextPackagePublish(Payload):
    context_package: ContextPackage
    recipient: Actor | None = None


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


class RootApprovalGrant(Payload):
    approval: Approval


class BudgetAmend(Payload):
    budget: Budget
    reason: Text4000


class OwnershipLeaseRenew(Payload):
    ownership_epoch: PositiveInteger
    work_item_id: Id | None = None
    lease_seconds: Seconds = 900
    renewal_count: SafeInteger | None = None


PAYLOADS: dict[str, type[Payload]] = {
    "mission.create": MissionCreate,
    "mission.create_follow_up": MissionCreateFollowUp,
    "mission.create_child": MissionCreateChild,
    "mission.assign_coordinator": MissionAssignCoordinator,
    "mission.renew_coordinator": MissionRenewCoordinator,
    "mission.submit_for_approval": MissionSubmitForApproval,
    "mission.approve": MissionApprove,
    "mission.request_changes": MissionRequestChanges,
    "mission.cancel": MissionCancel,
    "mission.terminate": MissionTerminate,
    "membership.change": MembershipChange,
    "membership.end": MembershipEnd,
    "membership.grant_delegation": MembershipGrantDelegation,
    "message.post": MessagePost,
    "message.correct": MessageCorrect,
    "message.retract": MessageRetract,
    "message.redact": MessageRedact,
    "work.propose": WorkPropose,
    "work.authorize": WorkAuthorize,
    "work.offer": WorkOffer,
    "work.accept_offer": WorkAcceptOffer,
    "work.start": WorkStart,
    "work.checkpoint": WorkCheckpoint,
    "work.block": WorkBlock,
    "work.unblock": WorkUnblock,
    "work.submit": WorkSubmit,
    "work.accept_result": WorkAcceptResult,
    "work.fail": WorkFail,
    "work.cancel": WorkCancel,
    "artifact.publish": ArtifactPublish,
    "approval.grant_execution": ApprovalGrantExecution,
    "policy.grant_cooperation_override": PolicyGrantCooperationOverride,
    f"{EXT}.registry.agent_card_register": AgentCardRegister,
    f"{EXT}.identity.session_open": SessionOpen,
    f"{EXT}.core.work_dependency_add": WorkDependencyAdd,
    f"{EXT}.core.work_execution_lease_renew": ExecutionLeaseRenew,
    f"{EXT}.core.resource_usage_record": ResourceUsageRecord,
    f"{EXT}.core.group_archive": GroupArchive,
    f"{CORE}.offer_decline": OfferDecline,
    f"{CORE}.coordinator_reconcile": CoordinatorReconcile,
    f"{CORE}.conversation_open": ConversationOpen,
    f"{CORE}.context_package_publish": ContextPackagePublish,
    f"{CORE}.artifact_forward": ArtifactForward,
    f"{CORE}.knowledge_publish": KnowledgePublish,
    f"{CORE}.profile_register": ProfileRegister,
    f"{CORE}.key_bind": KeyBind,
    f"{CORE}.key_restrict": KeyRestrict,
    f"{CORE}.event_tombstone": EventTombstone,
    f"{CORE}.root_approval_grant": RootApprovalGrant,
    f"{CORE}.budget_amend": BudgetAmend,
    f"{CORE}.ownership_lease_renew": OwnershipLeaseRenew,
}
"""The payload type of every Command kind that this node knows."""

ENVELOPE_REFERENCES: dict[str, str] = {"conversationId": "conversation_id", "workItemId": "work_item_id"}
"""Members that may stand in the envelope, in the payload or in both (never with two values)."""


def payload_takes(kind: str, member: str) -> bool:
    """Whether the payload of a kind has a member of that wire name."""
    return any(field.encode_name == member for field in msgspec.structs.fields(PAYLOADS[kind]))
