"""The review's order, and what it puts on record."""

from __future__ import annotations

from typing import Any

import msgspec
import pytest

from mwnode.client.fold import WorkView
from mwnode.coordinator.review import Accept, Assess, Checked, Rework, Verdict, review
from mwnode.protocol.documents import Artifact, Evidence, WorkItem
from mwnode.testing import Harness
from mwnode.trust.keys import UNSIGNED
from tests.coordinator.desk import SINGLE, coordinate, make_plan
from tests.worker.desk import Run, desk

HASH = "sha256:" + "ab" * 32
SIGNATURE = msgspec.to_builtins(UNSIGNED)


def evidence(name: str, kind: str, result: str = "passed", criterion: str = "green", by: str = "worker") -> Evidence:
    return msgspec.convert(
        {
            "evidenceId": f"urn:example:evidence:{name}",
            "missionId": "urn:example:mission",
            "groupId": "urn:example:group",
            "workItemId": "urn:example:work",
            "type": kind,
            "subject": {"type": "work_item", "id": "urn:example:work"},
            "criterionIds": [criterion],
            "method": "m",
            "result": result,
            "artifactHashes": [HASH],
            "generatedBy": {"type": "agent", "id": f"urn:example:{by}"},
            "createdAt": "2030-01-01T00:00:00Z",
            "signature": SIGNATURE,
        },
        Evidence,
    )


def submission(
    *given: Evidence, required: tuple[str, ...] = ("deterministic_test",), media: str = "text/plain"
) -> WorkView:
    """A submitted WorkItem of one criterion and one deliverable."""
    capability = {"id": "mwnode.generic", "version": "1.0.0"}
    item: dict[str, Any] = {
        "workItemId": "urn:example:work",
        "missionId": "urn:example:mission",
        "groupId": "urn:example:group",
        "conversationId": "urn:example:conversation",
        "revision": 7,
        "state": "submitted",
        "exclusive": True,
        "createdBy": {"type": "agent", "id": "urn:example:coordinator"},
        "createdAt": "2030-01-01T00:00:00Z",
        "contract": {
            "contractVersion": 1,
            "goal": "g",
            "requiredDeliverables": [
                {"deliverableId": "report", "description": "r", "mediaType": "text/plain", "schema": "urn:example:s"}
            ],
            "acceptanceCriteria": [
                {"criterionId": "green", "description": "d", "evidenceRequired": list(required)},
            ],
            "inputArtifacts": [],
            "dependencyWorkItemIds": [],
            "allowedResources": [],
            "requiredCapabilities": [capability],
            "deadline": "2030-02-01T00:00:00Z",
            "requestedUrgency": "normal",
            "businessImpact": "b",
            "retryPolicy": {"maxAttempts": 1, "backoff": "none", "maxDelay": "PT1S", "retryableFailures": []},
            "budget": {"toolCallLimit": 1},
            "sideEffectRisk": "none",
            "executionApproval": "not_required",
        },
        "owner": {
            "agentId": "urn:example:worker",
            "agentCardVersion": 1,
            "capabilityPins": [capability],
            "ownershipEpoch": 1,
            "ownershipLeaseId": "urn:example:lease",
            "acceptedAt": "2030-01-01T00:00:00Z",
        },
        "selectionBasis": {
            "requiredCapabilities": [capability],
            "verifiedMatches": [capability],
            "authorizationEligible": True,
            "availabilityEstimate": "2030-01-01T00:00:00Z",
            "expectedCost": 0,
            "reliabilityEvidence": [],
            "policyRulesApplied": ["capability-match"],
        },
        "submission": {
            "artifactHashes": [HASH],
            "evidenceIds": [one.evidence_id for one in given] or ["urn:example:evidence:none"],
            "submittedAt": "2030-01-01T00:00:00Z",
        },
    }
    artifact = msgspec.convert(
        {
            "artifactId": "urn:example:artifact",
            "contentHash": HASH,
            "uri": "urn:example:bytes",
            "sizeBytes": 4,
            "mediaType": media,
            "schemaUri": "urn:example:s",
            "producer": {"agentId": "urn:example:worker", "agentCardVersion": 1, "capabilities": [capability]},
            "missionId": "urn:example:mission",
            "groupId": "urn:example:group",
            "workItemId": "urn:example:work",
            "sourceArtifactHashes": [],
            "toolVersions": [],
            "modelVersions": [],
            "classification": "internal",
            "createdAt": "2030-01-01T00:00:00Z",
            "signature": SIGNATURE,
        },
        Artifact,
    )
    return WorkView(
        item=msgspec.convert(item, WorkItem),
        artifacts={HASH: artifact},
        evidence={one.evidence_id: one for one in given},
    )


GOOD = {HASH: Checked(HASH, 4)}
TEST = evidence("test", "deterministic_test")
BOTH = ("deterministic_test", "reviewer_assessment")

