"""Works with a plan of their own: promoted, coordinated by somebody else, approved as a whole, adopted."""

from __future__ import annotations

import asyncio
from pathlib import Path
from typing import Any

import msgspec
import pytest

from mwnode.authority import views
from mwnode.authority.state import MISSIONS, WORK_ITEMS
from mwnode.coordinator.plan import Plan, PlanError, load_plan
from mwnode.coordinator.runner import Coordinator
from mwnode.protocol.documents import Actor, Event
from mwnode.protocol.identifiers import RETRY_SCHEMA, mission_conversation_id
from mwnode.store.trim import trim_group
from mwnode.testing import Harness, MissionHandle, Participant
from mwnode.worker.effects import Assignment
from tests.coordinator.desk import CoordinatorDesk, coordinate
from tests.coordinator.test_engine import numbered, team
from tests.coordinator.test_reviewers import reviewer
from tests.store.archives import archive
from tests.worker.desk import Desk, Run, desk

PARENT = """\
[mission]
objective = "Write and ship"
deadline = "P1D"
budget = { wallClockSecondsLimit = 7200 }
coordinator = "coordinator"

[[mission.definitionOfDone]]
criterionId = "shipped"
description = "It is shipped"
evidenceRequired = ["deterministic_test"]

[[work]]
id = "docs"
goal = "Write the documentation"
mission = "docs.toml"
deliverables = [ { id = "report", mediaType = "text/plain" } ]
criteria = [ { id = "written", description = "it is written", check = "exit 0" } ]

[[work]]
id = "ship"
goal = "Ship"
after = ["docs"]
deliverables = [ { id = "report", mediaType = "text/plain" } ]
criteria = [ { id = "green", description = "all pass", check = "exit 0" } ]
"""
CHILD = """\
[mission]
objective = "Write the documentation"
deadline = "P2D"
budget = { wallClockSecondsLimit = 1200 }
coordinator = "second"

[[mission.definitionOfDone]]
criterionId = "written"
description = "Every chapter is written"
evidenceRequired = ["deterministic_test"]

[[work]]
id = "guide"
goal = "Write the guide"
deliverables = [ { id = "report", mediaType = "text/plain" } ]
criteria = [ { id = "green", description = "all pass", check = "exit 0" } ]
retry = { maxAttempts = 1 }
"""


class Family:
    """Both Coordinators at work, and the Workers between them."""

    def __init__(self, harness: Harness, path: Path, parent: str = PARENT, child: str = CHILD) -> None:
        (path / "docs.toml").write_text(child)
        (path / "plan.toml").write_text(parent)
        self.harness = harness
        self.plan: Plan = load_plan(path / "plan.toml")
        self.second: Participant = harness.agent("second")
        self.parent = coordinate(harness, plan=self.plan)
        self.parent.absent.add(self.second.id)  # it coordinates, and does no work
        self.child: CoordinatorDesk | None = None

    def work(self, *workers: Desk, rounds: int = 12) -> None:
        """Everybody takes turns, a second each."""
        for _ in range(rounds):
            self.parent.step()
            newest = self.parent.followed[-1:]
            if newest and (self.child is None or self.child.mission.group_id != newest[0]):
                self.child = self._coordinate(newest[0])
            if self.child is not None:
                self.child.step()
            for worker in workers:
                worker.step()
            self.harness.advance(1)

    def _coordinate(self, group_id: str) -> CoordinatorDesk:
        mission_id = self.parent.engine.children.by_group[group_id].mission_id
        handle = MissionHandle(self.harness, mission_id, group_id)
        return coordinate(self.harness, handle, self.plan.children["docs"], self.second)

    def say(self, text: str, mission: MissionHandle | None = None, by: Participant | None = None) -> None:
        """Somebody, else the owner, says something in a main Conversation, else the parent's."""
        where = mission or self.parent.mission
        self._post(where, by or self.harness.owner, [{"type": "text", "text": text}])

    def retry(self, local: str) -> None:
        """The owner wishes that a work of the parent be tried again."""
        work_item_id = self.parent.engine.graph.instances()[local].work_item_id
        block = {"type": "data_ref", "schema": RETRY_SCHEMA, "data": {"workItemId": work_item_id}}
        self._post(self.parent.mission, self.harness.owner, [{"type": "text", "text": "again"}, block])

    def _post(self, mission: MissionHandle, who: Participant, content: list[dict[str, Any]]) -> None:
        payload = {
            "messageId": self.harness.new_id(),
            "conversationId": mission_conversation_id(mission.group_id),
            "content": content,
        }
        who.send("message.post", payload, group_id=mission.group_id)

    def terminate(self) -> None:
        """The child's Coordinator gives up."""
        mission = self.inner.mission
        item = self.parent.item("docs").item
        report = self.second.sign(
            evidenceId=self.harness.new_id(),
            missionId=mission.mission_id,
            groupId=mission.group_id,
            workItemId=item.work_item_id,
            type="failure_report",
            subject={"type": "mission", "id": mission.mission_id},
            criterionIds=["written"],
            method="nobody can write",
            result="failed",
            artifactHashes=[],
            generatedBy={"type": "agent", "id": self.second.id},
            createdAt=self.harness.clock.now().text(),
            details={},
        )
        payload = {"reason": "nobody can write", "evidence": [report]}
        self.second.send("mission.terminate", payload, group_id=mission.group_id)

    @property
    def inner(self) -> CoordinatorDesk:
        assert self.child is not None, "no child Mission was made"
        return self.child

    def said(self, mission: MissionHandle) -> str:
        texts = [
            block.get("text", "")
            for event in mission.events()
            if event["kind"] == "message.posted"
            for block in event["payload"]["message"]["content"]
        ]
        return "\n".join(texts)


