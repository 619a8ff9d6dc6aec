"""What can go wrong, in the protocol's 27 words.

The core returns a :class:`Rejection`; edges raise the :class:`MissionWeaveError` of the same code or send an
:class:`ErrorDocument`. One code leads to one class, one retry rule and one HTTP status (R-19-01, R-19-02).
"""

from __future__ import annotations

from collections.abc import Iterator
from enum import StrEnum
from typing import Any, ClassVar

from msgspec import UNSET, Struct, UnsetType

from mwnode.protocol.documents import Document, JsonObject
from mwnode.protocol.scalars import Id, SafeInteger, Sha256, Text2000, Timestamp


class ErrorCode(StrEnum):
    """Every error code of protocol 0.1 (R-19-01)."""

    UNSUPPORTED_VERSION = "UNSUPPORTED_VERSION"
    AUTH_REQUIRED = "AUTH_REQUIRED"
    AUTH_INVALID_SIGNATURE = "AUTH_INVALID_SIGNATURE"
    AUTH_STALE_SESSION = "AUTH_STALE_SESSION"
    AUTH_STALE_COORDINATOR = "AUTH_STALE_COORDINATOR"
    AUTH_FORBIDDEN = "AUTH_FORBIDDEN"
    GROUP_NOT_FOUND = "GROUP_NOT_FOUND"
    MEMBERSHIP_REQUIRED = "MEMBERSHIP_REQUIRED"
    MEMBERSHIP_STALE = "MEMBERSHIP_STALE"
    SCHEMA_VALIDATION_FAILED = "SCHEMA_VALIDATION_FAILED"
    INVALID_COMMAND = "INVALID_COMMAND"
    INVALID_STATE_TRANSITION = "INVALID_STATE_TRANSITION"
    REVISION_CONFLICT = "REVISION_CONFLICT"
    ACTION_ID_COLLISION = "ACTION_ID_COLLISION"
    UNKNOWN_CRITICAL_EXTENSION = "UNKNOWN_CRITICAL_EXTENSION"
    WORK_CONTRACT_INCOMPLETE = "WORK_CONTRACT_INCOMPLETE"
    WORK_OFFER_EXPIRED = "WORK_OFFER_EXPIRED"
    WORK_ALREADY_OWNED = "WORK_ALREADY_OWNED"
    WORK_LEASE_EXPIRED = "WORK_LEASE_EXPIRED"
    WORK_STALE_OWNERSHIP = "WORK_STALE_OWNERSHIP"
    APPROVAL_REQUIRED = "APPROVAL_REQUIRED"
    BUDGET_EXCEEDED = "BUDGET_EXCEEDED"
    RATE_LIMITED = "RATE_LIMITED"
    BACKPRESSURE = "BACKPRESSURE"
    CURSOR_TOO_OLD = "CURSOR_TOO_OLD"
    PROTOCOL_VIOLATION = "PROTOCOL_VIOLATION"
    INTERNAL_ERROR = "INTERNAL_ERROR"


RETRYABLE: frozenset[ErrorCode] = frozenset({ErrorCode.BACKPRESSURE, ErrorCode.RATE_LIMITED, ErrorCode.INTERNAL_ERROR})
"""Codes after which the same bytes may be sent again: nothing was accepted and nothing is wrong with them (R-19-02)."""

