"""Execution: start gates, leases, checkpoints, blocks, approvals, usage, and what a new Session does."""

from __future__ import annotations

from typing import Any

import pytest
from msgspec import UNSET

from mwnode.authority.policy import Policy
from mwnode.authority.table import WORK_ITEM_STATES
from mwnode.protocol.documents import Actor
from mwnode.protocol.errors import ErrorCode
from mwnode.protocol.events import (
    ExecutionLeaseRevoked,
    ResourceUsageRecorded,
    WorkBlocked,
    WorkCheckpointed,
    WorkProgressed,
    WorkStarted,
    WorkUnblocked,
)
from mwnode.protocol.jcs import canonical
from tests.authority.memory import DAY, content_hash
from tests.authority.scene import (
    GROUP,
    MISSION,
    RECORD_USAGE,
    RENEW_EXECUTION,
    RENEW_OWNERSHIP,
    RESOURCE,
    Scene,
    later,
    usage,
    work_id,
)


def start(item: str, epoch: int = 1, **more: Any) -> dict[str, Any]:
    return {"workItemId": item, "ownershipEpoch": epoch, **more}


def active(scene: Scene, name: str = "item", **contract: Any) -> str:
    return scene.bring(scene.authorize(name, **contract), "active", scene.workers["anna"])


def held_kinds(scene: Scene, item: str) -> dict[str, dict[str, Any]]:
    """The six kinds that cite the Execution Lease (R-11.3-08), and usage."""
    anna = scene.workers["anna"]
    three = scene.three(item)
    content = scene.publish(item, anna)
    artifact = {
        "artifact": scene.artifact(item, anna),
        "ownershipEpoch": three["ownershipEpoch"],
        "executionLeaseId": three["executionLeaseId"],
    }
    evidence = [scene.evidence(item, anna, artifactHashes=[content])]
    return {
        RENEW_EXECUTION: {**three, "leaseSeconds": 900},
        "work.checkpoint": {**three, "checkpoint": scene.checkpoint()},
        "work.block": {**three, "checkpoint": scene.checkpoint(), "reason": "r", "requiredResolution": "q"},
        "work.submit": {**three, "artifactHashes": [content], "evidence": evidence},
        "artifact.publish": artifact,
        "work.fail": {**three, "reason": "r", "evidence": [scene.report(item, anna)]},
        RECORD_USAGE: {**three, "usageDelta": usage(toolCalls=1)},
    }


# --- start ------------------------------------------------------------------------------------------------------------


@pytest.mark.req("R-10.2-15", "R-15.1-38", "R-15.2-27", "R-11.3-02", "R-11.3-06")
def test_start_grants_an_execution_lease() -> None:
    scene = Scene()
    anna = scene.workers["anna"]
    item = scene.bring(scene.authorize("item"), "queued", anna)
    decision = scene.ok(anna, "work.start", start(item, executionLeaseSeconds=1200))
    payload = decision.facts[0].payload
    assert isinstance(payload, WorkStarted)
    lease = payload.execution_lease
    assert lease is not UNSET
    assert (lease.work_item_id, lease.holder_agent_id, lease.ownership_epoch, lease.session_epoch) == (
        item,
        anna.id,
        1,
        1,
    )
    assert lease.expires_at == later(scene, 1200)
    # Ownership lasts at least as long as execution, and the Event says so (A36).
    assert payload.ownership_lease is not UNSET
    assert (payload.ownership_lease.expires_at, payload.ownership_lease.renewal_count) == (later(scene, 1200), 1)
    assert (scene.agent_row(anna).queued, scene.agent_row(anna).active) == (0, 1)
    assert scene.agent_row(anna).active_ids == (item,)
    short = scene.bring(scene.authorize("short"), "queued", anna)
    decision = scene.ok(anna, "work.start", start(short))
    assert decision.facts[0].payload.ownership_lease is UNSET  # type: ignore[attr-defined]


def test_lease_lengths_are_cut_to_policy() -> None:
    scene = Scene(Policy(execution_lease_max=100, ownership_lease_max=200, blocked_lease_max=50))
    anna = scene.workers["anna"]
    item = scene.bring(scene.authorize("item"), "offered", anna)
    scene.accept(item, anna, ownershipLeaseSeconds=DAY)
    row = scene.item(item)
    assert row.ownership_lease is not None
    assert row.ownership_lease.expires_at == later(scene, 200)
    scene.start(item, anna, executionLeaseSeconds=DAY)
    scene.block(item, anna, blockedLeaseSeconds=DAY)
    row = scene.item(item)
    assert row.execution_lease is not None
    assert row.blocked_lease is not None
    assert row.blocked_lease.expires_at == later(scene, 50)


