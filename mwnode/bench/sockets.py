"""Measurements over a real socket: a node in a process of its own, a raw client in this one."""

from __future__ import annotations

import contextlib
import subprocess
import sys
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import msgspec

from mwnode.bench import floors
from mwnode.bench.embedded import WINDOW, pipeline
from mwnode.bench.raw import RawSocket, command_frames, connect, pipelined, read
from mwnode.bench.report import Result, best_of, latency, percentile, rate
from mwnode.bench.traffic import Speaker, open_node, signing_bytes

START_SECONDS = 30.0
ROUNDS = 3
"""Replays of the same Group, of which the one that was disturbed least counts."""


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


def append(directory: Path, count: int) -> list[Result]:
    """Durable signed Commands over a WebSocket: pipelined with a window of 256, and alone."""
    with open_node(directory) as node:
        speaker = Speaker(node)
        groups = [speaker.new_group() for _ in range(4)]
    with served(directory / "home") as url, contextlib.ExitStack() as stack:
        socket = _connected(stack, url, speaker)
        pipelined(socket, command_frames(speaker.messages(groups, min(count, 500))), WINDOW)
        commands = speaker.messages(groups, count)
        frames = command_frames(commands)
        begun = time.perf_counter()
        pipelined(socket, frames, WINDOW)
        elapsed = time.perf_counter() - begun
        alone = pipelined(socket, command_frames(speaker.messages(groups, 200)), 1)
    message = signing_bytes(commands[0])
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
        scanned = 0

        def scan() -> None:
            nonlocal scanned
            scanned, after = 0, 0
            while True:
                with node.read() as view:
                    found = view.events(group, after, 64)
                if not found:
                    return
                scanned, after = scanned + len(found), found[-1].sequence

        floor = best_of(ROUNDS, scan)
    with served(directory / "home") as url, contextlib.ExitStack() as stack:
        socket = _connected(stack, url, speaker)

        def again() -> None:
            socket.subscribe(group, 0)
            read(socket, scanned)

        elapsed = best_of(ROUNDS, again)
    return [rate("Events replayed to one subscriber (floor: cursor scan)", scanned / elapsed, scanned / floor)]


def fanout(directory: Path, subscribers: int, count: int) -> list[Result]:
    """Messages of one Agent to that many subscribers of one Group."""
    with open_node(directory, durable=False) as node:
        speaker = Speaker(node)
        group = speaker.new_group()
        listeners = [Speaker(node, f"listener-{number}") for number in range(subscribers)]
        speaker.admit(group, listeners)
    times: list[float] = []
    with served(directory / "home") as url, contextlib.ExitStack() as stack:
        own = _connected(stack, url, speaker)
        sockets = [_connected(stack, url, each) for each in listeners]
        for socket in sockets:
            socket.subscribe(group, 2**53 - 1)
            socket.live()
        for window in (WINDOW, 1):
            frames = command_frames(speaker.messages([group], count))
            begun = time.perf_counter()
            pipelined(own, frames, window, sockets)
            times.append(time.perf_counter() - begun)
    together, singly = times
    return [
        rate(f"sends to {subscribers} subscribers, Events pipelined", subscribers * count / together, None),
        rate(f"sends to {subscribers} subscribers, one Event at a time", subscribers * count / singly, None),
    ]


def _connected(stack: contextlib.ExitStack, url: str, speaker: Speaker) -> RawSocket:
    """A connection of the Agent's, closed with the stack; its Session Epoch is the Agent's from now on."""
    socket, speaker.session_epoch = connect(url, speaker.key)
    stack.callback(socket.close)
    return socket