CASES: dict[str, tuple[WorkView, dict[str, Checked], tuple[Evidence, ...], type[Verdict], str]] = {
    "all is well": (submission(TEST), GOOD, (), Accept, ""),
    "other bytes": (submission(TEST), {HASH: Checked(HASH, 0, "other bytes")}, (), Rework, "integrity"),
    "another size": (submission(TEST), {HASH: Checked(HASH, 5)}, (), Rework, "integrity"),
    "never fetched": (submission(TEST), {}, (), Rework, "integrity"),
    "bytes before everything else": (
        submission(media="image/png", required=BOTH),
        {HASH: Checked(HASH, 0, "other bytes")},
        (),
        Rework,
        "integrity",
    ),
    "a deliverable of another type": (submission(TEST, media="image/png"), GOOD, (), Rework, "schema"),
    "no deterministic Evidence": (submission(), GOOD, (), Rework, "deterministic"),
    "tests before assessments": (submission(required=BOTH), GOOD, (), Rework, "deterministic"),
    "only an assessment is missing": (submission(TEST, required=BOTH), GOOD, (), Assess, ""),
    "the assessment came": (
        submission(TEST, required=BOTH),
        GOOD,
        (evidence("reviewer", "reviewer_assessment", by="reviewer"),),
        Accept,
        "",
    ),
    "an assessment of its own work": (
        submission(TEST, evidence("self", "reviewer_assessment"), required=BOTH),
        GOOD,
        (),
        Assess,
        "",
    ),
    "a bad assessment": (
        submission(TEST, required=BOTH),
        GOOD,
        (evidence("reviewer", "reviewer_assessment", "failed", by="reviewer"),),
        Rework,
        "combination",
    ),
    "Evidence in conflict": (
        submission(TEST, evidence("other", "business_rule", "failed")),
        GOOD,
        (),
        Rework,
        "combination",
    ),
    "inconclusive is not passed": (
        submission(evidence("open", "deterministic_test", "inconclusive")),
        GOOD,
        (),
        Rework,
        "deterministic",
    ),
}


@pytest.mark.req("R-13.2-02", "R-13.2-03")
@pytest.mark.parametrize("case", CASES.values(), ids=CASES.keys())
def test_the_review_stops_at_the_first_step_that_finds_a_fault(
    case: tuple[WorkView, dict[str, Checked], tuple[Evidence, ...], type[Verdict], str],
) -> None:
    view, checked, assessments, kind, step = case
    verdict = review(view, checked, assessments)
    assert isinstance(verdict, kind)
    if isinstance(verdict, Rework):
        assert verdict.step == step


@pytest.mark.req("R-13.2-05")
def test_everything_considered_is_named_what_contradicts_too() -> None:
    against = evidence("other", "business_rule", "failed")
    unclear = evidence("open", "policy_check", "inconclusive")
    verdict = review(submission(TEST, against, unclear), GOOD)
    assert isinstance(verdict, Rework)
    assert set(verdict.considered) == {TEST.evidence_id, against.evidence_id, unclear.evidence_id}
    assert verdict.criterion_ids == ("green",)


@pytest.mark.req("R-13.2-05", "R-13.2-06", "R-13.2-14")
def test_records_list_what_was_looked_at_and_everything_stays_readable(mwnode: Harness) -> None:
    plan = make_plan(SINGLE)
    coordinator = coordinate(mwnode, plan=plan)
    coordinator.absent.add(mwnode.workers[1].id)
    passed = {"criterionId": "green", "type": "deterministic_test", "result": "passed", "method": "pytest"}
    doubt = {"criterionId": "green", "type": "policy_check", "result": "inconclusive", "method": "licence scan"}
    against = {"criterionId": "green", "type": "business_rule", "result": "failed", "method": "price check"}
    runs = iter(
        [
            Run(lines=({"evidence": passed}, {"evidence": doubt}, {"evidence": against})),
            Run(lines=({"evidence": passed}, {"evidence": doubt})),
        ]
    )
    worker = desk(mwnode, behave=lambda assignment: next(runs))
    for _ in range(20):
        coordinator.step()
        worker.step()
        mwnode.advance(1)
    assert coordinator.mission.state == "awaiting_approval"
    events = coordinator.mission.events()
    documents = [one for event in events for one in event["payload"].get("evidence", [])]
    assert {one["result"] for one in documents} == {"passed", "failed", "inconclusive"}
    report = next(event["payload"] for event in events if event["kind"] == "work.failed")
    submitted = [event["payload"]["evidence"] for event in events if event["kind"] == "work.submitted"]
    assert {one["evidenceId"] for one in submitted[0]} == set(report["evidence"][0]["details"]["considered"])
    accepted = next(event["payload"] for event in events if event["kind"] == "work.result.accepted")
    assert set(accepted["evidence"][0]["details"]["considered"]) >= {one["evidenceId"] for one in submitted[1]}
    # Facts under fixed names: there is no place for a train of thought.
    allowed = {
        "considered",
        "steps",
        "step",
        "failure",
        "permanent",
        "exitStatus",
        "attempt",
        "attempts",
        "standardError",
    }
    for one in documents:
        assert set(one.get("details", {})) <= allowed


@pytest.mark.req("R-15.1-11")
def test_commands_on_existing_things_state_the_revision(mwnode: Harness) -> None:
    coordinator = coordinate(mwnode, plan=make_plan(SINGLE))
    worker = desk(mwnode)
    for _ in range(10):
        coordinator.step()
        worker.step()
        mwnode.advance(20)
    kinds = {"work.offer", "work.accept_result", "mission.submit_for_approval", "mission.renew_coordinator"}
    stated = {effect.kind: effect.expected_revision for effect in coordinator.sent if effect.kind in kinds}
    assert set(stated) == kinds
    assert None not in stated.values()


@pytest.mark.req("R-7.2-12")
def test_the_coordinator_itself_is_never_given_work(mwnode: Harness) -> None:
    coordinator = coordinate(mwnode, plan=make_plan(SINGLE))
    coordinator.absent |= {worker.id for worker in mwnode.workers}
    for _ in range(20):
        coordinator.step()
        mwnode.advance(30)
    asked = {agent for payload in coordinator.of_kind("work.offer") for agent in payload.candidate_agent_ids}
    assert asked
    assert mwnode.coordinator.id not in asked
