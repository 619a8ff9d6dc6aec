"""Cancellation and termination, and whom they reach (sections 7.1 and 14)."""

from __future__ import annotations

from typing import Any

import pytest

from mwnode.authority.state import ACCOUNTS, EVIDENCE, LEASES
from mwnode.protocol.documents import Actor
from mwnode.protocol.errors import ErrorCode
from mwnode.protocol.events import WorkBlocked, WorkFailed
from tests.authority.scene import GROUP, MISSION
from tests.authority.staging import CHILD, CHILD_GROUP, Stage

UNFINISHED = ("open", "offered", "queued", "active", "blocked", "submitted")


@pytest.fixture
def stage() -> Stage:
    return Stage(workers=("anna", "leader"))


def report(stage: Stage, item: str, signer: Actor, mission_id: str = MISSION, **changes: Any) -> dict[str, Any]:
    """A failure report about a whole Mission."""
    group_id = stage.mission_row(mission_id).mission.group_id
    return stage.evidence(
        item,
        signer,
        **{
            "type": "failure_report",
            "result": "failed",
            "missionId": mission_id,
            "groupId": group_id,
            "subject": {"type": "mission", "id": mission_id},
            **changes,
        },
    )


def every_state(stage: Stage) -> list[str]:
    anna = stage.workers["anna"]
    return [stage.bring(stage.authorize(state), state, anna) for state in UNFINISHED]


def kinds(stage: Stage, group_id: str) -> list[str]:
    return [event.kind for event in stage.events if event.group_id == group_id]


# --- cancellation -----------------------------------------------------------------------------------------------------


@pytest.mark.req("R-7.1-19", "R-15.1-23", "R-15.2-11", "R-10.2-37")
def test_a_cancelled_mission_cancels_its_unfinished_work(stage: Stage) -> None:
    items = every_state(stage)
    verified = stage.bring(stage.authorize("done"), "verified", stage.workers["anna"])
    before = stage.mission_row(MISSION).mission
    decision = stage.ok(stage.owner, "mission.cancel", {"reason": "no money"}, expectedRevision=before.revision)
    assert [fact.kind for fact in decision.facts] == ["mission.cancelled"] + ["work.cancelled"] * len(items)
    assert {fact.cause.type for fact in decision.facts[1:]} == {"event"}
    assert {fact.cause.id for fact in decision.facts[1:]} == {decision.facts[0].event_id}
    assert {stage.state(item) for item in items} == {"cancelled"}
    assert stage.state(verified) == "verified"
    row = stage.mission_row(MISSION)
    assert (row.mission.state, row.ended_reason) == ("cancelled", "no money")
    assert row.coordinator_lease.state == "revoked"
    assert [row for row in stage.view.all(LEASES) if row.lease.state == "active"] == []
    assert all(account.closed for account in stage.view.all(ACCOUNTS))


@pytest.mark.req("R-7.1-19")
@pytest.mark.parametrize("actor", ["owner", "organization"])
@pytest.mark.parametrize("state", ["active", "awaiting_approval"])
def test_owner_and_policy_cancel_a_live_mission(stage: Stage, actor: str, state: str) -> None:
    if state == "awaiting_approval":
        stage.submitted()
    who = stage.owner if actor == "owner" else stage.organization
    stage.ok(who, "mission.cancel", {"reason": "no"}, groupId=GROUP)
    assert stage.mission_row(MISSION).mission.state == "cancelled"


@pytest.mark.req("R-7.1-20", "R-7.1-28", "R-15.1-23")
def test_nobody_else_cancels_a_mission(stage: Stage) -> None:
    watcher = stage.agent("watcher")
    stage.join(watcher, "observer")
    for actor in (stage.coordinator, stage.workers["anna"], watcher):
        assert stage.refused(actor, "mission.cancel", {"reason": "no"}).code is ErrorCode.AUTH_FORBIDDEN
    refusal = stage.refused(stage.authority, "mission.cancel", {"reason": "no"}, groupId=GROUP)
    assert refusal.code is ErrorCode.AUTH_FORBIDDEN
    assert stage.refused(stage.owner, "mission.cancel", {"reason": "no"}, expectedRevision=9).code is (
        ErrorCode.REVISION_CONFLICT
    )


