"""How Missions begin: root Missions and follow-ups (sections 7.1 and 14)."""

from __future__ import annotations

from typing import Any

import msgspec
import pytest
from msgspec import UNSET

from mwnode.authority.policy import Policy
from mwnode.authority.state import ACCOUNTS, AGENTS, GROUPS, MEMBERSHIPS, MISSIONS
from mwnode.protocol.errors import ErrorCode
from mwnode.protocol.identifiers import CORE_EXTENSION
from tests.authority.scene import GROUP, MISSION, PERMISSIONS, later
from tests.authority.staging import Stage

OTHER = {"missionId": "urn:example:mission:2", "groupId": "urn:example:group:2"}


@pytest.fixture
def scene() -> Stage:
    return Stage()


def create(scene: Stage, **changes: Any) -> dict[str, Any]:
    payload = scene.mission_payload(OTHER["missionId"], OTHER["groupId"])
    payload.update(changes)
    return {name: value for name, value in payload.items() if value is not None}


# --- mission.create ---------------------------------------------------------------------------------------------------


@pytest.mark.req("R-7.1-04", "R-7.1-05", "R-7.1-07", "R-15.1-17", "R-15.2-05", "R-4-01")
def test_a_mission_begins_with_its_group_conversation_members_and_lease(scene: Stage) -> None:
    decision = scene.ok(scene.owner, "mission.create", create(scene), groupId=OTHER["groupId"])

    assert [fact.kind for fact in decision.facts] == ["mission.created"]
    fact = decision.facts[0]
    assert (fact.sequence, fact.group_id, fact.actor) == (1, OTHER["groupId"], scene.owner)
    row = scene.mission_row(OTHER["missionId"])
    assert (row.mission.state, row.mission.revision, row.mission.coordinator.coordinator_epoch) == ("active", 1, 1)
    assert row.mission.mission_owner == scene.owner
    group = scene.view.get(GROUPS, OTHER["groupId"])
    assert group is not None
    assert group.group.main_conversation_id == f"{OTHER['groupId']}:mission"
    members = [held.membership for held in scene.view.in_group(MEMBERSHIPS, OTHER["groupId"])]
    assert {(m.member.id, m.role, m.state, m.membership_epoch, m.visibility_start_sequence) for m in members} == {
        (scene.owner.id, "mission_owner", "active", 1, 1),
        (scene.coordinator.id, "coordinator", "active", 1, 1),
    }
    assert row.coordinator_lease.state == "active"
    assert row.coordinator_lease.lease_id == row.mission.coordinator.lease_id
    assert scene.view.get(ACCOUNTS, OTHER["missionId"]) is not None


@pytest.mark.req("R-7.1-03", "R-7.1-08", "R-2-14")
@pytest.mark.parametrize(
    "changes, path",
    [
        ({"missionId": MISSION}, None),
        ({"coordinatorAgentId": "urn:example:agent:nobody"}, "/payload/coordinatorAgentId"),
        ({"deadline": "2029-12-31T23:59:59Z"}, "/payload/deadline"),
        ({"deadline": "2030-01-01T00:00:00Z"}, "/payload/deadline"),
        ({"groupId": "urn:example:group:3"}, "/payload/groupId"),
        (
            {"approvalPolicy": {"finalHumanApproval": False, "highRiskExecutionApproval": True}},
            "/payload/approvalPolicy/finalHumanApproval",
        ),
        ({"coordinatorAgentId": None}, "/payload"),
        ({"definitionOfDone": []}, None),
        ({"budget": None}, None),
        ({"budget": {"currency": "EUR", "financialLimit": 0.1234567}}, None),
        ({"followUpToMissionId": MISSION}, None),
    ],
    ids=str,
)
def test_a_mission_that_lacks_something_is_not_begun(scene: Stage, changes: dict[str, Any], path: str | None) -> None:
    refusal = scene.refused(scene.owner, "mission.create", create(scene, **changes), groupId=OTHER["groupId"])

    assert refusal.code is ErrorCode.INVALID_COMMAND
    if path is not None:
        assert refusal.details is not None
        assert refusal.details["path"] == path
    assert scene.view.get(MISSIONS, OTHER["missionId"]) is None


@pytest.mark.req("R-7.1-08", "R-2-14")
def test_identifiers_in_use_are_refused(scene: Stage) -> None:
    payload = {**create(scene), "groupId": GROUP}
    assert scene.refused(scene.owner, "mission.create", payload, groupId=GROUP).code is ErrorCode.INVALID_COMMAND
    item = scene.authorize("one")
    payload = create(scene, missionId=item)
    refusal = scene.refused(scene.owner, "mission.create", payload, groupId=OTHER["groupId"])
    assert refusal.code is ErrorCode.INVALID_COMMAND


