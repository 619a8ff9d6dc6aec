"""The shared definitions of ``common.schema.json``."""

from __future__ import annotations

from typing import Any, Literal

from msgspec import UNSET, UnsetType

from mwnode.protocol.documents.base import Document, JsonObject, PrincipalType, require_some, require_unique
from mwnode.protocol.scalars import (
    Base64Url,
    CapabilityId,
    Currency,
    Id,
    LocalName,
    Number,
    Operation,
    SafeInteger,
    Semver,
    Text4000,
    Timestamp,
)


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
