"""What to tell a person about an error: one line, the wire code where there is one, and what to do."""

from __future__ import annotations

from mwnode.cli.exits import Failure
from mwnode.client.errors import ClientError
from mwnode.home import HomeError
from mwnode.protocol.errors import MissionWeaveError
from mwnode.store.errors import StoreError


def explain(error: Exception) -> str | None:
    """The line for an error that can happen to anybody; None for one that should not happen at all."""
    if isinstance(error, MissionWeaveError):
        return refused(error)
    if isinstance(error, (Failure, HomeError, ClientError, StoreError)):
        return str(error)
    if isinstance(error, OSError):
        where = f"{error.filename}: " if error.filename else ""
        return f"{where}{error.strerror or error}"
    return None


def refused(error: MissionWeaveError) -> str:
    """A refusal of the authority: its code, what is wrong and where, and what the sender does next."""
    details = error.rejection.details or {}
    where = f" (at {details['path']})" if "path" in details else ""
    revision = error.rejection.current_revision
    current = f", current revision {revision}" if revision is not None else ""
    snapshot = f" ({details['snapshotArtifactHash']})" if "snapshotArtifactHash" in details else ""
    return f"{error.code}: {error.message}{where}{current}; {error.help}{snapshot}"
