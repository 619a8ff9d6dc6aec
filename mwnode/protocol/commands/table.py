"""Which payload type belongs to which Command kind."""

from __future__ import annotations

import msgspec

from mwnode.protocol.commands.base import CORE, EXT, Payload
from mwnode.protocol.commands.membership import MembershipChange, MembershipEnd, MembershipGrantDelegation
from mwnode.protocol.commands.messages import (
    ContextPackagePublish,
    ConversationOpen,
    MessageCorrect,
    MessagePost,
    MessageRedact,
    MessageRetract,
)
from mwnode.protocol.commands.mission import (
    BudgetAmend,
    CoordinatorReconcile,
    MissionApprove,
    MissionAssignCoordinator,
    MissionCancel,
    MissionCreate,
    MissionCreateChild,
    MissionCreateFollowUp,
    MissionPrioritize,
    MissionRenewCoordinator,
    MissionRequestChanges,
    MissionSubmitForApproval,
    MissionTerminate,
    RootApprovalGrant,
)
from mwnode.protocol.commands.organization import (
    AgentCardRegister,
    ArtifactForward,
    EventTombstone,
    GroupArchive,
    KeyBind,
    KeyRestrict,
    KnowledgePublish,
    PolicyGrantCooperationOverride,
    ProfileRegister,
    SessionOpen,
)
from mwnode.protocol.commands.work import (
    ApprovalGrantExecution,
    ArtifactPublish,
    ExecutionLeaseRenew,
    OfferDecline,
    OwnershipLeaseRenew,
    ResourceUsageRecord,
    WorkAcceptOffer,
    WorkAcceptResult,
    WorkAuthorize,
    WorkBlock,
    WorkCancel,
    WorkCheckpoint,
    WorkDependencyAdd,
    WorkFail,
    WorkOffer,
    WorkPropose,
    WorkStart,
    WorkSubmit,
    WorkUnblock,
)

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
    f"{CORE}.mission_prioritize": MissionPrioritize,
    f"{CORE}.ownership_lease_renew": OwnershipLeaseRenew,
}
"""The payload type of every Command kind that this node knows."""


ENVELOPE_REFERENCES: dict[str, str] = {"conversationId": "conversation_id", "workItemId": "work_item_id"}
"""Members that may stand in the envelope, in the payload or in both (never with two values)."""


def payload_takes(kind: str, member: str) -> bool:
    """Whether the payload of a kind has a member of that wire name."""
    return any(field.encode_name == member for field in msgspec.structs.fields(PAYLOADS[kind]))
