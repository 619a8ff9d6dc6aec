"""Coordinators: replaced, renewed, reconciled (section 7.2)."""

from __future__ import annotations

from typing import Any

import pytest

from mwnode.authority.policy import Policy
from mwnode.authority.standing import MAY_SEND
from mwnode.authority.state import CONTEXTS, LEASES
from mwnode.protocol.commands import CORE
from mwnode.protocol.documents import Actor
from mwnode.protocol.errors import ErrorCode
from mwnode.protocol.events import CoordinatorAssigned, MembershipChanged, MembershipEnded
from tests.authority.scene import GROUP, MISSION, later
from tests.authority.staging import CHILD, CHILD_GROUP, Stage

ASSIGN = "mission.assign_coordinator"
RENEW = "mission.renew_coordinator"
RECONCILE = f"{CORE}.coordinator_reconcile"


@pytest.fixture
def stage() -> Stage:
    return Stage()


@pytest.fixture
def second(stage: Stage) -> Actor:
    return stage.agent("second")


# --- assignment -------------------------------------------------------------------------------------------------------


@pytest.mark.req("R-7.2-01", "R-7.2-06", "R-7.2-07", "R-15.1-18", "R-15.2-06")
def test_a_replacement_has_a_higher_epoch_and_the_only_lease(stage: Stage, second: Actor) -> None:
    old = stage.mission_row(MISSION).coordinator_lease
    decision = stage.replace(second)
    payload = decision.facts[0].payload
    assert isinstance(payload, CoordinatorAssigned)
    assert (payload.previous_coordinator_id, payload.coordinator_epoch) == (stage.coordinator.id, 2)
    assert payload.previous_coordinator_lease.state == "revoked"
    row = stage.mission_row(MISSION)
    assert (row.mission.coordinator.agent_id, row.mission.coordinator.coordinator_epoch) == (second.id, 2)
    assert row.mission.revision == 1
    coordinators = [row.lease for row in stage.view.all(LEASES) if row.lease.lease_type == "coordinator"]
    assert [lease.holder_agent_id for lease in coordinators if lease.state == "active"] == [second.id]
    assert stage.member(GROUP, stage.coordinator).membership.state == "ended"
    assert stage.member(GROUP, second).membership.role == "coordinator"
    closed = stage.view.get(LEASES, old.lease_id)
    assert closed is not None
    assert closed.lease.state == "revoked"
    third = stage.agent("third")
    stage.replace(third)
    assert stage.mission_row(MISSION).mission.coordinator.coordinator_epoch == 3


@pytest.mark.req("R-7.2-06")
def test_owner_and_organization_replace_a_silent_coordinator_and_nobody_else(stage: Stage, second: Actor) -> None:
    stage.advance(3601)
    payload = {"coordinatorAgentId": second.id}
    for actor in (stage.workers["anna"], stage.coordinator):
        assert stage.refused(actor, ASSIGN, payload).code is ErrorCode.AUTH_FORBIDDEN
    assert stage.refused(stage.authority, ASSIGN, payload, groupId=GROUP).code is ErrorCode.AUTH_FORBIDDEN
    stage.ok(stage.organization, ASSIGN, payload, groupId=GROUP)
    assert stage.mission_row(MISSION).mission.coordinator.agent_id == second.id


@pytest.mark.parametrize(
    "payload, code",
    [
        ({"coordinatorAgentId": "urn:example:agent:coordinator"}, ErrorCode.INVALID_STATE_TRANSITION),
        ({"coordinatorAgentId": "urn:example:agent:nobody"}, ErrorCode.INVALID_COMMAND),
        ({}, ErrorCode.INVALID_COMMAND),
    ],
    ids=str,
)
def test_what_is_no_replacement(stage: Stage, payload: dict[str, Any], code: ErrorCode) -> None:
    assert stage.refused(stage.owner, ASSIGN, payload).code is code


