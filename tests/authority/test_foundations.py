"""Rules that hold everywhere (sections 3, 4 and 6): one owner, one Coordinator, nothing without its ground."""

from __future__ import annotations

import re
from typing import Any

import msgspec
import pytest
from msgspec import UNSET

from mwnode.authority.policy import Policy
from mwnode.authority.state import LEASES
from mwnode.authority.state import WORK_ITEMS as WORK
from mwnode.authority.tokens import CapabilityClaims, permits, stands
from mwnode.authority.views import may_read_artifact
from mwnode.protocol.commands import CORE, EXT, PAYLOADS, Usage
from mwnode.protocol.documents import Actor, ContextPackage, Evidence, WorkContract
from mwnode.protocol.errors import ErrorCode, ErrorDocument, Rejection
from mwnode.protocol.events import EVENT_PAYLOADS
from mwnode.trust.verification import Failure, verify
from tests.authority.memory import CAPABILITY
from tests.authority.scene import GROUP, MISSION, RESOURCE, Scene, later, usage
from tests.authority.staging import CHILD, CHILD_GROUP, Stage
from tests.authority.stories import events
from tests.authority.test_execution import GRANT, approve
from tests.authority.test_tokens import ask

OTHER, OTHER_GROUP = "urn:example:mission:2", "urn:example:group:2"


def names_of(value: Any) -> set[str]:
    """Every member name at any depth."""
    if isinstance(value, dict):
        return set(value).union(*(names_of(inner) for inner in value.values()))
    if isinstance(value, list | tuple):
        return set().union(*(names_of(inner) for inner in value))
    return set()


NAME = re.compile(r"[A-Za-z]+")
"""Of what names of members are made; an ID that is a key, as of an extension, is none."""


# --- section 3 --------------------------------------------------------------------------------------------------------


@pytest.mark.req("R-3-01", "R-7.2-01")
def test_of_two_appointments_in_a_race_one_coordinator_epoch_is_current() -> None:
    stage = Stage(workers=("heir", "rival"))
    heir, rival = stage.workers.values()
    kind = "mission.assign_coordinator"
    raws = [stage.command(stage.owner, kind, {"coordinatorAgentId": agent.id}) for agent in (heir, heir, rival)]
    first, again, other = (stage.submit(raw) for raw in raws)
    assert not isinstance(first, Rejection)
    assert isinstance(again, Rejection)
    assert again.code is ErrorCode.INVALID_STATE_TRANSITION
    # Who comes after the first replaces it, under the next epoch; nobody shares one.
    assert not isinstance(other, Rejection)
    coordinators = [row.lease for row in stage.view.all(LEASES) if row.lease.lease_type == "coordinator"]
    assert {lease.coordinator_epoch for lease in coordinators} == {1, 2, 3}
    assert [lease.holder_agent_id for lease in coordinators if lease.state == "active"] == [rival.id]
    late = stage.refused(heir, "mission.renew_coordinator", {"leaseSeconds": 3600}, coordinatorEpoch=2)
    assert late.code is ErrorCode.AUTH_STALE_COORDINATOR


@pytest.mark.req("R-3-02", "R-14-02")
def test_a_root_belongs_to_a_human_and_a_child_to_the_parent_coordinator() -> None:
    stage = Stage(workers=("leader",))
    leader = stage.workers["leader"]
    payload = stage.mission_payload(OTHER, OTHER_GROUP)
    raw = stage.command(stage.coordinator, "mission.create", payload, groupId=OTHER_GROUP)
    failure = verify(raw, "command", stage.registry)
    assert isinstance(failure, Failure)
    assert failure.code is ErrorCode.SCHEMA_VALIDATION_FAILED
    stage.promote(stage.authorize("outer"), leader)
    assert stage.mission_row(MISSION).mission.mission_owner == stage.owner
    assert stage.mission_row(CHILD).mission.mission_owner == stage.coordinator
    assert stage.mission_row(CHILD).mission.coordinator.agent_id == leader.id


