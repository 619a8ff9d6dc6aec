"""Proposing, authorizing, revising and cancelling WorkItems."""

from __future__ import annotations

from typing import Any

import msgspec
import pytest

from mwnode.authority.items import document
from mwnode.authority.policy import Policy
from mwnode.authority.state import CONVERSATIONS, PROPOSALS, WORK_ITEMS
from mwnode.protocol.documents import Actor, WorkItem
from mwnode.protocol.errors import ErrorCode
from mwnode.protocol.events import WorkAuthorized, WorkCancelled
from tests.authority.scene import (
    ADD_DEPENDENCY,
    GROUP,
    MISSION,
    RESOURCE,
    Scene,
    later,
    work_id,
)


def proposal(scene: Scene, name: str = "1", **changes: Any) -> dict[str, Any]:
    return {"proposalId": f"urn:example:proposal:{name}", "contract": scene.contract(), **changes}


def authorization(scene: Scene, name: str = "item", **changes: Any) -> dict[str, Any]:
    return {"workItemId": work_id(name), "contract": scene.contract(), **changes}


# --- proposals --------------------------------------------------------------------------------------------------------


@pytest.mark.req("R-10.2-01", "R-15.1-34", "R-15.2-22", "R-9.1-38")
@pytest.mark.parametrize("role", ["worker", "reviewer", "observer", "work_delegate"])
def test_any_member_proposes(role: str) -> None:
    scene = Scene(workers=())
    member = scene.worker("mia", role)
    decision = scene.ok(member, "work.propose", proposal(scene))
    assert [fact.kind for fact in decision.facts] == ["work.proposed"]
    row = scene.view.get(PROPOSALS, "urn:example:proposal:1")
    assert row is not None
    assert row.proposal.status == "open"
    assert row.proposal.proposed_by == member


@pytest.mark.req("R-10.2-02")
def test_a_proposal_is_no_work_item_and_outsiders_make_none() -> None:
    scene = Scene()
    anna = scene.workers["anna"]
    scene.ok(anna, "work.propose", proposal(scene))
    assert not scene.view.all(WORK_ITEMS)
    item = "urn:example:proposal:1"
    payload = scene.offer_payload(item, anna)
    assert scene.refused(scene.coordinator, "work.offer", payload).code is ErrorCode.INVALID_COMMAND
    assert scene.refused(anna, "work.accept_offer", {"workItemId": item}).code is ErrorCode.INVALID_COMMAND
    outsider = scene.agent("outsider")
    payload = proposal(scene, "2")
    assert scene.refused(outsider, "work.propose", payload).code is ErrorCode.GROUP_NOT_FOUND


def test_a_proposal_stays_within_its_mission() -> None:
    scene = Scene()
    anna = scene.workers["anna"]
    beyond = scene.contract(deadline=later(scene, 31 * 86_400))
    assert scene.refused(anna, "work.propose", proposal(scene, contract=beyond)).code is ErrorCode.INVALID_COMMAND
    rich = scene.contract(budget={"toolCallLimit": 1001})
    assert scene.refused(anna, "work.propose", proposal(scene, contract=rich)).code is ErrorCode.BUDGET_EXCEEDED
    scene.ok(anna, "work.propose", proposal(scene, contract=scene.contract(budget={"toolCallLimit": 1000})))
    again = proposal(scene)
    assert scene.refused(anna, "work.propose", again).code is ErrorCode.INVALID_COMMAND
    orphan = proposal(scene, "2", parentWorkItemId=work_id("none"))
    assert scene.refused(anna, "work.propose", orphan).code is ErrorCode.INVALID_COMMAND


@pytest.mark.req("R-20-01")
def test_the_rate_of_proposals_is_limited_over_a_sliding_minute() -> None:
    scene = Scene(Policy(proposal_rate=2), workers=("anna", "bert"))
    anna = scene.workers["anna"]
    scene.ok(anna, "work.propose", proposal(scene, "1"))
    scene.advance(20)
    scene.ok(anna, "work.propose", proposal(scene, "2"))
    outcome = scene.send(anna, "work.propose", proposal(scene, "3"))
    assert outcome.code is ErrorCode.RATE_LIMITED  # type: ignore[union-attr]
    assert outcome.retry_after_ms == 40_000  # type: ignore[union-attr]
    scene.ok(scene.workers["bert"], "work.propose", proposal(scene, "3"))
    scene.advance(40)
    scene.ok(anna, "work.propose", proposal(scene, "4"))


# --- authorization ----------------------------------------------------------------------------------------------------


