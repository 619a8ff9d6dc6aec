"""Offers: who gets one, how they end, and that the first acceptance alone makes an owner."""

from __future__ import annotations

from typing import Any

import pytest
from msgspec import UNSET

from mwnode.authority.policy import Policy
from mwnode.authority.state import CONTEXTS, MEMBERSHIPS, membership_key
from mwnode.protocol.documents import Actor
from mwnode.protocol.errors import ErrorCode
from mwnode.protocol.events import OfferAccepted, OfferCreated
from tests.authority.memory import CAPABILITY, DAY
from tests.authority.scene import ADD_DEPENDENCY, DECLINE, GROUP, Scene, selection_basis, work_id


def statuses(scene: Scene, item: str) -> list[tuple[str, str]]:
    offers = scene.item(item).item.offers
    assert isinstance(offers, tuple)
    return [(offer.agent_id.rsplit(":", 1)[1], offer.status) for offer in offers]


def accept(item: str, **more: Any) -> dict[str, Any]:
    return {"workItemId": item, **more}


# --- making offers ----------------------------------------------------------------------------------------------------


@pytest.mark.req("R-10.2-05", "R-15.1-36", "R-15.2-24", "R-10.3-02", "R-10.2-07")
def test_an_offer_reserves_nothing() -> None:
    scene = Scene(workers=("anna", "bert"))
    item = scene.authorize("item")
    decision = scene.offer(item, scene.workers["anna"], offerExpiresInSeconds=60)
    payload = decision.facts[0].payload
    assert isinstance(payload, OfferCreated)
    assert payload.work_item.contract.goal
    assert payload.work_item.state == "offered"
    row = scene.item(item)
    assert row.ownership_lease is None
    assert row.item.owner is UNSET
    assert isinstance(row.item.offers, tuple)
    assert row.item.offers[0].expires_at == scene.now.plus(60).text()
    scene.offer(item, scene.workers["bert"])
    assert statuses(scene, item) == [("anna", "pending"), ("bert", "pending")]


@pytest.mark.req("R-10.2-05", "R-10.2-06", "R-11.5-01", "R-11.4-05")
@pytest.mark.parametrize(
    "state, seconds", [("open", 0), ("offered", 0), ("queued", 900), ("active", 300), ("blocked", 900), ("failed", 0)]
)
def test_offers_from_six_states_without_a_live_owner(state: str, seconds: int) -> None:
    scene = Scene(workers=("anna", "bert"))
    item = scene.bring(scene.authorize("item"), state, scene.workers["anna"])
    if seconds:
        scene.advance(seconds - 1)
        refusal = scene.refused(scene.coordinator, "work.offer", scene.offer_payload(item, scene.workers["bert"]))
        assert refusal.code is ErrorCode.INVALID_STATE_TRANSITION
        scene.advance(1)
    scene.offer(item, scene.workers["bert"])
    assert scene.state(item) == "offered"


@pytest.mark.req("R-11.5-01", "R-10.2-05")
def test_a_missed_start_deadline_frees_the_item() -> None:
    scene = Scene(workers=("anna", "bert"))
    anna = scene.workers["anna"]
    item = scene.bring(scene.authorize("item"), "offered", anna)
    scene.accept(item, anna, startBySeconds=60, ownershipLeaseSeconds=900)
    scene.advance(60)
    start = {"workItemId": item, "ownershipEpoch": 1}
    assert scene.refused(anna, "work.start", start).code is ErrorCode.WORK_LEASE_EXPIRED
    scene.offer(item, scene.workers["bert"])
    assert scene.state(item) == "offered"


