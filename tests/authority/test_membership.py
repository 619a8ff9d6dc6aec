"""Memberships: granted, changed, ended, idle (section 8)."""

from __future__ import annotations

from typing import Any

import pytest
from msgspec import UNSET

from mwnode.authority.decide import decide_due
from mwnode.authority.policy import Policy
from mwnode.authority.request import Decision
from mwnode.authority.standing import DEFAULT_SCOPES
from mwnode.authority.state import CONTEXTS, MEMBERSHIPS, membership_key
from mwnode.protocol.documents import Actor
from mwnode.protocol.errors import ErrorCode
from mwnode.protocol.events import MembershipChanged
from mwnode.protocol.instants import Instant
from tests.authority.scene import DAY, GROUP, MISSION, later
from tests.authority.staging import CHILD_GROUP, Stage

CHANGE, END = "membership.change", "membership.end"


@pytest.fixture
def stage() -> Stage:
    return Stage()


@pytest.fixture
def ben(stage: Stage) -> Actor:
    return stage.agent("ben")


def member(actor: Actor, role: str | None = "worker", **changes: Any) -> dict[str, Any]:
    payload: dict[str, Any] = {"principal": {"type": actor.type, "id": actor.id}, **changes}
    if role is not None:
        payload["role"] = role
    return payload


# --- change -----------------------------------------------------------------------------------------------------------


@pytest.mark.req("R-8-01", "R-8-02", "R-8-08", "R-15.1-27", "R-15.2-15")
@pytest.mark.parametrize("role", ["worker", "reviewer", "observer", "work_delegate"])
def test_a_new_member_starts_at_epoch_one_with_its_roles_scopes(stage: Stage, ben: Actor, role: str) -> None:
    head = stage.view.head(GROUP)
    assert stage.view.get(MEMBERSHIPS, membership_key(GROUP, ben)) is None
    decision = stage.ok(stage.coordinator, CHANGE, member(ben, role))
    held = stage.member(GROUP, ben).membership
    assert (held.role, held.state, held.membership_epoch, held.scopes) == (role, "active", 1, DEFAULT_SCOPES[role])  # type: ignore[index]
    assert held.visibility_start_sequence == head + 1
    fact = decision.facts[0]
    assert isinstance(fact.payload, MembershipChanged)
    assert fact.payload.membership == held
    assert fact.aggregate_revision == stage.mission_row(MISSION).mission.revision


@pytest.mark.req("R-8-04", "R-15.3-01", "R-15.1-27")
def test_a_change_states_the_epoch_and_raises_it(stage: Stage, ben: Actor) -> None:
    stage.join(ben)
    assert stage.refused(stage.coordinator, CHANGE, member(ben, "reviewer")).code is ErrorCode.REVISION_CONFLICT
    wrong = member(ben, "reviewer", expectedMembershipEpoch=2)
    assert stage.refused(stage.coordinator, CHANGE, wrong).code is ErrorCode.REVISION_CONFLICT
    right = member(ben, "reviewer", expectedMembershipEpoch=1)
    stage.ok(stage.coordinator, CHANGE, right)
    assert stage.member(GROUP, ben).membership.membership_epoch == 2
    assert stage.refused(stage.coordinator, CHANGE, right).code is ErrorCode.REVISION_CONFLICT
    refusal = stage.refused(
        ben,
        "message.post",
        {"messageId": "urn:x:m", "conversationId": f"{GROUP}:mission", "content": "hi"},
        membershipEpoch=1,
    )
    assert refusal.code is ErrorCode.MEMBERSHIP_STALE


def test_zero_means_that_there_must_be_none(stage: Stage, ben: Actor) -> None:
    wrong = member(ben, expectedMembershipEpoch=1)
    assert stage.refused(stage.coordinator, CHANGE, wrong).code is ErrorCode.REVISION_CONFLICT
    stage.ok(stage.coordinator, CHANGE, member(ben, expectedMembershipEpoch=0))