LIFECYCLE: dict[str, dict[str, Any]] = {
    "mission.cancel": {"reason": "no"},
    "mission.terminate": {"reason": "no"},
    "mission.submit_for_approval": {"artifactHashes": ["sha256:" + "0" * 64]},
    "mission.assign_coordinator": {"coordinatorAgentId": "urn:example:agent:anna"},
    "mission.renew_coordinator": {},
}


@pytest.mark.req("R-7.1-20", "R-7.1-22", "R-7.1-23")
@pytest.mark.parametrize("kind", LIFECYCLE)
@pytest.mark.parametrize("state", ["approved", "cancelled", "failed"])
def test_an_ended_mission_has_no_way_out(stage: Stage, state: str, kind: str) -> None:
    if state == "approved":
        stage.approved()
    elif state == "cancelled":
        stage.ok(stage.owner, "mission.cancel", {"reason": "no"})
    else:
        stage.ok(stage.organization, "mission.terminate", {"reason": "no"}, groupId=GROUP)
    before = stage.mission_row(MISSION)
    by_coordinator = ("mission.submit_for_approval", "mission.renew_coordinator")
    actor = stage.coordinator if kind in by_coordinator else stage.organization
    refusal = stage.refused(actor, kind, LIFECYCLE[kind], groupId=GROUP)
    assert refusal.code is ErrorCode.INVALID_STATE_TRANSITION
    assert stage.mission_row(MISSION) == before


@pytest.mark.req("R-7.1-19", "R-15.2-11")
def test_cancellation_reaches_descendants_after_the_missions_own_work(stage: Stage) -> None:
    leader = stage.workers["leader"]
    stage.promote(stage.authorize("outer"), leader)
    inner = stage.child_item(leader, stage.workers["anna"], state="active")
    decision = stage.ok(stage.owner, "mission.cancel", {"reason": "no"})
    assert [(fact.kind, fact.group_id) for fact in decision.facts] == [
        ("mission.cancelled", GROUP),
        ("work.cancelled", GROUP),
        ("mission.cancelled", CHILD_GROUP),
        ("work.cancelled", CHILD_GROUP),
    ]
    assert decision.facts[2].cause.type == "event"
    assert stage.mission_row(CHILD).ended_reason == f"parent Mission {MISSION} cancelled"
    assert stage.state(inner) == "cancelled"


# --- termination ------------------------------------------------------------------------------------------------------


@pytest.mark.req("R-7.1-21", "R-15.1-24", "R-15.2-12", "R-10.2-37")
def test_a_terminated_mission_fails_its_unfinished_work_with_the_report(stage: Stage) -> None:
    items = every_state(stage)
    evidence = [report(stage, items[0], stage.coordinator)]
    payload = {"reason": "impossible", "evidence": evidence}
    decision = stage.ok(stage.coordinator, "mission.terminate", payload)
    assert [fact.kind for fact in decision.facts] == ["mission.terminated"] + ["work.failed"] * len(items)
    for fact in decision.facts[1:]:
        assert isinstance(fact.payload, WorkFailed)
        assert [entry.evidence_id for entry in fact.payload.evidence] == [evidence[0]["evidenceId"]]
    assert {stage.state(item) for item in items} == {"failed"}
    assert stage.mission_row(MISSION).mission.state == "failed"
    assert stage.view.get(EVIDENCE, evidence[0]["evidenceId"]) is not None


@pytest.mark.req("R-7.1-21")
@pytest.mark.parametrize("who", ["coordinator", "organization"])
@pytest.mark.parametrize("state", ["active", "awaiting_approval"])
def test_coordinator_and_policy_terminate_a_live_mission(stage: Stage, who: str, state: str) -> None:
    if state == "awaiting_approval":
        stage.submitted()
    actor = stage.coordinator if who == "coordinator" else stage.organization
    stage.ok(actor, "mission.terminate", {"reason": "no"}, groupId=GROUP)
    assert stage.mission_row(MISSION).mission.state == "failed"


