"""Replay and live delivery to many connections. Without I/O but for short reads of the store.

A subscription replays from the store, chunk by chunk at the pace of its connection, until it meets the head; from then
on it is fed by what the writer commits. Both happen on one thread, and a commit is in the store before it is published:
so whatever a snapshot does not show is published later, and what was published before is in the snapshot. That leaves
neither a gap nor a race (R-16-01, R-16-06), and memory is bounded however far behind a subscriber is (R-17.3-01).
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Iterable, Sequence

import msgspec
from msgspec import UNSET

from mwnode.authority.access import sight_of
from mwnode.gateway.access import Rooms, add_room, conversation_of, rooms_of, shows, sight_after
from mwnode.gateway.attention import Attention
from mwnode.gateway.engine import BACKPRESSURE_MS
from mwnode.gateway.flow import Mark, Parcel, parcel, parcels
from mwnode.gateway.ports import Authority
from mwnode.gateway.replies import FAULTS_MAX, TOO_MANY_FAULTS, Replies
from mwnode.gateway.subscription import (
    CHUNK_EVENTS,
    Mode,
    Receiver,
    Subscription,
    conversation_in,
    memberships_in,
    own_membership,
)
from mwnode.protocol import frames
from mwnode.protocol.commands import CORE
from mwnode.protocol.documents import Conversation, Membership
from mwnode.protocol.errors import ErrorCode, Rejection
from mwnode.protocol.events import ANNOUNCED_KINDS
from mwnode.protocol.instants import Instant
from mwnode.store.batch import Accepted, CommittedEvent
from mwnode.store.port import ReadTransaction, StoredEvent

CHUNK_BYTES = 512 * 1024
ROOM_BYTES = 512 * 1024
"""A replay reads on while less than this waits in its connection's outbox."""
WITHHELD_MAX = 1024

MEMBERSHIP_KINDS = frozenset(
    {
        "mission.created",
        "mission.follow_up.created",
        "mission.coordinator.assigned",
        "membership.changed",
        "membership.ended",
        "membership.delegation.granted",
        "work.offer.accepted",
    }
)
"""Events that carry Memberships, and so may change who reads what."""
_CONVERSATION_OPENED = f"{CORE}.conversation_opened"


class _Channel:
    """All that follow one Group."""

    def __init__(self, group_id: str, rooms: Rooms) -> None:
        self.group_id = group_id
        self.rooms = rooms
        self.subscriptions: dict[int, Subscription] = {}