@pytest.mark.req("R-10.2-16", "R-19-27", "R-19-14", "R-10.4-03")
def test_what_keeps_a_start_back() -> None:
    scene = Scene(workers=("anna", "bert"))
    anna, bert = scene.workers.values()
    needed = scene.authorize("needed")
    item = scene.bring(scene.authorize("item", dependencyWorkItemIds=[needed]), "queued", anna)
    assert scene.refused(bert, "work.start", start(item)).code is ErrorCode.AUTH_FORBIDDEN
    assert scene.refused(anna, "work.start", start(item)).code is ErrorCode.INVALID_STATE_TRANSITION
    assert scene.refused(anna, "work.start", start(item, 2)).code is ErrorCode.WORK_STALE_OWNERSHIP
    stale = scene.refused(anna, "work.start", start(item), expectedRevision=1)
    assert stale.code is ErrorCode.REVISION_CONFLICT
    scene.bring(needed, "verified", bert)
    scene.advance(900)
    assert scene.refused(anna, "work.start", start(item)).code is ErrorCode.WORK_LEASE_EXPIRED


@pytest.mark.req("R-20-02", "R-19-31")
def test_the_smaller_limit_of_active_work_rules() -> None:
    for policy, slots in ((1, 4), (4, 1)):
        scene = Scene(Policy(active_work_items=policy), workers=())
        anna = scene.worker("anna", max_concurrency=slots)
        scene.bring(scene.authorize("one"), "active", anna)
        two = scene.bring(scene.authorize("two"), "queued", anna)
        assert scene.refused(anna, "work.start", start(two)).code is ErrorCode.RATE_LIMITED


@pytest.mark.req("R-12-23", "R-19-30")
def test_a_spent_limit_pauses_new_execution() -> None:
    scene = Scene()
    anna = scene.workers["anna"]
    item = active(scene, budget={"toolCallLimit": 5, "modelTokenLimit": 0})
    scene.ok(anna, RECORD_USAGE, {**scene.three(item), "usageDelta": usage(toolCalls=5)})
    # What runs may come to its end (F25).
    scene.ok(anna, "work.checkpoint", {**scene.three(item), "checkpoint": scene.checkpoint()})
    assert scene.refused(anna, "work.start", start(item)).code is ErrorCode.BUDGET_EXCEEDED
    scene.advance(901)
    revised = {**scene.contract(budget={"toolCallLimit": 10}), "contractVersion": 2}
    scene.offer(item, anna, contract=revised)
    epoch = scene.accept(item, anna)
    scene.ok(anna, "work.start", start(item, epoch))


# --- the Execution Lease ----------------------------------------------------------------------------------------------


@pytest.mark.req("R-11.3-05", "R-15.1-09", "R-15.2-28", "R-15.3-01")
def test_renewals_keep_the_lease_id() -> None:
    scene = Scene()
    anna = scene.workers["anna"]
    item = active(scene)
    lease = scene.lease(item)
    for count in (1, 2, 3):
        scene.advance(100)
        payload = {**scene.three(item), "leaseSeconds": 1000, "renewalCount": count - 1}
        decision = scene.ok(anna, RENEW_EXECUTION, payload)
        fact = decision.facts[0]
        assert fact.kind == "work.progressed"
        assert isinstance(fact.payload, WorkProgressed)
        moved = fact.payload.execution_lease
        assert moved is not UNSET
        assert (moved.lease_id, moved.renewal_count, moved.last_renewed_at) == (lease, count, scene.now.text())
        assert moved.expires_at == later(scene, 1000)
    conflict = {**scene.three(item), "leaseSeconds": 2000, "renewalCount": 2}
    assert scene.refused(anna, RENEW_EXECUTION, conflict).code is ErrorCode.REVISION_CONFLICT
    shorter = {**scene.three(item), "leaseSeconds": 1000}
    assert scene.refused(anna, RENEW_EXECUTION, shorter).code is ErrorCode.INVALID_COMMAND


def progress_of(scene: Scene, phase: str) -> dict[str, Any]:
    return {
        "currentPhase": phase,
        "completedMilestones": ["build"],
        "nextCheckpoint": "report",
        "blockers": [],
        "updatedCompletionEstimate": later(scene, 60),
        "evidenceIds": [],
    }


def estimate_of(scene: Scene) -> dict[str, Any]:
    return {
        "estimatedStart": scene.now.text(),
        "estimatedCompletion": later(scene, 60),
        "confidence": 0.5,
        "capacityStatus": "available",
        "lastCalculatedAt": scene.now.text(),
    }


@pytest.mark.req("R-11.4-01")
def test_progress_is_recorded_with_a_renewal() -> None:
    scene = Scene()
    anna = scene.workers["anna"]
    item = active(scene)
    progress, estimate = progress_of(scene, "tests"), estimate_of(scene)
    payload = {**scene.three(item), "leaseSeconds": 900, "progress": progress, "scheduleEstimate": estimate}
    scene.ok(anna, RENEW_EXECUTION, payload)
    row = scene.item(item)
    assert row.item.progress is not UNSET
    assert row.item.progress.current_phase == "tests"
    assert row.item.schedule_estimate is not UNSET
    for member in progress:
        broken = {**payload, "progress": {name: value for name, value in progress.items() if name != member}}
        assert scene.refused(anna, RENEW_EXECUTION, broken).code is ErrorCode.INVALID_COMMAND


