"""Delegation Grants: every field, every check at use (section 9.1)."""

from __future__ import annotations

from typing import Any

import pytest
from msgspec import UNSET

from mwnode.authority.policy import Policy
from mwnode.authority.state import GRANTS, GrantRow
from mwnode.protocol.documents import Actor
from mwnode.protocol.errors import ErrorCode
from mwnode.protocol.events import DelegationGranted
from tests.authority.scene import CAPABILITY, GROUP, MISSION, later, work_id
from tests.authority.staging import Stage

GRANT = "membership.grant_delegation"
GRANT_ID = "urn:example:grant:1"
CEILINGS = {
    "currency": "EUR",
    "financialLimit": 10,
    "modelTokenLimit": 1000,
    "toolCallLimit": 100,
    "computeSecondsLimit": 1000,
    "wallClockSecondsLimit": 1000,
    "externalSideEffectLimit": 10,
}
FULL = dict(CEILINGS)
SMALL = {name: (value if name == "currency" else 1) for name, value in CEILINGS.items()}


@pytest.fixture
def stage() -> Stage:
    return Stage(workers=("anna",))


@pytest.fixture
def dora(stage: Stage) -> Actor:
    return stage.worker("dora", "work_delegate")


@pytest.fixture
def target(stage: Stage) -> str:
    return stage.authorize("target", budget=SMALL)


def bounds(stage: Stage, grantee: Actor, target: str, **changes: Any) -> dict[str, Any]:
    payload = {
        "grantId": GRANT_ID,
        "granteeAgentId": grantee.id,
        "targetWorkItemId": target,
        "allowedCapabilities": [CAPABILITY],
        "budget": CEILINGS,
        "maxDescendantDepth": 2,
        "expiresAt": later(stage, 3600),
        **changes,
    }
    return {name: value for name, value in payload.items() if value is not None}


def give(stage: Stage, grantee: Actor, target: str, **changes: Any) -> None:
    stage.ok(stage.coordinator, GRANT, bounds(stage, grantee, target, **changes))


def row(stage: Stage, grant_id: str = GRANT_ID) -> GrantRow:
    found = stage.view.get(GRANTS, grant_id)
    assert found is not None
    return found


def order(
    stage: Stage, name: str, parent: str | None, grant_id: str | None = GRANT_ID, **contract: Any
) -> dict[str, Any]:
    payload = {
        "workItemId": work_id(name),
        "contract": stage.contract(**{"budget": SMALL, **contract}),
        "parentWorkItemId": parent,
        "delegationGrantId": grant_id,
    }
    return {member: value for member, value in payload.items() if value is not None}


# --- issue ------------------------------------------------------------------------------------------------------------


@pytest.mark.req("R-9.1-04", "R-9.1-18", "R-15.1-29", "R-15.2-17")
def test_a_grant_is_recorded_whole(stage: Stage, dora: Actor, target: str) -> None:
    decision = stage.ok(stage.coordinator, GRANT, bounds(stage, dora, target), expectedRevision=2)
    assert [fact.kind for fact in decision.facts] == ["membership.delegation.granted"]
    payload = decision.facts[0].payload
    assert isinstance(payload, DelegationGranted)
    given = payload.delegation_grant
    assert (given.grant_id, given.grantee_agent_id, given.mission_id, given.group_id) == (
        GRANT_ID,
        dora.id,
        MISSION,
        GROUP,
    )
    assert (given.target_work_item_id, given.max_descendant_depth) == (target, 2)
    assert (given.grantee_membership_epoch, given.coordinator_epoch) == (1, 1)
    assert (given.granted_by.id, given.granted_at) == (stage.coordinator.id, stage.now.text())
    held = stage.member(GROUP, dora).membership
    assert (held.delegation_grants, held.membership_epoch) == ((given,), 1)
    assert row(stage).grant == given