@pytest.mark.req("R-10.2-08", "R-19-28", "R-11.3-18", "R-11.5-02", "R-11.5-04", "R-G-13")
def test_a_lapsed_owner_is_fenced() -> None:
    scene = Scene(workers=("anna", "bert"))
    anna, bert = scene.workers["anna"], scene.workers["bert"]
    item = scene.bring(scene.authorize("item"), "active", anna)
    content = scene.publish(item, anna)
    three = scene.three(item)
    ownership = scene.item(item).ownership_lease
    assert ownership is not None
    evidence = scene.evidence(item, anna, artifactHashes=[content])
    scene.advance(400, timers=False)
    decision = scene.offer(item, bert)
    payload = decision.facts[0].payload
    assert isinstance(payload, OfferCreated)
    assert payload.execution_lease.state == "expired"  # type: ignore[union-attr]
    assert payload.ownership_lease.state == "revoked"  # type: ignore[union-attr]
    assert payload.cleared == ("owner",)
    for kind, more in (
        ("work.checkpoint", {"checkpoint": scene.checkpoint()}),
        ("work.submit", {"artifactHashes": [content], "evidence": [evidence]}),
        ("work.block", {"checkpoint": scene.checkpoint(), "reason": "r", "requiredResolution": "q"}),
    ):
        assert scene.refused(anna, kind, {**three, **more}).code is ErrorCode.WORK_STALE_OWNERSHIP
    start = {"workItemId": item, "ownershipEpoch": three["ownershipEpoch"]}
    assert scene.refused(anna, "work.start", start).code is ErrorCode.WORK_STALE_OWNERSHIP
    epoch = scene.accept(item, bert)
    assert epoch > three["ownershipEpoch"]
    assert scene.refused(anna, "work.start", start).code is ErrorCode.WORK_STALE_OWNERSHIP
    above = {"workItemId": item, "ownershipEpoch": epoch + 1}
    assert scene.refused(bert, "work.start", above).code is ErrorCode.WORK_STALE_OWNERSHIP
    assert scene.state(item) == "queued"


def test_reassignment_keeps_the_latest_checkpoint() -> None:
    scene = Scene(workers=("anna", "bert"))
    anna = scene.workers["anna"]
    item = scene.bring(scene.authorize("item"), "active", anna)
    saved = scene.checkpoint()
    scene.ok(anna, "work.checkpoint", {**scene.three(item), "checkpoint": saved})
    scene.advance(901)
    scene.offer(item, scene.workers["bert"])
    row = scene.item(item)
    assert row.checkpoint is not None
    assert row.checkpoint.checkpoint_id == saved["checkpointId"]


@pytest.mark.req("R-7.1-31", "R-19-14", "R-19-16")
def test_who_is_no_candidate() -> None:
    scene = Scene(workers=())
    item = scene.authorize("item")
    outsider = scene.agent("outsider")
    observer = scene.worker("otto", "observer")
    unable = scene.worker("una", capabilities=({"id": "example.other", "version": "1.0.0"},))
    older = scene.worker("olga", capabilities=({"id": "example.build", "version": "1.1.0"},))
    other_major = scene.worker("mona", capabilities=({"id": "example.build", "version": "2.0.0"},))
    newer = scene.worker("nora", capabilities=({"id": "example.build", "version": "1.9.9"},))

    def code(actor: Actor) -> str:
        return scene.code(scene.coordinator, "work.offer", scene.offer_payload(item, actor))

    refusal = scene.refused(scene.coordinator, "work.offer", scene.offer_payload(item, outsider))
    assert refusal.code is ErrorCode.MEMBERSHIP_REQUIRED
    assert refusal.details == {"agentId": outsider.id}
    assert [code(actor) for actor in (observer, unable, older, other_major)] == ["AUTH_FORBIDDEN"] * 4
    assert code(newer) == "accepted"
    scene.card(newer, capabilities=(CAPABILITY,), status="revoked")
    assert code(newer) == "AUTH_FORBIDDEN"


@pytest.mark.req("R-10.3-04")
def test_candidates_are_bounded() -> None:
    scene = Scene(Policy(offer_candidates_max=2), workers=("anna", "bert", "carl"))
    item = scene.authorize("item")
    everybody = scene.offer_payload(item, *scene.workers.values())
    assert scene.refused(scene.coordinator, "work.offer", everybody).code is ErrorCode.RATE_LIMITED
    scene.offer(item, scene.workers["anna"], scene.workers["bert"])
    third = scene.offer_payload(item, scene.workers["carl"])
    assert scene.refused(scene.coordinator, "work.offer", third).code is ErrorCode.RATE_LIMITED
    scene.ok(scene.workers["bert"], DECLINE, {"workItemId": item, "reason": "capacity"})
    scene.offer(item, scene.workers["carl"])


