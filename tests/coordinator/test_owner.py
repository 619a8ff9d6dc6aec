"""What the MissionOwner says to a Coordinator in a form that is acted upon: another try, another budget, a review."""

from __future__ import annotations

import itertools
from typing import Any

import pytest

from mwnode.authority import views
from mwnode.protocol.documents import Actor
from mwnode.protocol.errors import ErrorCode, InvalidStateTransition, Rejection
from mwnode.protocol.identifiers import EVIDENCE_SCHEMA, RETRY_SCHEMA, mission_conversation_id
from mwnode.testing import Harness, Participant
from mwnode.worker.effects import Assignment
from tests.coordinator.desk import SINGLE, CoordinatorDesk, coordinate, make_plan
from tests.coordinator.test_engine import work_together
from tests.worker.desk import Run, desk
from tests.worker.test_upgrades import register

HUMAN = SINGLE.replace(
    'description = "all pass", check = "exit 0" }',
    'description = "all pass", check = "exit 0", evidence = ["deterministic_test", "human_review"] }',
)


def tell(coordinator: CoordinatorDesk, schema: str, data: Any, by: Participant | None = None) -> None:
    """Say something to the Coordinator, as its owner unless told otherwise."""
    payload = {
        "messageId": coordinator.harness.new_id(),
        "conversationId": mission_conversation_id(coordinator.mission.group_id),
        "content": [{"type": "data_ref", "schema": schema, "data": data}],
    }
    (by or coordinator.harness.owner).send("message.post", payload, group_id=coordinator.mission.group_id)


def said(coordinator: CoordinatorDesk) -> list[str]:
    return [str(payload.content) for payload in coordinator.of_kind("message.post")]


def judge(coordinator: CoordinatorDesk, result: str, **members: Any) -> dict[str, Any]:
    """Signed Evidence of the owner about what was submitted."""
    item = coordinator.item("lint").item
    document = {
        "evidenceId": coordinator.harness.new_id(),
        "missionId": item.mission_id,
        "groupId": item.group_id,
        "workItemId": item.work_item_id,
        "type": "human_review",
        "subject": {"type": "work_item", "id": item.work_item_id},
        "criterionIds": ["green"],
        "method": "read it",
        "result": result,
        "artifactHashes": list(item.submission.artifact_hashes),
        "generatedBy": {"type": "human", "id": coordinator.harness.owner.id},
        "createdAt": coordinator.harness.clock.now().text(),
    }
    return coordinator.harness.owner.sign(**{**document, **members})


@pytest.mark.req("R-11.4-08")
def test_what_failed_for_good_is_tried_again_when_its_owner_wants_it(mwnode: Harness) -> None:
    coordinator = coordinate(mwnode, plan=make_plan(SINGLE))
    statuses = iter([3, 3, 3, 0])
    worker = desk(mwnode, behave=lambda assignment: Run(status=next(statuses)))
    coordinator.absent.add(mwnode.workers[1].id)
    work_together(coordinator, worker)
    assert coordinator.state("lint") == "failed"
    assert "`mwnode mission retry ID lint`" in said(coordinator)[-1]
    stranger = mwnode.workers[0]
    tell(coordinator, RETRY_SCHEMA, {"workItemId": coordinator.item("lint").item.work_item_id}, stranger)
    work_together(coordinator, worker)
    assert coordinator.state("lint") == "failed", "only the owner is listened to"
    tell(coordinator, RETRY_SCHEMA, {"workItemId": coordinator.item("lint").item.work_item_id})
    work_together(coordinator, worker)
    contract = coordinator.item("lint").item.contract
    assert coordinator.state("lint") == "verified"
    assert (contract.contract_version, contract.retry_policy.max_attempts) == (2, 6)


@pytest.mark.req("R-12-23")
def test_what_used_up_its_budget_goes_on_under_another_one(mwnode: Harness) -> None:
    plan = make_plan(SINGLE.replace('goal = "Lint"', 'goal = "Lint"\nbudget = { toolCallLimit = 1 }'))
    coordinator = coordinate(mwnode, plan=plan)
    coordinator.absent.add(mwnode.workers[1].id)

    def behave(assignment: Assignment) -> Run:
        if assignment.contract.budget.tool_call_limit == 1:
            return Run(status=None, lines=({"checkpoint": {"phase": "half"}}, {"usage": {"toolCalls": 2}}))
        return Run()

    worker = desk(mwnode, behave=behave)
    work_together(coordinator, worker)
    assert coordinator.state("lint") == "blocked"
    assert "--limit" in said(coordinator)[-1]
    work_item_id = coordinator.item("lint").item.work_item_id
    tell(coordinator, RETRY_SCHEMA, {"workItemId": work_item_id, "budget": {"toolCallLimit": 5}})
    work_together(coordinator, worker)
    assert coordinator.state("lint") == "verified"
    assert coordinator.item("lint").item.contract.budget.tool_call_limit == 5
    resumed = worker.launched[-1].checkpoint
    assert resumed is not None
    assert resumed.phase == "half", "nothing of what was done is lost"