@pytest.mark.req("R-8-13")
def test_a_change_never_hides_what_was_seen_unless_stated(stage: Stage, ben: Actor) -> None:
    stage.join(ben)
    start = stage.member(GROUP, ben).membership.visibility_start_sequence
    stage.authorize("one")
    stage.ok(stage.coordinator, CHANGE, member(ben, "reviewer", expectedMembershipEpoch=1))
    assert stage.member(GROUP, ben).membership.visibility_start_sequence == start
    stage.ok(stage.coordinator, CHANGE, member(ben, expectedMembershipEpoch=2, visibilityStartSequence=1))
    assert stage.member(GROUP, ben).membership.visibility_start_sequence == 1
    beyond = member(ben, expectedMembershipEpoch=3, visibilityStartSequence=stage.view.head(GROUP) + 2)
    assert stage.refused(stage.coordinator, CHANGE, beyond).code is ErrorCode.INVALID_COMMAND
    following = member(ben, expectedMembershipEpoch=3, visibilityStartSequence=stage.view.head(GROUP) + 1)
    stage.ok(stage.coordinator, CHANGE, following)


@pytest.mark.req("R-8-02", "R-8-11")
def test_what_a_membership_keeps_through_every_change(stage: Stage, ben: Actor) -> None:
    package = stage.context_package(stage.coordinator)
    stage.ok(stage.coordinator, CHANGE, {**provisional(stage, ben), "contextPackage": package})
    first = stage.member(GROUP, ben).membership
    assert (first.state, first.activated_at) == ("provisional", UNSET)
    stage.advance(10)
    stage.ok(stage.coordinator, CHANGE, member(ben, "work_delegate", expectedMembershipEpoch=1))
    second = stage.member(GROUP, ben).membership
    assert second.activated_at == stage.now.text()
    item = stage.authorize("one")
    grant = {
        "grantId": "urn:example:grant:1",
        "granteeAgentId": ben.id,
        "targetWorkItemId": item,
        "allowedCapabilities": [{"id": "example.build", "version": "1.0.0"}],
        "budget": CEILINGS,
        "maxDescendantDepth": 1,
        "expiresAt": later(stage, 600),
    }
    stage.ok(stage.coordinator, "membership.grant_delegation", grant)
    stage.advance(10)
    stage.ok(stage.coordinator, CHANGE, member(ben, "reviewer", expectedMembershipEpoch=2))
    third = stage.member(GROUP, ben).membership
    assert third.membership_id == second.membership_id == first.membership_id
    assert third.context_package_id == first.context_package_id == package["contextPackageId"]
    assert third.activated_at == second.activated_at
    assert third.delegation_grants is not UNSET
    assert len(third.delegation_grants) == 1
    stage.ok(stage.coordinator, END, member(ben, None))
    stage.advance(10)
    stage.ok(stage.coordinator, CHANGE, member(ben, expectedMembershipEpoch=4))
    # It was over in between: it becomes active anew.
    assert stage.member(GROUP, ben).membership.activated_at == stage.now.text()


@pytest.mark.req("R-8-12")
def test_a_change_neither_forgives_nor_forgets_obligations(stage: Stage) -> None:
    anna = stage.workers["anna"]
    item = stage.bring(stage.authorize("one"), "submitted", anna)
    stage.ok(stage.coordinator, CHANGE, member(anna, "reviewer", expectedMembershipEpoch=1))
    assert stage.member(GROUP, anna).obligations == 1
    stage.accept_result(item)
    idle = stage.member(GROUP, anna).idle_since
    assert idle is not None
    stage.advance(10)
    stage.ok(stage.coordinator, CHANGE, member(anna, expectedMembershipEpoch=2))
    assert stage.member(GROUP, anna).idle_since == idle


def test_scopes_are_given_or_the_roles(stage: Stage, ben: Actor) -> None:
    stage.ok(stage.owner, CHANGE, member(ben, scopes=["message.read", "work.accept_offer"]))
    assert stage.member(GROUP, ben).membership.scopes == ("message.read", "work.accept_offer")
    for scopes in (["made.up"], []):
        payload = member(ben, scopes=scopes, expectedMembershipEpoch=1)
        assert stage.refused(stage.owner, CHANGE, payload).code is ErrorCode.INVALID_COMMAND


def test_one_role_in_either_spelling(stage: Stage, ben: Actor) -> None:
    both = member(ben, roles=["worker"])
    two = member(ben, None, roles=["worker", "reviewer"])
    none = member(ben, None)
    for payload in (both, two, none, member(ben, "boss")):
        assert stage.refused(stage.coordinator, CHANGE, payload).code is ErrorCode.INVALID_COMMAND
    stage.ok(stage.coordinator, CHANGE, member(ben, None, roles=["observer"]))