@pytest.mark.req(
    "R-9.1-05",
    "R-9.1-06",
    "R-9.1-09",
    "R-9.1-10",
    "R-9.1-11",
    "R-9.1-12",
    "R-9.1-17",
)
@pytest.mark.parametrize("member", sorted(bounds(Stage(), Actor(type="agent", id="urn:x:y"), "urn:x:z")))
def test_a_grant_that_leaves_something_out_is_refused(stage: Stage, dora: Actor, target: str, member: str) -> None:
    payload = bounds(stage, dora, target, **{member: None})
    assert stage.refused(stage.coordinator, GRANT, payload).code is ErrorCode.INVALID_COMMAND


@pytest.mark.req("R-9.1-11")
@pytest.mark.parametrize("member", sorted(CEILINGS))
def test_a_grant_states_all_six_ceilings_and_the_currency(stage: Stage, dora: Actor, target: str, member: str) -> None:
    budget = {name: value for name, value in CEILINGS.items() if name != member}
    payload = bounds(stage, dora, target, budget=budget)
    assert stage.refused(stage.coordinator, GRANT, payload).code is ErrorCode.INVALID_COMMAND


@pytest.mark.req("R-9.1-05", "R-9.1-10", "R-9.1-17", "R-9.1-24", "R-9.1-28", "R-20-02")
@pytest.mark.parametrize(
    "changes, code",
    [
        ({"allowedCapabilities": []}, ErrorCode.INVALID_COMMAND),
        ({"allowedCapabilities": [{"id": "example.build"}]}, ErrorCode.INVALID_COMMAND),
        ({"granteeAgentId": "urn:example:agent:none"}, ErrorCode.INVALID_COMMAND),
        ({"granteeAgentId": "urn:example:agent:anna"}, ErrorCode.AUTH_FORBIDDEN),
        ({"targetWorkItemId": "urn:example:work:none"}, ErrorCode.INVALID_COMMAND),
        ({"expiresAt": "2030-01-01T00:00:00Z"}, ErrorCode.INVALID_COMMAND),
        ({"expiresAt": "2030-01-31T00:00:01Z"}, ErrorCode.INVALID_COMMAND),
        ({"budget": {**CEILINGS, "currency": "USD"}}, ErrorCode.INVALID_COMMAND),
        ({"budget": {**CEILINGS, "financialLimit": 0.1234567}}, ErrorCode.INVALID_COMMAND),
        ({"budget": {**CEILINGS, "toolCallLimit": 1001}}, ErrorCode.BUDGET_EXCEEDED),
        ({"maxDescendantDepth": 4}, ErrorCode.RATE_LIMITED),
        ({"maxDescendantDepth": -1}, ErrorCode.INVALID_COMMAND),
    ],
    ids=str,
)
def test_a_grant_out_of_bounds_is_refused(
    stage: Stage, dora: Actor, target: str, changes: dict[str, Any], code: ErrorCode
) -> None:
    assert stage.refused(stage.coordinator, GRANT, bounds(stage, dora, target, **changes)).code is code


def test_a_grant_id_is_used_once_and_the_revision_compared(stage: Stage, dora: Actor, target: str) -> None:
    refusal = stage.refused(stage.coordinator, GRANT, bounds(stage, dora, target), expectedRevision=1)
    assert refusal.code is ErrorCode.REVISION_CONFLICT
    give(stage, dora, target, maxDescendantDepth=0)
    assert stage.refused(stage.coordinator, GRANT, bounds(stage, dora, target)).code is ErrorCode.INVALID_COMMAND
    give(stage, dora, target, grantId="urn:example:grant:2")
    grants = stage.member(GROUP, dora).membership.delegation_grants
    assert grants is not UNSET
    assert [grant.grant_id for grant in grants] == [GRANT_ID, "urn:example:grant:2"]


@pytest.mark.req("R-9.1-04", "R-9.1-37")
def test_nobody_but_the_coordinator_issues_grants(stage: Stage, dora: Actor, target: str) -> None:
    give(stage, dora, target)
    other = bounds(stage, dora, target, grantId="urn:example:grant:2")
    for actor in (dora, stage.workers["anna"]):
        assert stage.refused(actor, GRANT, other, coordinatorEpoch=1).code is ErrorCode.AUTH_FORBIDDEN
    before = row(stage)
    successor = stage.agent("successor")
    stage.replace(successor)
    assert stage.refused(stage.coordinator, GRANT, other, coordinatorEpoch=1).code is ErrorCode.AUTH_STALE_COORDINATOR
    assert row(stage) == before


