"""What becomes of a Command, and what everybody else is told of its Events."""

from __future__ import annotations

from typing import Any, Final

import msgspec
from msgspec import Struct

from mwnode.protocol.commands import Payload
from mwnode.protocol.documents import Actor
from mwnode.protocol.errors import ErrorCode, Rejection


class Accepted(Struct, frozen=True):
    """A durable Command: its Events as exact signed bytes, the receipt first, then by sequence (decisions A13, B17)."""

    events: tuple[bytes, ...]
    record: bytes | None = None
    """The Registry's answer to Commands that leave a record instead of an Event (decision F7)."""
    duplicate: bool = False
    """Whether the Command had been accepted before; the answer is the original one."""
    place: tuple[str, int] | None = None
    """Where the receipt stands: its log (a Group, or ``""`` for the Organization's) and its sequence there."""

    @property
    def receipt_payload(self) -> dict[str, Any]:
        """Payload of the receipt Event."""
        payload: dict[str, Any] = msgspec.json.decode(self.events[0])["payload"]
        return payload


Outcome = Accepted | Rejection


class CommittedEvent(Struct, frozen=True):
    """A durable Event with what delivery needs to know of it; ``event`` holds the exact bytes to send."""

    group_id: str | None
    sequence: int | None
    event_id: str
    kind: str
    conversation_id: str | None
    work_item_id: str | None
    actor: Actor
    event: bytes
    payload: Payload
    cause_action_id: str | None
    """Action ID of the Command that caused it, not of one that caused its cause."""
    issuer: Actor
    """Who sent the Command that led here; the authority itself for timers."""


INTERNAL: Final = Rejection(
    ErrorCode.INTERNAL_ERROR, "the node could not complete this; nothing was accepted", "R-19-35", retry_after_ms=1000
)