class Delivery:
    """Who follows what. Used from one thread only."""

    def __init__(self, authority: Authority, replies: Replies, schedule: Callable[[], None]) -> None:
        """``schedule`` asks for ``pump`` to be called soon."""
        self._authority = authority
        self._replies = replies
        self._schedule = schedule
        self._channels: dict[str, _Channel] = {}
        self._replaying: deque[Subscription] = deque()
        self._stalled: dict[int, list[Subscription]] = {}
        self.live_by_agent: dict[str, Receiver] = {}
        self.replayed = 0
        """Events sent by replay."""
        self.delivered = 0
        """Events sent live."""
        self.paused = 0
        """How often a Group was paused."""

    # --- SUBSCRIBE ---

    def follow(self, receiver: Receiver, frame: frames.Subscribe) -> None:
        """Start the replays of a SUBSCRIBE. Each entry stands alone: one refused Group hinders no other (R-17.2-02)."""
        mark = Mark(self._replies.mark(frame.subscription_id), 0)
        now = self._authority.clock.now()
        refused = 0
        with self._authority.read() as view:
            for entry in frame.groups:
                if refused == FAULTS_MAX:
                    receiver.outbox.put_first(self._replies.error(TOO_MANY_FAULTS, related_frame_id=frame.frame_id))
                    break
                refusal = self._follow_one(view, receiver, entry, mark, now)
                if refusal is not None:
                    refused += 1
                    rejection, snapshot = refusal
                    # The Group is echoed as the client named it, for foreign and invented ones alike (C4).
                    details = {**(rejection.details or {}), "groupId": entry.group_id}
                    error = self._replies.error(
                        msgspec.structs.replace(rejection, details=details),
                        related_frame_id=frame.frame_id,
                        snapshot_artifact_hash=snapshot,
                    )
                    receiver.outbox.put_first(error)
        if mark.waiting == 0:
            receiver.outbox.put_first(mark.frame)
        receiver.touched()
        self._schedule()

    def _follow_one(
        self, view: ReadTransaction, receiver: Receiver, entry: frames.GroupSubscription, mark: Mark, now: Instant
    ) -> tuple[Rejection, str | None] | None:
        group_id = entry.group_id
        sight = sight_of(view, receiver.actor, group_id, now)
        if isinstance(sight, Rejection):
            return sight, None
        known = receiver.subscriptions.get(group_id)
        if known is None and len(receiver.subscriptions) >= self._authority.limits.subscriptions:
            text = f"a connection follows at most {self._authority.limits.subscriptions} Groups"
            return Rejection(ErrorCode.RATE_LIMITED, text, "R-19-31"), None
        start = max(entry.after_sequence, sight.start - 1)
        trimmed = view.trimmed(group_id)
        if trimmed is not None and start < trimmed.through:
            text = f"Events up to {trimmed.through} are no longer online; restore the snapshot and go on from there"
            return Rejection(ErrorCode.CURSOR_TOO_OLD, text, "R-19-33"), trimmed.snapshot_artifact_hash
        if known is not None:
            self._drop_subscription(known)
        attention = None if entry.attention is UNSET else Attention(entry.attention, receiver.actor.id)
        # A position above the head means "live only" (wire facts 2.2).
        position = min(start, view.head(group_id))
        subscription = Subscription(receiver, group_id, position, sight, attention, mark)
        mark.waiting += 1
        receiver.subscriptions[group_id] = subscription
        channel = self._channels.get(group_id)
        if channel is None:
            channel = self._channels[group_id] = _Channel(group_id, rooms_of(view, group_id))
        channel.subscriptions[id(subscription)] = subscription
        self._replaying.append(subscription)
        return None

    def _drop_subscription(self, subscription: Subscription) -> None:
        if subscription.mode is Mode.REPLAYING:
            self._end_replay(subscription)
        subscription.mode = Mode.OVER
        channel = self._channels.get(subscription.group_id)
        if channel is not None:
            channel.subscriptions.pop(id(subscription), None)
            if not channel.subscriptions:
                del self._channels[subscription.group_id]

    def leave(self, receiver: Receiver) -> None:
        """The connection gets nothing more."""
        for subscription in receiver.subscriptions.values():
            # A replay that was cut short has not reached its end: no mark says so.
            subscription.mark = None
            self._drop_subscription(subscription)
        receiver.subscriptions.clear()
        self._stalled.pop(id(receiver), None)
        if self.live_by_agent.get(receiver.actor.id) is receiver:
            del self.live_by_agent[receiver.actor.id]

    # --- replay ---

    def pump(self, turns: int = 4) -> bool:
        """Read a chunk for each of a few replays, in turn; whether there is more to read now."""
        if not self._replaying:
            return False
        with self._authority.read() as view:
            for _ in range(min(turns, len(self._replaying))):
                subscription = self._replaying.popleft()
                if subscription.mode is not Mode.REPLAYING:
                    continue
                if subscription.receiver.outbox.bytes >= ROOM_BYTES:
                    self._stalled.setdefault(id(subscription.receiver), []).append(subscription)
                elif self._read_chunk(view, subscription):
                    self._replaying.append(subscription)
        return bool(self._replaying)

    def drained(self, receiver: Receiver) -> None:
        """The connection has room again: its replays go on."""
        stalled = self._stalled.pop(id(receiver), None)
        if stalled:
            self._replaying.extend(stalled)
            self._schedule()

    def _read_chunk(self, view: ReadTransaction, subscription: Subscription) -> bool:
        """Queue the next Events of a replay; whether the head is not reached yet."""
        limit = subscription.chunk
        events = view.events(subscription.group_id, subscription.position, limit)
        more = len(events) == limit
        last = subscription.last
        if last is not None and (not events or events[-1].sequence >= last):
            events = [event for event in events if event.sequence <= last]
            more = False
        if events:
            self._queue_stored(subscription, events)
            subscription.position = events[-1].sequence
            size = sum(len(event.event) for event in events)
            # Large Events are read in smaller chunks, so that what is read ahead stays bounded.
            subscription.chunk = max(1, min(CHUNK_EVENTS, CHUNK_BYTES * len(events) // max(1, size)))
        if not more:
            self._end_replay(subscription)
            over = last is not None or subscription.over(self._authority.clock.now())
            subscription.mode = Mode.OVER if over else Mode.LIVE
        subscription.receiver.touched()
        return more

    def _queue_stored(self, subscription: Subscription, events: Sequence[StoredEvent]) -> None:
        sight = subscription.sight
        channel = self._channels.get(subscription.group_id)
        rooms = channel.rooms if channel is not None else {}
        if rooms and not sight.whole:
            events = [event for event in events if shows(sight, rooms, event.sequence, conversation_of(event.event))]
        self.replayed += len(events)
        framed = [self._replies.event(event.event) for event in events]
        for each in parcels(framed):
            subscription.receiver.outbox.put(subscription.group_id, each)

    def _end_replay(self, subscription: Subscription) -> None:
        """Let the mark follow the last replayed Event of all Groups of its SUBSCRIBE (decision A11)."""
        mark, subscription.mark = subscription.mark, None
        if mark is not None:
            subscription.receiver.outbox.put(subscription.group_id, Parcel((), 0, mark))
            subscription.receiver.touched()

    # --- live ---

    def publish(self, events: Iterable[CommittedEvent]) -> None:
        """Deliver the Group Events of one durable batch, in commit order."""
        by_group: dict[str, list[CommittedEvent]] = {}
        for event in events:
            if event.group_id is not None and event.sequence is not None:
                by_group.setdefault(event.group_id, []).append(event)
        for group_id, of_group in by_group.items():
            for event in of_group:
                if event.kind in ANNOUNCED_KINDS:
                    self._announce(group_id, event)
            channel = self._channels.get(group_id)
            if channel is not None:
                self._publish_to(channel, of_group)

    def _announce(self, group_id: str, event: CommittedEvent) -> None:
        """Tell Agents of Groups that they were put into and do not follow (decision A1)."""
        for membership in memberships_in(event.payload):
            receiver = self.live_by_agent.get(membership.member.id) if membership.member.type == "agent" else None
            if receiver is None or not receiver.receiving or membership.state == "ended":
                continue
            subscription = receiver.subscriptions.get(group_id)
            if subscription is None or subscription.mode is Mode.OVER:
                receiver.outbox.put(group_id, parcel((self._replies.event(event.event),)))
                receiver.touched()

    def _publish_to(self, channel: _Channel, events: list[CommittedEvent]) -> None:
        first, last = events[0].sequence or 0, events[-1].sequence or 0
        changing = False
        for event in events:
            if event.kind in MEMBERSHIP_KINDS:
                changing = True
            elif event.kind == _CONVERSATION_OPENED:
                conversation = getattr(event.payload, "conversation", None)
                if isinstance(conversation, Conversation):
                    add_room(channel.rooms, conversation)
        framed = [self._replies.event(event.event) for event in events]
        shared = parcels(framed)
        group_id = channel.group_id
        for subscription in tuple(channel.subscriptions.values()):
            sight = subscription.sight
            if (
                not changing
                and subscription.position == first - 1
                and subscription.plain
                and first >= sight.start
                and (sight.whole or not channel.rooms)
                and subscription.receiver.receiving
            ):
                outbox = subscription.receiver.outbox
                for each in shared:
                    outbox.put(group_id, each)
                subscription.position = last
                self.delivered += len(events)
                subscription.receiver.touched()
                if outbox.over(group_id):
                    self._pause(subscription)
            else:
                self._deliver_one_by_one(channel, subscription, events, framed)

    def _deliver_one_by_one(
        self, channel: _Channel, subscription: Subscription, events: list[CommittedEvent], framed: list[bytes]
    ) -> None:
        now = self._authority.clock.now()
        chosen: list[bytes] = []
        for event, frame in zip(events, framed, strict=True):
            own = own_membership(event, subscription.sight.principal) if event.kind in MEMBERSHIP_KINDS else None
            if subscription.mode is Mode.LIVE and self._wants(channel, subscription, event, own, now):
                chosen.append(frame)
            if own is not None:
                self._membership_moved(subscription, own, event.sequence or 0, now)
        receiver = subscription.receiver
        if not chosen or not receiver.receiving:
            return
        self.delivered += len(chosen)
        for each in parcels(chosen):
            receiver.outbox.put(subscription.group_id, each)
        receiver.touched()
        if receiver.outbox.over(subscription.group_id) and subscription.mode is Mode.LIVE:
            self._pause(subscription)

    def _wants(
        self,
        channel: _Channel,
        subscription: Subscription,
        event: CommittedEvent,
        own: Membership | None,
        now: Instant,
    ) -> bool:
        """Whether a published Event is delivered to a live subscription; moves its position."""
        sequence = event.sequence or 0
        if sequence <= subscription.position:
            return False
        if sequence != subscription.position + 1:
            # Never expected; the store has what was missed, so nothing is lost.
            subscription.mode = Mode.REPLAYING
            self._replaying.append(subscription)
            self._schedule()
            return False
        if subscription.over(now):
            subscription.mode = Mode.OVER
            return False
        subscription.position = sequence
        if sequence in subscription.owed:
            subscription.owed.discard(sequence)
            return True
        if own is not None:
            # Its own Membership is news that no filter withholds; the end of it is the last thing delivered (C6).
            return True
        attention = subscription.attention
        readable = shows(subscription.sight, channel.rooms, sequence, conversation_in(event))
        if readable and (
            attention is None or attention.passes(event.kind, event.conversation_id, event.work_item_id, event.payload)
        ):
            return True
        if event.issuer == subscription.sight.principal:
            # Perhaps a receipt, which reaches its issuer whatever the filter says (decision A12).
            withheld = subscription.receiver.withheld
            withheld[(channel.group_id, sequence)] = None
            if len(withheld) > WITHHELD_MAX:
                del withheld[next(iter(withheld))]
        return False

    def _membership_moved(
        self, subscription: Subscription, membership: Membership, sequence: int, now: Instant
    ) -> None:
        sight = sight_after(membership, now)
        if not isinstance(sight, Rejection):
            subscription.see(sight)
            subscription.last = None
        elif subscription.mode is Mode.REPLAYING:
            subscription.last = sequence
        else:
            subscription.mode = Mode.OVER

    def _pause(self, subscription: Subscription) -> None:
        """Stop one Group of one connection; the others go on (R-17.3-02, R-19-32)."""
        self.paused += 1
        subscription.mode = Mode.PAUSED
        rejection = Rejection(
            ErrorCode.BACKPRESSURE,
            "this Group's Events come faster than they are read; subscribe it again from your position",
            "R-19-32",
            retry_after_ms=BACKPRESSURE_MS,
        )
        frame = self._replies.error(rejection, group_id=subscription.group_id)
        subscription.receiver.outbox.put(subscription.group_id, parcel((frame,)))
        subscription.receiver.touched()

    # --- receipts ---

    def receipt(self, receiver: Receiver, accepted: Accepted) -> None:
        """Let the receipt reach the issuer of a Command, subscribed or not (decisions A12, F22)."""
        if accepted.place is None or not receiver.receiving:
            return
        raw = accepted.events[0]
        group_id, sequence = accepted.place
        subscription = receiver.subscriptions.get(group_id)
        if subscription is not None and subscription.mode is Mode.LIVE and not accepted.duplicate:
            if subscription.position < sequence:
                # Its batch is about to be published: it comes in its place, which is at once.
                subscription.owed.add(sequence)
                return
            if receiver.withheld.pop((group_id, sequence), UNSET) is UNSET:
                return
        receiver.outbox.put(group_id, parcel((self._replies.event(raw),)))
        receiver.touched()

    # --- figures ---

    @property
    def followed(self) -> int:
        """Subscriptions in all."""
        return sum(len(channel.subscriptions) for channel in self._channels.values())
