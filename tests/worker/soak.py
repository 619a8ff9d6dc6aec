"""`python -m tests.worker.soak`: many WorkItems while Workers, the node and the links are killed again and again.

Processes as in earnest. What each executor does outside is counted in a file that knows idempotency keys, as any
external system that is fit for this would.
"""

from __future__ import annotations

import argparse
import random
import shlex
import socket
import sys
import tempfile
import threading
import time
from collections import Counter
from collections.abc import Callable
from contextlib import suppress
from functools import partial
from pathlib import Path

from msgspec import Struct

from mwnode.client.errors import ClientError
from mwnode.client.http import HttpClient
from mwnode.demo.log import GroupLog
from mwnode.demo.processes import Processes, run
from mwnode.home import load_key
from mwnode.narrative import work_item_of

SEED = 20_301_231
AT_ONCE = 2
"""Disturbances between two looks at the logs."""
SETTLE_SECONDS = 10.0
"""The next disturbance comes when enough is done, or after so long without any progress."""
EXECUTOR = """\
cd "$1"
(
  flock 9
  echo "$MWNODE_IDEMPOTENCY_KEY" >> runs
  grep -qx "$MWNODE_IDEMPOTENCY_KEY" effects || echo "$MWNODE_IDEMPOTENCY_KEY" >> effects
) 9>> lock
while [ "$(wc -l < effects)" -gt "$(cat allowed)" ]; do sleep 0.5; done
cd "$HOME"
sleep 0.3
echo "$MWNODE_IDEMPOTENCY_KEY" > outputs/result.txt
"""
"""One external effect for each idempotency key, however often it is run; ends once so much work is allowed to be done,
so that the work does not outrun what disturbs it."""
AHEAD = 100
"""So many WorkItems may be done before their share of the disturbances came."""
HEAD = """\
[mission]
objective = "A great deal of work"
coordinator = "coordinator"
deadline = "P2D"
budget = { wallClockSecondsLimit = 1000000 }

[[mission.definitionOfDone]]
criterionId = "done"
description = "Everything is done"
evidenceRequired = ["deterministic_test"]
"""
WORK = """
[[work]]
id = "w{number}"
goal = "Piece {number}"
after = [{after}]
deliverables = [ {{ id = "result", path = "result.txt", mediaType = "text/plain" }} ]
criteria = [ {{ id = "ok", description = "done", check = "exit 0" }} ]
"""


class Size(Struct, frozen=True, kw_only=True):
    """How much is done, and how often it is disturbed."""

    missions: int = 20
    works: int = 50
    """WorkItems of each Mission."""
    workers: int = 8
    worker_kills: int = 200
    node_kills: int = 50
    cuts: int = 50
    seconds_max: float = 3 * 3600
    seed: int = SEED


class Wire:
    """A way to the node that can be cut: every connection at once, as often as one likes."""

    def __init__(self, port: int) -> None:
        self.target = port
        self._listening = socket.create_server(("127.0.0.1", 0))
        self.port = self._listening.getsockname()[1]
        self._lock = threading.Lock()
        self._open: set[socket.socket] = set()
        threading.Thread(target=self._accept, daemon=True).start()

    def _accept(self) -> None:
        while True:
            try:
                near, _ = self._listening.accept()
            except OSError:
                return
            try:
                far = socket.create_connection(("127.0.0.1", self.target), 5)
            except OSError:
                near.close()
                continue
            far.settimeout(None)
            with self._lock:
                self._open |= {near, far}
            for source, sink in ((near, far), (far, near)):
                threading.Thread(target=self._pass, args=(source, sink), daemon=True).start()

    def _pass(self, source: socket.socket, sink: socket.socket) -> None:
        with suppress(OSError):
            while data := source.recv(65536):
                sink.sendall(data)
        for end in (source, sink):
            self._drop(end)

    def _drop(self, end: socket.socket) -> None:
        with self._lock:
            self._open.discard(end)
        with suppress(OSError):
            end.shutdown(socket.SHUT_RDWR)
        end.close()

    def cut(self) -> None:
        """End every connection now; new ones may be made at once."""
        with self._lock:
            ends = list(self._open)
        for end in ends:
            self._drop(end)

    def close(self) -> None:
        self._listening.close()
        self.cut()


class Field:
    """A HOME with a node, a coordinator and Workers behind a wire, and Missions of one plan."""

    def __init__(self, path: Path, processes: Processes, workers: int, works: int) -> None:
        self.path, self.home, self.processes = path, path / "home", processes
        run("init", str(self.home))
        self.workers = [f"worker{number}" for number in range(workers)]
        for name in ("coordinator", *self.workers):
            run("agent", "add", name, "--slots", "4", "--home", str(self.home))
        self.plan = path / "plan.toml"
        pieces = [WORK.format(number=n, after=f'"w{n - 1}"' if n % 5 == 4 else "") for n in range(works)]
        self.plan.write_text(HEAD + "".join(pieces))
        self.outside = path / "outside"
        self.outside.mkdir()
        for name in ("runs", "effects"):
            (self.outside / name).touch()
        self.allow(AHEAD)
        (path / "executor.sh").write_text(EXECUTOR)
        self.listening = processes.serve(self.home)
        self.wire = Wire(int(self.listening.http.rpartition(":")[2]))
        processes.start("coordinator", "coordinator", *self.reach("coordinator"), "--plan", str(self.plan))
        for name in self.workers:
            self.work(name)

    def reach(self, name: str, *, wired: bool = True) -> tuple[str, ...]:
        url = f"wss://127.0.0.1:{self.wire.port}/ws" if wired else self.listening.url
        return ("--url", url, "--ca", str(self.listening.ca), "--key", str(self.home / "keys" / f"{name}.key"))

    def work(self, name: str) -> None:
        command = shlex.join(["sh", str(self.path / "executor.sh"), str(self.outside)])
        own = self.path / name
        self.processes.start(name, "worker", *self.reach(name), "--exec", command, "--directory", str(own))

    def client(self) -> HttpClient:
        return HttpClient(self.listening.http, load_key(self.home / "keys" / "owner.key"), self.listening.ca)

    def kill_worker(self, name: str) -> None:
        self.processes.kill(name)
        self.work(name)

    def kill_node(self) -> None:
        self.processes.kill("node")
        assert self.processes.serve(self.home).url == self.listening.url

    def allow(self, works: int) -> None:
        """Let so many WorkItems be done, counted over all."""
        fresh = self.outside / "allowed.new"
        fresh.write_text(str(works))
        fresh.replace(self.outside / "allowed")

    def keys(self, name: str) -> list[str]:
        return (self.outside / name).read_text().split()


