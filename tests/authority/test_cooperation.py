"""Cooperation limits and the Grants that pass them (section 20)."""

from __future__ import annotations

from typing import Any

import pytest
from msgspec import UNSET

from mwnode.authority.cooperation import LIMITED, RECEIPTS
from mwnode.authority.policy import Policy
from mwnode.authority.request import Decision
from mwnode.authority.state import OVERRIDES, OverrideRow
from mwnode.protocol.commands import CORE
from mwnode.protocol.documents import Actor
from mwnode.protocol.errors import ErrorCode, Rejection
from mwnode.protocol.events import OverrideGranted, ThresholdCrossed
from tests.authority.scene import GROUP, MISSION, later
from tests.authority.staging import CHILD_GROUP, Stage

GRANT = "policy.grant_cooperation_override"
ACTION = "urn:example:action:override"
GRANT_ID = "urn:example:override:1"


@pytest.fixture
def stage() -> Stage:
    stage = Stage()
    stage.policy = Policy(message_rate=1, proposal_rate=1)
    return stage


@pytest.fixture
def anna(stage: Stage) -> Actor:
    return stage.workers["anna"]


def grant(stage: Stage, to: Actor, **changes: Any) -> dict[str, Any]:
    return {
        "grantId": GRANT_ID,
        "policyName": "message_rate",
        "beneficiary": {"type": to.type, "id": to.id},
        "targetCommandKind": "message.post",
        "targetActionId": ACTION,
        "reason": "an incident",
        "expiresAt": later(stage, 600),
        **changes,
    }


def words(number: int) -> dict[str, Any]:
    return {"messageId": f"urn:example:message:{number}", "conversationId": f"{GROUP}:mission", "content": "hello"}


def post(stage: Stage, actor: Actor, number: int, **envelope: Any) -> Decision | Rejection:
    return stage.send(actor, "message.post", words(number), **envelope)


def overridden(grant_id: str = GRANT_ID, action: str = ACTION) -> dict[str, Any]:
    return {"cooperationOverrideGrantId": grant_id, "actionId": action}


def row(stage: Stage) -> OverrideRow:
    found = stage.view.get(OVERRIDES, GRANT_ID)
    assert found is not None
    return found


def code(outcome: Decision | Rejection) -> ErrorCode | None:
    return outcome.code if isinstance(outcome, Rejection) else None


# --- issue ------------------------------------------------------------------------------------------------------------


@pytest.mark.req("R-20-07", "R-20-08", "R-20-12", "R-15.1-48", "R-15.2-38")
@pytest.mark.parametrize("who", ["owner", "organization"])
def test_a_grant_binds_everything(stage: Stage, anna: Actor, who: str) -> None:
    actor = stage.owner if who == "owner" else stage.organization
    decision = stage.ok(actor, GRANT, grant(stage, anna), groupId=GROUP)
    payload = decision.facts[0].payload
    assert isinstance(payload, OverrideGranted)
    given = payload.cooperation_override_grant
    assert (given.mission_id, given.group_id, given.policy_name) == (MISSION, GROUP, "message_rate")
    assert (given.beneficiary, given.target_command_kind, given.target_action_id) == (anna, "message.post", ACTION)
    assert (given.approver, given.reason, given.granted_at) == (actor, "an incident", stage.now.text())
    assert (given.expires_at, given.consumed_at) == (later(stage, 600), UNSET)
    entry = stage.view.policy_log(GROUP)[-1]
    assert entry.decision == "cooperation override granted"
    assert entry.details["grantedEventId"] == decision.facts[0].event_id
    assert stage.mission_row(MISSION).mission.revision == 1


@pytest.mark.req("R-20-08")
@pytest.mark.parametrize(
    "member", ["grantId", "policyName", "beneficiary", "targetCommandKind", "targetActionId", "reason", "expiresAt"]
)
def test_a_grant_that_leaves_something_out_is_refused(stage: Stage, anna: Actor, member: str) -> None:
    payload = {name: value for name, value in grant(stage, anna).items() if name != member}
    assert stage.refused(stage.owner, GRANT, payload).code is ErrorCode.INVALID_COMMAND


@pytest.mark.req("R-20-08", "R-20-10")
@pytest.mark.parametrize(
    "changes, code",
    [
        ({"policyName": "clarification_rounds"}, ErrorCode.INVALID_COMMAND),
        ({"targetCommandKind": "work.propose"}, ErrorCode.INVALID_COMMAND),
        ({"expiresAt": "2030-01-01T00:00:00Z"}, ErrorCode.INVALID_COMMAND),
        ({"expiresAt": "2030-01-31T00:00:01Z"}, ErrorCode.INVALID_COMMAND),
        ({"beneficiary": {"type": "agent", "id": "urn:example:agent:none"}}, ErrorCode.AUTH_FORBIDDEN),
        ({"override": True}, ErrorCode.INVALID_COMMAND),
    ],
    ids=str,
)
def test_a_grant_that_makes_no_sense_is_refused(
    stage: Stage, anna: Actor, changes: dict[str, Any], code: ErrorCode
) -> None:
    assert stage.refused(stage.owner, GRANT, grant(stage, anna, **changes)).code is code