@pytest.fixture
def family(mwnode: Harness, tmp_path: Path) -> Family:
    return Family(mwnode, tmp_path)


@pytest.mark.req("R-14-01", "R-14-13", "R-14-14", "R-14-16")
def test_a_work_becomes_a_mission_of_its_own_and_its_result_is_adopted(family: Family) -> None:
    workers = team(family.harness)
    family.work(*workers, rounds=20)
    assert family.inner.mission.state == "approved"
    with family.harness.node.read() as view:
        child = view.get(MISSIONS, family.inner.mission.mission_id)
    assert child is not None
    assert child.mission.mission_owner.id == family.harness.coordinator.id
    assert child.mission.coordinator.agent_id == family.second.id
    assert family.parent.state("docs") == "verified"
    assert family.parent.mission.state == "awaiting_approval"
    # What the child made is found by its name in the work that depends on it.
    shipped = next(one for worker in workers for one in worker.launched if one.contract.goal == "Ship")
    constraints: Any = shipped.contract.constraints
    assert [one["path"] for one in constraints["inputs"]] == ["docs/report"]
    # Nothing was offered to anybody in the child's place.
    with family.harness.node.read() as view:
        row = view.get(WORK_ITEMS, family.parent.engine.graph.instances()["docs"].work_item_id)
    assert row is not None
    assert not row.item.offers
    assert family.parent.refused == []


@pytest.mark.req("R-14-06")
def test_a_childs_deadline_is_cut_to_that_of_its_work(family: Family) -> None:
    family.work(rounds=2)
    with family.harness.node.read() as view:
        child = view.get(MISSIONS, family.inner.mission.mission_id)
        parent = view.get(MISSIONS, family.parent.mission.mission_id)
    assert child is not None
    assert parent is not None
    assert child.mission.deadline == parent.mission.deadline


@pytest.mark.req("R-14-17", "R-14-19")
def test_after_a_child_has_failed_the_owner_is_asked_and_may_have_another_one(family: Family) -> None:
    family.work(rounds=3)
    first = family.inner.mission
    family.terminate()
    family.work(rounds=3)
    assert family.parent.mission.state == "active"
    assert "its child Mission is failed" in family.said(family.parent.mission)
    assert len(family.parent.followed) == 1
    family.retry("docs")
    family.work(*team(family.harness), rounds=20)
    assert len(family.parent.followed) == 2
    assert family.inner.mission.mission_id != first.mission_id
    assert family.parent.state("docs") == "verified"