@pytest.mark.req("R-8-05", "R-6.4-18")
def test_who_cannot_be_a_member(stage: Stage) -> None:
    strangers = [
        Actor(type="service", id=stage.organization.id),
        Actor(type="agent", id="urn:example:agent:nobody"),
        Actor(type="human", id="urn:example:human:nobody"),
    ]
    for stranger, rule in zip(strangers, ("R-8-05", "R-6.4-18", "R-6.4-18"), strict=True):
        refusal = stage.refused(stage.coordinator, CHANGE, member(stranger))
        assert (refusal.code, refusal.rule) == (ErrorCode.INVALID_COMMAND, rule)
    human = stage.human("helper")
    stage.ok(stage.coordinator, CHANGE, member(human, "observer"))


def test_a_mission_revision_is_compared(stage: Stage, ben: Actor) -> None:
    refusal = stage.refused(stage.coordinator, CHANGE, member(ben), expectedRevision=5)
    assert refusal.code is ErrorCode.REVISION_CONFLICT
    stage.ok(stage.coordinator, CHANGE, member(ben), expectedRevision=1)


@pytest.mark.req("R-19-14")
def test_owner_and_coordinator_have_their_places_by_the_mission(stage: Stage, ben: Actor) -> None:
    anna = stage.workers["anna"]
    forbidden = [
        (stage.coordinator, member(ben, "coordinator")),
        (stage.owner, member(ben, "mission_owner")),
        (stage.coordinator, member(stage.coordinator, "worker", expectedMembershipEpoch=1)),
        (stage.owner, member(stage.owner, "observer", expectedMembershipEpoch=1)),
        (stage.owner, member(stage.coordinator, "worker", expectedMembershipEpoch=1)),
        (stage.coordinator, member(stage.owner, "observer", expectedMembershipEpoch=1)),
        (anna, member(ben)),
        (
            stage.owner,
            member(stage.coordinator, "coordinator", expectedMembershipEpoch=1, scopes=["mission.approve"]),
        ),
    ]
    for actor, payload in forbidden:
        assert stage.refused(actor, CHANGE, payload).code is ErrorCode.AUTH_FORBIDDEN


@pytest.mark.req("R-7.2-13")
def test_the_owner_lets_a_coordinator_take_work(stage: Stage) -> None:
    scopes = [*DEFAULT_SCOPES["coordinator"], "work.accept_offer", "work.execute"]
    stage.ok(stage.owner, CHANGE, member(stage.coordinator, "coordinator", expectedMembershipEpoch=1, scopes=scopes))
    held = stage.member(GROUP, stage.coordinator).membership
    assert (held.role, "work.execute" in held.scopes) == ("coordinator", True)
    item = stage.authorize("own")
    stage.offer(item, stage.coordinator)
    stage.ok(stage.coordinator, "work.accept_offer", {"workItemId": item})
    assert stage.state(item) == "queued"


def test_the_root_owners_place_in_a_child_is_kept() -> None:
    stage = Stage(workers=("leader",))
    leader = stage.workers["leader"]
    stage.promote(stage.authorize("outer"), leader)
    for kind, payload in ((CHANGE, member(stage.owner, expectedMembershipEpoch=1)), (END, member(stage.owner, None))):
        assert stage.child_refused(leader, kind, payload) is ErrorCode.AUTH_FORBIDDEN
    assert stage.member(CHILD_GROUP, stage.owner).membership.state == "active"


@pytest.mark.req("R-19-20")
@pytest.mark.parametrize("kind", [CHANGE, END])
def test_an_ended_mission_changes_no_memberships(stage: Stage, ben: Actor, kind: str) -> None:
    stage.join(ben)
    stage.ok(stage.owner, "mission.cancel", {"reason": "no"})
    payload = member(ben, "reviewer" if kind == CHANGE else None, expectedMembershipEpoch=1)
    assert stage.refused(stage.owner, kind, payload).code is ErrorCode.INVALID_STATE_TRANSITION


# --- provisional ------------------------------------------------------------------------------------------------------


