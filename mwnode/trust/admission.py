"""First admission and historical replay: the trusted time at which a Signed Document was first accepted.

A signed time proves nothing by itself: whoever holds a stolen key can date a document back. The Admission Log says when
it was first seen. Both paths begin with a document that passed all six stages (R-6.4-66) and end with a record that was
returned by the log, parsed, and compared (R-6.4-68). Every failure is AUTH_INVALID_SIGNATURE at stage ``admission``
(R-6.4-76). The log's results are types, never booleans, and none of them means yes but the two that carry a record
(R-6.4-63, R-6.4-64).
"""

from __future__ import annotations

from enum import StrEnum
from typing import Protocol

import msgspec
from msgspec import Struct

from mwnode.protocol import instants, jcs, strict_json
from mwnode.protocol.documents import Actor, FirstAdmissionRecord, ServiceActor
from mwnode.protocol.errors import ErrorCode
from mwnode.protocol.instants import Instant
from mwnode.protocol.jcs import JcsFault
from mwnode.protocol.plain_words import plain
from mwnode.protocol.strict_json import JsonFault, SchemaFault
from mwnode.trust.verification import Failure, Verified


class Reason(StrEnum):
    """Why admission failed; for the protected audit log (R-6.4-76)."""

    RECORD_MISSING = "record-missing"
    RECORD_BINDING_MISMATCH = "record-binding-mismatch"
    OUTSIDE_KEY_INTERVAL = "trusted-time-outside-key-interval"
    MALFORMED_TRUSTED_TIME = "malformed-trusted-time"
    RECORD_CONFLICT = "record-conflict"
    RECORD_SCHEMA_INVALID = "record-schema-invalid"
    LOG_AUTHENTICATION_FAILED = "log-authentication-failed"
    INTEGRITY_NOT_ESTABLISHED = "append-integrity-not-established"
    LOG_UNAVAILABLE = "log-unavailable"
    LOG_INDETERMINATE = "log-indeterminate"
    COMMIT_FAILED = "commit-failed"
    EVENT_SELF_ANCHORING = "event-self-anchoring"
    NOT_FRESH = "not-fresh"


# --- what the log answers ---------------------------------------------------------------------------------------------


class Found(Struct, frozen=True):
    """The log holds a record under the key that was asked for, written by the service that it authenticates."""

    record: bytes
    authenticated_service: Actor


class AuthoritativeAbsence(Struct, frozen=True):
    """The log is complete up to now and holds no such record. Only this leads to a candidate (R-6.4-62)."""


class Unauthenticated(Struct, frozen=True):
    """The log could not say who wrote the record, or refused the writer."""


class IntegrityFailed(Struct, frozen=True):
    """The log is not, or not provably, append-only."""


class Unavailable(Struct, frozen=True):
    """The log could not be asked."""


class Indeterminate(Struct, frozen=True):
    """The log could not tell."""


class Committed(Struct, frozen=True):
    """The candidate was appended; ``record`` is what the log now holds."""

    record: bytes
    authenticated_service: Actor


class Existing(Struct, frozen=True):
    """Somebody was first; ``record`` is what the log holds, and nothing was appended."""

    record: bytes
    authenticated_service: Actor


class Conflict(Struct, frozen=True):
    """The log holds a record of the same signing hash for another key, Principal or kind (R-6.4-65)."""


class CommitFailed(Struct, frozen=True):
    """The append did not become durable."""


LogTrouble = Unauthenticated | IntegrityFailed | Unavailable | Indeterminate
LookupOutcome = Found | AuthoritativeAbsence | LogTrouble
AppendOutcome = Committed | Existing | Conflict | CommitFailed | LogTrouble

_TROUBLE: dict[type[LogTrouble | Conflict | CommitFailed], Reason] = {
    Unauthenticated: Reason.LOG_AUTHENTICATION_FAILED,
    IntegrityFailed: Reason.INTEGRITY_NOT_ESTABLISHED,
    Unavailable: Reason.LOG_UNAVAILABLE,
    Indeterminate: Reason.LOG_INDETERMINATE,
    Conflict: Reason.RECORD_CONFLICT,
    CommitFailed: Reason.COMMIT_FAILED,
}


class AdmissionLog(Protocol):
    """The log, keyed by Organization and signing hash; at most one record for each key (R-6.4-60)."""

    def lookup(self, organization_id: str, signing_hash: str) -> LookupOutcome:
        """What the log holds under a key."""
        ...

    def append_or_existing(self, candidate: FirstAdmissionRecord) -> AppendOutcome:
        """Append the candidate, or return what is there, atomically."""
        ...


class Acceptance(Struct, frozen=True):
    """What the accepting service puts into a new record: a fresh ID, its own clock's time, and itself."""

    admission_record_id: str
    trusted_accepted_at: str
    accepted_by: Actor


class Acceptor(Protocol):
    """The accepting service. It is asked only once absence is certain, so that a retry costs no time and no ID."""

    def accept(self) -> Acceptance:
        """Open one acceptance, now."""
        ...


# --- the checks -------------------------------------------------------------------------------------------------------


def failure(reason: Reason, detail: str = "") -> Failure:
    """An admission failure (R-6.4-76)."""
    return Failure("admission", reason.value, ErrorCode.AUTH_INVALID_SIGNATURE, detail)


def _within_interval(instant: Instant, verified: Verified) -> bool:
    return (
        verified.valid_from <= instant
        and (verified.valid_until is None or instant < verified.valid_until)
        and (verified.revoked_at is None or instant < verified.revoked_at)
    )