@pytest.mark.req("R-10.2-07")
def test_a_candidate_named_again_gets_a_new_offer() -> None:
    scene = Scene(workers=("anna",))
    anna = scene.workers["anna"]
    item = scene.authorize("item")
    scene.offer(item, anna)
    old = scene.item(item).item.offers[0].offer_id  # type: ignore[index]
    scene.offer(item, anna)
    assert statuses(scene, item) == [("anna", "withdrawn"), ("anna", "pending")]
    assert scene.refused(anna, "work.accept_offer", accept(item, offerId=old)).code is ErrorCode.WORK_OFFER_EXPIRED
    scene.advance(300)
    scene.offer(item, anna)
    assert statuses(scene, item) == [("anna", "withdrawn"), ("anna", "expired"), ("anna", "pending")]
    scene.accept(item, anna)


@pytest.mark.req("R-10.1-22", "R-10.1-23", "R-10.1-21")
@pytest.mark.parametrize("state", ["queued", "active"])
def test_a_revision_rises_by_one_and_is_accepted_anew(state: str) -> None:
    scene = Scene()
    anna = scene.workers["anna"]
    item = scene.bring(scene.authorize("item"), state, anna)
    scene.advance(900)
    contract = {**scene.contract(), "goal": "something clearer"}
    for version in (1, 3):
        payload = scene.offer_payload(item, anna, contract={**contract, "contractVersion": version})
        refusal = scene.refused(scene.coordinator, "work.offer", payload)
        assert refusal.code is ErrorCode.REVISION_CONFLICT
        # What was revised and what stands: two numbers that say something, never one number twice.
        assert (refusal.expected_revision, refusal.current_revision) == (version - 1, 1)
    payload = scene.offer_payload(item, anna, contract={**contract, "contractVersion": 0})
    assert scene.code(scene.coordinator, "work.offer", payload) == "INVALID_COMMAND"
    decision = scene.offer(item, anna, contract={**contract, "contractVersion": 2})
    assert [fact.kind for fact in decision.facts] == ["work.contract.revised", "work.offer.created"]
    assert decision.receipt == 1
    start = {"workItemId": item, "ownershipEpoch": 1}
    assert scene.refused(anna, "work.start", start).code is ErrorCode.WORK_STALE_OWNERSHIP
    old = scene.refused(anna, "work.accept_offer", accept(item, contractVersion=1))
    assert old.code is ErrorCode.REVISION_CONFLICT
    scene.accept(item, anna, contractVersion=2)
    assert scene.item(item).item.contract.goal == "something clearer"
    scene.start(item, anna)


@pytest.mark.req("R-10.1-23", "R-10.2-07")
@pytest.mark.parametrize("by", ["offer", "dependency"])
def test_an_offer_that_is_older_than_a_revision_accepts_only_what_it_names(by: str) -> None:
    """A pending offer stays (decision D68), but whoever holds it has seen another contract."""
    scene = Scene(workers=("anna", "bert"))
    anna, bert = scene.workers["anna"], scene.workers["bert"]
    item, other = scene.authorize("item"), scene.authorize("other")
    scene.offer(item, anna)
    for version in (2, 3):
        if by == "offer":
            contract = {**scene.contract(), "goal": f"version {version}", "contractVersion": version}
            scene.offer(item, bert, contract=contract)
        else:
            more = other if version == 2 else scene.authorize("more")
            scene.ok(scene.coordinator, ADD_DEPENDENCY, {"workItemId": item, "dependencyId": more})
        refusal = scene.refused(anna, "work.accept_offer", accept(item))
        assert (refusal.code, refusal.rule) == (ErrorCode.REVISION_CONFLICT, "R-10.1-23")
        assert (refusal.expected_revision, refusal.current_revision) == (1, version)
    assert scene.refused(anna, "work.accept_offer", accept(item, contractVersion=2)).current_revision == 3
    if by == "offer":
        # Bert's newest offer was made for the newest version: it needs no naming.
        scene.accept(item, bert)
    else:
        scene.accept(item, anna, contractVersion=3)
    assert scene.item(item).item.state == "queued"


@pytest.mark.req("R-10.1-23")
def test_an_offer_made_anew_is_for_the_newest_contract() -> None:
    scene = Scene(workers=("anna", "bert"))
    anna, bert = scene.workers["anna"], scene.workers["bert"]
    item = scene.authorize("item")
    scene.offer(item, anna)
    scene.offer(item, bert, contract={**scene.contract(), "goal": "another", "contractVersion": 2})
    assert scene.code(anna, "work.accept_offer", accept(item)) == "REVISION_CONFLICT"
    scene.offer(item, anna)
    scene.accept(item, anna)