@pytest.mark.req("R-3-04")
def test_a_group_shows_one_authority_and_nothing_of_what_stands_behind_it() -> None:
    log = list(events())
    assert len({event.accepted_by.id for event in log}) == 1
    shown = set().union(*(names_of(msgspec.to_builtins(event)) for event in log))
    shown |= {field.encode_name for field in msgspec.structs.fields(ErrorDocument)}
    inside = re.compile(r"replica|leader|quorum|consensus|shard|primary(?!Work)|failover|raft|node", re.IGNORECASE)
    assert {name for name in shown if NAME.fullmatch(name) and inside.search(name)} == set()


# --- section 4 --------------------------------------------------------------------------------------------------------


@pytest.mark.req("R-4-03", "R-12-01", "R-12-16")
def test_a_consequential_action_needs_all_five_grounds() -> None:
    """Acceptance, Ownership Epoch, Execution Lease, Approval and token: without one of them nothing is done."""
    resources = [{"resource": RESOURCE, "operations": ["write"]}]
    contract = {"executionApproval": "human_required", "allowedResources": resources}

    def acts(missing: str) -> bool:
        scene = Scene(workers=("anna", "bert"))
        anna, bert = scene.workers.values()
        item = scene.authorize("item", **contract)
        scene.offer(item, anna)
        if missing != "acceptance":
            scene.accept(item, anna)
        if missing not in ("acceptance", "approval"):
            scope = {"operations": ["write"], "resources": resources}
            scene.ok(scene.owner, GRANT, approve(scene, item, **scope, expiresAt=later(scene, 3000)))
        started = scene.code(anna, "work.start", {"workItemId": item, "ownershipEpoch": 1})
        if started != "accepted":
            return False
        wanted = {"operations": ["write"], "resources": resources}
        claims = ask(scene, item, **({**wanted, "operations": []} if missing == "token" else wanted))
        if missing == "lease":
            scene.advance(301)
        if missing == "epoch":
            scene.advance(1000)
            scene.offer(item, bert)
            scene.accept(item, bert)
        if not isinstance(claims, CapabilityClaims):
            return False
        spent = Usage(**dict.fromkeys(Usage.__struct_fields__, 0))
        return stands(scene.view, scene.now, claims) and permits(claims, "write", RESOURCE, spent)

    assert acts("nothing")
    for missing in ("acceptance", "epoch", "lease", "approval", "token"):
        assert not acts(missing), missing


@pytest.mark.req("R-4-05", "R-11.5-04", "R-10.2-08", "R-19-28")
def test_a_former_owner_completes_nothing() -> None:
    scene = Scene(workers=("anna", "bert"))
    anna, bert = scene.workers.values()
    item = scene.bring(scene.authorize("item"), "active", anna)
    content = scene.publish(item, anna)
    late = {
        **scene.three(item),
        "artifactHashes": [content],
        "evidence": [scene.evidence(item, anna, artifactHashes=[content])],
    }
    scene.advance(1000)
    for step in (scene.offer, scene.accept, scene.start):
        step(item, bert)  # type: ignore[operator]  # three methods of one shape
        before = scene.item(item)
        assert scene.refused(anna, "work.submit", late).code is ErrorCode.WORK_STALE_OWNERSHIP
        assert scene.item(item) == before
    # The former owner's Artifact stays, as what it is: no result.
    assert (scene.state(item), scene.item(item).item.submission) == ("active", UNSET)
    assert content in {known for _, known in scene.item(item).artifacts}


