"""The six stages: who signed these bytes, under which key, at which protected time.

    parse, schema, signature-envelope, key-resolution, canonicalization, signature

The first stage that fails names the failure (R-6.4-36); the wire learns its code and nothing else (R-6.4-81). Nothing
here knows of admission, sessions or policy (R-6.4-48).

A good document takes the fast path: one decoding, one encoding, one libsodium verification. Every other document goes
through the stages one by one, which also spends the same work on every refusal of a signature, wherever it failed.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, cast

from msgspec import Struct

from mwnode.protocol import instants, jcs, strict_json
from mwnode.protocol.documents import (
    SIGNED_DOCUMENTS,
    Actor,
    Command,
    DocumentKind,
    SignedDocument,
)
from mwnode.protocol.errors import SIGNED_DOCUMENT_REJECTED, ErrorCode, Rejection
from mwnode.protocol.instants import Instant
from mwnode.protocol.jcs import JcsFault
from mwnode.protocol.limits import FRAME_BYTES, JSON_DEPTH
from mwnode.protocol.strict_json import JsonFault, SchemaFault
from mwnode.trust import ed25519
from mwnode.trust.plain_reading import read_plain
from mwnode.trust.registry import Binding, NoRegistry, Registry

STAGES = ("parse", "schema", "signature-envelope", "key-resolution", "canonicalization", "signature")
"""The stages in their normative order."""

STAGE_CODES: dict[str, ErrorCode] = {
    "parse": ErrorCode.PROTOCOL_VIOLATION,
    "schema": ErrorCode.SCHEMA_VALIDATION_FAILED,
    "signature-envelope": ErrorCode.AUTH_INVALID_SIGNATURE,
    "key-resolution": ErrorCode.AUTH_INVALID_SIGNATURE,
    "canonicalization": ErrorCode.PROTOCOL_VIOLATION,
    "signature": ErrorCode.AUTH_INVALID_SIGNATURE,
    "admission": ErrorCode.AUTH_INVALID_SIGNATURE,
}
"""The wire code of each stage, admission included (R-6.4-38 to R-6.4-43, R-6.4-76)."""

PROTECTED_TIMES: dict[DocumentKind, str] = {
    "agent-card": "issued_at",
    "approval": "occurred_at",
    "artifact": "created_at",
    "command": "issued_at",
    "context-package": "generated_at",
    "event": "occurred_at",
    "evidence": "created_at",
    "extension-profile": "approved_at",
    "group-snapshot": "created_at",
}
"""The member that signature.createdAt repeats (R-6.4-01 to R-6.4-09)."""


class Failure(Struct, frozen=True):
    """The first stage that failed, and why. ``reason`` and ``detail`` are for the protected audit log only."""

    stage: str
    reason: str
    code: ErrorCode
    detail: str = ""

    def rejection(self) -> Rejection:
        """What the wire may learn: for a signature, key or admission nothing but the code (R-6.4-81)."""
        if self.code is ErrorCode.AUTH_INVALID_SIGNATURE:
            return Rejection(self.code, SIGNED_DOCUMENT_REJECTED)
        return Rejection(self.code, self.detail or SIGNED_DOCUMENT_REJECTED)


class Verified(Struct, frozen=True, gc=False):
    """A document that passed all six stages, and what admission and policy need to know of them (R-6.4-66)."""

    kind: DocumentKind
    document: SignedDocument
    canonical: bytes
    """The signing bytes: the canonical document without its signature."""
    signing_hash: str
    key_id: str
    principal: Actor
    """Who the key belongs to."""
    organization_id: str
    protected_time: Instant
    valid_from: Instant
    valid_until: Instant | None
    revoked_at: Instant | None


# --- who may sign what ------------------------------------------------------------------------------------------------

_SERVICE = ("service", "")
_PRINCIPAL_MEMBERS: dict[DocumentKind, str] = {
    "approval": "approver",
    "command": "actor",
    "context-package": "generated_by",
    "event": "accepted_by",
    "evidence": "generated_by",
    "extension-profile": "approved_by",
    "group-snapshot": "created_by",
}


def expected_signer(document: SignedDocument, kind: DocumentKind) -> tuple[str, str]:
    """Type and ID of the only Principal whose key may sign a document; an Agent Card takes any service, ID empty."""
    if kind == "agent-card":
        return _SERVICE
    if kind == "artifact":
        return "agent", cast(Any, document).producer.agent_id
    principal = getattr(document, _PRINCIPAL_MEMBERS[kind])
    return principal.type, principal.id


def _may_sign(principal: Actor, expected: tuple[str, str]) -> bool:
    """Whether a key's Principal is the expected one, type and ID alike (R-6.4-10)."""
    return principal.type == expected[0] and (not expected[1] or principal.id == expected[1])


# --- the fast path ----------------------------------------------------------------------------------------------------


