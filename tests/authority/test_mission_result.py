"""Submission, Approval, change requests and budget amendments (sections 7.1 and 7.3)."""

from __future__ import annotations

from typing import Any

import pytest
from msgspec import UNSET

from mwnode.authority.founding import priority_of
from mwnode.authority.state import ACCOUNTS
from mwnode.protocol.commands import CORE
from mwnode.protocol.errors import ErrorCode
from mwnode.protocol.events import MissionApproved, MissionSubmitted
from tests.authority.scene import MISSION
from tests.authority.staging import CHILD, Stage

SUBMIT = "mission.submit_for_approval"
DECISIONS = {"mission.approve": "approved", "mission.request_changes": "changes_requested"}


@pytest.fixture
def stage() -> Stage:
    return Stage()


# --- submission -------------------------------------------------------------------------------------------------------


@pytest.mark.req("R-7.1-13", "R-7.3-04", "R-15.1-20", "R-15.2-08")
def test_a_submission_names_one_revision_and_one_artifact_set(stage: Stage) -> None:
    item = stage.bring(stage.authorize("one"), "verified", stage.workers["anna"])
    hashes = stage.results(item)
    before = stage.mission_row(MISSION).mission
    decision = stage.ok(
        stage.coordinator,
        SUBMIT,
        {"artifactHashes": hashes, "missionRevision": before.revision},
        expectedRevision=before.revision,
    )
    payload = decision.facts[0].payload
    assert isinstance(payload, MissionSubmitted)
    assert (payload.mission_revision, list(payload.artifact_hashes)) == (before.revision, hashes)
    row = stage.mission_row(MISSION)
    assert (row.mission.state, row.mission.revision) == ("awaiting_approval", before.revision)
    assert (row.submitted_revision, list(row.submitted_artifacts)) == (before.revision, hashes)
    again = stage.refused(stage.coordinator, SUBMIT, {"artifactHashes": hashes})
    assert (again.code, again.rule) == (ErrorCode.INVALID_STATE_TRANSITION, "R-7.1-14")


@pytest.mark.req("R-7.3-03")
@pytest.mark.parametrize("state", ["open", "offered", "queued", "active", "blocked", "submitted", "failed"])
def test_nothing_is_submitted_while_a_work_item_is_unsettled(stage: Stage, state: str) -> None:
    anna = stage.workers["anna"]
    hashes = stage.results(stage.bring(stage.authorize("one"), "verified", anna))
    other = stage.bring(stage.authorize("two"), state, anna)
    refusal = stage.refused(stage.coordinator, SUBMIT, {"artifactHashes": hashes})
    assert (refusal.code, refusal.rule) == (ErrorCode.INVALID_STATE_TRANSITION, "R-7.3-03")
    assert refusal.details == {"workItemIds": [other]}


@pytest.mark.req("R-7.3-03")
def test_cancelled_work_and_verified_substitutes_do_not_hold_a_submission_back(stage: Stage) -> None:
    anna = stage.workers["anna"]
    stage.bring(stage.authorize("cancelled"), "cancelled", anna)
    failed = stage.bring(stage.authorize("failed"), "failed", anna)
    substitute = stage.authorize("substitute", payload={"replacesWorkItemId": failed})
    assert stage.code(stage.coordinator, SUBMIT, {"artifactHashes": ["sha256:" + "0" * 64]}) == (
        "INVALID_STATE_TRANSITION"
    )
    hashes = stage.results(stage.bring(substitute, "verified", anna))
    stage.ok(stage.coordinator, SUBMIT, {"artifactHashes": hashes})


def test_a_mission_without_verified_work_is_not_submitted(stage: Stage) -> None:
    payload = {"artifactHashes": ["sha256:" + "0" * 64]}
    assert stage.refused(stage.coordinator, SUBMIT, payload).code is ErrorCode.INVALID_STATE_TRANSITION
    stage.bring(stage.authorize("one"), "cancelled", stage.workers["anna"])
    assert stage.refused(stage.coordinator, SUBMIT, payload).code is ErrorCode.INVALID_STATE_TRANSITION