@pytest.mark.req("R-10.2-03", "R-15.1-35", "R-15.2-23", "R-9-01", "R-10.3-02")
def test_the_coordinator_authorizes_with_and_without_a_proposal() -> None:
    scene = Scene()
    contract = scene.contract()
    scene.ok(scene.workers["anna"], "work.propose", proposal(scene, contract=contract))
    first = authorization(scene, "first", contract=contract, proposalId="urn:example:proposal:1")
    for name, payload in (("first", first), ("second", authorization(scene, "second"))):
        revision = scene.mission_row(MISSION).mission.revision
        decision = scene.ok(scene.coordinator, "work.authorize", payload)
        fact = decision.facts[0]
        assert isinstance(fact.payload, WorkAuthorized)
        assert (fact.kind, fact.payload.state, fact.aggregate_revision) == ("work.authorized", "open", 1)
        assert fact.payload.mission_revision == revision + 1 == scene.mission_row(MISSION).mission.revision
        row = scene.item(work_id(name))
        assert (row.item.state, row.item.revision, row.ownership_epoch) == ("open", 1, 0)
        assert row.ownership_lease is None
        conversation = scene.view.get(CONVERSATIONS, row.item.conversation_id)
        assert conversation is not None
        assert conversation.conversation.primary_work_item_id == work_id(name)
    assert scene.item(work_id("first")).item.created_by == scene.workers["anna"]
    assert scene.item(work_id("second")).item.created_by == scene.coordinator
    known = scene.view.get(PROPOSALS, "urn:example:proposal:1")
    assert known is not None
    assert (known.proposal.status, known.proposal.authorized_work_item_id) == ("authorized", work_id("first"))


@pytest.mark.req("R-10.2-04", "R-9.1-01", "R-9.1-02", "R-2-14")
def test_what_is_not_authorized() -> None:
    scene = Scene()
    contract = scene.contract()
    scene.ok(scene.workers["anna"], "work.propose", proposal(scene, contract=contract))
    scene.authorize("item")
    used = authorization(scene, "other", contract=contract, proposalId="urn:example:proposal:1")
    scene.ok(scene.coordinator, "work.authorize", used)
    delegate = scene.worker("dora", "work_delegate")
    observer = scene.worker("otto", "observer")
    cases: list[tuple[Actor, dict[str, Any], ErrorCode]] = [
        (scene.coordinator, authorization(scene, "item"), ErrorCode.INVALID_COMMAND),
        (scene.coordinator, {**used, "workItemId": work_id("again")}, ErrorCode.INVALID_STATE_TRANSITION),
        (
            scene.coordinator,
            authorization(scene, "x", proposalId="urn:example:proposal:none"),
            ErrorCode.INVALID_COMMAND,
        ),
        (scene.workers["anna"], authorization(scene, "x"), ErrorCode.AUTH_FORBIDDEN),
        (observer, authorization(scene, "x"), ErrorCode.AUTH_FORBIDDEN),
        (delegate, authorization(scene, "x"), ErrorCode.AUTH_FORBIDDEN),
        (delegate, authorization(scene, "x", delegationGrantId="urn:example:grant:none"), ErrorCode.AUTH_FORBIDDEN),
    ]
    for actor, payload, code in cases:
        assert scene.refused(actor, "work.authorize", payload).code is code


def test_a_proposal_is_authorized_as_it_was_proposed() -> None:
    scene = Scene()
    scene.ok(scene.workers["anna"], "work.propose", proposal(scene))
    changed = authorization(scene, proposalId="urn:example:proposal:1")
    assert scene.refused(scene.coordinator, "work.authorize", changed).code is ErrorCode.REVISION_CONFLICT


@pytest.mark.req("R-7.1-30", "R-9.1-01")
def test_the_owner_authors_only_in_a_declared_emergency() -> None:
    scene = Scene()
    payload = authorization(scene)
    assert scene.refused(scene.owner, "work.authorize", payload).code is ErrorCode.INVALID_COMMAND
    scene.ok(scene.owner, "work.authorize", {**payload, "emergencyReason": "the site is down"})
    note = scene.policy_notes[-1].entry
    assert note.actor == scene.owner
    assert note.details["reason"] == "the site is down"
    anna = scene.workers["anna"]
    offer = scene.offer_payload(work_id("item"), anna)
    assert scene.refused(scene.owner, "work.offer", offer).code is ErrorCode.INVALID_COMMAND
    scene.ok(scene.owner, "work.offer", {**offer, "emergencyReason": "still down"})
    assert scene.policy_notes[-1].entry.details["workers"] == [anna.id]
    by_coordinator = authorization(scene, "other", emergencyReason="hurry")
    assert scene.refused(scene.coordinator, "work.authorize", by_coordinator).code is ErrorCode.INVALID_COMMAND


