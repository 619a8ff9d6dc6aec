"""What Principals are shown: visibility, views, derived progress, waiting and why."""

from __future__ import annotations

import itertools
import json
from pathlib import Path
from typing import Any

import msgspec
import pytest

from mwnode.authority import views
from mwnode.authority.access import Sight, may_read_input, sight_of
from mwnode.authority.event_rules import EVENT_RULES
from mwnode.authority.policy import Policy
from mwnode.authority.state import MISSIONS, WORK_ITEMS
from mwnode.protocol.commands import CORE
from mwnode.protocol.documents import Actor
from mwnode.protocol.errors import ErrorCode, Rejection
from mwnode.protocol.events import EVENT_PAYLOADS
from mwnode.protocol.identifiers import RETRY_SCHEMA, mission_conversation_id
from tests.authority.scene import DAY, GROUP, MISSION, criterion, later
from tests.authority.staging import CHILD, CHILD_GROUP, Stage

REQUIREMENTS = Path(__file__).resolve().parents[2] / "fixtures" / "requirements.tsv"


@pytest.fixture
def stage() -> Stage:
    return Stage(workers=("anna", "ben"))


@pytest.fixture
def anna(stage: Stage) -> Actor:
    return stage.workers["anna"]


def sight(stage: Stage, actor: Actor, group_id: str = GROUP) -> Sight:
    found = sight_of(stage.view, actor, group_id, stage.now)
    assert isinstance(found, Sight)
    return found


def view(stage: Stage, actor: Actor, mission_id: str = MISSION) -> dict[str, Any]:
    found = views.mission_view(stage.view, actor, mission_id, stage.policy, stage.now)
    assert isinstance(found, dict)
    decoded: dict[str, Any] = json.loads(msgspec.json.encode(found))
    return decoded


def progress(stage: Stage) -> dict[str, Any]:
    row = stage.view.get(MISSIONS, MISSION)
    assert row is not None
    return views.progress(stage.view, row, stage.policy, stage.now)


def waits(stage: Stage, actor: Actor | None = None) -> list[tuple[str, str, str]]:
    entries = views.waiting_for(stage.view, actor or stage.owner, stage.policy, stage.now)
    return [(entry["who"]["id"].rsplit(":", 1)[1], entry["action"], entry["on"]["id"]) for entry in entries]


# --- visibility -------------------------------------------------------------------------------------------------------


@pytest.mark.req("R-8-07", "R-8-13", "R-8-15", "R-19-15", "R-19-16")
def test_what_each_principal_sees_of_a_group(stage: Stage, anna: Actor) -> None:
    stage.authorize("one")
    late = stage.worker("late")
    start = stage.member(GROUP, late).membership.visibility_start_sequence
    assert start == stage.view.head(GROUP)
    for actor in (stage.owner, stage.coordinator, stage.organization):
        assert (sight(stage, actor).whole, sight(stage, actor).start) == (True, 1)
    for sequence, seen in ((start - 1, False), (start, True)):
        assert views.may_read(stage.view, late, GROUP, sequence, None, stage.now) is seen
        assert views.may_read(stage.view, stage.owner, GROUP, sequence, None, stage.now)
    stranger = stage.human("stranger")
    answers = [
        sight_of(stage.view, stranger, GROUP, stage.now),
        sight_of(stage.view, stage.owner, "urn:example:group:none", stage.now),
        sight_of(stage.view, stage.organization, "urn:example:group:none", stage.now),
    ]
    assert {answer.code for answer in answers if isinstance(answer, Rejection)} == {ErrorCode.GROUP_NOT_FOUND}
    assert answers[0] == answers[1] == answers[2]
    stage.ok(stage.coordinator, "membership.end", {"principal": {"type": "agent", "id": anna.id}})
    former = sight_of(stage.view, anna, GROUP, stage.now)
    assert isinstance(former, Rejection)
    assert former.code is ErrorCode.MEMBERSHIP_REQUIRED
    assert not views.may_read(stage.view, anna, GROUP, stage.view.head(GROUP), None, stage.now)