@pytest.mark.req("R-4-08", "R-13.3-14")
def test_content_leaves_its_group_only_by_a_recorded_decision() -> None:
    stage = Stage(workers=("anna", "bert"))
    anna, bert = stage.workers.values()
    item = stage.bring(stage.authorize("item"), "active", anna)
    content = stage.publish(item, anna)
    stage.found(OTHER, OTHER_GROUP)
    there = {"groupId": OTHER_GROUP}
    member = {"principal": {"type": "agent", "id": bert.id}, "role": "worker"}
    stage.ok(stage.coordinator, "membership.change", member, **there)
    stage.ok(stage.coordinator, "membership.end", {"principal": member["principal"]})
    other = "urn:example:work:other"
    stage.ok(stage.coordinator, "work.authorize", {"workItemId": other, "contract": stage.contract()}, **there)
    stage.ok(stage.coordinator, "work.offer", stage.offer_payload(other, bert), **there)
    stage.ok(bert, "work.accept_offer", {"workItemId": other}, **there)
    stage.ok(bert, "work.start", {"workItemId": other, "ownershipEpoch": 1}, **there)
    three = {name: value for name, value in stage.three(other).items() if name != "workItemId"}
    made_of_it = {"artifact": stage.artifact(other, bert, sourceArtifactHashes=[content]), **three}
    assert not may_read_artifact(stage.view, bert, content, stage.now)
    assert stage.refused(bert, "artifact.publish", made_of_it, **there).code is ErrorCode.AUTH_FORBIDDEN
    forward = {"artifactHash": content, "toGroupId": OTHER_GROUP, "reason": "they build on it"}
    assert stage.refused(anna, f"{CORE}.artifact_forward", forward).code is ErrorCode.AUTH_FORBIDDEN
    stage.ok(stage.coordinator, f"{CORE}.artifact_forward", forward)
    assert may_read_artifact(stage.view, bert, content, stage.now)
    stage.ok(bert, "artifact.publish", made_of_it, **there)
    noted = [entry.details for entry in stage.view.policy_log(GROUP) if entry.decision == "artifact forwarded"]
    assert [(entry["artifactHash"], entry["toGroupId"]) for entry in noted] == [(content, OTHER_GROUP)]


@pytest.mark.req("R-4-13", "R-13.2-14")
def test_nothing_asks_for_thoughts_prompts_or_memories() -> None:
    """Missions come to their end without them, and no Command, Event, contract, Evidence or package has a place."""
    log = list(events())
    assert "mission.approved" in {event.kind for event in log}
    shown = set().union(*(names_of(msgspec.to_builtins(event)) for event in log))
    types = (*PAYLOADS.values(), *EVENT_PAYLOADS.values(), WorkContract, Evidence, ContextPackage)
    shown |= {field.encode_name for kind in types for field in msgspec.structs.fields(kind)}
    private = re.compile(r"prompt|thought|reasoning|memor|scratchpad", re.IGNORECASE)
    assert {name for name in shown if private.search(name)} == set()


# --- section 6 --------------------------------------------------------------------------------------------------------

UPGRADED = ({**CAPABILITY, "version": "1.3.0"},)
INCOMPATIBLE = ({**CAPABILITY, "version": "2.0.0"},)


@pytest.mark.req("R-6.1-06", "R-10.3-07")
def test_an_assignment_pins_the_card_and_a_version_for_every_capability() -> None:
    scene = Scene()
    more = {"id": "example.check", "version": "2.1.0"}
    anna = scene.worker("both", capabilities=({**CAPABILITY, "version": "1.4.0"}, more))
    scene.card(anna, capabilities=({**CAPABILITY, "version": "1.4.0"}, more))
    asked = [CAPABILITY, {**more, "version": "2.0.0"}]
    item = scene.bring(scene.authorize("item", requiredCapabilities=asked), "queued", anna)
    owner = scene.item(item).item.owner
    assert owner is not UNSET
    assert owner.agent_card_version == 2
    assert {(pin.id, pin.version) for pin in owner.capability_pins} == {
        ("example.build", "1.4.0"),
        ("example.check", "2.1.0"),
    }


@pytest.mark.req("R-6.1-07")
def test_work_goes_on_under_a_compatible_upgrade() -> None:
    scene = Scene()
    anna = scene.workers["anna"]
    item = scene.bring(scene.authorize("item"), "active", anna)
    lease = scene.lease(item)
    scene.card(anna, capabilities=UPGRADED)
    assert (scene.state(item), scene.lease(item)) == ("active", lease)
    scene.ok(anna, "work.checkpoint", {**scene.three(item), "checkpoint": scene.checkpoint()})
    scene.start(item, anna)
    scene.hand_in(item, anna)
    scene.accept_result(item)
    assert scene.state(item) == "verified"


