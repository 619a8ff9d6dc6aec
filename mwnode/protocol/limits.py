"""Every bound of the ingress in one place: the ``[limits]`` table of ``mwnode.toml``."""

from __future__ import annotations

from typing import Annotated

from msgspec import Meta, Struct

_Count = Annotated[int, Meta(ge=1, le=1_000_000_000)]
_FrameBytes = Annotated[int, Meta(ge=1, le=1024**3)]
_Depth = Annotated[int, Meta(ge=1, le=512)]
_Bytes = Annotated[int, Meta(ge=1, le=64 * 1024**4)]
_BytesOrZero = Annotated[int, Meta(ge=0, le=64 * 1024**4)]
_Seconds = Annotated[float, Meta(gt=0, le=86_400)] | Annotated[int, Meta(gt=0, le=86_400)]

FRAME_BYTES = 1024 * 1024
"""Default size of the largest frame or document, in bytes."""
JSON_DEPTH = 64
"""Default deepest nesting of arrays and objects."""


class Limits(Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """What one node takes from the outside; the units stand beside each member."""

    frame_bytes: _FrameBytes = FRAME_BYTES
    """Largest frame or HTTP document, bytes. Over it: PROTOCOL_VIOLATION."""
    json_depth: _Depth = JSON_DEPTH
    """Deepest nesting of arrays and objects. Over it: PROTOCOL_VIOLATION."""
    frames_per_second: _Count = 50_000
    """Frames a second of one connection. Over it: RATE_LIMITED."""
    commands_in_flight: _Count = 1024
    """Unanswered Commands of one connection. Over it: BACKPRESSURE."""
    subscriptions: _Count = 1000
    """Groups subscribed by one connection."""
    connections: _Count = 10_000
    """Live connections, one for each Agent."""
    unauthenticated_connections: _Count = 256
    """Connections still in their handshake."""
    handshake_timeout: _Seconds = 10
    """Seconds from connect to ``server_accept``."""
    ping_interval: _Seconds = 20
    """Seconds of silence after which the node sends a PING."""
    dead_after: _Seconds = 60
    """Seconds of silence after which a connection is closed."""
    send_timeout: _Seconds = 30
    """Seconds a write may be stuck before its connection is closed."""
    outbox_frames: _Count = 4096
    """Frames waiting for one connection; a quarter of it for one Group. Over it: BACKPRESSURE."""
    outbox_bytes: _Bytes = 8 * 1024 * 1024
    """Bytes waiting for one connection; a quarter of it for one Group. Over it: BACKPRESSURE."""
    artifact_bytes: _Bytes = 64 * 1024**3
    """Largest Artifact, bytes."""
    map_bytes: _Bytes = 1024**4
    """Ceiling of the store's file, bytes."""
    free_bytes_reserve: _BytesOrZero = 64 * 1024 * 1024
    """Free disk that is left alone, bytes. Below it: INTERNAL_ERROR, retryable."""

    def __post_init__(self) -> None:
        if self.ping_interval >= self.dead_after:
            raise ValueError("ping_interval must be shorter than dead_after, or every idle connection dies")
        if self.outbox_frames < 4 or self.outbox_bytes < 4 * self.frame_bytes:
            raise ValueError("outbox_frames must be at least 4 and outbox_bytes at least four frames")
