"""`python -m tests.soak --minutes 60`: Missions from order to archive, one after the other, and what that leaves.

Processes as in earnest: a node, a coordinator, Workers, and here the human who orders and approves and the operator who
archives. Memory, open files and the store are looked at again and again; what came of it is shown as curves, with a
verdict on each. A store that keeps what it must keep grows with every Mission: what has to be flat is what one Event
costs, and what is given back when archived Groups are trimmed.
"""

from __future__ import annotations

import argparse
import json
import os
import re
import sys
import tempfile
import time
from collections.abc import Sequence
from contextlib import suppress
from pathlib import Path
from statistics import median
from typing import Any, Final

from msgspec import Struct

from mwnode.client.errors import ClientError
from mwnode.client.http import HttpClient, segment
from mwnode.coordinator.plan import Plan, load_plan
from mwnode.demo.processes import Processes, run
from mwnode.home import load_key
from mwnode.protocol.commands import EXT
from mwnode.protocol.errors import MissionWeaveError
from mwnode.protocol.identifiers import uuid7_urn
from mwnode.system import OsEntropy, SystemClock
from mwnode.trust.keys import sign_mapping

AT_ONCE: Final = 3
"""Missions under way at the same time."""
WORKS: Final = 4
TRIM_SECONDS: Final = 20
"""An archived Group keeps its Events so long."""
GROWTH_MAX: Final = 1.10
"""How much the last third of a curve may lie above the middle one."""
SPARE: Final = {"MiB": 2.0, "files": 4.0, "threads": 2.0, "KiB": 1.0}
"""What a curve may rise besides, by its unit: small numbers have no exact ratios."""
BARS: Final = "▁▂▃▄▅▆▇█"
COLUMNS: Final = 60
SETTINGS: Final = {
    "[policy]\n": f"[policy]\ntrim_archived_after = {TRIM_SECONDS}\nmessage_rate = 100000\nproposal_rate = 100000\n",
}
PLAN: Final = """\
[mission]
objective = "Soak"
coordinator = "coordinator"
deadline = "P2D"
budget = { wallClockSecondsLimit = 100000 }

[[mission.definitionOfDone]]
criterionId = "done"
description = "Everything is done"
evidenceRequired = ["deterministic_test"]
"""
WORK: Final = """
[[work]]
id = "w{number}"
goal = "Piece {number}"
after = [{after}]
deliverables = [ {{ id = "result", path = "result.txt", mediaType = "text/plain" }} ]
criteria = [ {{ id = "ok", description = "done", check = "exit 0" }} ]
"""


