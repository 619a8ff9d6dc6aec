"""What can go wrong on the way to a node. What the node itself answers is a ``MissionWeaveError``."""

from __future__ import annotations

from mwnode.protocol.errors import ErrorCode, MissionWeaveError

_RESTARTED = frozenset({ErrorCode.AUTH_REQUIRED, ErrorCode.AUTH_INVALID_SIGNATURE})
"""What a request is answered whose challenge or token came from before the node died."""


class ClientError(Exception):
    """Root of the client's own errors; the text says what to do."""


class Unreachable(ClientError):
    """No connection, or none that is trusted: wrong address, node down, certificate not from the expected CA."""


class NotTrusted(Unreachable):
    """The server's certificate is not from the expected CA: trying again changes nothing, another ``ca`` does."""


class ConnectionLost(ClientError):
    """The client was closed, or its connection ended for good, while something waited for an answer."""


class ChallengeRefused(ClientError):
    """The server asked for a signature over something that is not exactly its own challenge; nothing was signed.

    A key that signs Commands must never sign bytes that somebody else chose (decision A27).
    """


class Untrusted(ClientError):
    """The server sent an Event or snapshot that does not verify against the Registry (R-17.1-09, R-16-07)."""


def passes(error: Exception) -> bool:
    """Whether the same request may well succeed in a moment: the node was away, is busy, or has just been restarted."""
    if isinstance(error, MissionWeaveError):
        return error.retryable or error.code in _RESTARTED
    return isinstance(error, Unreachable) and not isinstance(error, NotTrusted)
