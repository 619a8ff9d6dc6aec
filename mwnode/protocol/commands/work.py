"""Payloads of the Commands about WorkItems, their execution and their results."""

from __future__ import annotations

from mwnode.protocol.commands.base import Checkpoint, Payload, Usage
from mwnode.protocol.documents import (
    Approval,
    Artifact,
    Budget,
    ContextPackage,
    DeclineReason,
    Evidence,
    Progress,
    ResourceGrant,
    ScheduleEstimate,
    SelectionBasis,
    WorkContract,
    require_some,
    require_unique,
)
from mwnode.protocol.scalars import Id, Operation, PositiveInteger, SafeInteger, Seconds, Sha256, Text4000, Timestamp


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


class OfferDecline(Payload):
    reason: DeclineReason
    work_item_id: Id | None = None
    offer_id: Id | None = None
    detail: Text4000 | None = None


class OwnershipLeaseRenew(Payload):
    ownership_epoch: PositiveInteger
    work_item_id: Id | None = None
    lease_seconds: Seconds = 900
    renewal_count: SafeInteger | None = None
