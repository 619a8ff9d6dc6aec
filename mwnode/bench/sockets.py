"""Measurements over a real socket: a node in a process of its own, a raw client in this one."""

from __future__ import annotations

import asyncio
import contextlib
import subprocess
import sys
import time
from collections.abc import AsyncIterator, Iterator, Sequence
from contextlib import asynccontextmanager, contextmanager
from pathlib import Path
from typing import Any

import aiohttp
import msgspec

from mwnode.bench import floors
from mwnode.bench.embedded import WINDOW, pipeline
from mwnode.bench.report import Result, latency, percentile, rate
from mwnode.bench.traffic import Speaker, new_id, open_node, signing_bytes
from mwnode.client.challenges import handshake_transcript
from mwnode.protocol.frames import encode_command_frame
from mwnode.trust.ed25519 import encode_base64url
from mwnode.trust.keys import SigningKey

START_SECONDS = 30.0
NONCE = "YmVuY2gtbm9uY2U"


@contextmanager
def served(home: Path) -> Iterator[str]:
    """``mwnode serve --plaintext`` on a loopback port; the URL of its WebSocket."""
    command = [sys.executable, "-m", "mwnode", "serve", "--home", str(home), "--port", "0", "--plaintext", "--json"]
    process = subprocess.Popen(command, stdin=subprocess.DEVNULL, stdout=subprocess.PIPE, text=True)
    try:
        assert process.stdout is not None
        line = process.stdout.readline()
        if not line:
            raise RuntimeError("the node did not start; its own words stand above")
        yield str(msgspec.json.decode(line)["url"])
    finally:
        process.terminate()
        process.wait(START_SECONDS)
        if process.stdout is not None:
            process.stdout.close()


@asynccontextmanager
async def connected(url: str, key: SigningKey) -> AsyncIterator[tuple[aiohttp.ClientWebSocketResponse, int]]:
    """A raw WebSocket after its handshake, and the Session Epoch."""
    async with (
        aiohttp.ClientSession() as http,
        http.ws_connect(url, compress=0, max_msg_size=0, autoping=True) as socket,
    ):
        agent_id, key_id = key.principal.id, key.key_id
        shared = {"protocolVersion": "0.1", "frameType": "HELLO", "agentId": agent_id, "keyId": key_id}
        init = {**shared, "frameId": new_id(), "phase": "client_init", "clientNonce": NONCE}
        await socket.send_json({**init, "supportedVersions": ["0.1"]})
        asked = await socket.receive_json()
        transcript = handshake_transcript(
            asked["challenge"],
            agent_id=agent_id,
            key_id=key_id,
            client_nonce=NONCE,
            server_nonce=asked["serverNonce"],
        )
        answer = {**shared, "frameId": new_id(), "phase": "client_response", "clientNonce": NONCE}
        signature = encode_base64url(key.sign(transcript))
        await socket.send_json({**answer, "serverNonce": asked["serverNonce"], "challengeSignature": signature})
        accepted = await socket.receive_json()
        if "sessionEpoch" not in accepted:
            raise RuntimeError(f"the node refused the bench's handshake: {accepted}")
        yield socket, int(accepted["sessionEpoch"])


def _is_event(message: aiohttp.WSMessage) -> bool:
    text: Any = message.data
    if message.type is not aiohttp.WSMsgType.TEXT:
        raise RuntimeError(f"the node closed the bench's connection: {message}")
    if '"frameType":"ERROR"' in text:
        raise RuntimeError(f"the node refused the bench's Command: {text[:500]}")
    return '"frameType":"EVENT"' in text


async def pipelined(socket: aiohttp.ClientWebSocketResponse, commands: Sequence[bytes], window: int) -> list[float]:
    """Send Commands with so many unanswered; the time from sending to receipt of each, in order."""
    frames = [encode_command_frame(new_id(), command).decode() for command in commands]
    sent: list[float] = []
    took: list[float] = []
    for frame in frames[:window]:
        sent.append(time.perf_counter())
        await socket.send_str(frame)
    while len(took) < len(frames):
        if not _is_event(await socket.receive()):
            continue
        took.append(time.perf_counter() - sent[len(took)])
        if len(sent) < len(frames):
            sent.append(time.perf_counter())
            await socket.send_str(frames[len(sent) - 1])
    return took