def test_reading_needs_its_scope_and_a_provisional_end_is_an_end(stage: Stage) -> None:
    mute = stage.agent("mute")
    stage.join(mute, "worker", scopes=["message.post"])
    answer = sight_of(stage.view, mute, GROUP, stage.now)
    assert isinstance(answer, Rejection)
    assert answer.code is ErrorCode.AUTH_FORBIDDEN
    guest = stage.agent("guest")
    stage.join(guest, provisional=True, contextPackage=stage.context_package(stage.coordinator))
    assert sight(stage, guest).start == stage.view.head(GROUP)
    stage.advance(DAY)
    answer = sight_of(stage.view, guest, GROUP, stage.now)
    assert isinstance(answer, Rejection)
    assert answer.code is ErrorCode.MEMBERSHIP_REQUIRED


@pytest.mark.req("R-9-02", "R-9-03", "R-9-04")
def test_a_restricted_conversation_is_seen_by_its_own(stage: Stage, anna: Actor) -> None:
    carl = stage.worker("carl")
    place = "urn:example:conversation:quiet"
    conversation = {
        "conversationId": place,
        "missionId": MISSION,
        "groupId": GROUP,
        "type": "restricted",
        "title": "quiet",
        "access": {"mode": "restricted", "members": [{"type": "agent", "id": carl.id}]},
        "createdBy": {"type": "agent", "id": anna.id},
        "createdAt": stage.now.text(),
        "state": "active",
        "revision": 1,
    }
    stage.ok(anna, f"{CORE}.conversation_open", {"conversation": conversation})
    words = {"messageId": "urn:x:m", "conversationId": place, "content": "psst"}
    sequence = stage.ok(anna, "message.post", words).facts[0].sequence
    assert sequence is not None
    seen = {
        actor.id.rsplit(":", 1)[1]: views.may_read(stage.view, actor, GROUP, sequence, place, stage.now)
        for actor in (anna, carl, stage.workers["ben"], stage.coordinator, stage.owner)
    }
    assert seen == {"anna": True, "carl": True, "ben": False, "coordinator": True, "owner": True}
    shown = {
        name: place in [entry["conversationId"] for entry in view(stage, actor)["conversations"]]
        for name, actor in (("carl", carl), ("ben", stage.workers["ben"]), ("owner", stage.owner))
    }
    assert shown == {"carl": True, "ben": False, "owner": True}


@pytest.mark.req("R-14-23", "R-14-24")
def test_owners_see_the_whole_tree() -> None:
    stage = Stage(workers=("anna", "leader"))
    stage.promote(stage.authorize("outer"), stage.workers["leader"])
    stage.child_item(stage.workers["leader"], stage.workers["anna"], state="open")
    for actor in (stage.owner, stage.coordinator):
        assert sight(stage, actor, CHILD_GROUP).whole
        assert len(view(stage, actor, CHILD)["workItems"]) == 1


# --- views ------------------------------------------------------------------------------------------------------------


def test_the_list_names_every_group_one_is_in(stage: Stage, anna: Actor) -> None:
    stage.found("urn:example:mission:2", "urn:example:group:2")
    heads = views.mission_list(stage.view, stage.owner, stage.now)
    assert [head["missionId"] for head in heads] == [MISSION, "urn:example:mission:2"]
    assert set(heads[0]) == {
        "missionId",
        "groupId",
        "state",
        "revision",
        "objective",
        "coordinator",
        "headSequence",
        "title",
        "priority",
        "membership",
    }
    assert heads[0]["membership"]["role"] == "mission_owner"
    assert [head["missionId"] for head in views.mission_list(stage.view, anna, stage.now)] == [MISSION]
    everything = views.mission_list(stage.view, stage.organization, stage.now)
    assert [head["membership"] for head in everything] == [None, None]
    stage.ok(stage.coordinator, "membership.end", {"principal": {"type": "agent", "id": anna.id}})
    assert views.mission_list(stage.view, anna, stage.now) == []


