"""The envelope of Commands: who states which epoch, and in what order faults are told (section 15.1)."""

from __future__ import annotations

import json
from typing import Any

import msgspec
import pytest

from mwnode.authority.policy import Policy
from mwnode.authority.request import Decision
from mwnode.authority.state import GRANTS, GrantRow
from mwnode.protocol.commands import EXT
from mwnode.protocol.documents import (
    COORDINATOR_COMMAND_KINDS,
    Actor,
    DelegationGrant,
    Lease,
    Membership,
    Mission,
)
from mwnode.protocol.errors import ErrorCode
from mwnode.protocol.jcs import canonical
from mwnode.trust.keys import sign_mapping
from mwnode.trust.verification import Failure, verify
from tests.authority.scene import CAPABILITY, GROUP, MISSION, later, work_id
from tests.authority.staging import Stage


@pytest.fixture
def stage() -> Stage:
    return Stage()


@pytest.fixture
def anna(stage: Stage) -> Actor:
    return stage.workers["anna"]


def words(number: int = 1) -> dict[str, Any]:
    return {"messageId": f"urn:example:message:{number}", "conversationId": f"{GROUP}:mission", "content": "hello"}


def verdict(stage: Stage, signer: Actor, raw: bytes, /, **members: Any) -> ErrorCode | None:
    """What verification says of a Command with other members (``None`` removes one), signed anew."""
    mapping = {**json.loads(raw), **members}
    unsigned = members.get("signature", "") is None
    mapping.pop("signature", None)
    mapping = {name: value for name, value in mapping.items() if value is not None}
    if not unsigned:
        mapping = sign_mapping(mapping, stage.keys[signer.id], mapping.get("issuedAt", stage.now.text()))
    found = verify(canonical(mapping), "command", stage.registry)
    return found.code if isinstance(found, Failure) else None


# --- what the schema asks for -----------------------------------------------------------------------------------------


@pytest.mark.req("R-15.1-01")
@pytest.mark.parametrize(
    "member",
    ["protocolVersion", "actionId", "actor", "kind", "correlationId", "issuedAt", "payload", "signature"],
)
def test_every_member_of_the_envelope_is_needed(stage: Stage, anna: Actor, member: str) -> None:
    raw = stage.command(anna, "message.post", words())
    assert verdict(stage, anna, raw) is None
    assert verdict(stage, anna, raw, **{member: None}) is ErrorCode.SCHEMA_VALIDATION_FAILED


@pytest.mark.req("R-15.1-02", "R-15.1-03", "R-8-03")
@pytest.mark.parametrize("member", ["groupId", "sessionEpoch", "membershipEpoch"])
def test_an_agent_states_group_session_and_membership(stage: Stage, anna: Actor, member: str) -> None:
    raw = stage.command(anna, "message.post", words())
    assert verdict(stage, anna, raw, **{member: None}) is ErrorCode.SCHEMA_VALIDATION_FAILED


@pytest.mark.req("R-15.1-04", "R-15.1-05", "R-8-03")
def test_a_human_states_group_and_membership_and_no_session(stage: Stage) -> None:
    raw = stage.command(stage.owner, "message.post", words())
    for changes in ({"groupId": None}, {"membershipEpoch": None}, {"sessionEpoch": 1}):
        assert verdict(stage, stage.owner, raw, **changes) is ErrorCode.SCHEMA_VALIDATION_FAILED


@pytest.mark.req("R-15.1-05", "R-15.1-06", "R-8-06")
@pytest.mark.parametrize("member", ["sessionEpoch", "membershipEpoch", "coordinatorEpoch"])
def test_a_service_states_no_epoch(stage: Stage, member: str) -> None:
    raw = stage.command(stage.organization, "mission.cancel", {"reason": "no"}, groupId=GROUP)
    assert verdict(stage, stage.organization, raw) is None
    assert verdict(stage, stage.organization, raw, **{member: 1}) is ErrorCode.SCHEMA_VALIDATION_FAILED


