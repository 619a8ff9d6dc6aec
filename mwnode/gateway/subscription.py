"""What one connection follows, and what an Event says about Memberships. Pure."""

from __future__ import annotations

from enum import Enum, auto
from typing import Any, Protocol

from mwnode.authority.access import Sight
from mwnode.gateway.access import expiry_of
from mwnode.gateway.attention import Attention
from mwnode.gateway.flow import Mark, Outbox
from mwnode.protocol.commands import Payload
from mwnode.protocol.documents import Actor, Conversation, Membership
from mwnode.protocol.instants import Instant
from mwnode.store.batch import CommittedEvent

CHUNK_EVENTS = 64
"""Events read at once by a replay."""


class Mode(Enum):
    """Where a subscription stands."""

    REPLAYING = auto()
    LIVE = auto()
    PAUSED = auto()
    """Over its bounds: nothing more until the client subscribes again (decision C7)."""
    OVER = auto()
    """The Membership has ended: silence (decision C6)."""


class Receiver(Protocol):
    """A connection as delivery sees it."""

    outbox: Outbox
    subscriptions: dict[str, Subscription]
    withheld: dict[tuple[str, int], None]

    @property
    def actor(self) -> Actor: ...

    @property
    def receiving(self) -> bool:
        """Whether Events may still be sent: authenticated, not fenced, not closed."""

    def touched(self) -> None:
        """Something was queued in the outbox."""


class Subscription:
    """One Group followed by one connection. ``position``: everything up to there was queued or withheld."""

    __slots__ = (
        "attention",
        "chunk",
        "expires",
        "group_id",
        "last",
        "mark",
        "mode",
        "owed",
        "position",
        "receiver",
        "sight",
    )

    def __init__(
        self,
        receiver: Receiver,
        group_id: str,
        position: int,
        sight: Sight,
        attention: Attention | None,
        mark: Mark | None,
    ) -> None:
        self.receiver = receiver
        self.group_id = group_id
        self.position = position
        self.sight = sight
        self.expires = expiry_of(sight)
        self.attention = attention
        self.mark = mark
        self.mode = Mode.REPLAYING
        self.chunk = CHUNK_EVENTS
        self.last: int | None = None
        """The last Event to replay, once the Membership has ended meanwhile."""
        self.owed: set[int] = set()
        """Receipts that are on their way to be published: delivered even where the filter would withhold them."""

    def see(self, sight: Sight) -> None:
        """The Membership has changed."""
        self.sight = sight
        self.expires = expiry_of(sight)

    def over(self, now: Instant) -> bool:
        """Whether the Membership has run out by itself."""
        return self.expires is not None and self.expires <= now

    @property
    def plain(self) -> bool:
        """Whether every Event of the Group is delivered as it comes."""
        return self.mode is Mode.LIVE and self.attention is None and not self.owed and self.expires is None


def memberships_in(payload: Payload) -> tuple[Membership, ...]:
    """The Memberships that an Event states."""
    several: Any = getattr(payload, "memberships", None)
    if isinstance(several, tuple):
        return several
    one: Any = getattr(payload, "membership", None)
    return (one,) if isinstance(one, Membership) else ()


def own_membership(event: CommittedEvent, principal: Actor) -> Membership | None:
    """The Membership of one Principal that an Event states for its Group."""
    for membership in memberships_in(event.payload):
        if membership.member == principal and membership.group_id == event.group_id:
            return membership
    return None


def conversation_in(event: CommittedEvent) -> str | None:
    """The Conversation that an Event belongs to, or opens."""
    if event.conversation_id is not None:
        return event.conversation_id
    conversation = getattr(event.payload, "conversation", None)
    return conversation.conversation_id if isinstance(conversation, Conversation) else None
