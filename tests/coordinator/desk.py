"""A Coordinator's engine at work on a real node, in process and step by step."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import msgspec
from msgspec import Struct, field

from mwnode.authority.state import AGENTS, WORK_ITEMS
from mwnode.coordinator.candidates import Candidate
from mwnode.coordinator.effects import Check, Follow, LookUp, Note, Send, Upload
from mwnode.coordinator.engine import MissionEngine
from mwnode.coordinator.inputs import input_files
from mwnode.coordinator.papers import CoordinatorPapers
from mwnode.coordinator.plan import Plan, parse_plan
from mwnode.coordinator.review import Checked
from mwnode.protocol.documents import Capacity, Event, PresenceRecord
from mwnode.protocol.errors import MissionWeaveError
from mwnode.testing import Harness, MissionHandle, Participant

ROUNDS_MAX = 80

PLAN = """\
[mission]
objective = "Build, check and publish the archive"
deadline = "P1D"
budget = { wallClockSecondsLimit = 7200 }

[[mission.definitionOfDone]]
criterionId = "archive"
description = "The archive exists"
evidenceRequired = ["deterministic_test"]

[[work]]
id = "lint"
goal = "Lint"
deliverables = [ { id = "report", mediaType = "text/plain" } ]
criteria = [ { id = "green", description = "all pass", check = "exit 0" } ]

[[work]]
id = "test"
goal = "Test"
after = ["lint"]
deliverables = [ { id = "report", mediaType = "text/plain" } ]
criteria = [ { id = "green", description = "all pass", check = "exit 0" } ]

[[work]]
id = "docs"
goal = "Write"
after = ["lint"]
deliverables = [ { id = "report", mediaType = "text/plain" } ]
criteria = [ { id = "green", description = "all pass", check = "exit 0" } ]

