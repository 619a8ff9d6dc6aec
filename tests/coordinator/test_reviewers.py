"""Reviewer Agents: asked by a WorkItem of their own, answering with signed Evidence (R-13.2-04)."""

from __future__ import annotations

from typing import Any

import msgspec
import pytest

from mwnode.enrolment import Capability
from mwnode.genesis import read_registry
from mwnode.protocol.assessments import assessments_in, request_in
from mwnode.protocol.documents import CapabilityRef
from mwnode.protocol.identifiers import EVIDENCE_SCHEMA, RETRY_SCHEMA
from mwnode.testing import Harness, Participant
from mwnode.trust.verification import Failure, verify_document
from mwnode.worker.effects import Assignment
from tests.coordinator.desk import SINGLE, CoordinatorDesk, coordinate, make_plan
from tests.coordinator.test_engine import work_together
from tests.coordinator.test_owner import judge, tell
from tests.worker.desk import GENERIC, Desk, Run, desk

REVIEW = CapabilityRef(id="mwnode.review", version="1.0.0")
QUALITATIVE = SINGLE.replace(
    'check = "exit 0" } ]',
    'check = "exit 0" }, { id = "clear", description = "reads well", evidence = ["reviewer_assessment"] } ]',
)


def says(result: str, criterion: str = "clear") -> dict[str, Any]:
    return {
        "evidence": {"criterionId": criterion, "type": "reviewer_assessment", "result": result, "method": "read it all"}
    }


def reviewer(mwnode: Harness, *results: str, name: str = "critic") -> Desk:
    """An Agent that reviews and does nothing else; each review comes to the next result."""
    who = mwnode.agent(name, (Capability(id="mwnode.review"),))
    given = iter(results)
    return desk(mwnode, who, lambda assignment: Run(lines=(says(next(given)),)), capabilities=(REVIEW,))


def doer(mwnode: Harness, who: Participant | None = None) -> Desk:
    return desk(mwnode, who, lambda assignment: Run(files={"report": b"written\n"}))


def events(coordinator: CoordinatorDesk, kind: str) -> list[dict[str, Any]]:
    return [event for event in coordinator.mission.events() if event["kind"] == kind]


def accepted(coordinator: CoordinatorDesk, local: str) -> list[dict[str, Any]]:
    """The Evidence with which a work's result was accepted."""
    work_item_id = coordinator.item(local).item.work_item_id
    found = [one["payload"] for one in events(coordinator, "work.result.accepted") if one["workItemId"] == work_item_id]
    assert len(found) == 1
    return list(found[0]["evidence"])


@pytest.mark.req("R-13.2-04", "R-13.2-03", "R-13.2-06")
def test_a_qualitative_criterion_is_assessed_by_another_agent(mwnode: Harness) -> None:
    critic = reviewer(mwnode, "passed")
    coordinator = coordinate(mwnode, plan=make_plan(QUALITATIVE))
    worker = doer(mwnode)
    coordinator.absent.add(mwnode.workers[1].id)
    work_together(coordinator, worker, critic)
    assert coordinator.mission.state == "awaiting_approval"
    assessments = [one for one in accepted(coordinator, "lint") if one["type"] == "reviewer_assessment"]
    assert [(one["generatedBy"]["id"], one["result"]) for one in assessments] == [(critic.agent.id, "passed")]
    assert assessments[0]["workItemId"] == coordinator.item("lint").item.work_item_id
    assert accepted(coordinator, "lint")[0]["type"] == "artifact_integrity"
    # Integrity and deterministic Evidence come first: the reviewer is asked once they are settled.
    kinds = coordinator.kinds()
    assert coordinator.checks[0] == coordinator.item("lint").item.work_item_id
    assert kinds.count("work.authorize") == 2
    assert critic.launched[0].contract.constraints["review"]["criteria"] == [
        {"criterionId": "clear", "description": "reads well"}
    ]
    # What is approved is the work itself, not what was said about it.
    assert set(coordinator.mission.row.submitted_artifacts) == set(
        coordinator.item("lint").item.submission.artifact_hashes
    )
    membership = coordinator.mission.membership(critic.agent)
    assert membership is not None
    assert (membership.membership.role, "work.review" in membership.membership.scopes) == ("reviewer", True)


