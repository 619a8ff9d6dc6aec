"""`python -m tests.crash.kill_loop COUNT [--seed N]`: kill -9 under load, COUNT times.

Each round starts a process that opens the node's file, sends Commands from several threads, stores Artifacts and moves
Cursors, and prints each acknowledgement once it has it. The process is killed at a random instant. Then the file must
hold everything that was acknowledged, each once, and nothing twice: each round looks at what is new since the one
before (heads, receipts, Events), every 25th at all that was ever acknowledged to that file, verifies it whole and
begins a new one. Exit status 1 on any loss.
"""

from __future__ import annotations

import argparse
import hashlib
import os
import random
import shutil
import subprocess
import sys
import tempfile
import threading
import time
from collections import Counter
from functools import partial
from pathlib import Path
from typing import Any

import msgspec
from msgspec import Struct

from mwnode.client.commands import signed_command
from mwnode.home import open_home
from mwnode.node import Node
from mwnode.protocol.identifiers import uuid7_urn
from mwnode.store.environment import LmdbStore
from mwnode.store.port import ReadTransaction, WriteTransaction
from mwnode.store.verify import verify
from mwnode.system import OsEntropy
from mwnode.testing import Harness, ManualClock

ROUNDS_PER_FILE = 25
COMES_UP_SECONDS = 600
"""When a node that did not come up is given up; far beyond what even a busy machine needs."""
GROUPS = 3
THREADS = 16
AGENT = "urn:mwnode:agent:coordinator"
OWNER = "urn:mwnode:human:owner"


class Acknowledged(Struct, frozen=True, tag_field="what"):
    """Base of what the killed process was told is durable."""


class EventStored(Acknowledged, frozen=True, tag="event"):
    group_id: str
    action_id: str
    sequence: int
    digest: str


class ArtifactStored(Acknowledged, frozen=True, tag="artifact"):
    content_hash: str
    size: int


class CursorMoved(Acknowledged, frozen=True, tag="cursor"):
    group_id: str
    sequence: int


Told = EventStored | ArtifactStored | CursorMoved


def move_cursor(txn: WriteTransaction, group_id: str, sequence: int) -> None:
    txn.put_cursor(AGENT, group_id, sequence)


# --- the process that is killed ---------------------------------------------------------------------------------------


def work(path: Path, group_ids: list[str], seed: int) -> None:
    """Work until killed; every acknowledgement is one line of output, written before the next Command is sent."""
    clock, entropy = ManualClock(), OsEntropy()
    node = Node.open(path, clock=clock, entropy=entropy)
    key = node.home.key("owner")
    lock = threading.Lock()

    def tell(told: Told) -> None:
        line = msgspec.json.encode(told) + b"\n"
        with lock:
            os.write(1, line)

    def send(number: int) -> None:
        draw = random.Random(seed * 100 + number)
        while True:
            group_id = draw.choice(group_ids)
            action_id = uuid7_urn(clock.now(), entropy.random(10))
            payload: dict[str, Any] = {
                "messageId": uuid7_urn(clock.now(), entropy.random(10)),
                "conversationId": f"{group_id}:mission",
                "content": "x" * draw.randrange(1, 3000),
            }
            raw = signed_command(
                key,
                "message.post",
                payload,
                action_id=action_id,
                issued_at=clock.now().text(),
                group_id=group_id,
                membership_epoch=1,
            )
            event = node.send(raw)[0]
            sequence = msgspec.json.decode(event)["sequence"]
            tell(EventStored(group_id, action_id, sequence, hashlib.sha256(event).hexdigest()))
            if draw.random() < 0.1:
                node.call(partial(move_cursor, group_id=group_id, sequence=sequence)).result()
                tell(CursorMoved(group_id, sequence))
            if draw.random() < 0.02:
                writer = node.artifacts.begin_put()
                writer.write(draw.randbytes(draw.randrange(1, 3_000_000)))
                info = writer.finish()
                tell(ArtifactStored(info.content_hash, info.size))

    threads = [threading.Thread(target=send, args=(number,), daemon=True) for number in range(THREADS)]
    for thread in threads:
        thread.start()
    threads[0].join()


# --- the process that kills and looks ---------------------------------------------------------------------------------


class Loss(Exception):
    """Something acknowledged is not there, or something is there twice."""


def prepare(path: Path, seed: int) -> list[str]:
    """A HOME with a few Missions; their Groups."""
    harness = Harness(path, seed=seed, workers=0)
    group_ids = [harness.mission().group_id for _ in range(GROUPS)]
    harness.close()
    settings = path / "mwnode.toml"
    text = settings.read_text(encoding="utf-8")
    # As many Messages as the machine can take; the policy's rate is tested elsewhere.
    settings.write_text(text.replace("[policy]", "[policy]\nmessage_rate = 1000000000", 1), encoding="utf-8")
    if open_home(path).policy.message_rate != 1_000_000_000:
        raise RuntimeError("mwnode.toml took no message_rate")
    return group_ids


