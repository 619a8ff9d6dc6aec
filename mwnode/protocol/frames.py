"""The ten frames of the WebSocket: seven types, of which HELLO has four phases (R-17.1-05, R-17.1-06).

One text message is one frame. COMMAND and EVENT carry a signed document whose bytes are judged elsewhere, by
verification; here they stay the bytes that arrived (``Raw``), so that a document is parsed once and sent on untouched.
"""

from __future__ import annotations

from typing import Annotated, Any, Literal

import msgspec
from msgspec import UNSET, Meta, Raw, Struct, UnsetType

from mwnode.protocol import strict_json
from mwnode.protocol.documents import Command, Document, Event, PresenceRecord, require_some, require_unique
from mwnode.protocol.errors import ErrorCode, ErrorDocument, ProtocolViolation, Rejection, UnsupportedVersion
from mwnode.protocol.limits import FRAME_BYTES, JSON_DEPTH
from mwnode.protocol.scalars import (
    Base64Url,
    EventKindName,
    Id,
    PositiveInteger,
    ProtocolVersion,
    SafeInteger,
    Timestamp,
)
from mwnode.protocol.strict_json import JsonFault, SchemaFault

PROTOCOL_VERSION: ProtocolVersion = "0.1"
"""What every frame and envelope says (R-21-04)."""
SessionToken = Annotated[str, Meta(min_length=16, max_length=8192)]


class HelloClientInit(Document, tag_field="frameType", tag="HELLO"):
    """Step 1 of the handshake: which Agent, with which key."""

    protocol_version: ProtocolVersion
    frame_id: Id
    phase: Literal["client_init"]
    agent_id: Id
    key_id: Id
    client_nonce: Base64Url
    supported_versions: tuple[ProtocolVersion, ...]

    def __post_init__(self) -> None:
        require_some("supportedVersions", self.supported_versions)
        require_unique("supportedVersions", self.supported_versions)


class HelloServerChallenge(Document, tag_field="frameType", tag="HELLO"):
    """Step 2: the transcript to sign, base64url in ``challenge``."""

    protocol_version: ProtocolVersion
    frame_id: Id
    phase: Literal["server_challenge"]
    selected_version: ProtocolVersion
    client_nonce: Base64Url
    server_nonce: Base64Url
    challenge: Base64Url


class HelloClientResponse(Document, tag_field="frameType", tag="HELLO"):
    """Step 3: the Ed25519 signature over the challenge's bytes."""

    protocol_version: ProtocolVersion
    frame_id: Id
    phase: Literal["client_response"]
    agent_id: Id
    key_id: Id
    client_nonce: Base64Url
    server_nonce: Base64Url
    challenge_signature: Base64Url


class HelloServerAccept(Document, tag_field="frameType", tag="HELLO"):
    """Step 4: the Session Epoch that every later Command of this Agent carries."""

    protocol_version: ProtocolVersion
    frame_id: Id
    phase: Literal["server_accept"]
    selected_version: ProtocolVersion
    session_token: SessionToken
    session_epoch: PositiveInteger
    expires_at: Timestamp


class AttentionFilter(Document):
    """What a subscriber wants to be woken for; members combine with AND, an empty array matches nothing."""

    event_kinds: tuple[EventKindName, ...] | UnsetType = UNSET
    conversation_ids: tuple[Id, ...] | UnsetType = UNSET
    work_item_ids: tuple[Id, ...] | UnsetType = UNSET
    mentions_only: bool | UnsetType = UNSET
    announcements: bool | UnsetType = UNSET

    def __post_init__(self) -> None:
        for name in ("event_kinds", "conversation_ids", "work_item_ids"):
            values = getattr(self, name)
            if values is not UNSET:
                require_unique(name, values)


class GroupSubscription(Document):
    group_id: Id
    after_sequence: SafeInteger
    attention: AttentionFilter | UnsetType = UNSET


class Subscribe(Document, tag_field="frameType", tag="SUBSCRIBE"):
    """Replay and follow one or more Groups (R-17.1-07)."""

    protocol_version: ProtocolVersion
    frame_id: Id
    subscription_id: Id
    groups: tuple[GroupSubscription, ...]

    def __post_init__(self) -> None:
        require_some("groups", self.groups)


class CommandFrame(Document, tag_field="frameType", tag="COMMAND"):
    """One signed Command, as the bytes that arrived (R-17.1-08). ``bytes(frame.command)`` goes to verification."""

    protocol_version: ProtocolVersion
    frame_id: Id
    command: Raw


class EventFrame(Document, tag_field="frameType", tag="EVENT"):
    """One signed Event, as the bytes that were signed (R-17.1-09)."""

    protocol_version: ProtocolVersion
    frame_id: Id
    event: Raw


class Acknowledgement(Document):
    group_id: Id
    sequence: SafeInteger


class Ack(Document, tag_field="frameType", tag="ACK"):
    """Moves the durable Cursor of each Group named (R-17.1-10)."""

    protocol_version: ProtocolVersion
    frame_id: Id
    acknowledgements: tuple[Acknowledgement, ...]
    sent_at: Timestamp

    def __post_init__(self) -> None:
        require_some("acknowledgements", self.acknowledgements)