@pytest.mark.req("R-11.4-01", "R-11.4-05")
def test_progress_lasts_until_there_is_newer() -> None:
    scene = Scene()
    anna = scene.workers["anna"]
    item = active(scene)

    def told() -> tuple[str, bool]:
        document = scene.item(item).item
        assert document.progress is not UNSET
        return document.progress.current_phase, document.schedule_estimate is not UNSET

    first = {"progress": progress_of(scene, "first"), "scheduleEstimate": estimate_of(scene)}
    scene.ok(anna, RENEW_EXECUTION, {**scene.three(item), "leaseSeconds": 900, **first})
    scene.ok(anna, RENEW_EXECUTION, {**scene.three(item), "leaseSeconds": 901})
    assert told() == ("first", True)
    scene.ok(anna, "work.checkpoint", {**scene.three(item), "checkpoint": scene.checkpoint()})
    assert told() == ("first", True)
    scene.start(item, anna)
    second = {"checkpoint": scene.checkpoint(), "progress": progress_of(scene, "second")}
    decision = scene.ok(anna, "work.checkpoint", {**scene.three(item), **second})
    assert decision.facts[0].payload.progress.current_phase == "second"  # type: ignore[attr-defined]
    assert told() == ("second", True)


@pytest.mark.req("R-11.3-08", "R-11.3-09", "R-11.3-16", "R-19-27", "R-10.2-18")
def test_a_lease_that_is_not_the_current_one_is_good_for_nothing() -> None:
    scene = Scene()
    anna = scene.workers["anna"]
    item = active(scene)
    old = scene.three(item)["executionLeaseId"]
    scene.ok(anna, "work.checkpoint", {**scene.three(item), "checkpoint": scene.checkpoint()})
    scene.start(item, anna)
    for kind, payload in held_kinds(scene, item).items():
        for lease in (old, "urn:example:lease:foreign"):
            refusal = scene.refused(anna, kind, {**payload, "executionLeaseId": lease})
            assert refusal.code is ErrorCode.WORK_LEASE_EXPIRED, kind
        missing = {name: value for name, value in payload.items() if name != "executionLeaseId"}
        assert scene.refused(anna, kind, missing).code is ErrorCode.INVALID_COMMAND, kind
    scene.advance(300)
    lease = scene.item(item).execution_lease
    assert lease is not None
    assert lease.state == "expired"
    for kind, payload in held_kinds_expired(scene, item, old).items():
        assert scene.refused(anna, kind, payload).code is ErrorCode.WORK_LEASE_EXPIRED, kind
    assert scene.state(item) == "active"


def held_kinds_expired(scene: Scene, item: str, old: str) -> dict[str, dict[str, Any]]:
    anna = scene.workers["anna"]
    three = scene.three(item)
    assert three["executionLeaseId"] != old
    return {
        RENEW_EXECUTION: {**three, "leaseSeconds": 900},
        "work.checkpoint": {**three, "checkpoint": scene.checkpoint()},
        "work.block": {**three, "checkpoint": scene.checkpoint(), "reason": "r", "requiredResolution": "q"},
        "work.fail": {**three, "reason": "r", "evidence": [scene.report(item, anna)]},
        RECORD_USAGE: {**three, "usageDelta": usage(toolCalls=1)},
    }


@pytest.mark.req("R-11.3-06", "R-19-14", "R-19-28")
def test_nobody_else_uses_a_lease() -> None:
    scene = Scene(workers=("anna", "bert"))
    item = active(scene)
    for kind, payload in held_kinds(scene, item).items():
        refusal = scene.refused(scene.workers["bert"], kind, payload)
        assert refusal.code is ErrorCode.AUTH_FORBIDDEN, kind
        raised = {**payload, "ownershipEpoch": 2}
        assert scene.refused(scene.workers["anna"], kind, raised).code is ErrorCode.WORK_STALE_OWNERSHIP


@pytest.mark.req("R-11.3-02", "R-15.3-01")
def test_the_ownership_lease_is_renewed_by_its_owner() -> None:
    scene = Scene(workers=("anna", "bert"))
    anna = scene.workers["anna"]
    item = scene.bring(scene.authorize("item"), "queued", anna)
    payload = start(item, leaseSeconds=5000)
    assert scene.refused(scene.workers["bert"], RENEW_OWNERSHIP, payload).code is ErrorCode.AUTH_FORBIDDEN
    scene.ok(anna, RENEW_OWNERSHIP, {**payload, "renewalCount": 0})
    lease = scene.item(item).ownership_lease
    assert lease is not None
    assert lease.expires_at == lease.start_by == later(scene, 5000)
    assert lease.renewal_count == 1
    conflict = start(item, leaseSeconds=9000, renewalCount=0)
    assert scene.refused(anna, RENEW_OWNERSHIP, conflict).code is ErrorCode.REVISION_CONFLICT
    assert scene.refused(anna, RENEW_OWNERSHIP, payload).code is ErrorCode.INVALID_COMMAND
    scene.advance(5000)
    assert scene.refused(anna, RENEW_OWNERSHIP, payload).code is ErrorCode.WORK_LEASE_EXPIRED