@pytest.mark.req("R-7.3-04")
def test_only_artifacts_of_verified_submissions_are_submitted(stage: Stage) -> None:
    anna = stage.workers["anna"]
    item = stage.authorize("one")
    stage.bring(item, "active", anna)
    published = stage.publish(item, anna)  # published, but not submitted
    stage.hand_in(item, anna)
    stage.accept_result(item)
    hashes = [*stage.results(item), published]
    refusal = stage.refused(stage.coordinator, SUBMIT, {"artifactHashes": hashes})
    assert (refusal.code, refusal.rule) == (ErrorCode.INVALID_COMMAND, "R-7.3-04")


@pytest.mark.req("R-7.3-04", "R-19-21")
def test_a_submission_of_another_revision_is_a_conflict(stage: Stage) -> None:
    hashes = stage.results(stage.bring(stage.authorize("one"), "verified", stage.workers["anna"]))
    revision = stage.mission_row(MISSION).mission.revision
    payload = {"artifactHashes": hashes, "missionRevision": revision - 1}
    assert stage.refused(stage.coordinator, SUBMIT, payload).code is ErrorCode.REVISION_CONFLICT
    payload = {"artifactHashes": hashes}
    refusal = stage.refused(stage.coordinator, SUBMIT, payload, expectedRevision=revision + 1)
    assert refusal.code is ErrorCode.REVISION_CONFLICT


@pytest.mark.req("R-7.1-14")
def test_only_the_current_coordinator_submits(stage: Stage) -> None:
    hashes = stage.results(stage.bring(stage.authorize("one"), "verified", stage.workers["anna"]))
    payload = {"artifactHashes": hashes}
    refusal = stage.refused(stage.workers["anna"], SUBMIT, payload, coordinatorEpoch=1)
    assert refusal.code is ErrorCode.AUTH_FORBIDDEN
    refusal = stage.refused(stage.coordinator, SUBMIT, payload, coordinatorEpoch=2)
    assert refusal.code is ErrorCode.AUTH_STALE_COORDINATOR


# --- the owner's decision ---------------------------------------------------------------------------------------------


@pytest.mark.req("R-7.1-17", "R-15.1-21", "R-15.2-09", "R-7.3-06")
def test_the_owner_approves_exactly_what_was_submitted(stage: Stage) -> None:
    hashes = stage.submitted()
    before = stage.mission_row(MISSION)
    approval = stage.approval(hashes)
    decision = stage.ok(
        stage.owner, "mission.approve", {"approval": approval}, expectedRevision=before.mission.revision
    )
    assert [fact.kind for fact in decision.facts] == ["mission.approved"]
    payload = decision.facts[0].payload
    assert isinstance(payload, MissionApproved)
    assert payload.approval.approval_id == approval["approvalId"]
    row = stage.mission_row(MISSION)
    assert (row.mission.state, row.mission.revision) == ("approved", before.mission.revision + 1)
    assert row.approval_id == approval["approvalId"]
    assert row.coordinator_lease.state == "released"
    account = stage.view.get(ACCOUNTS, MISSION)
    assert account is not None
    assert account.closed


@pytest.mark.req("R-7.1-15", "R-7.3-07", "R-7.3-08", "R-7.3-09", "R-15.1-22", "R-15.2-10", "R-7.1-06")
def test_changes_are_requested_addressed_and_submitted_again(stage: Stage) -> None:
    first = stage.submitted()
    revision = stage.mission_row(MISSION).mission.revision
    approval = stage.approval(first, decision="changes_requested")
    stage.ok(stage.owner, "mission.request_changes", {"approval": approval, "feedback": "faster"})
    row = stage.mission_row(MISSION)
    assert (row.mission.state, row.mission.revision, row.submitted_revision) == ("active", revision + 1, None)
    corrective = stage.bring(stage.authorize("corrective"), "verified", stage.workers["anna"])
    second = [*first, *stage.results(corrective)]
    stage.ok(stage.coordinator, SUBMIT, {"artifactHashes": second})
    assert set(stage.mission_row(MISSION).submitted_artifacts) == set(second)
    submissions = [event for event in stage.events if event.kind == "mission.submitted_for_approval"]
    assert [sorted(event.payload["artifactHashes"]) for event in submissions] == [sorted(first), sorted(second)]