def test_a_view_shows_everything_to_the_owner_and_its_own_to_a_worker(stage: Stage, anna: Actor) -> None:
    ben = stage.workers["ben"]
    early = stage.bring(stage.authorize("early"), "verified", ben)
    late = stage.worker("late")
    own = stage.bring(stage.authorize("own", dependencyWorkItemIds=[early]), "active", anna)
    shown = view(stage, stage.owner)
    assert set(shown) == {
        "mission",
        "workItems",
        "progress",
        "headSequence",
        "memberships",
        "leases",
        "conversations",
        "group",
        "budget",
    }
    assert {item["workItemId"] for item in shown["workItems"]} == {early, own}
    assert len(shown["memberships"]) == 5
    assert {lease["leaseType"] for lease in shown["leases"]} == {"coordinator", "ownership", "execution"}
    assert shown["budget"]["limit"]["wallClockSecondsLimit"] == 100_000
    assert shown["budget"]["remaining"]["wallClockSecondsLimit"] == 100_000
    worker = view(stage, anna)
    assert [entry["member"]["id"] for entry in worker["memberships"]] == [anna.id]
    assert {item["workItemId"] for item in view(stage, late)["workItems"]} == {own}
    assert {lease["leaseType"] for lease in view(stage, late)["leases"]} == {"coordinator"}
    started = next(item for item in shown["workItems"] if item["workItemId"] == own)
    assert started["extensions"]["urn:mwnode:extension:core"]["data"]["executionLease"]["state"] == "active"


def test_a_hidden_mission_looks_like_none(stage: Stage) -> None:
    stranger = stage.human("stranger")
    hidden = views.mission_view(stage.view, stranger, MISSION, stage.policy, stage.now)
    none = views.mission_view(stage.view, stranger, "urn:example:mission:none", stage.policy, stage.now)
    assert hidden == none
    assert isinstance(hidden, Rejection)


def test_who_reads_an_artifact(stage: Stage, anna: Actor) -> None:
    item = stage.bring(stage.authorize("one"), "active", anna)
    content = stage.publish(item, anna)
    stage.hand_in(item, anna)
    stage.accept_result(item)
    late, stranger = stage.worker("late"), stage.human("stranger")
    readers = (stage.owner, stage.coordinator, anna, stage.organization)
    assert all(views.may_read_artifact(stage.view, actor, content, stage.now) for actor in readers)
    assert not views.may_read_artifact(stage.view, late, content, stage.now)
    assert not views.may_read_artifact(stage.view, stranger, content, stage.now)
    assert not views.may_read_artifact(stage.view, stage.owner, "sha256:" + "0" * 64, stage.now)
    result = stage.results(item)[0]
    follow = stage.authorize("two", dependencyWorkItemIds=[item])
    stage.offer(follow, late)
    assert views.may_read_artifact(stage.view, late, result, stage.now)
    assert not views.may_read_artifact(stage.view, late, content, stage.now)


def test_a_package_brings_its_artifacts_along(stage: Stage, anna: Actor) -> None:
    item = stage.bring(stage.authorize("one"), "active", anna)
    content = stage.publish(item, anna)
    late = stage.agent("late")
    package = stage.context_package(stage.coordinator, artifactHashes=[content])
    stage.join(late, contextPackage=package)
    assert views.may_read_artifact(stage.view, late, content, stage.now)


def test_inputs_that_were_only_uploaded_are_read_by_those_who_work_on_them(stage: Stage, anna: Actor) -> None:
    content = stage.store(b"an input")
    item = stage.authorize("one", inputArtifacts=[content])
    stage.offer(item, anna)
    readers = (stage.owner, stage.coordinator, anna)
    assert all(may_read_input(stage.view, actor, content, stage.now) for actor in readers)
    assert not may_read_input(stage.view, stage.workers["ben"], content, stage.now)
    assert not may_read_input(stage.view, stage.human("stranger"), content, stage.now)


# --- progress ---------------------------------------------------------------------------------------------------------


@pytest.mark.req("R-7.3-01", "R-7.3-02")
def test_progress_is_derived_and_every_input_changes_it(stage: Stage, anna: Actor) -> None:
    two_kinds = [criterion("green", "deterministic_test", "reviewer_assessment")]
    first = stage.authorize("first", acceptanceCriteria=two_kinds)
    second = stage.authorize("second", dependencyWorkItemIds=[first])
    third = stage.authorize("third", dependencyWorkItemIds=[second])
    alone = stage.authorize("alone", deadline=later(stage, 60))
    shown = progress(stage)
    assert shown["states"] == {"open": 4}
    assert shown["criticalPath"] == [first, second, third]
    assert shown["evidence"] == {"required": 5, "passed": 0}
    assert shown["deadlines"][0] == {"on": alone, "at": later(stage, 60), "overdue": False}
    assert (shown["blockers"], shown["approvals"], shown["estimatedCompletion"]) == ([], [], None)
    words = {"messageId": "urn:x:m", "conversationId": f"{GROUP}:mission", "content": "90 percent done"}
    stage.ok(anna, "message.post", words)
    assert progress(stage) == shown
    stage.bring(first, "verified", anna)
    shown = progress(stage)
    assert (shown["criticalPath"], shown["evidence"]) == ([second, third], {"required": 5, "passed": 2})
    stage.bring(alone, "active", anna)
    stage.block(alone, anna)
    stage.advance(60, timers=False)
    shown = progress(stage)
    assert [(entry["workItemId"], entry["reason"]) for entry in shown["blockers"]] == [
        (alone, "the licence is missing")
    ]
    assert shown["deadlines"][0]["overdue"]
    stage.cancel(second)
    shown = progress(stage)
    assert {entry["workItemId"]: entry["reason"] for entry in shown["blockers"]}[third] == (
        f"dependency {second} is cancelled"
    )
    assert shown["criticalPath"] == [alone]