def _times_bound(document: SignedDocument, kind: DocumentKind) -> bool:
    """Protected time and createdAt: one text, byte for byte, ending in an upper-case Z (R-6.4-12, R-6.4-13)."""
    text = getattr(document, PROTECTED_TIMES[kind])
    return bool(text == document.signature.created_at and text[-1] == "Z")


class Prepared(Struct, frozen=True, gc=False):
    """A document for which nothing but the equation is open."""

    document: SignedDocument
    kind: DocumentKind
    signing: bytes
    signature: bytes
    binding: Binding
    organization_id: str
    protected_time: Instant

    @property
    def equation(self) -> tuple[bytes, bytes, bytes]:
        """The arguments of ``ed25519.verify`` that tell whether it holds."""
        return self.binding.public_key, self.signing, self.signature

    def holds(self) -> bool:
        """Stages 3 and 6: a proven key and libsodium's yes prove R and S as well; see mwnode.trust.ed25519."""
        return ed25519.verify(self.binding.public_key, self.signing, self.signature)

    def verified(self) -> Verified:
        binding = self.binding
        return Verified(
            self.kind,
            self.document,
            self.signing,
            jcs.signing_hash(self.signing),
            binding.key_id,
            binding.principal,
            self.organization_id,
            self.protected_time,
            binding.valid_from,
            binding.valid_until,
            binding.revoked_at,
        )


def _prepare(
    document: SignedDocument,
    kind: DocumentKind,
    signing: bytes,
    signature: bytes | None,
    registry: Registry | NoRegistry,
) -> Prepared | None:
    """All of stages 3 and 4 but the points: it passes, or the slow path finds out what did not."""
    envelope = document.signature
    created_at = envelope.created_at
    # As `_times_bound` and `expected_signer`, in place: this runs for every Command.
    if getattr(document, PROTECTED_TIMES[kind]) != created_at or created_at[-1] != "Z":
        return None
    if signature is None or isinstance(registry, NoRegistry):
        return None
    binding = registry.resolve(envelope.key_id)
    if binding is None:
        return None
    if kind == "command":
        actor, principal = cast(Command, document).actor, binding.principal
        if principal.id != actor.id or principal.type != actor.type:
            return None
    elif not _may_sign(binding.principal, expected_signer(document, kind)):
        return None
    protected_time = instants.parse(created_at)
    if not binding.valid_at(protected_time):
        return None
    return Prepared(document, kind, signing, signature, binding, registry.organization_id, protected_time)


# --- the stages one by one --------------------------------------------------------------------------------------------


def _failure(stage: str, reason: str, detail: str = "") -> Failure:
    return Failure(stage, reason, STAGE_CODES[stage], detail)


_DECOY_SEED = bytes(32)
_DECOY_KEY = ed25519.public_key(_DECOY_SEED)
_DECOY_SIGNATURE = ed25519.sign(_DECOY_SEED, _DECOY_KEY, b"")


def _spend(*, on_point: bool) -> None:
    """Do the work that a refusal at an earlier stage left out, so that its time does not tell the stage (R-6.4-81)."""
    if on_point:
        ed25519.prove_point(_DECOY_KEY)
    ed25519.verify(_DECOY_KEY, b"", _DECOY_SIGNATURE)


def _envelope_failure(document: SignedDocument, kind: DocumentKind) -> tuple[Failure | None, bytes]:
    """Stage 3. Returns the signature's bytes too; they are zeros when it has none."""
    if document.signature.created_at[-1] != "Z" or getattr(document, PROTECTED_TIMES[kind])[-1] != "Z":
        return _failure("signature-envelope", "protected-time-not-utc"), bytes(64)
    if not _times_bound(document, kind):
        return _failure("signature-envelope", "created-at-differs-from-protected-time"), bytes(64)
    signature = ed25519.decode_signature(document.signature.value)
    if signature is None:
        return _failure("signature-envelope", "signature-encoding"), bytes(64)
    defect = ed25519.defect_of_encoding(signature)
    return (None if defect is None else _failure("signature-envelope", defect.value)), signature


def _resolve(
    document: SignedDocument, kind: DocumentKind, registry: Registry | NoRegistry
) -> tuple[Binding, str] | Failure:
    """Stage 4 (R-6.4-41): the key, and the Organization whose evidence names it."""
    if isinstance(registry, NoRegistry):
        return _failure("key-resolution", registry.reason)
    binding = registry.resolve(document.signature.key_id)
    if binding is None:
        return _failure("key-resolution", "unknown-key", f"keyId {document.signature.key_id}")
    if not _may_sign(binding.principal, expected_signer(document, kind)):
        return _failure("key-resolution", "wrong-principal", f"keyId {binding.key_id} is {binding.principal.id}")
    if not binding.valid_at(instants.parse(document.signature.created_at)):
        return _failure("key-resolution", "outside-key-interval", f"keyId {binding.key_id}")
    return binding, registry.organization_id


