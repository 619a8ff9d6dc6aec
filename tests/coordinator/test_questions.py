"""Ambiguities: settled by a corrected contract in a new offer, or asked of the owner first (R-10.1-21)."""

from __future__ import annotations

from typing import Any

import pytest

from mwnode.authority.policy import Policy
from mwnode.authority.state import MISSIONS
from mwnode.authority.waiting import Wait, waiting
from mwnode.coordinator.clarifying import corrected
from mwnode.coordinator.graph import replace_contract
from mwnode.protocol.identifiers import CLARIFICATION_SCHEMA, mission_conversation_id
from mwnode.testing import Harness, Participant
from tests.coordinator.desk import SINGLE, CoordinatorDesk, coordinate, make_plan
from tests.coordinator.test_engine import work_together
from tests.worker.desk import Run, desk


def waits(mwnode: Harness, coordinator: CoordinatorDesk) -> list[Wait]:
    with mwnode.node.read() as view:
        row = view.get(MISSIONS, coordinator.mission.mission_id)
        assert row is not None
        return waiting(view, row, Policy(), mwnode.clock.now())


def ask(coordinator: CoordinatorDesk, who: Participant, text: str) -> str:
    """A candidate's question in the Conversation of the WorkItem that it is offered."""
    question = coordinator.harness.new_id()
    block = {"type": "data_ref", "schema": CLARIFICATION_SCHEMA, "data": {"question": question, "resolved": False}}
    who.send(
        "message.post",
        {
            "messageId": question,
            "conversationId": coordinator.item("lint").item.conversation_id,
            "content": [{"type": "text", "text": text}, block],
        },
        group_id=coordinator.mission.group_id,
    )
    return question


def say(coordinator: CoordinatorDesk, who: Participant, text: str) -> None:
    harness, group_id = coordinator.harness, coordinator.mission.group_id
    payload = {"messageId": harness.new_id(), "conversationId": mission_conversation_id(group_id), "content": text}
    who.send("message.post", payload, group_id=group_id)


def asked(mwnode: Harness) -> tuple[CoordinatorDesk, str]:
    """A Mission whose only WorkItem a candidate has a question about."""
    coordinator = coordinate(mwnode, plan=make_plan(SINGLE))
    coordinator.absent.add(mwnode.workers[1].id)
    coordinator.step()
    return coordinator, ask(coordinator, mwnode.workers[0], "Which of the two linters?")


@pytest.mark.req("R-10.1-21")
def test_a_question_goes_to_the_owner_and_the_answer_into_a_corrected_contract(mwnode: Harness) -> None:
    coordinator, question = asked(mwnode)
    coordinator.step()
    on_owner = [one for one in waits(mwnode, coordinator) if one.who == mwnode.owner.principal]
    assert len(on_owner) == 1
    assert "Which of the two linters?" in on_owner[0].action
    assert on_owner[0].on == {"kind": "mission", "id": coordinator.mission.mission_id}
    # Time alone changes nothing: neither another offer nor another question.
    mwnode.advance(200)
    coordinator.step()
    assert len(coordinator.of_kind("work.offer")) == 1
    assert coordinator.kinds().count("message.post") == 1
    say(coordinator, mwnode.owner, "The new one.")
    coordinator.step()
    contract = coordinator.item("lint").item.contract
    assert contract.contract_version == 2
    assert contract.constraints["clarifications"] == [
        {"question": "Which of the two linters?", "answer": "The new one."}
    ]
    assert coordinator.item("lint").item.state == "offered"
    coordinator.step()
    assert [one for one in waits(mwnode, coordinator) if one.who == mwnode.owner.principal] == []
    resolved = [one for one in coordinator.engine.board.questions.values() if one.resolved]
    assert [one.question_id for one in resolved] == [question, question], "in both Conversations"


@pytest.mark.req("R-10.1-21")
def test_words_of_others_settle_nothing(mwnode: Harness) -> None:
    coordinator, _ = asked(mwnode)
    coordinator.step()
    mwnode.coordinator.send(
        "message.post",
        {
            "messageId": mwnode.new_id(),
            "conversationId": coordinator.item("lint").item.conversation_id,
            "content": "Take the old one.",
        },
        group_id=coordinator.mission.group_id,
    )
    mwnode.advance(200)
    coordinator.step()
    assert coordinator.item("lint").item.contract.contract_version == 1
    assert len(coordinator.of_kind("work.offer")) == 1
    assert any(one.who == mwnode.owner.principal for one in waits(mwnode, coordinator))


@pytest.mark.req("R-10.1-21")
def test_what_the_contract_itself_settles_is_corrected_at_once(mwnode: Harness) -> None:
    coordinator = coordinate(mwnode, plan=make_plan(SINGLE))
    coordinator.absent.add(mwnode.workers[1].id)
    worker = desk(mwnode, behave=lambda assignment: Run(files={"report": b"1", "notes": b"2"}))
    coordinator.step()
    both = [
        {"deliverableId": name, "description": name, "mediaType": "text/plain", "schema": "urn:mwnode:schema:any"}
        for name in ("report", "notes")
    ]
    unclear = {"checks": {"green": "exit 0"}, "deliverables": {"report": {"path": "out"}, "notes": {"path": "out"}}}
    contract = mwnode.contract(
        requiredDeliverables=both,
        constraints=unclear,
        allowedResources=[],
        deadline=coordinator.mission.row.mission.deadline,
    )
    mwnode.owner.send(
        "work.propose", {"proposalId": mwnode.new_id(), "contract": contract}, group_id=coordinator.mission.group_id
    )
    work_together(coordinator, worker)
    grown = [
        view for view in coordinator.engine.board.views.values() if len(view.item.contract.required_deliverables) == 2
    ]
    assert len(grown) == 1
    assert grown[0].item.contract.contract_version == 2
    assert grown[0].item.contract.constraints["deliverables"] == {  # type: ignore[index]  # it has constraints
        "report": {"path": "out"},
        "notes": {"path": "notes/out"},
    }
    assert "message.post" in worker.kinds(), "the Worker asked"
    assert grown[0].state == "verified"
    assert coordinator.mission.state == "awaiting_approval"


@pytest.mark.parametrize(
    "named, paths",
    [
        ({"report": {"path": "a"}}, {"report": {"path": "a"}}),
        ({}, {"report": {"path": "report"}}),
        ("nonsense", {"report": {"path": "report"}}),
        ({"report": {"path": "a"}, "other": {"path": "b"}}, {"report": {"path": "a"}}),
    ],
)
def test_correction_gives_each_deliverable_its_path_and_nothing_else(mwnode: Harness, named: Any, paths: Any) -> None:
    plan = make_plan(SINGLE)
    contract = plan.contract(plan.work[0], {}, mwnode.clock.now(), {})
    unclear = replace_contract(contract, constraints={"deliverables": named})
    settled = corrected(unclear)
    assert settled.constraints == {"deliverables": paths}
    assert corrected(settled) is settled
    free = replace_contract(contract, constraints={})
    assert corrected(free) is free
