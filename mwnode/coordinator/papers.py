"""The Signed Documents that a Coordinator makes: Context Packages and review Evidence. Pure."""

from __future__ import annotations

from collections.abc import Iterable

from msgspec import UNSET

from mwnode.client.fold import WorkView
from mwnode.coordinator.board import Board
from mwnode.protocol.documents import (
    AgentActor,
    Approval,
    ContextDecision,
    ContextPackage,
    Evidence,
    EvidenceSubject,
    JsonObject,
    Mission,
    SourceEventRange,
)
from mwnode.protocol.identifiers import uuid7_urn
from mwnode.protocol.ports import Clock, Entropy
from mwnode.trust.keys import SigningKey, sign_struct

SOURCE_EVENTS_MAX = 100
"""Most Events that a Context Package is made from: they are named, and may be fetched by whoever holds it (R-8-16)."""


class CoordinatorPapers:
    """Makes and signs documents as one Agent."""

    def __init__(self, key: SigningKey, clock: Clock, entropy: Entropy) -> None:
        self.key = key
        self.clock = clock
        self.entropy = entropy

    def new_id(self) -> str:
        """A fresh identifier."""
        return uuid7_urn(self.clock.now(), self.entropy.random(10))

    def package(self, board: Board, view: WorkView, artifact_hashes: Iterable[str]) -> ContextPackage:
        """What a candidate needs to know for one WorkItem: the goal, what came before it, and where from (R-8-10)."""
        assert board.mission is not None, "a Mission has WorkItems only after it was created"
        contract = view.item.contract
        rests_on = [board.facts.get(f"accepted {name}") for name in contract.dependency_work_item_ids]
        source = self._source(board, board.facts.get(f"authorized {view.work_item_id}"), *rests_on)
        decisions = []
        for work_item_id, accepted in zip(contract.dependency_work_item_ids, rests_on, strict=True):
            if accepted in source.event_ids and accepted is not None and work_item_id in board.views:
                goal = board.views[work_item_id].item.contract.goal
                text = f"accepted: {goal}"[:4000]
                decisions.append(ContextDecision(description=text, source_event_ids=(accepted,)))
        summary = f"Mission: {board.mission.objective}\nThis WorkItem: {contract.goal}"
        return self._package(board, source, summary, decisions, artifact_hashes, view.work_item_id)

    def _source(self, board: Board, *since: str | None) -> SourceEventRange:
        """The newest Events, up to the head; each of them is named. With ``since``, none older than those."""
        known = [board.event_ids.index(event_id) + 1 for event_id in since if event_id is not None]
        first = max(1, board.sequence - SOURCE_EVENTS_MAX + 1, min(known, default=1))
        return SourceEventRange(
            from_sequence=first, to_sequence=board.sequence, event_ids=tuple(board.event_ids[first - 1 :])
        )

    def hand_over(self, board: Board) -> ContextPackage:
        """What a replacement Coordinator found when it took over: every open WorkItem, up to the head (R-7.2-11)."""
        assert board.mission is not None, "a Mission is handed over only after it was created"
        counts: dict[str, int] = {}
        for view in board.views.values():
            counts[view.state] = counts.get(view.state, 0) + 1
        states = ", ".join(f"{count} {state}" for state, count in sorted(counts.items())) or "no WorkItem yet"
        summary = f"Mission: {board.mission.objective}\nReconciled at sequence {board.sequence}: {states}"
        return self._package(board, self._source(board), summary, [], (), None)

    def _package(
        self,
        board: Board,
        source: SourceEventRange,
        summary: str,
        decisions: list[ContextDecision],
        artifact_hashes: Iterable[str],
        work_item_id: str | None,
    ) -> ContextPackage:
        assert board.mission is not None, "callers have checked"
        return sign_struct(
            ContextPackage,
            self.key,
            context_package_id=self.new_id(),
            version=1,
            mission_id=board.mission.mission_id,
            group_id=board.group_id,
            source_event_range=source,
            artifact_hashes=tuple(dict.fromkeys(artifact_hashes)),
            summary=summary[:50_000],
            decisions=tuple(decisions),
            constraints=(),
            unresolved_questions=(),
            generated_by=AgentActor(type="agent", id=self.key.principal.id),
            generated_at=self.clock.now().text(),
            work_item_id=UNSET if work_item_id is None else work_item_id,
        )

    def child_approval(
        self, mission: Mission, revision: int, artifact_hashes: tuple[str, ...], decision: str, comments: str
    ) -> Approval:
        """The Parent Coordinator's decision about exactly what a child Mission submitted (R-14-14)."""
        policy = mission.approval_policy.policy_version
        return sign_struct(
            Approval,
            self.key,
            approval_id=self.new_id(),
            kind="child_mission",
            decision=decision,
            mission_id=mission.mission_id,
            group_id=mission.group_id,
            mission_revision=revision,
            artifact_hashes=artifact_hashes,
            acceptance_policy_version="1.0.0" if policy is UNSET else policy,
            approver=self.key.principal,
            comments=comments[:10_000],
            conditions=(),
            occurred_at=self.clock.now().text(),
        )

    def evidence(
        self, view: WorkView, kind: str, criterion_ids: Iterable[str], result: str, method: str, details: JsonObject
    ) -> Evidence:
        """One finding of the review. ``details`` lists what was looked at, never how it was thought about."""
        submitted = () if view.item.submission is UNSET else view.item.submission.artifact_hashes
        return sign_struct(
            Evidence,
            self.key,
            evidence_id=self.new_id(),
            mission_id=view.item.mission_id,
            group_id=view.item.group_id,
            work_item_id=view.work_item_id,
            type=kind,
            subject=EvidenceSubject(type="work_item", id=view.work_item_id),
            criterion_ids=tuple(criterion_ids),
            method=method[:4000],
            result=result,
            artifact_hashes=submitted,
            generated_by=self.key.principal,
            created_at=self.clock.now().text(),
            details=details,
        )