@pytest.mark.req("R-7.1-16", "R-7.1-18", "R-7.1-23")
@pytest.mark.parametrize("kind", DECISIONS)
@pytest.mark.parametrize("state", ["active", "approved", "cancelled", "failed"])
def test_nothing_is_decided_outside_awaiting_approval(stage: Stage, kind: str, state: str) -> None:
    if state == "approved":
        stage.approved()
    elif state == "cancelled":
        stage.ok(stage.owner, "mission.cancel", {"reason": "no"})
    elif state == "failed":
        stage.ok(stage.coordinator, "mission.terminate", {"reason": "no"})
    approval = stage.approval(["sha256:" + "0" * 64], decision=DECISIONS[kind])
    refusal = stage.refused(stage.owner, kind, {"approval": approval})
    assert refusal.code is ErrorCode.INVALID_STATE_TRANSITION
    assert stage.mission_row(MISSION).mission.state == state


@pytest.mark.req("R-7.1-16", "R-7.1-18", "R-15.1-21")
@pytest.mark.parametrize("kind", DECISIONS)
@pytest.mark.parametrize("who", ["coordinator", "worker", "other human"])
def test_only_the_owner_decides(stage: Stage, kind: str, who: str) -> None:
    hashes = stage.submitted()
    other = stage.human("other")
    actor = {"coordinator": stage.coordinator, "worker": stage.workers["anna"], "other human": other}[who]
    approval = stage.approval(hashes, decision=DECISIONS[kind])
    refusal = stage.refused(actor, kind, {"approval": approval})
    expected = ErrorCode.GROUP_NOT_FOUND if who == "other human" else ErrorCode.AUTH_FORBIDDEN
    assert refusal.code is expected
    assert stage.mission_row(MISSION).mission.state == "awaiting_approval"


WRONG: dict[str, tuple[dict[str, Any], ErrorCode]] = {
    "another kind": ({"kind": "child_mission"}, ErrorCode.INVALID_COMMAND),
    "another decision": ({"decision": "denied"}, ErrorCode.INVALID_COMMAND),
    "another Group": ({"groupId": "urn:example:group:other"}, ErrorCode.INVALID_COMMAND),
    "another Mission": ({"missionId": "urn:example:mission:other"}, ErrorCode.INVALID_COMMAND),
    "another policy version": ({"acceptancePolicyVersion": "2.0.0"}, ErrorCode.INVALID_COMMAND),
    "a WorkItem": ({"workItemId": "urn:example:work:one"}, ErrorCode.INVALID_COMMAND),
    "another revision": ({"missionRevision": 1}, ErrorCode.REVISION_CONFLICT),
    "another set": ({"artifactHashes": ["sha256:" + "0" * 64]}, ErrorCode.REVISION_CONFLICT),
}


@pytest.mark.req("R-7.3-05", "R-7.3-06")
@pytest.mark.parametrize("kind", DECISIONS)
@pytest.mark.parametrize("name", WRONG)
def test_a_decision_about_anything_else_is_refused(stage: Stage, kind: str, name: str) -> None:
    changes, code = WRONG[name]
    hashes = stage.submitted()
    changes = {"decision": DECISIONS[kind], **changes}
    mission_id = changes.pop("missionId", MISSION)
    document = stage.approval(changes.pop("artifactHashes", hashes), **changes)
    if mission_id != MISSION:
        del document["signature"]
        document = stage.sign(stage.owner, {**document, "missionId": mission_id}, at=document["occurredAt"])
    assert stage.refused(stage.owner, kind, {"approval": document}).code is code
    assert stage.mission_row(MISSION).mission.state == "awaiting_approval"


@pytest.mark.req("R-7.3-06")
@pytest.mark.parametrize("kind", DECISIONS)
def test_an_approval_with_a_hash_more_or_less_is_a_conflict(stage: Stage, kind: str) -> None:
    hashes = stage.submitted()
    more = stage.approval([*hashes, "sha256:" + "0" * 64], decision=DECISIONS[kind])
    assert stage.refused(stage.owner, kind, {"approval": more}).code is ErrorCode.REVISION_CONFLICT


