"""The client's side of the WebSocket protocol without I/O: bytes in, frames and notices out.

The shell opens connections and moves bytes; the engine decides what they mean. It outlives connections: subscriptions
and unanswered Commands are taken up again by ``connect``.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from enum import Enum, auto

from msgspec import UNSET, Struct, UnsetType

from mwnode.client.challenges import handshake_transcript
from mwnode.client.errors import ConnectionLost
from mwnode.client.feed import Feed
from mwnode.protocol import frames, strict_json
from mwnode.protocol.documents import Actor, Event, PresenceRecord
from mwnode.protocol.errors import ErrorCode, ErrorDocument, MissionWeaveError
from mwnode.protocol.events import ANNOUNCED_KINDS
from mwnode.protocol.frames import AttentionFilter, GroupSubscription
from mwnode.protocol.identifiers import uuid7_urn
from mwnode.protocol.ports import Clock, Entropy
from mwnode.trust.ed25519 import encode_base64url
from mwnode.trust.keys import SigningKey

FRAME_BYTES = 4 * 1024 * 1024
"""Largest frame taken from a server, bytes; an Event is somewhat larger than the Command that caused it."""
FRAME_DEPTH = 128
PING_SECONDS = 20.0
DEAD_SECONDS = 60.0


class Phase(Enum):
    """Where the connection stands."""

    CLOSED = auto()
    GREETED = auto()
    ANSWERED = auto()
    LIVE = auto()


class Opened(Struct, frozen=True):
    """The handshake is complete."""

    session_epoch: int
    token: str
    expires_at: str


class Delivered(Struct, frozen=True):
    """An Event in its order. ``subscribed`` is false for notices of Groups that are not subscribed (decision A1)."""

    event: Event
    raw: bytes
    subscribed: bool


class Answered(Struct, frozen=True):
    """The receipt of a Command of ours."""

    action_id: str
    event: Event
    raw: bytes


class Refused(Struct, frozen=True):
    """A Command of ours was refused; nothing of it was applied."""

    action_id: str
    error: MissionWeaveError


class Denied(Struct, frozen=True):
    """A Group could not be subscribed."""

    group_id: str
    error: MissionWeaveError
    snapshot_artifact_hash: str | None = None


class Paused(Struct, frozen=True):
    """The server stopped one Group's Events until it is subscribed again, not before ``retry_after_ms`` (C7)."""

    group_id: str
    retry_after_ms: int


class CaughtUp(Struct, frozen=True):
    """Everything that existed in these Groups when they were subscribed has been delivered."""

    group_ids: tuple[str, ...]


class Problem(Struct, frozen=True):
    """An error that belongs to nothing we know."""

    error: MissionWeaveError


class Ended(Struct, frozen=True):
    """The server ends this connection, and says why."""

    error: MissionWeaveError


class Unsent(Struct, frozen=True):
    """A Command of ours never left before the connection was lost: it has to be signed under the new epoch."""

    action_id: str


Notice = Opened | Unsent | Delivered | Answered | Refused | Denied | Paused | CaughtUp | Problem | Ended


class StaleRegistry(Exception):
    """An Event names a key that our copy of the Registry does not know: fetch it again, then receive once more."""


class Pending(Struct):
    """A Command that has not been answered yet; ``raw`` is sent again unchanged after a lost link (R-19-04)."""

    action_id: str
    raw: bytes
    receipt_kind: str | None
    sent: bool = False
    """Whether it may have reached the server."""


class Subscription(Struct):
    """What is asked of one Group at every connection."""

    feed: Feed[Delivered]
    attention: AttentionFilter | UnsetType = UNSET
    established: bool = False
    """Whether its replay came to an end once: what ends it later does not make it unknown."""
    ending: bool = False
    """The replay told of the end of the Membership; perhaps it tells of a new one yet."""
    over: bool = False
    """The Membership has ended, and with it what the server sends, until the Agent is put into the Group again."""


Check = Callable[[bytes], None]
"""Verifies the signature of an Event's bytes; raises Untrusted or StaleRegistry."""