class Curve(Struct):
    """One figure over time."""

    name: str
    unit: str
    values: list[float]

    @property
    def thirds(self) -> tuple[float, float]:
        """The medians of the middle third and of the last one; the first is the way there."""
        size = max(len(self.values) // 3, 1)
        return median(self.values[size : 2 * size] or self.values), median(self.values[-size:])

    @property
    def flat(self) -> bool:
        """Whether the end is no higher than the middle, but for noise."""
        middle, last = self.thirds
        return last <= middle * GROWTH_MAX + SPARE[self.unit]

    def text(self) -> str:
        """One line for people."""
        middle, last = self.thirds
        verdict = "flat" if self.flat else "RISES"
        return f"{self.name:34}{drawn(self.values)}  {middle:9.1f} -> {last:9.1f} {self.unit:8}{verdict}"


def drawn(values: Sequence[float]) -> str:
    """A curve as bars, from its least to its greatest value."""
    step = max(len(values) / COLUMNS, 1.0)
    shown = [values[int(at * step)] for at in range(int(len(values) / step))]
    least, most = min(shown, default=0.0), max(shown, default=0.0)
    width = (most - least) or 1.0
    return "".join(BARS[min(int((value - least) / width * len(BARS)), len(BARS) - 1)] for value in shown).ljust(COLUMNS)


class Soak:
    """What runs, what was done, and the curves."""

    def __init__(self, path: Path, processes: Processes, workers: int) -> None:
        self.home, self.processes = path / "home", processes
        run("init", str(self.home))
        settings = self.home / "mwnode.toml"
        text = settings.read_text()
        for old, new in SETTINGS.items():
            assert old in text
            text = text.replace(old, new)
        settings.write_text(text)
        names = ["coordinator", *(f"worker-{number}" for number in range(1, workers + 1))]
        for name in names:
            run("agent", "add", name, "--slots", "2", "--home", str(self.home))
        works = [WORK.format(number=n, after=f'"w{n - 1}"' if n == WORKS - 1 else "") for n in range(WORKS)]
        file = path / "plan.toml"
        file.write_text(PLAN + "".join(works))
        self.plan: Plan = load_plan(file)
        self.listening = processes.serve(self.home)
        reach = ("--url", self.listening.url, "--ca", str(self.listening.ca))
        for name in names:
            key = ("--key", str(self.home / "keys" / f"{name}.key"))
            more = ("--plan", str(file)) if name == "coordinator" else ("--exec", "sh -c 'date > outputs/result.txt'")
            processes.start(name, "coordinator" if name == "coordinator" else "worker", *reach, *key, *more)
        self.coordinator_id = str(load_key(self.home / "keys" / "coordinator.key").principal.id)
        self.owner, self.operator = self._client("owner"), self._client("organization")
        self.live: dict[str, str] = {}
        """Group of each Mission under way."""
        self.missions = self.events = 0
        self.curves: dict[str, Curve] = {}

    def _client(self, name: str) -> HttpClient:
        key = load_key(self.home / "keys" / f"{name}.key")
        return HttpClient(self.listening.http, key, self.listening.ca)

    # --- what is done -------------------------------------------------------------------------------------------------

    def step(self) -> None:
        """Order what is missing, approve what is done, archive what is over."""
        while len(self.live) < AT_ONCE:
            self._order()
        for mission_id, group_id in list(self.live.items()):
            view = self.owner.mission(mission_id)
            if view["mission"]["state"] == "awaiting_approval":
                self._approve(view)
            elif view["mission"]["state"] == "approved":
                self._archive(group_id)
                self.missions += 1
                self.events += view["headSequence"] + 2
                del self.live[mission_id]

    def _order(self) -> None:
        mission_id, group_id, now = _new_id(), _new_id(), SystemClock().now()
        payload = self.plan.mission_payload(mission_id, group_id, self.coordinator_id, now)
        self.owner.send("mission.create", payload, group_id=group_id, extensions=self.plan.extensions)
        self.live[mission_id] = group_id

    def _approve(self, view: dict[str, Any]) -> None:
        mission, key, now = view["mission"], load_key(self.home / "keys" / "owner.key"), SystemClock().now().text()
        events = self.owner.events(mission["groupId"])["events"]
        submitted = [one["payload"] for one in events if one["kind"] == "mission.submitted_for_approval"][-1]
        approval = {
            "approvalId": _new_id(),
            "kind": "mission_final",
            "decision": "approved",
            "missionId": mission["missionId"],
            "groupId": mission["groupId"],
            "missionRevision": submitted["missionRevision"],
            "artifactHashes": submitted["artifactHashes"],
            "acceptancePolicyVersion": mission["approvalPolicy"].get("policyVersion", "1.0.0"),
            "approver": {"type": "human", "id": key.principal.id},
            "comments": "",
            "conditions": [],
            "occurredAt": now,
        }
        self.owner.send(
            "mission.approve",
            {"approval": sign_mapping(approval, key, now)},
            group_id=mission["groupId"],
            membership_epoch=1,
            expected_revision=mission["revision"],
        )

    def _archive(self, group_id: str) -> None:
        snapshot = self.operator.get(f"/v0.1/groups/{segment(group_id)}/snapshots")["snapshots"][-1]
        self.operator.send(f"{EXT}.core.group_archive", {"snapshot": snapshot}, group_id=group_id)

    # --- what is looked at --------------------------------------------------------------------------------------------

    def look(self) -> None:
        """Take one value of each curve."""
        for name in self.processes.names:
            status = Path(f"/proc/{self.processes.pid(name)}/status").read_text()
            figures = dict(re.findall(r"^(RssAnon|Threads):\s+([0-9]+)", status, re.MULTILINE))
            self._note(f"{name}: memory of its own", "MiB", int(figures["RssAnon"]) / 1024)
            self._note(f"{name}: threads", "threads", int(figures["Threads"]))
            self._note(f"{name}: open files", "files", len(os.listdir(f"/proc/{self.processes.pid(name)}/fd")))
        if self.events:
            used = os.stat(self.home / "node.mdb").st_blocks * 512
            self._note("store: bytes for each Event so far", "KiB", used / 1024 / self.events)

    def _note(self, name: str, unit: str, value: float) -> None:
        self.curves.setdefault(name, Curve(name, unit, [])).values.append(value)


def _new_id() -> str:
    return uuid7_urn(SystemClock().now(), OsEntropy().random(10))


def soak(path: Path, minutes: float, *, workers: int = 2, every: float = 5.0) -> Soak:
    """Work for so many minutes below ``path``; a look at the curves each ``every`` seconds."""
    with Processes(path / "logs") as processes:
        it = Soak(path, processes, workers)
        until, next_look = time.monotonic() + 60 * minutes, 0.0
        while time.monotonic() < until:
            # Another Event may come between a look and a Command: the next step sees it.
            with suppress(ClientError, MissionWeaveError):
                it.step()
            if time.monotonic() >= next_look:
                next_look = time.monotonic() + every
                it.look()
            time.sleep(0.2)
        it.owner.close()
        it.operator.close()
    assert run("verify", "--home", str(it.home))["ok"]
    return it


def main() -> int:
    """Exit 0 when every curve is flat and the file proves itself."""
    parser = argparse.ArgumentParser(prog="python -m tests.soak", description=main.__doc__)
    parser.add_argument("--minutes", type=float, default=60.0, metavar="M")
    parser.add_argument("--every", type=float, default=5.0, metavar="S", help="seconds between two looks")
    parser.add_argument("--workers", type=int, default=2, metavar="N")
    parser.add_argument("--json", action="store_true", help="every value instead of the curves")
    parser.add_argument("--keep", type=Path, help="an empty directory to leave everything in")
    told = parser.parse_args()
    with tempfile.TemporaryDirectory(prefix="soak-") as directory:
        it = soak(told.keep or Path(directory), told.minutes, workers=told.workers, every=told.every)
    if told.json:
        print(json.dumps({"missions": it.missions, "curves": {one.name: one.values for one in it.curves.values()}}))
    else:
        print(f"{it.missions} Missions, {it.events} Events in {told.minutes:g} minutes; middle third -> last third")
        for curve in it.curves.values():
            print(curve.text())
    return not all(curve.flat for curve in it.curves.values())


if __name__ == "__main__":
    sys.exit(main())