@pytest.mark.req("R-13.2-04", "R-13.2-05")
def test_a_bad_assessment_sends_the_work_back_and_stays_on_record(mwnode: Harness) -> None:
    critic = reviewer(mwnode, "failed", "passed")
    coordinator = coordinate(mwnode, plan=make_plan(QUALITATIVE))
    coordinator.absent.add(mwnode.workers[1].id)
    worker = doer(mwnode)
    work_together(coordinator, worker, critic, rounds=120)
    failed = events(coordinator, "work.failed")
    assert len(failed) == 1
    assert [one["type"] for one in failed[0]["payload"]["evidence"]] == ["failure_report", "reviewer_assessment"]
    assert failed[0]["payload"]["evidence"][1]["result"] == "failed"
    assert failed[0]["payload"]["evidence"][0]["details"]["step"] == "combination"
    assert len(worker.launched) == 2
    assert coordinator.mission.state == "awaiting_approval"
    # Each submission has a review of its own.
    assert len({one.work_item_id for one in critic.launched}) == 2


@pytest.mark.req("R-13.2-04")
def test_who_did_the_work_never_reviews_it(mwnode: Harness) -> None:
    both = mwnode.agent("jack", (Capability(), Capability(id="mwnode.review")))
    coordinator = coordinate(mwnode, plan=make_plan(QUALITATIVE))
    coordinator.absent.update(one.id for one in mwnode.workers)
    worker = desk(mwnode, both, lambda assignment: Run(lines=(says("passed"),)), capabilities=(*GENERIC, REVIEW))
    work_together(coordinator, worker)
    mwnode.advance(30)
    work_together(coordinator, worker)
    assert coordinator.state("lint") == "submitted"
    assert len(worker.launched) == 1
    told = [payload.content for payload in coordinator.of_kind("message.post")]
    assert any("mwnode.review@1.0.0" in text for text in told), "the owner learns who is missing"


@pytest.mark.req("R-13.2-04")
def test_a_worker_that_is_already_a_member_becomes_a_reviewer_without_losing_its_work(mwnode: Harness) -> None:
    plan = QUALITATIVE + SINGLE[SINGLE.index("[[work]]") :].replace('"lint"', '"other"').replace("Lint", "Other")
    both = mwnode.agent("jack", (Capability(id="mwnode.other"), Capability(id="mwnode.review")))
    plan = plan.replace('goal = "Other"', 'goal = "Other"\ncapability = ["mwnode.other@1.0.0"]')
    coordinator = coordinate(mwnode, plan=make_plan(plan))
    coordinator.absent.add(mwnode.workers[1].id)
    other = CapabilityRef(id="mwnode.other", version="1.0.0")
    jack = desk(mwnode, both, lambda assignment: Run(lines=(says("passed"),)), capabilities=(other, REVIEW))
    work_together(coordinator, doer(mwnode), jack)
    assert coordinator.mission.state == "awaiting_approval"
    changed = [one["payload"]["membership"] for one in events(coordinator, "membership.changed")]
    roles = [(one["role"], one["state"]) for one in changed if one["member"]["id"] == both.id]
    assert roles == [("worker", "provisional"), ("reviewer", "active")]


@pytest.mark.req("R-13.2-04", "R-13.2-05")
def test_a_reviewer_that_cannot_say_is_followed_by_another(mwnode: Harness) -> None:
    first = reviewer(mwnode, "inconclusive", name="critic-1")
    second = reviewer(mwnode, "passed", name="critic-2")
    coordinator = coordinate(mwnode, plan=make_plan(QUALITATIVE))
    coordinator.absent.add(mwnode.workers[1].id)
    work_together(coordinator, doer(mwnode), first, second, rounds=120)
    assert coordinator.mission.state == "awaiting_approval"
    given = [(one["generatedBy"]["id"], one["result"]) for one in accepted(coordinator, "lint")[1:]]
    assert given == [(first.agent.id, "inconclusive"), (second.agent.id, "passed")]
    considered = accepted(coordinator, "lint")[0]["details"]["considered"]
    assert {one["evidenceId"] for one in accepted(coordinator, "lint")[1:]} <= set(considered)