def test_exclusive_work_only_and_ids_that_agree() -> None:
    scene = Scene()
    shared = authorization(scene, exclusive=False)
    assert scene.refused(scene.coordinator, "work.authorize", shared).code is ErrorCode.INVALID_COMMAND
    refusal = scene.refused(scene.coordinator, "work.authorize", authorization(scene), workItemId=work_id("other"))
    assert refusal.code is ErrorCode.INVALID_COMMAND
    payload = authorization(scene)
    del payload["workItemId"]
    assert scene.refused(scene.coordinator, "work.authorize", payload).code is ErrorCode.INVALID_COMMAND
    scene.ok(scene.coordinator, "work.authorize", payload, workItemId=work_id("item"))


@pytest.mark.req("R-19-21")
def test_what_is_created_has_no_revision_yet() -> None:
    scene = Scene()
    outcome = scene.refused(scene.coordinator, "work.authorize", authorization(scene), expectedRevision=1)
    assert outcome.code is ErrorCode.REVISION_CONFLICT
    scene.ok(scene.coordinator, "work.authorize", authorization(scene), expectedRevision=0)


@pytest.mark.req("R-20-02", "R-9.1-26")
def test_depth_is_limited_by_policy() -> None:
    scene = Scene(Policy(delegation_depth=1))
    root = scene.authorize("root")
    child = scene.authorize("child", payload={"parentWorkItemId": root}, budget={"wallClockSecondsLimit": 10})
    deeper = authorization(
        scene,
        "grandchild",
        parentWorkItemId=child,
        contract=scene.contract(budget={"wallClockSecondsLimit": 5}),
    )
    assert scene.refused(scene.coordinator, "work.authorize", deeper).code is ErrorCode.RATE_LIMITED
    assert scene.item(child).delegation_depth == 1
    assert scene.item(child).parent_work_item_id == root


@pytest.mark.req("R-20-03")
def test_duplicate_decomposition_is_noted_then_refused() -> None:
    scene = Scene()
    contract = scene.contract()
    for name in ("one", "two"):
        scene.ok(scene.coordinator, "work.authorize", authorization(scene, name, contract=contract))
    assert [note.entry.decision for note in scene.policy_notes][-1] == "duplicate decomposition"
    third = authorization(scene, "three", contract=contract)
    assert scene.refused(scene.coordinator, "work.authorize", third).code is ErrorCode.RATE_LIMITED
    other = {**contract, "goal": "something else"}
    scene.ok(scene.coordinator, "work.authorize", authorization(scene, "three", contract=other))


@pytest.mark.req("R-10.2-41")
def test_a_substitute_stands_in_for_a_failed_item() -> None:
    scene = Scene()
    failed = scene.bring(scene.authorize("failed"), "failed", scene.workers["anna"])
    running = scene.authorize("running")
    waiting = scene.authorize("waiting", dependencyWorkItemIds=[failed])
    not_failed = authorization(scene, "x", replacesWorkItemId=running)
    assert scene.refused(scene.coordinator, "work.authorize", not_failed).code is ErrorCode.INVALID_STATE_TRANSITION
    substitute = scene.authorize("substitute", payload={"replacesWorkItemId": failed})
    assert scene.item(failed).replaced_by == substitute
    twice = authorization(scene, "x", replacesWorkItemId=failed)
    assert scene.refused(scene.coordinator, "work.authorize", twice).code is ErrorCode.INVALID_STATE_TRANSITION
    anna = scene.workers["anna"]
    scene.bring(waiting, "queued", anna)
    start = {"workItemId": waiting, "ownershipEpoch": 1}
    assert scene.refused(anna, "work.start", start).code is ErrorCode.INVALID_STATE_TRANSITION
    scene.bring(substitute, "verified", anna)
    scene.ok(anna, "work.start", start)


@pytest.mark.req("R-10.4-01", "R-10.4-02")
def test_work_is_added_while_other_work_runs() -> None:
    scene = Scene(workers=("anna", "bert"))
    first = scene.bring(scene.authorize("first"), "active", scene.workers["anna"])
    second = scene.bring(scene.authorize("second"), "active", scene.workers["bert"])
    scene.authorize("third")
    scene.authorize("fourth")
    assert scene.state(first) == scene.state(second) == "active"


# --- the contract -----------------------------------------------------------------------------------------------------