def test_an_early_start_deadline_does_not_follow_a_renewal() -> None:
    scene = Scene()
    anna = scene.workers["anna"]
    item = scene.bring(scene.authorize("item"), "offered", anna)
    scene.accept(item, anna, startBySeconds=60)
    deadline = later(scene, 60)
    scene.ok(anna, RENEW_OWNERSHIP, start(item, leaseSeconds=5000))
    lease = scene.item(item).ownership_lease
    assert lease is not None
    assert lease.start_by == deadline


# --- checkpoint, block, unblock ---------------------------------------------------------------------------------------


@pytest.mark.req("R-10.2-17", "R-11.3-13", "R-15.1-39", "R-15.2-29")
def test_a_checkpoint_releases_execution_and_keeps_ownership() -> None:
    scene = Scene()
    anna = scene.workers["anna"]
    item = active(scene)
    scene.advance(100)
    saved = scene.checkpoint()
    payload = {**scene.three(item), "checkpoint": saved, "resumeWithinSeconds": 2000}
    decision = scene.ok(anna, "work.checkpoint", payload)
    event = decision.facts[0].payload
    assert isinstance(event, WorkCheckpointed)
    released = event.execution_lease
    assert released is not UNSET
    assert (released.state, released.closed_at, released.closure_reason) == (
        "released",
        scene.now.text(),
        "checkpoint",
    )
    ownership = event.ownership_lease
    assert ownership is not UNSET
    assert ownership.expires_at == ownership.start_by == later(scene, 2000)
    row = scene.item(item)
    assert (row.item.state, row.checkpoints) == ("queued", (row.checkpoint,))
    assert row.checkpoint is not None
    assert row.checkpoint.checkpoint_id == saved["checkpointId"]
    assert scene.start(item, anna) != released.lease_id


def test_a_short_resume_does_not_shorten_ownership() -> None:
    scene = Scene()
    item = active(scene)
    old = scene.item(item).ownership_lease
    payload = {**scene.three(item), "checkpoint": scene.checkpoint(), "resumeWithinSeconds": 10}
    scene.ok(scene.workers["anna"], "work.checkpoint", payload)
    new = scene.item(item).ownership_lease
    assert old is not None
    assert new is not None
    assert new.expires_at == old.expires_at == new.start_by


@pytest.mark.req("R-10.2-19", "R-10.2-20", "R-11.3-14", "R-11.4-03", "R-15.1-40", "R-15.2-30")
def test_a_block_saves_a_checkpoint_and_names_its_resolution() -> None:
    scene = Scene()
    anna = scene.workers["anna"]
    item = active(scene)
    whole = {
        **scene.three(item),
        "reason": "no licence",
        "requiredResolution": "buy it",
        "checkpoint": scene.checkpoint(),
        "blockedLeaseSeconds": 3000,
    }
    for member in ("checkpoint", "requiredResolution", "reason"):
        broken = {name: value for name, value in whole.items() if name != member}
        assert scene.refused(anna, "work.block", broken).code is ErrorCode.INVALID_COMMAND
    decision = scene.ok(anna, "work.block", whole)
    event = decision.facts[0].payload
    assert isinstance(event, WorkBlocked)
    assert event.required_resolution == "buy it"
    assert event.blocked_lease is not UNSET
    assert event.execution_lease is not UNSET
    assert (event.blocked_lease.expires_at, event.execution_lease.state) == (later(scene, 3000), "released")
    row = scene.item(item)
    assert (row.item.state, row.block_reason, row.required_resolution) == ("blocked", "no licence", "buy it")
    assert row.checkpoint is not None
    assert row.checkpoint.checkpoint_id == whole["checkpoint"]["checkpointId"]
    assert row.checkpoints == (row.checkpoint,)
    assert scene.agent_row(anna).active == 0


@pytest.mark.req("R-10.2-21", "R-10.2-22", "R-15.1-41", "R-15.2-31", "R-11.4-05")
def test_unblocking_depends_on_the_owner_being_live() -> None:
    scene = Scene()
    anna = scene.workers["anna"]
    item = active(scene)
    scene.block(item, anna)
    assert scene.refused(anna, "work.unblock", {"workItemId": item}).code is ErrorCode.AUTH_FORBIDDEN
    scene.advance(899)
    decision = scene.ok(scene.coordinator, "work.unblock", {"workItemId": item, "resolution": "bought"})
    event = decision.facts[0].payload
    assert isinstance(event, WorkUnblocked)
    assert (event.state, event.resolution) == ("queued", "bought")
    assert event.blocked_lease is not UNSET
    assert event.ownership_lease is not UNSET
    assert event.blocked_lease.state == "released"
    assert event.ownership_lease.start_by == event.ownership_lease.expires_at
    scene.start(item, anna)
    scene.block(item, anna)
    scene.advance(900)
    scene.ok(scene.coordinator, "work.unblock", {"workItemId": item})
    row = scene.item(item)
    assert (row.item.state, row.item.owner, row.ownership_epoch) == ("open", UNSET, 2)
    assert scene.agent_row(anna).queued == 0
    assert row.block_reason is None


