"""What hostile peers do. Each attack goes on until it is cancelled; ``Count`` says how often it did what."""

from __future__ import annotations

import asyncio
import json
import os
import random
import time
from collections import Counter
from collections.abc import Awaitable, Callable
from dataclasses import dataclass, field

from mwnode.bench.traffic import new_id
from mwnode.client.commands import signed_command
from mwnode.system import SystemClock
from mwnode.trust.keys import SigningKey, generate
from tests.hostile.scene import Scene, crowd_size
from tests.hostile.wire import (
    BINARY,
    CONTINUATION,
    PING,
    TEXT,
    UPGRADE,
    Gone,
    Peer,
    Place,
    framed,
)

SLOW = 400
"""Slow connections held at once."""
SLOW_SECONDS = 0.5
"""Between two bytes of a slow one."""
CONNECTS_A_SECOND = 200
HEAD = b"POST /v0.1/commands HTTP/1.1\r\nHost: node\r\nContent-Type: application/json\r\n"
_CLOCK = SystemClock()


@dataclass
class Attack:
    """What an attacker knows and has done."""

    scene: Scene
    place: Place
    count: Counter[str] = field(default_factory=Counter)
    ready: Callable[[], None] = lambda: None
    """To be called once it is at work."""


Assault = Callable[[Attack], Awaitable[None]]


async def again_and_again(attack: Attack, once: Callable[[], Awaitable[None]], at_once: int = 4) -> None:
    """Do something in so many connections at once, over and over."""

    async def one() -> None:
        while True:
            try:
                await once()
                attack.count["done"] += 1
            except (Gone, OSError, EOFError):
                attack.count["refused"] += 1
                await asyncio.sleep(0.002)

    attack.ready()
    await asyncio.gather(*(one() for _ in range(at_once)))


async def _insist(attack: Attack, frames: Callable[[Peer], bytes]) -> None:
    """Send frames as an authenticated insider as fast as they are taken, and read all answers; connect again if cut."""

    async def once() -> None:
        peer = await Peer.agent(attack.place, attack.scene.mallory)
        reading = asyncio.create_task(peer.until_gone())
        try:
            while not reading.done():
                await peer.write(frames(peer))
                attack.count["sent"] += 1
        finally:
            reading.cancel()
            peer.abort()

    await again_and_again(attack, once, 1)


# --- frames that are wrong --------------------------------------------------------------------------------------------

MALFORMED = (
    b"",
    b"{",
    b"null",
    b"[]",
    b"[" * 70,
    b'{"frameType":"COMMAND"}',
    b'{"protocolVersion":"0.1","frameId":"urn:x:1","frameType":"NOPE"}',
    b'{"protocolVersion":"0.1","frameId":"urn:x:1","frameId":"urn:x:2","frameType":"PING"}',
    b'{"protocolVersion":"0.1","frameId":"urn:x:1","frameType":"PING","nonce":1e999,"sentAt":null}',
    b'{"protocolVersion":"0.1","frameId":"urn:x:1","frameType":"ACK","acknowledgements":[],"sentAt":"yesterday"}',
    b'{"protocolVersion":"0.1","frameId":"urn:x:1","frameType":"COMMAND","command":{"a":"\\ud800"}}',
    json.dumps({"protocolVersion": "0.1", "frameId": "urn:x:1", "frameType": "COMMAND", "command": {"a": 1}}).encode(),
)


async def malformed(attack: Attack) -> None:
    """Frames that are no JSON, no frames, or frames that do not fit their schema."""
    everything = b"".join(framed(each) for each in MALFORMED)
    await _insist(attack, lambda peer: everything)


async def binary(attack: Attack) -> None:
    """Binary messages, before and after the handshake."""

    async def once() -> None:
        chance = random.random() < 0.5
        peer = await (Peer.websocket(attack.place) if chance else Peer.agent(attack.place, attack.scene.mallory))
        try:
            await peer.write(framed(os.urandom(4096), BINARY))
            await peer.until_gone()
        finally:
            peer.abort()

    await again_and_again(attack, once)