def _fails_once(times: list[int]) -> Any:
    def behave(assignment: Assignment) -> Run:
        if assignment.contract.goal == "Write the guide":
            times.append(1)
            if len(times) == 1:
                return Run(status=1, lines=())
        return numbered(assignment)

    return behave


def why(harness: Harness, work_item_id: str, group_id: str) -> str:
    """What the human at the root is told about a WorkItem."""
    events = [msgspec.convert(event, Event) for event in MissionHandle(harness, "", group_id).events()]
    owner, now = Actor(type="human", id=harness.owner.id), harness.clock.now()
    with harness.node.read() as view:
        facts = views.why_on(view, owner, work_item_id, events, harness.node.policy, now)
    assert isinstance(facts, list)
    return "\n".join(fact["fact"] for fact in facts)


@pytest.mark.req("R-14-21")
def test_failed_work_of_a_child_is_told_above_and_tried_again_from_there(family: Family) -> None:
    times: list[int] = []
    workers = [desk(family.harness, one, _fails_once(times)) for one in family.harness.workers]
    family.work(*workers, rounds=15)
    inner, parent = family.inner.mission, family.parent.mission
    failed = family.inner.engine.graph.instances()["guide"].work_item_id
    assert family.inner.state("guide") == "failed"
    docs = family.parent.engine.graph.instances()["docs"].work_item_id
    told = why(family.harness, docs, parent.group_id)
    assert "mission.child.created by agent" in told
    assert f"its child Mission {inner.mission_id} (Write the documentation) does it, and is active since" in told
    assert f"there Write the guide ({failed}) is failed" in told
    assert f"`mwnode mission retry {inner.mission_id} {failed}` has it tried again" in told
    assert f"there it waits for agent {family.second.id}: work.offer" in told
    with family.harness.node.read() as view:
        waits = views.waiting_for(
            view,
            Actor(type="human", id=family.harness.owner.id),
            family.harness.node.policy,
            family.harness.clock.now(),
        )
    asked = [one["action"] for one in waits if one["who"]["type"] == "human"]
    assert any(one.startswith("message.post that answers the Coordinator") for one in asked)
    # Nobody but the human at the root is heeded, and only by way of the parent's Coordinator.
    data = {"workItemId": failed, "through": [inner.mission_id]}
    wish = [{"type": "text", "text": "again"}, {"type": "data_ref", "schema": RETRY_SCHEMA, "data": data}]
    family._post(parent, family.harness.coordinator, wish)
    family.work(*workers, rounds=4)
    assert (len(times), family.inner.state("guide")) == (1, "failed")
    family._post(parent, family.harness.owner, wish)
    family.work(*workers, rounds=25)
    assert len(times) == 2
    assert family.parent.state("docs") == "verified"
    passed = [one for one in inner.events() if one["kind"] == "message.posted" and RETRY_SCHEMA in str(one["payload"])]
    assert len(passed) == 1


@pytest.mark.req("R-14-21", "R-14-22")
def test_what_a_child_asks_of_its_owner_reaches_the_human_and_the_answer_the_child(family: Family) -> None:
    def behave(assignment: Assignment) -> Run:
        if assignment.contract.goal == "Write the guide" and assignment.checkpoint is None:
            line = {"blocked": {"reason": "which audience?", "requiredResolution": "name it"}}
            return Run(status=None, lines=(line,))
        return numbered(assignment)

    worker = desk(family.harness, family.harness.workers[0], behave)
    family.work(worker, rounds=8)
    assert "which audience?" in family.said(family.parent.mission)
    # Small talk in the child's Group wakes nobody above.
    family.say("tea is ready", family.inner.mission, family.second)
    family.work(worker, rounds=2)
    heard = [message for one in family.parent.engine.children.by_group.values() for message in one.board.messages]
    assert not any("tea" in getattr(block, "text", "") for message in heard for block in message.content)
    family.say("beginners")
    family.work(worker, rounds=20)
    assert "beginners" in family.said(family.inner.mission)
    assert family.inner.mission.state == "approved"