class Ping(Document, tag_field="frameType", tag="PING"):
    """A sign of life, with or without Presence; an answer carries ``reply_to_nonce`` and gets none (R-17.1-11)."""

    protocol_version: ProtocolVersion
    frame_id: Id
    nonce: Base64Url
    sent_at: Timestamp
    reply_to_nonce: Base64Url | UnsetType = UNSET
    presence: PresenceRecord | UnsetType = UNSET


class ErrorFrame(Document, tag_field="frameType", tag="ERROR"):
    """One error document (R-17.1-12)."""

    protocol_version: ProtocolVersion
    frame_id: Id
    error: ErrorDocument


Hello = HelloClientInit | HelloServerChallenge | HelloClientResponse | HelloServerAccept
ClientFrame = HelloClientInit | HelloClientResponse | Subscribe | CommandFrame | Ack | Ping
ServerFrame = HelloServerChallenge | HelloServerAccept | EventFrame | Ping | ErrorFrame
Frame = Hello | Subscribe | CommandFrame | EventFrame | Ack | Ping | ErrorFrame

FRAME_TYPES: dict[str, type[Frame]] = {
    "SUBSCRIBE": Subscribe,
    "COMMAND": CommandFrame,
    "EVENT": EventFrame,
    "ACK": Ack,
    "PING": Ping,
    "ERROR": ErrorFrame,
}
HELLO_PHASES: dict[str, type[Frame]] = {
    "client_init": HelloClientInit,
    "server_challenge": HelloServerChallenge,
    "client_response": HelloClientResponse,
    "server_accept": HelloServerAccept,
}
_FROM_CLIENT: frozenset[type[Frame]] = frozenset(
    {HelloClientInit, HelloClientResponse, Subscribe, CommandFrame, Ack, Ping}
)
_FROM_SERVER: frozenset[type[Frame]] = frozenset(
    {HelloServerChallenge, HelloServerAccept, EventFrame, Ping, ErrorFrame}
)


class _Head(Struct, rename="camel"):
    """As much of a frame as tells its type."""

    frame_type: str
    phase: str | UnsetType = UNSET


_HEAD = msgspec.json.Decoder(_Head)
_COMMAND_FIRST = b'{"command":'
_encode = msgspec.json.Encoder().encode


def encode(frame: Frame) -> bytes:
    """The bytes of a frame. A COMMAND or EVENT keeps the bytes of its document."""
    return _encode(frame)


def encode_event_frame(frame_id: str, event: bytes) -> bytes:
    """An EVENT frame around an Event's stored bytes, without decoding them."""
    return b'{"event":%b,"frameId":"%b","frameType":"EVENT","protocolVersion":"0.1"}' % (event, frame_id.encode())


def encode_command_frame(frame_id: str, command: bytes) -> bytes:
    """A COMMAND frame around a signed Command's bytes, without decoding them."""
    return b'{"command":%b,"frameId":"%b","frameType":"COMMAND","protocolVersion":"0.1"}' % (command, frame_id.encode())


def _type_of(frame_type: Any, phase: Any) -> type[Frame]:
    if frame_type == "HELLO":
        kind = HELLO_PHASES.get(phase) if isinstance(phase, str) else None
        if kind is None:
            raise SchemaFault("/phase", "HELLO is in phase client_init, server_challenge, client_response or accept")
        return kind
    kind = FRAME_TYPES.get(frame_type) if isinstance(frame_type, str) else None
    if kind is None:
        raise SchemaFault("/frameType", "the frame types are HELLO, SUBSCRIBE, COMMAND, EVENT, ACK, PING and ERROR")
    return kind


def _document_of(frame: Frame) -> bytes | None:
    if isinstance(frame, CommandFrame):
        return bytes(frame.command)
    return bytes(frame.event) if isinstance(frame, EventFrame) else None


def _fast(raw: bytes, depth_max: int) -> Frame | None:
    """The frame, when scans prove that msgspec hid nothing; see :func:`mwnode.protocol.strict_json.nothing_hidden`."""
    try:
        if raw.startswith(_COMMAND_FIRST):
            # Most frames by far: to look for the type of one reads all of it, and its decoder looks as well.
            kind: type[Frame] = CommandFrame
        else:
            head = _HEAD.decode(raw)
            kind = _type_of(head.frame_type, head.phase)
        frame: Frame = strict_json.decoder_of(kind).decode(raw)
    except (msgspec.MsgspecError, ValueError, RecursionError):
        return None
    encoded = _encode(frame)
    document = _document_of(frame)
    if document is None:
        return frame if strict_json.nothing_hidden(raw, encoded, depth_max) else None
    # The document's own bytes stand in both texts and are judged later; only the members around it must be plain.
    around = raw.count(b"\\") == document.count(b"\\") and raw.count(b":") == encoded.count(b":")
    return frame if around and strict_json.depth_within(raw, depth_max) else None