@pytest.mark.req("R-13.2-05")
def test_a_human_judges_what_only_a_human_can(mwnode: Harness) -> None:
    coordinator = coordinate(mwnode, plan=make_plan(HUMAN))
    worker = desk(mwnode)
    work_together(coordinator, worker)
    assert coordinator.state("lint") == "submitted"
    assert "`mwnode mission review ID lint --criterion NAME --passed`" in said(coordinator)[-1]
    tell(coordinator, EVIDENCE_SCHEMA, judge(coordinator, "passed"), worker.agent)
    work_together(coordinator, worker)
    assert coordinator.state("lint") == "submitted", "somebody else hands it in"
    tell(coordinator, EVIDENCE_SCHEMA, judge(coordinator, "passed", artifactHashes=["sha256:" + "0" * 64]))
    work_together(coordinator, worker)
    assert coordinator.state("lint") == "submitted", "it is about other bytes"
    tell(coordinator, EVIDENCE_SCHEMA, judge(coordinator, "passed"))
    work_together(coordinator, worker)
    assert coordinator.state("lint") == "verified"
    kinds = {one.type for one in coordinator.of_kind("work.accept_result")[-1].evidence}
    assert kinds == {"artifact_integrity", "human_review"}


@pytest.mark.req("R-13.2-05")
def test_what_a_human_finds_wrong_is_done_again(mwnode: Harness) -> None:
    coordinator = coordinate(mwnode, plan=make_plan(HUMAN))
    contents = iter([b"one", b"two", b"three"])
    worker = desk(mwnode, behave=lambda assignment: Run(files={"report": next(contents)}))
    coordinator.absent.add(mwnode.workers[1].id)
    work_together(coordinator, worker)
    tell(coordinator, EVIDENCE_SCHEMA, judge(coordinator, "failed"))
    work_together(coordinator, worker)
    assert len(worker.launched) == 2
    assert coordinator.state("lint") == "submitted"
    assert "failed" in str(coordinator.of_kind("work.fail")[-1].reason)


# --- Agents change their minds, and their Cards -----------------------------------------------------------------------


def decline(coordinator: CoordinatorDesk, reason: str, who: Participant | None = None) -> None:
    work_item_id = coordinator.item("lint").item.work_item_id
    payload = {"workItemId": work_item_id, "reason": reason}
    who = who or coordinator.harness.workers[0]
    who.send("ext.mwnode.core.offer_decline", payload, group_id=coordinator.mission.group_id)
    coordinator.step()


def offered(coordinator: CoordinatorDesk) -> int:
    return len(coordinator.of_kind("work.offer"))


def alone(mwnode: Harness) -> CoordinatorDesk:
    """One candidate, who was offered the work."""
    coordinator = coordinate(mwnode, plan=make_plan(SINGLE))
    coordinator.absent |= {mwnode.workers[1].id, mwnode.coordinator.id}
    coordinator.step()
    assert offered(coordinator) == 1
    return coordinator