CEILINGS = {
    "currency": "EUR",
    "financialLimit": 1,
    "modelTokenLimit": 1,
    "toolCallLimit": 1,
    "computeSecondsLimit": 1,
    "wallClockSecondsLimit": 1,
    "externalSideEffectLimit": 1,
}


def provisional(stage: Stage, ben: Actor, **changes: Any) -> dict[str, Any]:
    package = stage.context_package(stage.coordinator)
    payload = member(ben, provisional=True, contextPackage=package, **changes)
    return {name: value for name, value in payload.items() if value is not None}


@pytest.mark.req("R-8-09", "R-8-10", "R-8-14")
def test_a_candidate_is_provisional_with_a_package_until_it_accepts(stage: Stage, ben: Actor) -> None:
    item = stage.authorize("one")
    decision = stage.ok(stage.coordinator, CHANGE, provisional(stage, ben))
    held = stage.member(GROUP, ben).membership
    assert (held.state, held.provisional_expires_at) == ("provisional", later(stage, DAY))
    payload = decision.facts[0].payload
    assert isinstance(payload, MembershipChanged)
    package = stage.view.get(CONTEXTS, str(held.context_package_id))
    assert package is not None
    assert (package.recipients, package.package_hash) == ((ben,), payload.context_package_hash)
    stage.offer(item, ben)
    stage.accept(item, ben)
    held = stage.member(GROUP, ben).membership
    assert (held.state, held.membership_epoch) == ("active", 2)
    assert held.activated_at is not UNSET


@pytest.mark.req("R-8-09")
@pytest.mark.parametrize(
    "changes",
    [
        {"contextPackage": None},
        {"provisionalExpiresAt": "2030-01-01T00:00:00Z"},
        {"provisional": False, "provisionalExpiresAt": "2030-01-01T01:00:00Z"},
    ],
    ids=str,
)
def test_a_provisional_membership_has_all_it_needs(stage: Stage, ben: Actor, changes: dict[str, Any]) -> None:
    payload = {**provisional(stage, ben), **changes}
    payload = {name: value for name, value in payload.items() if value is not None}
    assert stage.refused(stage.coordinator, CHANGE, payload).code is ErrorCode.INVALID_COMMAND


def test_a_human_is_never_provisional_and_an_active_member_not_again(stage: Stage, ben: Actor) -> None:
    human = stage.human("helper")
    assert stage.refused(stage.coordinator, CHANGE, provisional(stage, human)).code is ErrorCode.INVALID_COMMAND
    stage.join(ben)
    again = provisional(stage, ben, expectedMembershipEpoch=1)
    assert stage.refused(stage.coordinator, CHANGE, again).code is ErrorCode.INVALID_STATE_TRANSITION


def test_a_provisional_end_is_cut_to_what_policy_allows(stage: Stage, ben: Actor) -> None:
    stage.policy = Policy(provisional_membership_max=60)
    stage.ok(stage.coordinator, CHANGE, provisional(stage, ben, provisionalExpiresAt=later(stage, 3600)))
    assert stage.member(GROUP, ben).membership.provisional_expires_at == later(stage, 60)
    stage.ok(
        stage.coordinator,
        CHANGE,
        provisional(stage, ben, provisionalExpiresAt=later(stage, 30), expectedMembershipEpoch=1),
    )
    assert stage.member(GROUP, ben).membership.provisional_expires_at == later(stage, 30)


@pytest.mark.req("R-15.1-27", "R-15.3-01")
def test_granting_the_same_again_raises_the_epoch_and_so_fences_what_was_sent_before(stage: Stage, ben: Actor) -> None:
    """A change that states the epoch it saw is never without effect: whatever cites the old epoch is stale."""
    before = stage.ok(stage.coordinator, CHANGE, member(ben)).facts[0].payload.membership  # type: ignore[attr-defined]
    again = member(ben, expectedMembershipEpoch=1)
    after = stage.ok(stage.coordinator, CHANGE, again).facts[0].payload.membership  # type: ignore[attr-defined]
    assert (before.membership_epoch, after.membership_epoch) == (1, 2)
    assert (after.role, after.scopes, after.state) == (before.role, before.scopes, before.state)
    say = {"messageId": "urn:x:m", "conversationId": f"{GROUP}:mission", "content": "hi"}
    assert stage.refused(ben, "message.post", say, membershipEpoch=1).code is ErrorCode.MEMBERSHIP_STALE
    stage.ok(ben, "message.post", say)
    # Of two such changes in a race one wins; without an epoch there must be no Membership yet (decision F10).
    assert stage.refused(stage.coordinator, CHANGE, again).code is ErrorCode.REVISION_CONFLICT
    assert stage.refused(stage.coordinator, CHANGE, member(ben)).code is ErrorCode.REVISION_CONFLICT