@pytest.mark.req("R-20-08", "R-15.1-48")
def test_who_issues_no_grant_and_when(stage: Stage, anna: Actor) -> None:
    for actor in (stage.coordinator, anna):
        assert stage.refused(actor, GRANT, grant(stage, anna)).code is ErrorCode.AUTH_FORBIDDEN
    assert stage.refused(stage.owner, GRANT, grant(stage, anna), expectedRevision=3).code is (
        ErrorCode.REVISION_CONFLICT
    )
    stage.ok(anna, "message.post", words(1), actionId=ACTION)
    done = stage.refused(stage.owner, GRANT, grant(stage, anna))
    assert done.code is ErrorCode.INVALID_STATE_TRANSITION
    stage.ok(stage.owner, GRANT, grant(stage, anna, targetActionId="urn:example:action:later"))
    again = grant(stage, anna, targetActionId="urn:example:action:later")
    assert stage.refused(stage.owner, GRANT, again).code is ErrorCode.INVALID_COMMAND
    stage.ok(stage.owner, "mission.cancel", {"reason": "no"})
    late = grant(stage, anna, grantId="urn:example:override:2", targetActionId="urn:example:action:last")
    assert stage.refused(stage.owner, GRANT, late).code is ErrorCode.INVALID_STATE_TRANSITION


# --- use --------------------------------------------------------------------------------------------------------------


@pytest.mark.req("R-20-07", "R-20-11", "R-20-12", "R-20-13", "R-15.1-12", "R-15.1-13")
def test_a_grant_passes_one_command_once(stage: Stage, anna: Actor) -> None:
    stage.ok(anna, "message.post", words(1))
    stage.ok(stage.owner, GRANT, grant(stage, anna))
    assert code(post(stage, anna, 2)) is ErrorCode.RATE_LIMITED
    raw = stage.command(anna, "message.post", words(2), **overridden())
    decision = stage.submit(raw)
    assert isinstance(decision, Decision)
    consumed = row(stage).grant
    assert (consumed.consumed_at, consumed.consumed_event_id) == (stage.now.text(), decision.facts[0].event_id)
    entry = stage.view.policy_log(GROUP)[-1]
    assert entry.decision == "cooperation override consumed"
    assert entry.details["consumedEventId"] == decision.facts[0].event_id
    assert stage.submit(raw) is decision
    second = post(stage, anna, 3, cooperationOverrideGrantId=GRANT_ID)
    assert code(second) is ErrorCode.AUTH_FORBIDDEN


@pytest.mark.req("R-20-09", "R-20-10")
@pytest.mark.parametrize("name", ["invented", "expired", "actor", "kind", "action", "policy", "mission"])
def test_a_grant_fits_its_command_exactly(stage: Stage, anna: Actor, name: str) -> None:
    ben = stage.worker("ben")
    for actor, number in ((anna, 1), (ben, 2)):
        stage.ok(actor, "message.post", words(number))
    changes: dict[str, dict[str, Any]] = {
        "kind": {"policyName": "proposal_rate", "targetCommandKind": "work.propose"},
        "policy": {"policyName": "active_work_items", "targetCommandKind": "work.start"},
        "action": {"targetActionId": "urn:example:action:other"},
        "actor": {"beneficiary": {"type": "agent", "id": ben.id}},
        "expired": {"expiresAt": later(stage, 1)},
    }
    stage.ok(stage.owner, GRANT, grant(stage, anna, **changes.get(name, {})))
    envelope = overridden("urn:example:override:none" if name == "invented" else GRANT_ID)
    if name == "expired":
        stage.advance(1)
    if name == "mission":
        stage.promote(stage.authorize("outer"), stage.agent("leader"))
        payload = {**words(3), "conversationId": f"{CHILD_GROUP}:mission"}
        stage.in_child(
            stage.coordinator, "membership.change", {"principal": {"type": "agent", "id": anna.id}, "role": "worker"}
        )
        stage.in_child(anna, "message.post", {**payload, "messageId": "urn:example:message:4"})
        assert stage.child_refused(anna, "message.post", payload, **envelope) is ErrorCode.AUTH_FORBIDDEN
    else:
        assert code(post(stage, anna, 3, **envelope)) is ErrorCode.AUTH_FORBIDDEN
    if name != "invented":
        assert row(stage).grant.consumed_at is UNSET