@pytest.mark.req("R-7.1-22")
def test_workers_and_stale_coordinators_terminate_nothing(stage: Stage) -> None:
    payload = {"reason": "no"}
    refusal = stage.refused(stage.workers["anna"], "mission.terminate", payload, coordinatorEpoch=1)
    assert refusal.code is ErrorCode.AUTH_FORBIDDEN
    refusal = stage.refused(stage.coordinator, "mission.terminate", payload, coordinatorEpoch=2)
    assert refusal.code is ErrorCode.AUTH_STALE_COORDINATOR
    refusal = stage.refused(stage.coordinator, "mission.terminate", payload, expectedRevision=9)
    assert refusal.code is ErrorCode.REVISION_CONFLICT


BAD_REPORTS: dict[str, tuple[dict[str, Any], ErrorCode]] = {
    "another type": ({"type": "deterministic_test"}, ErrorCode.INVALID_COMMAND),
    "another Mission": ({"missionId": "urn:example:mission:other"}, ErrorCode.INVALID_COMMAND),
    "another Group": ({"groupId": "urn:example:group:other"}, ErrorCode.INVALID_COMMAND),
    "unknown criteria": ({"criterionIds": ["other"]}, ErrorCode.INVALID_COMMAND),
    "another subject": ({"subject": {"type": "mission", "id": "urn:example:mission:other"}}, ErrorCode.INVALID_COMMAND),
    "from the future": ({"createdAt": "2030-01-01T00:01:01Z"}, ErrorCode.INVALID_COMMAND),
}


@pytest.mark.req("R-14-18", "R-10.2-28")
@pytest.mark.parametrize("name", BAD_REPORTS)
def test_a_mission_with_unfinished_work_fails_with_a_proper_report_only(stage: Stage, name: str) -> None:
    changes, code = BAD_REPORTS[name]
    item = stage.authorize("one")
    payload = {"reason": "no", "evidence": [report(stage, item, stage.coordinator, **changes)]}
    assert stage.refused(stage.coordinator, "mission.terminate", payload).code is code


@pytest.mark.req("R-14-18")
def test_a_missing_foreign_or_misplaced_report_is_refused(stage: Stage) -> None:
    item = stage.authorize("one")
    finished = stage.bring(stage.authorize("two"), "verified", stage.workers["anna"])
    kind = "mission.terminate"
    assert stage.refused(stage.coordinator, kind, {"reason": "no"}).code is ErrorCode.INVALID_COMMAND
    foreign = {"reason": "no", "evidence": [report(stage, item, stage.workers["anna"])]}
    assert stage.refused(stage.coordinator, kind, foreign).code is ErrorCode.AUTH_FORBIDDEN
    misplaced = {"reason": "no", "evidence": [report(stage, finished, stage.coordinator)]}
    assert stage.refused(stage.coordinator, kind, misplaced).code is ErrorCode.INVALID_COMMAND
    about_item = report(stage, item, stage.coordinator, subject={"type": "work_item", "id": item})
    stage.ok(stage.coordinator, kind, {"reason": "no", "evidence": [about_item]})


# --- upwards ----------------------------------------------------------------------------------------------------------


def terminate_child(stage: Stage, outer: str) -> Any:
    leader = stage.workers["leader"]
    evidence = [report(stage, outer, leader, CHILD)]
    return stage.in_child(leader, "mission.terminate", {"reason": "stuck", "evidence": evidence})


@pytest.mark.req("R-14-17", "R-14-18", "R-14-20", "R-10.2-35")
def test_a_failed_child_blocks_its_parent_item_and_no_more(stage: Stage) -> None:
    outer = stage.authorize("outer")
    stage.promote(outer, stage.workers["leader"])
    before = stage.mission_row(MISSION).mission.revision
    decision = terminate_child(stage, outer)
    assert [(fact.kind, fact.group_id) for fact in decision.facts] == [
        ("mission.terminated", CHILD_GROUP),
        ("work.blocked", GROUP),
    ]
    payload = decision.facts[1].payload
    assert isinstance(payload, WorkBlocked)
    assert payload.reason == f"child Mission {CHILD} failed: stuck"
    assert (stage.state(outer), stage.mission_row(MISSION).mission.state) == ("blocked", "active")
    assert stage.mission_row(MISSION).mission.revision == before + 1


