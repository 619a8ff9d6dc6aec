"""Submissions, reviews and failures, and the Evidence that each of them needs."""

from __future__ import annotations

from typing import Any

import pytest
from msgspec import UNSET

from mwnode.authority.policy import Policy
from mwnode.authority.state import EVIDENCE
from mwnode.protocol.errors import ErrorCode
from mwnode.protocol.events import ResultAccepted, WorkFailed, WorkSubmitted
from tests.authority.scene import MISSION, Scene, criterion, later

TWO = [criterion("green", "deterministic_test", "schema_validation"), criterion("good", "reviewer_assessment")]


def running(scene: Scene, **contract: Any) -> tuple[str, str]:
    """An active WorkItem with one published Artifact."""
    anna = scene.workers["anna"]
    item = scene.bring(scene.authorize("item", **contract), "active", anna)
    return item, scene.publish(item, anna)


def submission(scene: Scene, item: str, content: str, *evidence: dict[str, Any], **changes: Any) -> dict[str, Any]:
    return {**scene.three(item), "artifactHashes": [content], "evidence": list(evidence), **changes}


def given(scene: Scene, item: str, content: str, kind: str = "deterministic_test", **changes: Any) -> dict[str, Any]:
    return scene.evidence(
        item, scene.workers["anna"], **{"type": kind, "criterionIds": ["green"], "artifactHashes": [content], **changes}
    )


# --- submission -------------------------------------------------------------------------------------------------------


@pytest.mark.req("R-10.2-23", "R-11.3-15", "R-13.2-01", "R-15.1-42", "R-15.2-32")
def test_a_submission_covers_every_criterion() -> None:
    scene = Scene()
    anna = scene.workers["anna"]
    item, content = running(scene, acceptanceCriteria=TWO)
    tested, valid = given(scene, item, content), given(scene, item, content, "schema_validation")
    decision = scene.ok(anna, "work.submit", submission(scene, item, content, tested, valid))
    event = decision.facts[0].payload
    assert isinstance(event, WorkSubmitted)
    assert event.submission.artifact_hashes == (content,)
    assert event.submission.evidence_ids == (tested["evidenceId"], valid["evidenceId"])
    assert event.submission.submitted_at == scene.now.text()
    assert event.execution_lease is not UNSET
    assert event.execution_lease.state == "released"
    row = scene.item(item)
    assert row.item.submission == event.submission
    assert row.evidence_ids == event.submission.evidence_ids
    known = scene.view.get(EVIDENCE, tested["evidenceId"])
    assert known is not None
    assert known.sequence == decision.facts[0].sequence


@pytest.mark.req("R-10.2-24", "R-13.2-01", "R-13.2-08", "R-13.2-07", "R-13.2-13")
def test_submissions_that_prove_nothing() -> None:
    scene = Scene(workers=("anna", "bert"))
    anna, bert = scene.workers.values()
    item, content = running(scene, acceptanceCriteria=TWO)
    other = scene.bring(scene.authorize("other"), "active", bert)
    foreign = scene.publish(other, bert)
    tested, valid = given(scene, item, content), given(scene, item, content, "schema_validation")

    def code(*evidence: dict[str, Any], **changes: Any) -> str:
        return scene.code(anna, "work.submit", submission(scene, item, content, *evidence, **changes))

    assert code() == "INVALID_COMMAND"
    assert code(tested) == "INVALID_COMMAND"
    assert code(tested, given(scene, item, content, "schema_validation", result="failed")) == "INVALID_COMMAND"
    assert code(tested, given(scene, item, content, "schema_validation", result="inconclusive")) == "INVALID_COMMAND"
    assert code(tested, valid, artifactHashes=[]) == "INVALID_COMMAND"
    assert code(tested, valid, artifactHashes=[foreign]) == "INVALID_COMMAND"
    assert code(tested, valid, artifactHashes=None, artifactIds=["urn:example:artifact:none"]) == "INVALID_COMMAND"
    assert code(tested, valid, given(scene, item, content, criterionIds=["unknown"])) == "INVALID_COMMAND"
    assert code(tested, valid, given(scene, item, content, workItemId=other)) == "INVALID_COMMAND"
    assert code(tested, valid, given(scene, item, content, artifactHashes=[foreign])) == "INVALID_COMMAND"
    assert code(tested, valid, given(scene, item, content, createdAt=later(scene, 61))) == "INVALID_COMMAND"
    subject = {"type": "work_item", "id": other}
    assert code(tested, valid, given(scene, item, content, subject=subject)) == "INVALID_COMMAND"
    assert code(tested, valid, tested) == "INVALID_COMMAND"
    by_bert = scene.evidence(item, bert, criterionIds=["green"])
    assert code(tested, valid, by_bert) == "INVALID_COMMAND"  # decision D16
    forged = {**valid, "method": "guess"}
    assert code(tested, forged) == "AUTH_INVALID_SIGNATURE"
    assert scene.state(item) == "active"
    subject = {"type": "artifact", "id": content}
    assert code(tested, valid, given(scene, item, content, subject=subject)) == "accepted"