def _exact(raw: bytes, depth_max: int, bytes_max: int) -> Frame:
    tree = strict_json.parse(raw, depth_max=depth_max, bytes_max=bytes_max)
    if not isinstance(tree, dict):
        raise SchemaFault("", "Expected `object`")
    _check_versions(tree)
    kind = _type_of(tree.get("frameType"), tree.get("phase"))
    place = "command" if kind is CommandFrame else "event" if kind is EventFrame else None
    if place is None or place not in tree:
        frame: Frame = strict_json.convert(tree, kind)
        return frame
    # The document is written anew without loss; msgspec could not even skip over a lone surrogate in it.
    document = Raw(strict_json.write(tree[place]))
    try:
        frame = strict_json.decoder_of(kind).decode(strict_json.write({**tree, place: None}))
    except msgspec.ValidationError as fault:
        raise SchemaFault(*strict_json.pointer(str(fault))) from None
    except (msgspec.DecodeError, UnicodeDecodeError):
        raise SchemaFault("", "a member holds a string that is not well-formed Unicode") from None
    return msgspec.structs.replace(frame, **{place: document})


def _check_versions(tree: dict[str, Any]) -> None:
    """Find that no version is shared before the schema is asked, which knows 0.1 only (R-19-09)."""
    if tree.get("frameType") == "HELLO" and tree.get("phase") == "client_init":
        offered = tree.get("supportedVersions")
        if isinstance(offered, list) and offered and PROTOCOL_VERSION not in offered:
            raise UnsupportedVersion("this node speaks protocol version 0.1 only", rule="R-19-09")


def decode_frame(raw: bytes, *, depth_max: int = JSON_DEPTH, bytes_max: int = FRAME_BYTES) -> Frame:
    """One WebSocket message as a frame, whoever sent it.

    Raises JsonFault (PROTOCOL_VIOLATION), SchemaFault (SCHEMA_VALIDATION_FAILED) or UnsupportedVersion. The document
    inside a COMMAND or EVENT has not been looked at.
    """
    frame = _fast(raw, depth_max) if len(raw) <= bytes_max else None
    return _exact(raw, depth_max, bytes_max) if frame is None else frame


def decode_client_frame(raw: bytes, *, depth_max: int = JSON_DEPTH, bytes_max: int = FRAME_BYTES) -> ClientFrame:
    """A frame that a client may send. Raises as :func:`decode_frame`, and ProtocolViolation for the others."""
    frame = decode_frame(raw, depth_max=depth_max, bytes_max=bytes_max)
    if type(frame) not in _FROM_CLIENT:
        raise ProtocolViolation("a client sends HELLO, SUBSCRIBE, COMMAND, ACK and PING only", rule="R-17.1-05")
    return frame  # type: ignore[return-value]  # the set above is the members of ClientFrame


def decode_server_frame(raw: bytes, *, depth_max: int = JSON_DEPTH, bytes_max: int = FRAME_BYTES) -> ServerFrame:
    """A frame that a server may send. Raises as :func:`decode_frame`, and ProtocolViolation for the others."""
    frame = decode_frame(raw, depth_max=depth_max, bytes_max=bytes_max)
    if type(frame) not in _FROM_SERVER:
        raise ProtocolViolation("a server sends HELLO, EVENT, PING and ERROR only", rule="R-17.1-05")
    return frame  # type: ignore[return-value]  # the set above is the members of ServerFrame


def check_frame(raw: bytes) -> Frame:
    """A frame whose document fits its schema too: all of ``websocket-frame.schema.json``."""
    frame = decode_frame(raw)
    if isinstance(frame, CommandFrame):
        strict_json.decode(bytes(frame.command), Command)
    elif isinstance(frame, EventFrame):
        strict_json.decode(bytes(frame.event), Event)
    return frame


def rejection_of(fault: JsonFault | SchemaFault) -> Rejection:
    """What to answer to a frame or document that failed stage 1 or 2 (R-19-18, R-19-34)."""
    if isinstance(fault, SchemaFault):
        details = {"path": fault.path} if fault.path else None
        return Rejection(ErrorCode.SCHEMA_VALIDATION_FAILED, str(fault)[:2000], "R-19-18", details)
    return Rejection(ErrorCode.PROTOCOL_VIOLATION, str(fault)[:2000], "R-19-34")


def related_ids(raw: bytes) -> tuple[str | None, str | None]:
    """The ``frameId`` and, in a COMMAND, the ``actionId`` of a refused frame, where they can be told (R-19-03)."""
    try:
        tree = strict_json.parse(raw)
    except JsonFault:
        return None, None
    if not isinstance(tree, dict):
        return None, None
    command = tree.get("command")
    action_id = command.get("actionId") if isinstance(command, dict) else None
    return _if_id(tree.get("frameId")), _if_id(action_id)


def _if_id(value: Any) -> str | None:
    try:
        found: str = msgspec.convert(value, Id)
        return found
    except msgspec.ValidationError:
        return None
