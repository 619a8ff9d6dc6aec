"""Context Packages: checked before they are passed on (section 13.3)."""

from __future__ import annotations

from typing import Any

import pytest

from mwnode.authority.access import Sight, may_fetch_cited, may_fetch_package, may_read_artifact, sight_of
from mwnode.authority.progress import progress
from mwnode.authority.state import CONTEXTS, ContextRow
from mwnode.protocol.commands import CORE
from mwnode.protocol.documents import Actor
from mwnode.protocol.errors import ErrorCode
from tests.authority.scene import GROUP, MISSION, later
from tests.authority.staging import Stage

PUBLISH = f"{CORE}.context_package_publish"


@pytest.fixture
def stage() -> Stage:
    return Stage(workers=("anna", "ben"))


@pytest.fixture
def anna(stage: Stage) -> Actor:
    return stage.workers["anna"]


def stored(stage: Stage, package: dict[str, Any]) -> ContextRow:
    row = stage.view.get(CONTEXTS, package["contextPackageId"])
    assert row is not None
    return row


@pytest.mark.req("R-13.3-01", "R-13.3-03", "R-8-14")
def test_coordinator_and_owner_publish_and_recipients_are_kept(stage: Stage, anna: Actor) -> None:
    ben = stage.workers["ben"]
    package = stage.context_package(anna)
    recipient = {"type": "agent", "id": ben.id}
    stage.ok(stage.coordinator, PUBLISH, {"contextPackage": package, "recipient": recipient}, expectedRevision=1)
    assert stored(stage, package).recipients == (ben,)
    item = stage.bring(stage.authorize("one"), "active", anna)
    own = stage.context_package(anna, item)
    decision = stage.ok(anna, PUBLISH, {"contextPackage": own})
    assert decision.facts[0].work_item_id == item
    assert stored(stage, own).recipients == ()


@pytest.mark.req("R-19-14")
def test_others_publish_nothing(stage: Stage, anna: Actor) -> None:
    ben = stage.workers["ben"]
    item = stage.bring(stage.authorize("one"), "active", anna)
    for package in (stage.context_package(ben), stage.context_package(ben, item)):
        assert stage.refused(ben, PUBLISH, {"contextPackage": package}).code is ErrorCode.AUTH_FORBIDDEN
    assert stage.refused(anna, PUBLISH, {"contextPackage": stage.context_package(anna)}).code is (
        ErrorCode.AUTH_FORBIDDEN
    )


def source(stage: Stage, first: int, last: int, **changes: Any) -> dict[str, Any]:
    return {
        "sourceEventRange": {
            "fromSequence": first,
            "toSequence": last,
            "eventIds": stage.view.event_ids(GROUP, min(first, last) - 1, max(first, last)),
            **changes,
        }
    }


def faulty(stage: Stage) -> dict[str, dict[str, Any]]:
    foreign = {"description": "we chose", "sourceEventIds": [stage.view.event_ids(GROUP, 0, 1)[0]]}
    return {
        "another Mission": {"missionId": "urn:example:mission:2"},
        "another Group": {"groupId": "urn:example:group:2"},
        "unknown WorkItem": {"workItemId": "urn:example:work:none"},
        "inverted range": source(stage, 2, 1),
        "beyond the head": source(stage, 1, 99),
        "missing Event": source(stage, 1, 2, eventIds=stage.view.event_ids(GROUP, 0, 1)),
        "wrong order": source(stage, 1, 2, eventIds=stage.view.event_ids(GROUP, 0, 2)[::-1]),
        "decision outside": {**source(stage, 2, 2), "decisions": [foreign]},
        "unknown Artifact": {"artifactHashes": ["sha256:" + "0" * 64]},
        "from the future": {"generatedAt": later(stage, 61)},
        "later version without the one before": {"version": 2},
        "unknown predecessor": {"version": 2, "previousContextPackageId": "urn:x:none"},
        "no decisions": {"decisions": None},
        "no constraints": {"constraints": None},
        "no questions": {"unresolvedQuestions": None},
        "no range": {"sourceEventRange": None},
        "no Artifact hashes": {"artifactHashes": None},
        "a human generator": {"generatedBy": {"type": "human", "id": "urn:example:human:owner"}},
    }


@pytest.mark.req(
    "R-13.3-03", "R-13.3-04", "R-13.3-05", "R-13.3-06", "R-13.3-07", "R-13.3-08", "R-13.3-09", "R-13.3-11", "R-19-19"
)
@pytest.mark.parametrize("name", list(faulty(Stage(workers=("anna", "ben")))))
def test_a_package_that_tells_something_else_is_refused(stage: Stage, name: str) -> None:
    package = stage.context_package(stage.coordinator)
    del package["signature"]
    changes = faulty(stage)[name]
    package = {member: value for member, value in {**package, **changes}.items() if value is not None}
    signed = stage.sign(stage.coordinator, package, at=package["generatedAt"])
    assert stage.refused(stage.coordinator, PUBLISH, {"contextPackage": signed}).code is ErrorCode.INVALID_COMMAND