# --- approvals --------------------------------------------------------------------------------------------------------


def approve(scene: Scene, item: str, signer: Actor | None = None, **changes: Any) -> dict[str, Any]:
    """The payload of ``approval.grant_execution``; ``document`` changes members of the Approval."""
    human = signer or scene.owner
    document_changes = changes.pop("document", {})
    row = scene.item(item)
    payload: dict[str, Any] = {
        "ownershipEpoch": max(1, row.ownership_epoch),
        "operations": ["read"],
        "expiresAt": later(scene, 600),
        **changes,
    }
    conditions = [f"operation:{operation}" for operation in payload["operations"]]
    for grant in payload.get("resources", []):
        conditions.append(f"resource:{grant['resource']}#{','.join(grant['operations'])}")
    conditions += [f"expiresAt:{payload['expiresAt']}", f"ownershipEpoch:{payload['ownershipEpoch']}"]
    if "budget" in payload:
        conditions.append(f"budgetHash:{content_hash(canonical(payload['budget']))}")
    document = {
        "approvalId": f"urn:example:approval:{scene.number()}",
        "kind": "work_execution",
        "decision": "approved",
        "missionId": row.item.mission_id,
        "groupId": row.item.group_id,
        "workItemId": item,
        "missionRevision": 1,
        "artifactHashes": [],
        "acceptancePolicyVersion": "1.0.0",
        "approver": {"type": human.type, "id": human.id},
        "comments": "",
        "conditions": conditions,
        "occurredAt": scene.now.text(),
        **document_changes,
    }
    payload["approval"] = scene.sign(human, document, at=document["occurredAt"])
    return payload


GRANT = "approval.grant_execution"


@pytest.mark.req("R-10.2-13", "R-10.2-14", "R-10.2-16", "R-15.1-47", "R-15.2-37", "R-12-17", "R-19-29", "R-G-09")
def test_a_human_approval_opens_the_gate() -> None:
    scene = Scene()
    anna = scene.workers["anna"]
    item = scene.bring(scene.authorize("item", executionApproval="human_required"), "queued", anna)
    assert scene.refused(anna, "work.start", start(item)).code is ErrorCode.APPROVAL_REQUIRED
    before = scene.item(item)
    decision = scene.ok(scene.owner, GRANT, approve(scene, item))
    assert [fact.kind for fact in decision.facts] == ["approval.execution.granted"]
    row = scene.item(item)
    assert (row.item.state, row.item.revision) == ("queued", before.item.revision)
    assert row.execution_lease is None
    assert scene.policy_notes[-1].entry.decision == "execution approved"
    scene.start(item, anna)


@pytest.mark.req("R-12-17", "R-10.2-16")
def test_an_approval_ends_in_time_and_with_its_epoch() -> None:
    scene = Scene()
    anna = scene.workers["anna"]
    item = scene.bring(scene.authorize("item", executionApproval="human_required"), "queued", anna)
    scene.ok(scene.owner, GRANT, approve(scene, item, expiresAt=later(scene, 60)))
    scene.advance(60)
    assert scene.refused(anna, "work.start", start(item)).code is ErrorCode.APPROVAL_REQUIRED
    scene.ok(scene.owner, GRANT, approve(scene, item, expiresAt=later(scene, DAY)))
    scene.advance(900)
    scene.offer(item, anna)
    epoch = scene.accept(item, anna)
    assert scene.refused(anna, "work.start", start(item, epoch)).code is ErrorCode.APPROVAL_REQUIRED


@pytest.mark.req("R-12-15", "R-12-18")
@pytest.mark.parametrize(
    "contract, gated",
    [
        ({"executionApproval": "not_required"}, False),
        ({"executionApproval": "policy_required", "sideEffectRisk": "none"}, False),
        ({"executionApproval": "policy_required", "sideEffectRisk": "reversible"}, False),
        ({"executionApproval": "policy_required", "sideEffectRisk": "external"}, True),
        ({"executionApproval": "human_required", "sideEffectRisk": "none"}, True),
        ({"executionApproval": "human_required", "sideEffectRisk": "destructive"}, True),
        ({"allowedResources": [{"resource": RESOURCE, "operations": ["read", "production.deploy"]}]}, True),
        ({"allowedResources": [{"resource": RESOURCE, "operations": ["read"]}]}, False),
    ],
)
def test_what_waits_for_a_human(contract: dict[str, Any], gated: bool) -> None:
    scene = Scene()
    anna = scene.workers["anna"]
    item = scene.bring(scene.authorize("item", **contract), "queued", anna)
    assert scene.code(anna, "work.start", start(item)) == ("APPROVAL_REQUIRED" if gated else "accepted")