@pytest.mark.req("R-6.1-08")
def test_an_incompatible_upgrade_starts_nothing_that_was_accepted_before() -> None:
    scene = Scene()
    anna = scene.workers["anna"]
    item = scene.bring(scene.authorize("item"), "active", anna)
    scene.card(anna, capabilities=INCOMPATIBLE)
    # What runs may still save what it has.
    scene.ok(anna, "work.checkpoint", {**scene.three(item), "checkpoint": scene.checkpoint()})
    refusal = scene.refused(anna, "work.start", {"workItemId": item, "ownershipEpoch": 1})
    assert (refusal.code, refusal.rule) == (ErrorCode.AUTH_FORBIDDEN, "R-6.1-08")
    scene.advance(901)
    again = scene.refused(scene.coordinator, "work.offer", scene.offer_payload(item, anna))
    assert again.code is ErrorCode.AUTH_FORBIDDEN
    scene.card(anna, capabilities=UPGRADED)
    scene.offer(item, anna)
    scene.ok(anna, "work.start", {"workItemId": item, "ownershipEpoch": scene.accept(item, anna)})


@pytest.mark.req("R-6.4-80", "R-6.4-01", "R-18-01", "R-7.3-05")
def test_well_signed_is_not_entitled() -> None:
    """A Card, a profile and an Approval, each validly signed by somebody whose they are not to sign (decision D1)."""
    stage = Stage()
    anna, stranger = stage.workers["anna"], stage.human("stranger")
    stage.join(stranger, "observer")
    card = msgspec.to_builtins(stage.agent_row(anna).card)
    del card["signature"]
    forged = stage.sign(stage.authority, {**card, "cardVersion": 2, "issuedAt": stage.now.text()})
    kind = f"{EXT}.registry.agent_card_register"
    refusal = stage.refused(stage.organization, kind, {"card": forged})
    assert refusal.code in (ErrorCode.AUTH_FORBIDDEN, ErrorCode.AUTH_INVALID_SIGNATURE)
    hashes = stage.submitted()
    approval = {"approval": stage.approval(hashes, signer=stranger)}
    assert stage.refused(stage.owner, "mission.approve", approval).code is ErrorCode.AUTH_FORBIDDEN
    assert stage.refused(stranger, "mission.approve", approval).code is ErrorCode.AUTH_FORBIDDEN
    assert stage.mission_row(MISSION).mission.state == "awaiting_approval"


# --- sections 10 and 13 -----------------------------------------------------------------------------------------------


def running_child(stage: Stage) -> tuple[Actor, Actor, str]:
    leader, anna = stage.workers["leader"], stage.workers["anna"]
    outer = stage.authorize("outer")
    stage.promote(outer, leader)
    return leader, anna, outer


@pytest.mark.req("R-10.2-34", "R-10.2-36")
@pytest.mark.parametrize("end", ["approve", "terminate"])
def test_the_end_of_a_child_that_was_superseded_moves_nothing(end: str) -> None:
    """The item went its own way while the child ended: it is not `blocked` on that child any more."""
    stage = Stage(workers=("anna", "leader"))
    leader, anna, outer = running_child(stage)
    hashes = stage.child_submitted(leader, anna) if end == "approve" else []
    other = stage.bring(stage.authorize("other"), "active", anna)
    row = stage.item(outer)
    # The link is cut by hand: by Commands an item leaves its running child only together with it (decision A40).
    for view in (stage.view, stage.shadow):
        view.put(WORK, msgspec.structs.replace(row, child_mission_id="urn:example:mission:elsewhere"))
    states = {name: stage.item(name).item for name in (outer, other)}
    parent = stage.mission_row(MISSION)
    if end == "approve":
        mine = stage.approval(hashes, signer=stage.coordinator, mission_id=CHILD, kind="child_mission")
        decision = stage.in_child(stage.coordinator, "mission.approve", {"approval": mine})
    else:
        report = stage.report(outer, leader, **about(CHILD))
        decision = stage.in_child(leader, "mission.terminate", {"reason": "lost", "evidence": [report]})
    assert {fact.group_id for fact in decision.facts} == {CHILD_GROUP}
    assert {name: stage.item(name).item for name in (outer, other)} == states
    assert stage.mission_row(MISSION) == parent


def about(mission_id: str) -> dict[str, Any]:
    return {"missionId": mission_id, "groupId": CHILD_GROUP, "subject": {"type": "mission", "id": mission_id}}


