"""A Worker's engine at work on a real node, in process and step by step: no socket, no subprocess, no waiting."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

import msgspec
from msgspec import Struct, field

from mwnode.authority.state import AGENTS, MEMBERSHIPS, MISSIONS, membership_key
from mwnode.protocol.documents import AgentCard, CapabilityRef, Event
from mwnode.protocol.errors import MissionWeaveError
from mwnode.protocol.identifiers import artifact_uri
from mwnode.testing import Harness, Participant
from mwnode.worker.effects import (
    AskToStop,
    Assignment,
    Buffer,
    Collect,
    Discard,
    Effect,
    Exit,
    FetchToken,
    Forget,
    Kill,
    Launch,
    Note,
    Output,
    Remember,
    Revoke,
    SaveState,
    Send,
    Unbuffer,
)
from mwnode.worker.engine import WorkerEngine
from mwnode.worker.papers import Papers
from mwnode.worker.settings import WorkerSettings

GENERIC = (CapabilityRef(id="mwnode.generic", version="1.0.0"),)
ROUNDS_MAX = 60


class Run(Struct):
    """What an executor does: reports, then files and an end, or no end at all (``status`` None)."""

    status: int | None = 0
    files: Mapping[str, bytes] = field(default_factory=lambda: {"report": b"result\n"})
    lines: tuple[Mapping[str, Any], ...] = ()
    wall_seconds: float = 1.0
    compute_seconds: float = 0.5
    on_stop: int | None = -15
    """Exit status after SIGTERM; ``None`` ignores it."""


class Desk(Struct):
    """One Agent's engine, its executor, and the record of what it did."""

    harness: Harness
    agent: Participant
    engine: WorkerEngine
    behave: Callable[[Assignment], Run]
    sent: list[Send] = field(default_factory=list)
    refused: list[tuple[str, str]] = field(default_factory=list)
    """Step or kind, and the code it was refused with."""
    launched: list[Assignment] = field(default_factory=list)
    killed: list[str] = field(default_factory=list)
    asked: list[str] = field(default_factory=list)
    kept: list[str] = field(default_factory=list)
    notes: list[Note] = field(default_factory=list)
    trace: list[str] = field(default_factory=list)
    kept_runs: dict[tuple[str, int], Any] = field(default_factory=dict)
    buffered: dict[int, bytes] = field(default_factory=dict)
    set_aside: list[tuple[bytes, str]] = field(default_factory=list)
    """Buffered Commands that were refused, and why."""
    requests: list[tuple[str, dict[str, Any]]] = field(default_factory=list)
    """Capability Tokens asked for while running, by run."""
    revoked: list[str] = field(default_factory=list)
    running: dict[str, Run] = field(default_factory=dict)
    at: dict[str, int] = field(default_factory=dict)
    linked: bool = True

    def step(self, rounds: int = ROUNDS_MAX) -> Desk:
        """Deliver, tick and carry out until nothing happens any more."""
        for _ in range(rounds):
            busy = self.deliver() if self.linked else False
            self.engine.tick()
            effects = self.engine.effects()
            for effect in effects:
                self.carry_out(effect)
            if not busy and not effects:
                return self
        raise AssertionError(f"the engine never comes to rest: {self.trace[-10:]}")

    def deliver(self) -> bool:
        """Hand over every new Event of every Group that the Agent is in."""
        busy = False
        with self.harness.node.read() as view:
            for mission in list(view.all(MISSIONS)):
                group_id = mission.mission.group_id
                member = view.get(MEMBERSHIPS, membership_key(group_id, self.agent.principal))
                if member is None or member.membership.state == "ended":
                    continue
                new = self.engine.join(group_id, mission.mission.mission_id, member.membership.scopes)
                for stored in view.events(group_id, self.at.get(group_id, 0), 10_000):
                    self.at[group_id] = stored.sequence
                    self.engine.event(msgspec.json.decode(stored.event, type=Event))
                    busy = True
                if new:
                    self.engine.caught_up(group_id)
                    busy = True
        return busy

    def carry_out(self, effect: Effect) -> None:
        match effect:
            case Send():
                self._send(effect)
            case Launch(assignment):
                self.launched.append(assignment)
                self.trace.append("launch")
                run = self.running[assignment.run_id] = self.behave(assignment)
                for line in run.lines:
                    self.engine.runs.reported(assignment.run_id, line)
                if run.status is not None:
                    self.end(assignment.run_id, run.status)
            case FetchToken(run_id, request):
                self.requests.append((run_id, dict(request)))
            case Revoke(run_id):
                self.revoked.append(run_id)
            case AskToStop(run_id):
                self.asked.append(run_id)
                self.trace.append("ask to stop")
                run = self.running.get(run_id, Run())
                if run.on_stop is not None:
                    self.end(run_id, run.on_stop)
            case Kill(run_id):
                self.killed.append(run_id)
                self.trace.append("kill")
                self.end(run_id, -9)
            case Collect(run_id, contract, made):
                self._collect(run_id, contract.required_deliverables, dict(made))
            case SaveState(run_id, path):
                self.engine.runs.saved(run_id, self._output("state", path, b"state", "application/octet-stream"))
            case Discard(run_id, keep):
                self.kept.extend([run_id] if keep else [])
            case Note():
                self.notes.append(effect)
            case Remember(kept):
                self.kept_runs[kept.work_item_id, kept.epoch] = kept
            case Forget(work_item_id, epoch):
                self.kept_runs.pop((work_item_id, epoch), None)
            case Buffer(number, _, raw):
                self.buffered[number] = raw
            case Unbuffer(number, raw, refused):
                del self.buffered[number]
                self.set_aside.extend([(raw, refused)] if refused is not None else [])

    def end(self, run_id: str, status: int, tail: str = "the end") -> None:
        """The executor ends, and these are its last words."""
        run = self.running.pop(run_id, Run())
        self.engine.runs.exited(run_id, Exit(status, run.wall_seconds, run.compute_seconds, tail=tail))
        self.running[run_id] = run

    def _collect(self, run_id: str, wanted: Any, made: dict[str, bytes]) -> None:
        run = self.running[run_id]
        files = {**run.files, **{name.partition(".")[0]: content for name, content in made.items()}}
        missing = [one.deliverable_id for one in wanted if one.deliverable_id not in files]
        if missing:
            self.engine.runs.collected(run_id, (), f"outputs/{missing[0]} was not written")
            return
        outputs = tuple(
            self._output(one.deliverable_id, one.deliverable_id, files[one.deliverable_id], one.media_type, one.schema)
            for one in wanted
        )
        self.engine.runs.collected(run_id, outputs)

    def _output(
        self, name: str, path: str, content: bytes, media_type: str, schema: str = "urn:mwnode:schema:any"
    ) -> Output:
        digest = self.harness.store_bytes(content)
        return Output(name, path, digest, len(content), artifact_uri(digest), media_type, schema)

    def _send(self, effect: Send) -> None:
        self.sent.append(effect)
        self.trace.append(effect.kind)
        if not self.linked:
            return
        try:
            events = self.agent.send(
                effect.kind,
                effect.payload,  # type: ignore[arg-type]  # a payload struct is as good as a mapping
                group_id=effect.group_id,
                work_item_id=effect.work_item_id,
                expected_revision=effect.expected_revision,
                action_id=effect.action_id,
                correlation_id=effect.correlation_id,
                extensions=effect.extensions,
            )
        except MissionWeaveError as error:
            self.refused.append((effect.kind, error.code.value))
            self.engine.refused(effect.ticket, error)
        else:
            self.engine.answered(effect.ticket, msgspec.convert(events[0], Event))

    # --- the link -----------------------------------------------------------------------------------------------------

    def lose_link(self) -> None:
        """The connection is gone."""
        self.linked = False
        self.engine.disconnected()

    def reconnect(self) -> None:
        """A new session: the Events that it caused come by replay, as they do on the wire."""
        self.agent.connect()
        self.linked = True
        assert self.agent.session_epoch is not None
        self.engine.connected(self.agent.session_epoch)

    def kinds(self) -> list[str]:
        """The kinds sent so far."""
        return [effect.kind for effect in self.sent]

    def pass_time(self, seconds: int, step: int = 1) -> None:
        """Let time pass in small steps, the engine working on."""
        for _ in range(0, seconds, step):
            self.harness.advance(step)
            self.step()


def desk(
    harness: Harness,
    agent: Participant | None = None,
    behave: Callable[[Assignment], Run] | None = None,
    *,
    capabilities: tuple[CapabilityRef, ...] = GENERIC,
    **settings: Any,
) -> Desk:
    """A desk for an Agent of the harness; ``settings`` as in WorkerSettings."""
    who = agent or harness.workers[0]
    papers = Papers(who.key, harness.clock, harness.entropy, "test")
    engine = WorkerEngine(papers, capabilities, WorkerSettings(**settings))
    assert who.session_epoch is not None
    engine.connected(who.session_epoch)
    return Desk(harness, who, engine, behave or (lambda assignment: Run()))


CHECKED = {
    "constraints": {"checks": {"green": "exit 0"}, "deliverables": {"report": {"path": "report"}}},
}
"""Members of a contract that an executor's exit status 0 proves."""


def never(assignment: Assignment) -> Run:
    """An executor that runs until it is ended."""
    return Run(status=None)


def card_of(mwnode: Harness) -> AgentCard:
    with mwnode.node.read() as view:
        row = view.get(AGENTS, mwnode.workers[0].id)
    assert row is not None
    return row.card
