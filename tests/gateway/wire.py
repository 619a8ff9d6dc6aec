"""A raw WebSocket peer for tests: says exactly what it is told to say, and understands nothing by itself."""

from __future__ import annotations

import asyncio
import base64
import json
from typing import Any

import aiohttp

from mwnode.testing import Participant
from tests.patience import PATIENCE_SECONDS


def b64(data: bytes) -> str:
    return base64.urlsafe_b64encode(data).rstrip(b"=").decode()


def unb64(text: str) -> bytes:
    return base64.urlsafe_b64decode(text + "=" * (-len(text) % 4))


class Wire:
    """One raw connection. ``received`` keeps every server frame, for checks over a whole run."""

    def __init__(self, session: aiohttp.ClientSession, socket: aiohttp.ClientWebSocketResponse) -> None:
        self.session = session
        self.socket = socket
        self.received: list[dict[str, Any]] = []
        self.epoch = 0
        self.token = ""
        self._frames = 0

    @classmethod
    async def dial(cls, url: str, **options: Any) -> Wire:
        session = aiohttp.ClientSession()
        try:
            socket = await session.ws_connect(url, max_msg_size=64 * 1024 * 1024, compress=0, **options)
        except BaseException:
            await session.close()
            raise
        return cls(session, socket)

    async def close(self) -> None:
        await self.socket.close()
        await self.session.close()

    # --- frames ---

    def frame(self, frame_type: str, **members: Any) -> dict[str, Any]:
        self._frames += 1
        return {
            "protocolVersion": "0.1",
            "frameId": f"urn:test:frame:{self._frames}",
            "frameType": frame_type,
            **members,
        }

    async def send(self, frame: dict[str, Any]) -> dict[str, Any]:
        await self.socket.send_str(json.dumps(frame))
        return frame

    async def send_raw(self, data: bytes, kind: aiohttp.WSMsgType = aiohttp.WSMsgType.TEXT) -> None:
        await self.socket.send_frame(data, kind)

    async def receive(self, seconds: float = PATIENCE_SECONDS) -> dict[str, Any]:
        """The next server frame; fails when the connection ends or nothing comes."""
        message = await asyncio.wait_for(self.socket.receive(), seconds)
        assert message.type is aiohttp.WSMsgType.TEXT, f"{message.type}: {message.data} {self.socket.close_code}"
        frame: dict[str, Any] = json.loads(message.data)
        self.received.append(frame)
        return frame

    async def closed(self, seconds: float = PATIENCE_SECONDS) -> int | None:
        """Wait for the end; the close code. Fails when another frame comes first."""
        message = await asyncio.wait_for(self.socket.receive(), seconds)
        assert message.type in (
            aiohttp.WSMsgType.CLOSE,
            aiohttp.WSMsgType.CLOSED,
            aiohttp.WSMsgType.CLOSING,
        ), message
        return self.socket.close_code

    async def silent(self, seconds: float = 0.2) -> bool:
        """Whether nothing comes for a while."""
        try:
            frame = await self.receive(seconds)
        except TimeoutError:
            return True
        raise AssertionError(f"a frame came: {frame}")

    async def error(self) -> dict[str, Any]:
        """The next frame, which must be an ERROR; its error document."""
        frame = await self.receive()
        assert frame["frameType"] == "ERROR", frame
        error: dict[str, Any] = frame["error"]
        return error

    async def event(self) -> dict[str, Any]:
        """The next frame, which must be an EVENT; its Event."""
        frame = await self.receive()
        assert frame["frameType"] == "EVENT", frame
        event: dict[str, Any] = frame["event"]
        return event

    async def until_mark(self, subscription_id: str) -> list[dict[str, Any]]:
        """All frames up to the PING that ends the replay of a SUBSCRIBE."""
        frames = []
        while True:
            frame = await self.receive()
            if frame["frameType"] == "PING" and unb64(frame["nonce"]) == subscription_id.encode():
                return frames
            frames.append(frame)

    # --- the handshake ---

    def client_init(self, who: Participant, **members: Any) -> dict[str, Any]:
        ordinary = {
            "phase": "client_init",
            "agentId": who.id,
            "keyId": who.key.key_id,
            "clientNonce": "Y2xpZW50",
            "supportedVersions": ["0.1"],
        }
        return self.frame("HELLO", **{**ordinary, **members})

    def client_response(self, who: Participant, challenge: dict[str, Any], **members: Any) -> dict[str, Any]:
        signature = who.key.sign(unb64(challenge["challenge"]))
        ordinary = {
            "phase": "client_response",
            "agentId": who.id,
            "keyId": who.key.key_id,
            "clientNonce": challenge["clientNonce"],
            "serverNonce": challenge["serverNonce"],
            "challengeSignature": b64(signature),
        }
        return self.frame("HELLO", **{**ordinary, **members})

    async def hello(self, who: Participant) -> dict[str, Any]:
        """The whole handshake; the ``server_accept`` frame. The participant signs under the new epoch from now on."""
        await self.send(self.client_init(who))
        challenge = await self.receive()
        await self.send(self.client_response(who, challenge))
        accept = await self.receive()
        assert accept.get("phase") == "server_accept", accept
        self.epoch, self.token = accept["sessionEpoch"], accept["sessionToken"]
        who.session_epoch = self.epoch
        return accept

    # --- what clients send ---

    async def subscribe(self, *groups: str | dict[str, Any], after: int = 0) -> str:
        """Send a SUBSCRIBE; its subscription ID."""
        subscription_id = f"urn:test:subscription:{self._frames}"
        entries = [{"groupId": group, "afterSequence": after} if isinstance(group, str) else group for group in groups]
        await self.send(self.frame("SUBSCRIBE", subscriptionId=subscription_id, groups=entries))
        return subscription_id

    async def follow(self, *groups: str | dict[str, Any], after: int = 0) -> list[dict[str, Any]]:
        """Subscribe and take the replay; its Events."""
        frames = await self.until_mark(await self.subscribe(*groups, after=after))
        assert all(frame["frameType"] == "EVENT" for frame in frames), frames
        return [frame["event"] for frame in frames]

    async def command(self, raw: bytes) -> dict[str, Any]:
        """Send a Command; the frame that carried it."""
        return await self.send(self.frame("COMMAND", command=json.loads(raw)))

    async def ack(self, cursors: dict[str, int]) -> dict[str, Any]:
        """Acknowledge Groups; the frame."""
        entries = [{"groupId": group, "sequence": sequence} for group, sequence in cursors.items()]
        return await self.send(self.frame("ACK", acknowledgements=entries, sentAt="2030-01-01T00:00:00Z"))