_REQUIRED = {
    "contractVersion": "R-10.1-01",
    "goal": "R-10.1-02",
    "requiredDeliverables": "R-10.1-03",
    "acceptanceCriteria": "R-10.1-04",
    "inputArtifacts": "R-10.1-06",
    "dependencyWorkItemIds": "R-10.1-07",
    "allowedResources": "R-10.1-08",
    "requiredCapabilities": "R-10.1-10",
    "deadline": "R-10.1-11",
    "requestedUrgency": "R-10.1-12",
    "businessImpact": "R-10.1-13",
    "budget": "R-10.1-14",
    "retryPolicy": "R-10.1-15",
    "sideEffectRisk": "R-10.1-17",
    "executionApproval": "R-10.1-18",
}


@pytest.mark.req(*_REQUIRED.values(), "R-19-24")
@pytest.mark.parametrize("member", _REQUIRED)
def test_a_contract_without_a_member_is_incomplete(member: str) -> None:
    scene = Scene()
    contract = scene.contract()
    del contract[member]
    for kind, payload in (
        ("work.authorize", authorization(scene, contract=contract)),
        ("work.propose", proposal(scene, contract=contract)),
    ):
        assert scene.refused(scene.coordinator, kind, payload).code is ErrorCode.WORK_CONTRACT_INCOMPLETE


@pytest.mark.req("R-10.1-01", "R-10.1-02", "R-10.1-03", "R-10.1-04", "R-10.1-05", "R-10.1-10", "R-10.1-13", "R-19-24")
@pytest.mark.parametrize(
    "changes",
    [
        {"goal": ""},
        {"requiredDeliverables": []},
        {"acceptanceCriteria": []},
        {"acceptanceCriteria": [{"criterionId": "x", "description": "y"}]},
        {"acceptanceCriteria": [{"criterionId": "x", "description": "y", "evidenceRequired": []}]},
        {"requiredCapabilities": []},
        {"requiredCapabilities": [{"id": "example.build"}]},
        {"businessImpact": ""},
        {"budget": {}},
        {"retryPolicy": {"backoff": "none", "maxDelay": "PT1M", "retryableFailures": []}},
    ],
)
def test_an_empty_member_is_a_missing_one(changes: dict[str, Any]) -> None:
    scene = Scene()
    payload = authorization(scene, contract=scene.contract(**changes))
    assert scene.refused(scene.coordinator, "work.authorize", payload).code is ErrorCode.WORK_CONTRACT_INCOMPLETE


@pytest.mark.req("R-10.1-01", "R-10.1-24")
def test_prose_is_no_contract() -> None:
    scene = Scene()
    for payload in ({"workItemId": work_id("x")}, {"workItemId": work_id("x"), "contract": "build it by Friday"}):
        assert scene.refused(scene.coordinator, "work.authorize", payload).code is ErrorCode.WORK_CONTRACT_INCOMPLETE
    contract = scene.contract(goal="Build it by Friday 2030-01-04T00:00:00Z")
    del contract["deadline"]
    payload = authorization(scene, contract=contract)
    assert scene.refused(scene.coordinator, "work.authorize", payload).code is ErrorCode.WORK_CONTRACT_INCOMPLETE


@pytest.mark.parametrize(
    "changes",
    [
        {"requestedUrgency": "now"},
        {"sideEffectRisk": "some"},
        {"executionApproval": "maybe"},
        {"inputArtifacts": ["a file"]},
        {"dependencyWorkItemIds": [work_id("other"), work_id("other")]},
        {"surprise": 1},
        {"retryPolicy": {"maxAttempts": 0, "backoff": "none", "maxDelay": "PT1M", "retryableFailures": []}},
        {"retryPolicy": {"maxAttempts": 1, "backoff": "random", "maxDelay": "PT1M", "retryableFailures": []}},
    ],
)
@pytest.mark.req("R-10.1-06", "R-10.1-07", "R-10.1-12", "R-10.1-15", "R-10.1-17", "R-10.1-18")
def test_a_wrong_member_is_an_invalid_command(changes: dict[str, Any]) -> None:
    scene = Scene()
    payload = authorization(scene, contract=scene.contract(**changes))
    assert scene.refused(scene.coordinator, "work.authorize", payload).code is ErrorCode.INVALID_COMMAND