@pytest.mark.req("R-11.4-08")
def test_attempts_end_and_a_revision_renews_them() -> None:
    scene = Scene()
    anna = scene.workers["anna"]
    policy = {"maxAttempts": 2, "backoff": "none", "maxDelay": "PT1M", "retryableFailures": []}
    item = scene.authorize("item", retryPolicy=policy)
    for attempt in (1, 2):
        scene.offer(item, anna)
        decision = scene.fail(item)
        assert decision.facts[0].payload.attempt == attempt  # type: ignore[attr-defined]
    refusal = scene.refused(scene.coordinator, "work.offer", scene.offer_payload(item, anna))
    assert refusal.code is ErrorCode.INVALID_STATE_TRANSITION
    revised = {**scene.contract(retryPolicy=policy), "contractVersion": 2}
    scene.offer(item, anna, contract=revised)
    scene.accept(item, anna)


def test_nothing_is_offered_past_the_contracts_deadline() -> None:
    scene = Scene()
    item = scene.authorize("item", deadline=scene.now.plus(DAY).text())
    scene.advance(DAY, timers=False)
    # The Coordinator's own lease ended too; an emergency does not need it.
    payload = scene.offer_payload(item, scene.workers["anna"], emergencyReason="late")
    assert scene.refused(scene.owner, "work.offer", payload).code is ErrorCode.INVALID_STATE_TRANSITION


@pytest.mark.req("R-8-10", "R-13.3-03")
def test_an_offer_hands_over_a_context_package() -> None:
    scene = Scene(workers=("anna", "bert"))
    anna = scene.workers["anna"]
    item = scene.authorize("item")
    other = scene.context_package(scene.coordinator, work_id("other"))
    refusal = scene.refused(scene.coordinator, "work.offer", scene.offer_payload(item, anna, contextPackage=other))
    assert refusal.code is ErrorCode.INVALID_COMMAND
    package = scene.context_package(scene.coordinator, item)
    decision = scene.offer(item, anna, contextPackage=package)
    payload = decision.facts[0].payload
    assert isinstance(payload, OfferCreated)
    assert payload.context_package_id == package["contextPackageId"]
    row = scene.view.get(CONTEXTS, package["contextPackageId"])
    assert row is not None
    assert anna in row.recipients
    assert scene.workers["bert"] not in row.recipients
    assert row.package_hash == payload.context_package_hash


@pytest.mark.req("R-10.3-11", "R-10.3-12")
@pytest.mark.parametrize("member", [*selection_basis(Scene(workers=()))])
def test_an_assignment_states_its_selection_basis(member: str) -> None:
    scene = Scene()
    item = scene.authorize("item")
    payload = scene.offer_payload(item, scene.workers["anna"])
    del payload["selectionBasis"][member]
    assert scene.refused(scene.coordinator, "work.offer", payload).code is ErrorCode.INVALID_COMMAND
    payload = scene.offer_payload(item, scene.workers["anna"])
    payload["selectionBasis"]["reasoning"] = "first I thought"
    assert scene.refused(scene.coordinator, "work.offer", payload).code is ErrorCode.INVALID_COMMAND


# --- accepting --------------------------------------------------------------------------------------------------------


@pytest.mark.req("R-10.2-09", "R-15.1-37", "R-15.2-25", "R-11.3-02", "R-11.3-04")
def test_acceptance_makes_an_owner() -> None:
    scene = Scene()
    anna = scene.workers["anna"]
    item = scene.bring(scene.authorize("item"), "offered", anna)
    decision = scene.ok(anna, "work.accept_offer", accept(item, ownershipLeaseSeconds=600, startBySeconds=100))
    payload = decision.facts[0].payload
    assert isinstance(payload, OfferAccepted)
    row = scene.item(item)
    assert row.item.owner == payload.owner
    assert (payload.owner.agent_id, payload.owner.ownership_epoch) == (anna.id, 1)
    assert [(pin.id, pin.version) for pin in payload.owner.capability_pins] == [("example.build", "1.2.0")]
    lease = row.ownership_lease
    assert lease is not None
    assert (lease.lease_id, lease.ownership_epoch) == (payload.owner.ownership_lease_id, 1)
    assert (lease.expires_at, lease.start_by) == (scene.now.plus(600).text(), scene.now.plus(100).text())
    assert (row.item.state, scene.agent_row(anna).queued) == ("queued", 1)
    assert scene.member(GROUP, anna).obligations == 1
    assert payload.membership is UNSET