@pytest.mark.req("R-19-16")
def test_a_provisional_member_does_little_and_nothing_once_it_ran_out(stage: Stage, ben: Actor) -> None:
    item = stage.authorize("one")
    other = stage.authorize("other")
    stage.ok(stage.coordinator, CHANGE, provisional(stage, ben))
    stage.offer(item, ben, offerExpiresInSeconds=3600 * 48)
    refusal = stage.refused(ben, "work.propose", {"proposalId": "urn:x:p", "contract": stage.contract()})
    assert refusal.code is ErrorCode.MEMBERSHIP_REQUIRED
    say: dict[str, Any] = {"messageId": "urn:x:m", "content": "hi"}
    for conversation in (f"{GROUP}:mission", stage.item(other).item.conversation_id):
        refusal = stage.refused(ben, "message.post", {**say, "conversationId": conversation})
        assert refusal.code is ErrorCode.MEMBERSHIP_REQUIRED
    stage.ok(ben, "message.post", {**say, "conversationId": stage.item(item).item.conversation_id})
    stage.advance(DAY)
    refusal = stage.refused(ben, "work.accept_offer", {"workItemId": item})
    assert refusal.code is ErrorCode.MEMBERSHIP_REQUIRED
    assert stage.member(GROUP, ben).membership.state == "provisional"


# --- end --------------------------------------------------------------------------------------------------------------


@pytest.mark.req("R-15.1-28", "R-15.2-16", "R-19-16")
def test_an_ended_membership_authorizes_nothing(stage: Stage) -> None:
    anna = stage.workers["anna"]
    item = stage.bring(stage.authorize("one"), "active", anna)
    decision = stage.ok(stage.coordinator, END, {**member(anna, None), "reason": "other work"})
    assert [(fact.kind, fact.payload.reason) for fact in decision.facts] == [("membership.ended", "other work")]  # type: ignore[attr-defined]
    held = stage.member(GROUP, anna).membership
    assert (held.state, held.membership_epoch) == ("ended", 2)
    assert held.ended_at is not UNSET
    assert stage.state(item) == "active"
    for epoch in (1, 2):
        refusal = stage.refused(
            anna,
            "work.submit",
            {**stage.three(item), "artifactHashes": ["sha256:" + "0" * 64], "evidence": [stage.evidence(item, anna)]},
            membershipEpoch=epoch,
        )
        assert refusal.code is ErrorCode.MEMBERSHIP_REQUIRED
    again = stage.refused(stage.coordinator, END, member(anna, None))
    assert again.code is ErrorCode.INVALID_STATE_TRANSITION
    assert stage.refused(stage.coordinator, CHANGE, member(anna)).code is ErrorCode.REVISION_CONFLICT
    stage.ok(stage.coordinator, CHANGE, member(anna, expectedMembershipEpoch=2))
    held = stage.member(GROUP, anna).membership
    assert (held.state, held.membership_epoch, held.ended_at) == ("active", 3, UNSET)


@pytest.mark.req("R-19-14", "R-19-19")
def test_what_cannot_be_ended(stage: Stage, ben: Actor) -> None:
    assert stage.refused(stage.coordinator, END, member(ben, None)).code is ErrorCode.INVALID_COMMAND
    for principal in (stage.owner, stage.coordinator):
        assert stage.refused(stage.owner, END, member(principal, None)).code is ErrorCode.AUTH_FORBIDDEN
    anna = stage.workers["anna"]
    assert stage.refused(anna, END, member(anna, None)).code is ErrorCode.AUTH_FORBIDDEN
    wrong = member(anna, None, expectedMembershipEpoch=7)
    assert stage.refused(stage.coordinator, END, wrong).code is ErrorCode.REVISION_CONFLICT
    stale = stage.refused(stage.coordinator, END, member(anna, None), expectedRevision=7)
    assert stale.code is ErrorCode.REVISION_CONFLICT
    stage.ok(stage.coordinator, END, member(anna, None, expectedMembershipEpoch=1))