@pytest.mark.req("R-9.1-36")
@pytest.mark.parametrize("state", ["verified", "failed", "cancelled"])
def test_no_grant_is_given_for_what_ended(stage: Stage, dora: Actor, target: str, state: str) -> None:
    stage.bring(target, state, stage.workers["anna"])
    refusal = stage.refused(stage.coordinator, GRANT, bounds(stage, dora, target))
    assert refusal.code is ErrorCode.INVALID_STATE_TRANSITION


# --- use --------------------------------------------------------------------------------------------------------------


@pytest.mark.req("R-9.1-19", "R-9.1-20", "R-9.1-03")
def test_a_grantee_authorizes_and_offers_inside_the_subtree(stage: Stage, dora: Actor, target: str) -> None:
    give(stage, dora, target)
    stage.ok(dora, "work.authorize", order(stage, "child", target))
    stage.ok(dora, "work.authorize", order(stage, "grandchild", work_id("child")))
    for item in (target, work_id("child"), work_id("grandchild")):
        stage.ok(dora, "work.offer", stage.offer_payload(item, stage.workers["anna"], delegationGrantId=GRANT_ID))
    assert row(stage).work_item_ids == (work_id("child"), work_id("grandchild"), target)
    assert stage.item(work_id("grandchild")).delegation_grant_id == GRANT_ID


@pytest.mark.req("R-9.1-01", "R-9.1-02", "R-9.1-03", "R-9.1-38")
def test_without_a_grant_nobody_authors_work(stage: Stage, dora: Actor, target: str) -> None:
    anna = stage.workers["anna"]
    watcher, reviewer = stage.worker("watcher", "observer"), stage.worker("reviewer", "reviewer")
    human = stage.human("helper")
    stage.join(human, "observer")
    for actor in (dora, anna, watcher, reviewer, human):
        for kind, payload in (
            ("work.authorize", order(stage, "child", target, None)),
            ("work.offer", stage.offer_payload(target, anna)),
        ):
            assert stage.refused(actor, kind, payload).code is ErrorCode.AUTH_FORBIDDEN
    unknown = order(stage, "child", target, "urn:example:grant:none")
    assert stage.refused(dora, "work.authorize", unknown).code is ErrorCode.AUTH_FORBIDDEN
    stage.ok(anna, "work.propose", {"proposalId": "urn:x:p", "contract": stage.contract(), "parentWorkItemId": target})


@pytest.mark.req("R-9.1-19", "R-9.1-21", "R-9.1-25")
def test_a_grant_reaches_its_subtree_and_no_deeper(stage: Stage, dora: Actor) -> None:
    top = stage.authorize("top", budget=SMALL)
    target = stage.authorize("target", budget={"wallClockSecondsLimit": 1}, payload={"parentWorkItemId": top})
    give(stage, dora, target, maxDescendantDepth=1)
    anna = stage.workers["anna"]
    tiny = {"budget": {"wallClockSecondsLimit": 0}}
    for parent in (None, top, "urn:example:work:none"):
        refusal = stage.refused(dora, "work.authorize", order(stage, "child", parent, **tiny))
        assert refusal.code in (ErrorCode.AUTH_FORBIDDEN, ErrorCode.INVALID_COMMAND)
    assert stage.refused(dora, "work.offer", stage.offer_payload(top, anna, delegationGrantId=GRANT_ID)).code is (
        ErrorCode.AUTH_FORBIDDEN
    )
    stage.ok(dora, "work.authorize", order(stage, "child", target, **tiny))
    deeper = stage.refused(dora, "work.authorize", order(stage, "grandchild", work_id("child"), **tiny))
    assert (deeper.code, deeper.rule) == (ErrorCode.AUTH_FORBIDDEN, "R-9.1-25")