@pytest.mark.req("R-7.3-01")
def test_estimates_and_approvals_stand_in_progress(stage: Stage, anna: Actor) -> None:
    item = stage.authorize("one", sideEffectRisk="high_risk", executionApproval="human_required")
    stage.offer(item, anna)
    estimate = {
        "estimatedStart": stage.now.text(),
        "estimatedCompletion": later(stage, 600),
        "confidence": 0.5,
        "capacityStatus": "available",
        "lastCalculatedAt": stage.now.text(),
    }
    stage.accept(item, anna, scheduleEstimate=estimate)
    shown = progress(stage)
    assert shown["estimatedCompletion"] == later(stage, 600)
    assert shown["approvals"] == [{"kind": "work_execution", "workItemId": item, "since": stage.now.text()}]
    assert ("owner", "approval.grant_execution", item) in waits(stage)


@pytest.mark.req("R-7.3-01")
def test_a_submitted_mission_waits_for_its_owner(stage: Stage) -> None:
    stage.submitted()
    assert progress(stage)["approvals"] == [{"kind": "mission_final", "missionId": MISSION, "since": stage.now.text()}]
    assert waits(stage) == [("owner", "mission.approve or mission.request_changes", MISSION)]


# --- waiting and why --------------------------------------------------------------------------------------------------


def test_who_must_act_next_in_every_state(stage: Stage, anna: Actor) -> None:
    assert waits(stage) == [("coordinator", "work.authorize", MISSION)]
    item = stage.authorize("one")
    expected = {
        "offered": ("anna", "work.accept_offer or ext.mwnode.core.offer_decline"),
        "queued": ("anna", "work.start"),
        "active": ("anna", "work.submit, or renewal of its Execution Lease"),
        "blocked": ("coordinator", "work.unblock: get the licence"),
    }
    assert waits(stage) == [("coordinator", "work.offer", item)]
    steps = {
        "offered": lambda: stage.offer(item, anna),
        "queued": lambda: stage.accept(item, anna),
        "active": lambda: stage.start(item, anna),
        "blocked": lambda: stage.block(item, anna),
    }
    for state, step in steps.items():
        step()
        assert waits(stage) == [(*expected[state], item)], state
    stage.ok(stage.coordinator, "work.unblock", {"workItemId": item})
    stage.start(item, anna)
    stage.hand_in(item, anna)
    assert waits(stage) == [("coordinator", "work.accept_result or work.fail", item)]
    stage.accept_result(item)
    assert waits(stage) == [("coordinator", "mission.submit_for_approval", MISSION)]
    stage.ok(stage.owner, "mission.cancel", {"reason": "no"})
    assert waits(stage) == []


@pytest.mark.parametrize("state", ["offered", "queued", "active"])
def test_what_lapsed_waits_for_the_coordinator(stage: Stage, anna: Actor, state: str) -> None:
    item = stage.bring(stage.authorize("one"), state, anna)
    stage.advance(1000, timers=False)
    assert waits(stage) == [("coordinator", "work.offer", item)]
    why = views.why_on(stage.view, stage.owner, item, events(stage), stage.policy, stage.now)
    assert isinstance(why, list)
    lapses = {"offered": "expired at", "queued": "ownership lease ran out", "active": "execution lease ran out"}
    assert any(lapses[state] in entry["fact"] and entry["eventId"] is None for entry in why)