@pytest.mark.req("R-12-15")
@pytest.mark.parametrize(
    "operation", ["payment.send", "production.deploy", "destructive.drop", "data.read", "external.mail"]
)
def test_policy_can_hold_any_operation(operation: str) -> None:
    gates = ("payment.", "production.", "destructive.", "data.", "external.")
    scene = Scene(Policy(approval_gates=gates), workers=())
    permissions = [{"resource": RESOURCE, "operations": [operation]}]
    scene.found("urn:example:mission:2", "urn:example:group:2", permissions=permissions)
    anna = scene.agent("anna")
    there = {"groupId": "urn:example:group:2"}
    join = {"principal": {"type": "agent", "id": anna.id}, "role": "worker"}
    scene.ok(scene.coordinator, "membership.change", join, **there)
    item = work_id("gated")
    contract = scene.contract(allowedResources=permissions)
    scene.ok(scene.coordinator, "work.authorize", {"workItemId": item, "contract": contract}, **there)
    scene.ok(scene.coordinator, "work.offer", scene.offer_payload(item, anna), **there)
    scene.ok(anna, "work.accept_offer", {"workItemId": item}, **there)
    assert scene.refused(anna, "work.start", start(item), **there).code is ErrorCode.APPROVAL_REQUIRED


@pytest.mark.req("R-12-17", "R-19-14", "R-19-19")
def test_approvals_that_open_nothing() -> None:
    scene = Scene()
    anna = scene.workers["anna"]
    resources = [{"resource": RESOURCE, "operations": ["read", "write"]}]
    contract = {"executionApproval": "human_required", "allowedResources": resources}
    item = scene.bring(scene.authorize("item", **contract), "queued", anna)
    other = scene.human("other")
    scene.join(other, "observer")

    def code(**changes: Any) -> str:
        return scene.code(scene.owner, GRANT, approve(scene, item, **changes))

    assert scene.code(anna, GRANT, approve(scene, item)) == "AUTH_FORBIDDEN"
    assert scene.code(other, GRANT, approve(scene, item, other)) == "AUTH_FORBIDDEN"
    assert scene.code(scene.owner, GRANT, approve(scene, item, other)) == "AUTH_FORBIDDEN"
    assert code(ownershipEpoch=2) == "WORK_STALE_OWNERSHIP"
    assert code(operations=["delete"]) == "INVALID_COMMAND"
    assert code(resources=[{"resource": RESOURCE, "operations": ["production.deploy"]}]) == "INVALID_COMMAND"
    assert code(budget={"wallClockSecondsLimit": 601}) == "BUDGET_EXCEEDED"
    assert code(expiresAt=scene.now.text()) == "INVALID_COMMAND"
    for document in (
        {"kind": "mission_final", "artifactHashes": ["sha256:" + "0" * 64]},
        {"decision": "denied"},
        {"missionRevision": 99},
        {"groupId": "urn:example:group:other"},
        {"conditions": ["operation:read"]},
        {"occurredAt": later(scene, 61)},
    ):
        assert code(document=document) == "INVALID_COMMAND", document
    exact = approve(scene, item)
    wider = {**exact, "operations": ["read", "write"]}
    assert scene.code(scene.owner, GRANT, wider) == "INVALID_COMMAND"
    assert scene.code(scene.owner, GRANT, {**exact, "expiresAt": later(scene, 601)}) == "INVALID_COMMAND"
    forged = {**exact, "approval": {**exact["approval"], "comments": "changed"}}
    assert scene.code(scene.owner, GRANT, forged) == "AUTH_INVALID_SIGNATURE"
    assert scene.refused(anna, "work.start", start(item)).code is ErrorCode.APPROVAL_REQUIRED
    good = code(resources=resources, budget={"wallClockSecondsLimit": 600}, operations=["read", "write"])
    assert good == "accepted"
    again = approve(scene, item, document={"approvalId": scene.item(item).approval_ids[0]})
    assert scene.code(scene.owner, GRANT, again) == "INVALID_COMMAND"


# --- usage ------------------------------------------------------------------------------------------------------------


@pytest.mark.req("R-12-26", "R-12-27", "R-12-28", "R-G-07", "R-G-08", "R-15.1-09")
def test_usage_is_charged_to_the_whole_ancestry() -> None:
    scene = Scene()
    anna = scene.workers["anna"]
    root = scene.authorize("root", budget={"toolCallLimit": 100, "currency": "EUR", "financialLimit": 10})
    item = scene.authorize(
        "leaf",
        budget={"toolCallLimit": 50},
        payload={"parentWorkItemId": root},
    )
    scene.bring(item, "active", anna)
    before = scene.item(item).item
    for delta, total in ((7, 7), (5, 12)):
        spent = usage(toolCalls=delta, financialMicrounits=1_500_000)
        decision = scene.ok(anna, RECORD_USAGE, {**scene.three(item), "usageDelta": spent})
        event = decision.facts[0].payload
        assert isinstance(event, ResourceUsageRecorded)
        assert (event.usage_delta.tool_calls, event.cumulative_usage.tool_calls) == (delta, total)
        assert event.remaining_budget["toolCallLimit"] == 50 - total
        for account in (item, root, MISSION):
            assert scene.account(account).used[2] == total
    assert event.remaining_budget == {
        "financialLimit": 7,
        "currency": "EUR",
        "toolCallLimit": 38,
        "wallClockSecondsLimit": 100_000,
    }
    assert scene.item(item).item == before
    zero = {**scene.three(item), "usageDelta": usage()}
    assert scene.refused(anna, RECORD_USAGE, zero).code is ErrorCode.INVALID_COMMAND
    short = {**scene.three(item), "usageDelta": {"toolCalls": 1}}
    assert scene.refused(anna, RECORD_USAGE, short).code is ErrorCode.INVALID_COMMAND