@pytest.mark.req("R-9.1-26", "R-20-02")
def test_policys_depth_binds_a_grant_too(stage: Stage, dora: Actor, target: str) -> None:
    give(stage, dora, target)
    stage.policy = Policy(delegation_depth=1)
    stage.ok(dora, "work.authorize", order(stage, "child", target))
    refusal = stage.refused(dora, "work.authorize", order(stage, "grandchild", work_id("child")))
    assert refusal.code is ErrorCode.RATE_LIMITED


@pytest.mark.req("R-9.1-22", "R-9.1-23")
@pytest.mark.parametrize(
    "required, fits",
    [
        ({"id": "example.build", "version": "1.2.0"}, True),
        ({"id": "example.build", "version": "1.3.0"}, True),
        ({"id": "example.build", "version": "1.1.9"}, False),
        ({"id": "example.build", "version": "2.0.0"}, False),
        ({"id": "example.other", "version": "1.2.0"}, False),
    ],
    ids=str,
)
def test_a_grant_covers_its_capabilities_from_a_version_on(
    stage: Stage, dora: Actor, target: str, required: dict[str, str], fits: bool
) -> None:
    give(stage, dora, target)
    payload = order(stage, "child", target, requiredCapabilities=[required])
    outcome = stage.code(dora, "work.authorize", payload)
    assert outcome == ("accepted" if fits else "AUTH_FORBIDDEN")


@pytest.mark.req("R-9.1-24", "R-19-30")
@pytest.mark.parametrize("member", sorted(set(CEILINGS) - {"currency"}))
def test_budgets_under_one_grant_add_up(stage: Stage, dora: Actor, member: str) -> None:
    target = stage.authorize("target", budget={**FULL, member: FULL[member]})  # type: ignore[dict-item]
    give(stage, dora, target)
    half = {**SMALL, member: CEILINGS[member] - 1}  # type: ignore[operator]
    stage.ok(dora, "work.authorize", order(stage, "first", target, budget=half))
    for name in ("second", "third"):
        outcome = stage.code(dora, "work.authorize", order(stage, name, target, budget=SMALL))
        assert outcome == ("accepted" if name == "second" else "BUDGET_EXCEEDED")


@pytest.mark.req("R-9.1-24")
def test_an_item_without_a_limit_of_its_own_counts_as_its_ancestry(stage: Stage, dora: Actor, target: str) -> None:
    give(stage, dora, target, budget={**CEILINGS, "toolCallLimit": 1})
    stage.ok(dora, "work.authorize", order(stage, "first", target, budget={"wallClockSecondsLimit": 1}))
    refusal = stage.refused(dora, "work.authorize", order(stage, "second", target, budget={"wallClockSecondsLimit": 0}))
    assert refusal.code is ErrorCode.BUDGET_EXCEEDED


@pytest.mark.req("R-9.1-27", "R-9.1-37")
def test_a_grant_is_its_grantees_alone(stage: Stage, dora: Actor, target: str) -> None:
    give(stage, dora, target)
    other = stage.worker("other", "work_delegate")
    refusal = stage.refused(other, "work.authorize", order(stage, "child", target))
    assert (refusal.code, refusal.rule) == (ErrorCode.AUTH_FORBIDDEN, "R-9.1-27")


@pytest.mark.req("R-9.1-28", "R-9.1-29")
@pytest.mark.parametrize("role", ["worker", "work_delegate"])
def test_a_changed_membership_ends_the_grant(stage: Stage, dora: Actor, target: str, role: str) -> None:
    give(stage, dora, target)
    change = {"principal": {"type": "agent", "id": dora.id}, "role": role, "expectedMembershipEpoch": 1}
    if role == "worker":
        change["scopes"] = ["message.read", "work.delegate"]
    stage.ok(stage.coordinator, "membership.change", change)
    refusal = stage.refused(dora, "work.authorize", order(stage, "child", target))
    assert (refusal.code, refusal.rule) == (
        ErrorCode.AUTH_FORBIDDEN,
        "R-9.1-28" if role == "worker" else "R-9.1-29",
    )


