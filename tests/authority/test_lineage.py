"""Child Missions: made, bounded, approved, cancelled (section 14)."""

from __future__ import annotations

from typing import Any

import pytest
from msgspec import UNSET

from mwnode.authority.access import may_read_artifact
from mwnode.authority.policy import Policy
from mwnode.authority.state import CONTENTS, MEMBERSHIPS, MISSIONS
from mwnode.protocol.commands import CORE
from mwnode.protocol.errors import ErrorCode
from mwnode.protocol.events import MissionChildCreated, MissionCreated, ResultAccepted
from tests.authority.scene import BUDGET, GROUP, MISSION, PERMISSIONS, RESOURCE, later
from tests.authority.staging import CHILD, CHILD_GROUP, Stage

CREATE = "mission.create_child"


@pytest.fixture
def stage() -> Stage:
    return Stage(workers=("anna", "leader"))


def refused(stage: Stage, item: str, **changes: Any) -> ErrorCode:
    payload = stage.child_payload(item, stage.workers["leader"], **changes)
    code = stage.refused(stage.coordinator, CREATE, payload).code
    assert stage.view.get(MISSIONS, CHILD) is None
    return code


# --- promotion --------------------------------------------------------------------------------------------------------


@pytest.mark.req("R-7.1-11", "R-14-01", "R-14-02", "R-14-03", "R-14-14", "R-15.1-25", "R-15.2-13", "R-10.2-31")
@pytest.mark.parametrize("state", ["open", "offered", "queued", "active", "blocked"])
def test_a_work_item_becomes_a_mission(stage: Stage, state: str) -> None:
    item = stage.bring(stage.authorize("outer"), state, stage.workers["anna"])
    before, revision = stage.item(item), stage.mission_row(MISSION).mission.revision
    decision = stage.promote(item, stage.workers["leader"])
    parent, child = decision.facts
    assert (parent.kind, parent.group_id, parent.work_item_id) == ("mission.child.created", GROUP, item)
    assert (child.kind, child.group_id, child.sequence) == ("mission.created", CHILD_GROUP, 1)
    assert (child.cause.type, child.cause.id) == ("event", parent.event_id)
    assert isinstance(parent.payload, MissionChildCreated)
    assert isinstance(child.payload, MissionCreated)
    assert child.payload.parent_event_id == parent.event_id
    after = stage.item(item)
    assert (after.item.state, after.child_mission_id) == ("blocked", CHILD)
    assert after.item.revision == before.item.revision + 1
    assert after.ownership_epoch == before.ownership_epoch + 1
    assert after.item.owner is not UNSET
    assert after.item.owner.agent_id == stage.coordinator.id
    for lease in (after.ownership_lease, after.execution_lease, after.blocked_lease):
        assert lease is None or lease.state != "active"
    offers = after.item.offers
    assert offers is UNSET or all(offer.status != "pending" for offer in offers)
    row = stage.mission_row(CHILD)
    assert row.mission.mission_owner == stage.coordinator
    assert row.mission.parent is not UNSET
    assert (row.mission.parent.mission_id, row.mission.parent.work_item_id, row.mission.parent.depth) == (
        MISSION,
        item,
        1,
    )
    parent_row = stage.mission_row(MISSION)
    assert (parent_row.children, parent_row.mission.revision) == ((CHILD,), revision + 1)


@pytest.mark.req("R-14-24", "R-8-07")
def test_the_root_owner_is_in_every_descendant(stage: Stage) -> None:
    leader, anna = stage.workers["leader"], stage.workers["anna"]
    stage.promote(stage.authorize("outer"), leader)
    inner = stage.child_item(leader, anna, state="open")
    payload = stage.child_payload(
        inner, anna, missionId="urn:example:mission:grand", groupId="urn:example:group:grand", deadline=later(stage, 60)
    )
    payload["budget"] = {"wallClockSecondsLimit": 1}
    stage.in_child(leader, CREATE, payload)
    for group_id in (CHILD_GROUP, "urn:example:group:grand"):
        held = stage.member(group_id, stage.owner).membership
        assert (held.role, held.state, held.visibility_start_sequence) == ("observer", "active", 1)
        assert {"mission.inspect", "mission.approve"} <= set(held.scopes)
    assert stage.mission_row("urn:example:mission:grand").root_owner == stage.owner
    assert len(stage.view.in_group(MEMBERSHIPS, CHILD_GROUP)) == 4


