"""Single decisions, each under its number, that no other file is about."""

from __future__ import annotations

from typing import Any

import pytest
from msgspec import UNSET

from mwnode.protocol.commands import CORE, EXT
from mwnode.protocol.errors import ErrorCode
from mwnode.protocol.events import CoordinatorAssigned, OfferAccepted, OfferCreated, WorkUnblocked
from mwnode.protocol.instants import parse
from tests.authority.scene import GROUP, MISSION, RECORD_USAGE, Scene, criterion, later, usage
from tests.authority.staging import CHILD, CHILD_GROUP, Stage
from tests.authority.test_execution import GRANT, approve
from tests.authority.test_organization_archival import snapshot

HASH = "sha256:" + "0" * 64


# --- A44: the Group's clock -------------------------------------------------------------------------------------------


@pytest.mark.req("R-11.3-02")
def test_a_clock_that_steps_back_stands_still_for_the_group() -> None:
    """Events and leases run on one clock, which never goes back (decision A44)."""
    scene = Scene()
    anna = scene.workers["anna"]
    item = scene.authorize("item")
    before = scene.now.text()
    scene.now = scene.now.plus(-3600)
    offered = scene.offer(item, anna).facts[0]
    assert isinstance(offered.payload, OfferCreated)
    assert offered.occurred_at == before
    assert offered.payload.work_item.offers is not UNSET
    assert offered.payload.work_item.offers[0].expires_at == parse(before).plus(300).text()
    accepted = scene.ok(anna, "work.accept_offer", {"workItemId": item}).facts[0]
    assert isinstance(accepted.payload, OfferAccepted)
    lease = accepted.payload.ownership_lease
    assert lease is not UNSET
    assert (lease.issued_at, lease.starts_at) == (before, before)
    assert lease.expires_at == parse(before).plus(900).text()
    scene.start(item, anna)
    scene.now = parse(before).plus(10)
    assert scene.renew(item, anna).facts[0].occurred_at == scene.now.text()


# --- F32, R-15.1-02: the place of a Command ---------------------------------------------------------------------------

IN_A_GROUP: dict[str, dict[str, Any]] = {
    f"{CORE}.event_tombstone": {"eventId": "urn:example:event:1", "policyReason": "the law"},
    f"{CORE}.knowledge_publish": {"artifactHash": HASH, "classification": "internal", "reason": "useful"},
    f"{EXT}.core.group_archive": {"snapshotHash": HASH},
    RECORD_USAGE: {
        "workItemId": "urn:example:work:item",
        "ownershipEpoch": 1,
        "executionLeaseId": "urn:example:lease:1",
        "usageDelta": usage(toolCalls=1),
    },
}


@pytest.mark.req("R-15.1-02")
@pytest.mark.parametrize("kind", IN_A_GROUP)
def test_a_service_names_the_group_that_a_kind_is_about(kind: str) -> None:
    scene = Scene()
    refusal = scene.refused(scene.organization, kind, IN_A_GROUP[kind])
    assert refusal.code is ErrorCode.INVALID_COMMAND
    assert refusal.details == {"path": "/groupId"}
    named = scene.refused(scene.organization, kind, IN_A_GROUP[kind], groupId=GROUP)
    assert named.details != {"path": "/groupId"}
    unknown = scene.refused(scene.organization, kind, IN_A_GROUP[kind], groupId="urn:example:group:none")
    assert unknown.code is ErrorCode.GROUP_NOT_FOUND


@pytest.mark.req("R-15.1-02")
def test_registry_kinds_have_no_group() -> None:
    """Decision F32."""
    scene = Scene()
    payload = {"keyId": scene.keys[scene.owner.id].key_id, "validUntil": later(scene, 100)}
    kind = f"{CORE}.key_restrict"
    refusal = scene.refused(scene.organization, kind, payload, groupId=GROUP)
    assert (refusal.code, refusal.details) == (ErrorCode.INVALID_COMMAND, {"path": "/groupId"})