@pytest.mark.req("R-14-09", "R-10.1-16")
def test_a_contract_stays_within_its_mission() -> None:
    scene = Scene()
    known = scene.store(b"input")
    good = {
        "deadline": later(scene, 30 * 86_400),
        "allowedResources": [{"resource": RESOURCE, "operations": ["read"]}],
        "inputArtifacts": [known],
    }
    bad: list[tuple[dict[str, Any], ErrorCode]] = [
        ({"deadline": later(scene, 30 * 86_400 + 1)}, ErrorCode.INVALID_COMMAND),
        ({"allowedResources": [{"resource": RESOURCE, "operations": ["delete"]}]}, ErrorCode.INVALID_COMMAND),
        (
            {"allowedResources": [{"resource": "urn:example:other", "operations": ["read"]}]},
            ErrorCode.INVALID_COMMAND,
        ),
        ({"inputArtifacts": ["sha256:" + "0" * 64]}, ErrorCode.INVALID_COMMAND),
        ({"dependencyWorkItemIds": [work_id("none")]}, ErrorCode.INVALID_COMMAND),
        ({"sideEffectRisk": "high_risk"}, ErrorCode.INVALID_COMMAND),
        ({"sideEffectRisk": "destructive", "executionApproval": "policy_required"}, ErrorCode.INVALID_COMMAND),
        ({"budget": {"toolCallLimit": 1001}}, ErrorCode.BUDGET_EXCEEDED),
        ({"budget": {"currency": "USD", "financialLimit": 1}}, ErrorCode.INVALID_COMMAND),
        ({"budget": {"currency": "EUR", "financialLimit": 0.0000001}}, ErrorCode.INVALID_COMMAND),
    ]
    for changes, code in bad:
        payload = authorization(scene, contract=scene.contract(**{**good, **changes}))
        assert scene.refused(scene.coordinator, "work.authorize", payload).code is code, changes
    scene.ok(scene.coordinator, "work.authorize", authorization(scene, contract=scene.contract(**good)))


@pytest.mark.req("R-12-33")
def test_a_cleanup_contract_is_a_contract() -> None:
    scene = Scene()
    broken = scene.contract(constraints={"cleanup": {"goal": "tidy"}})
    refusal = scene.refused(scene.coordinator, "work.authorize", authorization(scene, contract=broken))
    assert refusal.code is ErrorCode.WORK_CONTRACT_INCOMPLETE
    greedy = scene.contract(constraints={"cleanup": scene.contract(deadline=later(scene, 40 * 86_400))})
    refusal = scene.refused(scene.coordinator, "work.authorize", authorization(scene, contract=greedy))
    assert refusal.code is ErrorCode.INVALID_COMMAND


# --- dependencies -----------------------------------------------------------------------------------------------------


@pytest.mark.req("R-10.4-04", "R-15.1-09", "R-15.2-26")
def test_dependencies_close_no_cycle() -> None:
    scene = Scene()
    a = scene.authorize("a")
    b = scene.authorize("b", dependencyWorkItemIds=[a])
    c = scene.authorize("c", dependencyWorkItemIds=[b])

    def add(item: str, dependency: str) -> dict[str, Any]:
        return {"workItemId": item, "dependencyId": dependency}

    for item, dependency in ((a, a), (a, b), (a, c), (b, c), (a, work_id("none"))):
        refusal = scene.refused(scene.coordinator, ADD_DEPENDENCY, add(item, dependency))
        assert refusal.code is ErrorCode.INVALID_COMMAND
    assert scene.refused(scene.coordinator, ADD_DEPENDENCY, add(b, a)).code is ErrorCode.INVALID_COMMAND
    revision = scene.mission_row(MISSION).mission.revision
    decision = scene.ok(scene.coordinator, ADD_DEPENDENCY, add(c, a), expectedRevision=1)
    assert [fact.kind for fact in decision.facts] == ["work.contract.revised"]
    row = scene.item(c)
    assert row.item.contract.dependency_work_item_ids == (b, a)
    assert (row.item.contract.contract_version, row.item.revision) == (2, 2)
    assert scene.mission_row(MISSION).mission.revision == revision + 1
    itself = authorization(scene, "d", contract=scene.contract(dependencyWorkItemIds=[work_id("d")]))
    assert scene.refused(scene.coordinator, "work.authorize", itself).code is ErrorCode.INVALID_COMMAND
    anna = scene.workers["anna"]
    revised = {**scene.contract(), "contractVersion": 2, "dependencyWorkItemIds": [c]}
    refusal = scene.refused(scene.coordinator, "work.offer", scene.offer_payload(a, anna, contract=revised))
    assert refusal.code is ErrorCode.INVALID_COMMAND