def later(coordinator: CoordinatorDesk, seconds: int) -> None:
    for _ in range(seconds // 5):
        coordinator.harness.advance(5)
        coordinator.step()


@pytest.mark.req("R-10.3-09")
def test_room_that_came_back_is_offered_at_once(mwnode: Harness) -> None:
    coordinator = alone(mwnode)
    decline(coordinator, "capacity")
    assert offered(coordinator) == 1
    later(coordinator, 10)
    assert offered(coordinator) == 2


@pytest.mark.req("R-10.3-09")
def test_who_keeps_declining_for_want_of_room_is_asked_less_and_less_often(mwnode: Harness) -> None:
    coordinator = alone(mwnode)
    asked: list[int] = []
    others = 0
    for second in range(0, 880, 5):
        candidates = [payload.candidate_agent_ids[0] for payload in coordinator.of_kind("work.offer")]
        mine = candidates.count(mwnode.workers[0].id)
        if mine > len(asked):
            asked.append(second)
            decline(coordinator, "capacity")
        elif len(candidates) - mine > others:
            others += 1
            decline(coordinator, "authorization", mwnode.workers[1])
        later(coordinator, 5)
    pauses = [later - earlier for earlier, later in itertools.pairwise(asked)]
    # The first time room is believed in at the next heartbeat; then every pause doubles.
    assert pauses[0] <= 10
    assert all(second >= 1.7 * first for first, second in itertools.pairwise(pauses[1:]))
    assert 4 <= len(asked) <= 6
    with mwnode.node.read() as view:
        facts = views.why_on(
            view,
            Actor(type="human", id=mwnode.owner.id),
            coordinator.item("lint").item.work_item_id,
            [],
            mwnode.node.policy,
            mwnode.clock.now(),
        )
    told = " ".join(fact["fact"] for fact in facts) if isinstance(facts, list) else ""
    assert f"{mwnode.workers[0].id} declined it {len(asked)} times, last: capacity" in told
    assert "keeps declining 'Lint' (capacity)" in told


@pytest.mark.req("R-10.3-09")
def test_a_lasting_decline_holds_until_the_card_changes(mwnode: Harness) -> None:
    coordinator = alone(mwnode)
    decline(coordinator, "authorization")
    later(coordinator, 60)
    asked = [payload.candidate_agent_ids[0] for payload in coordinator.of_kind("work.offer")]
    assert mwnode.workers[0].id not in asked[1:]
    register(mwnode, "1.1.0")
    later(coordinator, 130)
    asked = [payload.candidate_agent_ids[0] for payload in coordinator.of_kind("work.offer")]
    assert mwnode.workers[0].id in asked[1:]


@pytest.mark.req("R-6.1-08")
def test_what_an_upgraded_agent_no_longer_fits_is_offered_without_waiting_for_its_lease(mwnode: Harness) -> None:
    coordinator = alone(mwnode)
    work_item_id = coordinator.item("lint").item.work_item_id
    worker = mwnode.workers[0]
    worker.send("work.accept_offer", {"workItemId": work_item_id}, group_id=coordinator.mission.group_id)
    later(coordinator, 15)
    assert coordinator.state("lint") == "queued"
    register(mwnode, "1.1.0")
    later(coordinator, 15)
    assert coordinator.state("lint") == "queued", "the new Card satisfies what was pinned"
    register(mwnode, "2.0.0")
    coordinator.absent.discard(mwnode.workers[1].id)
    later(coordinator, 20)
    assert coordinator.state("lint") == "offered"
    assert coordinator.of_kind("work.offer")[-1].candidate_agent_ids == (mwnode.workers[1].id,)


@pytest.mark.req("R-13.2-05")
def test_what_a_human_said_of_one_submission_is_not_held_against_the_next(mwnode: Harness) -> None:
    """Bytes that a human did not like may come again, for instance because the human changes their mind."""
    coordinator = coordinate(mwnode, plan=make_plan(HUMAN))
    coordinator.absent.add(mwnode.workers[1].id)
    worker = desk(mwnode)
    work_together(coordinator, worker)
    first = coordinator.item("lint").item.submission
    tell(coordinator, EVIDENCE_SCHEMA, judge(coordinator, "failed"))
    work_together(coordinator, worker, rounds=30)
    again = coordinator.item("lint").item.submission
    assert coordinator.state("lint") == "submitted", "the human is asked anew"
    assert (again.artifact_hashes, again.submitted_at > first.submitted_at) == (first.artifact_hashes, True)
    assert len([kind for kind in coordinator.kinds() if kind == "work.fail"]) == 1
    tell(coordinator, EVIDENCE_SCHEMA, judge(coordinator, "passed"))
    work_together(coordinator, worker)
    assert coordinator.state("lint") == "verified"


def test_an_offer_that_came_too_late_is_told_only_when_it_happens_again(mwnode: Harness) -> None:
    """Of several candidates for urgent work one is first; that is no trouble of the owner's."""
    coordinator = coordinate(mwnode, plan=make_plan(SINGLE))
    coordinator.step()
    work_item_id = coordinator.item("lint").item.work_item_id
    late = InvalidStateTransition(Rejection(ErrorCode.INVALID_STATE_TRANSITION, "there is a live owner", "R-10.2-11"))
    told = len(said(coordinator))
    assert coordinator.engine.placing.refused(f"offer {work_item_id}", late) is None
    coordinator.step()
    assert len(said(coordinator)) == told
    assert coordinator.engine.placing.refused(f"offer {work_item_id}", late) is not None
    coordinator.step()
    assert "there is a live owner" in said(coordinator)[-1]