@pytest.mark.req("R-8-05")
def test_which_service_may_send_a_kind_comes_before_the_state() -> None:
    """Role before state (decision A8), for services too."""
    stage = Stage()
    stage.approved()
    stage.ok(stage.organization, f"{EXT}.core.group_archive", {"snapshot": snapshot(stage)}, groupId=GROUP)
    wrong = stage.refused(stage.authority, "mission.cancel", {"reason": "no"}, groupId=GROUP)
    assert wrong.code is ErrorCode.AUTH_FORBIDDEN
    late = stage.refused(stage.organization, "mission.cancel", {"reason": "no"}, groupId=GROUP)
    assert late.code is ErrorCode.INVALID_STATE_TRANSITION


# --- A25: the aggregate of expectedRevision ---------------------------------------------------------------------------


@pytest.mark.req("R-19-21", "R-15.3-01")
def test_an_archival_is_compared_with_the_missions_revision() -> None:
    stage = Stage()
    stage.approved()
    kind, payload = f"{EXT}.core.group_archive", {"snapshot": snapshot(stage)}
    revision = stage.mission_row(MISSION).mission.revision
    refusal = stage.refused(stage.organization, kind, payload, groupId=GROUP, expectedRevision=revision + 1)
    assert refusal.code is ErrorCode.REVISION_CONFLICT
    stage.ok(stage.organization, kind, payload, groupId=GROUP, expectedRevision=revision)


# --- D67: a Coordinator Epoch where none is asked for -----------------------------------------------------------------


@pytest.mark.req("R-15.1-10")
@pytest.mark.parametrize("epoch", [1, 7])
def test_a_coordinator_epoch_on_a_workers_command_is_not_looked_at(epoch: int) -> None:
    scene = Scene()
    anna = scene.workers["anna"]
    item = scene.bring(scene.authorize("item"), "queued", anna)
    payload = {"workItemId": item, "ownershipEpoch": 1}
    assert scene.code(anna, "work.start", payload, coordinatorEpoch=epoch) == "accepted"


@pytest.mark.req("R-15.1-10", "R-19-13", "R-19-14")
def test_a_missing_coordinator_epoch_is_stale_for_the_coordinator_only() -> None:
    """Decisions D66 and F34."""
    scene = Scene()
    anna = scene.workers["anna"]
    payload = {"workItemId": "urn:example:work:new", "contract": scene.contract()}
    by_coordinator = scene.refused(scene.coordinator, "work.authorize", payload, coordinatorEpoch=None)
    assert by_coordinator.code is ErrorCode.AUTH_STALE_COORDINATOR
    assert scene.refused(anna, "work.authorize", payload).code is ErrorCode.AUTH_FORBIDDEN
    for epoch in (2, 9):
        stale = scene.refused(scene.coordinator, "work.authorize", payload, coordinatorEpoch=epoch)
        assert stale.code is ErrorCode.AUTH_STALE_COORDINATOR  # above the current is stale too (decision D38)


@pytest.mark.req("R-19-27", "R-7.2-05")
def test_a_lapsed_coordinator_lease_is_a_lease_and_is_renewed_by_its_holder() -> None:
    """Decisions D39 and F24."""
    scene = Scene()
    scene.advance(3601)
    payload = {"workItemId": "urn:example:work:new", "contract": scene.contract()}
    assert scene.refused(scene.coordinator, "work.authorize", payload).code is ErrorCode.WORK_LEASE_EXPIRED
    scene.keep_coordinator()
    scene.ok(scene.coordinator, "work.authorize", payload)
    assert scene.mission_row(MISSION).mission.coordinator.coordinator_epoch == 1


# --- A26, A31, D13, F10, F26: Memberships -----------------------------------------------------------------------------


