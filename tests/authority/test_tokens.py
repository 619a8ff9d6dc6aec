"""Capability and Membership Tokens: what they claim, and everything that ends them."""

from __future__ import annotations

from typing import Any

import msgspec
import pytest
from msgspec import UNSET, convert, structs

from mwnode.authority.policy import Policy
from mwnode.authority.tokens import (
    CapabilityClaims,
    CapabilityRequest,
    Issuer,
    MembershipClaims,
    MembershipRequest,
    issue_capability,
    issue_membership,
    permits,
    read,
    stands,
)
from mwnode.protocol.commands import Usage
from mwnode.protocol.documents import Actor
from mwnode.protocol.errors import ErrorCode, Rejection
from tests.authority.scene import GROUP, RECORD_USAGE, RESOURCE, Scene, later, usage
from tests.authority.test_execution import GRANT, approve

RESOURCES = [{"resource": RESOURCE, "operations": ["read", "write"]}]
ALL_SIX = {
    "currency": "EUR",
    "financialLimit": 2,
    "modelTokenLimit": 10,
    "toolCallLimit": 20,
    "computeSecondsLimit": 30,
    "wallClockSecondsLimit": 40,
    "externalSideEffectLimit": 50,
}


def active(scene: Scene, **contract: Any) -> str:
    anna = scene.workers["anna"]
    item = scene.authorize("item", **{"allowedResources": RESOURCES, **contract})
    scene.bring(item, "queued", anna)
    if contract.get("executionApproval") == "human_required":
        return item
    scene.start(item, anna)
    return item


def ask(scene: Scene, item: str, actor: Actor | None = None, **changes: Any) -> CapabilityClaims | Rejection:
    session = changes.pop("session", None)
    worker = actor or scene.workers["anna"]
    request = {
        "workItemId": item,
        "executionLeaseId": changes.get("executionLeaseId") or scene.lease(item),
        "operations": ["read"],
        "resources": [{"resource": RESOURCE, "operations": ["read"]}],
        **changes,
    }
    epoch = scene.agent_row(worker).session_epoch if session is None and worker.type == "agent" else session or 1
    issuer = Issuer(scene.now, scene.policy, scene.context().new_id)
    return issue_capability(scene.view, issuer, worker, epoch, convert(request, CapabilityRequest))


def granted(scene: Scene, item: str, **changes: Any) -> CapabilityClaims:
    claims = ask(scene, item, **changes)
    assert isinstance(claims, CapabilityClaims), claims
    return claims


def code(scene: Scene, item: str, **changes: Any) -> ErrorCode:
    outcome = ask(scene, item, **changes)
    assert isinstance(outcome, Rejection)
    return outcome.code


# --- issuing ----------------------------------------------------------------------------------------------------------


@pytest.mark.req("R-12-01", "R-12-02", "R-12-10", "R-11.3-10", "R-G-05", "R-12-18")
def test_a_token_is_short_and_bound() -> None:
    scene = Scene()
    anna = scene.workers["anna"]
    item = active(scene)
    claims = granted(scene, item)
    assert (claims.worker_id, claims.session_epoch, claims.work_item_id) == (anna.id, 1, item)
    assert (claims.ownership_epoch, claims.execution_lease_id) == (1, scene.lease(item))
    assert claims.allowed_operations == ("read",)
    assert claims.allowed_tools == ()
    assert claims.expires_at == later(scene, 300)
    assert granted(scene, item, ttlSeconds=10).expires_at == later(scene, 10)
    assert granted(scene, item, ttlSeconds=9999).expires_at == later(scene, 300)
    scene.advance(250)
    assert granted(scene, item).expires_at == later(scene, 50) == claims.execution_lease_expires_at
    wire = msgspec.to_builtins(claims)
    assert {"grantId", "workerId", "executionLeaseExpiresAt", "allowedResources", "budget"} <= set(wire)
    assert read(wire) == claims


