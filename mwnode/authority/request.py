"""A verified Command made ready for deciding, and what deciding yields."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from msgspec import Struct

from mwnode.authority.state import Row, Table
from mwnode.protocol.commands import Payload
from mwnode.protocol.documents import Actor, Cause, Extension, PolicyLogEntry, SignedDocument
from mwnode.protocol.errors import Rejection
from mwnode.trust.registry import Registry
from mwnode.trust.verification import Failure, Verified


class Embedded(Struct, frozen=True):
    """A Signed Document inside a payload, and the verdict on it (decision D1)."""

    path: str
    document: SignedDocument
    verdict: Verified | Failure


class Request(Struct, frozen=True):
    """One Command after the six stages. ``payload`` is a ``Rejection`` where it does not fit its kind."""

    verified: Verified
    payload: Payload | Rejection
    embedded: tuple[Embedded, ...] = ()


class EventFact(Struct, frozen=True, kw_only=True):
    """An Event before it is signed; also what replay makes of a stored Event."""

    event_id: str
    kind: str
    actor: Actor
    cause: Cause
    correlation_id: str
    occurred_at: str
    payload: Payload
    group_id: str | None = None
    sequence: int | None = None
    aggregate_revision: int | None = None
    conversation_id: str | None = None
    work_item_id: str | None = None
    command_hash: str | None = None
    extensions: Mapping[str, Extension] | None = None
    command_payload: Payload | None = None
    """The payload of the causing Command: Organization-scoped Events carry less than they change, and Context Packages
    stand in Events by hash only (decision A4)."""
    override_grant_id: str | None = None
    """The Cooperation Override Grant that the causing Command cited; its acceptance consumed the Grant."""


class PolicyNote(Struct, frozen=True):
    """A policy-log row; ``group_id`` is ``None`` for the Organization's own log."""

    group_id: str | None
    entry: PolicyLogEntry


class Decision(Struct, frozen=True, kw_only=True):
    """Everything one accepted Command changes, to be committed whole or not at all (R-15.1-15)."""

    facts: tuple[EventFact, ...]
    """All Events, in the order in which they are appended."""
    receipt: int = 0
    """Index in ``facts`` of the receipt."""
    changes: tuple[tuple[Table[Any], Row], ...] = ()
    policy_notes: tuple[PolicyNote, ...] = ()
    stored_documents: tuple[tuple[str, bytes], ...] = ()
    """Documents that Events name by hash: ``sha256:...`` of the bytes, and the bytes."""
    registry: Registry | None = None
    """The Registry's next revision, where this Command changed it."""
    record: dict[str, Any] | None = None
    """Answer of the Commands that leave a Registry record instead of an Event (decision F7)."""