def _read(field: Field, logs: list[GroupLog]) -> int:
    """Read every Group on; how many results were accepted so far."""
    with suppress(ClientError), field.client() as client:
        for log in logs:
            while log.read(client, wait=0):
                pass
    return sum(len(log.of_kind("work.result.accepted")) for log in logs)


def _disturb(field: Field, size: Size, chance: random.Random) -> list[Callable[[], None]]:
    disturbances: list[Callable[[], None]] = [
        *(partial(field.kill_worker, chance.choice(field.workers)) for _ in range(size.worker_kills)),
        *(field.kill_node for _ in range(size.node_kills)),
        *(field.wire.cut for _ in range(size.cuts)),
    ]
    chance.shuffle(disturbances)
    return disturbances


def soak(path: Path, size: Size, told: Callable[[str], None] = lambda text: None) -> dict[str, float]:
    """Have everything done below ``path``, disturbed as said; what was seen, in numbers. AssertionError otherwise."""
    chance, started = random.Random(size.seed), time.monotonic()
    with Processes(path / "logs") as processes:
        field = Field(path, processes, size.workers, size.works)
        due = _disturb(field, size, chance)
        disturbances = len(due)
        created = [
            run("mission", "create", str(field.plan), *field.reach("owner", wired=False)) for _ in range(size.missions)
        ]
        logs = [GroupLog(one["groupId"]) for one in created]
        total = size.missions * size.works
        done, seen, changed, spoke = 0, -1, time.monotonic(), 0.0
        while done < total or due or any(log.mission_state != "awaiting_approval" for log in logs):
            now = time.monotonic()
            assert now < started + size.seconds_max, f"{done} of {total} accepted, {len(due)} disturbances to come"
            if now > spoke + 30:
                spoke = now
                told(f"{now - started:5.0f} s: {done} of {total} accepted, {len(due)} disturbances to come")
            # Something must have come through since the last one, or the machine alone would decide how hard this is.
            if due and (done > seen or now > changed + SETTLE_SECONDS):
                for disturb in due[-AT_ONCE:]:
                    disturb()
                del due[-AT_ONCE:]
                changed, seen = time.monotonic(), done
                field.allow(AHEAD + total * (disturbances - len(due)) // disturbances if due else 10 * total)
            time.sleep(chance.uniform(0.05, 0.4))
            count = _read(field, logs)
            done, changed = count, time.monotonic() if count > done else changed
        took = time.monotonic() - started
        before = [log.encoded() for log in logs]
        whole = [GroupLog(log.group_id) for log in logs]
        _read(field, whole)
        field.wire.close()
    for log, known in zip(whole, before, strict=True):
        _check_log(log, known, size.works)
    effects, runs = Counter(field.keys("effects")), field.keys("runs")
    assert set(effects.values()) == {1}, "no effect was doubled for one idempotency key"
    assert len(effects) >= total
    # Work that was killed half-way was run again, and was known by its key.
    assert set(runs) == set(effects)
    assert run("verify", "--home", str(field.home))["ok"]
    return {
        "results": total,
        "events": sum(len(log.events) for log in whole),
        "runs": len(runs),
        "effects": len(effects),
        "seconds": round(took),
    }


def _check_log(log: GroupLog, known: list[bytes], works: int) -> None:
    """One Group's log holds every result once, every Command once, and all that was ever told of it."""
    assert log.encoded()[: len(known)] == known, "what was told once stays as it was"
    assert [event["sequence"] for event in log.events] == list(range(1, len(log.events) + 1))
    accepted = Counter(work_item_of(event) for event in log.of_kind("work.result.accepted"))
    assert len(accepted) == works
    assert set(accepted.values()) == {1}
    caused = Counter(
        (event["cause"]["id"], event["kind"], work_item_of(event))
        for event in log.events
        if event["cause"]["type"] == "command"
    )
    assert max(caused.values()) == 1


def main() -> None:
    """The whole of it, unless told otherwise; prints what was seen."""
    parser = argparse.ArgumentParser(description=main.__doc__)
    for name in ("missions", "works", "workers", "worker_kills", "node_kills", "cuts", "seed"):
        parser.add_argument(f"--{name.replace('_', '-')}", type=int, default=getattr(Size(), name))
    parser.add_argument("--keep", type=Path, help="an empty directory to leave everything in")
    told = vars(parser.parse_args())
    keep = told.pop("keep")
    with tempfile.TemporaryDirectory(prefix="soak-") as directory:
        seen = soak(keep or Path(directory), Size(**told), lambda text: print(text, file=sys.stderr, flush=True))
    print(", ".join(f"{name} {value}" for name, value in seen.items()))


if __name__ == "__main__":
    main()