def test_an_approval_has_no_conditions_and_a_new_id(stage: Stage) -> None:
    hashes = stage.submitted()
    conditional = stage.approval(hashes, conditions=["if it rains"])
    assert stage.refused(stage.owner, "mission.approve", {"approval": conditional}).code is ErrorCode.INVALID_COMMAND
    request = stage.approval(hashes, decision="changes_requested", conditions=["make it faster"])
    stage.ok(stage.owner, "mission.request_changes", {"approval": request})
    stage.ok(stage.coordinator, SUBMIT, {"artifactHashes": hashes})
    used = stage.approval(hashes, approvalId=request["approvalId"])
    assert stage.refused(stage.owner, "mission.approve", {"approval": used}).code is ErrorCode.INVALID_COMMAND


@pytest.mark.req("R-7.3-05")
def test_an_approval_of_somebody_else_or_with_a_bad_signature_decides_nothing(stage: Stage) -> None:
    hashes = stage.submitted()
    other = stage.human("other")
    foreign = stage.approval(hashes, signer=other)
    assert stage.refused(stage.owner, "mission.approve", {"approval": foreign}).code is ErrorCode.AUTH_FORBIDDEN
    forged = {**stage.approval(hashes), "comments": "changed afterwards"}
    refusal = stage.refused(stage.owner, "mission.approve", {"approval": forged})
    assert refusal.code is ErrorCode.AUTH_INVALID_SIGNATURE
    unsigned = {name: value for name, value in stage.approval(hashes).items() if name != "signature"}
    assert stage.refused(stage.owner, "mission.approve", {"approval": unsigned}).code is ErrorCode.INVALID_COMMAND
    assert stage.mission_row(MISSION).mission.state == "awaiting_approval"


@pytest.mark.req("R-19-21", "R-15.3-01")
def test_an_expected_revision_is_compared(stage: Stage) -> None:
    approval = stage.approval(stage.submitted())
    refusal = stage.refused(stage.owner, "mission.approve", {"approval": approval}, expectedRevision=1)
    assert refusal.code is ErrorCode.REVISION_CONFLICT
    stage.ok(stage.owner, "mission.approve", {"approval": approval})
    again = stage.approval(approval["artifactHashes"], missionRevision=approval["missionRevision"])
    assert stage.refused(stage.owner, "mission.approve", {"approval": again}).code is ErrorCode.INVALID_STATE_TRANSITION


# --- the root owner and a child's result ------------------------------------------------------------------------------


@pytest.mark.req("R-14-15")
def test_a_child_that_needs_the_root_owner_waits_for_both_decisions() -> None:
    stage = Stage(workers=("anna", "leader"))
    anna, leader = stage.workers["anna"], stage.workers["leader"]
    both = {"finalHumanApproval": True, "highRiskExecutionApproval": True}
    stage.promote(stage.authorize("outer"), leader, approvalPolicy=both)
    hashes = stage.child_submitted(leader, anna)
    mine = stage.approval(hashes, signer=stage.coordinator, mission_id=CHILD, kind="child_mission")
    assert stage.child_refused(stage.coordinator, "mission.approve", {"approval": mine}) is ErrorCode.APPROVAL_REQUIRED
    root = f"{CORE}.root_approval_grant"
    human = stage.approval(hashes, mission_id=CHILD)
    assert stage.child_refused(stage.coordinator, root, {"approval": human}) is ErrorCode.AUTH_FORBIDDEN
    wrong = stage.approval(["sha256:" + "0" * 64], mission_id=CHILD)
    assert stage.child_refused(stage.owner, root, {"approval": wrong}) is ErrorCode.REVISION_CONFLICT
    child = stage.approval(hashes, mission_id=CHILD, kind="child_mission", signer=stage.owner)
    assert stage.child_refused(stage.owner, root, {"approval": child}) is ErrorCode.INVALID_COMMAND
    decision = stage.in_child(stage.owner, root, {"approval": human})
    assert [fact.kind for fact in decision.facts] == [f"{CORE}.root_approval_granted"]
    assert stage.mission_row(CHILD).mission.state == "awaiting_approval"
    stage.in_child(stage.coordinator, "mission.approve", {"approval": mine})
    assert stage.mission_row(CHILD).mission.state == "approved"