@pytest.mark.req("R-7.1-12", "R-10.2-32")
@pytest.mark.parametrize("state", ["submitted", "verified", "failed", "cancelled"])
def test_an_item_that_is_through_becomes_no_mission(stage: Stage, state: str) -> None:
    item = stage.bring(stage.authorize("outer"), state, stage.workers["anna"])
    assert refused(stage, item) is ErrorCode.INVALID_STATE_TRANSITION


@pytest.mark.req("R-7.1-12")
def test_only_the_current_parent_coordinator_promotes_its_own_items(stage: Stage) -> None:
    item = stage.authorize("outer")
    assert refused(stage, "urn:example:work:none") is ErrorCode.INVALID_COMMAND
    payload = stage.child_payload(item, stage.workers["leader"])
    anna = stage.workers["anna"]
    assert stage.refused(anna, CREATE, payload, coordinatorEpoch=1).code is ErrorCode.AUTH_FORBIDDEN
    stale = stage.refused(stage.coordinator, CREATE, payload, coordinatorEpoch=2)
    assert stale.code is ErrorCode.AUTH_STALE_COORDINATOR
    missing = {name: value for name, value in payload.items() if name != "parentWorkItemId"}
    assert stage.refused(stage.coordinator, CREATE, missing).code is ErrorCode.INVALID_COMMAND


@pytest.mark.req("R-10.2-32", "R-14-04")
def test_an_item_has_one_running_child(stage: Stage) -> None:
    item = stage.authorize("outer")
    stage.promote(item, stage.workers["leader"])
    again = stage.child_payload(item, stage.workers["leader"], missionId="urn:x:1", groupId="urn:x:2")
    assert stage.refused(stage.coordinator, CREATE, again).code is ErrorCode.INVALID_STATE_TRANSITION


@pytest.mark.req("R-14-04", "R-20-05", "R-2-14")
def test_no_ancestor_becomes_a_child(stage: Stage) -> None:
    leader = stage.workers["leader"]
    stage.promote(stage.authorize("outer"), leader)
    inner = stage.child_item(leader, stage.workers["anna"], state="open")
    payload = stage.child_payload(inner, stage.workers["anna"], missionId=MISSION, groupId=GROUP)
    assert stage.child_refused(leader, CREATE, payload) is ErrorCode.INVALID_COMMAND


def test_owner_and_coordinator_of_a_child_differ(stage: Stage) -> None:
    item = stage.authorize("outer")
    assert refused(stage, item, coordinatorAgentId=stage.coordinator.id) is ErrorCode.INVALID_COMMAND
    assert refused(stage, item, coordinatorAgentId="urn:example:agent:none") is ErrorCode.INVALID_COMMAND


def test_the_parents_revision_is_compared(stage: Stage) -> None:
    item = stage.authorize("outer")
    payload = stage.child_payload(item, stage.workers["leader"])
    refusal = stage.refused(stage.coordinator, CREATE, payload, expectedRevision=1)
    assert refusal.code is ErrorCode.REVISION_CONFLICT
    stage.ok(stage.coordinator, CREATE, payload, expectedRevision=2)


# --- bounds -----------------------------------------------------------------------------------------------------------


@pytest.mark.req("R-14-06")
def test_a_child_ends_no_later_than_its_parents(stage: Stage) -> None:
    limit = later(stage, 20 * 86_400)  # the contract's deadline; the Mission's lies later
    item = stage.authorize("outer")
    assert refused(stage, item, deadline=later(stage, 20 * 86_400 + 1)) is ErrorCode.INVALID_COMMAND
    stage.promote(item, stage.workers["leader"], deadline=limit)