async def oversized(attack: Attack) -> None:
    """Messages and bodies over every limit: claimed, and really sent."""
    piece = b"a" * 65_536

    async def once() -> None:
        kind = random.randrange(4)
        if kind == 0:
            peer = await Peer.agent(attack.place, attack.scene.mallory)
            await _pour(peer, framed(b'{"a":"', claimed=8 * 1024 * 1024), piece, 40)
        elif kind == 1:
            peer = await Peer.websocket(attack.place)
            await _pour(peer, framed(b'{"a":"', claimed=2**62), piece, 4)
        elif kind == 2:
            peer = await Peer.dial(attack.place)
            await _pour(peer, HEAD + b"Content-Length: 8000000000\r\n\r\n", piece, 40)
        else:
            peer = await Peer.dial(attack.place)
            await _pour(peer, HEAD + b"Transfer-Encoding: chunked\r\n\r\n", b"10000\r\n" + piece + b"\r\n", 40)

    await again_and_again(attack, once, 2)


async def _pour(peer: Peer, head: bytes, piece: bytes, pieces: int) -> None:
    try:
        await peer.write(head)
        for _ in range(pieces):
            await peer.write(piece)
        async with asyncio.timeout(2):
            await peer.until_gone()
    except TimeoutError:
        return
    finally:
        peer.abort()


async def truncated(attack: Attack) -> None:
    """Half of a TLS hello, of a request, of a frame, of a handshake; then the connection is cut."""

    async def once() -> None:
        kind = random.randrange(4)
        if kind == 0:
            peer = await Peer.dial(attack.place.plain)
            await peer.write(b"\x16\x03\x01\x02\x00\x01\x00\x01\xfc\x03\x03")
        elif kind == 1:
            peer = await Peer.dial(attack.place)
            await peer.write(HEAD + b"Content-Length: 900\r\n\r\n{")
        elif kind == 2:
            peer = await Peer.websocket(attack.place)
            await peer.write(framed(b'{"protocolVersion"', claimed=5000))
        else:
            peer = await Peer.websocket(attack.place)
            await peer.send(peer.client_init(attack.scene.mallory))
        peer.abort()

    await again_and_again(attack, once)


async def fragmented(attack: Attack) -> None:
    """Messages in fragments of one byte or none, with PINGs of RFC 6455 between them."""
    pieces = [framed(b"{", TEXT, final=False)]
    pieces += [framed(b" ", CONTINUATION, final=False) for _ in range(200)]
    pieces += [framed(b"", CONTINUATION, final=False) for _ in range(200)]
    pieces += [framed(b"abcd", PING) for _ in range(20)]
    pieces += [framed(b"}", CONTINUATION)]
    everything = b"".join(pieces)
    await _insist(attack, lambda peer: everything)


# --- slowly -----------------------------------------------------------------------------------------------------------


async def _slowly(attack: Attack, place: Place, start: Callable[[], Awaitable[Peer]], data: bytes) -> None:
    """Hold many connections and send a byte on each now and then; those that are cut come again."""
    started = asyncio.Event()

    async def one() -> None:
        while True:
            try:
                peer = await start()
            except (Gone, OSError, EOFError):
                attack.count["refused"] += 1
                await asyncio.sleep(SLOW_SECONDS)
                continue
            finally:
                started.set()
            attack.count["held"] += 1
            try:
                for position in range(len(data)):
                    await peer.write(data[position : position + 1])
                    await asyncio.sleep(SLOW_SECONDS)
            except OSError:
                attack.count["cut"] += 1
            finally:
                peer.abort()

    holding = asyncio.gather(*(one() for _ in range(SLOW)))
    await started.wait()
    await asyncio.sleep(1)
    attack.ready()
    await holding


async def slow_http(attack: Attack) -> None:
    """Slowloris: the head of a request, a byte at a time."""
    await _slowly(attack, attack.place, lambda: Peer.dial(attack.place), HEAD + b"X-Long: " + b"a" * 10_000)


async def slow_body(attack: Attack) -> None:
    """The body of a request, a byte at a time."""
    head = HEAD + b"Content-Length: 100000\r\n\r\n"

    async def start() -> Peer:
        peer = await Peer.dial(attack.place)
        await peer.write(head)
        return peer

    await _slowly(attack, attack.place, start, b"a" * 100_000)