@pytest.mark.req("R-13.2-05")
@pytest.mark.parametrize("word, state", [("passed", "verified"), ("failed", "submitted")])
def test_where_no_reviewer_can_say_a_human_does(mwnode: Harness, word: str, state: str) -> None:
    critics = [reviewer(mwnode, "inconclusive", "inconclusive", name=f"critic-{number}") for number in (1, 2)]
    coordinator = coordinate(mwnode, plan=make_plan(QUALITATIVE))
    coordinator.absent.add(mwnode.workers[1].id)
    contents = iter([b"one", b"two"])
    worker = desk(mwnode, behave=lambda assignment: Run(files={"report": next(contents)}))
    work_together(coordinator, worker, *critics, rounds=120)
    assert coordinator.state("lint") == "submitted"
    told = [str(payload.content) for payload in coordinator.of_kind("message.post")]
    assert "lint waits for assessment of clear (reviewer_assessment): `mwnode mission review ID lint" in told[-1]
    evidence = judge(coordinator, word, type="reviewer_assessment", criterionIds=["clear"])
    tell(coordinator, EVIDENCE_SCHEMA, evidence)
    work_together(coordinator, worker, *critics, rounds=120)
    assert coordinator.state("lint") == state
    kinds = "work.result.accepted" if word == "passed" else "work.failed"
    (event,) = events(coordinator, kinds)[-1:]
    given = {one["generatedBy"]["id"]: one["result"] for one in event["payload"]["evidence"][1:]}
    if word == "failed":
        assert given == {mwnode.owner.id: "failed"}
        assert len(worker.launched) == 2, "what the human found wrong is done again"
    else:
        found = [one for one in events(coordinator, kinds) if one["workItemId"] == evidence["workItemId"]]
        assert {one["generatedBy"]["id"] for one in found[0]["payload"]["evidence"][1:]} == {mwnode.owner.id}


@pytest.mark.req("R-13.2-05")
def test_a_failed_review_of_what_a_human_has_accepted_holds_up_nothing(mwnode: Harness) -> None:
    who = mwnode.agent("critic", (Capability(id="mwnode.review"),))
    critic = desk(mwnode, who, lambda assignment: Run(status=3), capabilities=(REVIEW,))
    coordinator = coordinate(mwnode, plan=make_plan(QUALITATIVE))
    coordinator.absent.add(mwnode.workers[1].id)
    worker = doer(mwnode)
    work_together(coordinator, worker, critic)
    reviews = [view for view in coordinator.engine.board.views.values() if request_in(view.item.contract) is not None]
    assert {view.state for view in reviews} == {"failed"}
    tell(coordinator, EVIDENCE_SCHEMA, judge(coordinator, "passed", type="reviewer_assessment", criterionIds=["clear"]))
    for view in reviews:
        # For good: only its owner has it tried again, which here means that it is called off.
        tell(coordinator, RETRY_SCHEMA, {"workItemId": view.work_item_id})
    for _ in range(8):
        mwnode.advance(30)
        work_together(coordinator, worker)
    assert coordinator.state("lint") == "verified"
    assert {view.state for view in coordinator.engine.board.views.values()} == {"verified", "cancelled"}
    assert coordinator.mission.state == "awaiting_approval"


def test_an_executor_that_assesses_nothing_is_asked_again(mwnode: Harness) -> None:
    critic = reviewer(mwnode, "passed")
    runs = iter([Run(lines=(says("passed", "another"),)), Run(lines=(says("perhaps"),)), Run(lines=(says("passed"),))])
    critic.behave = lambda assignment: next(runs)
    coordinator = coordinate(mwnode, plan=make_plan(QUALITATIVE))
    coordinator.absent.add(mwnode.workers[1].id)
    work_together(coordinator, doer(mwnode), critic, rounds=120)
    reasons = [one["payload"]["reason"] for one in events(coordinator, "work.failed")]
    assert [reason.partition(": ")[0] for reason in reasons] == ["EVIDENCE_MISSING"] * 2
    assert "'perhaps' is none of" in reasons[1]
    assert coordinator.mission.state == "awaiting_approval"


