"""What the demonstration does, in order; what it claims is in `checks.py`."""

from __future__ import annotations

import shlex
import sys
import time
from collections import Counter
from pathlib import Path
from typing import Any

from mwnode.client.http import HttpClient
from mwnode.demo import checks
from mwnode.demo.assets import assets
from mwnode.demo.log import GroupLog
from mwnode.demo.processes import Deadline, DemoFailure, GaveUp, Listening, Processes, run
from mwnode.demo.report import Check, Report, Summary
from mwnode.home import load_key
from mwnode.narrative import short
from mwnode.protocol.documents import Actor

MISSION_SECONDS = 90
BUILDER = ("demo.source.check@1.0.0", "demo.python.test@1.0.0", "demo.archive.build@1.0.0")
SCRIBE = ("demo.release.write@1.0.0", "demo.release.sign@1.0.0")
WORKERS = ("builder", "scribe")


class Scenario:
    """One run of the demonstration in a HOME of its own."""

    def __init__(self, home: Path, report: Report) -> None:
        self.home = home.absolute()
        self.report = report
        self.assets = assets()
        self.scratch = self.home / "demo"
        self.held: list[Check] = []
        self.release_id = ""
        self.started = time.monotonic()

    def run(self) -> Summary:
        """Everything, from `init` to the summary. DemoFailure when it cannot go on."""
        self.report.step("make an Organization", home=str(self.home))
        made = run("init", str(self.home))
        with Processes(self.scratch / "logs") as processes:
            listening = self._serve(processes)
            self._register()
            try:
                with self._client(listening) as client:
                    self.check(*checks.registry(client, made["organizationId"]))
                    self._release(processes, listening, client)
                    self._survey(processes, listening)
            except GaveUp:
                self._tell_waiting(processes)
                raise
            self.report.step("stop every process")
        self.report.step("prove the file, with nothing running")
        self.check(*checks.verified(run("verify", "--home", str(self.home))))
        return self._summary()

    @property
    def slots(self) -> list[Path]:
        """The Workers' own files, which nobody needs any more when all is done."""
        return [self.scratch / "workers" / name for name in WORKERS]

    def check(self, *found: Check) -> None:
        """Take note of checks and show them."""
        for check in found:
            self.held.append(check)
            self.report.check(check)

    # --- the parts ---

    def _serve(self, processes: Processes) -> Listening:
        listening = processes.serve(self.home)
        self.report.step("the node listens", url=listening.url, pid=listening.pid)
        self.check(*checks.transport(listening))
        return listening

    def _register(self) -> None:
        here = ("--home", str(self.home))
        self.report.step("register a coordinator, two workers and a human")
        run("agent", "add", "coordinator", *here)
        for name, capabilities in zip(WORKERS, (BUILDER, SCRIBE), strict=True):
            named = [argument for capability in capabilities for argument in ("--capability", capability)]
            run("agent", "add", name, "--slots", "2", *named, *here)
        run("human", "add", "olivia", *here)

    def _client(self, listening: Listening) -> HttpClient:
        return HttpClient(listening.http, load_key(self._key("olivia")), listening.ca)

    def _key(self, name: str) -> Path:
        return self.home / "keys" / f"{name}.key"

    def _reach(self, listening: Listening, name: str) -> tuple[str, ...]:
        return ("--url", listening.url, "--ca", str(listening.ca), "--key", str(self._key(name)))

    def _start_worker(self, processes: Processes, listening: Listening, name: str, command: str) -> None:
        processes.start(
            name,
            "worker",
            *self._reach(listening, name),
            *("--exec", command),
            *("--slots", "2"),
            *("--directory", str(self.scratch / "workers" / name)),
        )

    def _start_coordinator(self, processes: Processes, listening: Listening, plan: Path) -> None:
        processes.start("coordinator", "coordinator", *self._reach(listening, "coordinator"), "--plan", str(plan))

    def _executor(self, script: str, *arguments: str) -> str:
        return shlex.join([sys.executable, str(self.assets / "executors" / script), *arguments])

    def _create(self, listening: Listening, plan: Path) -> dict[str, Any]:
        created: dict[str, Any] = run("mission", "create", str(plan), *self._reach(listening, "olivia"))
        self.report.step("a human orders a Mission", missionId=created["missionId"], plan=plan.name)
        return created

    def _follow(
        self, processes: Processes, client: HttpClient, log: GroupLog, state: str, names: tuple[str, ...]
    ) -> None:
        deadline = self._deadline(f"the Mission to be {state}")

        def reached(seen: GroupLog) -> bool:
            processes.check_alive(names)
            return seen.mission_state == state

        for event in log.follow(client, reached, deadline):
            self._show(log, event)

    def _deadline(self, what: str) -> Deadline:
        return Deadline(MISSION_SECONDS, what, self.report.step)

    def _tell_waiting(self, processes: Processes) -> None:
        """What is waited for, and the last words of whoever is awaited; tried while everything still runs."""
        reader = ("--home", str(self.home), "--key", str(self._key("olivia")))
        try:
            entries: list[dict[str, Any]] = run("waiting", *reader)
        except DemoFailure as error:
            self.report.step("the node cannot tell what it waits for", because=str(error))
            entries = []
        for entry in entries:
            self.report.step(f"waits for {short(entry['who']['id'])}", action=entry["action"], on=entry["on"]["id"])
        awaited = dict.fromkeys([*(short(entry["who"]["id"]) for entry in entries), "node"])
        for name in awaited:
            for line in processes.tail(name):
                self.report.step(f"{name}.log", line=line)

    def _show(self, log: GroupLog, event: dict[str, Any]) -> None:
        self.report.event(log.narrator.tell(event), event, log.board)

    def _release(self, processes: Processes, listening: Listening, client: HttpClient) -> None:
        """The first Mission: a small release, undisturbed."""
        plan = self.assets / "plans" / "release.toml"
        self._start_worker(
            processes, listening, "builder", self._executor("release.py", "count", "test", "archive", "smoke")
        )
        self._start_worker(processes, listening, "scribe", self._executor("release.py", "notes", "sign-off"))
        self._start_coordinator(processes, listening, plan)
        created = self._create(listening, plan)
        self.release_id = created["missionId"]
        log = GroupLog(created["groupId"])
        agents = ("node", "coordinator", *WORKERS)
        self._follow(processes, client, log, "awaiting_approval", agents)
        waiting = run("waiting", *self._reach(listening, "olivia"))
        self.check(*checks.waits_for(waiting, Actor(type="human", id=client.principal.id), created["missionId"]))
        self.check(*checks.refuses_another_set(client, created["missionId"], log))
        self.report.step("the human approves exactly what was submitted")
        approved = run("mission", "approve", created["missionId"], "--yes", *self._reach(listening, "olivia"))
        self._follow(processes, client, log, "approved", agents)
        self.check(
            *checks.release(log, approved),
            *checks.signatures(client, log),
            *checks.artifacts(client, log, self.scratch / "artifacts"),
            *checks.explained(run("why", created["missionId"], *self._reach(listening, "olivia"))),
        )
        for name in ("coordinator", *WORKERS):
            processes.stop(name)

    def _survey(self, processes: Processes, listening: Listening) -> None:
        """The second Mission: the node dies in the middle of it."""
        plan, ledger = self.assets / "plans" / "survey.toml", self.scratch / "ledger.txt"
        ledger.touch()
        for name in WORKERS:
            self._start_worker(processes, listening, name, self._executor("survey.py", str(ledger)))
        self._start_coordinator(processes, listening, plan)
        created = self._create(listening, plan)
        log = GroupLog(created["groupId"])
        with self._client(listening) as client:
            deadline = self._deadline("two WorkItems to be active at once")
            for event in log.follow(client, lambda seen: Counter(seen.states().values())["active"] >= 2, deadline):
                self._show(log, event)
        before = log.encoded()
        processes.kill("node")
        self.report.step("the node was killed by SIGKILL", at=len(before), active=2)
        time.sleep(1)  # long enough for the Agents to notice
        again = processes.serve(self.home)
        self.report.step("the node listens again", url=again.url, pid=again.pid)
        if again.url != listening.url:
            raise DemoFailure(f"the node came back at {again.url}, not at {listening.url}: its Agents cannot find it")
        agents = ("node", "coordinator", *WORKERS)
        with self._client(again) as client:
            self._follow(processes, client, log, "awaiting_approval", agents)
            run("mission", "approve", created["missionId"], "--yes", *self._reach(again, "olivia"))
            self._follow(processes, client, log, "approved", agents)
            whole = GroupLog(created["groupId"])
            while whole.read(client, wait=0):
                pass
            self.check(*checks.survived(before, whole, ledger.read_text(encoding="utf-8").split()))
            self.check(*checks.signatures(client, whole))

    def _summary(self) -> Summary:
        home = shlex.quote(str(self.home))
        reader = f"--home {home} --key {shlex.quote(str(self._key('olivia')))}"
        return Summary(
            checks=tuple(self.held),
            passed=all(check.passed for check in self.held),
            home=str(self.home),
            seconds=round(time.monotonic() - self.started, 1),
            paths={
                "store": str(self.home / "node.mdb"),
                "artifacts": str(self.scratch / "artifacts"),
                "logs": str(self.scratch / "logs"),
            },
            try_next=tuple(
                f"{_program()} {command} {here}"
                for command, here in (
                    ("verify", f"--home {home}"),
                    (f"mission show {self.release_id}", reader),
                    ("why sign-off", reader),
                    ("artifact list", reader),
                    (f"events {self.release_id}", reader),
                    ("serve", f"--home {home}"),
                )
            ),
        )


def _program() -> str:
    """How this very command was called, so that what is shown can be typed."""
    called = Path(sys.argv[0])
    return sys.argv[0] if called.name == "mwnode" else "mwnode"