async def slow_websocket(attack: Attack) -> None:
    """A WebSocket whose first frame comes a byte at a time."""
    frame = framed(b"{" * 5000)
    await _slowly(attack, attack.place, lambda: Peer.websocket(attack.place), frame)


async def slow_tls(attack: Attack) -> None:
    """A TLS handshake, a byte at a time."""
    hello = b"\x16\x03\x01\x02\x00\x01\x00\x01\xfc\x03\x03" + bytes(510)
    await _slowly(attack, attack.place, lambda: Peer.dial(attack.place.plain), hello)


async def slow_upgrade(attack: Attack) -> None:
    """The request for a WebSocket, a byte at a time."""
    await _slowly(attack, attack.place, lambda: Peer.dial(attack.place), UPGRADE[:-2] + b"X: " + b"a" * 10_000)


# --- floods -----------------------------------------------------------------------------------------------------------


def _pings(peer: Peer, count: int = 50, size: int = 24) -> bytes:
    return b"".join(
        framed(json.dumps(peer.frame("PING", nonce="A" * size, sentAt="2030-01-01T00:00:00Z")).encode())
        for _ in range(count)
    )


async def flood_pings(attack: Attack) -> None:
    """PINGs as fast as they are taken, with all answers read."""
    await _insist(attack, _pings)


async def flood_unread(attack: Attack) -> None:
    """PINGs as fast as they are taken, and no answer is ever read."""

    async def once() -> None:
        peer = await Peer.agent(attack.place, attack.scene.mallory)
        transport = peer.writer.transport
        assert isinstance(transport, asyncio.Transport)
        transport.pause_reading()
        try:
            while True:
                await peer.write(_pings(peer, 50, 4000))
                attack.count["sent"] += 50
        finally:
            peer.abort()

    await again_and_again(attack, once, 1)


async def flood_subscribe(attack: Attack) -> None:
    """SUBSCRIBEs to thousands of Groups that do not exist, over and over."""
    groups = [{"groupId": f"urn:x:{number}", "afterSequence": 0} for number in range(5000)]
    await _insist(
        attack,
        lambda peer: framed(json.dumps(peer.frame("SUBSCRIBE", subscriptionId="urn:x:1", groups=groups)).encode()),
    )


async def flood_http(attack: Attack) -> None:
    """Requests as fast as they are answered, on a few connections that are kept."""
    question = json.dumps({"principal": {"type": "human", "id": "urn:x:1"}, "keyId": "urn:x:2"}).encode()
    request = (
        b"GET /healthz HTTP/1.1\r\nHost: node\r\n\r\n"
        b"GET /v0.1/missions HTTP/1.1\r\nHost: node\r\nAuthorization: Bearer x.y\r\n\r\n"
        b"POST /v0.1/sessions/challenge HTTP/1.1\r\nHost: node\r\nContent-Length: %d\r\n\r\n%b"
        b"POST /v0.1/commands HTTP/1.1\r\nHost: node\r\nContent-Length: 2\r\n\r\n{}" % (len(question), question)
    )

    async def once() -> None:
        peer = await Peer.dial(attack.place)
        reading = asyncio.create_task(peer.until_gone())
        try:
            while not reading.done():
                await peer.write(request)
                attack.count["sent"] += 4
        finally:
            reading.cancel()
            peer.abort()

    await again_and_again(attack, once)


def _messages(attack: Attack, key: SigningKey, session_epoch: int, membership_epoch: int = 1) -> bytes:
    return signed_command(
        key,
        "message.post",
        {
            "messageId": new_id(),
            "conversationId": f"{attack.scene.group_id}:mission",
            "content": [{"type": "text", "text": "noise"}],
        },
        action_id=new_id(),
        issued_at=_CLOCK.now().text(),
        group_id=attack.scene.group_id,
        session_epoch=session_epoch,
        membership_epoch=membership_epoch,
    )


