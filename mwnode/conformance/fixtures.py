"""The files of a bundle, as types: manifests, Registry and signing-key fixtures.

They say what the bundle's own ``*.schema.json`` files say, so that no JSON Schema engine is needed to run. The numbers
of cases and artifacts are left open: any bundle of the layout will do.
"""

from __future__ import annotations

from typing import Annotated, Any, Literal

import msgspec
from msgspec import UNSET, Meta, UnsetType

from mwnode.protocol.documents import Actor, Document, DocumentKind, PrincipalType, ServiceActor
from mwnode.protocol.scalars import Base64Url, Id, SafeInteger, Sha256, Timestamp
from mwnode.trust import ed25519
from mwnode.trust.admission import Reason

BundlePath = Annotated[str, Meta(pattern=r"\A(?:[a-z0-9][a-z0-9._-]*/)*[a-z0-9][a-z0-9._-]*\Z", max_length=512)]
"""A file of the bundle, relative to its root; it cannot leave it."""
CaseId = Annotated[str, Meta(pattern=r"\A[a-z0-9]+(?:[.-][a-z0-9]+)*\Z", max_length=160)]
_Pointer = Annotated[str, Meta(pattern=r"\A(?:/(?:[^~/]|~0|~1)+)+\Z", max_length=256)]
_Candidate = Annotated[str, Meta(min_length=1, max_length=512)]
_Text64 = Annotated[str, Meta(min_length=1, max_length=64)]
_Text128 = Annotated[str, Meta(min_length=1, max_length=128)]
_Text4096 = Annotated[str, Meta(min_length=1, max_length=4096)]
_Base64Url32 = Annotated[str, Meta(pattern=r"\A[A-Za-z0-9_-]{43}\Z")]


class StructuralCase(Document):
    """One vector of ``conformance/manifest.json``."""

    name: str
    schema: BundlePath
    instance: BundlePath
    valid: bool


class ArtifactEntry(Document):
    """The exact bytes of one file."""

    path: BundlePath
    byte_length: SafeInteger
    sha256: Sha256


# --- fixtures ---------------------------------------------------------------------------------------------------------


class CandidatePrincipal(Document):
    type: PrincipalType
    id: _Candidate


class CandidateRecord(Document):
    sequence: Annotated[int, Meta(ge=1, le=9_007_199_254_740_991)]
    recorded_at: _Text128
    valid_until: _Text128 | UnsetType = UNSET
    revoked_at: _Text128 | UnsetType = UNSET


class CandidateBinding(Document):
    key_id: _Candidate
    principal: CandidatePrincipal
    algorithm: _Text64
    public_key: _Text4096
    valid_from: _Text128
    validity_history: Annotated[tuple[CandidateRecord, ...], Meta(max_length=64)]


class RegistryFixture(Document):
    """Registry evidence that need not be good: what is wrong with it is for stage 4 to find."""

    organization_id: _Candidate
    bindings: Annotated[tuple[CandidateBinding, ...], Meta(min_length=1, max_length=64)]


class SigningKeyFixture(Document):
    test_only: bool
    key_id: Id
    algorithm: Literal["Ed25519"]
    seed: _Base64Url32
    public_key: _Base64Url32

    def __post_init__(self) -> None:
        if not self.test_only:
            raise ValueError("a signing key in a bundle is for tests only")


# --- cryptography/manifest.json ---------------------------------------------------------------------------------------


class CryptographyFixtureSchemas(Document):
    registry: Literal["cryptography/registry-fixture.schema.json"]
    signing_key: Literal["cryptography/signing-key-fixture.schema.json"]


class ExpectedSigner(Document):
    rule: Literal["principal-object", "agent-id", "service-principal"]
    pointer: _Pointer | UnsetType = UNSET
    id_pointer: _Pointer | UnsetType = UNSET


class Profile(Document):
    """Which member of a document kind is its protected time, and who signs it."""

    profile_id: DocumentKind
    schema: BundlePath
    protected_time_pointer: _Pointer
    expected_signer: ExpectedSigner


class FaultBasis(Document):
    case_id: CaseId
    profile_id: DocumentKind


class Fault(Document):
    id: CaseId
    basis: FaultBasis


class VerifiedExpectation(Document):
    key_id: Id
    principal: Actor
    protected_time: Timestamp
    signing_bytes: BundlePath
    signing_hash: Sha256
    signature: Base64Url
    signed_document_hash: Sha256


class StageExpectation(Document):
    stage: Literal[
        "parse", "schema", "signature-envelope", "key-resolution", "canonicalization", "signature", "complete"
    ]
    wire_code: Literal["PROTOCOL_VIOLATION", "SCHEMA_VALIDATION_FAILED", "AUTH_INVALID_SIGNATURE"] | None
    verified: VerifiedExpectation | UnsetType = UNSET

    def __post_init__(self) -> None:
        complete = self.stage == "complete"
        if complete != (self.wire_code is None) or complete != (self.verified is not UNSET):
            raise ValueError("exactly a complete evaluation has verified facts, and it has no wireCode")


class SignedEvaluation(Document):
    profile_id: DocumentKind
    document: BundlePath
    registry: BundlePath
    fault: Fault | None
    expect: StageExpectation
    signing_key: BundlePath | UnsetType = UNSET

    def __post_init__(self) -> None:
        complete = self.expect.stage == "complete"
        if complete != (self.fault is None) or complete != (self.signing_key is not UNSET):
            raise ValueError("exactly a complete evaluation has a signingKey, and it has no fault")


class CanonicalizationEvaluation(Document):
    input: BundlePath
    expected_jcs: BundlePath
    sha256: Sha256