@pytest.mark.req("R-12-01", "R-12-11", "R-12-12", "R-G-06", "R-12-08")
def test_who_gets_no_token() -> None:
    scene = Scene(workers=("anna", "bert"))
    anna = scene.workers["anna"]
    queued = scene.bring(scene.authorize("queued", allowedResources=RESOURCES), "queued", anna)
    assert code(scene, queued) is ErrorCode.WORK_LEASE_EXPIRED
    offered = scene.bring(scene.authorize("offered", allowedResources=RESOURCES), "offered", anna)
    assert code(scene, offered) is ErrorCode.AUTH_FORBIDDEN
    item = active(scene)
    assert code(scene, item, actor=scene.workers["bert"]) is ErrorCode.AUTH_FORBIDDEN
    assert code(scene, item, actor=scene.coordinator) is ErrorCode.AUTH_FORBIDDEN
    assert code(scene, item, actor=scene.owner) is ErrorCode.AUTH_FORBIDDEN
    assert code(scene, item, actor=scene.agent("outsider")) is ErrorCode.INVALID_COMMAND
    assert code(scene, "urn:example:work:none", executionLeaseId=scene.lease(item)) is ErrorCode.INVALID_COMMAND
    assert code(scene, item, session=2) is ErrorCode.AUTH_STALE_SESSION
    assert code(scene, item, executionLeaseId="urn:example:lease:none") is ErrorCode.WORK_LEASE_EXPIRED
    assert code(scene, item, operations=["delete"]) is ErrorCode.AUTH_FORBIDDEN
    foreign = [{"resource": "urn:example:other", "operations": ["read"]}]
    assert code(scene, item, resources=foreign) is ErrorCode.AUTH_FORBIDDEN
    wider = [{"resource": RESOURCE, "operations": ["read", "production.deploy"]}]
    assert code(scene, item, resources=wider) is ErrorCode.AUTH_FORBIDDEN
    # From the very instant the lease ends, whether or not the timer has looked.
    scene.advance(300, timers=False)
    assert code(scene, item) is ErrorCode.WORK_LEASE_EXPIRED
    scene.run_timers()
    assert code(scene, item) is ErrorCode.WORK_LEASE_EXPIRED


@pytest.mark.req("R-12-16", "R-12-17")
def test_a_token_waits_for_the_approval_and_ends_with_it() -> None:
    gated = [{"resource": RESOURCE, "operations": ["read", "production.deploy"]}]
    scene = Scene()
    anna = scene.workers["anna"]
    item = active(scene, executionApproval="human_required", allowedResources=gated)
    scene.ok(scene.owner, GRANT, approve(scene, item, expiresAt=later(scene, 100)))
    scene.start(item, anna)
    claims = granted(scene, item)
    assert claims.approval_id == scene.item(item).approval_ids[0]
    assert claims.expires_at == later(scene, 100)
    # The Approval covers reading; deploying needs one of its own.
    assert code(scene, item, operations=["production.deploy"]) is ErrorCode.APPROVAL_REQUIRED
    scene.advance(100)
    assert code(scene, item) is ErrorCode.APPROVAL_REQUIRED


@pytest.mark.req("R-12-16")
def test_an_approval_bounds_resources_and_budget() -> None:
    scene = Scene()
    item = active(scene, executionApproval="human_required", budget={"toolCallLimit": 20})
    narrow = [{"resource": RESOURCE, "operations": ["read"]}]
    limited = approve(
        scene,
        item,
        resources=narrow,
        operations=["read", "write"],
        budget={"toolCallLimit": 4},
        expiresAt=later(scene, 500),
    )
    scene.ok(scene.owner, GRANT, limited)
    scene.start(item, scene.workers["anna"])
    assert code(scene, item, resources=RESOURCES) is ErrorCode.APPROVAL_REQUIRED
    assert granted(scene, item).budget["toolCallLimit"] == 4