@pytest.mark.req("R-13.3-01", "R-6.4-81")
def test_an_altered_package_is_refused(stage: Stage) -> None:
    package = {**stage.context_package(stage.coordinator), "summary": "something else"}
    refusal = stage.refused(stage.coordinator, PUBLISH, {"contextPackage": package})
    assert refusal.code is ErrorCode.AUTH_INVALID_SIGNATURE


@pytest.mark.req("R-13.3-09")
def test_the_generator_is_an_active_agent_member(stage: Stage, anna: Actor) -> None:
    outsider = stage.agent("outsider")
    package = stage.context_package(outsider)
    assert stage.refused(stage.coordinator, PUBLISH, {"contextPackage": package}).code is ErrorCode.AUTH_FORBIDDEN
    stage.ok(stage.coordinator, "membership.end", {"principal": {"type": "agent", "id": anna.id}})
    package = stage.context_package(anna)
    assert stage.refused(stage.coordinator, PUBLISH, {"contextPackage": package}).code is ErrorCode.AUTH_FORBIDDEN


@pytest.mark.req("R-13.3-11")
def test_an_update_is_a_higher_version_that_names_the_one_before(stage: Stage) -> None:
    first = stage.context_package(stage.coordinator)
    stage.ok(stage.coordinator, PUBLISH, {"contextPackage": first})
    kept = stored(stage, first)
    link = {"previousContextPackageId": first["contextPackageId"]}
    same = stage.context_package(stage.coordinator, **link)
    assert stage.refused(stage.coordinator, PUBLISH, {"contextPackage": same}).code is ErrorCode.INVALID_COMMAND
    second = stage.context_package(stage.coordinator, version=2, **link)
    stage.ok(stage.coordinator, PUBLISH, {"contextPackage": second})
    assert stored(stage, first) == kept
    reused = stage.context_package(stage.coordinator, contextPackageId=first["contextPackageId"], summary="new")
    assert stage.refused(stage.coordinator, PUBLISH, {"contextPackage": reused}).code is ErrorCode.INVALID_COMMAND
    stage.ok(stage.coordinator, PUBLISH, {"contextPackage": first})  # the very same may go to somebody else


def test_a_recipient_is_a_member_and_the_revision_is_compared(stage: Stage) -> None:
    package = stage.context_package(stage.coordinator)
    payload = {"contextPackage": package, "recipient": {"type": "agent", "id": stage.agent("outsider").id}}
    assert stage.refused(stage.coordinator, PUBLISH, payload).code is ErrorCode.INVALID_COMMAND
    refusal = stage.refused(stage.coordinator, PUBLISH, {"contextPackage": package}, expectedRevision=9)
    assert refusal.code is ErrorCode.REVISION_CONFLICT
    stage.ok(stage.owner, "mission.cancel", {"reason": "no"})
    package = stage.context_package(stage.coordinator)
    refusal = stage.refused(stage.coordinator, PUBLISH, {"contextPackage": package})
    assert refusal.code is ErrorCode.INVALID_STATE_TRANSITION
    assert stage.mission_row(MISSION).mission.state == "cancelled"


@pytest.mark.req("R-10.3-01", "R-13.3-03")
def test_an_offers_package_is_made_for_its_item(stage: Stage, anna: Actor) -> None:
    item, other = stage.authorize("one"), stage.authorize("two")
    for package in (stage.context_package(stage.coordinator), stage.context_package(stage.coordinator, other)):
        payload = stage.offer_payload(item, anna, contextPackage=package)
        assert stage.refused(stage.coordinator, "work.offer", payload).code is ErrorCode.INVALID_COMMAND
    package = stage.context_package(stage.coordinator, item)
    stage.offer(item, anna, contextPackage=package)
    assert stored(stage, package).recipients == (anna,)


@pytest.mark.req("R-8-16", "R-8-14")
def test_who_fetches_a_package_and_what_it_cites(stage: Stage) -> None:
    outside, one, other = stage.view.event_ids(GROUP, 0, 3)
    late, later_still = stage.agent("late"), stage.agent("later-still")
    source = {"fromSequence": 2, "toSequence": 3, "eventIds": [one, other]}
    decisions = [{"description": "we chose", "sourceEventIds": [one]}]
    package = stage.context_package(stage.coordinator, sourceEventRange=source, decisions=decisions)
    stage.join(late, contextPackage=package)
    # A package that draws no decisions cites what it was made from.
    stage.join(later_still, contextPackage=stage.context_package(stage.coordinator, sourceEventRange=source))
    row = stored(stage, package)
    sights = {
        actor.id: sight_of(stage.view, actor, GROUP, stage.now)
        for actor in (late, later_still, stage.owner, stage.coordinator, stage.workers["ben"])
    }
    fetch = {name: may_fetch_package(stage.view, sight, row) for name, sight in sights.items()}  # type: ignore[arg-type]
    assert {name for name, may in fetch.items() if may} == {late.id, stage.owner.id, stage.coordinator.id}
    cited = {
        actor.id: [e for e in (outside, one, other) if may_fetch_cited(stage.view, sights[actor.id], e, None)]  # type: ignore[arg-type]
        for actor in (late, later_still, stage.workers["ben"])
    }
    assert cited == {late.id: [one], later_still.id: [one, other], stage.workers["ben"].id: []}