@pytest.mark.req("R-15.1-08", "R-15.2-03")
@pytest.mark.parametrize("member", ["groupId", "sessionEpoch", "membershipEpoch", "coordinatorEpoch"])
def test_organization_commands_have_no_place_in_a_group(stage: Stage, anna: Actor, member: str) -> None:
    raw = stage.command(stage.authority, f"{EXT}.identity.session_open", {"agentId": anna.id})
    assert verdict(stage, stage.authority, raw) is None
    value: Any = GROUP if member == "groupId" else 1
    assert verdict(stage, stage.authority, raw, **{member: value}) is ErrorCode.SCHEMA_VALIDATION_FAILED


@pytest.mark.req("R-15.1-07", "R-15.1-17", "R-7.1-08", "R-15.1-26")
@pytest.mark.parametrize("kind", ["mission.create", "mission.create_follow_up"])
def test_only_a_human_without_epochs_begins_a_root_mission(stage: Stage, kind: str) -> None:
    group = "urn:example:group:2"
    raw = stage.command(stage.owner, kind, stage.mission_payload("urn:example:mission:2", group), groupId=group)
    assert verdict(stage, stage.owner, raw) is None
    for member in ("sessionEpoch", "membershipEpoch", "coordinatorEpoch"):
        assert verdict(stage, stage.owner, raw, **{member: 1}) is ErrorCode.SCHEMA_VALIDATION_FAILED
    for actor in (stage.coordinator, stage.organization):
        members = {"actor": {"type": actor.type, "id": actor.id}}
        assert verdict(stage, actor, raw, **members) is ErrorCode.SCHEMA_VALIDATION_FAILED


@pytest.mark.req("R-7.2-05", "R-15.1-19", "R-15.1-24", "R-15.1-29")
@pytest.mark.parametrize("kind", [*sorted(COORDINATOR_COMMAND_KINDS), "mission.terminate"])
def test_coordinator_kinds_come_from_agents_with_their_epoch(stage: Stage, kind: str) -> None:
    raw = stage.command(stage.coordinator, kind, {}, coordinatorEpoch=1)
    assert verdict(stage, stage.coordinator, raw) is None
    assert verdict(stage, stage.coordinator, raw, coordinatorEpoch=None) is ErrorCode.SCHEMA_VALIDATION_FAILED
    human = {"actor": {"type": "human", "id": stage.owner.id}, "sessionEpoch": None}
    assert verdict(stage, stage.owner, raw, **human) is ErrorCode.SCHEMA_VALIDATION_FAILED


@pytest.mark.req("R-15.1-16", "R-9-06")
@pytest.mark.parametrize("kind", ["mission.pause", "work.decline_offer", "message.delta", "work.clarify", "ext.acme"])
def test_there_are_no_other_kinds(stage: Stage, anna: Actor, kind: str) -> None:
    raw = stage.command(anna, "message.post", words())
    assert verdict(stage, anna, raw, kind=kind) is ErrorCode.SCHEMA_VALIDATION_FAILED


@pytest.mark.req("R-18-04")
def test_a_well_formed_kind_that_no_profile_lists_is_refused(stage: Stage, anna: Actor) -> None:
    refusal = stage.refused(anna, "ext.acme.survey.ask", {})
    assert refusal.code is ErrorCode.UNKNOWN_CRITICAL_EXTENSION


# --- epochs -----------------------------------------------------------------------------------------------------------


@pytest.mark.req("R-15.1-03", "R-15.1-04", "R-8-04", "R-19-12", "R-19-17")
def test_each_epoch_must_be_the_current_one(stage: Stage, anna: Actor) -> None:
    stage.session(anna)
    for epoch in (1, 3):
        refusal = stage.refused(anna, "message.post", words(), sessionEpoch=epoch)
        assert refusal.code is ErrorCode.AUTH_STALE_SESSION
    for actor in (anna, stage.owner):
        refusal = stage.refused(actor, "message.post", words(), membershipEpoch=2)
        assert refusal.code is ErrorCode.MEMBERSHIP_STALE
        assert refusal.details == {"currentMembershipEpoch": 1}