@pytest.mark.req("R-14-15")
def test_a_root_approval_does_not_outlive_a_change_request() -> None:
    stage = Stage(workers=("anna", "leader"))
    anna, leader = stage.workers["anna"], stage.workers["leader"]
    both = {"finalHumanApproval": True, "highRiskExecutionApproval": True}
    stage.promote(stage.authorize("outer"), leader, approvalPolicy=both)
    hashes = stage.child_submitted(leader, anna)
    human = stage.approval(hashes, mission_id=CHILD)
    stage.in_child(stage.owner, f"{CORE}.root_approval_grant", {"approval": human})
    back = stage.approval(
        hashes, signer=stage.coordinator, mission_id=CHILD, kind="child_mission", decision="changes_requested"
    )
    stage.in_child(stage.coordinator, "mission.request_changes", {"approval": back})
    stage.in_child(leader, SUBMIT, {"artifactHashes": hashes})
    mine = stage.approval(hashes, signer=stage.coordinator, mission_id=CHILD, kind="child_mission")
    assert stage.child_refused(stage.coordinator, "mission.approve", {"approval": mine}) is ErrorCode.APPROVAL_REQUIRED


# --- budget_amend -----------------------------------------------------------------------------------------------------

AMEND = f"{CORE}.budget_amend"


@pytest.mark.req("R-12-23")
def test_the_owner_raises_and_lowers_the_budget(stage: Stage) -> None:
    revision = stage.mission_row(MISSION).mission.revision
    raised = {"wallClockSecondsLimit": 200_000, "toolCallLimit": 5}
    stage.ok(stage.owner, AMEND, {"budget": raised, "reason": "more to do"})
    row = stage.mission_row(MISSION)
    assert (row.mission.revision, row.mission.budget.tool_call_limit) == (revision + 1, 5)
    assert row.mission.budget.financial_limit is UNSET
    assert stage.account(MISSION).limits == (None, None, 5, None, 200_000, None)
    assert stage.policy_notes[-1].entry.decision == "budget amended"


@pytest.mark.req("R-12-21", "R-19-30")
def test_a_budget_does_not_fall_below_what_is_given_away(stage: Stage) -> None:
    stage.authorize("one", budget={"wallClockSecondsLimit": 600})
    low = {"budget": {"wallClockSecondsLimit": 599}, "reason": "save"}
    assert stage.refused(stage.owner, AMEND, low).code is ErrorCode.BUDGET_EXCEEDED
    stage.ok(stage.owner, AMEND, {"budget": {"wallClockSecondsLimit": 600}, "reason": "save"})


def test_nobody_but_the_owner_of_an_active_mission_amends_its_budget(stage: Stage) -> None:
    payload = {"budget": {"wallClockSecondsLimit": 600}, "reason": "save"}
    assert stage.refused(stage.coordinator, AMEND, payload).code is ErrorCode.AUTH_FORBIDDEN
    refusal = stage.refused(stage.owner, AMEND, payload, expectedRevision=7)
    assert refusal.code is ErrorCode.REVISION_CONFLICT
    stage.submitted()
    assert stage.refused(stage.owner, AMEND, payload).code is ErrorCode.INVALID_STATE_TRANSITION


# --- mission_prioritize -----------------------------------------------------------------------------------------------

PRIORITIZE = f"{CORE}.mission_prioritize"


@pytest.mark.req("R-11.1-08")
def test_the_owner_alone_sets_the_priority_class(stage: Stage) -> None:
    revision = stage.mission_row(MISSION).mission.revision
    payload = {"priority": "high", "reason": "the customer waits"}
    assert stage.refused(stage.coordinator, PRIORITIZE, payload).code is ErrorCode.AUTH_FORBIDDEN
    assert stage.refused(stage.owner, PRIORITIZE, {**payload, "priority": "now"}).code is ErrorCode.INVALID_COMMAND
    assert stage.refused(stage.owner, PRIORITIZE, payload, expectedRevision=7).code is ErrorCode.REVISION_CONFLICT
    assert priority_of(stage.mission_row(MISSION).mission) is None
    stage.ok(stage.owner, PRIORITIZE, payload)
    mission = stage.mission_row(MISSION).mission
    assert (mission.revision, priority_of(mission)) == (revision + 1, "high")
    assert stage.policy_notes[-1].entry.decision == "mission prioritized"
    stage.submitted()
    assert stage.refused(stage.owner, PRIORITIZE, payload).code is ErrorCode.INVALID_STATE_TRANSITION