@pytest.mark.req("R-12-29", "R-19-30", "R-7.1-02")
@pytest.mark.parametrize(
    "member, limit, amount",
    [
        ("financialLimit", 0.000005, "financialMicrounits"),
        ("modelTokenLimit", 5, "modelTokens"),
        ("toolCallLimit", 5, "toolCalls"),
        ("computeSecondsLimit", 5, "computeSeconds"),
        ("wallClockSecondsLimit", 5, "wallClockSeconds"),
        ("externalSideEffectLimit", 5, "externalActions"),
    ],
)
@pytest.mark.parametrize("level", ["item", "parent", "mission"])
def test_one_overflow_refuses_everything(member: str, limit: float, amount: str, level: str) -> None:
    tight = {member: limit, **({"currency": "EUR"} if member == "financialLimit" else {})}
    loose = {"wallClockSecondsLimit": 5} if member != "wallClockSecondsLimit" else {"toolCallLimit": 5}
    scene = Scene(budget=tight if level == "mission" else {**tight, member: 100, **loose})
    anna = scene.workers["anna"]
    root = scene.authorize("root", budget=tight if level == "parent" else loose)
    item = scene.authorize("leaf", budget=tight if level == "item" else loose, payload={"parentWorkItemId": root})
    scene.bring(item, "active", anna)
    accounts = [scene.account(name) for name in (item, root, MISSION)]
    payload = {**scene.three(item), "usageDelta": usage(**{amount: 6})}
    assert scene.refused(anna, RECORD_USAGE, payload).code is ErrorCode.BUDGET_EXCEEDED
    assert [scene.account(name) for name in (item, root, MISSION)] == accounts
    scene.ok(anna, RECORD_USAGE, {**scene.three(item), "usageDelta": usage(**{amount: 5})})


@pytest.mark.req("R-12-26", "R-8-05")
def test_a_service_books_what_it_learned_later() -> None:
    scene = Scene()
    anna = scene.workers["anna"]
    item = active(scene)
    three = scene.three(item)
    scene.hand_in(item, anna)
    payload = {**three, "usageDelta": usage(toolCalls=3)}
    assert scene.refused(anna, RECORD_USAGE, payload).code is ErrorCode.INVALID_STATE_TRANSITION
    scene.ok(scene.organization, RECORD_USAGE, payload, groupId=GROUP)
    assert scene.account(item).used[2] == 3
    unknown = {**payload, "executionLeaseId": "urn:example:lease:none"}
    refusal = scene.refused(scene.organization, RECORD_USAGE, unknown, groupId=GROUP)
    assert refusal.code is ErrorCode.WORK_LEASE_EXPIRED
    refusal = scene.refused(scene.organization, RECORD_USAGE, {**payload, "ownershipEpoch": 2}, groupId=GROUP)
    assert refusal.code is ErrorCode.WORK_STALE_OWNERSHIP
    refusal = scene.refused(scene.authority, RECORD_USAGE, payload, groupId=GROUP)
    assert refusal.code is ErrorCode.AUTH_FORBIDDEN


@pytest.mark.req("R-12-26", "R-11.5-28")
@pytest.mark.parametrize("state", WORK_ITEM_STATES)
def test_a_service_books_late_usage_whatever_became_of_the_item(state: str) -> None:
    """What an execution used stays used: any lease that the item ever had can be booked on."""
    scene = Scene(workers=("anna", "bert"))
    anna, bert = scene.workers.values()
    item = active(scene)
    payload = {**scene.three(item), "usageDelta": usage(toolCalls=3)}
    if state in ("blocked", "open"):
        scene.block(item, anna)
        if state == "open":
            scene.advance(1000)
            scene.ok(scene.coordinator, "work.unblock", {"workItemId": item})
    elif state == "queued":
        scene.session(anna)
    elif state == "offered":
        scene.advance(1000)
        scene.offer(item, bert)
    elif state in ("submitted", "verified"):
        scene.hand_in(item, anna)
        if state == "verified":
            scene.accept_result(item)
    elif state in ("failed", "cancelled"):
        getattr(scene, {"failed": "fail", "cancelled": "cancel"}[state])(item)
    assert scene.state(item) == state
    before = scene.item(item).item
    scene.ok(scene.organization, RECORD_USAGE, payload, groupId=GROUP)
    assert (scene.item(item).item, scene.account(item).used[2], scene.account(MISSION).used[2]) == (before, 3, 3)


# --- Sessions ---------------------------------------------------------------------------------------------------------