HTTP_STATUS: dict[ErrorCode, int] = {
    ErrorCode.UNSUPPORTED_VERSION: 400,
    ErrorCode.AUTH_REQUIRED: 401,
    ErrorCode.AUTH_INVALID_SIGNATURE: 401,
    ErrorCode.AUTH_STALE_SESSION: 409,
    ErrorCode.AUTH_STALE_COORDINATOR: 409,
    ErrorCode.AUTH_FORBIDDEN: 403,
    ErrorCode.GROUP_NOT_FOUND: 404,
    ErrorCode.MEMBERSHIP_REQUIRED: 403,
    ErrorCode.MEMBERSHIP_STALE: 409,
    ErrorCode.SCHEMA_VALIDATION_FAILED: 400,
    ErrorCode.INVALID_COMMAND: 400,
    ErrorCode.INVALID_STATE_TRANSITION: 409,
    ErrorCode.REVISION_CONFLICT: 409,
    ErrorCode.ACTION_ID_COLLISION: 409,
    ErrorCode.UNKNOWN_CRITICAL_EXTENSION: 400,
    ErrorCode.WORK_CONTRACT_INCOMPLETE: 400,
    ErrorCode.WORK_OFFER_EXPIRED: 409,
    ErrorCode.WORK_ALREADY_OWNED: 409,
    ErrorCode.WORK_LEASE_EXPIRED: 409,
    ErrorCode.WORK_STALE_OWNERSHIP: 409,
    ErrorCode.APPROVAL_REQUIRED: 403,
    ErrorCode.BUDGET_EXCEEDED: 409,
    ErrorCode.RATE_LIMITED: 429,
    ErrorCode.BACKPRESSURE: 503,
    ErrorCode.CURSOR_TOO_OLD: 410,
    ErrorCode.PROTOCOL_VIOLATION: 400,
    ErrorCode.INTERNAL_ERROR: 503,
}
"""The HTTP status of each code; a body over its size limit is 413 with PROTOCOL_VIOLATION."""

SIGNED_DOCUMENT_REJECTED = "signed document rejected"
"""The only text that goes with AUTH_INVALID_SIGNATURE: the wire never tells which check failed (R-6.4-81)."""


class Rejection(Struct, frozen=True):
    """Why a Command was refused; nothing of it was applied.

    ``rule`` is the requirement id for logs and tests and never leaves the node; ``retry_after_ms`` is in milliseconds.
    """

    code: ErrorCode
    message: str
    rule: str = ""
    details: dict[str, Any] | None = None
    expected_revision: int | None = None
    current_revision: int | None = None
    retry_after_ms: int | None = None


class ErrorDocument(Document):
    """The error object of the wire (``error.schema.json``); ``retry_after_ms`` in milliseconds."""

    code: ErrorCode
    message: Text2000
    retryable: bool
    occurred_at: Timestamp
    fatal: bool | UnsetType = UNSET
    related_frame_id: Id | UnsetType = UNSET
    related_action_id: Id | UnsetType = UNSET
    group_id: Id | UnsetType = UNSET
    expected_revision: SafeInteger | UnsetType = UNSET
    current_revision: SafeInteger | UnsetType = UNSET
    retry_after_ms: SafeInteger | UnsetType = UNSET
    snapshot_artifact_hash: Sha256 | UnsetType = UNSET
    details: JsonObject | UnsetType = UNSET


def _unset_if_none(value: Any) -> Any:
    return UNSET if value is None else value


def error_document(
    rejection: Rejection,
    occurred_at: str,
    *,
    fatal: bool | None = None,
    related_frame_id: str | None = None,
    related_action_id: str | None = None,
    group_id: str | None = None,
    snapshot_artifact_hash: str | None = None,
) -> ErrorDocument:
    """The error document of a rejection.

    An AUTH_INVALID_SIGNATURE loses its message and details here, whatever the caller put in (R-6.4-81).
    """
    masked = rejection.code is ErrorCode.AUTH_INVALID_SIGNATURE
    message = SIGNED_DOCUMENT_REJECTED if masked else rejection.message
    return ErrorDocument(
        code=rejection.code,
        message=message[:2000] or rejection.code.value,
        retryable=rejection.code in RETRYABLE,
        occurred_at=occurred_at,
        fatal=_unset_if_none(fatal),
        related_frame_id=_unset_if_none(related_frame_id),
        related_action_id=_unset_if_none(related_action_id),
        group_id=_unset_if_none(group_id),
        expected_revision=_unset_if_none(rejection.expected_revision),
        current_revision=_unset_if_none(rejection.current_revision),
        retry_after_ms=_unset_if_none(rejection.retry_after_ms),
        snapshot_artifact_hash=_unset_if_none(snapshot_artifact_hash),
        details=UNSET if masked else _unset_if_none(rejection.details),
    )


