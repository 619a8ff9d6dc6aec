"""Where the demonstration happens: HOME, the processes, the links, the Agents, and the human who looks on."""

from __future__ import annotations

import shlex
import sys
from collections.abc import Callable, Sequence
from pathlib import Path
from types import TracebackType
from typing import Any

from mwnode.client.errors import ClientError
from mwnode.client.http import HttpClient
from mwnode.demo.agents import Agent
from mwnode.demo.assets import assets
from mwnode.demo.background import Background
from mwnode.demo.enrol import enrol
from mwnode.demo.link import Link
from mwnode.demo.log import GroupLog
from mwnode.demo.processes import PATIENCE_SECONDS, Deadline, DemoFailure, Listening, Processes, run
from mwnode.demo.report import Check, Report
from mwnode.home import load_key, open_home
from mwnode.protocol.errors import MissionWeaveError

HUMAN = "olivia"
READ_SECONDS = 1
"""A long poll of one Group, in whole seconds."""


class Stage:
    """One HOME with everything that acts in it. Ends all of it with the context."""

    def __init__(self, home: Path, report: Report) -> None:
        self.home = home.absolute()
        self.report = report
        self.assets = assets()
        self.scratch = self.home / "demo"
        self.held: list[Check] = []
        self.logs: list[GroupLog] = []
        self.organization_id = ""
        self.background = Background()
        self.processes = Processes(self.scratch / "logs")
        self._agents: dict[str, Agent] = {}
        self._links: list[Link] = []
        self._listening: Listening | None = None
        self._human: HttpClient | None = None

    def __enter__(self) -> Stage:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.clear()
        self.processes.end()
        if self._human is not None:
            self._human.close()
        self.background.close()

    # --- what is found ------------------------------------------------------------------------------------------------

    def check(self, name: str, passed: bool, evidence: object) -> None:
        """Take note of one claim and of what was seen, and show both."""
        found = Check(name, bool(passed), str(evidence))
        self.held.append(found)
        self.report.check(found)

    # --- the node -----------------------------------------------------------------------------------------------------

    def serve(self) -> Listening:
        """Start the node; the second time it has to come back where it was."""
        before, self._listening = self._listening, self.processes.serve(self.home)
        if before is not None and before.url != self._listening.url:
            raise DemoFailure(f"the node came back at {self._listening.url}, not at {before.url}")
        self.report.step("the node listens", url=self._listening.url, pid=self._listening.pid)
        return self._listening

    @property
    def listening(self) -> Listening:
        """Where the node is reached."""
        assert self._listening is not None, "the founding act starts the node"
        return self._listening

    def link(self) -> Link:
        """A link to the node that can be cut."""
        made = Link(self.background, self.listening.url)
        self._links.append(made)
        return made

    # --- people and Agents --------------------------------------------------------------------------------------------

    def key_file(self, name: str) -> Path:
        """The key file of somebody that HOME knows."""
        return self.home / "keys" / f"{name}.key"

    def client(self, name: str) -> HttpClient:
        """Somebody's HTTP client."""
        return HttpClient(self.listening.http, load_key(self.key_file(name)), self.listening.ca)

    @property
    def human(self) -> HttpClient:
        """The human who owns the Missions and looks on."""
        if self._human is None:
            self._human = self.client(HUMAN)
        return self._human

    def register(self, name: str, *capabilities: str, slots: int = 4) -> str:
        """Register an Agent, once; its identifier."""
        if not self.key_file(name).exists():
            with self.client("organization") as organization:
                enrol(organization, name, capabilities, slots, self.listening.url, open_home(self.home))
        return load_key(self.key_file(name)).principal.id

    def agent(self, name: str, *, url: str | None = None) -> Agent:
        """A scripted Agent, registered if need be, connected once."""
        if name not in self._agents:
            self.register(name)
            where = url or self.listening.url
            self._agents[name] = Agent(self.background, where, self.listening.ca, self.key_file(name))
        return self._agents[name]

    def dismiss(self, name: str) -> None:
        """End a scripted Agent's connection."""
        self._agents.pop(name).close()

    # --- commands and lasting processes -------------------------------------------------------------------------------

    def reach(self, name: str, url: str | None = None) -> tuple[str, ...]:
        """How a command is told to act as somebody."""
        ca = ("--ca", self.listening.ca) if self.listening.ca is not None else ()
        return ("--url", url or self.listening.url, *ca, "--key", str(self.key_file(name)))

    def cli(self, *arguments: str) -> Any:
        """One `mwnode` command as the human; what it printed."""
        return run(*arguments, *self.reach(HUMAN))

    def executor(self, script: str, *arguments: str) -> str:
        """A command line that runs one of the demonstration's executors."""
        return shlex.join([sys.executable, str(self.assets / "executors" / script), *arguments])

    def plan(self, name: str) -> Path:
        """One of the demonstration's plans."""
        return self.assets / "plans" / f"{name}.toml"

    def worker_directory(self, name: str) -> Path:
        """Where a Worker keeps its slots and what it remembers."""
        return self.scratch / "workers" / name

    def fresh_file(self, name: str) -> Path:
        """An empty file for executors to write into, outside of every slot."""
        path = self.scratch / f"{name}.txt"
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text("", encoding="utf-8")
        return path

    def hold(self, ledger: Path) -> Path:
        """A file for as long as which held work that writes into the ledger has more to do: no act races with it."""
        path = ledger.with_name(f"{ledger.name}.held")
        path.touch()
        return path

    def start_worker(self, name: str, command: str, *, url: str | None = None, slots: int = 2) -> None:
        """Start `mwnode worker` as an Agent."""
        directory = ("--directory", str(self.worker_directory(name)))
        self.processes.start(
            name, "worker", *self.reach(name, url), "--exec", command, "--slots", str(slots), *directory, "--json"
        )

    def start_program(self, name: str, *more: str, role: str = "", url: str | None = None) -> None:
        """Start one of the demonstration's own programs as an Agent; its role is its name unless given."""
        ca = self.listening.ca or ""
        where = (url or self.listening.url, ca, str(self.key_file(name)), str(self.worker_directory(name)))
        self.processes.start(name, role or name, *where, *more, module="mwnode.demo.programs")

    def start_coordinator(self, name: str, plan: str, *more: str) -> None:
        """Start `mwnode coordinator` as an Agent."""
        self.processes.start(name, "coordinator", *self.reach(name), "--plan", str(self.plan(plan)), *more, "--json")

    def create(self, plan: str) -> tuple[str, GroupLog]:
        """Have the human order a Mission; its identifier and its Group's log."""
        made = self.cli("mission", "create", str(self.plan(plan)))
        self.report.step("a human orders a Mission", plan=f"{plan}.toml", missionId=made["missionId"])
        return str(made["missionId"]), self.watch(plan, made["groupId"])

    def clear(self) -> None:
        """End everything but the node: the next act starts what it needs."""
        for name in self.processes.names:
            if name != "node":
                self.processes.stop(name)
        for name in list(self._agents):
            self.dismiss(name)
        for link in self._links:
            link.close()
        self._links.clear()

    # --- watching -----------------------------------------------------------------------------------------------------

    def watch(self, title: str, group_id: str) -> GroupLog:
        """A Group's log, which the report is told of."""
        self.logs.append(GroupLog(group_id, title))
        return self.logs[-1]

    def take(self, log: GroupLog, client: HttpClient | None = None, wait: int = 0) -> int:
        """Read what is new in a log; how many Events that were."""
        events = log.read(client or self.human, wait=wait)
        for event in events:
            self.report.event(log, event)
        if self.report.wants_waiting:
            self.report.waiting(self.human.get("/v0.1/waiting")["waiting"])
        return len(events)

    def follow(
        self,
        log: GroupLog,
        until: Callable[[GroupLog], bool],
        deadline: Deadline,
        client: HttpClient | None = None,
    ) -> None:
        """Read on until a condition on the log holds. DemoFailure when a process ends, GaveUp when time is up."""
        while not until(log):
            deadline.check()
            self.processes.check_alive(self.processes.names)
            self.take(log, client, READ_SECONDS)

    def until(
        self,
        condition: Callable[[], bool],
        what: str,
        logs: Sequence[GroupLog] = (),
        seconds: float = PATIENCE_SECONDS,
    ) -> None:
        """Look at several logs in turn until a condition holds."""
        deadline = Deadline(seconds, what, self.report.step)
        while not condition():
            deadline.check()
            self.processes.check_alive(self.processes.names)
            if not sum(self.take(log) for log in logs):
                deadline.pause()

    def tell_waiting(self) -> None:
        """What is waited for, and the last words of whoever runs; tried while everything still runs."""
        try:
            for entry in self.human.get("/v0.1/waiting")["waiting"]:
                self.report.step(f"waits for {entry['who']['id']}", action=entry["action"], on=entry["on"]["id"])
        except (ClientError, MissionWeaveError) as error:
            self.report.step("the node cannot tell what it waits for", because=str(error))
        for name in self.processes.names:
            for line in self.processes.tail(name):
                self.report.step(f"{name}.log", line=line)