@pytest.mark.req("R-7.2-03", "R-7.2-04", "R-15.1-10", "R-19-13")
@pytest.mark.parametrize(
    "kind, epoch",
    [
        *((kind, epoch) for kind in ("work.authorize", "work.offer", "work.accept_result") for epoch in (1, 3)),
        ("work.authorize", None),  # the schema asks for it in the others
        ("work.offer", None),
    ],
)
def test_the_coordinator_states_the_current_epoch(stage: Stage, anna: Actor, kind: str, epoch: int | None) -> None:
    stage.policy = Policy(reconcile_required=False)
    item = stage.bring(stage.authorize("one"), "submitted", anna)
    second = stage.agent("second")
    stage.replace(second)
    payloads = {
        "work.authorize": {"workItemId": work_id("new"), "contract": stage.contract()},
        "work.offer": stage.offer_payload(item, anna),
        "work.accept_result": {"workItemId": item, "evidence": [stage.review(item, second)]},
    }
    refusal = stage.refused(second, kind, payloads[kind], coordinatorEpoch=epoch)
    assert refusal.code is ErrorCode.AUTH_STALE_COORDINATOR
    assert stage.state(item) == "submitted"
    if kind != "work.offer":
        stage.ok(second, kind, payloads[kind])


@pytest.mark.req("R-15.1-14")
def test_one_fault_at_a_time_has_its_own_code(stage: Stage, anna: Actor) -> None:
    stage.policy = Policy(active_work_items=1)
    stage.bring(stage.authorize("busy", budget={"wallClockSecondsLimit": 1}), "active", anna)
    item = stage.bring(stage.authorize("one"), "queued", anna)
    lapsed = stage.worker("ben")
    old = stage.bring(stage.authorize("two"), "queued", lapsed)
    stage.advance(900, timers=False)
    stage.keep_coordinator()
    stranger = stage.agent("stranger")
    start = {"workItemId": item, "ownershipEpoch": 1}
    authorize = {"workItemId": work_id("new"), "contract": stage.contract(budget={"toolCallLimit": 1001})}
    delegated = {**authorize, "delegationGrantId": "urn:example:grant:none", "contract": stage.contract()}
    cases: list[tuple[str, Any]] = [
        ("GROUP_NOT_FOUND", (stranger, "work.start", start, {})),
        ("INVALID_COMMAND", (anna, "work.start", {"workItemId": item}, {})),
        ("AUTH_STALE_SESSION", (anna, "work.start", start, {"sessionEpoch": 9})),
        ("MEMBERSHIP_STALE", (anna, "work.start", start, {"membershipEpoch": 9})),
        ("AUTH_FORBIDDEN", (anna, "work.cancel", {"workItemId": item, "reason": "no"}, {})),
        ("AUTH_FORBIDDEN", (anna, "work.authorize", delegated, {})),
        ("WORK_LEASE_EXPIRED", (lapsed, "work.start", {**start, "workItemId": old}, {})),
        ("BUDGET_EXCEEDED", (stage.coordinator, "work.authorize", authorize, {})),
        ("REVISION_CONFLICT", (stage.owner, "mission.cancel", {"reason": "no"}, {"expectedRevision": 1})),
        (
            "INVALID_STATE_TRANSITION",
            (stage.owner, "mission.approve", {"approval": stage.approval(["sha256:" + "0" * 64])}, {}),
        ),
    ]
    for code, (actor, kind, payload, envelope) in cases:
        assert stage.refused(actor, kind, payload, **envelope).code.value == code, (code, kind)


@pytest.mark.req("R-15.1-13", "R-19-22")
def test_an_action_id_stands_for_one_content(stage: Stage, anna: Actor) -> None:
    raw = stage.command(anna, "message.post", words())
    first = stage.submit(raw)
    head = stage.view.head(GROUP)
    reordered = json.dumps(dict(reversed(json.loads(raw).items()))).encode()
    for copy in (raw, reordered):
        assert stage.submit(copy) is first
    assert stage.view.head(GROUP) == head
    other = stage.refused(anna, "message.post", words(2), actionId=json.loads(raw)["actionId"])
    assert other.code is ErrorCode.ACTION_ID_COLLISION


