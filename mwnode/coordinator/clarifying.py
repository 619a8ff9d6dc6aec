"""Questions about contracts: settled by a corrected contract in a new offer, never by words alone (R-10.1-21).

A Worker that finds a contract ambiguous asks in the WorkItem's Conversation and does not accept. What follows from the
contract itself is corrected at once. Everything else is asked of the MissionOwner, whose answer becomes part of the
contract; until then the WorkItem is offered to nobody.
"""

from __future__ import annotations

from collections.abc import Mapping

from msgspec import UNSET

from mwnode.client.fold import WorkView
from mwnode.coordinator.board import Question
from mwnode.coordinator.graph import replace_contract
from mwnode.coordinator.whole import Whole
from mwnode.protocol import terms
from mwnode.protocol.commands import MessagePost
from mwnode.protocol.documents import DataBlock, JsonObject, TextBlock, WorkContract
from mwnode.protocol.identifiers import CLARIFICATION_SCHEMA, mission_conversation_id


class Clarifying:
    """The open questions of one Mission. Part of the engine, kept apart because it is an idea of its own."""

    def __init__(self, engine: Whole) -> None:
        self.engine = engine

    def _asked(self, view: WorkView) -> list[Question]:
        """Everything that was ever asked about a WorkItem's contract, oldest first."""
        return [
            one
            for one in self.engine.board.questions.values()
            if one.conversation_id == view.item.conversation_id and one.author.id != self.engine.agent_id
        ]

    def _forwarded(self, question: Question) -> Question | None:
        main = mission_conversation_id(self.engine.board.group_id)
        return self.engine.board.questions.get((main, question.question_id))

    def _answer(self, question: Question, view: WorkView) -> str | None:
        """The MissionOwner's first words after the question, in either Conversation in which it stands."""
        board = self.engine.board
        passed_on = self._forwarded(question)
        since = {view.item.conversation_id: question.sequence}
        if passed_on is not None:
            since[passed_on.conversation_id] = passed_on.sequence
        for message in board.messages:
            begin = since.get(message.conversation_id)
            if begin is None or message.author != board.owner:
                continue
            if board.message_sequences[message.message_id] > begin:
                texts = [getattr(block, "text", "") for block in message.content]
                return " ".join(text for text in texts if text) or None
        return None

    def is_due(self, view: WorkView) -> bool:
        """Whether a question stands for which a corrected contract can be offered now."""
        return any(
            question.contract_version >= view.item.contract.contract_version
            and (corrected(view.item.contract) != view.item.contract or self._answer(question, view) is not None)
            for question in self._asked(view)
        )

    def holds(self, local: str, view: WorkView) -> bool:
        """Whether the WorkItem is offered to nobody because a question about it is open; asks the owner if needed."""
        held = False
        for question in self._asked(view):
            if view.item.contract.contract_version > question.contract_version:
                self._resolve(question)
            elif not self.is_due(view):
                held = True
                self._pass_on(local, question)
        return held

    def amended(self, view: WorkView, contract: WorkContract) -> WorkContract:
        """The contract with everything that questions about it have led to."""
        questions = self._asked(view)
        if not questions:
            return contract
        # What was answered once stays answered, whoever coordinates and however long ago it was said.
        said = terms.entries(view.item.contract, "clarifications")
        answers: dict[str, JsonObject] = {str(one.get("question")): dict(one) for one in said}
        for question in questions:
            answer = self._answer(question, view)
            if answer is not None and question.text not in answers:
                answers[question.text] = {"question": question.text, "answer": answer}
        if answers:
            given = {**terms.of(contract), "clarifications": list(answers.values())}
            contract = replace_contract(contract, constraints=given)
        return corrected(contract)

    def _pass_on(self, local: str, question: Question) -> None:
        """Ask the MissionOwner, in the main Conversation; it shows among what waits until it is answered."""
        engine = self.engine
        key = f"pass on {question.question_id}"
        if self._forwarded(question) is not None or engine.board.owner is None or not engine.free(key):
            return
        text = f"{local}: {question.author.id} asks: {question.text}"
        self._post(key, mission_conversation_id(engine.board.group_id), question, text, resolved=False)
        engine.note("passed_on", work=local, question=question.text)

    def _resolve(self, question: Question) -> None:
        """A newer contract is on offer: the question is closed wherever it stands open."""
        for one in (question, self._forwarded(question)):
            key = f"resolve {question.question_id} {one.conversation_id}" if one is not None else ""
            if one is not None and not one.resolved and self.engine.free(key):
                self._post(key, one.conversation_id, one, "Settled by a corrected contract.", resolved=True)

    def _post(self, key: str, conversation_id: str, question: Question, text: str, *, resolved: bool) -> None:
        owner = self.engine.board.owner
        payload = MessagePost(
            message_id=self.engine.papers.new_id(),
            conversation_id=conversation_id,
            content=(
                TextBlock(text=text[:10_000]),
                DataBlock(schema=CLARIFICATION_SCHEMA, data={"question": question.question_id, "resolved": resolved}),
            ),
            mentions=() if owner is None or resolved else (owner,),
            announcement=not resolved,
        )
        self.engine.send(key, "message.post", payload)


def corrected(contract: WorkContract) -> WorkContract:
    """The contract with one path of its own for each deliverable, and none for what it does not require.

    That is all that can be put right without knowing what was meant.
    """
    if contract.constraints is UNSET or "deliverables" not in contract.constraints:
        return contract
    named = terms.table(contract, "deliverables")
    paths: dict[str, JsonObject] = {}
    taken: set[str] = set()
    for deliverable in contract.required_deliverables:
        entry = named.get(deliverable.deliverable_id)
        entry = dict(entry) if isinstance(entry, Mapping) else {}
        path = terms.path_in(entry) or deliverable.deliverable_id
        if path in taken:
            path = f"{deliverable.deliverable_id}/{path}"
        taken.add(path)
        paths[deliverable.deliverable_id] = {**entry, "path": path}
    if paths == contract.constraints["deliverables"]:
        return contract
    return replace_contract(contract, constraints={**contract.constraints, "deliverables": paths})