@pytest.mark.req("R-12-30", "R-12-09", "R-12-23", "R-19-30")
def test_a_tokens_budget_is_the_least_of_all() -> None:
    scene = Scene(budget={**ALL_SIX, "toolCallLimit": 15})
    anna = scene.workers["anna"]
    item = active(scene, budget={**ALL_SIX, "toolCallLimit": 12, "wallClockSecondsLimit": 35})
    assert granted(scene, item).budget == {**ALL_SIX, "toolCallLimit": 12, "wallClockSecondsLimit": 35}
    scene.ok(anna, RECORD_USAGE, {**scene.three(item), "usageDelta": usage(toolCalls=5)})
    assert granted(scene, item).budget["toolCallLimit"] == 7
    assert granted(scene, item, budget={"toolCallLimit": 2}).budget["toolCallLimit"] == 2
    assert granted(scene, item, budget={"toolCallLimit": 99}).budget["toolCallLimit"] == 7
    scene.ok(anna, RECORD_USAGE, {**scene.three(item), "usageDelta": usage(toolCalls=7)})
    assert code(scene, item) is ErrorCode.BUDGET_EXCEEDED
    assert code(scene, item, budget={"currency": "EUR", "financialLimit": 0.0000001}) is ErrorCode.BUDGET_EXCEEDED


def test_a_budget_without_micro_units_is_refused() -> None:
    scene = Scene()
    item = active(scene)
    fine = {"currency": "EUR", "financialLimit": 0.0000001}
    assert code(scene, item, budget=fine) is ErrorCode.INVALID_COMMAND


# --- use --------------------------------------------------------------------------------------------------------------


@pytest.mark.req("R-12-08", "R-12-09", "R-12-22", "R-12-14")
def test_a_tool_may_do_what_the_token_says_and_no_more() -> None:
    scene = Scene(budget=ALL_SIX)
    item = active(scene, budget=ALL_SIX)
    claims = granted(scene, item)
    assert permits(claims, "read", RESOURCE)
    assert not permits(claims, "write", RESOURCE)
    assert not permits(claims, "read", "urn:example:other")
    full = {
        "financialMicrounits": 2_000_000,
        "modelTokens": 10,
        "toolCalls": 20,
        "computeSeconds": 30,
        "wallClockSeconds": 40,
        "externalActions": 50,
    }
    assert permits(claims, "read", RESOURCE, convert(full, Usage))
    for name, amount in full.items():
        assert not permits(claims, "read", RESOURCE, convert({**full, name: amount + 1}, Usage)), name
    unlimited = structs.replace(claims, budget={})
    assert permits(unlimited, "read", RESOURCE, convert({**full, "toolCalls": 10**9}, Usage))


@pytest.mark.req("R-12-14", "R-12-31")
@pytest.mark.parametrize("ending", ["time", "cancel", "terminate", "checkpoint", "submit", "session", "fail"])
def test_a_token_dies_with_what_it_rests_on(ending: str) -> None:
    scene = Scene()
    anna = scene.workers["anna"]
    item = active(scene)
    claims = granted(scene, item)
    assert stands(scene.view, scene.now, claims)
    if ending == "time":
        scene.advance(300, timers=False)
    elif ending == "cancel":
        scene.cancel(item)
    elif ending == "terminate":
        report = scene.report(item, scene.coordinator)
        payload = {"reason": "r", "evidence": [report]}
        scene.ok(scene.coordinator, "mission.terminate", payload)
    elif ending == "checkpoint":
        scene.ok(anna, "work.checkpoint", {**scene.three(item), "checkpoint": scene.checkpoint()})
    elif ending == "submit":
        scene.hand_in(item, anna)
    elif ending == "session":
        scene.session(anna)
    else:
        scene.fail(item)
    assert not stands(scene.view, scene.now, claims)


@pytest.mark.req("R-12-03", "R-12-04", "R-12-05", "R-12-06", "R-12-07", "R-12-14")
@pytest.mark.parametrize(
    "changes",
    [
        {"worker_id": "urn:example:agent:bert"},
        {"session_epoch": 2},
        {"work_item_id": "urn:example:work:other"},
        {"ownership_epoch": 2},
        {"execution_lease_id": "urn:example:lease:other"},
        {"issued_at": "2031-01-01T00:00:00Z"},
    ],
)
def test_a_token_for_something_else_does_not_stand(changes: dict[str, Any]) -> None:
    scene = Scene(workers=("anna", "bert"))
    item = active(scene)
    scene.bring(scene.authorize("other"), "queued", scene.workers["anna"])
    claims = granted(scene, item)
    assert not stands(scene.view, scene.now, structs.replace(claims, **changes))