async def stale(attack: Attack) -> None:
    """Commands under epochs, keys and times that are past, as an authenticated insider; all answers are read."""
    mallory = attack.scene.mallory
    forger = generate(mallory.key_id, mallory.principal, mallory.organization_id, bytes(32))
    made: dict[int, bytes] = {}

    def frames(peer: Peer) -> bytes:
        found = made.get(peer.session_epoch)
        if found is None:
            made.clear()
            commands = [
                _messages(attack, mallory, peer.session_epoch - 1),
                _messages(attack, mallory, peer.session_epoch, 7),
                _messages(attack, forger, peer.session_epoch),
            ]
            found = made[peer.session_epoch] = b"".join(
                framed(json.dumps(peer.frame("COMMAND", command=json.loads(each))).encode()) for each in commands
            )
        return found

    await _insist(attack, frames)


async def forged_http(attack: Attack) -> None:
    """Commands with forged signatures by HTTP, from nobody in particular."""
    mallory = attack.scene.mallory
    forger = generate(mallory.key_id, mallory.principal, mallory.organization_id, bytes(32))
    body = _messages(attack, forger, 1)
    request = HEAD + b"Content-Length: %d\r\n\r\n%b" % (len(body), body)

    async def once() -> None:
        peer = await Peer.dial(attack.place)
        reading = asyncio.create_task(peer.until_gone())
        try:
            while not reading.done():
                await peer.write(request)
                attack.count["sent"] += 1
        finally:
            reading.cancel()
            peer.abort()

    await again_and_again(attack, once, 8)


async def replayed_commands(attack: Attack) -> None:
    """One accepted Command, sent again and again."""
    made: dict[int, bytes] = {}

    def frames(peer: Peer) -> bytes:
        if peer.session_epoch not in made:
            made.clear()
            command = json.loads(_messages(attack, attack.scene.mallory, peer.session_epoch))
            made[peer.session_epoch] = framed(json.dumps(peer.frame("COMMAND", command=command)).encode())
        return made[peer.session_epoch]

    await _insist(attack, frames)


# --- handshakes -------------------------------------------------------------------------------------------------------


async def replayed_handshake(attack: Attack) -> None:
    """The answer to an earlier challenge, recorded and sent again to a new one."""
    key = attack.scene.mallory
    earlier = await Peer.websocket(attack.place)
    await earlier.send(earlier.client_init(key))
    recorded = earlier.client_response(key, await earlier.answer())
    earlier.abort()

    async def once() -> None:
        peer = await Peer.websocket(attack.place)
        try:
            await peer.send(peer.client_init(key))
            challenge = await peer.answer()
            await peer.send({**recorded, "serverNonce": challenge["serverNonce"]})
            answer = await peer.answer()
            assert answer["frameType"] == "ERROR", f"a replayed handshake was taken: {answer}"
            await peer.until_gone()
        finally:
            peer.abort()

    await again_and_again(attack, once)


async def wrong_order(attack: Attack) -> None:
    """Frames before HELLO, the third step first, the first step twice, HELLO on a live connection."""
    key = attack.scene.mallory

    async def once() -> None:
        kind = random.randrange(4)
        peer = await (Peer.agent(attack.place, key) if kind == 3 else Peer.websocket(attack.place))
        try:
            if kind == 0:
                await peer.send(peer.frame("PING", nonce="AAAA", sentAt="2030-01-01T00:00:00Z"))
            elif kind == 1:
                await peer.send(peer.client_response(key, {"serverNonce": "AAAA", "challenge": "AAAA"}))
            else:
                await peer.send(peer.client_init(key))
                await peer.send(peer.client_init(key))
            answer = await peer.answer()
            if kind == 2:
                answer = await peer.answer()
            assert answer["frameType"] == "ERROR", f"out of turn, and taken: {answer}"
        finally:
            peer.abort()

    await again_and_again(attack, once)


# --- connections ------------------------------------------------------------------------------------------------------