def test_the_alias_of_the_coordinator_is_taken_and_null_for_a_follow_up(scene: Stage) -> None:
    payload = create(scene, coordinatorAgentId=None)
    payload |= {"coordinatorId": scene.coordinator.id, "followUpOfMissionId": None}
    scene.ok(scene.owner, "mission.create", payload, groupId=OTHER["groupId"])


def test_policy_names_who_may_own_a_mission() -> None:
    scene = Stage()
    scene.policy = Policy(mission_owners=("urn:example:human:somebody",))
    refusal = scene.refused(scene.owner, "mission.create", create(scene), groupId=OTHER["groupId"])
    assert refusal.code is ErrorCode.AUTH_FORBIDDEN
    scene.policy = Policy(mission_owners=(scene.owner.id,))
    scene.ok(scene.owner, "mission.create", create(scene), groupId=OTHER["groupId"])


def test_an_expected_revision_of_what_does_not_exist_is_zero(scene: Stage) -> None:
    refusal = scene.refused(scene.owner, "mission.create", create(scene), groupId=OTHER["groupId"], expectedRevision=1)
    assert refusal.code is ErrorCode.REVISION_CONFLICT
    scene.ok(scene.owner, "mission.create", create(scene), groupId=OTHER["groupId"], expectedRevision=0)


def test_a_revoked_card_cannot_coordinate(scene: Stage) -> None:
    agent = scene.agent("gone")
    scene.card(agent, status="revoked")
    payload = create(scene, coordinatorAgentId=agent.id)
    refusal = scene.refused(scene.owner, "mission.create", payload, groupId=OTHER["groupId"])
    assert refusal.code is ErrorCode.INVALID_COMMAND


def test_the_lease_is_cut_to_what_policy_allows(scene: Stage) -> None:
    scene.policy = Policy(coordinator_lease_max=60)
    scene.ok(scene.owner, "mission.create", create(scene), groupId=OTHER["groupId"])
    assert scene.mission_row(OTHER["missionId"]).coordinator_lease.expires_at == later(scene, 60)


def test_a_coordinator_that_never_connected_gets_session_epoch_one(scene: Stage) -> None:
    actor = scene._principal("agent", "fresh")
    scene.card(actor)
    assert scene.agent_row(actor).session_epoch == 0
    payload = create(scene, coordinatorAgentId=actor.id)
    scene.ok(scene.owner, "mission.create", payload, groupId=OTHER["groupId"])
    assert scene.mission_row(OTHER["missionId"]).coordinator_lease.session_epoch == 1


def test_title_permissions_and_plan_hash_travel_in_our_extension(scene: Stage) -> None:
    plan = f"sha256:{'a' * 64}"
    extension = {CORE_EXTENSION: {"version": "1.0.0", "critical": False, "data": {"planHash": plan}}}
    payload = create(scene, title="Release")
    decision = scene.ok(scene.owner, "mission.create", payload, groupId=OTHER["groupId"], extensions=extension)
    row = scene.mission_row(OTHER["missionId"])
    assert row.title == "Release"
    assert msgspec.to_builtins(row.permissions)[0]["resource"] == PERMISSIONS[0]["resource"]
    assert row.mission.extensions is not UNSET
    assert row.mission.extensions[CORE_EXTENSION].data["planHash"] == plan
    assert decision.facts[0].extensions is not None


@pytest.mark.req("R-G-10")
def test_every_group_has_a_policy_log_from_its_first_event(scene: Stage) -> None:
    entries = scene.view.policy_log(GROUP)
    assert [entry.decision for entry in entries] == ["policy adopted"]
    assert entries[0].details["policyVersion"] == "1.0.0"


# --- mission.create_follow_up -----------------------------------------------------------------------------------------


@pytest.mark.req("R-7.1-09", "R-7.1-25", "R-15.1-26", "R-15.2-14")
def test_an_approved_mission_is_followed_up(scene: Stage) -> None:
    scene.approved()
    before = scene.mission_row(MISSION)
    payload = create(scene, followUpToMissionId=MISSION)
    decision = scene.ok(scene.owner, "mission.create_follow_up", payload, groupId=OTHER["groupId"])
    assert [fact.kind for fact in decision.facts] == ["mission.follow_up.created"]
    row = scene.mission_row(OTHER["missionId"])
    assert (row.mission.state, row.mission.follow_up_to_mission_id) == ("active", MISSION)
    assert scene.mission_row(MISSION) == before