@pytest.mark.req("R-8-11", "R-8-09")
def test_acceptance_activates_a_provisional_membership() -> None:
    scene = Scene(workers=())
    anna = scene.agent("anna")
    item = scene.authorize("item")
    scene.join(anna, provisional=True, contextPackage=scene.context_package(scene.coordinator, item))
    scene.offer(item, anna)
    before = scene.member(GROUP, anna).membership
    assert before.state == "provisional"
    scene.accept(item, anna)
    after = scene.member(GROUP, anna).membership
    assert (after.state, after.membership_epoch) == ("active", before.membership_epoch + 1)
    assert after.activated_at == scene.now.text()
    assert after.provisional_expires_at is UNSET


@pytest.mark.req("R-10.3-05", "R-10.3-06", "R-19-26", "R-15.3-01", "R-10.2-10")
def test_the_first_acceptance_wins() -> None:
    names = tuple(f"w{number}" for number in range(8))
    scene = Scene(workers=names)
    item = scene.authorize("item")
    scene.offer(item, *scene.workers.values())
    raws = [scene.command(worker, "work.accept_offer", accept(item)) for worker in scene.workers.values()]
    outcomes = [scene.submit(raw) for raw in raws]
    codes = [getattr(outcome, "code", "accepted") for outcome in outcomes]
    assert codes == ["accepted", *[ErrorCode.WORK_ALREADY_OWNED] * 7]
    assert statuses(scene, item) == [("w0", "accepted"), *[(name, "lost_race") for name in names[1:]]]
    loser = scene.workers["w1"]
    start = {"workItemId": item, "ownershipEpoch": 1}
    assert scene.refused(loser, "work.start", start).code is ErrorCode.AUTH_FORBIDDEN
    for state, step in (("active", scene.start), ("submitted", scene.hand_in)):
        step(item, scene.workers["w0"])
        assert scene.state(item) == state
        assert scene.refused(loser, "work.accept_offer", accept(item)).code is ErrorCode.WORK_ALREADY_OWNED
    scene.accept_result(item)
    assert scene.refused(loser, "work.accept_offer", accept(item)).code is ErrorCode.INVALID_STATE_TRANSITION


@pytest.mark.req("R-10.2-11", "R-10.2-12", "R-19-25")
def test_an_offer_runs_out_without_an_event() -> None:
    scene = Scene()
    anna = scene.workers["anna"]
    item = scene.bring(scene.authorize("item"), "offered", anna)
    before, head = scene.item(item), scene.view.head(GROUP)
    scene.advance(299)
    scene.advance(1)
    assert scene.item(item) == before
    assert scene.view.head(GROUP) == head
    assert scene.refused(anna, "work.accept_offer", accept(item)).code is ErrorCode.WORK_OFFER_EXPIRED
    assert scene.state(item) == "offered"
    assert scene.item(item).ownership_epoch == 0


@pytest.mark.req("R-10.3-01")
def test_an_offer_is_good_until_its_very_end() -> None:
    scene = Scene()
    anna = scene.workers["anna"]
    item = scene.bring(scene.authorize("item"), "offered", anna)
    scene.advance(299)
    scene.session(anna)
    scene.accept(item, anna)


@pytest.mark.req("R-10.2-10", "R-19-25", "R-19-14")
def test_who_cannot_accept() -> None:
    scene = Scene(workers=("anna", "bert", "carl"))
    anna, bert, carl = scene.workers.values()
    item = scene.authorize("item")
    assert scene.refused(anna, "work.accept_offer", accept(item)).code is ErrorCode.INVALID_STATE_TRANSITION
    scene.offer(item, anna, bert)
    scene.ok(bert, DECLINE, {"workItemId": item, "reason": "deadline"})
    assert scene.refused(bert, "work.accept_offer", accept(item)).code is ErrorCode.WORK_OFFER_EXPIRED
    assert scene.refused(carl, "work.accept_offer", accept(item)).code is ErrorCode.AUTH_FORBIDDEN
    assert scene.refused(scene.coordinator, "work.accept_offer", accept(item)).code is ErrorCode.AUTH_FORBIDDEN
    offers = scene.item(item).item.offers
    assert isinstance(offers, tuple)
    foreign = accept(item, offerId=offers[1].offer_id)
    assert scene.refused(anna, "work.accept_offer", foreign).code is ErrorCode.WORK_OFFER_EXPIRED
    conflict = scene.refused(anna, "work.accept_offer", accept(item), expectedRevision=1)
    assert conflict.code is ErrorCode.REVISION_CONFLICT
    scene.accept(item, anna, offerId=offers[0].offer_id)
    assert scene.refused(carl, "work.accept_offer", accept(item)).code is ErrorCode.AUTH_FORBIDDEN
    assert scene.refused(anna, "work.accept_offer", accept(item)).code is ErrorCode.INVALID_STATE_TRANSITION