def killed_round(path: Path, group_ids: list[str], seed: int, seconds: float) -> list[Told]:
    """One process, killed that long after its first acknowledgement; what it was told."""
    arguments = [sys.executable, "-m", "tests.crash.kill_loop", "--work", str(path), "--seed", str(seed), *group_ids]
    with tempfile.TemporaryFile() as output, tempfile.TemporaryFile() as errors:
        process = subprocess.Popen(arguments, stdout=output, stderr=errors)
        deadline = time.monotonic() + COMES_UP_SECONDS
        while os.fstat(output.fileno()).st_size == 0:
            if process.poll() is not None or time.monotonic() > deadline:
                process.kill()
                errors.seek(0)
                told = errors.read().decode(errors="replace")
                raise Loss(f"the node did not come up ({process.wait()}): {told}")
            time.sleep(0.001)
        time.sleep(seconds)
        process.kill()
        process.wait()
        output.seek(0)
        lines = output.read().split(b"\n")
    # The last line may have been cut off by the kill: it was never told.
    return [msgspec.json.decode(line, type=Told) for line in lines[:-1]]


def look(path: Path, told: list[Told], acknowledged: dict[str, EventStored], heads: dict[str, int]) -> dict[str, int]:
    """Compare the file with what was acknowledged, and its logs behind those heads; the heads now. Raises Loss."""
    store = LmdbStore.open(path / "node.mdb", read_only=True)
    try:
        with store.read() as view:
            for each in told:
                if isinstance(each, ArtifactStored):
                    if view.has_content(each.content_hash) != each.size:
                        raise Loss(f"artifact {each.content_hash} was acknowledged and is not there")
                elif isinstance(each, CursorMoved) and view.cursor(AGENT, each.group_id) < each.sequence:
                    raise Loss(f"the Cursor of {each.group_id} was acknowledged at {each.sequence} and is behind")
            for each in acknowledged.values():
                _look_at_command(view, each)
            return {group_id: _look_at_log(view, group_id, heads.get(group_id, 0)) for group_id in view.groups()}
    finally:
        store.close()


def _look_at_command(view: ReadTransaction, told: EventStored) -> None:
    receipt = view.receipt(OWNER, told.action_id)
    stored = view.event(told.group_id, told.sequence)
    if receipt is None or receipt.events != ((told.group_id, told.sequence),) or stored is None:
        raise Loss(f"Command {told.action_id} was acknowledged and is not there")
    if hashlib.sha256(stored.event).hexdigest() != told.digest:
        raise Loss(f"{told.group_id} {told.sequence} is not the Event that was acknowledged")


def _look_at_log(view: ReadTransaction, group_id: str, after: int) -> int:
    """Events behind ``after`` have no gap and no cause twice, and each is the one that its receipt names."""
    if view.head(group_id) < after:
        raise Loss(f"the head of {group_id} went back to {view.head(group_id)} from {after}")
    causes = Counter[str]()
    while page := view.events(group_id, after, 500):
        if [stored.sequence for stored in page] != list(range(after + 1, after + 1 + len(page))):
            raise Loss(f"{group_id} has a gap behind {after}")
        after = page[-1].sequence
        for event in (msgspec.json.decode(stored.event) for stored in page):
            cause = event["cause"]["id"]
            causes[cause] += 1
            if event["kind"] == "message.posted":
                receipt = view.receipt(event["actor"]["id"], cause)
                if receipt is None or receipt.events != ((group_id, event["sequence"]),):
                    raise Loss(f"Command {cause} is in the log of {group_id} twice, or without its receipt")
    twice = [cause for cause, count in causes.items() if count > 1]
    if twice:
        raise Loss(f"Command {twice[0]} is in the log of {group_id} twice")
    if after != view.head(group_id):
        raise Loss(f"the head of {group_id} is not its last Event")
    return after


def run(count: int, seed: int, directory: Path, say: Any = print) -> None:
    """All rounds. Raises Loss."""
    draw = random.Random(seed)
    total = 0
    for number in range(count):
        if number % ROUNDS_PER_FILE == 0:
            path = directory / f"home-{number // ROUNDS_PER_FILE}"
            group_ids = prepare(path, seed + number)
            acknowledged: dict[str, EventStored] = {}
            artifacts: list[Told] = []
            heads: dict[str, int] = {}
        told = killed_round(path, group_ids, seed + number, draw.uniform(0, 0.5))
        new = {each.action_id: each for each in told if isinstance(each, EventStored)}
        if not acknowledged.keys().isdisjoint(new):
            raise Loss(f"round {number}: a Command was acknowledged twice")
        acknowledged |= new
        artifacts += [each for each in told if isinstance(each, ArtifactStored)]
        total += len(told)
        heads = look(path, told, new, heads)
        if number % ROUNDS_PER_FILE == ROUNDS_PER_FILE - 1 or number == count - 1:
            look(path, artifacts, acknowledged, {})
            report = verify(path / "node.mdb")
            if not report.ok:
                raise Loss(f"round {number}: verification found {report.findings[:5]}")
            shutil.rmtree(path)
        say(f"round {number + 1}/{count}: {len(told)} acknowledged, {sum(heads.values())} Events in the file")
    say(f"{count} kills, {total} acknowledgements: none lost, none doubled")


def main() -> int:
    parser = argparse.ArgumentParser(description="Kill a node under load and look whether anything was lost.")
    parser.add_argument("count", nargs="*", help="rounds (or, with --work, the Groups)")
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("--work", type=Path, help=argparse.SUPPRESS)
    arguments = parser.parse_args()
    if arguments.work is not None:
        work(arguments.work, arguments.count, arguments.seed)
        return 0
    with tempfile.TemporaryDirectory(prefix="mwnode-kill-") as directory:
        try:
            run(int(arguments.count[0]) if arguments.count else 20, arguments.seed, Path(directory))
        except Loss as loss:
            print(f"LOSS: {loss}", file=sys.stderr)
            return 1
    return 0


if __name__ == "__main__":
    sys.exit(main())