@pytest.mark.req("R-13.3-14")
def test_what_a_childs_work_depends_on_is_handed_in(mwnode: Harness, tmp_path: Path) -> None:
    head, works = PARENT[: PARENT.index("[[work]]")], PARENT[PARENT.index("[[work]]") :]
    ship = works[works.index('[[work]]\nid = "ship"') :]
    notes = ship.replace('"ship"', '"notes"').replace('after = ["docs"]\n', "").replace('"Ship"', '"Take notes"')
    after = works.replace('mission = "docs.toml"', 'mission = "docs.toml"\nafter = ["notes"]')
    parent = f"{head}{notes}{after}"
    child = CHILD.replace('goal = "Write the guide"', 'goal = "Write the guide"\ninputs = ["parent:notes/report"]')
    family = Family(mwnode, tmp_path, parent, child)
    workers = team(mwnode)
    family.work(*workers, rounds=30)
    written = next(one for worker in workers for one in worker.launched if one.contract.goal == "Write the guide")
    constraints: Any = written.contract.constraints
    assert [one["path"] for one in constraints["inputs"]] == ["parent/notes/report"]
    assert family.parent.state("docs") == "verified"
    forwarded = [one for one in family.parent.kinds() if one.endswith("artifact_forward")]
    assert len(forwarded) == 1


def test_a_coordinator_that_starts_anew_finds_its_child_and_makes_no_second_one(family: Family) -> None:
    family.work(rounds=3)
    anew = coordinate(family.harness, family.parent.mission, family.plan)
    anew.absent = family.parent.absent
    family.parent = anew
    family.work(*team(family.harness), rounds=20)
    assert anew.state("docs") == "verified"
    assert "mission.create_child" not in anew.kinds()


def test_a_result_without_the_deliverable_is_sent_back(mwnode: Harness, tmp_path: Path) -> None:
    family = Family(mwnode, tmp_path, PARENT.replace('"text/plain" } ]', '"text/markdown" } ]', 1))
    family.work(*team(mwnode), rounds=10)
    changes = [event for event in family.inner.mission.events() if event["kind"] == "mission.changes_requested"]
    assert changes
    assert "no submitted Artifact is the deliverable report" in changes[0]["payload"]["feedback"]
    assert family.parent.state("docs") == "blocked"


def test_mistakes_about_plans_of_their_own_are_told(tmp_path: Path) -> None:
    def mistake(parent: str, child: str = CHILD) -> str:
        (tmp_path / "docs.toml").write_text(child)
        (tmp_path / "plan.toml").write_text(parent)
        with pytest.raises(PlanError) as caught:
            load_plan(tmp_path / "plan.toml")
        return str(caught.value)

    assert "no plan 'other.toml'" in mistake(PARENT.replace("docs.toml", "other.toml"))
    assert "contains itself" in mistake(PARENT.replace("docs.toml", "plan.toml"))
    assert "two Agents" in mistake(PARENT, CHILD.replace('"second"', '"coordinator"'))
    assert "names no coordinator" in mistake(PARENT, CHILD.replace('coordinator = "second"\n', ""))
    assert "docs.toml" in mistake(PARENT, CHILD.replace("goal", "gaol"))
    capable = PARENT.replace('mission = "docs.toml"', 'mission = "docs.toml"\ncapability = ["other.thing@1.0.0"]')
    assert "its works need mwnode.generic@1.0.0" in mistake(capable)