class ClientEngine:
    """One Agent's session. Call ``connect`` for each new connection, ``receive`` for each message on it."""

    def __init__(self, key: SigningKey, clock: Clock, entropy: Entropy, check: Check | None = None) -> None:
        self._key = key
        self._clock = clock
        self._entropy = entropy
        self._check = check
        self.phase = Phase.CLOSED
        self.session_epoch = 0
        self.unconfirmed = 0
        """Handshakes since then whose end we never heard of: each may have opened one more Session Epoch of ours."""
        self.presence: Callable[[int], PresenceRecord] | None = None
        """Makes the Presence that goes with our PINGs, from the Session Epoch."""
        self.membership_epochs: dict[str, int] = {}
        """The Agent's own Membership Epoch per Group, as far as Events told it."""
        self._subscriptions: dict[str, Subscription] = {}
        self._replays: dict[str, list[str]] = {}
        self._asked: dict[str, list[str]] = {}
        self._dropped: set[str] = set()
        self._pending: dict[str, Pending] = {}
        self._outgoing: list[bytes] = []
        self._queued: list[str] = []
        self._client_nonce = ""
        self._heard = 0.0
        self._spoke = 0.0

    # --- outgoing ---

    def outgoing(self) -> list[bytes]:
        """The frames to send now, in order."""
        waiting, self._outgoing = self._outgoing, []
        for action_id in self._queued:
            command = self._pending.get(action_id)
            if command is not None:
                command.sent = True
        self._queued.clear()
        return waiting

    def connect(self) -> None:
        """A connection was made: greet (R-6.3-02)."""
        self.phase = Phase.GREETED
        self._outgoing.clear()
        self._queued.clear()
        self._replays.clear()
        self._asked.clear()
        self._dropped.clear()
        self._client_nonce = encode_base64url(self._entropy.random(32))
        self._heard = self._spoke = self._clock.monotonic()
        self._send(
            frames.HelloClientInit(
                protocol_version="0.1",
                frame_id=self._new_id(),
                phase="client_init",
                agent_id=self._key.principal.id,
                key_id=self._key.key_id,
                client_nonce=self._client_nonce,
                supported_versions=("0.1",),
            )
        )

    def disconnected(self) -> None:
        """The connection is gone; what was unanswered stays pending."""
        self.phase = Phase.CLOSED
        self._outgoing.clear()
        self._queued.clear()

    def submit(self, command: Pending) -> None:
        """Send a Command, now or as soon as there is a session."""
        self._pending[command.action_id] = command
        if self.phase is Phase.LIVE:
            self._send_command(command)

    def again(self, action_id: str) -> None:
        """Send an unanswered Command once more, byte for byte."""
        command = self._pending.get(action_id)
        if command is not None and self.phase is Phase.LIVE:
            self._send_command(command)

    def forget(self, action_id: str) -> None:
        """Nobody waits for this Command any more."""
        self._pending.pop(action_id, None)

    def subscribe(self, positions: dict[str, int], attention: AttentionFilter | None = None) -> None:
        """Follow Groups from positions on: Events above them, now and at every later connection."""
        for group_id, position in positions.items():
            self._dropped.discard(group_id)
            self._subscriptions[group_id] = Subscription(Feed(position), attention if attention is not None else UNSET)
        self._ask(list(positions))

    def resume(self, group_id: str) -> None:
        """Subscribe a paused Group again from where it stands."""
        subscription = self._subscriptions.get(group_id)
        if subscription is not None:
            subscription.feed.restart()
            self._ask([group_id])

    def unsubscribe(self, group_id: str) -> None:
        """Drop a Group from later connections. The server has no word for it: its Events are ignored until then."""
        if self._subscriptions.pop(group_id, None) is not None:
            self._dropped.add(group_id)

    def position(self, group_id: str) -> int | None:
        """The sequence up to which a subscribed Group was handed on."""
        subscription = self._subscriptions.get(group_id)
        return None if subscription is None else subscription.feed.position

    def acknowledge(self, cursors: dict[str, int]) -> None:
        """Tell the server what was processed durably; only ever raised (R-16-04)."""
        if self.phase is Phase.LIVE and cursors:
            self._send(
                frames.Ack(
                    protocol_version="0.1",
                    frame_id=self._new_id(),
                    acknowledgements=tuple(
                        frames.Acknowledgement(group_id=group_id, sequence=sequence)
                        for group_id, sequence in sorted(cursors.items())
                    ),
                    sent_at=self._clock.now().text(),
                )
            )

    def tick(self) -> None:
        """Call about once a second: sends a PING into silence; ConnectionLost when the peer was silent for too long."""
        now = self._clock.monotonic()
        if self.phase is Phase.CLOSED:
            return
        if now - self._heard > DEAD_SECONDS:
            raise ConnectionLost(f"nothing was heard from the node for {DEAD_SECONDS:.0f} seconds")
        if self.phase is Phase.LIVE and now - max(self._spoke, self._heard) > PING_SECONDS:
            self.ping()

    def ping(self) -> None:
        """Send a PING, with Presence when there is one (R-6.2-04)."""
        self._send_ping(UNSET)

    # --- incoming ---

    def receive(self, raw: bytes) -> list[Notice]:
        """Take one message.

        Raises ConnectionLost when the server does not speak the protocol, ChallengeRefused (decision A27), Untrusted,
        and StaleRegistry, after which the same message must be handed in again.
        """
        try:
            frame = frames.decode_server_frame(raw, depth_max=FRAME_DEPTH, bytes_max=FRAME_BYTES)
        except (ValueError, MissionWeaveError) as fault:
            raise ConnectionLost(f"the server sent something that is no frame of the protocol: {fault}") from fault
        self._heard = self._clock.monotonic()
        match frame:
            case frames.EventFrame() if self.phase is Phase.LIVE:
                return self._event(bytes(frame.event))
            case frames.ErrorFrame():
                return self._error(frame.error)
            case frames.Ping() if self.phase is Phase.LIVE:
                return self._pinged(frame)
            case frames.HelloServerChallenge() if self.phase is Phase.GREETED:
                return self._challenged(frame)
            case frames.HelloServerAccept() if self.phase is Phase.ANSWERED:
                return self._accepted(frame)
        raise ConnectionLost(f"the server sent {type(frame).__name__} out of turn")

    def _challenged(self, hello: frames.HelloServerChallenge) -> list[Notice]:
        transcript = handshake_transcript(
            hello.challenge,
            agent_id=self._key.principal.id,
            key_id=self._key.key_id,
            client_nonce=self._client_nonce,
            server_nonce=hello.server_nonce,
        )
        self.phase = Phase.ANSWERED
        self.unconfirmed += 1
        self._send(
            frames.HelloClientResponse(
                protocol_version="0.1",
                frame_id=self._new_id(),
                phase="client_response",
                agent_id=self._key.principal.id,
                key_id=self._key.key_id,
                client_nonce=self._client_nonce,
                server_nonce=hello.server_nonce,
                challenge_signature=encode_base64url(self._key.sign(transcript)),
            )
        )
        return []

    def _accepted(self, hello: frames.HelloServerAccept) -> list[Notice]:
        self.phase = Phase.LIVE
        self.session_epoch = hello.session_epoch
        self.unconfirmed = 0
        for subscription in self._subscriptions.values():
            subscription.over = subscription.ending = False
            subscription.feed.restart()
        if self._subscriptions:
            self._ask(list(self._subscriptions))
        notices: list[Notice] = [Opened(hello.session_epoch, hello.session_token, hello.expires_at)]
        for command in tuple(self._pending.values()):
            if command.sent:
                self._send_command(command)
            else:
                # It was signed under an epoch that is gone, and nobody has seen it.
                del self._pending[command.action_id]
                notices.append(Unsent(command.action_id))
        return notices

    def _event(self, raw: bytes) -> list[Notice]:
        try:
            event = strict_json.decode(raw, Event, depth_max=FRAME_DEPTH, bytes_max=FRAME_BYTES)
        except ValueError as fault:
            raise ConnectionLost(f"the server sent an Event that does not fit its schema: {fault}") from fault
        if self._check is not None:
            self._check(raw)
        notices: list[Notice] = []
        answered = self._answer_to(event)
        if answered is not None:
            self._pending.pop(answered.action_id, None)
            notices.append(Answered(answered.action_id, event, raw))
        own = self._note_membership(event)
        subscription = self._subscriptions.get(event.group_id) if event.group_id is not UNSET else None
        if subscription is None or event.sequence is UNSET:
            if answered is None and event.group_id not in self._dropped:
                notices.append(Delivered(event, raw, subscribed=False))
            return notices
        feed = subscription.feed
        announced = event.kind in ANNOUNCED_KINDS
        if subscription.over and announced and own:
            # Put into the Group again: what happened meanwhile comes first, as far as it is ours to see.
            subscription.over = False
            if not feed.replaying:
                feed.restart()
                self._ask([str(event.group_id)])
        if not subscription.over:
            # A notice may have been sent before the server knew of our SUBSCRIBE: its place proves nothing either.
            early = feed.replaying and (answered is not None or announced)
            notices.extend(feed.take(event.sequence, Delivered(event, raw, subscribed=True), may_be_early=early))
        if own is not None and feed.replaying:
            # The server goes on where the Membership does: what it sends until the end of the replay is ours to see.
            subscription.ending = not own
        elif own is False:
            subscription.over = True
        return notices

    def _answer_to(self, event: Event) -> Pending | None:
        """The Command of ours whose receipt this is: matched by cause and kind (decision A13, R-16)."""
        if event.cause.type != "command":
            return None
        command = self._pending.get(event.cause.id)
        if command is None or command.receipt_kind != event.kind or event.actor != self._key.principal:
            return None
        return command

    def _note_membership(self, event: Event) -> bool | None:
        """Learn our own Membership Epoch; whether we are a Member of the Event's Group by it, if it says so."""
        if event.group_id is UNSET:
            return None
        ours: bool | None = None
        payload = event.payload
        stated = payload.get("memberships") or ()
        single = payload.get("membership")
        for membership in (*stated, *((single,) if isinstance(single, dict) else ())):
            if membership.get("member") == {"type": "agent", "id": self._key.principal.id}:
                epoch = membership.get("membershipEpoch")
                if isinstance(epoch, int):
                    group_id = membership.get("groupId", event.group_id)
                    self.membership_epochs[group_id] = max(epoch, self.membership_epochs.get(group_id, 0))
                    if group_id == event.group_id:
                        ours = membership.get("state") != "ended"
        return ours

    def _error(self, error: ErrorDocument) -> list[Notice]:
        exception = MissionWeaveError.of_document(error)
        if self.phase is not Phase.LIVE or error.fatal is True:
            return [Ended(exception)]
        action_id = error.related_action_id
        if action_id is not UNSET and action_id in self._pending:
            # BACKPRESSURE took nothing: the shell sends the same bytes again later (decision F13).
            if error.code is not ErrorCode.BACKPRESSURE:
                del self._pending[action_id]
            return [Refused(action_id, exception)]
        if error.code is ErrorCode.BACKPRESSURE and error.group_id is not UNSET:
            return [Paused(error.group_id, error.retry_after_ms if error.retry_after_ms is not UNSET else 1000)]
        asked = self._asked.get(error.related_frame_id) if error.related_frame_id is not UNSET else None
        group_id = error.details.get("groupId") if error.details is not UNSET else None
        if asked is not None and group_id in asked:
            self._refused(str(group_id), error.code)
            snapshot = error.snapshot_artifact_hash
            return [Denied(str(group_id), exception, None if snapshot is UNSET else snapshot)]
        return [Problem(exception)]

    def _refused(self, group_id: str, code: ErrorCode) -> None:
        """A Group may not be followed. One that was, may be again, from where we are (R-8-15)."""
        subscription = self._subscriptions.get(group_id)
        if subscription is not None and subscription.established and code is ErrorCode.MEMBERSHIP_REQUIRED:
            subscription.over = True
        else:
            self._subscriptions.pop(group_id, None)

    def _pinged(self, ping: frames.Ping) -> list[Notice]:
        if ping.reply_to_nonce is UNSET:
            self._send_ping(ping.nonce)
        groups = self._replays.pop(ping.nonce, None)
        if groups is None:
            return []
        notices: list[Notice] = []
        still = {group_id for others in self._replays.values() for group_id in others}
        # A Group that was asked for once more since then has its later replay still to come.
        ended = tuple(group_id for group_id in groups if group_id not in still)
        for group_id in ended:
            subscription = self._subscriptions.get(group_id)
            if subscription is not None:
                notices.extend(subscription.feed.caught_up())
                subscription.established = True
                subscription.over, subscription.ending = subscription.over or subscription.ending, False
        return [*notices, CaughtUp(ended)] if ended else []

    # --- frames ---

    def _ask(self, group_ids: list[str]) -> None:
        if self.phase is not Phase.LIVE or not group_ids:
            return
        subscription_id, frame_id = self._new_id(), self._new_id()
        self._replays[encode_base64url(subscription_id.encode())] = list(group_ids)
        self._asked[frame_id] = list(group_ids)
        self._send(
            frames.Subscribe(
                protocol_version="0.1",
                frame_id=frame_id,
                subscription_id=subscription_id,
                groups=tuple(self._wanted(group_ids)),
            )
        )

    def _wanted(self, group_ids: Iterable[str]) -> Iterable[GroupSubscription]:
        for group_id in group_ids:
            wanted = self._subscriptions[group_id]
            yield GroupSubscription(group_id=group_id, after_sequence=wanted.feed.position, attention=wanted.attention)

    def _send_command(self, command: Pending) -> None:
        self._spoke = self._clock.monotonic()
        self._outgoing.append(frames.encode_command_frame(self._new_id(), command.raw))
        self._queued.append(command.action_id)

    def _send_ping(self, reply_to: str | UnsetType) -> None:
        self._send(
            frames.Ping(
                protocol_version="0.1",
                frame_id=self._new_id(),
                nonce=encode_base64url(self._entropy.random(18)),
                reply_to_nonce=reply_to,
                sent_at=self._clock.now().text(),
                presence=self.presence(self.session_epoch) if self.presence is not None else UNSET,
            )
        )

    def _send(self, frame: frames.Frame) -> None:
        self._spoke = self._clock.monotonic()
        self._outgoing.append(frames.encode(frame))

    def _new_id(self) -> str:
        return uuid7_urn(self._clock.now(), self._entropy.random(10))

    @property
    def newest(self) -> int | None:
        """The highest Session Epoch that this client can have opened; ``None`` before its first session."""
        return self.session_epoch + self.unconfirmed if self.session_epoch else None

    @property
    def principal(self) -> Actor:
        """Whose session this is."""
        return self._key.principal