@pytest.mark.req("R-G-12")
def test_a_correlation_id_orders_nothing(stage: Stage, anna: Actor) -> None:
    later_one, earlier = stage.command(anna, "message.post", words(2)), stage.command(anna, "message.post", words(1))
    outcomes = [stage.submit(raw) for raw in (earlier, later_one)]
    assert all(isinstance(outcome, Decision) for outcome in outcomes)
    posted = [event.payload["message"]["messageId"] for event in stage.events if event.kind == "message.posted"]
    assert posted == ["urn:example:message:1", "urn:example:message:2"]
    assert {event.correlation_id for event in stage.events if event.kind == "message.posted"} == {
        "urn:example:correlation:1"
    }


# --- documents --------------------------------------------------------------------------------------------------------


def refuses(document: Any, kind: type, member: str) -> None:
    mapping = json.loads(msgspec.json.encode(document))
    msgspec.convert(mapping, kind)
    del mapping[member]
    with pytest.raises(msgspec.ValidationError):
        msgspec.convert(mapping, kind)


@pytest.mark.req("R-7.1-01", "R-7.1-02")
@pytest.mark.parametrize(
    "member", ["objective", "definitionOfDone", "deadline", "approvalPolicy", "missionOwner", "budget"]
)
def test_a_mission_document_states_all_it_must(stage: Stage, member: str) -> None:
    mission = stage.mission_row(MISSION).mission
    refuses(mission, Mission, member)
    empty = {**json.loads(msgspec.json.encode(mission)), "definitionOfDone": []}
    with pytest.raises(msgspec.ValidationError):
        msgspec.convert(empty, Mission)


@pytest.mark.req("R-8-01", "R-8-02")
@pytest.mark.parametrize(
    "member", ["member", "groupId", "membershipEpoch", "role", "visibilityStartSequence", "scopes"]
)
def test_a_membership_document_states_all_it_must(stage: Stage, anna: Actor, member: str) -> None:
    refuses(stage.member(GROUP, anna).membership, Membership, member)


@pytest.mark.req("R-7.2-02")
@pytest.mark.parametrize("member", ["holderAgentId", "coordinatorEpoch", "sessionEpoch", "expiresAt", "renewalCount"])
def test_a_coordinator_lease_states_all_it_must(stage: Stage, member: str) -> None:
    refuses(stage.mission_row(MISSION).coordinator_lease, Lease, member)


def granted(stage: Stage) -> DelegationGrant:
    dora = stage.worker("dora", "work_delegate")
    budget = {
        "currency": "EUR",
        "financialLimit": 1,
        "modelTokenLimit": 1,
        "toolCallLimit": 1,
        "computeSecondsLimit": 1,
        "wallClockSecondsLimit": 1,
        "externalSideEffectLimit": 1,
    }
    payload = {
        "grantId": "urn:example:grant:1",
        "granteeAgentId": dora.id,
        "targetWorkItemId": stage.authorize("target"),
        "allowedCapabilities": [CAPABILITY],
        "budget": budget,
        "maxDescendantDepth": 0,
        "expiresAt": later(stage, 60),
    }
    stage.ok(stage.coordinator, "membership.grant_delegation", payload)
    row = stage.view.get(GRANTS, "urn:example:grant:1")
    assert row is not None
    return row.grant


@pytest.mark.req(
    "R-9.1-05",
    "R-9.1-06",
    "R-9.1-07",
    "R-9.1-08",
    "R-9.1-09",
    "R-9.1-10",
    "R-9.1-12",
    "R-9.1-13",
    "R-9.1-14",
    "R-9.1-15",
    "R-9.1-16",
    "R-9.1-17",
)
def test_a_grant_document_states_all_it_must(stage: Stage) -> None:
    grant = granted(stage)
    for field in msgspec.structs.fields(DelegationGrant):
        refuses(grant, DelegationGrant, field.encode_name)
    human = {**json.loads(msgspec.json.encode(grant)), "grantedBy": {"type": "human", "id": "urn:x:h"}}
    with pytest.raises(msgspec.ValidationError):
        msgspec.convert(human, DelegationGrant)