def _verify_slowly(document: SignedDocument, kind: DocumentKind, registry: Registry | NoRegistry) -> Verified | Failure:
    """Stages 3 to 6 in their order."""
    failure, signature = _envelope_failure(document, kind)
    if failure is not None:
        _spend(on_point=failure.reason != ed25519.Defect.POINT)
        return failure
    resolved = _resolve(document, kind, registry)
    if isinstance(resolved, Failure):
        _spend(on_point=False)
        return resolved
    binding, organization_id = resolved
    try:
        signing = jcs.signing_bytes(document)
    except JcsFault as fault:
        return _failure("canonicalization", fault.reason, str(fault))
    protected_time = instants.parse(document.signature.created_at)
    prepared = Prepared(document, kind, signing, signature, binding, organization_id, protected_time)
    if not prepared.holds():
        return _failure("signature", ed25519.Defect.EQUATION.value, f"keyId {binding.key_id}")
    return prepared.verified()


# --- entry points -----------------------------------------------------------------------------------------------------


def verify(
    raw: bytes,
    kind: DocumentKind,
    registry: Registry | NoRegistry,
    *,
    depth_max: int = JSON_DEPTH,
    bytes_max: int = FRAME_BYTES,
) -> Verified | Failure:
    """All six stages over the bytes of one document. Pure: the same arguments always give the same answer."""
    prepared = _prepare_plain(raw, kind, registry, depth_max) if len(raw) <= bytes_max else None
    if prepared is not None and prepared.holds():
        return prepared.verified()
    try:
        document = strict_json.decode(raw, SIGNED_DOCUMENTS[kind], depth_max=depth_max, bytes_max=bytes_max)
    except JsonFault as fault:
        return _failure("parse", fault.reason, str(fault))
    except SchemaFault as fault:
        return _failure("schema", "schema-mismatch", str(fault))
    return verify_document(document, kind, registry)


def _prepare_plain(raw: bytes, kind: DocumentKind, registry: Registry | NoRegistry, depth_max: int) -> Prepared | None:
    plain = read_plain(raw, kind, depth_max)
    return None if plain is None else _prepare(plain[0], kind, plain[1], plain[2], registry)


def verify_document(
    document: SignedDocument, kind: DocumentKind, registry: Registry | NoRegistry
) -> Verified | Failure:
    """Stages 3 to 6 of a document that was read already, such as one inside a payload."""
    try:
        signature = ed25519.decode_signature(document.signature.value)
        prepared = _prepare(document, kind, jcs.signing_bytes(document), signature, registry)
    except JcsFault:
        # Not before its turn: stages 3 and 4 come first.
        prepared = None
    if prepared is not None and prepared.holds():
        return prepared.verified()
    return _verify_slowly(document, kind, registry)


def prepare_batch(
    items: Sequence[tuple[bytes, DocumentKind]],
    registry: Registry | NoRegistry,
    *,
    depth_max: int = JSON_DEPTH,
    bytes_max: int = FRAME_BYTES,
) -> list[Prepared | None]:
    """The first half of :func:`verify_batch`: everything but the equations. ``None`` for what is not plainly good."""
    return [_prepare_plain(raw, kind, registry, depth_max) if len(raw) <= bytes_max else None for raw, kind in items]


def finish_batch(
    items: Sequence[tuple[bytes, DocumentKind]],
    prepared: Sequence[Prepared | None],
    held: Sequence[bool],
    registry: Registry | NoRegistry,
    *,
    depth_max: int = JSON_DEPTH,
    bytes_max: int = FRAME_BYTES,
) -> list[Verified | Failure]:
    """The second half, once it is known which equations hold. What does not goes through every stage again."""
    return [
        candidate.verified()
        if candidate is not None and holds
        else verify(raw, kind, registry, depth_max=depth_max, bytes_max=bytes_max)
        for candidate, holds, (raw, kind) in zip(prepared, held, items, strict=True)
    ]


def verify_batch(
    items: Sequence[tuple[bytes, DocumentKind]],
    registry: Registry | NoRegistry,
    *,
    depth_max: int = JSON_DEPTH,
    bytes_max: int = FRAME_BYTES,
) -> list[Verified | Failure]:
    """:func:`verify` for each item, in order, all against one revision.

    All are read before the first equation is checked: reading and curve arithmetic each find their data in the
    processor's cache, which is worth about a tenth of the time.
    """
    prepared = prepare_batch(items, registry, depth_max=depth_max, bytes_max=bytes_max)
    held = [candidate is not None and candidate.holds() for candidate in prepared]
    return finish_batch(items, prepared, held, registry, depth_max=depth_max, bytes_max=bytes_max)