# --- idle members -----------------------------------------------------------------------------------------------------


def due(stage: Stage, actor: Actor) -> Decision | Instant | None:
    return decide_due(stage.view, MEMBERSHIPS.code, membership_key(GROUP, actor), stage.context())


@pytest.mark.req("R-8-12")
def test_a_member_that_owes_nothing_leaves_after_a_while(stage: Stage) -> None:
    anna = stage.workers["anna"]
    assert stage.member(GROUP, anna).idle_since is None
    item = stage.bring(stage.authorize("one"), "submitted", anna)
    assert (stage.member(GROUP, anna).obligations, stage.member(GROUP, anna).idle_since) == (1, None)
    stage.accept_result(item)
    assert stage.member(GROUP, anna).idle_since == stage.now.text()
    assert due(stage, anna) == stage.now.plus(DAY)
    stage.advance(DAY - 1)
    assert stage.member(GROUP, anna).membership.state == "active"
    stage.advance(1)
    held = stage.member(GROUP, anna).membership
    assert (held.state, held.ended_at) == ("ended", stage.now.text())
    event = stage.events[-1]
    assert (event.kind, event.cause.type, event.cause.id) == (
        "membership.ended",
        "policy",
        "urn:mwnode:policy:membership_idle_end",
    )
    assert event.actor == stage.authority
    assert due(stage, anna) is None


@pytest.mark.req("R-8-12")
def test_new_work_keeps_a_member(stage: Stage) -> None:
    anna = stage.workers["anna"]
    stage.bring(stage.authorize("one"), "verified", anna)
    stage.bring(stage.authorize("two"), "queued", anna)
    assert stage.member(GROUP, anna).idle_since is None
    stage.advance(2 * DAY)
    assert stage.member(GROUP, anna).membership.state == "active"


def test_policy_may_keep_idle_members(stage: Stage) -> None:
    anna = stage.workers["anna"]
    stage.policy = Policy(membership_idle_end=0)
    stage.bring(stage.authorize("one"), "verified", anna)
    assert due(stage, anna) is None
    stage.advance(10 * DAY)
    assert stage.member(GROUP, anna).membership.state == "active"


@pytest.mark.req("R-8-12")
def test_a_reviewer_stays_while_something_awaits_review(stage: Stage, ben: Actor) -> None:
    stage.join(ben, "reviewer")
    anna = stage.workers["anna"]
    stage.bring(stage.authorize("reviewers-own"), "verified", ben)
    pending = stage.bring(stage.authorize("pending"), "submitted", anna)
    stage.advance(DAY)
    assert stage.member(GROUP, ben).membership.state == "active"
    assert due(stage, ben) == stage.now.plus(DAY)
    stage.keep_coordinator()
    stage.accept_result(pending)
    stage.advance(DAY)
    assert stage.member(GROUP, ben).membership.state == "ended"


@pytest.mark.req("R-8-12")
def test_who_reviews_nothing_does_not_wait_for_reviews(stage: Stage, ben: Actor) -> None:
    stage.join(ben)
    stage.bring(stage.authorize("own"), "verified", ben)
    stage.bring(stage.authorize("pending"), "submitted", stage.workers["anna"])
    stage.advance(DAY)
    assert stage.member(GROUP, ben).membership.state == "ended"


def test_a_membership_that_ended_meanwhile_is_let_be(stage: Stage) -> None:
    anna = stage.workers["anna"]
    stage.bring(stage.authorize("one"), "verified", anna)
    stage.ok(stage.coordinator, END, member(anna, None))
    assert stage.member(GROUP, anna).idle_since is None
    stage.advance(2 * DAY)
    assert [event.kind for event in stage.events].count("membership.ended") == 1
    assert due(stage, stage.agent("stranger")) is None


def test_a_coordinator_is_never_idle() -> None:
    stage = Stage()
    anna = stage.workers["anna"]
    stage.bring(stage.authorize("one"), "verified", anna)
    stage.replace(anna)
    stage.advance(2 * DAY)
    assert stage.member(GROUP, anna).membership.state == "active"
