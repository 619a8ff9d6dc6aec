"""Frames that the gateway makes itself: errors, PINGs, and the envelope around stored Events."""

from __future__ import annotations

from msgspec import UNSET

from mwnode.protocol import frames
from mwnode.protocol.errors import ErrorCode, Rejection, error_document
from mwnode.protocol.identifiers import uuid7_urn
from mwnode.protocol.ports import Clock, Entropy
from mwnode.trust.ed25519 import encode_base64url

FAULTS_MAX = 1000
"""Entries of one SUBSCRIBE or ACK that are refused one by one; the rest of the frame is passed over (R-17.3-01)."""
TOO_MANY_FAULTS = Rejection(
    ErrorCode.RATE_LIMITED,
    f"{FAULTS_MAX} entries of this frame were refused; what follows them was not looked at",
    "R-19-31",
)


class Replies:
    """Makes frames with fresh frame IDs. One for a node."""

    def __init__(self, clock: Clock, entropy: Entropy) -> None:
        self._clock = clock
        self._entropy = entropy
        # Counting under a random prefix is unique like a UUID, and much cheaper for a replay of a million Events.
        self._prefix = b"urn:mwnode:frame:%b:" % entropy.random(8).hex().encode()
        self._count = 0

    def frame_id(self) -> str:
        """A frame ID never used before."""
        self._count += 1
        return f"{self._prefix.decode()}{self._count}"

    def event(self, event: bytes) -> bytes:
        """An EVENT frame around the exact bytes that were signed and stored (R-17.1-09)."""
        self._count += 1
        return b'{"event":%b,"frameId":"%b%d","frameType":"EVENT","protocolVersion":"0.1"}' % (
            event,
            self._prefix,
            self._count,
        )

    def error(
        self,
        rejection: Rejection,
        *,
        fatal: bool = False,
        related_frame_id: str | None = None,
        related_action_id: str | None = None,
        group_id: str | None = None,
        snapshot_artifact_hash: str | None = None,
    ) -> bytes:
        """An ERROR frame (R-17.1-12). ``group_id`` only where the receiver knows that Group (R-19-03)."""
        document = error_document(
            rejection,
            self._clock.now().text(),
            fatal=fatal,
            related_frame_id=related_frame_id,
            related_action_id=related_action_id,
            group_id=group_id,
            snapshot_artifact_hash=snapshot_artifact_hash,
        )
        return frames.encode(frames.ErrorFrame(protocol_version="0.1", frame_id=self.frame_id(), error=document))

    def ping(self, *, nonce: str | None = None, reply_to: str | None = None) -> bytes:
        """A PING; the answer to another one when ``reply_to`` is given (R-17.1-11)."""
        return frames.encode(
            frames.Ping(
                protocol_version="0.1",
                frame_id=self.frame_id(),
                nonce=nonce or encode_base64url(self._entropy.random(18)),
                sent_at=self._clock.now().text(),
                reply_to_nonce=UNSET if reply_to is None else reply_to,
            )
        )

    def mark(self, subscription_id: str) -> bytes:
        """The PING that ends the replay of a SUBSCRIBE (decision A11)."""
        return self.ping(nonce=encode_base64url(subscription_id.encode()))

    def new_id(self) -> str:
        """A fresh identifier."""
        return uuid7_urn(self._clock.now(), self._entropy.random(10))