@pytest.mark.req("R-15.3-01")
def test_of_two_replacements_decided_on_one_state_one_wins(stage: Stage, second: Actor) -> None:
    stage.ok(stage.owner, ASSIGN, {"coordinatorAgentId": second.id}, expectedRevision=1)
    assert stage.refused(stage.owner, ASSIGN, {"coordinatorAgentId": second.id}).code is (
        ErrorCode.INVALID_STATE_TRANSITION
    )


@pytest.mark.req("R-7.2-08", "R-7.2-09", "R-19-13")
@pytest.mark.parametrize("kind", sorted(kind for kind, row in MAY_SEND.items() if "C" in row))
def test_a_replaced_coordinator_is_stale_whatever_it_sends(stage: Stage, second: Actor, kind: str) -> None:
    item = stage.authorize("one")
    packages = stage.context_package(stage.coordinator)
    payloads: dict[str, dict[str, Any]] = {
        RENEW: {},
        "mission.submit_for_approval": {"artifactHashes": ["sha256:" + "0" * 64]},
        "mission.create_child": stage.child_payload(item, second),
        "membership.grant_delegation": {
            "grantId": "urn:example:grant:1",
            "granteeAgentId": second.id,
            "targetWorkItemId": item,
            "allowedCapabilities": [{"id": "example.build", "version": "1.0.0"}],
            "budget": {},
            "maxDescendantDepth": 0,
            "expiresAt": later(stage, 60),
        },
        "work.accept_result": {"workItemId": item, "evidence": [stage.review(item, stage.coordinator)]},
        "work.unblock": {"workItemId": item},
        "ext.missionweaveprotocol.core.work_dependency_add": {"workItemId": item, "dependencyId": item},
        "mission.terminate": {"reason": "no"},
        "membership.change": {"principal": {"type": "agent", "id": second.id}, "role": "worker"},
        "membership.end": {"principal": {"type": "agent", "id": second.id}},
        "message.redact": {"amendmentId": "urn:example:m:2", "messageId": "urn:example:m:1", "reason": "no"},
        RECONCILE: {"contextPackage": packages, "workItems": []},
        f"{CORE}.artifact_forward": {"artifactHash": "sha256:" + "0" * 64, "toGroupId": GROUP, "reason": "no"},
        "work.authorize": {"workItemId": "urn:example:work:new", "contract": stage.contract()},
        "work.offer": stage.offer_payload(item, second),
        f"{CORE}.context_package_publish": {"contextPackage": packages},
        "work.fail": {"workItemId": item, "reason": "no", "evidence": [stage.report(item, stage.coordinator)]},
        "work.cancel": {"workItemId": item, "reason": "no"},
    }
    payload = payloads[kind]
    if kind == "membership.grant_delegation":
        payload["budget"] = {"wallClockSecondsLimit": 1}
    stage.replace(second)
    refusal = stage.refused(stage.coordinator, kind, payload, coordinatorEpoch=1)
    assert refusal.code is ErrorCode.AUTH_STALE_COORDINATOR
    assert refusal.details == {"currentCoordinatorEpoch": 2}


def test_a_worker_that_becomes_coordinator_changes_its_role(stage: Stage) -> None:
    anna = stage.workers["anna"]
    epoch = stage.member(GROUP, anna).membership.membership_epoch
    stage.replace(anna)
    membership = stage.member(GROUP, anna).membership
    assert (membership.role, membership.membership_epoch) == ("coordinator", epoch + 1)
    assert membership.visibility_start_sequence == 1


@pytest.mark.req("R-7.2-10")
def test_a_hand_over_package_reaches_the_replacement(stage: Stage, second: Actor) -> None:
    package = stage.context_package(stage.workers["anna"])
    decision = stage.replace(second, contextPackage=package)
    payload = decision.facts[0].payload
    assert isinstance(payload, CoordinatorAssigned)
    assert payload.context_package_id == package["contextPackageId"]
    row = stage.view.get(CONTEXTS, package["contextPackageId"])
    assert row is not None
    assert (row.recipients, row.package_hash) == ((second,), payload.context_package_hash)


