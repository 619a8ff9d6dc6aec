"""`python -m tests.store.million [COUNT] [--home DIR]`: what a file with very many Events costs.

Builds a HOME with COUNT Events (1,000,000) in 100 Groups through the node itself, every Command verified, decided and
signed, without waiting for the disk. Then, with the disk waited for: time from start to listening, private memory idle
and after work and a whole replay, bytes of the file per Event, and the cost of a Command against a file that has next
to nothing in it. ``--home`` keeps the HOME, and takes it up again where it is there already. Figures go to standard
output as JSON; exit status 1 when a goal is missed.
"""

from __future__ import annotations

import argparse
import os
import signal
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import msgspec

from mwnode.bench.embedded import pipeline
from mwnode.bench.traffic import Speaker, open_node
from mwnode.client.http import HttpClient
from mwnode.home import load_key, open_home
from mwnode.node import Node
from mwnode.store.carry import compact
from mwnode.store.environment import LmdbStore

GROUPS = 100
STEP = 5_000
SAMPLE = 1_000
ROUNDS = 5
STARTS = 5
GOALS = {"startSeconds": 1.0, "idleMiB": 60.0, "afterMiB": 150.0, "commandRatio": 1.2}


def say(text: str) -> None:
    print(text, file=sys.stderr, flush=True)


def build(directory: Path, count: int) -> Path:
    """A HOME with so many Events, or as many more as it lacks."""
    path = directory / "home"
    node = Node.open(path, durable=False) if path.exists() else open_node(directory, durable=False)
    with node:
        speaker = Speaker(node, f"speaker-{time.time_ns()}")
        with node.read() as view:
            left = count - view.pages.count("log")  # type: ignore[attr-defined]  # not of the port
        if left > 0:
            groups = [speaker.new_group() for _ in range(GROUPS)]
            left -= GROUPS
        while left > 0:
            pipeline(node, speaker.messages(groups, min(STEP, left)))
            left -= STEP
            if left // STEP % 10 == 0:
                say(f"{max(left, 0)} Events to go")
    return path


def command_seconds(node: Node, speaker: Speaker, groups: list[str]) -> float:
    """Processor time of one durable Command, all threads; signing it is not counted."""
    commands = speaker.messages(groups, SAMPLE)
    begun = time.process_time()
    pipeline(node, commands)
    return (time.process_time() - begun) / SAMPLE


def compare(large: Path, directory: Path) -> tuple[float, float]:
    """The least cost of a Command in the large file and in a new one, in turns."""
    large_node, small_node = Node.open(large), open_node(directory)
    with large_node, small_node:
        sides = []
        for node in (large_node, small_node):
            speaker = Speaker(node, f"speaker-{time.time_ns()}")
            sides.append((node, speaker, [speaker.new_group() for _ in range(4)]))
        costs = [[command_seconds(*side) for side in sides] for _ in range(ROUNDS + 1)][1:]
    return min(cost[0] for cost in costs), min(cost[1] for cost in costs)


@contextmanager
def serving(home: Path) -> Iterator[tuple[dict[str, Any], int, float]]:
    """A node of its own process: where it listens, its process, and the seconds until it did."""
    begun = time.perf_counter()
    arguments = [sys.executable, "-m", "mwnode", "serve", "--home", str(home), "--port", "0", "--plaintext", "--json"]
    process = subprocess.Popen(arguments, stdout=subprocess.PIPE)
    try:
        assert process.stdout is not None
        line = process.stdout.readline()
        yield msgspec.json.decode(line), process.pid, time.perf_counter() - begun
    finally:
        process.send_signal(signal.SIGTERM)
        process.wait()
        assert process.stdout is not None
        process.stdout.close()


def processor_seconds(pid: int) -> float:
    """User and system time of a process so far."""
    fields = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()
    return (int(fields[11]) + int(fields[12])) / os.sysconf("SC_CLK_TCK")


def private_mib(pid: int) -> float:
    """RssAnon of a process."""
    for line in Path(f"/proc/{pid}/status").read_text().splitlines():
        if line.startswith("RssAnon:"):
            return int(line.split()[1]) / 1024
    raise RuntimeError(f"/proc/{pid}/status has no RssAnon")


def replay(http: str, home: Path) -> int:
    """Read every Event of every Group over HTTP as the owner; how many there were."""
    read = 0
    with HttpClient(http, load_key(home / "keys" / "owner.key"), None) as client:
        for mission in client.get("/v0.1/missions")["missions"]:
            after = 0
            while events := client.events(mission["groupId"], after=after, limit=1000)["events"]:
                after = events[-1]["sequence"]
                read += len(events)
    return read


def count_events(path: Path) -> tuple[int, int]:
    """How many Events and Groups a file holds."""
    store = LmdbStore.open(path, read_only=True)
    try:
        with store.read() as view:
            return view.pages.count("log"), len(view.groups())
    finally:
        store.close()


def measure(home: Path, directory: Path) -> dict[str, Any]:
    """All figures of a HOME that was built."""
    events, groups = count_events(open_home(home).store_path)
    figures: dict[str, Any] = {"events": events, "groups": groups}
    starts, processor = [], []
    for _ in range(STARTS):
        with serving(home) as (listening, pid, seconds):
            starts.append(seconds)
            processor.append(processor_seconds(pid))
            time.sleep(1)
            figures["idleMiB"] = private_mib(pid)
    figures["startSeconds"] = min(starts)
    figures["startSecondsMedian"] = sorted(starts)[STARTS // 2]
    figures["startProcessorSeconds"] = min(processor)
    say(f"started in {starts}")
    with serving(home) as (listening, pid, _):
        figures["replayed"] = replay(listening["http"], home)
        figures["afterMiB"] = private_mib(pid)
    large, small = compare(home, directory / "small")
    figures |= {"commandMicroseconds": large * 1e6, "emptyMicroseconds": small * 1e6, "commandRatio": large / small}
    path = open_home(home).store_path
    events = count_events(path)[0]
    figures["bytesPerEvent"] = path.stat().st_size / events
    figures["compactBytesPerEvent"] = compact(path)[1] / events
    return figures


def main() -> int:
    parser = argparse.ArgumentParser(description="Build a file with very many Events and measure a node on it.")
    parser.add_argument("count", nargs="?", type=int, default=1_000_000)
    parser.add_argument("--home", type=Path, metavar="DIR", help="where to keep the HOME")
    arguments = parser.parse_args()
    with tempfile.TemporaryDirectory(prefix="mwnode-million-") as scratch:
        kept = arguments.home or Path(scratch)
        kept.mkdir(exist_ok=True)
        figures = measure(build(kept, arguments.count), Path(scratch))
    missed = [name for name, goal in GOALS.items() if figures[name] > goal]
    print(msgspec.json.format(msgspec.json.encode({**figures, "goals": GOALS, "missed": missed})).decode())
    return 1 if missed else 0


if __name__ == "__main__":
    sys.exit(main())