@pytest.mark.req("R-15.3-01", "R-8-04", "R-19-16")
def test_memberships_are_compared_by_their_epoch() -> None:
    scene = Scene()
    anna = scene.workers["anna"]
    principal = {"type": "agent", "id": anna.id}
    change = {"principal": principal, "role": "reviewer"}
    for expected in ({}, {"expectedMembershipEpoch": 0}, {"expectedMembershipEpoch": 2}):
        refusal = scene.refused(scene.coordinator, "membership.change", {**change, **expected})
        assert refusal.code is ErrorCode.REVISION_CONFLICT, expected
    scene.ok(scene.coordinator, "membership.change", {**change, "expectedMembershipEpoch": 1})
    end = {"principal": principal}
    wrong = scene.refused(scene.coordinator, "membership.end", {**end, "expectedMembershipEpoch": 1})
    assert wrong.code is ErrorCode.REVISION_CONFLICT
    scene.ok(scene.coordinator, "membership.end", end)  # compares nothing (decision F26)
    said = {"messageId": "urn:example:message:1", "conversationId": f"{GROUP}:mission", "content": "still here"}
    for epoch in (1, 2, 3):  # a former Member is told so, whatever epoch it states (decision A31)
        assert scene.refused(anna, "message.post", said, membershipEpoch=epoch).code is ErrorCode.MEMBERSHIP_REQUIRED
    assert scene.refused(scene.coordinator, "membership.change", change).code is ErrorCode.REVISION_CONFLICT
    scene.ok(scene.coordinator, "membership.change", {**change, "expectedMembershipEpoch": 3})
    assert scene.member(GROUP, anna).membership.membership_epoch == 4


@pytest.mark.req("R-10.2-01", "R-9-12")
def test_observers_speak_and_propose_and_do_no_more() -> None:
    """Decision F2; scopes bind (decision D10)."""
    scene = Scene()
    guest = scene.worker("guest", "observer")
    said = {"messageId": "urn:example:message:1", "conversationId": f"{GROUP}:mission", "content": "why?"}
    scene.ok(guest, "message.post", said)
    scene.ok(guest, "work.propose", {"proposalId": "urn:example:proposal:1", "contract": scene.contract()})
    item = scene.authorize("item")
    offer = scene.refused(scene.coordinator, "work.offer", scene.offer_payload(item, guest))
    assert offer.code is ErrorCode.AUTH_FORBIDDEN
    member = {"principal": {"type": "agent", "id": guest.id}, "role": "worker", "scopes": ["message.read"]}
    scene.ok(scene.coordinator, "membership.change", {**member, "expectedMembershipEpoch": 1})
    silent = scene.refused(guest, "message.post", {**said, "messageId": "urn:example:message:2"})
    assert silent.code is ErrorCode.AUTH_FORBIDDEN


# --- A42, D64: what a signature may say about revisions and criteria --------------------------------------------------


@pytest.mark.req("R-12-17")
@pytest.mark.parametrize("ago", [0, 1, 3])
def test_an_execution_approval_may_name_any_revision_that_was(ago: int) -> None:
    scene = Scene()
    anna = scene.workers["anna"]
    item = scene.bring(scene.authorize("item", executionApproval="human_required"), "queued", anna)
    for name in ("one", "two", "three"):
        scene.authorize(name)
    revision = scene.mission_row(MISSION).mission.revision - ago
    scene.ok(scene.owner, GRANT, approve(scene, item, document={"missionRevision": revision, "artifactHashes": []}))
    scene.start(item, anna)


@pytest.mark.req("R-10.2-28")
def test_a_failure_report_names_some_of_the_criteria() -> None:
    scene = Scene()
    criteria = [criterion("one"), criterion("two")]
    item = scene.authorize("item", acceptanceCriteria=criteria)

    def failing(*names: str) -> dict[str, Any]:
        report = scene.report(item, scene.coordinator, criterionIds=list(names))
        return {"workItemId": item, "reason": "no", "evidence": [report]}

    assert scene.refused(scene.coordinator, "work.fail", failing("three")).code is ErrorCode.INVALID_COMMAND
    scene.ok(scene.coordinator, "work.fail", failing("two"))


# --- A33, D29, D30: leases at the edges -------------------------------------------------------------------------------