class MissionWeaveError(Exception):
    """Root of all errors of the protocol. Subclasses name one code each; ``help`` says what the sender does next."""

    code: ClassVar[ErrorCode]
    help: ClassVar[str] = ""

    def __init__(
        self,
        message: str,
        *,
        rule: str = "",
        details: dict[str, Any] | None = None,
        expected_revision: int | None = None,
        current_revision: int | None = None,
        retry_after_ms: int | None = None,
    ) -> None:
        super().__init__(message)
        self.rejection = Rejection(
            self.code, message, rule, details, expected_revision, current_revision, retry_after_ms
        )

    @property
    def message(self) -> str:
        return self.rejection.message

    @property
    def retryable(self) -> bool:
        return self.code in RETRYABLE

    @staticmethod
    def of(rejection: Rejection) -> MissionWeaveError:
        """The exception of a rejection's code."""
        return BY_CODE[rejection.code](
            rejection.message,
            rule=rejection.rule,
            details=rejection.details,
            expected_revision=rejection.expected_revision,
            current_revision=rejection.current_revision,
            retry_after_ms=rejection.retry_after_ms,
        )

    @staticmethod
    def of_document(document: ErrorDocument) -> MissionWeaveError:
        """The exception that a received error document stands for; a snapshot that it names is in the details."""

        def known(value: Any) -> Any:
            return None if value is UNSET else value

        details = known(document.details)
        if document.snapshot_artifact_hash is not UNSET:
            details = {**(details or {}), "snapshotArtifactHash": document.snapshot_artifact_hash}
        return BY_CODE[document.code](
            document.message,
            details=details,
            expected_revision=known(document.expected_revision),
            current_revision=known(document.current_revision),
            retry_after_ms=known(document.retry_after_ms),
        )


class UnsupportedVersion(MissionWeaveError):
    """The two sides share no protocol version. [R-19-09]"""

    code = ErrorCode.UNSUPPORTED_VERSION
    help = "offer protocol version 0.1 in the handshake"


class AuthRequired(MissionWeaveError):
    """The caller has not authenticated yet, or its token has ended. [R-19-10]"""

    code = ErrorCode.AUTH_REQUIRED
    help = "authenticate first (HELLO on a WebSocket, a session over HTTP)"


class AuthInvalidSignature(MissionWeaveError):
    """A signed document failed a check of its signature, key, admission or freshness. [R-19-11]"""

    code = ErrorCode.AUTH_INVALID_SIGNATURE
    help = "run 'mwnode check' on the document and 'mwnode doctor --audit' on the node; never resend it unchanged"


class AuthStaleSession(MissionWeaveError):
    """A newer Session Epoch of the Agent has fenced this one. [R-19-12]"""

    code = ErrorCode.AUTH_STALE_SESSION
    help = "connect again and send a new Command with the new sessionEpoch"


class AuthStaleCoordinator(MissionWeaveError):
    """The Coordinator Epoch is not the current one. [R-19-13]"""

    code = ErrorCode.AUTH_STALE_COORDINATOR
    help = "read the Mission; only its current Coordinator may act, with the current coordinatorEpoch"


class AuthForbidden(MissionWeaveError):
    """The actor is known but may not do this. [R-19-14]"""

    code = ErrorCode.AUTH_FORBIDDEN
    help = "ask somebody whose role allows it, or have the role changed"


class GroupNotFound(MissionWeaveError):
    """There is no such Group for this caller. [R-19-15]"""

    code = ErrorCode.GROUP_NOT_FOUND
    help = "check the groupId, and that you are a Member"


class MembershipRequired(MissionWeaveError):
    """The caller has no Membership that applies. [R-19-16]"""

    code = ErrorCode.MEMBERSHIP_REQUIRED
    help = "have the Coordinator or the MissionOwner make you a Member"


class MembershipStale(MissionWeaveError):
    """The Membership Epoch is not the current one. [R-19-17]"""

    code = ErrorCode.MEMBERSHIP_STALE
    help = "read your Membership and send a new Command with its membershipEpoch"


class SchemaValidationFailed(MissionWeaveError):
    """An object does not fit its schema. [R-19-18]"""

    code = ErrorCode.SCHEMA_VALIDATION_FAILED
    help = "correct the member named in the message"


class InvalidCommand(MissionWeaveError):
    """The Command fits its schema but makes no sense here. [R-19-19]"""

    code = ErrorCode.INVALID_COMMAND
    help = "correct the member named in details.path and send it under a new actionId"