def test_nothing_waits_for_what_is_cancelled() -> None:
    scene = Scene()
    gone = scene.bring(scene.authorize("gone"), "cancelled", scene.workers["anna"])
    item = scene.authorize("item")
    payload = {"workItemId": item, "dependencyId": gone}
    assert scene.refused(scene.coordinator, ADD_DEPENDENCY, payload).code is ErrorCode.INVALID_COMMAND


@pytest.mark.req("R-10.1-23")
def test_a_live_owner_keeps_the_contract_that_it_accepted() -> None:
    scene = Scene()
    anna = scene.workers["anna"]
    other = scene.authorize("other")
    item = scene.bring(scene.authorize("item"), "blocked", anna)
    payload = {"workItemId": item, "dependencyId": other}
    refusal = scene.refused(scene.coordinator, ADD_DEPENDENCY, payload)
    assert refusal.code is ErrorCode.INVALID_STATE_TRANSITION
    scene.advance(901)
    scene.ok(scene.coordinator, ADD_DEPENDENCY, payload)
    assert scene.refused(anna, ADD_DEPENDENCY, payload).code is ErrorCode.AUTH_FORBIDDEN


# --- cancellation -----------------------------------------------------------------------------------------------------


@pytest.mark.req("R-10.2-29", "R-15.1-45", "R-15.2-35", "R-11.3-19", "R-12-31")
@pytest.mark.parametrize("state", ["open", "offered", "queued", "active", "blocked", "submitted"])
def test_cancelling_ends_the_item_and_its_leases(state: str) -> None:
    scene = Scene()
    anna = scene.workers["anna"]
    item = scene.bring(scene.authorize("item"), state, anna)
    before = scene.item(item)
    reserved = scene.account(MISSION).reserved
    decision = scene.ok(scene.coordinator, "work.cancel", {"workItemId": item, "reason": "not needed"})
    payload = decision.facts[0].payload
    assert isinstance(payload, WorkCancelled)
    row = scene.item(item)
    assert (row.item.state, row.item.revision) == ("cancelled", before.item.revision + 1)
    for lease in (row.ownership_lease, row.execution_lease, row.blocked_lease):
        assert lease is None or lease.state in ("revoked", "released")
    for name in ("ownership_lease", "execution_lease", "blocked_lease"):
        closed, held = getattr(payload, name), getattr(before, name)
        assert (held is not None and held.state == "active") == (getattr(closed, "state", None) == "revoked")
    owned = state not in ("open", "offered")
    assert (payload.cleared == ("owner",)) == owned
    assert row.ownership_epoch == (2 if owned else 0)
    assert scene.account(MISSION).reserved[4] == reserved[4] - 600
    assert scene.agent_row(anna).queued == scene.agent_row(anna).active == 0


@pytest.mark.req("R-15.1-45", "R-10.2-39")
def test_whoever_may_cancel_and_what_the_owner_hears_afterwards() -> None:
    scene = Scene()
    anna = scene.workers["anna"]
    item = scene.bring(scene.authorize("item"), "active", anna)
    three = scene.three(item)
    payload = {"workItemId": item, "reason": "r"}
    assert scene.refused(anna, "work.cancel", payload).code is ErrorCode.AUTH_FORBIDDEN
    stale = scene.refused(scene.coordinator, "work.cancel", payload, expectedRevision=1)
    assert stale.code is ErrorCode.REVISION_CONFLICT
    scene.ok(scene.owner, "work.cancel", payload)
    late = {**three, "checkpoint": scene.checkpoint()}
    assert scene.refused(anna, "work.checkpoint", late).code is ErrorCode.INVALID_STATE_TRANSITION
    by_policy = scene.authorize("policy")
    scene.ok(scene.organization, "work.cancel", {"workItemId": by_policy, "reason": "r"}, groupId=GROUP)


@pytest.mark.req("R-12-33", "R-10.2-29")
@pytest.mark.parametrize("ending", ["cancel", "fail"])
def test_cleanup_follows_what_was_started(ending: str) -> None:
    scene = Scene()
    anna = scene.workers["anna"]
    cleanup = scene.contract(goal="remove the half-made archive")
    for state, appears in (("queued", False), ("active", True), ("blocked", True)):
        item = scene.authorize(f"{ending}-{state}", constraints={"cleanup": cleanup})
        scene.bring(item, state, anna)
        known = len(scene.view.all(WORK_ITEMS))
        decision = scene.cancel(item) if ending == "cancel" else scene.fail(item)
        assert (len(scene.view.all(WORK_ITEMS)) == known + 1) == appears
        if appears:
            assert decision.facts[-1].cause.type == "policy"
            assert isinstance(decision.facts[-1].payload, WorkAuthorized)
            assert decision.facts[-1].payload.work_item.contract.goal == cleanup["goal"]


