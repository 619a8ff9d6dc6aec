"""A bare peer over TCP and TLS: HTTP by hand, WebSocket frames by hand, everything wrong if it is told so."""

from __future__ import annotations

import asyncio
import base64
import json
import ssl
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from mwnode.trust.keys import SigningKey

TEXT, BINARY, CONTINUATION, CLOSE, PING = 0x1, 0x2, 0x0, 0x8, 0x9
NONCE = "aG9zdGlsZS1ub25jZQ"
UPGRADE = (
    b"GET /ws HTTP/1.1\r\nHost: node\r\nUpgrade: websocket\r\nConnection: Upgrade\r\n"
    b"Sec-WebSocket-Version: 13\r\nSec-WebSocket-Key: AAAAAAAAAAAAAAAAAAAAAA==\r\n\r\n"
)
BUFFER = 1024 * 1024


class Gone(Exception):
    """The node has ended the connection."""


@dataclass(frozen=True)
class Place:
    """Where the node listens."""

    host: str
    port: int
    tls: ssl.SSLContext | None = field(compare=False)

    @classmethod
    def of(cls, port: int, ca: str) -> Place:
        return cls("127.0.0.1", port, ssl.create_default_context(cafile=ca))

    @property
    def plain(self) -> Place:
        """The same port, without TLS: which the node does not speak there."""
        return Place(self.host, self.port, None)


class Peer:
    """One connection."""

    def __init__(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        self.reader = reader
        self.writer = writer
        self.session_epoch = 0
        self._count = 0

    @classmethod
    async def dial(cls, place: Place) -> Peer:
        reader, writer = await asyncio.open_connection(place.host, place.port, ssl=place.tls, limit=BUFFER)
        return cls(reader, writer)

    @classmethod
    async def websocket(cls, place: Place) -> Peer:
        """A WebSocket that has said nothing yet."""
        peer = await cls.dial(place)
        try:
            await peer.write(UPGRADE)
            head = await peer.reader.readuntil(b"\r\n\r\n")
            if b" 101 " not in head.split(b"\r\n")[0]:
                raise Gone(head.decode(errors="replace"))
        except (asyncio.IncompleteReadError, OSError) as error:
            peer.abort()
            raise Gone(str(error)) from error
        except BaseException:
            peer.abort()
            raise
        return peer

    @classmethod
    async def agent(cls, place: Place, key: SigningKey) -> Peer:
        """A WebSocket that an Agent has authenticated on."""
        peer = await cls.websocket(place)
        try:
            await peer.hello(key)
        except BaseException:
            peer.abort()
            raise
        return peer

    # --- bytes ---

    async def write(self, data: bytes) -> None:
        self.writer.write(data)
        await self.writer.drain()

    def abort(self) -> None:
        self.writer.transport.abort()

    async def until_gone(self) -> None:
        """Read and forget until the node ends the connection."""
        try:
            while await self.reader.read(BUFFER):
                pass
        except OSError:
            return

    async def close(self) -> None:
        self.writer.close()
        try:
            await self.writer.wait_closed()
        except OSError:
            return

    # --- frames ---

    def frame(self, frame_type: str, **members: Any) -> dict[str, Any]:
        self._count += 1
        return {
            "protocolVersion": "0.1",
            "frameId": f"urn:test:frame:{self._count}",
            "frameType": frame_type,
            **members,
        }

    async def send(self, frame: dict[str, Any]) -> None:
        await self.write(framed(json.dumps(frame).encode()))

    async def receive(self) -> bytes:
        """The next text message; Gone when the connection ends."""
        try:
            while True:
                head = await self.reader.readexactly(2)
                size = head[1] & 0x7F
                if size == 126:
                    size = int.from_bytes(await self.reader.readexactly(2), "big")
                elif size == 127:
                    size = int.from_bytes(await self.reader.readexactly(8), "big")
                payload = await self.reader.readexactly(size)
                opcode = head[0] & 0x0F
                if opcode == TEXT:
                    return payload
                if opcode == CLOSE:
                    raise Gone(payload.decode(errors="replace"))
        except (asyncio.IncompleteReadError, OSError) as error:
            raise Gone(str(error)) from error

    async def answer(self) -> dict[str, Any]:
        """The next message as a frame."""
        frame: dict[str, Any] = json.loads(await self.receive())
        return frame

    # --- the handshake ---

    def client_init(self, key: SigningKey) -> dict[str, Any]:
        return self.frame(
            "HELLO",
            phase="client_init",
            agentId=key.principal.id,
            keyId=key.key_id,
            clientNonce=NONCE,
            supportedVersions=["0.1"],
        )

    def client_response(self, key: SigningKey, challenge: dict[str, Any]) -> dict[str, Any]:
        return self.frame(
            "HELLO",
            phase="client_response",
            agentId=key.principal.id,
            keyId=key.key_id,
            clientNonce=NONCE,
            serverNonce=challenge["serverNonce"],
            challengeSignature=b64(key.sign(unb64(challenge["challenge"]))),
        )

    async def hello(self, key: SigningKey) -> None:
        await self.send(self.client_init(key))
        await self.send(self.client_response(key, await self.answer()))
        accept = await self.answer()
        if accept.get("phase") != "server_accept":
            raise Gone(str(accept))
        self.session_epoch = accept["sessionEpoch"]

    async def follow(self, group_id: str) -> None:
        """Follow a Group's Events from now on."""
        await self.send(
            self.frame(
                "SUBSCRIBE",
                subscriptionId="urn:test:subscription:1",
                groups=[{"groupId": group_id, "afterSequence": 2**53 - 1}],
            )
        )
        while b'"frameType":"PING"' not in await self.receive():
            pass


def framed(payload: bytes, opcode: int = TEXT, *, final: bool = True, claimed: int | None = None) -> bytes:
    """One WebSocket frame from a client, masked by zeros; ``claimed`` is the length that its head tells."""
    size = len(payload) if claimed is None else claimed
    first = (0x80 if final else 0) | opcode
    if size < 126:
        head = bytes((first, 0x80 | size))
    elif size < 65_536:
        head = bytes((first, 0xFE)) + size.to_bytes(2, "big")
    else:
        head = bytes((first, 0xFF)) + size.to_bytes(8, "big")
    return head + b"\0\0\0\0" + payload


def b64(data: bytes) -> str:
    return base64.urlsafe_b64encode(data).rstrip(b"=").decode()


def unb64(text: str) -> bytes:
    return base64.urlsafe_b64decode(text + "=" * (-len(text) % 4))


def read_ca(home: Path) -> str:
    return str(home / "tls" / "ca.pem")
