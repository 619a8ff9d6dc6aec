"""One connection of the WebSocket protocol without I/O: bytes in, effects out.

What a message means is decided here; who may read what, and what lies in the store, is for whoever carries the effects
out. A rejected Command never costs the connection; what does is listed in decision C1.
"""

from __future__ import annotations

from enum import Enum, auto

from msgspec import UNSET, Struct

from mwnode.gateway import handshake
from mwnode.gateway.ports import Authority, SessionGrant
from mwnode.gateway.replies import Replies
from mwnode.protocol import frames, strict_json
from mwnode.protocol.documents import Actor, PresenceRecord
from mwnode.protocol.errors import ErrorCode, ProtocolViolation, Rejection, UnsupportedVersion
from mwnode.protocol.strict_json import JsonFault, SchemaFault
from mwnode.trust.ed25519 import encode_base64url

NORMAL = 1000
GOING_AWAY = 1001
POLICY = 1008
TOO_LARGE = 1009
TRY_AGAIN = 1013
"""Close codes of RFC 6455 (decision C3)."""

BACKPRESSURE_MS = 500
"""When to try again after BACKPRESSURE, in milliseconds."""
UNAUTHENTICATED_BYTES = 16 * 1024
"""Largest message taken before the handshake is complete: a HELLO has at most a few KiB."""


class Phase(Enum):
    """Where a connection stands. It only moves down this list, and from anywhere to CLOSED."""

    GREETING = auto()
    CHALLENGED = auto()
    OPENING = auto()
    LIVE = auto()
    FENCED = auto()
    CLOSED = auto()


class Send(Struct, frozen=True):
    """Send a frame that belongs to no Group."""

    frame: bytes


class Submit(Struct, frozen=True):
    """Hand a Command to the authority. ``raw`` are its exact bytes."""

    raw: bytes
    frame_id: str


class OpenSession(Struct, frozen=True):
    """The client has proven its key: have a Session Epoch issued, then call ``session_opened``."""

    agent_id: str
    key_id: str


class Follow(Struct, frozen=True):
    """Replay and follow Groups."""

    frame: frames.Subscribe


class Acknowledge(Struct, frozen=True):
    """Move durable Cursors."""

    frame: frames.Ack


class Present(Struct, frozen=True):
    """Keep the Agent's Presence, which is transient (R-6.2-01)."""

    record: PresenceRecord


class Close(Struct, frozen=True):
    """Send what is queued, then close with this code."""

    code: int
    reason: str


Effect = Send | Submit | OpenSession | Follow | Acknowledge | Present | Close