def _evaluation(value: dict[str, Any]) -> SignedEvaluation | CanonicalizationEvaluation:
    if "input" in value:
        return msgspec.convert(value, CanonicalizationEvaluation)
    return msgspec.convert(value, SignedEvaluation)


class CryptographyCase(Document):
    id: CaseId
    kind: Literal["single", "profile-matrix", "failure-matrix", "canonicalization"]
    evaluations: Annotated[tuple[dict[str, Any], ...], Meta(min_length=1)]

    def typed(self) -> tuple[SignedEvaluation | CanonicalizationEvaluation, ...]:
        """The evaluations as types; there are two shapes of them, told apart by ``input``."""
        return tuple(map(_evaluation, self.evaluations))

    def __post_init__(self) -> None:
        evaluations = self.typed()
        if self.kind == "canonicalization" and not isinstance(evaluations[0], CanonicalizationEvaluation):
            raise ValueError("a canonicalization case evaluates a canonicalization")
        if self.kind == "failure-matrix" and any(
            isinstance(evaluation, CanonicalizationEvaluation) or evaluation.fault is None for evaluation in evaluations
        ):
            raise ValueError("a failure-matrix case holds failures only")


class CryptographyManifest(Document):
    schema_: str = msgspec.field(name="$schema")
    manifest_version: Literal[1]
    protocol_version: Literal["0.1"]
    profile_id: Literal["missionweaveprotocol.signed-document-verification.v0.1"]
    semantic_stages: tuple[str, ...]
    fixture_schemas: CryptographyFixtureSchemas
    artifact_digest: Sha256
    profiles: tuple[Profile, ...]
    artifacts: Annotated[tuple[ArtifactEntry, ...], Meta(min_length=1)]
    cases: tuple[CryptographyCase, ...]


# --- admission/manifest.json ------------------------------------------------------------------------------------------


class PinnedCryptography(Document):
    manifest: Literal["cryptography/manifest.json"]
    artifact_digest: Sha256


class AdmissionFixtureSchemas(Document):
    record: Literal["schemas/first-admission-record.schema.json"]
    registry: Literal["cryptography/registry-fixture.schema.json"]


class TrustedContext(Document):
    admission_record_id: Id
    trusted_accepted_at: _Text128
    accepted_by: ServiceActor


class LookupFixture(Document):
    """What the log answers to a lookup."""

    status: Literal[
        "found", "authoritative-absence", "unauthenticated", "integrity-failed", "unavailable", "indeterminate"
    ]
    record: BundlePath | UnsetType = UNSET
    authenticated_service: Actor | UnsetType = UNSET

    def __post_init__(self) -> None:
        _require_record(self, carries=self.status == "found")


class AppendFixture(Document):
    """What the log answers to an append."""

    status: Literal[
        "committed", "existing", "conflict", "unauthenticated", "integrity-failed", "unavailable", "indeterminate"
    ]
    record: BundlePath | UnsetType = UNSET
    authenticated_service: Actor | UnsetType = UNSET

    def __post_init__(self) -> None:
        _require_record(self, carries=self.status in ("committed", "existing"))


def _require_record(outcome: LookupFixture | AppendFixture, *, carries: bool) -> None:
    if carries != (outcome.record is not UNSET) or carries != (outcome.authenticated_service is not UNSET):
        raise ValueError(f"{outcome.status} carries {'a' if carries else 'no'} record and authenticatedService")


class AdmissionExpectation(Document):
    stage: Literal["complete", "admission"]
    wire_code: Literal["AUTH_INVALID_SIGNATURE"] | None
    record: BundlePath | UnsetType = UNSET
    reason: Reason | UnsetType = UNSET

    def __post_init__(self) -> None:
        complete = self.stage == "complete"
        if (
            complete != (self.wire_code is None)
            or complete != (self.record is not UNSET)
            or complete == (self.reason is not UNSET)
        ):
            raise ValueError("a complete evaluation has a record; a rejected one has a wireCode and a reason")


class AdmissionEvaluation(Document):
    id: CaseId
    profile_id: DocumentKind
    mode: Literal["first-admission", "historical-replay"]
    document: BundlePath
    registry: BundlePath
    trusted_context: TrustedContext | None
    lookup: LookupFixture
    append: AppendFixture | None
    expect: AdmissionExpectation

    def __post_init__(self) -> None:
        if self.mode == "historical-replay" and (self.trusted_context is not None or self.append is not None):
            raise ValueError("historical replay has neither trustedContext nor append")


class AdmissionCase(Document):
    id: CaseId
    evaluations: Annotated[tuple[AdmissionEvaluation, ...], Meta(min_length=1)]


class AdmissionManifest(Document):
    schema_: str = msgspec.field(name="$schema")
    manifest_version: Literal[1]
    protocol_version: Literal["0.1"]
    profile_id: Literal["missionweaveprotocol.first-admission-historical-trust.v0.1"]
    semantic_stage: Literal["admission"]
    wire_code: Literal["AUTH_INVALID_SIGNATURE"]
    cryptography: PinnedCryptography
    fixture_schemas: AdmissionFixtureSchemas
    artifact_digest: Sha256
    artifacts: Annotated[tuple[ArtifactEntry, ...], Meta(min_length=1)]
    cases: tuple[AdmissionCase, ...]


def seed_of(fixture: SigningKeyFixture) -> bytes:
    """The seed of a signing-key fixture. Raises ValueError when the public key is not its own."""
    seed = ed25519.decode_base64url(fixture.seed)
    if ed25519.encode_base64url(ed25519.public_key(seed)) != fixture.public_key:
        raise ValueError("publicKey does not belong to seed")
    return seed