@pytest.mark.req("R-11.3-17", "R-11.3-22", "R-15.2-04")
def test_a_new_session_returns_active_work_to_the_queue() -> None:
    scene = Scene()
    anna = scene.workers["anna"]
    running, waiting = active(scene, "b"), scene.bring(scene.authorize("a"), "queued", anna)
    second = active(scene, "c")
    old = scene.three(running)
    scene.advance(200)
    decision = scene.session(anna)
    kinds = [fact.kind.rsplit(".", 1)[1] for fact in decision.facts]
    assert kinds == ["session_opened", "work_execution_lease_revoked", "work_execution_lease_revoked"]
    assert [fact.work_item_id for fact in decision.facts[1:]] == [running, second]
    # A revoked lease is a consequence: it names the Event before it, and no Command.
    opened = decision.facts[decision.receipt]
    assert [(fact.cause.type, fact.cause.id, fact.command_hash) for fact in decision.facts[1:]] == [
        ("event", opened.event_id, None)
    ] * 2
    event = decision.facts[1].payload
    assert isinstance(event, ExecutionLeaseRevoked)
    assert (event.execution_lease_id, event.reason, event.session_epoch) == (
        old["executionLeaseId"],
        "session_replaced",
        2,
    )
    assert event.execution_lease is not UNSET
    assert event.ownership_lease is not UNSET
    assert event.execution_lease.state == "revoked"
    assert event.ownership_lease.start_by == event.ownership_lease.expires_at == later(scene, 900)
    row = scene.item(running)
    assert (row.item.state, row.ownership_epoch) == ("queued", old["ownershipEpoch"])
    assert scene.item(waiting).item.revision == 3
    late = {**old, "checkpoint": scene.checkpoint()}
    assert scene.refused(anna, "work.checkpoint", late).code is ErrorCode.INVALID_STATE_TRANSITION
    assert scene.start(running, anna) != old["executionLeaseId"]
    assert scene.refused(anna, "work.checkpoint", late).code is ErrorCode.WORK_LEASE_EXPIRED
    stale = scene.refused(anna, "work.start", start(waiting), sessionEpoch=1)
    assert stale.code is ErrorCode.AUTH_STALE_SESSION


def test_a_long_job_survives_a_restart_within_its_ownership() -> None:
    scene = Scene()
    anna = scene.workers["anna"]
    item = active(scene)
    scene.advance(600)  # the Execution Lease ran out while nobody was connected
    scene.session(anna)
    assert scene.state(item) == "queued"
    scene.start(item, anna)
    scene.advance(1000)  # everything ran out
    scene.session(anna)
    assert scene.state(item) == "active"
    assert scene.refused(anna, "work.checkpoint", {**scene.three(item), "checkpoint": scene.checkpoint()}).code is (
        ErrorCode.WORK_LEASE_EXPIRED
    )


# --- revisions --------------------------------------------------------------------------------------------------------


@pytest.mark.req("R-10.2-43", "R-19-21", "R-15.3-01")
@pytest.mark.parametrize("shift", [-1, 1])
def test_every_kind_compares_the_revision_that_it_states(shift: int) -> None:
    scene = Scene()
    anna, coordinator = scene.workers["anna"], scene.coordinator
    item = active(scene)
    review = {"workItemId": item, "evidence": [scene.review(item, coordinator)]}
    fail = {"workItemId": item, "reason": "r", "evidence": [scene.report(item, coordinator)]}

    def refuse_then_accept(actor: Actor, kind: str, payload: dict[str, Any], *, accept: bool = True) -> None:
        revision = scene.item(item).item.revision
        refusal = scene.refused(actor, kind, payload, expectedRevision=revision + shift)
        assert refusal.code is ErrorCode.REVISION_CONFLICT, kind
        if accept:
            scene.ok(actor, kind, payload, expectedRevision=revision)

    for kind, payload in held_kinds(scene, item).items():
        if kind in (RENEW_EXECUTION, RECORD_USAGE, "artifact.publish"):
            refuse_then_accept(anna, kind, payload)
        else:
            refuse_then_accept(anna, kind, payload, accept=False)
    refuse_then_accept(anna, RENEW_OWNERSHIP, {"workItemId": item, "ownershipEpoch": 1, "leaseSeconds": 5000})
    blocking = {"checkpoint": scene.checkpoint(), "reason": "r", "requiredResolution": "q"}
    refuse_then_accept(anna, "work.block", {**scene.three(item), **blocking})
    refuse_then_accept(coordinator, "work.fail", fail, accept=False)
    refuse_then_accept(coordinator, "work.unblock", {"workItemId": item})
    refuse_then_accept(scene.owner, GRANT, approve(scene, item))
    scene.start(item, anna)
    scene.hand_in(item, anna)
    refuse_then_accept(coordinator, "work.accept_result", review)
    other = scene.bring(scene.authorize("other"), "offered", anna)
    item = other
    refuse_then_accept(anna, "ext.mwnode.core.offer_decline", {"workItemId": other, "reason": "capacity"})