@pytest.mark.req("R-14-05", "R-14-09")
@pytest.mark.parametrize(
    "parent, child, told",
    [
        (("", ""), ("= 1200", "= 7201"), "wallClockSecondsLimit 7201, and the Mission only 7200"),
        (
            ('mission = "docs.toml"', 'mission = "docs.toml"\nbudget = { wallClockSecondsLimit = 1199 }'),
            ("", ""),
            "wallClockSecondsLimit 1200, and the work only 1199",
        ),
        (
            ("= 7200 }", "= 7200, toolCallLimit = 3 }"),
            ("= 1200 }", "= 1200, toolCallLimit = 4 }"),
            "toolCallLimit 4, and the Mission only 3",
        ),
        (
            ("", ""),
            ("[mission]\n", '[mission]\npermissions = [ { resource = "urn:x", operations = ["read"] } ]\n'),
            "is permitted to read urn:x, which this one is not",
        ),
        (
            ("= 7200 }", '= 7200, currency = "EUR", financialLimit = 9 }'),
            ("= 1200 }", '= 1200, currency = "USD", financialLimit = 1 }'),
            "counts money in USD, and this one in EUR",
        ),
    ],
)
def test_a_childs_plan_stays_within_its_parents(
    tmp_path: Path, parent: tuple[str, str], child: tuple[str, str], told: str
) -> None:
    (tmp_path / "docs.toml").write_text(CHILD.replace(*child, 1) if child[0] else CHILD)
    (tmp_path / "plan.toml").write_text(PARENT.replace(*parent, 1) if parent[0] else PARENT)
    with pytest.raises(PlanError) as caught:
        load_plan(tmp_path / "plan.toml")
    assert told in str(caught.value)
    assert "plan.toml:" in str(caught.value)


@pytest.mark.req("R-14-07", "R-13.2-04")
def test_a_childs_work_may_be_put_before_reviewers(mwnode: Harness, tmp_path: Path) -> None:
    """A child may authorize no more than its parent WorkItem covers: a reviewer's capability too."""
    assessed = 'evidence = ["reviewer_assessment"] } ]\nretry'
    child = CHILD.replace('"green"', '"clear"').replace('check = "exit 0" } ]\nretry', assessed)
    assert assessed in child
    family = Family(mwnode, tmp_path, PARENT, child)
    needed = [one.id for one in family.plan.capabilities(family.plan.work[0])]
    assert needed == ["mwnode.generic", "mwnode.review"]
    family.work(*team(mwnode), reviewer(mwnode, "passed"), rounds=30)
    assert family.inner.mission.state == "approved"
    (tmp_path / "plan.toml").write_text(
        PARENT.replace('mission = "docs.toml"', 'mission = "docs.toml"\ncapability = ["mwnode.generic@1.0.0"]')
    )
    load_plan(tmp_path / "plan.toml")  # the default, said aloud, still means whatever is needed
    (tmp_path / "plan.toml").write_text(
        PARENT.replace(
            'mission = "docs.toml"',
            'mission = "docs.toml"\ncapability = ["mwnode.generic@1.0.0", "other.thing@1.0.0"]',
        )
    )
    with pytest.raises(PlanError, match=r"its works need mwnode\.review@1\.0\.0"):
        load_plan(tmp_path / "plan.toml")


@pytest.mark.req("R-14-14", "R-14-16")
def test_the_result_of_a_childs_own_child_is_handed_up(mwnode: Harness, tmp_path: Path) -> None:
    """What the innermost Mission published is known to its owner alone; those above go by what it submitted."""
    inner = CHILD.replace('coordinator = "second"', 'coordinator = "third"').replace("1200", "600")
    promoted = CHILD[: CHILD.index("retry")].replace('goal = "Write the guide"', 'goal = "Write"\nmission = "in.toml"')
    (tmp_path / "in.toml").write_text(inner)
    family = Family(mwnode, tmp_path, PARENT, promoted)
    third = mwnode.agent("third")
    family.parent.absent.add(third.id)
    workers = team(mwnode)
    innermost: CoordinatorDesk | None = None
    for _ in range(30):
        family.work(*workers, rounds=1)
        if family.child is None:
            continue
        family.child.absent.update((family.second.id, third.id, mwnode.coordinator.id))
        if innermost is None and family.child.followed:
            group_id = family.child.followed[-1]
            mission_id = family.child.engine.children.by_group[group_id].mission_id
            handle = MissionHandle(mwnode, mission_id, group_id)
            innermost = coordinate(mwnode, handle, family.plan.children["docs"].children["guide"], third)
            innermost.absent.update((family.second.id, third.id, mwnode.coordinator.id))
        if innermost is not None:
            innermost.step()
    assert innermost is not None
    assert innermost.mission.state == "approved"
    assert [event for event in family.inner.mission.events() if event["kind"] == "mission.changes_requested"] == []
    assert family.inner.mission.state == "approved"
    assert family.parent.mission.state == "awaiting_approval"
    shipped = next(one for worker in workers for one in worker.launched if one.contract.goal == "Ship")
    constraints: Any = shipped.contract.constraints
    assert [one["path"] for one in constraints["inputs"]] == ["docs/report"]