@pytest.mark.req("R-9.1-35")
def test_a_grant_whose_target_is_nowhere_is_dead(stage: Stage) -> None:
    grant = granted(stage)
    stage.checked = False  # the row below is nobody's Event
    stage.view.put(GRANTS, GrantRow(msgspec.structs.replace(grant, target_work_item_id="urn:example:work:none")))
    dora = Actor(type="agent", id=grant.grantee_agent_id)
    payload = {
        "workItemId": work_id("child"),
        "contract": stage.contract(),
        "parentWorkItemId": grant.target_work_item_id,
        "delegationGrantId": grant.grant_id,
    }
    refusal = stage.refused(dora, "work.authorize", payload)
    assert (refusal.code, refusal.rule) == (ErrorCode.AUTH_FORBIDDEN, "R-9.1-35")


# --- invariants -------------------------------------------------------------------------------------------------------


@pytest.mark.req("R-4-09")
def test_verified_work_alone_completes_no_mission(stage: Stage, anna: Actor) -> None:
    stage.bring(stage.authorize("one"), "verified", anna)
    assert stage.mission_row(MISSION).mission.state == "active"


@pytest.mark.req("R-4-10")
def test_no_work_item_has_more_than_its_mission(stage: Stage) -> None:
    cases = {
        ErrorCode.BUDGET_EXCEEDED: stage.contract(budget={"toolCallLimit": 1001}),
        ErrorCode.INVALID_COMMAND: stage.contract(
            allowedResources=[{"resource": "urn:x:other", "operations": ["read"]}]
        ),
    }
    for code, contract in cases.items():
        payload = {"workItemId": work_id("one"), "contract": contract}
        assert stage.refused(stage.coordinator, "work.authorize", payload).code is code


@pytest.mark.req("R-4-06", "R-7.4-06")
def test_a_redaction_leaves_every_earlier_event_as_it_was(stage: Stage, anna: Actor) -> None:
    stage.ok(anna, "message.post", words())
    before = [msgspec.json.encode(event) for event in stage.events]
    payload = {"amendmentId": "urn:x:m:2", "messageId": "urn:example:message:1", "reason": "a secret"}
    stage.ok(stage.coordinator, "message.redact", payload)
    after = [msgspec.json.encode(event) for event in stage.events]
    assert (after[:-1], len(after)) == (before, len(before) + 1)


@pytest.mark.req("R-7.1-27")
def test_a_coordinator_recommends_cancellation_and_only_the_owner_cancels(stage: Stage, anna: Actor) -> None:
    item = stage.bring(stage.authorize("one"), "active", anna)
    stage.block(item, anna)
    mention = {"type": "human", "id": stage.owner.id}
    stage.ok(stage.coordinator, "message.post", {**words(), "content": "let us stop", "mentions": [mention]})
    assert stage.mission_row(MISSION).mission.state == "active"
    stage.ok(stage.owner, "mission.cancel", {"reason": "as recommended"})
    assert stage.state(item) == "cancelled"


@pytest.mark.req("R-20-06")
def test_a_lower_limit_ends_no_accepted_work(stage: Stage, anna: Actor) -> None:
    items = [stage.bring(stage.authorize(name), "active", anna) for name in ("one", "two")]
    queued = stage.bring(stage.authorize("three"), "queued", anna)
    stage.policy = Policy(active_work_items=1, queued_work_items=1, message_rate=1)
    assert [stage.state(item) for item in (*items, queued)] == ["active", "active", "queued"]
    for item in items:
        stage.renew(item, anna)
    refusal = stage.refused(anna, "work.start", {"workItemId": queued, "ownershipEpoch": 1})
    assert refusal.code is ErrorCode.RATE_LIMITED
    stage.hand_in(items[0], anna)
    stage.hand_in(items[1], anna)
    stage.start(queued, anna)