class Engine:
    """The protocol of one connection. Every method returns what to do, in order."""

    def __init__(self, authority: Authority, replies: Replies) -> None:
        self._authority = authority
        self._replies = replies
        self._limits = authority.limits
        self.phase = Phase.GREETING
        self.agent_id = ""
        self.key_id = ""
        self.session_epoch = 0
        self.in_flight = 0
        """Commands that were submitted and not answered; counted by whoever submits."""
        self.accepting = True
        """False once the node is stopping: Commands are turned away, to be sent again elsewhere or later."""
        self._challenge: handshake.Challenge | None = None
        now = authority.clock.monotonic()
        self.connected_at = now
        self.heard_at = now
        self._window_start = now
        self._window_frames = 0

    # --- messages ---

    def receive(self, raw: bytes) -> list[Effect]:
        """Take one text message, as the UTF-8 bytes that it should be."""
        if self.phase is Phase.CLOSED:
            return []
        now = self._authority.clock.monotonic()
        self.heard_at = now
        if now - self._window_start >= 1.0:
            self._window_start, self._window_frames = now, 0
        self._window_frames += 1
        if self._window_frames > self._limits.frames_per_second:
            return self._end(
                Rejection(ErrorCode.RATE_LIMITED, "too many frames a second", "R-20-01", retry_after_ms=1000), POLICY
            )
        if self.phase is Phase.LIVE:
            return self._live(raw)
        if self.phase is Phase.FENCED:
            return self._end(STALE_SESSION, POLICY, frames.related_ids(raw))
        return self._greeting(raw)

    def binary(self) -> list[Effect]:
        """A binary message came: none of the protocol's, and not looked at (R-17.1-04)."""
        if self.phase is Phase.CLOSED:
            return []
        rule = "R-17.1-04"
        return self._end(Rejection(ErrorCode.PROTOCOL_VIOLATION, "binary messages are not allowed", rule), POLICY)

    def too_large(self) -> list[Effect]:
        """A message over the limit came; it was not read to its end."""
        if self.phase is Phase.CLOSED:
            return []
        text = f"a message is larger than the limit of {self._limits.frame_bytes} bytes"
        return self._end(Rejection(ErrorCode.PROTOCOL_VIOLATION, text, "R-19-34"), TOO_LARGE)

    # --- handshake ---

    def _greeting(self, raw: bytes) -> list[Effect]:
        if len(raw) > UNAUTHENTICATED_BYTES:
            text = "a message before the handshake is complete is too large"
            return self._end(Rejection(ErrorCode.PROTOCOL_VIOLATION, text, "R-19-34"), TOO_LARGE)
        try:
            hello = self._read_hello(raw)
        except (JsonFault, SchemaFault) as fault:
            return self._end(frames.rejection_of(fault), POLICY, frames.related_ids(raw))
        if isinstance(hello, Rejection):
            return self._end(hello, POLICY, frames.related_ids(raw))
        ids = (hello.frame_id, None)
        match hello:
            case frames.HelloClientInit() if self.phase is Phase.GREETING:
                return self._challenge_client(hello)
            case frames.HelloClientResponse() if self.phase is Phase.CHALLENGED:
                return self._check_answer(hello)
            case frames.HelloClientResponse() if self.phase is Phase.GREETING:
                # Decision C13.
                return self._end(AUTH_REQUIRED, POLICY, ids)
        text = "this phase of HELLO is not expected now"
        return self._end(Rejection(ErrorCode.PROTOCOL_VIOLATION, text, "R-17.1-06"), POLICY, ids)

    def _read_hello(self, raw: bytes) -> frames.HelloClientInit | frames.HelloClientResponse | Rejection:
        """The HELLO in a message, or what to answer to anything else before the handshake is complete (R-19-10)."""
        depth, size = self._limits.json_depth, self._limits.frame_bytes
        try:
            frame = frames.decode_client_frame(raw, depth_max=depth, bytes_max=size)
        except UnsupportedVersion:
            return handshake.UNSUPPORTED
        except (SchemaFault, ProtocolViolation) as fault:
            tree = strict_json.parse(raw, depth_max=depth, bytes_max=size)
            if not isinstance(tree, dict):
                return NOT_AN_OBJECT
            if not handshake.is_hello(tree):
                return AUTH_REQUIRED
            if tree.get("phase") == "client_init":
                return handshake.read_client_init(raw, depth, size)
            if isinstance(fault, ProtocolViolation):
                return fault.rejection
            raise
        if isinstance(frame, (frames.HelloClientInit, frames.HelloClientResponse)):
            return frame
        return AUTH_REQUIRED

    def _challenge_client(self, hello: frames.HelloClientInit) -> list[Effect]:
        authority = self._authority
        asked = handshake.challenge(hello, authority.registry, authority.clock.now(), authority.entropy)
        if isinstance(asked, Rejection):
            return self._end(asked, POLICY, (hello.frame_id, None))
        self._challenge = asked
        self.phase = Phase.CHALLENGED
        frame = frames.HelloServerChallenge(
            protocol_version="0.1",
            frame_id=self._replies.frame_id(),
            phase="server_challenge",
            selected_version="0.1",
            client_nonce=asked.client_nonce,
            server_nonce=asked.server_nonce,
            challenge=encode_base64url(asked.transcript),
        )
        return [Send(frames.encode(frame))]

    def _check_answer(self, hello: frames.HelloClientResponse) -> list[Effect]:
        asked, self._challenge = self._challenge, None
        assert asked is not None, "a challenged connection has its challenge"
        fault = handshake.answer(asked, hello, self._authority.registry, self._authority.clock.now())
        if fault is not None:
            return self._end(fault, POLICY, (hello.frame_id, None))
        self.phase = Phase.OPENING
        self.agent_id, self.key_id = asked.agent_id, asked.key_id
        return [OpenSession(asked.agent_id, asked.key_id)]

    def session_opened(self, outcome: SessionGrant | Rejection, token: str, expires_at: str) -> list[Effect]:
        """The authority has answered ``OpenSession``; ``token`` stands for the granted epoch (R-6.3-05)."""
        if self.phase is not Phase.OPENING:
            return []
        if isinstance(outcome, Rejection):
            return self._end(outcome, POLICY)
        self.phase = Phase.LIVE
        self.session_epoch = outcome.session_epoch
        frame = frames.HelloServerAccept(
            protocol_version="0.1",
            frame_id=self._replies.frame_id(),
            phase="server_accept",
            selected_version="0.1",
            session_token=token,
            session_epoch=outcome.session_epoch,
            expires_at=expires_at,
        )
        return [Send(frames.encode(frame))]

    # --- after the handshake ---

    def _live(self, raw: bytes) -> list[Effect]:
        limits = self._limits
        try:
            frame = frames.decode_client_frame(raw, depth_max=limits.json_depth, bytes_max=limits.frame_bytes)
        except (JsonFault, SchemaFault, ProtocolViolation, UnsupportedVersion) as fault:
            return self._misfit(raw, fault)
        match frame:
            case frames.CommandFrame():
                return self._command(frame)
            case frames.Ping():
                return self._pinged(frame)
            case frames.Subscribe():
                return [Follow(frame)]
            case frames.Ack():
                return [Acknowledge(frame)]
        text = "the handshake is complete: HELLO is not expected any more"
        return [self._error(Rejection(ErrorCode.PROTOCOL_VIOLATION, text, "R-6.3-02"), frame.frame_id)]

    def _command(self, frame: frames.CommandFrame) -> list[Effect]:
        raw = bytes(frame.command)
        if self.in_flight >= self._limits.commands_in_flight or not self.accepting:
            text = "too many Commands are unanswered on this connection" if self.accepting else "the node is stopping"
            refusal = Rejection(
                ErrorCode.BACKPRESSURE,
                f"{text}; this one was not taken, send it again",
                "R-19-32",
                retry_after_ms=BACKPRESSURE_MS,
            )
            return [self._error(refusal, frame.frame_id, action_id_of(raw))]
        return [Submit(raw, frame.frame_id)]

    def _pinged(self, ping: frames.Ping) -> list[Effect]:
        effects: list[Effect] = []
        if ping.presence is not UNSET:
            ours = ping.presence.agent_id == self.agent_id and ping.presence.session_epoch == self.session_epoch
            if not ours:
                text = "presence must name the Agent and the Session Epoch of this connection"
                refusal = Rejection(ErrorCode.AUTH_FORBIDDEN, text, "R-6.2-04", {"path": "/presence"})
                return [self._error(refusal, ping.frame_id)]
            effects.append(Present(ping.presence))
        if ping.reply_to_nonce is UNSET:
            effects.append(Send(self._replies.ping(reply_to=ping.nonce)))
        return effects

    def _misfit(
        self, raw: bytes, fault: JsonFault | SchemaFault | ProtocolViolation | UnsupportedVersion
    ) -> list[Effect]:
        frame_id, action_id = frames.related_ids(raw)
        if isinstance(fault, JsonFault):
            rejection = frames.rejection_of(fault)
            if fault.reason in _FATAL_FAULTS:
                return self._end(rejection, POLICY, (frame_id, action_id))
            return [self._error(rejection, frame_id, action_id)]
        if isinstance(fault, SchemaFault):
            rejection = _nature_of(raw) or frames.rejection_of(fault)
        else:
            # A version other than 0.1 is told apart in the handshake only (decision C2).
            version = isinstance(fault, UnsupportedVersion)
            rejection = (
                Rejection(ErrorCode.PROTOCOL_VIOLATION, "the handshake is complete", "R-6.3-02")
                if version
                else fault.rejection
            )
        return [self._error(rejection, frame_id, action_id)]

    # --- what others cause ---

    def fence(self) -> bool:
        """A higher Session Epoch exists: no Events from now on (R-6.3-06, decision A20). True if it was live."""
        was_live = self.phase is Phase.LIVE
        if self.phase in (Phase.LIVE, Phase.OPENING):
            self.phase = Phase.FENCED
        return was_live

    def end(self, rejection: Rejection, code: int = POLICY) -> list[Effect]:
        """Tell the client why, and close."""
        return [] if self.phase is Phase.CLOSED else self._end(rejection, code)

    @property
    def actor(self) -> Actor:
        """The Agent that authenticated."""
        return Actor(type="agent", id=self.agent_id)

    def _error(self, rejection: Rejection, frame_id: str | None = None, action_id: str | None = None) -> Send:
        return Send(self._replies.error(rejection, related_frame_id=frame_id, related_action_id=action_id, fatal=False))

    def _end(self, rejection: Rejection, code: int, ids: tuple[str | None, str | None] = (None, None)) -> list[Effect]:
        self.phase = Phase.CLOSED
        frame = self._replies.error(rejection, fatal=True, related_frame_id=ids[0], related_action_id=ids[1])
        return [Send(frame), Close(code, rejection.code.value)]


AUTH_REQUIRED = Rejection(ErrorCode.AUTH_REQUIRED, "complete the HELLO handshake first", "R-19-10")
STALE_SESSION = Rejection(
    ErrorCode.AUTH_STALE_SESSION, "a newer session of this Agent has replaced this one", "R-19-12"
)
NOT_AN_OBJECT = Rejection(ErrorCode.PROTOCOL_VIOLATION, "a frame is one JSON object", "R-17.1-03")
_FATAL_FAULTS = frozenset({"invalid-utf8", "too-large"})


def action_id_of(raw: bytes) -> str | None:
    """The Action ID of a refused Command, when it can be read and is a valid one (decision C14)."""
    return frames.related_ids(b'{"command":%b}' % raw)[1]


def _nature_of(raw: bytes) -> Rejection | None:
    """The faults of form that are no misfit of a member: not an object, or a COMMAND without its Command."""
    try:
        tree = strict_json.parse(raw)
    except JsonFault:
        return None
    if not isinstance(tree, dict):
        return NOT_AN_OBJECT
    if tree.get("frameType") == "COMMAND" and "command" not in tree:
        return Rejection(ErrorCode.PROTOCOL_VIOLATION, "a COMMAND frame carries one Command in command", "R-17.1-08")
    return None
