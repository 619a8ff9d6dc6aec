"""`mwnode demo`: real processes, real sockets, a real SIGKILL. The whole of it runs by the README's line."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import time
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
from rich.console import Console

from mwnode.demo import processes, scenario
from mwnode.demo.acts import Act
from mwnode.demo.acts.table import ACTS, FAULTS
from mwnode.demo.assets import assets
from mwnode.demo.board import Board
from mwnode.demo.log import GroupLog
from mwnode.demo.processes import Deadline, GaveUp
from mwnode.demo.report import Check, Summary
from tests.cli.support import cli, environment

R_22_16 = {
    "duplicate delivery": "duplicate-delivery",
    "Worker restart with queue rebuild": "worker-restart",
    "Coordinator replacement": "coordinator-failure",
    "Group disconnection": "outage",
    "lease expiry with reassignment": "lease-expiry",
    "high-priority arrival": "high-priority",
    "human change request": "change-request",
}


def demo(*arguments: str, seconds: int = 1500) -> tuple[int, dict[str, Any], str]:
    """One run with --json: status, document and what was said on stderr."""
    done = subprocess.run(
        [sys.executable, "-m", "mwnode", "demo", *arguments, "--json"],
        env=environment(),
        stdin=subprocess.DEVNULL,
        capture_output=True,
        text=True,
        timeout=seconds,
        check=False,
    )
    assert done.stdout, done.stderr
    return done.returncode, json.loads(done.stdout), done.stderr


@pytest.mark.timeout(1800)
def test_one_fault_alone_holds_and_its_home_proves_itself(tmp_path: Path) -> None:
    home = tmp_path / "home"
    status, document, said = demo("--fault", "lease-expiry", "--home", str(home))
    failed = [check for check in document["checks"] if not check["passed"]]
    assert (status, failed, said) == (0, [], "")
    assert document["passed"]
    assert any("lease ran out" in check["name"] for check in document["checks"])
    assert all(set(check) == {"name", "passed", "evidence"} for check in document["checks"])
    assert all(Path(path).exists() for path in document["paths"].values())
    assert cli("verify", "--home", home, "--json").json["ok"]


def test_every_fault_of_the_failure_suite_has_a_name() -> None:
    assert set(R_22_16.values()) <= set(FAULTS)
    listed = cli("demo", "--fault", "list", "--json").json["faults"]
    assert [entry["name"] for entry in listed] == list(FAULTS)
    assert all(entry["about"] for entry in listed)
    assert len({act.name for act in ACTS}) == len(ACTS)


def test_an_unknown_fault_is_wrong_usage() -> None:
    done = cli("demo", "--fault", "earthquake")
    assert done.status == 2
    assert "--fault list" in done.err


def _children(pid: int) -> set[int]:
    found: set[int] = set()
    for task in Path(f"/proc/{pid}/task").iterdir():
        found |= {int(child) for child in (task / "children").read_text(encoding="ascii").split()}
    return found


@pytest.mark.timeout(1800)
@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM])
def test_interrupted_it_ends_what_it_started_and_leaves_no_file(tmp_path: Path, number: signal.Signals) -> None:
    process = subprocess.Popen(
        [sys.executable, "-m", "mwnode", "demo", "--fault", "outage"],
        env=environment() | {"TMPDIR": str(tmp_path)},
        stdout=subprocess.DEVNULL,
        stderr=subprocess.DEVNULL,
    )
    started: set[int] = set()
    while not started:
        assert process.poll() is None
        time.sleep(0.01)
        if list(tmp_path.glob("mwnode-demo-*/home/demo/logs/node.log")):
            # The node, perhaps in the very moment of its birth.
            started = _children(process.pid)
    process.send_signal(number)
    assert process.wait(1500) == 130
    assert not [pid for pid in started if os.path.exists(f"/proc/{pid}")]
    assert list(tmp_path.iterdir()) == []


def test_whoever_is_born_while_the_demonstration_is_interrupted_is_ended_too(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    born: list[subprocess.Popen[bytes]] = []

    def interrupted(*arguments: Any, **options: Any) -> subprocess.Popen[bytes]:
        born.append(subprocess.Popen(*arguments, **options))
        signal.raise_signal(signal.SIGINT)
        return born[0]

    monkeypatch.setattr(processes, "subprocess", SimpleNamespace(Popen=interrupted, DEVNULL=subprocess.DEVNULL))
    # A shell without job control starts what it puts in the background with this signal ignored.
    before = signal.signal(signal.SIGINT, signal.default_int_handler)
    try:
        with pytest.raises(KeyboardInterrupt), processes.Processes(tmp_path) as started:
            started.start("nobody", "--version")
    finally:
        signal.signal(signal.SIGINT, before)
    assert born[0].poll() is not None


def test_a_home_that_is_taken_is_refused_in_one_line(tmp_path: Path) -> None:
    (tmp_path / "mine.txt").write_text("mine")
    done = cli("demo", "--home", tmp_path)
    assert done.status == 1
    assert "nothing was changed" in done.err
    assert [path.name for path in tmp_path.iterdir()] == ["mine.txt"]


def test_what_the_demonstration_needs_is_where_it_looks() -> None:
    assert {"plans", "project", "executors"} <= {path.name for path in assets().iterdir()}


class Heard:
    """A report that keeps its steps and checks."""

    wants_waiting = False

    def __init__(self) -> None:
        self.steps: list[tuple[str, dict[str, Any]]] = []
        self.checks: list[Check] = []

    def act(self, name: str, about: str) -> None:
        self.steps.append((name, {"about": about}))

    def step(self, text: str, **facts: Any) -> None:
        self.steps.append((text, facts))

    def event(self, *_: Any) -> None:
        """Events are of no interest here."""

    def waiting(self, entries: list[dict[str, Any]]) -> None:
        """What waits is of no interest here."""

    def check(self, check: Check) -> None:
        self.checks.append(check)

    def end(self, summary: Summary) -> None:
        raise AssertionError("nobody was asked to end it")


def test_what_is_waited_for_is_said_again_and_again(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(processes, "TELL_SECONDS", 0.0)
    told: list[str] = []
    deadline = Deadline(60, "the Mission to be approved", told.append)
    deadline.check()
    deadline.check()
    assert told == ["still waiting for the Mission to be approved"] * 2


@pytest.mark.timeout(1800)
def test_an_act_that_gives_up_is_a_check_that_failed_and_the_others_are_played(tmp_path: Path) -> None:
    played: list[str] = []

    def never(stage: Any) -> None:
        stage.until(lambda: False, "the end of time", seconds=0.0)

    def good(stage: Any) -> None:
        played.append(stage.human.principal.id)
        stage.check("this one was played", True, "yes")

    heard = Heard()
    acts = (Act("never", "it never ends", never), Act("good", "it ends", good))
    summary = scenario.perform(tmp_path / "home", heard, acts)
    assert not summary.passed
    failed = [check for check in summary.checks if not check.passed]
    assert "never was played to its end" in {check.name for check in failed}
    assert any("gave up waiting for the end of time" in check.evidence for check in failed)
    assert played == ["urn:mwnode:human:olivia"]
    assert any(text == "node.log" for text, _ in heard.steps)
    assert tuple(heard.checks) == summary.checks


def test_giving_up_is_a_failure_of_its_own() -> None:
    with pytest.raises(GaveUp, match="gave up waiting for it"):
        Deadline(-1.0, "it").check()


def fold(*kinds: str) -> GroupLog:
    """A log of two WorkItems, as far as these Events of the second one take it."""
    log = GroupLog("urn:x:group", "feature")
    for number, (name, after) in enumerate((("one", []), ("two", ["urn:x:one"])), 1):
        contract = {"goal": name, "dependencyWorkItemIds": after, "constraints": {"localId": name}}
        item = {"workItemId": f"urn:x:{name}", "contract": contract}
        log._take({"kind": "work.authorized", "sequence": number, "payload": {"workItem": item, "state": "open"}})
    for kind in kinds:
        payload = {"workItemId": "urn:x:two", "state": "active", "owner": {"agentId": "urn:x:builder"}}
        log._take({"kind": kind, "sequence": 3, "payload": payload})
    return log


def test_the_board_shows_graphs_owners_and_who_is_awaited() -> None:
    console = Console(width=120, force_terminal=True, color_system=None)
    board = Board(console)
    board._logs = [fold("work.started"), fold()]
    board._entries = [{"who": {"id": "urn:x:olivia"}, "action": "mission.approve", "on": {"id": "urn:x:mission"}}]
    with console.capture() as captured:
        console.print(board.picture())
    shown = captured.get()
    assert shown.count("feature") == 2
    row = next(line for line in shown.splitlines() if "builder" in line)
    assert row.split()[:4] == ["two", "one", "active", "builder"]
    assert "olivia" in shown
    assert "mission.approve" in shown


def test_in_a_pipe_there_are_lines_and_no_board() -> None:
    console = Console(width=120, force_terminal=False)
    board = Board(console)
    assert not board.wants_waiting
    with console.capture() as captured:
        board.act("missions", "two at once")
        board.event(fold("work.started"), {})
        board.check(Check("it held", True, "seen"))
        board.end(Summary((Check("it held", True, "seen"),), True, 1.0))
    assert captured.get().count("it held") == 2
    assert "1 of 1 checks held" in captured.get()
    assert "WorkItem" not in captured.get()