def test_the_durable_document_carries_its_links() -> None:
    scene = Scene()
    root = scene.authorize("root")
    child = scene.authorize("child", payload={"parentWorkItemId": root}, budget={"wallClockSecondsLimit": 10})
    plain = document(scene.item(root))
    assert plain == scene.item(root).item
    linked = document(scene.item(child))
    assert isinstance(linked.extensions, dict)
    data = linked.extensions["urn:mwnode:extension:core"].data
    assert data["parentWorkItemId"] == root


# --- revisions, ends of Missions, and limits that stay honest --------------------------------------------------------


@pytest.mark.req("R-10.2-43", "R-19-21")
@pytest.mark.parametrize("shift", [-1, 1])
def test_a_revision_that_is_not_the_current_one_is_refused(shift: int) -> None:
    scene = Scene(workers=("anna", "bert"))
    anna = scene.workers["anna"]
    item = scene.authorize("item")
    steps: list[tuple[Actor, str, dict[str, Any]]] = [
        (scene.coordinator, "work.offer", scene.offer_payload(item, anna)),
        (anna, "work.accept_offer", {"workItemId": item}),
        (anna, "work.start", {"workItemId": item, "ownershipEpoch": 1}),
    ]
    for actor, kind, payload in steps:
        revision = scene.item(item).item.revision
        refusal = scene.send(actor, kind, payload, expectedRevision=revision + shift)
        assert getattr(refusal, "code", None) is ErrorCode.REVISION_CONFLICT, kind
        assert getattr(refusal, "current_revision", None) == revision
        assert getattr(refusal, "expected_revision", None) == revision + shift
        scene.ok(actor, kind, payload, expectedRevision=revision)
    revision = scene.item(item).item.revision
    checkpoint = {**scene.three(item), "checkpoint": scene.checkpoint()}
    refusal = scene.refused(anna, "work.checkpoint", checkpoint, expectedRevision=revision + shift)
    assert refusal.code is ErrorCode.REVISION_CONFLICT
    scene.ok(anna, "work.checkpoint", checkpoint, expectedRevision=revision)


@pytest.mark.req("R-10.2-44")
@pytest.mark.parametrize("state", ["queued", "active", "blocked", "submitted", "verified"])
def test_the_document_of_an_owned_item_is_whole(state: str) -> None:
    scene = Scene()
    item = scene.bring(scene.authorize("item"), state, scene.workers["anna"])
    document = msgspec.to_builtins(scene.item(item).item)
    assert msgspec.convert(document, WorkItem) == scene.item(item).item
    members = ["owner", "selectionBasis", *(["submission"] if state in ("submitted", "verified") else [])]
    for member in members:
        with pytest.raises(msgspec.ValidationError):
            msgspec.convert({name: value for name, value in document.items() if name != member}, WorkItem)


@pytest.mark.req("R-10.2-37", "R-10.2-38", "R-12-31", "R-12-32")
def test_the_end_of_a_mission_reaches_what_is_unfinished_only() -> None:
    scene = Scene(Policy(active_work_items=9), workers=())
    anna = scene.worker("anna", max_concurrency=9)
    items = {
        state: scene.bring(scene.authorize(state), state, anna)
        for state in ("open", "offered", "queued", "active", "blocked", "submitted", "verified", "failed", "cancelled")
    }
    before = {state: scene.item(item) for state, item in items.items()}
    decision = scene.ok(scene.owner, "mission.cancel", {"reason": "no money"})
    ended = {fact.work_item_id for fact in decision.facts if fact.kind == "work.cancelled"}
    for state, item in items.items():
        row = scene.item(item)
        if state in ("verified", "failed", "cancelled"):
            assert row == before[state]
            assert item not in ended
        else:
            assert row.item.state == "cancelled"
            assert item in ended
        for lease in (row.ownership_lease, row.execution_lease, row.blocked_lease):
            assert lease is None or lease.state != "active"
    offer = scene.offer_payload(items["failed"], anna)
    assert scene.refused(scene.coordinator, "work.offer", offer).code is ErrorCode.INVALID_STATE_TRANSITION
    accept = {"workItemId": items["offered"]}
    assert scene.refused(anna, "work.accept_offer", accept).code is ErrorCode.INVALID_STATE_TRANSITION
    fresh = authorization(scene, "fresh")
    assert scene.refused(scene.coordinator, "work.authorize", fresh).code is ErrorCode.INVALID_STATE_TRANSITION