def test_artifacts_may_be_named_by_id() -> None:
    scene = Scene()
    item, content = running(scene)
    artifact_id = scene.item(item).artifacts[0][0]
    payload = submission(scene, item, content, given(scene, item, content), artifactIds=[artifact_id])
    del payload["artifactHashes"]
    scene.ok(scene.workers["anna"], "work.submit", payload)
    row = scene.item(item)
    assert row.item.submission is not UNSET
    assert row.item.submission.artifact_hashes == (content,)


# --- review -----------------------------------------------------------------------------------------------------------


def submitted(scene: Scene, **contract: Any) -> str:
    item, content = running(scene, **contract)
    kinds = {
        kind
        for entry in contract.get("acceptanceCriteria", [criterion("green")])
        for kind in entry["evidenceRequired"]
        if kind not in ("reviewer_assessment", "human_review")
    }
    ids = [entry["criterionId"] for entry in contract.get("acceptanceCriteria", [criterion("green")])]
    evidence = [given(scene, item, content, kind, criterionIds=ids) for kind in sorted(kinds)]
    scene.ok(scene.workers["anna"], "work.submit", submission(scene, item, content, *evidence))
    return item


@pytest.mark.req("R-10.2-25", "R-15.1-43", "R-15.2-33", "R-7.2-04")
def test_the_coordinator_accepts_a_result() -> None:
    scene = Scene()
    item = submitted(scene)
    revision = scene.mission_row(MISSION).mission.revision
    reserved = scene.account(MISSION).reserved
    review = scene.review(item, scene.coordinator)
    payload = {"workItemId": item, "evidence": [review]}
    stale = scene.refused(scene.coordinator, "work.accept_result", payload, coordinatorEpoch=2)
    assert stale.code is ErrorCode.AUTH_STALE_COORDINATOR
    decision = scene.ok(scene.coordinator, "work.accept_result", payload)
    event = decision.facts[0].payload
    assert isinstance(event, ResultAccepted)
    assert event.mission_revision == revision + 1 == scene.mission_row(MISSION).mission.revision
    assert event.ownership_lease is not UNSET
    assert event.ownership_lease.state == "released"
    row = scene.item(item)
    assert row.item.state == "verified"
    assert review["evidenceId"] in row.evidence_ids
    assert scene.account(MISSION).reserved[4] == reserved[4] - 600


@pytest.mark.req("R-10.2-26", "R-19-14")
def test_nobody_else_accepts_a_result() -> None:
    scene = Scene(workers=("anna", "bert"))
    item = submitted(scene)
    payload = {"workItemId": item, "evidence": [scene.review(item, scene.coordinator)]}
    epoch = {"coordinatorEpoch": 1}
    for actor in (scene.workers["anna"], scene.workers["bert"]):
        refusal = scene.refused(actor, "work.accept_result", payload, **epoch)
        assert refusal.code is ErrorCode.AUTH_FORBIDDEN


@pytest.mark.req("R-10.2-25", "R-13.2-01")
def test_a_review_covers_what_the_worker_could_not() -> None:
    scene = Scene()
    criteria = [criterion("green"), criterion("good", "reviewer_assessment"), criterion("fine", "human_review")]
    item = submitted(scene, acceptanceCriteria=criteria)
    rita = scene.worker("rita", "reviewer")

    def code(*evidence: dict[str, Any]) -> str:
        payload = {"workItemId": item, "evidence": list(evidence)}
        return scene.code(scene.coordinator, "work.accept_result", payload)

    assessed = scene.review(item, rita, criterionIds=["good"])
    human = scene.evidence(item, scene.owner, type="human_review", criterionIds=["fine"])
    assert code(assessed) == "INVALID_COMMAND"
    assert code(human) == "INVALID_COMMAND"
    doubted = scene.review(item, rita, criterionIds=["good"], result="inconclusive")
    assert code(doubted, human) == "INVALID_COMMAND"
    by_worker = scene.review(item, scene.workers["anna"], criterionIds=["good"])
    assert code(by_worker, human) == "AUTH_FORBIDDEN"
    assert code(assessed, human, doubted) == "accepted"