@pytest.mark.req("R-14-06")
def test_a_child_ends_no_later_than_the_mission(stage: Stage) -> None:
    item = stage.authorize("outer", deadline=later(stage, 30 * 86_400))
    assert refused(stage, item, deadline=later(stage, 30 * 86_400 + 1)) is ErrorCode.INVALID_COMMAND
    stage.promote(item, stage.workers["leader"], deadline=later(stage, 30 * 86_400))


@pytest.mark.req("R-14-05", "R-19-30")
@pytest.mark.parametrize(
    "member, limit",
    [("wallClockSecondsLimit", 600), ("toolCallLimit", 1000), ("financialLimit", 100)],
)
def test_a_childs_budget_fits_in_its_parents(stage: Stage, member: str, limit: int) -> None:
    item = stage.authorize("outer")
    budget = {member: limit + 1}
    if member == "financialLimit":
        budget = {"currency": "EUR", member: limit + 0.000001}  # type: ignore[dict-item]
    assert refused(stage, item, budget=budget) is ErrorCode.BUDGET_EXCEEDED
    budget[member] = limit
    stage.promote(item, stage.workers["leader"], budget=budget)
    assert BUDGET["toolCallLimit"] == 1000


@pytest.mark.req("R-14-08", "R-14-09")
@pytest.mark.parametrize(
    "permission",
    [
        {"resource": RESOURCE, "operations": ["read", "delete"]},
        {"resource": "urn:example:other", "operations": ["read"]},
    ],
    ids=str,
)
def test_a_childs_permissions_are_part_of_its_parents(stage: Stage, permission: dict[str, Any]) -> None:
    item = stage.authorize("outer")
    assert refused(stage, item, permissions=[permission]) is ErrorCode.INVALID_COMMAND
    stage.promote(item, stage.workers["leader"], permissions=PERMISSIONS)


@pytest.mark.req("R-14-07")
def test_work_inside_a_child_needs_no_capability_that_its_parent_item_does_not(stage: Stage) -> None:
    leader = stage.workers["leader"]
    stage.promote(stage.authorize("outer", requiredCapabilities=[{"id": "example.build", "version": "1.1.0"}]), leader)
    payload: dict[str, Any] = {"workItemId": "urn:example:work:inner"}
    for capability in ({"id": "example.test", "version": "1.0.0"}, {"id": "example.build", "version": "1.1.1"}):
        contract = stage.contract(
            deadline=later(stage, 60), budget={"wallClockSecondsLimit": 1}, requiredCapabilities=[capability]
        )
        assert stage.child_refused(leader, "work.authorize", {**payload, "contract": contract}) is (
            ErrorCode.AUTH_FORBIDDEN
        )
    contract["requiredCapabilities"] = [{"id": "example.build", "version": "1.1.0"}]
    stage.in_child(leader, "work.authorize", {**payload, "contract": contract})


@pytest.mark.req("R-14-10", "R-14-11", "R-14-12", "R-20-02")
def test_depth_is_a_guardrail_that_an_override_passes(stage: Stage) -> None:
    stage.policy = Policy(delegation_depth=1)
    leader, anna = stage.workers["leader"], stage.workers["anna"]
    stage.promote(stage.authorize("outer"), leader)
    inner = stage.child_item(leader, anna, state="open")
    payload = stage.child_payload(
        inner, anna, missionId="urn:example:mission:grand", groupId="urn:example:group:grand", deadline=later(stage, 60)
    )
    payload["budget"] = {"wallClockSecondsLimit": 1}
    assert stage.child_refused(leader, CREATE, payload) is ErrorCode.RATE_LIMITED
    grant = {
        "grantId": "urn:example:override:1",
        "policyName": "delegation_depth",
        "beneficiary": {"type": "agent", "id": leader.id},
        "targetCommandKind": CREATE,
        "targetActionId": "urn:example:action:deep",
        "reason": "it is that complex",
        "expiresAt": later(stage, 60),
    }
    stage.in_child(stage.coordinator, "policy.grant_cooperation_override", grant)
    stage.in_child(
        leader,
        CREATE,
        payload,
        actionId="urn:example:action:deep",
        cooperationOverrideGrantId="urn:example:override:1",
    )
    assert stage.mission_row("urn:example:mission:grand").mission.parent is not UNSET