@pytest.mark.req("R-10.2-21", "R-10.2-22")
@pytest.mark.parametrize("end", ["cancel", "terminate"])
def test_an_item_is_unblocked_once_its_child_has_ended(end: str) -> None:
    stage = Stage(workers=("anna", "leader"))
    leader = stage.workers["leader"]
    item = stage.authorize("outer")
    stage.promote(item, leader)
    unblock = {"workItemId": item}
    for kind, payload in (("work.unblock", unblock), ("work.offer", stage.offer_payload(item, leader))):
        assert stage.refused(stage.coordinator, kind, payload).code is ErrorCode.INVALID_STATE_TRANSITION
    if end == "cancel":
        stage.in_child(stage.coordinator, "mission.cancel", {"reason": "no"})
    else:
        about = {"missionId": CHILD, "groupId": CHILD_GROUP, "subject": {"type": "mission", "id": CHILD}}
        report = stage.report(item, leader, **about)
        stage.in_child(leader, "mission.terminate", {"reason": "no", "evidence": [report]})
    fact = stage.ok(stage.coordinator, "work.unblock", unblock).facts[0]
    assert isinstance(fact.payload, WorkUnblocked)
    assert (fact.payload.state, fact.payload.cleared) == ("open", ("owner",))
    assert (stage.state(item), stage.item(item).item.owner) == ("open", UNSET)


@pytest.mark.req("R-10.2-21", "R-11.3-14")
@pytest.mark.parametrize("blocked_for, lasts", [(100, 900), (2000, 2000)])
def test_an_unblocked_owner_has_the_rest_of_the_longer_lease(blocked_for: int, lasts: int) -> None:
    scene = Scene()
    anna = scene.workers["anna"]
    item = scene.bring(scene.authorize("item"), "active", anna)
    scene.block(item, anna, blockedLeaseSeconds=blocked_for)
    until = later(scene, lasts)
    scene.advance(99)
    scene.ok(scene.coordinator, "work.unblock", {"workItemId": item})
    lease = scene.item(item).ownership_lease
    assert lease is not None
    assert lease.expires_at == lease.start_by == until


@pytest.mark.req("R-19-27", "R-11.5-01")
def test_who_starts_too_late_has_lost_the_item() -> None:
    scene = Scene(workers=("anna", "bert"))
    anna, bert = scene.workers.values()
    item = scene.authorize("item")
    scene.offer(item, anna)
    scene.accept(item, anna, startBySeconds=60)
    scene.advance(59, timers=False)
    still = scene.refused(scene.coordinator, "work.offer", scene.offer_payload(item, bert))
    assert still.code is ErrorCode.INVALID_STATE_TRANSITION
    scene.advance(1, timers=False)
    start = {"workItemId": item, "ownershipEpoch": 1}
    assert scene.refused(anna, "work.start", start).code is ErrorCode.WORK_LEASE_EXPIRED
    scene.offer(item, bert)
    assert scene.refused(anna, "work.start", start).code is ErrorCode.WORK_STALE_OWNERSHIP


@pytest.mark.req("R-11.3-16")
def test_timers_and_policy_name_what_they_follow_from() -> None:
    """Decision D27: a timer's cause is the lease, policy's is its name."""
    scene = Scene()
    item = scene.bring(scene.authorize("item"), "active", scene.workers["anna"])
    lease = scene.lease(item)
    scene.advance(301)
    facts = [fact for fact in scene.facts if fact.kind == f"{CORE}.lease_expired"]
    assert [(fact.cause.type, fact.cause.id, fact.actor) for fact in facts] == [("timer", lease, scene.authority)]
    assert facts[0].command_hash is None


# --- D7, D22, D31, D42, D48, D58, D62: what a payload may say ---------------------------------------------------------


@pytest.mark.req("R-18-04", "R-19-23")
def test_an_unknown_kind_is_an_unknown_extension() -> None:
    scene = Scene()
    refusal = scene.refused(scene.workers["anna"], "ext.example.profile.thing", {})
    assert refusal.code is ErrorCode.UNKNOWN_CRITICAL_EXTENSION


@pytest.mark.req("R-18-03", "R-21-03")
def test_unpinned_data_is_relayed_unless_it_is_critical() -> None:
    scene = Scene()
    said = {"messageId": "urn:example:message:1", "conversationId": f"{GROUP}:mission", "content": "hello"}
    data = {"version": "1.0.0", "critical": True, "data": {"x": [1.5, "é"]}}
    uri = "urn:example:profile"
    refusal = scene.refused(scene.owner, "message.post", said, extensions={uri: data})
    assert refusal.code is ErrorCode.UNKNOWN_CRITICAL_EXTENSION
    scene.ok(scene.owner, "message.post", said, extensions={uri: {**data, "critical": False}})
    relayed = scene.events[-1].extensions
    assert relayed is not UNSET
    assert (relayed[uri].critical, relayed[uri].data) == (False, data["data"])


