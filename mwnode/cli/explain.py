"""What to tell a person about an error: one line, the wire code where there is one, and what to do."""

from __future__ import annotations

from mwnode.cli.failure import Failure
from mwnode.client.errors import ClientError, NotTrusted, Unreachable
from mwnode.home import HomeError
from mwnode.protocol.errors import ErrorCode, MissionWeaveError
from mwnode.store.errors import StoreError


def explain(error: Exception) -> str | None:
    """The line for an error that can happen to anybody; None for one that should not happen at all."""
    if isinstance(error, MissionWeaveError):
        return refused(error)
    if isinstance(error, Unreachable) and not isinstance(error, NotTrusted):
        return f"{error}; does a node serve there? `mwnode serve` prints its address"
    if isinstance(error, (Failure, HomeError, ClientError, StoreError)):
        return str(error)
    if isinstance(error, OSError):
        where = f"{error.filename}: " if error.filename else ""
        return f"{where}{error.strerror or error}"
    return None


HINTS: dict[ErrorCode, str] = {
    ErrorCode.AUTH_REQUIRED: "the node does not know who asks: is the key registered (`mwnode key list`)?",
    ErrorCode.AUTH_INVALID_SIGNATURE: "see with `mwnode key list` whether this key is registered there and valid now, "
    "and compare the clocks; on the node, `mwnode doctor --audit` tells which check failed",
    ErrorCode.AUTH_STALE_SESSION: "another process has connected with this key, and the newer one acts for the Agent: "
    "stop one of the two, or give it an Agent of its own by `mwnode agent add`",
    ErrorCode.AUTH_STALE_COORDINATOR: "see with `mwnode mission show ID` who coordinates now",
    ErrorCode.AUTH_FORBIDDEN: "act as somebody whose role allows it: give that key by --key",
    ErrorCode.GROUP_NOT_FOUND: "see `mwnode mission list` for what this key may see, or act with another by --key",
    ErrorCode.MEMBERSHIP_REQUIRED: "act with the key of a Member by --key, or have the MissionOwner add this one",
    ErrorCode.MEMBERSHIP_STALE: "run the command again",
    ErrorCode.SCHEMA_VALIDATION_FAILED: "correct it and run the command again",
    ErrorCode.INVALID_COMMAND: "nothing was changed: correct it and run the command again",
    ErrorCode.INVALID_STATE_TRANSITION: "`mwnode why ID` tells how it came to be in its present state",
    ErrorCode.REVISION_CONFLICT: "somebody changed it meanwhile: look with `mwnode mission show ID`, then decide anew",
    ErrorCode.WORK_CONTRACT_INCOMPLETE: "add it and run the command again",
    ErrorCode.APPROVAL_REQUIRED: "`mwnode waiting` shows who must approve what",
    ErrorCode.RATE_LIMITED: "run the command again in a minute",
    ErrorCode.BACKPRESSURE: "run the command again in a moment",
    ErrorCode.CURSOR_TOO_OLD: "older Events are trimmed; `mwnode artifact get HASH` fetches the snapshot that tells of "
    "them",
    ErrorCode.INTERNAL_ERROR: "nothing was changed: run the command again; the node's log and `mwnode doctor` say more",
}
"""What somebody at a command line does next. Who sends documents of their own is told as the protocol says it."""


def refused(error: MissionWeaveError, *, by_hand: bool = False) -> str:
    """A refusal of the authority: its code, what is wrong and where, and what to do next.

    ``by_hand`` when the sender made the document: then it is the document that is to be changed.
    """
    details = error.rejection.details or {}
    place = str(details.get("path", ""))
    where = f" (at {place})" if place and place not in error.message else ""
    revision = error.rejection.current_revision
    current = f", current revision {revision}" if revision is not None else ""
    snapshot = f" ({details['snapshotArtifactHash']})" if "snapshotArtifactHash" in details else ""
    hint = error.help if by_hand else HINTS.get(error.code, error.help)
    return f"{error.code}: {error.message}{where}{current}; {hint}{snapshot}"