# --- results ----------------------------------------------------------------------------------------------------------


@pytest.mark.req("R-14-13", "R-14-14", "R-14-16", "R-10.2-33")
def test_an_approved_child_is_the_result_of_its_parent_item(stage: Stage) -> None:
    leader, anna = stage.workers["leader"], stage.workers["anna"]
    outer = stage.authorize("outer")
    stage.promote(outer, leader)
    hashes = stage.results(stage.child_item(leader, anna))
    submit = {"artifactHashes": hashes}
    # The Parent Coordinator is not the child's: its epoch there is nobody's.
    code = stage.child_refused(stage.coordinator, "mission.submit_for_approval", submit, coordinatorEpoch=1)
    assert code is ErrorCode.AUTH_FORBIDDEN
    stage.in_child(leader, "mission.submit_for_approval", submit)
    approval = stage.approval(
        hashes, signer=stage.coordinator, mission_id=CHILD, kind="child_mission", workItemId=outer
    )
    revision = stage.mission_row(MISSION).mission.revision
    decision = stage.in_child(stage.coordinator, "mission.approve", {"approval": approval})
    approved, accepted = decision.facts
    assert (approved.kind, accepted.kind, accepted.group_id) == ("mission.approved", "work.result.accepted", GROUP)
    assert (accepted.cause.type, accepted.cause.id) == ("event", approved.event_id)
    assert isinstance(accepted.payload, ResultAccepted)
    row = stage.item(outer)
    assert row.item.state == "verified"
    assert row.item.submission is not UNSET
    assert list(row.item.submission.artifact_hashes) == hashes
    assert row.item.submission.evidence_ids == (approval["approvalId"],)
    assert stage.mission_row(MISSION).mission.revision == revision + 1
    content = stage.view.get(CONTENTS, hashes[0])
    assert content is not None
    assert GROUP in content.group_ids
    assert may_read_artifact(stage.view, stage.owner, hashes[0], stage.now)
    stage.ok(stage.coordinator, "mission.submit_for_approval", {"artifactHashes": hashes})


@pytest.mark.req("R-14-14")
def test_a_childs_approval_is_the_parent_coordinators(stage: Stage) -> None:
    leader = stage.workers["leader"]
    stage.promote(stage.authorize("outer"), leader)
    hashes = stage.child_submitted(leader, stage.workers["anna"])
    human = stage.approval(hashes, mission_id=CHILD)
    assert stage.child_refused(stage.owner, "mission.approve", {"approval": human}) is ErrorCode.AUTH_FORBIDDEN
    wrong = stage.approval(
        hashes, signer=stage.coordinator, mission_id=CHILD, kind="child_mission", workItemId="urn:x:1"
    )
    assert stage.child_refused(stage.coordinator, "mission.approve", {"approval": wrong}) is ErrorCode.INVALID_COMMAND


@pytest.mark.req("R-19-27")
def test_a_parent_coordinator_whose_lease_lapsed_decides_nothing_in_the_child(stage: Stage) -> None:
    leader = stage.workers["leader"]
    stage.promote(stage.authorize("outer"), leader)
    hashes = stage.child_submitted(leader, stage.workers["anna"])
    stage.advance(3600)
    approval = stage.approval(hashes, signer=stage.coordinator, mission_id=CHILD, kind="child_mission")
    code = stage.child_refused(stage.coordinator, "mission.approve", {"approval": approval})
    assert code is ErrorCode.WORK_LEASE_EXPIRED
    stage.keep_coordinator()
    stage.in_child(stage.coordinator, "mission.approve", {"approval": approval})