@pytest.mark.req("R-10.3-05")
def test_there_is_no_work_without_exclusive_ownership() -> None:
    scene = Scene()
    payload = {"workItemId": "urn:example:work:new", "contract": scene.contract(), "exclusive": False}
    refusal = scene.refused(scene.coordinator, "work.authorize", payload)
    assert (refusal.code, refusal.details) == (ErrorCode.INVALID_COMMAND, {"path": "/payload/exclusive"})
    assert "exclusive" in refusal.message


def test_the_reference_clients_null_is_taken() -> None:
    """Decision D42: ``null`` of that one name, and nothing else under it."""
    scene = Scene()
    payload = scene.mission_payload("urn:example:mission:2", "urn:example:group:2")
    for value in ("urn:example:mission:1", 0):
        wrong = scene.refused(
            scene.owner,
            "mission.create",
            {**payload, "followUpOfMissionId": value},
            groupId="urn:example:group:2",
        )
        assert wrong.code is ErrorCode.INVALID_COMMAND
    scene.ok(scene.owner, "mission.create", {**payload, "followUpOfMissionId": None}, groupId="urn:example:group:2")


@pytest.mark.req("R-9.1-40")
@pytest.mark.parametrize("kind", ["correct", "retract", "redact"])
def test_an_amendment_is_not_amended(kind: str) -> None:
    """Decision D48."""
    scene = Scene()
    first = {"messageId": "urn:example:message:1", "conversationId": f"{GROUP}:mission", "content": "hello"}
    scene.ok(scene.owner, "message.post", first)
    amendment = {"messageId": first["messageId"], "amendmentId": "urn:example:message:2", "reason": "no"}
    scene.ok(scene.owner, "message.retract", amendment)
    again = {**amendment, "messageId": "urn:example:message:2", "amendmentId": "urn:example:message:3"}
    if kind == "correct":
        again["replacementContent"] = "good bye"
    assert scene.refused(scene.owner, f"message.{kind}", again).code is ErrorCode.INVALID_COMMAND


@pytest.mark.req("R-7.3-04", "R-19-21")
def test_both_stated_revisions_of_a_submission_are_compared() -> None:
    """Decision D58."""
    stage = Stage()
    item = stage.bring(stage.authorize("one"), "verified", stage.workers["anna"])
    revision = stage.mission_row(MISSION).mission.revision
    payload = {"artifactHashes": stage.results(item), "missionRevision": revision}
    kind = "mission.submit_for_approval"
    for stated, expected in ((revision - 1, revision), (revision, revision - 1), (revision + 1, revision)):
        wrong = {**payload, "missionRevision": stated}
        refusal = stage.refused(stage.coordinator, kind, wrong, expectedRevision=expected)
        assert refusal.code is ErrorCode.REVISION_CONFLICT
    stage.ok(stage.coordinator, kind, payload, expectedRevision=revision)
    assert stage.mission_row(MISSION).mission.revision == revision


@pytest.mark.req("R-9-08")
def test_references_need_not_exist() -> None:
    """Decision D62."""
    scene = Scene()
    said = {
        "messageId": "urn:example:message:1",
        "conversationId": f"{GROUP}:mission",
        "content": [{"type": "text", "text": "see there"}],
        "references": ["urn:example:message:none"],
    }
    scene.ok(scene.owner, "message.post", said)


# --- F9: a replaced Coordinator's lease -------------------------------------------------------------------------------


@pytest.mark.req("R-7.2-06", "R-15.1-18")
def test_an_appointment_tells_of_the_lease_that_it_ends() -> None:
    stage = Stage(workers=("heir",))
    former = stage.mission_row(MISSION).coordinator_lease
    event = stage.replace(stage.workers["heir"]).facts[0].payload
    assert isinstance(event, CoordinatorAssigned)
    ended, lease = event.previous_coordinator_lease, event.coordinator_lease
    assert (ended.lease_id, ended.state, ended.closed_at) == (former.lease_id, "revoked", stage.now.text())
    assert (lease.state, lease.coordinator_epoch, lease.holder_agent_id) == ("active", 2, stage.workers["heir"].id)