@pytest.mark.req("R-10.2-35", "R-11.4-03")
def test_a_failed_child_leaves_what_its_parent_item_had_reached(stage: Stage) -> None:
    outer, anna = stage.bring(stage.authorize("outer"), "active", stage.workers["anna"]), stage.workers["anna"]
    stage.ok(anna, "work.checkpoint", {**stage.three(outer), "checkpoint": stage.checkpoint()})
    reached = stage.item(outer)
    assert reached.checkpoint is not None
    stage.promote(outer, stage.workers["leader"])
    terminate_child(stage, outer)
    blocked = stage.item(outer)
    assert blocked.item.state == "blocked"
    assert (blocked.checkpoint, blocked.checkpoints) == (reached.checkpoint, (reached.checkpoint,))
    assert blocked.required_resolution == "unblock, replace or cancel the WorkItem"
    assert blocked.block_reason == f"child Mission {CHILD} failed: stuck"


@pytest.mark.req("R-14-20")
def test_a_failed_child_fails_its_parent_item_when_declared(stage: Stage) -> None:
    outer = stage.authorize("outer")
    stage.promote(outer, stage.workers["leader"], failurePolicy="fail_parent_work_item")
    decision = terminate_child(stage, outer)
    assert [fact.kind for fact in decision.facts] == ["mission.terminated", "work.failed"]
    assert (stage.state(outer), stage.mission_row(MISSION).mission.state) == ("failed", "active")


@pytest.mark.req("R-14-20", "R-7.1-21")
def test_an_indispensable_child_fails_its_parent_mission(stage: Stage) -> None:
    outer, other = stage.authorize("outer"), stage.authorize("other")
    stage.promote(outer, stage.workers["leader"], failurePolicy="fail_parent_mission")
    decision = terminate_child(stage, outer)
    assert [(fact.kind, fact.cause.type) for fact in decision.facts] == [
        ("mission.terminated", "command"),
        ("work.failed", "event"),
        ("mission.terminated", "event"),
        ("work.failed", "event"),
    ]
    assert (stage.state(outer), stage.state(other)) == ("failed", "failed")
    assert stage.mission_row(MISSION).mission.state == "failed"


@pytest.mark.req("R-14-18")
def test_a_child_fails_with_a_report_even_without_work(stage: Stage) -> None:
    stage.promote(stage.authorize("outer"), stage.workers["leader"])
    code = stage.child_refused(stage.workers["leader"], "mission.terminate", {"reason": "no"})
    assert code is ErrorCode.INVALID_COMMAND
    other = stage.authorize("other")
    wrong = [report(stage, other, stage.workers["leader"], CHILD)]
    code = stage.child_refused(stage.workers["leader"], "mission.terminate", {"reason": "no", "evidence": wrong})
    assert code is ErrorCode.INVALID_COMMAND


@pytest.mark.req("R-14-19")
def test_after_a_childs_failure_every_way_is_open(stage: Stage) -> None:
    leader = stage.workers["leader"]
    replaced, unblocked, cancelled = (stage.authorize(name) for name in ("replaced", "unblocked", "cancelled"))
    for number, item in enumerate((replaced, unblocked, cancelled)):
        child, group = f"{CHILD}:{number}", f"{CHILD_GROUP}:{number}"
        stage.promote(item, leader, missionId=child, groupId=group)
        payload = {"reason": "stuck", "evidence": [report(stage, item, leader, child)]}
        stage.ok(leader, "mission.terminate", payload, groupId=group)
    stage.promote(replaced, leader, missionId=f"{CHILD}:new", groupId=f"{CHILD_GROUP}:new")
    assert stage.item(replaced).child_mission_id == f"{CHILD}:new"
    stage.ok(stage.coordinator, "work.unblock", {"workItemId": unblocked})
    assert stage.state(unblocked) == "open"
    stage.cancel(cancelled)
    assert stage.mission_row(MISSION).mission.state == "active"