@pytest.mark.req("R-10.2-31", "R-7.1-19")
@pytest.mark.parametrize("how", ["cancel", "fail"])
def test_ending_a_promoted_item_cancels_its_child(stage: Stage, how: str) -> None:
    outer = stage.authorize("outer")
    stage.promote(outer, stage.workers["leader"])
    decision = stage.cancel(outer) if how == "cancel" else stage.fail(outer)
    assert [fact.kind for fact in decision.facts][-1] == "mission.cancelled"
    assert decision.facts[-1].cause.id == decision.facts[0].event_id
    assert stage.mission_row(CHILD).mission.state == "cancelled"


@pytest.mark.req("R-10.2-22", "R-10.2-06")
def test_a_promoted_item_is_neither_unblocked_nor_offered_while_its_child_runs(stage: Stage) -> None:
    outer = stage.authorize("outer")
    stage.promote(outer, stage.workers["leader"])
    unblock = stage.refused(stage.coordinator, "work.unblock", {"workItemId": outer})
    offer = stage.refused(stage.coordinator, "work.offer", stage.offer_payload(outer, stage.workers["anna"]))
    assert {unblock.code, offer.code} == {ErrorCode.INVALID_STATE_TRANSITION}


# --- the Parent Coordinator as owner ----------------------------------------------------------------------------------


@pytest.mark.req("R-14-14", "R-7.1-19")
def test_the_parent_coordinator_owns_the_child_as_a_human_owns_a_root(stage: Stage) -> None:
    leader, anna = stage.workers["leader"], stage.workers["anna"]
    outer = stage.authorize("outer")
    stage.promote(outer, leader)
    member = {"principal": {"type": "agent", "id": anna.id}, "role": "worker"}
    stage.in_child(stage.coordinator, "membership.change", member)
    words = {"messageId": "urn:x:m", "conversationId": f"{CHILD_GROUP}:mission", "content": "how is it going?"}
    stage.in_child(stage.coordinator, "message.post", words)
    assert stage.child_refused(stage.coordinator, "mission.terminate", {"reason": "no"}, coordinatorEpoch=1) is (
        ErrorCode.AUTH_FORBIDDEN
    )
    assert stage.child_refused(leader, "mission.cancel", {"reason": "no"}) is ErrorCode.AUTH_FORBIDDEN
    assert stage.child_refused(stage.owner, "mission.cancel", {"reason": "no"}) is ErrorCode.AUTH_FORBIDDEN
    stage.in_child(stage.coordinator, "mission.cancel", {"reason": "another way"})
    assert stage.mission_row(CHILD).mission.state == "cancelled"
    assert stage.state(outer) == "blocked"
    stage.ok(stage.coordinator, "work.unblock", {"workItemId": outer})
    assert stage.state(outer) == "open"


@pytest.mark.req("R-14-05", "R-12-21")
def test_a_childs_budget_is_amended_within_its_parents(stage: Stage) -> None:
    stage.promote(stage.authorize("outer"), stage.workers["leader"])
    kind = f"{CORE}.budget_amend"
    amend = {"budget": {"wallClockSecondsLimit": 601}, "reason": "more"}
    assert stage.child_refused(stage.coordinator, kind, amend) is ErrorCode.BUDGET_EXCEEDED
    amend["budget"] = {"wallClockSecondsLimit": 600}
    stage.in_child(stage.coordinator, kind, amend)
    assert stage.account(CHILD).limits[4] == 600


@pytest.mark.req("R-14-15")
def test_policy_may_ask_the_root_owner_about_every_child(stage: Stage) -> None:
    stage.policy = Policy(root_approval_of_children=True)
    leader = stage.workers["leader"]
    stage.promote(stage.authorize("outer"), leader)
    hashes = stage.child_submitted(leader, stage.workers["anna"])
    approval = stage.approval(hashes, signer=stage.coordinator, mission_id=CHILD, kind="child_mission")
    code = stage.child_refused(stage.coordinator, "mission.approve", {"approval": approval})
    assert code is ErrorCode.APPROVAL_REQUIRED