@pytest.mark.req("R-20-10")
def test_a_grant_of_a_former_owner_passes_nothing() -> None:
    """A child's owner changes with the Coordinator of its parent; the override that the old one gave dies."""
    stage = Stage(workers=("anna", "leader"))
    anna, leader = stage.workers["anna"], stage.workers["leader"]
    stage.policy = Policy(message_rate=1)
    stage.promote(stage.authorize("outer"), leader)
    stage.in_child(leader, "membership.change", {"principal": {"type": "agent", "id": anna.id}, "role": "worker"})
    place = {"conversationId": f"{CHILD_GROUP}:mission"}
    stage.in_child(anna, "message.post", {**words(1), **place})
    stage.in_child(stage.coordinator, GRANT, grant(stage, anna))
    stage.replace(stage.agent("successor"))
    assert stage.child_refused(anna, "message.post", {**words(2), **place}, **overridden()) is ErrorCode.AUTH_FORBIDDEN


@pytest.mark.req("R-20-11")
def test_a_grant_that_is_not_needed_is_not_taken(stage: Stage, anna: Actor) -> None:
    stage.ok(stage.owner, GRANT, grant(stage, anna))
    assert code(post(stage, anna, 1, **overridden())) is ErrorCode.INVALID_COMMAND
    assert row(stage).grant.consumed_at is UNSET
    stage.ok(anna, "message.post", words(1))
    stage.ok(anna, "message.post", words(2), **overridden())
    refusal = stage.refused(stage.owner, "mission.cancel", {"reason": "no"}, cooperationOverrideGrantId=GRANT_ID)
    assert refusal.code is ErrorCode.INVALID_COMMAND


@pytest.mark.req("R-20-11")
def test_a_command_that_fails_otherwise_consumes_nothing(stage: Stage, anna: Actor) -> None:
    stage.ok(anna, "message.post", words(1))
    stage.ok(stage.owner, GRANT, grant(stage, anna))
    assert code(post(stage, anna, 2, expectedRevision=1, **overridden())) is ErrorCode.REVISION_CONFLICT
    assert row(stage).grant.consumed_at is UNSET
    stage.ok(anna, "message.post", words(2), **overridden())
    assert row(stage).grant.consumed_at is not UNSET


@pytest.mark.req("R-20-01", "R-20-07")
def test_a_flag_in_the_payload_passes_no_limit(stage: Stage, anna: Actor) -> None:
    stage.ok(anna, "message.post", words(1))
    assert stage.refused(anna, "message.post", {**words(2), "override": True}).code is ErrorCode.INVALID_COMMAND
    refused = post(stage, anna, 2)
    assert isinstance(refused, Rejection)
    assert (refused.code, refused.rule, refused.details) == (
        ErrorCode.RATE_LIMITED,
        "R-20-01",
        {"policyName": "message_rate"},
    )


@pytest.mark.req("R-20-01")
def test_proposals_have_a_rate_too(stage: Stage, anna: Actor) -> None:
    for number in (1, 2):
        outcome = stage.code(
            anna, "work.propose", {"proposalId": f"urn:example:proposal:{number}", "contract": stage.contract()}
        )
        assert outcome == ("accepted" if number == 1 else "RATE_LIMITED")
    stage.advance(60)
    stage.ok(anna, "work.propose", {"proposalId": "urn:example:proposal:2", "contract": stage.contract()})


def test_every_limited_kind_has_a_receipt_that_consumes() -> None:
    assert set(RECEIPTS) == set().union(*LIMITED.values())


# --- soft thresholds --------------------------------------------------------------------------------------------------


@pytest.mark.req("R-20-04")
def test_a_long_log_is_told_once_and_work_goes_on(stage: Stage, anna: Actor) -> None:
    stage.policy = Policy(group_event_warning=stage.view.head(GROUP) + 2)
    stage.ok(anna, "message.post", words(1))
    decision = stage.ok(stage.coordinator, "message.post", words(2))
    assert [fact.kind for fact in decision.facts] == ["message.posted", f"{CORE}.threshold_crossed"]
    told = decision.facts[1]
    assert isinstance(told.payload, ThresholdCrossed)
    assert (told.payload.threshold, told.payload.value) == ("group_event_warning", stage.view.head(GROUP) - 1)
    assert (told.cause.type, told.cause.id) == ("policy", "urn:mwnode:policy:group_event_warning")
    assert told.actor == stage.authority
    decision = stage.ok(stage.owner, "message.post", words(3))
    assert len(decision.facts) == 1