def test_failed_work_a_lapsed_lease_and_a_new_coordinator_wait_too(stage: Stage, anna: Actor) -> None:
    item = stage.bring(stage.authorize("one"), "failed", anna)
    assert waits(stage) == [("coordinator", "work.offer, or work.authorize of a substitute", item)]
    stage.advance(3600, timers=False)
    assert ("owner", "mission.assign_coordinator, unless the Coordinator renews its lease", MISSION) in waits(stage)
    stage.replace(stage.agent("second"))
    assert ("second", f"{CORE}.coordinator_reconcile", MISSION) in waits(stage)
    stage.policy = Policy(reconcile_required=False)
    assert ("second", f"{CORE}.coordinator_reconcile", MISSION) not in waits(stage)


def test_a_worker_is_shown_what_waits_for_itself(stage: Stage, anna: Actor) -> None:
    item = stage.bring(stage.authorize("one"), "offered", anna)
    stage.authorize("two")
    assert waits(stage, anna) == [("anna", "work.accept_offer or ext.mwnode.core.offer_decline", item)]
    assert waits(stage, stage.workers["ben"]) == []
    entry = views.waiting_for(stage.view, anna, stage.policy, stage.now)[0]
    assert set(entry) == {"who", "action", "on", "since", "deadline", "ifNothing"}
    assert entry["deadline"] == later(stage, 300)


def test_a_dependent_item_waits_for_nobody_but_its_dependency(stage: Stage, anna: Actor) -> None:
    first = stage.authorize("first")
    second = stage.authorize("second", dependencyWorkItemIds=[first])
    stage.bring(second, "queued", anna)
    assert waits(stage) == [("coordinator", "work.offer", first)]
    why = views.why_on(stage.view, stage.owner, second, events(stage), stage.policy, stage.now)
    assert isinstance(why, list)
    assert any(f"depends on {first}" in entry["fact"] for entry in why)


@pytest.mark.req("R-14-15")
def test_a_child_waits_for_the_root_owner_first() -> None:
    stage = Stage(workers=("anna", "leader"))
    both = {"finalHumanApproval": True, "highRiskExecutionApproval": True}
    stage.promote(stage.authorize("outer"), stage.workers["leader"], approvalPolicy=both)
    hashes = stage.child_submitted(stage.workers["leader"], stage.workers["anna"])
    assert ("owner", f"{CORE}.root_approval_grant", CHILD) in waits(stage)
    stage.in_child(stage.owner, f"{CORE}.root_approval_grant", {"approval": stage.approval(hashes, mission_id=CHILD)})
    assert ("coordinator", "mission.approve or mission.request_changes", CHILD) in waits(stage)


def events(stage: Stage) -> list[Any]:
    return [event for event in stage.events if event.group_id == GROUP]


def test_why_is_the_chain_of_facts(stage: Stage, anna: Actor) -> None:
    item = stage.bring(stage.authorize("one"), "verified", anna)
    other = stage.authorize("two")
    chain = views.why_on(stage.view, stage.owner, item, events(stage), stage.policy, stage.now)
    assert isinstance(chain, list)
    assert [entry["fact"].split(" ")[0] for entry in chain] == [
        "work.authorized",
        "work.offer.created",
        "work.offer.accepted",
        "work.started",
        "artifact.published",
        "work.submitted",
        "work.result.accepted",
    ]
    assert all(entry["eventId"] and entry["sequence"] for entry in chain)
    assert chain[-1]["rule"] == "R-10.2-25"
    chain = views.why_on(stage.view, stage.owner, other, events(stage), stage.policy, stage.now)
    assert isinstance(chain, list)
    assert chain[-1] == {
        "fact": f"waits for agent {stage.coordinator.id}: work.offer until {later(stage, 20 * DAY)}",
        "eventId": None,
        "sequence": None,
        "rule": "R-10.2-05",
    }
    mission = views.why_on(stage.view, stage.owner, MISSION, events(stage), stage.policy, stage.now)
    assert isinstance(mission, list)
    assert mission[0]["fact"].startswith("mission.created by human")
    assert len(stage.view.in_group(WORK_ITEMS, GROUP)) == 2


def test_every_kind_of_event_has_a_rule() -> None:
    assert set(EVENT_RULES) == set(EVENT_PAYLOADS)
    known = {line.partition("\t")[0] for line in REQUIREMENTS.read_text().splitlines()}
    assert set(EVENT_RULES.values()) <= known