def test_offers_from_before_a_failure_are_over() -> None:
    scene = Scene(workers=("anna", "bert"))
    item = scene.authorize("item")
    scene.offer(item, scene.workers["anna"])
    scene.fail(item)
    anna = scene.workers["anna"]
    assert scene.refused(anna, "work.accept_offer", accept(item)).code is ErrorCode.INVALID_STATE_TRANSITION
    scene.offer(item, scene.workers["bert"])
    assert statuses(scene, item) == [("anna", "withdrawn"), ("bert", "pending")]
    assert scene.refused(anna, "work.accept_offer", accept(item)).code is ErrorCode.WORK_OFFER_EXPIRED


@pytest.mark.req("R-20-02", "R-19-31")
def test_what_one_agent_may_take_on() -> None:
    scene = Scene(Policy(queued_work_items=1, active_work_items=4), workers=("anna",))
    anna = scene.workers["anna"]
    first = scene.bring(scene.authorize("first"), "queued", anna)
    second = scene.bring(scene.authorize("second"), "offered", anna)
    assert scene.refused(anna, "work.accept_offer", accept(second)).code is ErrorCode.RATE_LIMITED
    scene.start(first, anna)
    scene.accept(second, anna)


@pytest.mark.req("R-7.1-31")
def test_a_card_that_lost_its_capability_cannot_accept() -> None:
    scene = Scene()
    anna = scene.workers["anna"]
    item = scene.bring(scene.authorize("item"), "offered", anna)
    scene.card(anna, capabilities=({"id": "example.other", "version": "1.0.0"},))
    assert scene.refused(anna, "work.accept_offer", accept(item)).code is ErrorCode.AUTH_FORBIDDEN


# --- declining --------------------------------------------------------------------------------------------------------


@pytest.mark.req("R-10.3-09", "R-10.3-10")
def test_a_decline_names_its_reason_and_moves_no_state() -> None:
    scene = Scene(workers=("anna", "bert"))
    anna, bert = scene.workers.values()
    item = scene.authorize("item")
    scene.offer(item, anna, bert)
    scene.ok(anna, DECLINE, {"workItemId": item, "reason": "budget", "detail": "too little"})
    offers = scene.item(item).item.offers
    assert isinstance(offers, tuple)
    assert (offers[0].status, offers[0].decline_reason) == ("declined", "budget")
    assert scene.refused(anna, DECLINE, {"workItemId": item, "reason": "other"}).code is ErrorCode.WORK_OFFER_EXPIRED
    scene.ok(bert, DECLINE, {"workItemId": item, "reason": "other"})
    assert scene.state(item) == "offered"
    assert scene.refused(bert, DECLINE, {"workItemId": item, "reason": "bored"}).code is ErrorCode.INVALID_COMMAND


@pytest.mark.req("R-8-12")
def test_obligations_are_counted() -> None:
    scene = Scene()
    anna = scene.workers["anna"]
    one = scene.bring(scene.authorize("one"), "active", anna)
    two = scene.bring(scene.authorize("two"), "queued", anna)
    assert scene.member(GROUP, anna).obligations == 2
    scene.cancel(two)
    scene.hand_in(one, anna)
    assert (scene.member(GROUP, anna).obligations, scene.member(GROUP, anna).idle_since) == (1, None)
    scene.accept_result(one)
    row = scene.view.get(MEMBERSHIPS, membership_key(GROUP, anna))
    assert row is not None
    assert (row.obligations, row.idle_since) == (0, scene.now.text())