@pytest.mark.req("R-10.2-25", "R-13.2-01")
def test_an_assessment_of_its_own_work_counts_for_nothing() -> None:
    scene = Scene()
    item, content = running(scene, acceptanceCriteria=[criterion("green"), criterion("good", "reviewer_assessment")])
    own = given(scene, item, content, "reviewer_assessment", criterionIds=["good"])
    payload = submission(scene, item, content, given(scene, item, content, criterionIds=["green"]), own)
    scene.ok(scene.workers["anna"], "work.submit", payload)
    review = scene.review(item, scene.coordinator, criterionIds=["green"])
    accept = {"workItemId": item, "evidence": [review]}
    assert scene.refused(scene.coordinator, "work.accept_result", accept).code is ErrorCode.INVALID_COMMAND
    assessed = scene.review(item, scene.worker("rita", "reviewer"), criterionIds=["good"])
    scene.ok(scene.coordinator, "work.accept_result", {"workItemId": item, "evidence": [review, assessed]})


@pytest.mark.req("R-7.2-14")
def test_the_workers_own_evidence_is_no_review() -> None:
    scene = Scene()
    item, content = running(scene)
    own = given(scene, item, content)
    scene.ok(scene.workers["anna"], "work.submit", submission(scene, item, content, own))
    payload = {"workItemId": item, "evidence": [own]}
    assert scene.refused(scene.coordinator, "work.accept_result", payload).code is ErrorCode.AUTH_FORBIDDEN
    review = scene.review(item, scene.coordinator)
    scene.ok(scene.coordinator, "work.accept_result", {"workItemId": item, "evidence": [own, review]})


@pytest.mark.req("R-7.2-13", "R-7.2-14")
def test_a_coordinator_never_reviews_its_own_output_alone() -> None:
    scene = Scene(workers=())
    rita = scene.worker("rita", "reviewer")
    coordinator = scene.coordinator
    epoch = scene.member("urn:example:group:1", coordinator).membership.membership_epoch
    grant = {
        "principal": {"type": "agent", "id": coordinator.id},
        "role": "coordinator",
        "scopes": [
            *scene.member("urn:example:group:1", coordinator).membership.scopes,
            "work.accept_offer",
            "work.execute",
        ],
        "expectedMembershipEpoch": epoch,
    }
    scene.ok(scene.owner, "membership.change", grant)
    scene.workers["anna"] = coordinator
    item = scene.authorize("item")
    scene.bring(item, "submitted", coordinator)
    alone = {"workItemId": item, "evidence": [scene.review(item, coordinator)]}
    assert scene.refused(coordinator, "work.accept_result", alone).code is ErrorCode.AUTH_FORBIDDEN
    shared = {"workItemId": item, "evidence": [scene.review(item, coordinator), scene.review(item, rita)]}
    scene.ok(coordinator, "work.accept_result", shared)


def test_a_reviewer_who_did_the_work_counts_only_where_policy_says_so() -> None:
    for differs, expected in ((True, "AUTH_FORBIDDEN"), (False, "accepted")):
        scene = Scene(Policy(reviewer_must_differ=differs), workers=())
        rita = scene.worker("rita", "reviewer")
        scene.workers["anna"] = rita
        item = scene.bring(scene.authorize("item"), "submitted", rita)
        payload = {"workItemId": item, "evidence": [scene.review(item, rita)]}
        assert scene.code(scene.coordinator, "work.accept_result", payload) == expected


# --- failure ----------------------------------------------------------------------------------------------------------


@pytest.mark.req("R-10.2-27", "R-11.3-20", "R-15.1-44", "R-15.2-34")
@pytest.mark.parametrize("state", ["open", "offered", "queued", "active", "blocked", "submitted"])
def test_the_coordinator_fails_what_is_unfinished(state: str) -> None:
    scene = Scene()
    item = scene.bring(scene.authorize("item"), state, scene.workers["anna"])
    before = scene.item(item)
    decision = scene.fail(item)
    event = decision.facts[0].payload
    assert isinstance(event, WorkFailed)
    assert (event.attempt, event.evidence[0].type) == (1, "failure_report")
    row = scene.item(item)
    assert (row.item.state, row.attempts, row.failure_reason) == ("failed", 1, "it does not work")
    for lease in (row.ownership_lease, row.execution_lease, row.blocked_lease):
        assert lease is None or lease.state != "active"
    assert row.item.owner == before.item.owner
    assert scene.account(MISSION).reserved[4] == 0