class InvalidStateTransition(MissionWeaveError):
    """The state of the Mission or WorkItem does not allow it. [R-19-20]"""

    code = ErrorCode.INVALID_STATE_TRANSITION
    help = "'mwnode why' tells how it came to be in its present state"


class RevisionConflict(MissionWeaveError):
    """Somebody else changed the aggregate first. [R-19-21]"""

    code = ErrorCode.REVISION_CONFLICT
    help = "read it again and decide anew from currentRevision"


class ActionIdCollision(MissionWeaveError):
    """The Action ID already stands for other content. [R-19-22]"""

    code = ErrorCode.ACTION_ID_COLLISION
    help = "use a new actionId and sign again"


class UnknownCriticalExtension(MissionWeaveError):
    """Extension data that must be understood is not. [R-19-23]"""

    code = ErrorCode.UNKNOWN_CRITICAL_EXTENSION
    help = "register the Extension Profile, or pin its major version in the Group"


class WorkContractIncomplete(MissionWeaveError):
    """The Work Contract lacks a member it needs. [R-19-24]"""

    code = ErrorCode.WORK_CONTRACT_INCOMPLETE
    help = "add the member named in details.path"


class WorkOfferExpired(MissionWeaveError):
    """The offer ran out, was withdrawn or replaced. [R-19-25]"""

    code = ErrorCode.WORK_OFFER_EXPIRED
    help = "wait for a new offer"


class WorkAlreadyOwned(MissionWeaveError):
    """Another Agent accepted first. [R-19-26]"""

    code = ErrorCode.WORK_ALREADY_OWNED
    help = "nothing to do: the WorkItem has an owner"


class WorkLeaseExpired(MissionWeaveError):
    """The Lease ended before the Command was decided. [R-19-27]"""

    code = ErrorCode.WORK_LEASE_EXPIRED
    help = "stop the work, reconcile, and start again if you still own the WorkItem"


class WorkStaleOwnership(MissionWeaveError):
    """The Ownership Epoch was fenced. [R-19-28]"""

    code = ErrorCode.WORK_STALE_OWNERSHIP
    help = "stop the work: the WorkItem was given to somebody else"


class ApprovalRequired(MissionWeaveError):
    """A gate waits for a human. [R-19-29]"""

    code = ErrorCode.APPROVAL_REQUIRED
    help = "'mwnode waiting' shows who must approve what"


class BudgetExceeded(MissionWeaveError):
    """A hard budget would be passed. [R-19-30]"""

    code = ErrorCode.BUDGET_EXCEEDED
    help = "the MissionOwner raises the budget, or the contract is revised"


class RateLimited(MissionWeaveError):
    """A rate or depth of the policy was passed. [R-19-31]"""

    code = ErrorCode.RATE_LIMITED
    help = "send it again after retryAfterMs, or with a Cooperation Override Grant"


class Backpressure(MissionWeaveError):
    """The node cannot take more now. [R-19-32]"""

    code = ErrorCode.BACKPRESSURE
    help = "send the same bytes again after retryAfterMs"


class CursorTooOld(MissionWeaveError):
    """The Events asked for are no longer online. [R-19-33]"""

    code = ErrorCode.CURSOR_TOO_OLD
    help = "start from the snapshot named by snapshotArtifactHash"


class ProtocolViolation(MissionWeaveError):
    """Framing, JSON or a core invariant was broken. [R-19-34]"""

    code = ErrorCode.PROTOCOL_VIOLATION
    help = "correct the sender: these bytes can never be accepted"


class InternalError(MissionWeaveError):
    """The node failed; nothing was accepted. [R-19-35]"""

    code = ErrorCode.INTERNAL_ERROR
    help = "send the same bytes again later; the node's log says what failed"


def _leaves(root: type[MissionWeaveError]) -> Iterator[type[MissionWeaveError]]:
    for child in root.__subclasses__():
        yield child
        yield from _leaves(child)


BY_CODE: dict[ErrorCode, type[MissionWeaveError]] = {leaf.code: leaf for leaf in _leaves(MissionWeaveError)}
"""The one exception class of each code."""