@pytest.mark.req("R-7.1-23")
def test_an_ended_mission_gets_no_coordinator(stage: Stage, second: Actor) -> None:
    stage.ok(stage.owner, "mission.cancel", {"reason": "no"})
    refusal = stage.refused(stage.owner, ASSIGN, {"coordinatorAgentId": second.id})
    assert refusal.code is ErrorCode.INVALID_STATE_TRANSITION


# --- children follow their parent's Coordinator -----------------------------------------------------------------------


def test_children_pass_to_the_replacement(stage: Stage, second: Actor) -> None:
    leader = stage.worker("leader")
    stage.promote(stage.authorize("outer"), leader)
    decision = stage.replace(second)
    kinds = [(fact.kind, fact.group_id, fact.cause.type) for fact in decision.facts]
    assert kinds == [
        ("mission.coordinator.assigned", GROUP, "command"),
        ("membership.ended", CHILD_GROUP, "event"),
        ("membership.changed", CHILD_GROUP, "event"),
    ]
    assert {fact.cause.id for fact in decision.facts[1:]} == {decision.facts[0].event_id}
    ended, changed = decision.facts[1].payload, decision.facts[2].payload
    assert isinstance(ended, MembershipEnded)
    assert isinstance(changed, MembershipChanged)
    assert (ended.membership.member, changed.membership.role) == (stage.coordinator, "mission_owner")
    assert stage.mission_row(CHILD).mission.mission_owner == second


def test_the_coordinator_of_a_child_does_not_become_its_owner(stage: Stage) -> None:
    leader = stage.worker("leader")
    stage.promote(stage.authorize("outer"), leader)
    refusal = stage.refused(stage.owner, ASSIGN, {"coordinatorAgentId": leader.id})
    assert refusal.code is ErrorCode.INVALID_COMMAND
    payload = {"coordinatorAgentId": stage.coordinator.id}
    code = stage.child_refused(stage.coordinator, ASSIGN, payload)
    assert code is ErrorCode.INVALID_COMMAND


# --- renewal ----------------------------------------------------------------------------------------------------------


@pytest.mark.req("R-15.1-19", "R-15.2-07")
def test_a_renewal_moves_the_end_and_keeps_epoch_and_lease(stage: Stage) -> None:
    before = stage.mission_row(MISSION).coordinator_lease
    stage.advance(60)
    stage.ok(stage.coordinator, RENEW, {"leaseSeconds": 3600, "renewalCount": 0})
    stage.advance(60)
    stage.ok(stage.coordinator, RENEW, {"leaseSeconds": 3600}, expectedRevision=1)
    row = stage.mission_row(MISSION)
    lease = row.coordinator_lease
    assert (lease.lease_id, lease.renewal_count, lease.expires_at) == (before.lease_id, 2, later(stage, 3600))
    assert (row.mission.coordinator.coordinator_epoch, row.mission.revision) == (1, 1)


@pytest.mark.req("R-15.3-01")
def test_a_renewal_that_compares_wrongly_or_shortens_is_refused(stage: Stage) -> None:
    stage.advance(60)
    assert stage.refused(stage.coordinator, RENEW, {"renewalCount": 1}).code is ErrorCode.REVISION_CONFLICT
    assert stage.refused(stage.coordinator, RENEW, {}, expectedRevision=9).code is ErrorCode.REVISION_CONFLICT
    assert stage.refused(stage.coordinator, RENEW, {"leaseSeconds": 60}).code is ErrorCode.INVALID_COMMAND
    assert stage.refused(stage.coordinator, RENEW, {"leaseSeconds": 0}).code is ErrorCode.INVALID_COMMAND


@pytest.mark.req("R-19-27")
@pytest.mark.parametrize("timers", [True, False])
def test_a_lapsed_lease_is_granted_anew_to_the_same_agent(stage: Stage, timers: bool) -> None:
    before = stage.mission_row(MISSION).coordinator_lease
    stage.advance(3600, timers=timers)
    refusal = stage.refused(
        stage.coordinator, "work.authorize", {"workItemId": "urn:example:w", "contract": stage.contract()}
    )
    assert refusal.code is ErrorCode.WORK_LEASE_EXPIRED
    stage.ok(stage.coordinator, RENEW, {"leaseSeconds": 300, "renewalCount": 0})
    row = stage.mission_row(MISSION)
    assert row.coordinator_lease.lease_id != before.lease_id
    assert (row.coordinator_lease.renewal_count, row.mission.coordinator.coordinator_epoch) == (0, 1)
    assert row.mission.coordinator.lease_id == row.coordinator_lease.lease_id
    old = stage.view.get(LEASES, before.lease_id)
    assert old is not None
    assert (old.lease.state, old.lease.closed_at) == ("expired", before.expires_at)
    stage.authorize("one")