@pytest.mark.req("R-10.1-09")
def test_constraints_survive() -> None:
    scene = Scene()
    constraints = {"network": "none", "memoryBytes": 1024}
    resources = [{"resource": RESOURCE, "operations": ["read"], "constraints": {"paths": ["src/"]}}]
    item = scene.authorize("item", constraints=constraints, allowedResources=resources)
    contract = scene.item(item).item.contract
    assert contract.constraints == constraints
    assert contract.allowed_resources[0].constraints == {"paths": ["src/"]}
    wire = next(event for event in scene.events if event.kind == "work.authorized").payload
    assert wire["workItem"]["contract"]["constraints"] == constraints


@pytest.mark.req("R-12-20", "R-10.2-42")
def test_only_the_owner_moves_the_missions_limits() -> None:
    scene = Scene()
    amend = "ext.mwnode.core.budget_amend"
    payload = {"budget": {"wallClockSecondsLimit": 200_000}, "reason": "more"}
    for actor in (scene.coordinator, scene.workers["anna"]):
        assert scene.refused(actor, amend, payload).code is ErrorCode.AUTH_FORBIDDEN
    scene.ok(scene.owner, amend, payload)
    assert scene.account(MISSION).limits[4] == 200_000


@pytest.mark.req("R-20-06", "R-19-31")
def test_a_limit_refuses_before_it_accepts_and_drops_nothing_that_it_accepted() -> None:
    scene = Scene(Policy(active_work_items=1, queued_work_items=1))
    anna = scene.workers["anna"]
    first = scene.bring(scene.authorize("first"), "active", anna)
    second = scene.bring(scene.authorize("second"), "queued", anna)
    third = scene.bring(scene.authorize("third"), "offered", anna)
    for kind, payload in (
        ("work.start", {"workItemId": second, "ownershipEpoch": 1}),
        ("work.accept_offer", {"workItemId": third}),
    ):
        assert scene.refused(anna, kind, payload).code is ErrorCode.RATE_LIMITED
    # A policy that became stricter later takes nothing away.
    scene.policy = Policy(active_work_items=1, queued_work_items=1, version="2.0.0")
    assert [scene.state(item) for item in (first, second, third)] == ["active", "queued", "offered"]
    scene.hand_in(first, anna)
    scene.start(second, anna)
    scene.accept(third, anna)


@pytest.mark.req("R-15.1-13")
def test_the_same_bytes_get_the_same_answer() -> None:
    scene = Scene()
    raw = scene.command(scene.coordinator, "work.authorize", authorization(scene))
    first = scene.submit(raw)
    head = scene.view.head(GROUP)
    assert scene.submit(raw) is first
    assert scene.view.head(GROUP) == head


@pytest.mark.req("R-G-12")
def test_correlation_ids_order_nothing() -> None:
    logs = []
    for names in (("z", "a"), ("a", "z")):
        scene = Scene()
        for index, name in enumerate(names):
            payload = authorization(scene, str(index))
            scene.ok(scene.coordinator, "work.authorize", payload, correlationId=f"urn:example:correlation:{name}")
        logs.append([(event.sequence, event.work_item_id) for event in scene.events if event.group_id == GROUP])
    assert logs[0] == logs[1]


@pytest.mark.req("R-14-07")
def test_work_inside_a_child_needs_no_more_than_its_parent_item() -> None:
    scene = Scene(workers=("anna",))
    parent = scene.authorize("parent")
    group, mission = "urn:example:group:child", "urn:example:mission:child"
    child = {
        **scene.mission_payload(mission, group),
        "parentWorkItemId": parent,
        "coordinatorAgentId": scene.workers["anna"].id,
        "deadline": later(scene, 86_400),
        "budget": {"wallClockSecondsLimit": 10},
        "permissions": [],
        "approvalPolicy": {"finalHumanApproval": False, "highRiskExecutionApproval": True},
    }
    scene.ok(scene.coordinator, "mission.create_child", child)
    own = {"deadline": later(scene, 3600), "budget": {"wallClockSecondsLimit": 1}}
    for capability, code in (
        ({"id": "example.other", "version": "1.0.0"}, "AUTH_FORBIDDEN"),
        ({"id": "example.build", "version": "1.3.0"}, "AUTH_FORBIDDEN"),
        ({"id": "example.build", "version": "1.1.0"}, "accepted"),
    ):
        payload = {
            "workItemId": work_id("inside"),
            "contract": scene.contract(**own, requiredCapabilities=[capability]),
        }
        assert scene.code(scene.workers["anna"], "work.authorize", payload, groupId=group) == code
