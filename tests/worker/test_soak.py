"""Many WorkItems while Workers, the node and the links between them are killed again and again.

Processes as in earnest. What each executor does outside is counted in a file that knows idempotency keys, as any
external system that is fit for this would.
"""

from __future__ import annotations

import random
import shlex
import socket
import threading
import time
from collections import Counter
from collections.abc import Callable
from contextlib import suppress
from functools import partial
from pathlib import Path

import pytest

from mwnode.client.errors import ClientError
from mwnode.client.http import HttpClient
from mwnode.demo.log import GroupLog
from mwnode.demo.processes import Processes, run
from mwnode.home import load_key
from mwnode.narrative import work_item_of

SEED = 20_301_231
SETTLE_SECONDS = 8.0
"""The next disturbance comes when enough is done, or after so long without any progress."""
EXECUTOR = """\
cd "$1"
(
  flock 9
  echo "$MWNODE_IDEMPOTENCY_KEY" >> runs
  grep -qx "$MWNODE_IDEMPOTENCY_KEY" effects || echo "$MWNODE_IDEMPOTENCY_KEY" >> effects
) 9>> lock
cd "$HOME"
sleep 0.3
echo "$MWNODE_IDEMPOTENCY_KEY" > outputs/result.txt
"""
"""One external effect for each idempotency key, however often it is run."""
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

    def keys(self, name: str) -> list[str]:
        return (self.outside / name).read_text().split()


def _read(field: Field, logs: list[GroupLog]) -> int:
    """Read every Group on; how many results were accepted so far."""
    with suppress(ClientError), field.client() as client:
        for log in logs:
            while log.read(client, wait=0):
                pass
    return sum(len(log.of_kind("work.result.accepted")) for log in logs)


@pytest.mark.long
@pytest.mark.timeout(4 * 3600)
@pytest.mark.req("R-16-62", "R-16-63", "R-19-04")
def test_every_result_is_accepted_once_whatever_is_killed(tmp_path: Path, scale: Callable[[int, int], int]) -> None:
    missions, works, workers = scale(2, 20), scale(6, 50), scale(3, 8)
    chance = random.Random(SEED)
    with Processes(tmp_path / "logs") as processes:
        field = Field(tmp_path, processes, workers, works)
        disturbances: list[Callable[[], None]] = [
            *(partial(field.kill_worker, chance.choice(field.workers)) for _ in range(scale(4, 200))),
            *(field.kill_node for _ in range(scale(2, 50))),
            *(field.wire.cut for _ in range(scale(2, 50))),
        ]
        chance.shuffle(disturbances)
        created = [
            run("mission", "create", str(field.plan), *field.reach("owner", wired=False)) for _ in range(missions)
        ]
        logs = [GroupLog(one["groupId"]) for one in created]
        total = missions * works
        step = total / (len(disturbances) + 1)
        deadline = time.monotonic() + scale(100, 3 * 3600)
        done, changed = 0, time.monotonic()
        due = list(disturbances)
        while done < total or due or any(log.mission_state != "awaiting_approval" for log in logs):
            assert time.monotonic() < deadline, f"{done} of {total} accepted, {len(due)} disturbances to come"
            if due and (done >= step * (len(disturbances) - len(due)) or time.monotonic() > changed + SETTLE_SECONDS):
                due.pop()()
                changed = time.monotonic()
            time.sleep(chance.uniform(0.05, 0.4))
            now = _read(field, logs)
            done, changed = now, time.monotonic() if now > done else changed
        before = [log.encoded() for log in logs]
        whole = [GroupLog(log.group_id) for log in logs]
        _read(field, whole)
        field.wire.close()
    for log, known in zip(whole, before, strict=True):
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
    effects = Counter(field.keys("effects"))
    assert set(effects.values()) == {1}, "no effect was doubled for one idempotency key"
    assert len(effects) >= total
    # Work that was killed half-way was run again, and was known by its key.
    assert set(field.keys("runs")) == set(effects)
    assert run("verify", "--home", str(field.home))["ok"]