def test_a_coordinator_that_starts_anew_finds_the_review_it_asked_for(mwnode: Harness) -> None:
    critic = reviewer(mwnode, "passed")
    coordinator = coordinate(mwnode, plan=make_plan(QUALITATIVE))
    coordinator.absent.add(mwnode.workers[1].id)
    worker = doer(mwnode)
    work_together(coordinator, worker)
    assert coordinator.state("lint") == "submitted"
    again = coordinate(mwnode, coordinator.mission, coordinator.engine.plan)
    work_together(again, worker, critic)
    assert again.mission.state == "awaiting_approval"
    assert "work.authorize" not in again.kinds()


def test_a_review_of_what_is_no_longer_submitted_is_called_off(mwnode: Harness) -> None:
    reviewer(mwnode)
    coordinator = coordinate(mwnode, plan=make_plan(QUALITATIVE))
    coordinator.absent.add(mwnode.workers[1].id)
    worker = doer(mwnode)
    work_together(coordinator, worker)
    lint = coordinator.item("lint").item
    mwnode.coordinator.send(
        "work.cancel", {"workItemId": lint.work_item_id, "reason": "r"}, group_id=coordinator.mission.group_id
    )
    coordinator.step()
    states = {view.state for view in coordinator.engine.board.views.values()}
    assert states == {"cancelled"}


# --- the document -----------------------------------------------------------------------------------------------------


def _assessment(mwnode: Harness) -> tuple[Assignment, bytes, str]:
    """A reviewer's assignment, what came of it, and who it was."""
    critic = reviewer(mwnode, "passed")
    coordinator = coordinate(mwnode, plan=make_plan(QUALITATIVE))
    coordinator.absent.add(mwnode.workers[1].id)
    work_together(coordinator, doer(mwnode), critic)
    view = coordinator.engine.board.views[critic.launched[0].work_item_id]
    content = b"".join(mwnode.node.artifacts.read(view.item.submission.artifact_hashes[0]))  # type: ignore[union-attr]  # it was submitted
    return critic.launched[0], content, critic.agent.id


@pytest.mark.req("R-13.2-04", "R-13.2-14")
def test_an_assessment_is_signed_and_taken_for_what_it_is_only(mwnode: Harness) -> None:
    assignment, content, who = _assessment(mwnode)
    request = request_in(assignment.contract)
    assert request is not None
    found = assessments_in(content, request, who)
    assert not isinstance(found, str)
    with mwnode.node.read() as view:
        registry = read_registry(view, mwnode.node.home.organization_id)
    assert not isinstance(verify_document(found[0], "evidence", registry), Failure)  # type: ignore[arg-type]
    document = msgspec.json.decode(content)[0]
    assert set(document) & {"details", "reasoning", "chainOfThought"} == set()

    def fault(reviewer_id: str = who, **members: Any) -> str:
        bad = msgspec.json.encode([{**document, **members}])
        told = assessments_in(bad, request, reviewer_id)
        assert isinstance(told, str)
        return told

    assert "was not given by the reviewer" in fault("urn:example:somebody")
    assert "is no reviewer_assessment" in fault(type="business_rule")
    assert "is no reviewer_assessment" in fault(workItemId="urn:example:other")
    assert "not asked about" in fault(criterionIds=["green"])
    assert "no array of Evidence" in str(assessments_in(b"\xff{}", request, who))
    assert assessments_in(b"[]", request, who) == "no assessment of clear"
    deep = msgspec.json.encode([{**document, "details": {"depth": msgspec.Raw(b"[" * 100_000 + b"]" * 100_000)}}])
    assert "no array of Evidence" in str(assessments_in(deep, request, who))