@pytest.mark.req("R-16-61", "R-14-16")
async def test_what_an_archived_child_made_is_found_by_a_coordinator_that_starts_anew(family: Family) -> None:
    """The child's Events are gone; what its owner needs of them stands in the snapshot."""
    mwnode, workers = family.harness, team(family.harness)
    while family.parent.engine.board.sequence == 0 or family.parent.state("docs") != "verified":
        await asyncio.to_thread(family.work, *workers, rounds=1)
    child = family.inner.mission
    await asyncio.to_thread(archive, child)
    trim_group(lambda step: mwnode.node.call(step).result(), child.group_id)
    told: list[str] = []
    async with mwnode.serving() as served, await served.connect(mwnode.coordinator) as client:
        anew = Coordinator(client, (family.plan,), clock=mwnode.clock, log=lambda event, _: told.append(event))
        stop = asyncio.Event()
        running = asyncio.create_task(anew.run(stop))
        try:
            async with asyncio.timeout(60):
                while not any(engine.live and engine.children.ready for engine in anew.engines.values()):
                    await asyncio.sleep(0.02)
                await asyncio.sleep(0.3)
        finally:
            stop.set()
            await running
    assert "child_not_followed" in told
    engine = next(iter(anew.engines.values()))
    found = engine.children.by_group[child.group_id]
    assert (found.board.state, len(found.manifests)) == ("approved", 1)
    instances = engine.graph.instances()
    assert list(engine.graph.results(instances["ship"], instances)) == ["docs/report"]


async def test_nothing_of_an_ended_mission_is_kept(family: Family) -> None:
    """A Coordinator lives for years, and Missions end every day."""
    mwnode, workers = family.harness, team(family.harness)
    await asyncio.to_thread(family.work, *workers, rounds=40)
    mission = family.parent.mission
    assert mission.state == "awaiting_approval"
    async with mwnode.serving() as served, await served.connect(mwnode.coordinator) as client:
        anew = Coordinator(client, (family.plan,), clock=mwnode.clock)
        stop = asyncio.Event()
        running = asyncio.create_task(anew.run(stop))
        try:
            async with asyncio.timeout(60):
                while not any(engine.live and engine.children.ready for engine in anew.engines.values()):
                    await asyncio.sleep(0.02)
                assert client.position(mission.group_id) is not None
                assert client.position(family.inner.mission.group_id) is not None
                await asyncio.to_thread(mission.approve)
                while anew.engines:
                    await asyncio.sleep(0.02)
                await asyncio.sleep(2.5)  # another look at the list of Missions
        finally:
            stop.set()
            await running
    assert anew.engines == {}
    assert client.position(mission.group_id) is None
    assert client.position(family.inner.mission.group_id) is None


@pytest.mark.req("R-14-19")
def test_a_child_heeds_whoever_coordinates_above_it_now(family: Family) -> None:
    """The Parent Coordinator is replaced, and with it the child's owner: its words count, the former one's do not."""
    mwnode = family.harness
    family.work(rounds=3)
    third = mwnode.agent("third")
    mission = family.parent.mission
    family.harness.owner.send(
        "mission.assign_coordinator",
        {"coordinatorAgentId": third.id},
        group_id=mission.group_id,
        expected_revision=mission.revision,
    )
    family.inner.step()
    board = family.inner.engine.board
    assert board.owner is not None
    assert board.owner.id == third.id
    wish = {"type": "data_ref", "schema": RETRY_SCHEMA, "data": {"workItemId": "urn:example:work"}}
    family._post(family.inner.mission, third, [{"type": "text", "text": "again"}, wish])
    family.inner.step()
    assert board.retry("urn:example:work").sequence == board.sequence
