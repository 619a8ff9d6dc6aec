"""What the Organization vouches for: Agent Cards, Extension Profiles, First-Admission Records."""

from __future__ import annotations

from typing import ClassVar, Literal

from msgspec import UNSET, UnsetType

from mwnode.protocol.documents.base import Document, JsonObject, require_some, require_unique
from mwnode.protocol.documents.common import Actor, CapabilityRef, Extensions, PublicKey, ServiceActor, Signature
from mwnode.protocol.scalars import (
    CapabilityId,
    ExtensionKind,
    Id,
    PositiveInteger,
    ProtocolVersion,
    Semver,
    Sha256,
    Text200,
    Timestamp,
    Uri,
    WssUri,
)


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
    command_kinds: tuple[ExtensionKind, ...]
    event_kinds: tuple[ExtensionKind, ...]
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
