"""One connection: its protocol engine, what it follows, what waits to be sent, and its transport."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Sequence
from typing import Any, Protocol

from mwnode.gateway.engine import Close, Engine, Phase
from mwnode.gateway.flow import Outbox, Parcel
from mwnode.gateway.ports import Authority, Origin
from mwnode.gateway.replies import Replies
from mwnode.gateway.subscription import Subscription
from mwnode.protocol.documents import Actor


class Peer(Protocol):
    """The transport of one connection."""

    def write(self, parcels: Sequence[Parcel]) -> None:
        """Hand frames to the transport, which may buffer them."""

    @property
    def congested(self) -> bool:
        """Whether the transport holds so much unsent that no more should be written."""

    async def drained(self) -> None:
        """Wait until the transport can take more; OSError when it is gone."""

    async def close(self, code: int, reason: str) -> None:
        """Close after what was written, by the WebSocket's own handshake."""

    def known(self, principal: Actor) -> None:
        """The Agent has authenticated."""

    def spent(self, seconds: float) -> None:
        """The peer has cost so much of the loop's time; less than nothing was of use."""

    def abort(self) -> None:
        """Cut the connection."""


class Connection:
    """One connection: protocol engine, outbox, transport."""

    def __init__(
        self,
        authority: Authority,
        replies: Replies,
        peer: Peer,
        touched: Callable[[Connection], None],
        address: str,
        newest: int,
    ) -> None:
        """``touched`` is told whenever something was queued."""
        limits = authority.limits
        self._touched = touched
        self.peer = peer
        self.engine = Engine(authority, replies)
        self.outbox = Outbox(limits.outbox_frames, limits.outbox_bytes)
        self.subscriptions: dict[str, Subscription] = {}
        self.address = address
        """Where the peer is, as far as the transport knows."""
        self.newest = newest
        """A Session Epoch above this one is not to be fenced by whoever connects here."""
        self.opened_at: str | None = None
        """When the Agent's session began, RFC 3339."""
        self.replaced: dict[str, Any] | None = None
        """The session of the same Agent that was fenced by this one while it was connected."""
        self.withheld: dict[tuple[str, int], None] = {}
        self.origin: Origin | None = None
        self.pinged_at = self.engine.connected_at
        self.fenced_at: float | None = None
        self.closing: Close | None = None
        self.writer: asyncio.Task[None] | None = None
        self.in_flight_bytes = 0
        """Size of the Commands that were not answered: their receipts will be about as large."""
        self.braked_at: float | None = None
        """Since when nothing is read, on the monotonic clock."""
        self.room = asyncio.Event()
        """Set when reading goes on."""
        self.gone = False
        self._cost = 0.0

    @property
    def actor(self) -> Actor:
        return self.engine.actor

    def told(self) -> dict[str, Any]:
        """Whose session this is, since when and from where, for the Agent itself."""
        told = {"sessionEpoch": self.engine.session_epoch, "keyId": self.engine.key_id, "openedAt": self.opened_at}
        return told | ({"address": self.address} if self.address else {})

    @property
    def receiving(self) -> bool:
        return self.engine.phase is Phase.LIVE

    @property
    def braked(self) -> bool:
        """Whether nothing more is read: what waits to be sent, and what will, fills the outbox (R-17.3-01)."""
        return self.outbox.holds(self.in_flight_bytes)

    def relieve(self) -> None:
        """Let reading go on, once half of the bounds is free: a trickle of reads does not take the brake off."""
        over = self.gone or self.engine.phase is Phase.CLOSED
        if self.braked_at is not None and (over or self.outbox.eased(self.in_flight_bytes)):
            self.braked_at = None
            self.room.set()

    def touched(self) -> None:
        self._touched(self)

    def spent(self, seconds: float) -> None:
        """The peer has cost so much of the loop's time; less than nothing was of use. It is charged for that together
        with its next message, or now when none will come."""
        if self.gone:
            self.peer.spent(seconds)
        else:
            self._cost += seconds

    def cost(self) -> float:
        """Seconds spent and not charged yet; from now on they are."""
        cost, self._cost = self._cost, 0.0
        return cost
