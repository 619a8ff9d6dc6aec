"""Two processes with one key: the newer wins, the older says who replaced it and leaves nothing running (R-6.3-06)."""

from __future__ import annotations

import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path

import pytest

from mwnode.client.http import HttpClient
from mwnode.home import load_key
from tests.cli.support import ServedHome, cli, environment
from tests.patience import PATIENCE_SECONDS, wait_until

PLAN = """\
[mission]
objective = "Wait and write"
coordinator = "coordinator"
deadline = "P1D"
budget = { wallClockSecondsLimit = 600 }

[[mission.definitionOfDone]]
criterionId = "written"
description = "It is written"
evidenceRequired = ["deterministic_test"]

[[work]]
id = "write"
goal = "Write it"
deliverables = [ { id = "text", path = "text.txt", mediaType = "text/plain" } ]
criteria = [ { id = "done", description = "it ran to its end", check = "exit 0" } ]
"""
EXECUTOR = """\
# Whether another run goes on as this one begins: the brackets keep the pattern from finding its own command line.
if [ -n "$3" ] && pgrep -f "$3" > /dev/null; then echo beside >> "$1"; fi
echo begun >> "$1"
sleep "$2"
echo ended >> "$1"
echo text > outputs/text.txt
"""
CLIENT = """\
import asyncio, sys
from pathlib import Path
from mwnode import Client
from mwnode.home import load_key

async def main():
    url, ca, key = sys.argv[1:]
    async with await Client.connect(url, load_key(Path(key)), ca) as client:
        print("connected", client.session_epoch, flush=True)
        async for event in client.events():
            pass

asyncio.run(main())
"""


class Processes:
    """A served HOME with an Agent for each part, and processes that end with the test."""

    def __init__(self, box: Path) -> None:
        self.box, self.home = box, box / "home"
        self.started: list[subprocess.Popen[str]] = []
        assert cli("init", self.home).status == 0
        for name in ("coordinator", "builder"):
            assert cli("agent", "add", name, "--home", self.home).status == 0
        (box / "executor.sh").write_text(EXECUTOR)
        (box / "plan.toml").write_text(PLAN)
        self.served = ServedHome(self.home, "--port", "0")

    def start(self, *arguments: str | Path) -> subprocess.Popen[str]:
        process = subprocess.Popen(
            [sys.executable, *map(str, arguments)],
            env=environment(),
            stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            text=True,
        )
        self.started.append(process)
        return process

    def mwnode(self, command: str, key: str, *arguments: str | Path) -> subprocess.Popen[str]:
        named = ("--home", self.home, "--key", self.home / "keys" / f"{key}.key")
        return self.start("-m", "mwnode", command, *named, *arguments)

    def worker(self, ledger: str, seconds: int, *arguments: str | Path, unless: str = "") -> subprocess.Popen[str]:
        """A Worker whose runs write into a ledger, and ``beside`` too where a process like ``unless`` runs."""
        command = f"sh {self.box / 'executor.sh'} {self.box / ledger} {seconds} {unless}"
        return self.mwnode("worker", "builder", "--exec", command, *arguments)

    def end(self) -> None:
        for process in self.started:
            process.kill()
            process.communicate(timeout=PATIENCE_SECONDS)
        self.served.stop()


@pytest.fixture
def processes(tmp_path: Path) -> Iterator[Processes]:
    made = Processes(tmp_path)
    yield made
    made.end()


def _told(process: subprocess.Popen[str]) -> str:
    out, _ = process.communicate(timeout=PATIENCE_SECONDS)
    return out


def _ledger(path: Path) -> list[str]:
    return path.read_text().split() if path.exists() else []