@pytest.mark.req("R-10.2-36", "R-14-17")
@pytest.mark.parametrize("policy", ["block_parent_work_item", "fail_parent_work_item", "fail_parent_mission"])
def test_a_failed_child_leaves_its_item_blocked_or_failed_and_others_alone(policy: str) -> None:
    stage = Stage(workers=("anna", "leader"))
    leader, anna = stage.workers["leader"], stage.workers["anna"]
    outer, other = stage.authorize("outer"), stage.bring(stage.authorize("other"), "verified", anna)
    stage.promote(outer, leader, failurePolicy=policy)
    before = stage.item(other).item
    report = stage.report(outer, leader, **about(CHILD))
    stage.in_child(leader, "mission.terminate", {"reason": "lost", "evidence": [report]})
    assert stage.state(outer) == ("blocked" if policy == "block_parent_work_item" else "failed")
    assert stage.item(other).item == before


@pytest.mark.req("R-10.4-06")
def test_a_child_is_traced_by_correlation_links_and_causes_alone() -> None:
    stage = Stage(workers=("anna", "leader"))
    leader, anna, outer = running_child(stage)
    hashes = stage.child_submitted(leader, anna)
    mine = stage.approval(hashes, signer=stage.coordinator, mission_id=CHILD, kind="child_mission")
    stage.in_child(stage.coordinator, "mission.approve", {"approval": mine})
    by_kind = {(event.kind, event.group_id): event for event in stage.events}
    promoted = by_kind["mission.child.created", GROUP]
    begun = by_kind["mission.created", CHILD_GROUP]
    approved = by_kind["mission.approved", CHILD_GROUP]
    adopted = by_kind["work.result.accepted", GROUP]
    assert promoted.payload["childGroupId"] == begun.group_id == begun.payload["mission"]["groupId"]
    assert begun.payload["mission"]["parent"] == {"missionId": MISSION, "workItemId": outer, "depth": 1}
    assert begun.payload["parentEventId"] == begun.cause.id == promoted.event_id
    assert (adopted.cause.type, adopted.cause.id) == ("event", approved.event_id)
    assert adopted.payload["submission"]["artifactHashes"] == hashes
    assert promoted.correlation_id == begun.correlation_id
    assert approved.correlation_id == adopted.correlation_id


@pytest.mark.req("R-13.3-10")
def test_a_package_tells_when_it_was_made() -> None:
    scene = Scene()
    package = scene.context_package(scene.coordinator)
    assert package["generatedAt"] == scene.now.text()
    untimed = {name: value for name, value in package.items() if name != "generatedAt"}
    payload = {"contextPackage": untimed}
    refusal = scene.refused(scene.coordinator, f"{CORE}.context_package_publish", payload)
    assert (refusal.code, refusal.details) == (
        ErrorCode.INVALID_COMMAND,
        {"path": "/payload/contextPackage/generatedAt"},
    )
    ahead = scene.context_package(scene.coordinator, generatedAt=later(scene, 61))
    refusal = scene.refused(scene.coordinator, f"{CORE}.context_package_publish", {"contextPackage": ahead})
    assert refusal.code is ErrorCode.INVALID_COMMAND


@pytest.mark.req("R-12-23", "R-20-06")
def test_a_spent_budget_pauses_and_lets_what_runs_be_saved() -> None:
    """Decisions G9, F25: new execution waits; checkpoint, block, submission and failure are always taken."""
    for step in ("checkpoint", "block", "submit", "fail"):
        scene = Scene(Policy(), workers=("anna",))
        anna = scene.workers["anna"]
        item = scene.bring(scene.authorize("item", budget={"toolCallLimit": 2}), "active", anna)
        content = scene.publish(item, anna)
        spend = {**scene.three(item), "usageDelta": usage(toolCalls=2)}
        scene.ok(anna, f"{EXT}.core.resource_usage_record", spend)
        three = scene.three(item)
        payload: dict[str, Any] = {
            "checkpoint": {**three, "checkpoint": scene.checkpoint()},
            "block": {**three, "checkpoint": scene.checkpoint(), "reason": "spent", "requiredResolution": "more"},
            "submit": {
                **three,
                "artifactHashes": [content],
                "evidence": [scene.evidence(item, anna, artifactHashes=[content])],
            },
            "fail": {**three, "reason": "spent", "evidence": [scene.report(item, anna)]},
        }[step]
        scene.ok(anna, f"work.{step}", payload)
        if step == "checkpoint":
            start = {"workItemId": item, "ownershipEpoch": 1}
            assert scene.refused(anna, "work.start", start).code is ErrorCode.BUDGET_EXCEEDED
