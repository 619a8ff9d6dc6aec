"""What honest Agents notice: how long a Command takes to its receipt, and an Event to its subscribers."""

from __future__ import annotations

import asyncio
import json
import random
import re
import time
from collections.abc import Sequence
from dataclasses import dataclass

from mwnode.bench.traffic import new_id
from mwnode.client.commands import signed_command
from mwnode.system import SystemClock
from mwnode.trust.keys import SigningKey
from tests.hostile.wire import Gone, Peer, Place, framed
from tests.patience import PATIENCE_SECONDS

PAUSE_SECONDS = (0.004, 0.012)
"""Between a receipt and the next Command of the same Agent."""
RETURN_SECONDS = 0.1
"""How soon who was turned away comes again."""
_MESSAGE = re.compile(rb'"messageId":"([^"]+)"')
_CLOCK = SystemClock()


@dataclass(frozen=True)
class Sample:
    """Seconds, one for each Command or delivery, in no order."""

    took: tuple[float, ...]

    def at(self, share: float) -> float:
        ordered = sorted(self.took)
        return ordered[min(len(ordered) - 1, int(share * len(ordered)))]

    @property
    def p50(self) -> float:
        return self.at(0.5)

    @property
    def p99(self) -> float:
        return self.at(0.99)


class Speakers:
    """Honest Agents that post Messages, each waiting for its receipt, at an easy pace."""

    def __init__(self, peers: Sequence[tuple[SigningKey, Peer]], group_id: str) -> None:
        self._peers = peers
        self._group_id = group_id
        self.sent: dict[bytes, float] = {}
        """When each Message was sent, by its ID."""

    @classmethod
    async def connect(cls, place: Place, keys: Sequence[SigningKey], group_id: str) -> Speakers:
        return cls([(key, await admitted(place, key)) for key in keys], group_id)

    async def run(self, seconds: float) -> Sample:
        self.sent.clear()
        end = time.perf_counter() + seconds
        took = await asyncio.gather(*(self._speak(key, peer, end) for key, peer in self._peers))
        return Sample(tuple(each for one in took for each in one))

    async def _speak(self, key: SigningKey, peer: Peer, end: float) -> list[float]:
        took: list[float] = []
        chance = random.Random(key.key_id)
        while time.perf_counter() < end:
            message_id = new_id()
            frame = framed(
                json.dumps(peer.frame("COMMAND", command=json.loads(self.message(key, peer, message_id)))).encode()
            )
            begun = self.sent[message_id.encode()] = time.perf_counter()
            async with asyncio.timeout(PATIENCE_SECONDS):
                await peer.write(frame)
                while message_id.encode() not in (answer := await peer.receive()):
                    pass
            took.append(time.perf_counter() - begun)
            if b'"frameType":"EVENT"' not in answer:
                raise RuntimeError(f"an honest Command was refused: {answer.decode()}")
            await asyncio.sleep(chance.uniform(*PAUSE_SECONDS))
        return took

    def message(self, key: SigningKey, peer: Peer, message_id: str) -> bytes:
        return signed_command(
            key,
            "message.post",
            {
                "messageId": message_id,
                "conversationId": f"{self._group_id}:mission",
                "content": [{"type": "text", "text": "The archive is built and its tests pass."}],
            },
            action_id=new_id(),
            issued_at=_CLOCK.now().text(),
            group_id=self._group_id,
            session_epoch=peer.session_epoch,
            membership_epoch=1,
        )

    def close(self) -> None:
        for _, peer in self._peers:
            peer.abort()


class Listeners:
    """Honest subscribers of the Group; every delivery is timed from the sending of its Command."""

    def __init__(self, peers: Sequence[Peer], speakers: Speakers) -> None:
        self._speakers = speakers
        self._took: list[float] = []
        self._peers = peers
        self._tasks = [asyncio.create_task(self._listen(peer)) for peer in peers]

    @classmethod
    async def connect(cls, place: Place, keys: Sequence[SigningKey], group_id: str, speakers: Speakers) -> Listeners:
        peers = []
        for key in keys:
            peer = await admitted(place, key)
            await peer.follow(group_id)
            peers.append(peer)
        return cls(peers, speakers)

    async def _listen(self, peer: Peer) -> None:
        while True:
            event = await peer.receive()
            now = time.perf_counter()
            found = _MESSAGE.search(event)
            since = self._speakers.sent.get(found[1]) if found is not None else None
            if since is not None:
                self._took.append(now - since)

    async def run(self, seconds: float) -> Sample:
        self._took.clear()
        await self._speakers.run(seconds)
        await asyncio.sleep(0.2)
        for task in self._tasks:
            if task.done():
                task.result()
        return Sample(tuple(self._took))

    async def close(self) -> None:
        for task in self._tasks:
            task.cancel()
        await asyncio.gather(*self._tasks, return_exceptions=True)
        for peer in self._peers:
            peer.abort()


async def admitted(place: Place, key: SigningKey) -> Peer:
    """An honest Agent's connection; TimeoutError when it cannot get in.

    Where others of its own address hold all of the room that the address has, it may be turned away like them: as any
    client does, it comes again.
    """
    async with asyncio.timeout(PATIENCE_SECONDS):
        while True:
            try:
                return await Peer.agent(place, key)
            except (Gone, OSError):
                await asyncio.sleep(RETURN_SECONDS)


async def arrive(place: Place, key: SigningKey) -> float:
    """How long a new Agent takes to get in, in seconds; it leaves again at once."""
    begun = time.perf_counter()
    peer = await admitted(place, key)
    took = time.perf_counter() - begun
    peer.abort()
    return took