def test_a_replaced_coordinator_does_not_renew(stage: Stage, second: Actor) -> None:
    stage.replace(second)
    refusal = stage.refused(stage.coordinator, RENEW, {}, coordinatorEpoch=1)
    assert refusal.code is ErrorCode.AUTH_STALE_COORDINATOR


# --- reconciliation ---------------------------------------------------------------------------------------------------


@pytest.mark.req("R-7.2-11", "R-7.2-10")
def test_a_replacement_assigns_nothing_before_it_reconciled(stage: Stage, second: Actor) -> None:
    item = stage.authorize("one")
    stage.replace(second)
    authorize = {"workItemId": "urn:example:work:new", "contract": stage.contract()}
    offer = stage.offer_payload(item, stage.workers["anna"])
    for kind, payload in (("work.authorize", authorize), ("work.offer", offer)):
        refusal = stage.refused(second, kind, payload)
        assert (refusal.code, refusal.rule) == (ErrorCode.APPROVAL_REQUIRED, "R-7.2-11")
    stage.reconcile(second)
    assert stage.mission_row(MISSION).reconciled_epoch == 2
    stage.ok(second, "work.offer", offer)
    stage.ok(second, "work.authorize", authorize)
    package = {"contextPackage": stage.context_package(second), "workItems": []}
    assert stage.refused(second, RECONCILE, package).code is ErrorCode.INVALID_STATE_TRANSITION


@pytest.mark.req("R-7.2-11")
def test_policy_may_waive_reconciliation(stage: Stage, second: Actor) -> None:
    stage.policy = Policy(reconcile_required=False)
    item = stage.authorize("one")
    stage.replace(second)
    stage.ok(second, "work.offer", stage.offer_payload(item, stage.workers["anna"]))


@pytest.mark.req("R-7.2-11", "R-19-21")
def test_reconciliation_knows_every_open_item_at_its_revision_and_the_head(stage: Stage, second: Actor) -> None:
    item = stage.authorize("one")
    old = stage.context_package(stage.coordinator)
    stage.replace(second)
    revision = stage.item(item).item.revision
    known = [{"workItemId": item, "revision": revision}]
    package = stage.context_package(second)
    cases: list[tuple[dict[str, Any], ErrorCode]] = [
        ({"contextPackage": package, "workItems": []}, ErrorCode.REVISION_CONFLICT),
        (
            {"contextPackage": package, "workItems": [{"workItemId": item, "revision": revision + 1}]},
            ErrorCode.REVISION_CONFLICT,
        ),
        ({"contextPackage": old, "workItems": known}, ErrorCode.REVISION_CONFLICT),
        (
            {"contextPackage": package, "workItems": [{"workItemId": "urn:example:none", "revision": 1}]},
            ErrorCode.INVALID_COMMAND,
        ),
    ]
    for payload, code in cases:
        assert stage.refused(second, RECONCILE, payload).code is code
    stage.ok(second, RECONCILE, {"contextPackage": package, "workItems": known})


def test_settled_items_need_not_be_named_but_may_be(stage: Stage, second: Actor) -> None:
    failed = stage.bring(stage.authorize("failed"), "failed", stage.workers["anna"])
    stage.bring(stage.authorize("cancelled"), "cancelled", stage.workers["anna"])
    stage.replace(second)
    entry = {"workItemId": failed, "revision": stage.item(failed).item.revision}
    stage.ok(second, RECONCILE, {"contextPackage": stage.context_package(second), "workItems": [entry]})