@pytest.mark.req("R-9.1-28")
def test_an_ended_membership_uses_no_grant(stage: Stage, dora: Actor, target: str) -> None:
    give(stage, dora, target)
    stage.ok(stage.coordinator, "membership.end", {"principal": {"type": "agent", "id": dora.id}})
    refusal = stage.refused(dora, "work.authorize", order(stage, "child", target))
    assert refusal.code is ErrorCode.MEMBERSHIP_REQUIRED


@pytest.mark.req("R-9.1-30", "R-9.1-31")
def test_a_grant_is_worth_nothing_in_another_mission(stage: Stage, dora: Actor, target: str) -> None:
    give(stage, dora, target)
    other = "urn:example:group:2"
    stage.found("urn:example:mission:2", other)
    join = {"principal": {"type": "agent", "id": dora.id}, "role": "work_delegate"}
    stage.ok(stage.coordinator, "membership.change", join, groupId=other)
    contract = stage.contract(budget={"wallClockSecondsLimit": 1})
    stage.ok(stage.coordinator, "work.authorize", {"workItemId": work_id("there"), "contract": contract}, groupId=other)
    refusal = stage.refused(dora, "work.authorize", order(stage, "child", work_id("there")), groupId=other)
    assert (refusal.code, refusal.rule) == (ErrorCode.AUTH_FORBIDDEN, "R-9.1-30")


@pytest.mark.req("R-9.1-32", "R-9.1-33")
def test_a_new_coordinator_ends_every_grant(stage: Stage, dora: Actor, target: str) -> None:
    give(stage, dora, target)
    stage.replace(stage.agent("successor"))
    refusal = stage.refused(dora, "work.authorize", order(stage, "child", target))
    assert (refusal.code, refusal.rule) == (ErrorCode.AUTH_FORBIDDEN, "R-9.1-32")


@pytest.mark.req("R-9.1-34")
def test_a_grant_ends_at_its_instant(stage: Stage, dora: Actor, target: str) -> None:
    give(stage, dora, target, expiresAt=later(stage, 60))
    stage.advance(59)
    stage.ok(dora, "work.authorize", order(stage, "child", target))
    stage.advance(1)
    refusal = stage.refused(dora, "work.authorize", order(stage, "second", target))
    assert (refusal.code, refusal.rule) == (ErrorCode.AUTH_FORBIDDEN, "R-9.1-34")


@pytest.mark.req("R-9.1-36")
@pytest.mark.parametrize("state", ["verified", "failed", "cancelled"])
def test_a_grant_dies_with_its_target_and_stays_dead(stage: Stage, dora: Actor, target: str, state: str) -> None:
    give(stage, dora, target)
    anna = stage.workers["anna"]
    stage.bring(target, state, anna)
    assert row(stage).dead
    refusal = stage.refused(dora, "work.authorize", order(stage, "child", target))
    assert (refusal.code, refusal.rule) == (ErrorCode.AUTH_FORBIDDEN, "R-9.1-36")
    if state == "failed":
        stage.offer(target, anna)
        refusal = stage.refused(dora, "work.authorize", order(stage, "child", target))
        assert (refusal.code, refusal.rule) == (ErrorCode.AUTH_FORBIDDEN, "R-9.1-36")


@pytest.mark.req("R-9.1-24")
def test_an_item_belongs_to_one_grant(stage: Stage, dora: Actor, target: str) -> None:
    give(stage, dora, target)
    give(stage, dora, target, grantId="urn:example:grant:2")
    stage.ok(dora, "work.authorize", order(stage, "child", target))
    offer = stage.offer_payload(work_id("child"), stage.workers["anna"], delegationGrantId="urn:example:grant:2")
    assert stage.refused(dora, "work.offer", offer).code is ErrorCode.AUTH_FORBIDDEN


def test_a_grant_and_the_coordinator_lease_are_not_cited_together(stage: Stage, dora: Actor, target: str) -> None:
    give(stage, dora, target)
    refusal = stage.refused(dora, "work.authorize", order(stage, "child", target), coordinatorEpoch=1)
    assert refusal.code is ErrorCode.INVALID_COMMAND
    refusal = stage.refused(stage.coordinator, "work.authorize", order(stage, "child", target), coordinatorEpoch=1)
    assert refusal.code is ErrorCode.INVALID_COMMAND