@pytest.mark.req("R-11.3-11", "R-11.3-12", "R-12-07")
def test_rotation_and_renewal_leave_the_old_boundary() -> None:
    scene = Scene(Policy(capability_token_lifetime=3600))
    anna = scene.workers["anna"]
    item = active(scene)
    old = granted(scene, item)
    rotated, narrowed = granted(scene, item), granted(scene, item, operations=["read"], resources=[])
    assert len({old.grant_id, rotated.grant_id, narrowed.grant_id}) == 3
    scene.renew(item, anna, 1000)
    assert stands(scene.view, scene.now, old)
    assert granted(scene, item).expires_at == later(scene, 1000)
    scene.advance(300)
    assert not stands(scene.view, scene.now, old)
    assert scene.state(item) == "active"


# --- Membership Tokens ------------------------------------------------------------------------------------------------


def vouch(scene: Scene, actor: Actor, **changes: Any) -> MembershipClaims | Rejection:
    session = changes.pop("session", 1)
    issuer = Issuer(scene.now, scene.policy, scene.context().new_id)
    request = convert({"groupId": GROUP, **changes}, MembershipRequest)
    return issue_membership(scene.view, issuer, actor, session, request)


@pytest.mark.req("R-G-04")
def test_a_membership_token_is_bound_to_its_epochs() -> None:
    scene = Scene()
    anna = scene.workers["anna"]
    claims = vouch(scene, anna)
    assert isinstance(claims, MembershipClaims)
    assert (claims.principal, claims.group_id, claims.roles) == (anna, GROUP, ("worker",))
    assert (claims.membership_epoch, claims.session_epoch) == (1, 1)
    assert claims.expires_at == later(scene, 900)
    assert stands(scene.view, scene.now, claims)
    assert read(msgspec.to_builtins(claims)) == claims
    assert read({"surprise": 1}) is None
    assert read({"workerId": "x"}) is None
    assert not stands(scene.view, scene.now.plus(900), claims)
    for changes in (
        {"membership_epoch": 2},
        {"session_epoch": 2},
        {"roles": ("coordinator",)},
        {"group_id": "urn:example:group:other"},
    ):
        assert not stands(scene.view, scene.now, structs.replace(claims, **changes))
    end = {"principal": {"type": "agent", "id": anna.id}}
    scene.ok(scene.coordinator, "membership.end", end)
    assert not stands(scene.view, scene.now, claims)


@pytest.mark.req("R-G-04", "R-19-15", "R-19-16")
def test_who_is_not_vouched_for() -> None:
    scene = Scene()
    anna = scene.workers["anna"]

    def refusal(actor: Actor, **changes: Any) -> str:
        outcome = vouch(scene, actor, **changes)
        assert isinstance(outcome, Rejection)
        return outcome.code.value

    assert refusal(anna, session=2) == "AUTH_STALE_SESSION"
    assert refusal(scene.owner) == "AUTH_FORBIDDEN"
    assert refusal(scene.agent("outsider")) == "GROUP_NOT_FOUND"
    assert refusal(anna, groupId="urn:example:group:none") == "GROUP_NOT_FOUND"
    scene.card(anna, status="revoked")
    assert refusal(anna) == "AUTH_FORBIDDEN"
    bert = scene.agent("bert")
    item = scene.authorize("item")
    scene.join(bert, provisional=True, contextPackage=scene.context_package(scene.coordinator, item))
    assert refusal(bert) == "MEMBERSHIP_REQUIRED"


@pytest.mark.req("R-12-13")
def test_claims_stand_in_no_event() -> None:
    scene = Scene()
    item = active(scene)
    claims = granted(scene, item)
    assert claims.approval_id is UNSET
    assert all(claims.grant_id.encode() not in msgspec.json.encode(event) for event in scene.events)