@pytest.mark.req("R-10.2-28", "R-19-19")
def test_a_failure_is_reported() -> None:
    scene = Scene(workers=("anna", "bert"))
    anna = scene.workers["anna"]
    item, _ = running(scene)
    report = scene.report(item, anna)
    payload = {**scene.three(item), "reason": "r", "evidence": [report]}
    claim = {**payload, "evidence": [scene.evidence(item, anna)]}
    assert scene.refused(anna, "work.fail", claim).code is ErrorCode.INVALID_COMMAND
    assert scene.refused(anna, "work.fail", {**payload, "evidence": []}).code is ErrorCode.INVALID_COMMAND
    silent = {"workItemId": item, "reason": "r", "evidence": [report]}
    assert scene.refused(anna, "work.fail", silent).code is ErrorCode.INVALID_COMMAND
    half = {**payload, "executionLeaseId": None}
    assert scene.refused(anna, "work.fail", half).code is ErrorCode.INVALID_COMMAND
    by_bert = {**payload, "evidence": [scene.report(item, scene.workers["bert"])]}
    assert scene.refused(anna, "work.fail", by_bert).code is ErrorCode.AUTH_FORBIDDEN
    unknown = {**payload, "evidence": [scene.report(item, anna, criterionIds=["unknown"])]}
    assert scene.refused(anna, "work.fail", unknown).code is ErrorCode.INVALID_COMMAND
    scene.ok(anna, "work.fail", payload)
    assert scene.state(item) == "failed"


@pytest.mark.req("R-10.2-05", "R-10.2-40", "R-12-21")
def test_a_failed_item_is_offered_again_if_its_budget_still_fits() -> None:
    scene = Scene(budget={"wallClockSecondsLimit": 1000})
    anna = scene.workers["anna"]
    item = scene.bring(scene.authorize("item"), "failed", anna)
    greedy = scene.authorize("greedy", budget={"wallClockSecondsLimit": 900})
    refusal = scene.refused(scene.coordinator, "work.offer", scene.offer_payload(item, anna))
    assert refusal.code is ErrorCode.BUDGET_EXCEEDED
    scene.cancel(greedy)
    scene.offer(item, anna)
    assert scene.account(MISSION).reserved[4] == 600
    scene.accept(item, anna)
    assert scene.item(item).ownership_epoch == 1


def test_evidence_ids_name_one_document() -> None:
    scene = Scene()
    item, content = running(scene)
    first = given(scene, item, content)
    scene.ok(scene.workers["anna"], "work.submit", submission(scene, item, content, first))
    clash = scene.review(item, scene.coordinator, evidenceId=first["evidenceId"])
    payload = {"workItemId": item, "evidence": [clash]}
    assert scene.refused(scene.coordinator, "work.accept_result", payload).code is ErrorCode.INVALID_COMMAND


_EVIDENCE = {
    "subject": "R-13.2-07",
    "criterionIds": "R-13.2-08",
    "method": "R-13.2-09",
    "result": "R-13.2-10",
    "generatedBy": "R-13.2-11",
    "createdAt": "R-13.2-12",
    "artifactHashes": "R-13.2-13",
}


@pytest.mark.req(*_EVIDENCE.values())
@pytest.mark.parametrize("member", _EVIDENCE)
def test_evidence_without_a_member_is_none(member: str) -> None:
    scene = Scene()
    anna = scene.workers["anna"]
    item, content = running(scene)
    whole = given(scene, item, content)
    broken = {name: value for name, value in whole.items() if name != member}
    refusal = scene.refused(anna, "work.submit", submission(scene, item, content, broken))
    assert refusal.code is ErrorCode.INVALID_COMMAND
    odd = {"subject": "it", "criterionIds": [], "result": "perhaps", "method": ""}
    if member in odd:
        broken = {**whole, member: odd[member]}
        refusal = scene.refused(anna, "work.submit", submission(scene, item, content, broken))
        assert refusal.code is ErrorCode.INVALID_COMMAND


def test_evidence_refers_to_artifacts_that_exist() -> None:
    scene = Scene(workers=("anna", "bert"))
    item, content = running(scene)
    missing = {"artifactHashes": ["sha256:" + "0" * 64]}
    report = scene.report(item, scene.coordinator, **missing)
    failure = {"workItemId": item, "reason": "r", "evidence": [report]}
    assert scene.refused(scene.coordinator, "work.fail", failure).code is ErrorCode.INVALID_COMMAND
    evidence = [given(scene, item, content)]
    scene.ok(scene.workers["anna"], "work.submit", submission(scene, item, content, *evidence))
    review = {"workItemId": item, "evidence": [scene.review(item, scene.coordinator, **missing)]}
    assert scene.refused(scene.coordinator, "work.accept_result", review).code is ErrorCode.INVALID_COMMAND


def test_a_coordinator_reports_with_what_owner_and_reviewers_signed() -> None:
    scene = Scene(workers=("anna", "bert"))
    anna, bert = scene.workers.values()
    item, _ = running(scene)

    def failure(*evidence: dict[str, Any]) -> dict[str, Any]:
        return {"workItemId": item, "reason": "r", "evidence": list(evidence)}

    stranger = failure(scene.report(item, scene.coordinator), scene.evidence(item, bert))
    assert scene.refused(scene.coordinator, "work.fail", stranger).code is ErrorCode.AUTH_FORBIDDEN
    scene.ok(scene.coordinator, "work.fail", failure(scene.report(item, scene.coordinator), scene.evidence(item, anna)))