@pytest.mark.req("R-7.1-10")
def test_only_an_approved_mission_of_the_same_human_is_followed_up(scene: Stage) -> None:
    payload = create(scene, followUpToMissionId=MISSION)
    kind = "mission.create_follow_up"
    assert (
        scene.refused(scene.owner, kind, payload, groupId=OTHER["groupId"]).code is ErrorCode.INVALID_STATE_TRANSITION
    )
    unknown = create(scene, followUpToMissionId="urn:example:mission:none")
    assert scene.refused(scene.owner, kind, unknown, groupId=OTHER["groupId"]).code is ErrorCode.INVALID_COMMAND
    scene.approved()
    stranger = scene.human("stranger")
    assert scene.refused(stranger, kind, payload, groupId=OTHER["groupId"]).code is ErrorCode.AUTH_FORBIDDEN


@pytest.mark.req("R-7.1-10")
@pytest.mark.parametrize("end", ["cancelled", "failed"])
def test_a_mission_that_ended_otherwise_is_not_followed_up(scene: Stage, end: str) -> None:
    if end == "cancelled":
        scene.ok(scene.owner, "mission.cancel", {"reason": "no"})
    else:
        scene.ok(scene.coordinator, "mission.terminate", {"reason": "no"})
    payload = create(scene, followUpToMissionId=MISSION)
    refusal = scene.refused(scene.owner, "mission.create_follow_up", payload, groupId=OTHER["groupId"])
    assert refusal.code is ErrorCode.INVALID_STATE_TRANSITION


def revocation(scene: Stage, approval_id: str, **changes: Any) -> dict[str, Any]:
    return scene.approval(
        [], approvalId="urn:example:approval:revoked", decision="revoked", revokesApprovalId=approval_id, **changes
    )


@pytest.mark.req("R-7.1-24", "R-7.1-26")
def test_a_revocation_is_a_new_record_and_erases_nothing(scene: Stage) -> None:
    approval_id = scene.approved()
    original = scene.approval_row(approval_id)
    payload = create(scene, followUpToMissionId=MISSION, revocation=revocation(scene, approval_id))
    scene.ok(scene.owner, "mission.create_follow_up", payload, groupId=OTHER["groupId"])
    assert scene.approval_row(approval_id) == original
    assert scene.approval_row("urn:example:approval:revoked").approval.decision == "revoked"
    assert scene.mission_row(MISSION).mission.state == "approved"


@pytest.mark.req("R-7.1-26")
@pytest.mark.parametrize(
    "changes",
    [
        {"revokesApprovalId": "urn:example:approval:other"},
        {"missionId": "urn:example:mission:other"},
        {"groupId": "urn:example:group:other"},
    ],
    ids=str,
)
def test_a_revocation_names_exactly_the_approval(scene: Stage, changes: dict[str, Any]) -> None:
    approval_id = scene.approved()
    document = (
        revocation(scene, approval_id, **changes)
        if "revokesApprovalId" not in changes
        else scene.approval([], approvalId="urn:example:approval:revoked", decision="revoked", **changes)
    )
    payload = create(scene, followUpToMissionId=MISSION, revocation=document)
    refusal = scene.refused(scene.owner, "mission.create_follow_up", payload, groupId=OTHER["groupId"])
    assert refusal.code is ErrorCode.INVALID_COMMAND


@pytest.mark.req("R-6.4-81")
def test_a_revocation_with_a_bad_signature_is_refused(scene: Stage) -> None:
    approval_id = scene.approved()
    document = revocation(scene, approval_id)
    document["comments"] = "changed afterwards"
    payload = create(scene, followUpToMissionId=MISSION, revocation=document)
    refusal = scene.refused(scene.owner, "mission.create_follow_up", payload, groupId=OTHER["groupId"])
    assert refusal.code is ErrorCode.AUTH_INVALID_SIGNATURE


def test_somebody_elses_revocation_is_refused(scene: Stage) -> None:
    approval_id = scene.approved()
    other = scene.human("other")
    document = scene.approval(
        [],
        signer=other,
        approvalId="urn:example:approval:revoked",
        decision="revoked",
        revokesApprovalId=approval_id,
    )
    payload = create(scene, followUpToMissionId=MISSION, revocation=document)
    refusal = scene.refused(scene.owner, "mission.create_follow_up", payload, groupId=OTHER["groupId"])
    assert refusal.code is ErrorCode.AUTH_FORBIDDEN


def test_agents_and_unregistered_humans_begin_nothing(scene: Stage) -> None:
    assert scene.view.get(AGENTS, scene.coordinator.id) is not None
    stranger = scene._principal("human", "unregistered")
    refusal = scene.refused(stranger, "mission.create", create(scene), groupId=OTHER["groupId"])
    assert refusal.code is ErrorCode.AUTH_FORBIDDEN