def test_what_nobody_can_take_tells_what_it_needs_and_names_the_owner_once_asked(stage: Stage, anna: Actor) -> None:
    item = stage.bring(stage.authorize("one"), "offered", anna)
    stage.ok(anna, f"{CORE}.offer_decline", {"workItemId": item, "reason": "capacity", "detail": "no slot"})

    def facts() -> list[str]:
        found = views.why_on(stage.view, stage.owner, item, events(stage), stage.policy, stage.now)
        assert isinstance(found, list)
        assert all(entry["rule"] for entry in found)
        return [entry["fact"] for entry in found]

    told = facts()
    assert any("offer_declined" in fact and fact.endswith("capacity; no slot") for fact in told)
    assert f"{anna.id} declined it: capacity" in told
    assert any(fact.startswith("it needs ") and anna.id in fact for fact in told)
    assert [who for who, _, _ in waits(stage)] == ["coordinator"]
    main = mission_conversation_id(GROUP)
    asking = {"conversationId": main, "content": "Nobody is left", "mentions": [msgspec.to_builtins(stage.owner)]}
    stage.ok(stage.coordinator, "message.post", {"messageId": "urn:test:asked", **asking})
    assert any("the Coordinator said" in fact and fact.endswith("Nobody is left") for fact in facts())
    goal = stage.item(item).item.contract.goal
    about = {"conversationId": main, "content": f"{goal}: who?", "mentions": [msgspec.to_builtins(stage.owner)]}
    stage.ok(stage.coordinator, "message.post", {"messageId": "urn:test:about", **about})
    other = {**asking, "content": "Nobody is left"}
    stage.advance(1)
    stage.ok(stage.coordinator, "message.post", {"messageId": "urn:test:other", **other})
    assert any("the Coordinator said" in fact and fact.endswith(f"{goal}: who?") for fact in facts())
    whom = [(who, action.rpartition("asks for: ")[2]) for who, action, on in waits(stage) if on == MISSION]
    assert whom == [("owner", f"{goal}: who?"), ("owner", "Nobody is left")]
    stage.advance(1)
    stage.ok(stage.owner, "message.post", {"messageId": "urn:test:told", "conversationId": main, "content": "Wait"})
    assert [who for who, _, _ in waits(stage)] == ["coordinator"]


def test_every_request_waits_until_it_is_answered_or_over(stage: Stage) -> None:
    main = mission_conversation_id(GROUP)
    items = {name: stage.authorize(name, constraints={"localId": name}) for name in ("one", "two", "three")}
    numbers = itertools.count()

    def post(author: Actor, content: Any, **members: Any) -> None:
        stage.advance(1)
        payload = {"messageId": f"urn:test:said:{next(numbers)}", "conversationId": main, "content": content}
        stage.ok(author, "message.post", payload | members)

    def ask(text: str) -> None:
        post(stage.coordinator, text, mentions=[msgspec.to_builtins(stage.owner)])

    def asked() -> list[str]:
        found = [action.rpartition("asks for: ")[2] for who, action, _ in waits(stage) if who == "owner"]
        return [one for one in found if not one.startswith("mission.")]

    ask("one is blocked")
    ask("two is blocked")
    ask("one is blocked again")
    ask("nobody is here")
    assert asked() == ["two is blocked", "one is blocked again", "nobody is here"]
    block = {"type": "data_ref", "schema": RETRY_SCHEMA, "data": {"workItemId": items["one"]}}
    post(stage.owner, [block])
    assert asked() == ["two is blocked"], "a word about one says nothing about another"
    ask("three: who?")
    assert asked() == ["two is blocked", "three: who?"]
    stage.ok(stage.coordinator, "work.cancel", {"workItemId": items["two"], "reason": "not needed"})
    assert asked() == ["three: who?"]
    post(stage.owner, "Go on as you think best.")
    assert asked() == []


def test_why_tells_nobody_what_they_may_not_see(stage: Stage, anna: Actor) -> None:
    item = stage.bring(stage.authorize("one"), "verified", anna)
    late, stranger = stage.worker("late"), stage.human("stranger")
    assert views.why_on(stage.view, late, item, events(stage), stage.policy, stage.now) == []
    hidden = views.why_on(stage.view, stranger, item, events(stage), stage.policy, stage.now)
    none = views.why_on(stage.view, stranger, "urn:example:none", events(stage), stage.policy, stage.now)
    assert hidden == none
    assert isinstance(hidden, Rejection)