def candidate(verified: Verified, acceptance: Acceptance) -> FirstAdmissionRecord | Failure:
    """The record to append for a document, checked before anything is written (R-6.4-69, R-6.4-74)."""
    try:
        accepted_at = instants.parse(acceptance.trusted_accepted_at)
    except ValueError:
        return failure(Reason.MALFORMED_TRUSTED_TIME)
    if not _within_interval(accepted_at, verified):
        return failure(Reason.OUTSIDE_KEY_INTERVAL)
    try:
        return msgspec.convert(
            {
                "protocolVersion": "0.1",
                "admissionRecordId": acceptance.admission_record_id,
                "organizationId": verified.organization_id,
                "documentKind": verified.kind,
                "signingHash": verified.signing_hash,
                "keyId": verified.key_id,
                "principal": msgspec.to_builtins(verified.principal),
                "trustedAcceptedAt": acceptance.trusted_accepted_at,
                "acceptedBy": msgspec.to_builtins(acceptance.accepted_by),
            },
            FirstAdmissionRecord,
        )
    except msgspec.ValidationError as fault:
        return failure(Reason.RECORD_SCHEMA_INVALID, plain(str(fault)))


def _anchors_itself(record: bytes, verified: Verified) -> bool:
    """Whether the log returned the document itself as its own record (R-6.4-75)."""
    try:
        value = strict_json.parse(record)
        return isinstance(value, dict) and "signature" in value and jcs.signing_bytes(value) == verified.canonical
    except (JsonFault, JcsFault):
        return False


def check_record(record: bytes, authenticated_service: Actor, verified: Verified) -> FirstAdmissionRecord | Failure:
    """A record that the log returned, parsed strictly and compared with the document (R-6.4-51 to 59, R-6.4-73)."""
    try:
        parsed = strict_json.decode(record, FirstAdmissionRecord)
    except (JsonFault, SchemaFault) as fault:
        if _anchors_itself(record, verified):
            return failure(Reason.EVENT_SELF_ANCHORING)
        return failure(Reason.RECORD_SCHEMA_INVALID, str(fault))
    return _check_parsed(parsed, authenticated_service, verified)


def _check_parsed(
    record: FirstAdmissionRecord, authenticated_service: Actor, verified: Verified
) -> FirstAdmissionRecord | Failure:
    for name, found, wanted in (
        ("organizationId", record.organization_id, verified.organization_id),
        ("documentKind", record.document_kind, verified.kind),
        ("signingHash", record.signing_hash, verified.signing_hash),
        ("keyId", record.key_id, verified.key_id),
        ("principal", record.principal, verified.principal),
    ):
        if found != wanted:
            return failure(Reason.RECORD_BINDING_MISMATCH, f"{name} differs")
    if not _same_service(record.accepted_by, authenticated_service):
        return failure(Reason.LOG_AUTHENTICATION_FAILED, "acceptedBy is not the service that the log authenticates")
    if not _within_interval(instants.parse(record.trusted_accepted_at), verified):
        return failure(Reason.OUTSIDE_KEY_INTERVAL)
    return record


def _same_service(named: ServiceActor, authenticated: Actor) -> bool:
    return authenticated.type == "service" and named.id == authenticated.id


class SeenRecords:
    """Remembers which document each record ID stands for, across many checks of one log (R-6.4-52)."""

    def __init__(self) -> None:
        self._keys: dict[str, tuple[str, str]] = {}

    def check(self, record: FirstAdmissionRecord) -> FirstAdmissionRecord | Failure:
        """The record, or a failure when its ID was seen under another Organization or signing hash."""
        key = (record.organization_id, record.signing_hash)
        if self._keys.setdefault(record.admission_record_id, key) != key:
            return failure(Reason.INTEGRITY_NOT_ESTABLISHED, "one admissionRecordId stands under two logical keys")
        return record


# --- the two paths ----------------------------------------------------------------------------------------------------


def admit(verified: Verified, log: AdmissionLog, acceptor: Acceptor) -> FirstAdmissionRecord | Failure:
    """First admission: the record under which the document is admitted, new or found (R-6.4-67, R-6.4-68).

    Nothing is appended unless absence is certain and the candidate is good. A concurrent winner's record may differ in
    its ID and time, and in nothing else.
    """
    looked_up = log.lookup(verified.organization_id, verified.signing_hash)
    if isinstance(looked_up, Found):
        return check_record(looked_up.record, looked_up.authenticated_service, verified)
    if not isinstance(looked_up, AuthoritativeAbsence):
        return failure(_TROUBLE[type(looked_up)])
    record = candidate(verified, acceptor.accept())
    if isinstance(record, Failure):
        return record
    appended = log.append_or_existing(record)
    if isinstance(appended, (Committed, Existing)):
        return check_record(appended.record, appended.authenticated_service, verified)
    return failure(_TROUBLE[type(appended)])


def replay(verified: Verified, log: AdmissionLog) -> FirstAdmissionRecord | Failure:
    """Historical replay: the record must be there; nothing is ever appended (R-6.4-70 to R-6.4-72)."""
    looked_up = log.lookup(verified.organization_id, verified.signing_hash)
    if isinstance(looked_up, Found):
        return check_record(looked_up.record, looked_up.authenticated_service, verified)
    if isinstance(looked_up, AuthoritativeAbsence):
        return failure(Reason.RECORD_MISSING)
    return failure(_TROUBLE[type(looked_up)])


def check_freshness(issued_at: Instant, now: Instant, *, window_seconds: int, skew_seconds: int) -> Failure | None:
    """Whether a newly presented Command is recent: at most ``window_seconds`` old, ``skew_seconds`` ahead (R-6.4-77).

    Both edges are inside. A Command that is found in the Admission Log was fresh once and is not asked again.
    """
    if issued_at < now.plus(-window_seconds) or issued_at > now.plus(skew_seconds):
        return failure(Reason.NOT_FRESH, f"issuedAt {issued_at.text()} at {now.text()}")
    return None