@pytest.mark.req("R-8-16", "R-9-02")
def test_what_is_published_to_the_group_is_held_by_whoever_sees_it(stage: Stage, anna: Actor) -> None:
    early, late, room = stage.agent("early"), stage.agent("late"), "urn:x:room"
    stage.join(early)
    conversation = {
        "conversationId": room,
        "missionId": MISSION,
        "groupId": GROUP,
        "type": "restricted",
        "title": "quiet",
        "access": {"mode": "restricted", "members": [{"type": "human", "id": stage.owner.id}]},
        "createdBy": {"type": "agent", "id": anna.id},
        "createdAt": stage.now.text(),
        "state": "active",
        "revision": 1,
    }
    stage.ok(anna, f"{CORE}.conversation_open", {"conversation": conversation})
    package = stage.context_package(stage.coordinator)
    stage.ok(stage.coordinator, PUBLISH, {"contextPackage": package})
    stage.join(late)
    row = stored(stage, package)
    first = stage.view.event_ids(GROUP, 0, 1)[0]
    for actor, holds in ((early, True), (late, False)):
        sight = sight_of(stage.view, actor, GROUP, stage.now)
        assert isinstance(sight, Sight)
        assert may_fetch_cited(stage.view, sight, first, None) is holds
        assert may_fetch_package(stage.view, sight, row) is holds
        assert not may_fetch_cited(stage.view, sight, first, room)


@pytest.mark.req("R-8-15", "R-8-16", "R-13.3-12")
@pytest.mark.parametrize("to_all", [False, True])
def test_nobody_hands_out_what_it_may_not_read_itself(stage: Stage, to_all: bool) -> None:
    first = stage.bring(stage.authorize("first"), "active", stage.workers["anna"])
    closed = stage.publish(first, stage.workers["anna"])
    mine = stage.authorize("mine")
    late = stage.agent("late")
    head = stage.view.head(GROUP)
    source = {"fromSequence": 1, "toSequence": head, "eventIds": stage.view.event_ids(GROUP, 0, head)}
    decisions = [{"description": "we chose", "sourceEventIds": [source["eventIds"][1]]}]
    given = stage.context_package(stage.coordinator, sourceEventRange=source, decisions=decisions)
    stage.join(late, contextPackage=given)
    stage.bring(mine, "active", late)

    def fetched() -> list[int]:
        sight = sight_of(stage.view, late, GROUP, stage.now)
        assert isinstance(sight, Sight)
        names = enumerate(source["eventIds"], start=1)
        return [number for number, name in names if may_fetch_cited(stage.view, sight, name, None)]

    assert fetched() == [2]
    recipient = {} if to_all else {"recipient": {"type": "agent", "id": late.id}}
    wide = stage.context_package(late, mine, sourceEventRange=source, decisions=[])
    stage.ok(late, PUBLISH, {"contextPackage": wide, **recipient})
    assert fetched() == [2], "a package of its own opens nothing"
    assert not may_read_artifact(stage.view, late, closed, stage.now)
    greedy = stage.context_package(late, mine, sourceEventRange=source, artifactHashes=[closed])
    refusal = stage.refused(late, PUBLISH, {"contextPackage": greedy, **recipient})
    absent = stage.context_package(late, mine, sourceEventRange=source, artifactHashes=["sha256:" + "0" * 64])
    unknown = stage.refused(late, PUBLISH, {"contextPackage": absent, **recipient})
    assert refusal.code is unknown.code is ErrorCode.INVALID_COMMAND
    assert refusal.message.replace(closed, "") == unknown.message.replace("sha256:" + "0" * 64, "")
    assert not may_read_artifact(stage.view, late, closed, stage.now)


@pytest.mark.req("R-13.3-02")
def test_a_package_is_no_authority_over_the_history(stage: Stage) -> None:
    """Whatever a package says: state and progress are the fold of the Events (R-13.3-02)."""
    item = stage.bring(stage.authorize("one"), "active", stage.workers["anna"])
    before = stage.item(item)
    shown = progress(stage.view, stage.mission_row(MISSION), stage.policy, stage.now)
    head = stage.view.head(GROUP)
    lie = {"description": f"{item} is verified", "sourceEventIds": stage.view.event_ids(GROUP, head - 1, head)}
    package = stage.context_package(stage.coordinator, summary="all is verified and approved", decisions=[lie])
    stage.ok(stage.coordinator, PUBLISH, {"contextPackage": package})
    assert stage.item(item) == before
    assert stage.mission_row(MISSION).mission.state == "active"
    assert progress(stage.view, stage.mission_row(MISSION), stage.policy, stage.now) == shown
    payload = {"artifactHashes": ["sha256:" + "0" * 64]}
    refusal = stage.refused(stage.coordinator, "mission.submit_for_approval", payload)
    assert refusal.code is ErrorCode.INVALID_STATE_TRANSITION