async def _at_a_rate(attack: Attack, once: Callable[[], Awaitable[None]]) -> None:
    pending: set[asyncio.Task[None]] = set()

    async def quietly() -> None:
        try:
            await once()
            attack.count["done"] += 1
        except (Gone, OSError, EOFError, TimeoutError):
            attack.count["refused"] += 1

    attack.ready()
    begun, number = time.perf_counter(), 0
    while True:
        number += 1
        if len(pending) < 1000:
            task = asyncio.create_task(quietly())
            pending.add(task)
            task.add_done_callback(pending.discard)
        else:
            attack.count["waiting"] += 1
        await asyncio.sleep(max(0.0, begun + number / CONNECTS_A_SECOND - time.perf_counter()))


async def connects(attack: Attack) -> None:
    """200 connections a second: the TLS handshake, a request, and gone."""

    async def once() -> None:
        peer = await Peer.dial(attack.place)
        try:
            async with asyncio.timeout(10):
                await peer.write(b"GET /healthz HTTP/1.1\r\nHost: node\r\nConnection: close\r\n\r\n")
                await peer.until_gone()
        finally:
            peer.abort()

    await _at_a_rate(attack, once)


async def connects_tcp(attack: Attack) -> None:
    """200 connections a second that speak no TLS: garbage, and gone."""

    async def once() -> None:
        peer = await Peer.dial(attack.place.plain)
        try:
            async with asyncio.timeout(10):
                await peer.write(b"GET / HTTP/1.1\r\n\r\n")
                await peer.until_gone()
        finally:
            peer.abort()

    await _at_a_rate(attack, once)


async def idle(attack: Attack) -> None:
    """2,000 Agents that are connected and say nothing; fewer where there are not so many file descriptors."""
    count = crowd_size(len(list((attack.scene.home / "keys").glob("crowd-*.key"))))
    peers: list[Peer] = []
    try:
        for key in attack.scene.crowd(count):
            peers.append(await Peer.agent(attack.place, key))
            attack.count["held"] += 1
        attack.ready()
        await asyncio.gather(*(peer.until_gone() for peer in peers))
        attack.count["cut"] += count
        await asyncio.Event().wait()
    finally:
        for peer in peers:
            peer.abort()


async def idle_unknown(attack: Attack) -> None:
    """2,000 connections that say nothing at all, and come again when they are cut."""
    held = asyncio.Semaphore(100)

    async def one() -> None:
        while True:
            try:
                async with held:
                    peer = await Peer.dial(attack.place.plain)
            except OSError:
                attack.count["refused"] += 1
                await asyncio.sleep(1)
                continue
            attack.count["held"] += 1
            await peer.until_gone()
            attack.count["cut"] += 1
            peer.abort()
            await asyncio.sleep(1)

    everybody = asyncio.gather(*(one() for _ in range(crowd_size())))
    await asyncio.sleep(2)
    attack.ready()
    await everybody


async def stuck(attack: Attack) -> None:
    """One subscriber of the Group that never reads, and comes again when it is cut."""

    async def once() -> None:
        peer = await Peer.agent(attack.place, attack.scene.mallory)
        try:
            await peer.follow(attack.scene.group_id)
            transport = peer.writer.transport
            transport.pause_reading()  # type: ignore[attr-defined]
            attack.ready()
            attack.count["stuck"] += 1
            while not transport.is_closing():
                await asyncio.sleep(0.2)
        finally:
            peer.abort()

    await again_and_again(attack, once, 1)


ATTACKS: dict[str, Assault] = {
    "malformed": malformed,
    "oversized": oversized,
    "truncated": truncated,
    "binary": binary,
    "fragmented": fragmented,
    "slow-http": slow_http,
    "slow-body": slow_body,
    "slow-upgrade": slow_upgrade,
    "slow-websocket": slow_websocket,
    "slow-tls": slow_tls,
    "flood-pings": flood_pings,
    "flood-unread": flood_unread,
    "flood-subscribe": flood_subscribe,
    "flood-http": flood_http,
    "forged-http": forged_http,
    "stale": stale,
    "replayed-commands": replayed_commands,
    "replayed-handshake": replayed_handshake,
    "wrong-order": wrong_order,
    "connects": connects,
    "connects-tcp": connects_tcp,
    "idle": idle,
    "idle-unknown": idle_unknown,
    "stuck": stuck,
}
"""By the name that ``--attack`` takes. What each does is its docstring."""