def append(directory: Path, count: int) -> list[Result]:
    """Durable signed Commands over a WebSocket: pipelined with a window of 256, and alone."""
    with open_node(directory) as node:
        speaker = Speaker(node)
        groups = [speaker.new_group() for _ in range(4)]

    async def run(url: str) -> tuple[float, list[float], bytes]:
        async with connected(url, speaker.key) as (socket, epoch):
            speaker.session_epoch = epoch
            await pipelined(socket, speaker.messages(groups, min(count, 500)), WINDOW)
            commands = speaker.messages(groups, count)
            begun = time.perf_counter()
            await pipelined(socket, commands, WINDOW)
            elapsed = time.perf_counter() - begun
            alone = await pipelined(socket, speaker.messages(groups, 200), 1)
            return elapsed, alone, commands[0]

    with served(directory / "home") as url:
        elapsed, alone, sample = asyncio.run(run(url))
    message = signing_bytes(sample)
    verify, sign = floors.verify_seconds(message), floors.sign_seconds(message)
    single = verify + sign + floors.fsync_seconds(directory)
    return [
        rate("durable Commands over WebSocket, window 256", count / elapsed, 1 / (verify + sign)),
        latency("lone Command over WebSocket, p50", percentile(alone, 0.5), single),
        latency("lone Command over WebSocket, p99", percentile(alone, 0.99), single),
    ]


def replay(directory: Path, count: int) -> list[Result]:
    """A subscriber that reads a whole Group again."""
    with open_node(directory, durable=False) as node:
        speaker = Speaker(node)
        group = speaker.new_group()
        for start in range(0, count, 10_000):
            pipeline(node, speaker.messages([group], min(10_000, count - start)))
        begun = time.perf_counter()
        scanned, after = 0, 0
        while True:
            with node.read() as view:
                found = view.events(group, after, 64)
            if not found:
                break
            scanned, after = scanned + len(found), found[-1].sequence
        scan = time.perf_counter() - begun

    async def run(url: str) -> float:
        async with connected(url, speaker.key) as (socket, _):
            entry = {"groupId": group, "afterSequence": 0}
            frame = {"protocolVersion": "0.1", "frameId": new_id(), "frameType": "SUBSCRIBE"}
            begun = time.perf_counter()
            await socket.send_json({**frame, "subscriptionId": new_id(), "groups": [entry]})
            received = 0
            while received < scanned:
                received += _is_event(await socket.receive())
            return time.perf_counter() - begun

    with served(directory / "home") as url:
        elapsed = asyncio.run(run(url))
    return [rate("Events replayed to one subscriber (floor: cursor scan)", scanned / elapsed, scanned / scan)]


def fanout(directory: Path, subscribers: int, count: int) -> list[Result]:
    """Messages of one Agent to that many subscribers of one Group."""
    with open_node(directory, durable=False) as node:
        speaker = Speaker(node)
        group = speaker.new_group()
        listeners = [Speaker(node, f"listener-{number}") for number in range(subscribers)]
        speaker.admit(group, listeners)

    async def listen(socket: aiohttp.ClientWebSocketResponse) -> None:
        received = 0
        while received < count:
            received += _is_event(await socket.receive())

    async def run(url: str) -> tuple[float, float]:
        async with contextlib.AsyncExitStack() as stack:
            sockets = [(await stack.enter_async_context(connected(url, each.key)))[0] for each in listeners]
            own, speaker.session_epoch = await stack.enter_async_context(connected(url, speaker.key))
            times: list[float] = []
            for window in (WINDOW, 1):
                after = {"groupId": group, "afterSequence": 2**53 - 1}
                for socket in sockets:
                    frame = {"protocolVersion": "0.1", "frameId": new_id(), "frameType": "SUBSCRIBE"}
                    await socket.send_json({**frame, "subscriptionId": new_id(), "groups": [after]})
                    # The end of the replay is told by a PING (decision A11): from here on everything is live.
                    while '"frameType":"PING"' not in (await socket.receive()).data:
                        pass
                begun = time.perf_counter()
                commands = speaker.messages([group], count)
                await asyncio.gather(pipelined(own, commands, window), *(listen(socket) for socket in sockets))
                times.append(time.perf_counter() - begun)
            return times[0], times[1]

    with served(directory / "home") as url:
        together, singly = asyncio.run(run(url))
    return [
        rate(f"sends to {subscribers} subscribers, Events pipelined", subscribers * count / together, None),
        rate(f"sends to {subscribers} subscribers, one Event at a time", subscribers * count / singly, None),
    ]