[[work]]
id = "ship"
goal = "Ship"
after = ["test", "docs"]
deliverables = [ { id = "report", mediaType = "text/plain" } ]
criteria = [ { id = "green", description = "all pass", check = "exit 0" } ]
"""
"""A diamond: one work, two beside each other, one that needs both."""
SINGLE = PLAN[: PLAN.index('[[work]]\nid = "test"')]


class CoordinatorDesk(Struct):
    """One Mission's engine and the record of what it did."""

    harness: Harness
    agent: Participant
    mission: MissionHandle
    engine: MissionEngine
    _told: dict[str, int] = field(default_factory=dict)
    sent: list[Send] = field(default_factory=list)
    refused: list[tuple[str, str]] = field(default_factory=list)
    notes: list[Note] = field(default_factory=list)
    checks: list[str] = field(default_factory=list)
    absent: set[str] = field(default_factory=set)
    """Agents without Presence."""
    followed: list[str] = field(default_factory=list)
    """Groups of child Missions."""
    damaged: set[str] = field(default_factory=set)
    """Content hashes whose bytes turn out to be others."""

    def step(self, rounds: int = ROUNDS_MAX) -> CoordinatorDesk:
        """Deliver, advance and carry out until nothing happens any more."""
        for _ in range(rounds):
            busy = self.deliver()
            self.engine.advance()
            effects = self.engine.effects()
            for effect in effects:
                self.carry_out(effect)
            if not busy and not [one for one in effects if not isinstance(one, LookUp | Note)]:
                return self
        raise AssertionError(f"the engine never comes to rest: {self.kinds()[-10:]}")

    def deliver(self) -> bool:
        busy = False
        with self.harness.node.read() as view:
            fresh = view.events(self.mission.group_id, self.engine.board.sequence, 10_000)
        for stored in fresh:
            self.engine.event(msgspec.json.decode(stored.event, type=Event))
            busy = True
        if not self.engine.live:
            self.engine.caught_up()
            busy = True
        for group_id in self.followed:
            busy |= self._deliver_child(group_id)
        return busy

    def _deliver_child(self, group_id: str) -> bool:
        """A child's facts and announcements, as the shell's subscription lets them pass."""
        child = self.engine.children.by_group[group_id]
        with self.harness.node.read() as view:
            fresh = [msgspec.json.decode(one.event, type=Event) for one in view.events(group_id, 0, 10_000)]
        fresh = [event for event in fresh if (event.sequence or 0) > self._told.get(group_id, 0)]
        for event in fresh:
            self._told[group_id] = int(event.sequence or 0)
            if not event.kind.startswith("message.") or event.payload.get("announcement") is True:
                self.engine.children.event(event)
        if not child.live:
            self.engine.children.caught_up(group_id)
            return True
        return bool(fresh)

    def carry_out(self, effect: Any) -> None:
        match effect:
            case Follow():
                self.followed.append(effect.child_group_id)
            case Send():
                self._send(effect)
            case Upload():
                files = {}
                work = self.engine.plan.by_id[effect.local]
                for shown, source in input_files(self.engine.plan, work).items():
                    files[shown] = source if isinstance(source, str) else self.harness.store_bytes(source.read_bytes())
                self.engine.uploaded(effect.local, files)
            case Check():
                self.checks.append(effect.work_item_id)
                self.engine.checked(
                    effect.work_item_id, [self._check(one, effect.read) for one in effect.content_hashes]
                )
            case LookUp():
                self.engine.candidates(self.people())
            case Note():
                self.notes.append(effect)

    def _check(self, content_hash: str, read: bool) -> Checked:
        info = self.harness.node.artifacts.info(content_hash)
        if info is None or content_hash in self.damaged:
            return Checked(content_hash, 0, "its bytes are others than its hash names")
        content = b"".join(self.harness.node.artifacts.read(content_hash)) if read else None
        return Checked(content_hash, info.size, content=content)

    def people(self) -> list[Candidate]:
        """Every registered Agent, present unless said otherwise."""
        with self.harness.node.read() as view:
            rows = list(view.all(AGENTS))
        now = self.harness.clock.now()
        people = []
        for row in rows:
            presence = PresenceRecord(
                agent_id=row.card.agent_id,
                session_epoch=max(1, row.session_epoch),
                status="online",
                capacity=Capacity(max_slots=1, active_slots=0, available_slots=1, queued_items=0),
                capability_availability=(),
                last_heartbeat=now.text(),
                expires_at=now.plus(60).text(),
            )
            people.append(Candidate(row.card, None if row.card.agent_id in self.absent else presence))
        return people

    def _send(self, effect: Send) -> None:
        self.sent.append(effect)
        try:
            events = self.agent.send(
                effect.kind,
                effect.payload,  # type: ignore[arg-type]  # a payload struct is as good as a mapping
                group_id=effect.group_id,
                work_item_id=effect.work_item_id,
                coordinator_epoch=effect.coordinator_epoch,
                expected_revision=effect.expected_revision,
                extensions=effect.extensions,
                action_id=effect.action_id,
                cooperation_override_grant_id=effect.cooperation_override_grant_id,
            )
        except MissionWeaveError as error:
            self.refused.append((effect.kind, error.code.value))
            self.engine.refused(effect.ticket, error)
        else:
            self.engine.answered(effect.ticket, msgspec.convert(events[0], Event))

    def kinds(self) -> list[str]:
        """The kinds sent so far."""
        return [effect.kind for effect in self.sent]

    def of_kind(self, kind: str) -> list[Any]:
        """The payloads of one kind sent so far."""
        return [effect.payload for effect in self.sent if effect.kind == kind]

    def item(self, local: str) -> Any:
        """The authority's row of a work's present WorkItem."""
        identifier = self.engine.graph.instances()[local].work_item_id
        with self.harness.node.read() as view:
            row = view.get(WORK_ITEMS, identifier)
        assert row is not None, f"{local} was not authorized"
        return row

    def state(self, local: str) -> str:
        return str(self.item(local).item.state)


def make_plan(text: str = PLAN, source: Path = Path("plan.toml")) -> Plan:
    return parse_plan(text.encode(), source)


def coordinate(
    harness: Harness,
    mission: MissionHandle | None = None,
    plan: Plan | None = None,
    agent: Participant | None = None,
) -> CoordinatorDesk:
    """A desk for a Mission of the plan; the Mission is made unless given."""
    the_plan = plan or make_plan()
    who = agent or harness.coordinator
    if mission is None:
        mission_id, group_id = harness.new_id(), harness.new_id()
        payload = the_plan.mission_payload(mission_id, group_id, who.id, harness.clock.now())
        harness.owner.send("mission.create", payload, group_id=group_id, extensions=the_plan.extensions)
        mission = MissionHandle(harness, mission_id, group_id)
    papers = CoordinatorPapers(who.key, harness.clock, harness.entropy)
    engine = MissionEngine(who.id, mission.group_id, the_plan, papers)
    return CoordinatorDesk(harness, who, mission, engine)