@pytest.mark.req("R-6.3-06", "R-11.3-17")
def test_the_newer_of_two_workers_wins_and_the_older_leaves_nothing_running(processes: Processes) -> None:
    box, home = processes.box, processes.home
    coordinator = processes.mwnode("coordinator", "coordinator", "--plan", box / "plan.toml")
    older = processes.worker("older", 3600)
    mission_id = cli("mission", "create", box / "plan.toml", "--home", home, "--json").json["missionId"]
    wait_until(lambda: _ledger(box / "older") == ["begun"], lambda: "the older Worker never began")
    newer = processes.worker("newer", 0, unless=f"^sh.*{box}/[o]lder")
    said = _told(older)
    assert older.returncode == 1, said
    assert "AUTH_STALE_SESSION: another process uses the key of urn:mwnode:agent:builder" in said
    assert "has replaced this one since 20" in said
    assert "from 127.0.0.1 (Session Epoch 2, key" in said
    assert "this one had Session Epoch 1" in said
    assert "mwnode agent add" in said
    assert subprocess.run(["pgrep", "-f", f"^sh.*{box}/older"], capture_output=True, check=False).stdout == b""

    def submitted() -> bool:
        shown = cli("mission", "show", mission_id, "--home", home, "--json").json
        return bool(shown["mission"]["state"] == "awaiting_approval")

    wait_until(submitted, lambda: "the newer Worker did not finish the work")
    assert _ledger(box / "older") == ["begun"]
    assert _ledger(box / "newer") == ["begun", "ended"], "what the older one ran was gone before"
    assert newer.poll() is None
    assert coordinator.poll() is None


@pytest.mark.req("R-6.3-06")
def test_the_newer_of_two_coordinators_wins(processes: Processes) -> None:
    plan = ("--plan", processes.box / "plan.toml")
    older = processes.mwnode("coordinator", "coordinator", *plan)
    assert older.stdout is not None
    wait_until(lambda: "coordinating" in older.stdout.readline(), lambda: "the older Coordinator never began")
    newer = processes.mwnode("coordinator", "coordinator", *plan)
    said = _told(older)
    assert older.returncode == 1, said
    assert "another process uses the key of urn:mwnode:agent:coordinator and has replaced this one since" in said
    time.sleep(1)
    assert newer.poll() is None


@pytest.mark.req("R-6.3-06")
def test_a_client_of_the_library_says_who_replaced_it(processes: Processes) -> None:
    told = processes.served.listening
    arguments = ("-c", CLIENT, told["url"], told["ca"], processes.home / "keys" / "builder.key")
    older = processes.start(*arguments)
    assert older.stdout is not None
    assert older.stdout.readline() == "connected 1\n"
    newer = processes.start(*arguments)
    assert newer.stdout is not None
    assert newer.stdout.readline() == "connected 2\n"
    said = _told(older)
    assert older.returncode == 1
    assert "AuthStaleSession: another process uses the key of" in said
    time.sleep(1)
    assert newer.poll() is None


def test_commands_with_the_key_of_an_agent_that_works_leave_it_working(processes: Processes) -> None:
    worker = processes.worker("ledger", 0, "--json")
    assert worker.stdout is not None
    wait_until(lambda: "working" in worker.stdout.readline(), lambda: "the Worker never began")
    key = ("--home", processes.home, "--key", processes.home / "keys" / "builder.key")
    for command in (("mission", "list"), ("waiting",), ("agent", "list"), ("artifact", "list")):
        cli(*command, *key)
    told = processes.served.listening
    with HttpClient(told["url"], load_key(processes.home / "keys" / "builder.key"), told["ca"]) as http:
        session = http.get("/v0.1/sessions")
    assert (session["sessionEpoch"], session["connected"]) == (1, True)
    assert worker.poll() is None


def test_two_workers_in_one_directory_do_not_clear_what_the_other_runs(processes: Processes) -> None:
    assert cli("agent", "add", "other", "--home", processes.home).status == 0
    older = processes.worker("ledger", 0, "--json", "--directory", processes.box / "work")
    assert older.stdout is not None
    wait_until(lambda: "working" in older.stdout.readline(), lambda: "the Worker never began")
    slot = processes.box / "work" / "slots" / "one"
    slot.mkdir(parents=True)
    newer = processes.mwnode("worker", "other", "--exec", "true", "--directory", processes.box / "work")
    assert "is in use by another Worker: give each its own --directory" in _told(newer)
    assert newer.returncode == 1
    assert slot.exists()
    assert older.poll() is None
