"""A raw WebSocket client: it hands over finished frames, counts Events in what it reads, and decodes nothing else.

What is measured is the node, so that the other end must cost next to nothing.
"""

from __future__ import annotations

import selectors
import socket
import time
from collections.abc import Mapping, Sequence
from typing import Any, Final
from urllib.parse import urlsplit

import msgspec

from mwnode.bench.traffic import new_id
from mwnode.client.challenges import handshake_transcript
from mwnode.protocol.frames import encode_command_frame
from mwnode.trust.ed25519 import encode_base64url
from mwnode.trust.keys import SigningKey

READ_BYTES: Final = 1024 * 1024
WAIT_SECONDS: Final = 60.0
"""How long the node may be silent before the measurement is given up."""
NONCE: Final = "YmVuY2gtbm9uY2U"
_EVENT: Final = b'"frameType":"EVENT"'
"""Quotes inside an Event's texts are escaped, so that only a frame says this of itself."""
_ERROR: Final = b'"frameType":"ERROR"'
_PING: Final = b'"frameType":"PING"'
_UPGRADE: Final = (
    "GET %s HTTP/1.1\r\nHost: %s\r\nUpgrade: websocket\r\nConnection: Upgrade\r\n"
    "Sec-WebSocket-Version: 13\r\nSec-WebSocket-Key: AAAAAAAAAAAAAAAAAAAAAA==\r\n\r\n"
)


def _framed(text: bytes) -> bytes:
    """One masked text message (RFC 6455, 5.2). The mask is all zero, so that it costs this end nothing."""
    size = len(text)
    if size < 126:
        head = bytes((0x81, 0x80 | size))
    elif size < 65_536:
        head = b"\x81\xfe" + size.to_bytes(2, "big")
    else:
        head = b"\x81\xff" + size.to_bytes(8, "big")
    return head + bytes(4) + text


class RawSocket:
    """One connection. What is read is kept only as far as a mark may be cut in two."""

    def __init__(self, url: str) -> None:
        """Connect to a ``ws:`` URL, and shake hands as WebSocket does."""
        parts = urlsplit(url)
        self.socket = socket.create_connection((parts.hostname or "", parts.port or 80), timeout=WAIT_SECONDS)
        self.socket.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        self.socket.sendall((_UPGRADE % (parts.path, parts.netloc)).encode())
        self._rest = b""
        while b"\r\n\r\n" not in self._rest:
            self._rest += self._more()
        head, _, self._rest = self._rest.partition(b"\r\n\r\n")
        if b" 101 " not in head.partition(b"\r\n")[0]:
            raise RuntimeError(f"the node refused the bench's WebSocket: {head[:200]!r}")

    def close(self) -> None:
        """Hang up."""
        self.socket.close()

    def _more(self) -> bytes:
        data = self.socket.recv(READ_BYTES)
        if not data:
            raise RuntimeError("the node closed the bench's connection")
        return data

    def send(self, frames: Sequence[bytes]) -> None:
        """Send frames, in one write."""
        self.socket.sendall(b"".join([_framed(frame) for frame in frames]))

    def document(self) -> dict[str, Any]:
        """The next message, decoded: for the handshake."""
        while True:
            size, start = (self._rest[1], 2) if len(self._rest) > 1 else (0, 2)
            if size == 126:
                size, start = int.from_bytes(self._rest[2:4], "big"), 4
            if len(self._rest) >= start + size > 2:
                text, self._rest = self._rest[start : start + size], self._rest[start + size :]
                return msgspec.json.decode(text, type=dict[str, Any])
            self._rest += self._more()

    def events(self) -> int:
        """Read once; how many EVENT frames that brought. RuntimeError for an ERROR frame."""
        text = self._rest + self._more()
        if _ERROR in text:
            raise RuntimeError(f"the node refused what the bench sent: {text[text.index(_ERROR) - 300 :][:600]!r}")
        found = text.count(_EVENT)
        # A mark that was counted must not be seen again, and one that is cut in two must.
        counted = text.rfind(_EVENT) + len(_EVENT) if found else 0
        self._rest = text[max(counted, len(text) - len(_EVENT) + 1) :]
        return found

    def authenticate(self, key: SigningKey) -> int:
        """The handshake of the protocol; the Session Epoch."""
        agent_id, key_id = key.principal.id, key.key_id
        shared = {"protocolVersion": "0.1", "frameType": "HELLO", "agentId": agent_id, "keyId": key_id}
        init = {"frameId": new_id(), "phase": "client_init", "clientNonce": NONCE, "supportedVersions": ["0.1"]}
        self._say({**shared, **init})
        asked = self.document()
        transcript = handshake_transcript(
            asked["challenge"],
            agent_id=agent_id,
            key_id=key_id,
            client_nonce=NONCE,
            server_nonce=asked["serverNonce"],
        )
        answer = {"frameId": new_id(), "phase": "client_response", "clientNonce": NONCE}
        signature = encode_base64url(key.sign(transcript))
        self._say({**shared, **answer, "serverNonce": asked["serverNonce"], "challengeSignature": signature})
        accepted = self.document()
        if "sessionEpoch" not in accepted:
            raise RuntimeError(f"the node refused the bench's handshake: {accepted}")
        return int(accepted["sessionEpoch"])

    def subscribe(self, group_id: str, after: int) -> None:
        """Follow one Group from there on."""
        frame = {"protocolVersion": "0.1", "frameId": new_id(), "frameType": "SUBSCRIBE", "subscriptionId": new_id()}
        self._say({**frame, "groups": [{"groupId": group_id, "afterSequence": after}]})

    def live(self) -> None:
        """Wait for the end of a replay of nothing, which a PING tells (decision A11)."""
        while _PING not in self._rest:
            self._rest += self._more()
        self._rest = b""

    def _say(self, frame: Mapping[str, object]) -> None:
        self.send([msgspec.json.encode(frame)])


def connect(url: str, key: SigningKey) -> tuple[RawSocket, int]:
    """A connection after both handshakes, and its Session Epoch."""
    raw = RawSocket(url)
    return raw, raw.authenticate(key)


def command_frames(commands: Sequence[bytes]) -> list[bytes]:
    """COMMAND frames, made ahead of time."""
    return [encode_command_frame(new_id(), command) for command in commands]


def pipelined(raw: RawSocket, frames: Sequence[bytes], window: int, others: Sequence[RawSocket] = ()) -> list[float]:
    """Send COMMAND frames with so many unanswered; the time from sending to receipt of each, in order.

    Returns once every one of ``others``, who follow the Group, has as many Events, too.
    """
    sent: list[float] = []
    took: list[float] = []
    missing = {each: len(frames) for each in others}
    with selectors.DefaultSelector() as selector:
        for each in (raw, *others):
            selector.register(each.socket, selectors.EVENT_READ, each)
        while len(took) < len(frames) or missing:
            room = frames[len(sent) : len(took) + window]
            if room:
                sent += [time.perf_counter()] * len(room)
                raw.send(room)
            ready = selector.select(WAIT_SECONDS)
            if not ready:
                raise RuntimeError(f"the node fell silent: {len(took)} of {len(frames)} were answered")
            for found, _ in ready:
                each = found.data
                count = each.events()
                if each is raw:
                    now = time.perf_counter()
                    took += [now - begun for begun in sent[len(took) : len(took) + count]]
                elif each in missing:
                    missing[each] -= count
                    if missing[each] <= 0:
                        del missing[each]
    return took


def read(raw: RawSocket, count: int) -> None:
    """Read so many Events."""
    received = 0
    while received < count:
        received += raw.events()
