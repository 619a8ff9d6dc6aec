"""The graph grows while it is carried out: what Members propose is authorized where the plan's budget has room for it
(R-10.4-01). A proposal that goes further than that is put before the MissionOwner.
"""

from __future__ import annotations

from msgspec import UNSET

from mwnode.coordinator.graph import Instance, work_item_id
from mwnode.coordinator.plan_format import LIMITS
from mwnode.coordinator.whole import Whole
from mwnode.protocol.documents import Budget, WorkContract
from mwnode.protocol.events import WorkProposal
from mwnode.protocol.instants import parse

UNASKED_RISKS = frozenset({"none", "reversible"})
"""Risks of proposed work that need nobody's word; others need ``human_required`` execution approval."""
_USED = {
    "model_token_limit": "model_tokens",
    "tool_call_limit": "tool_calls",
    "compute_seconds_limit": "compute_seconds",
    "wall_clock_seconds_limit": "wall_clock_seconds",
    "external_side_effect_limit": "external_actions",
}


class Growing:
    """Proposed work of one Mission. Part of the engine, kept apart because it is an idea of its own."""

    def __init__(self, engine: Whole) -> None:
        self.engine = engine

    def advance(self) -> None:
        """Authorize what may be authorized, and carry on with what was."""
        for proposal in list(self.engine.board.proposals.values()):
            instance = self._instance(proposal)
            view = self.engine.board.views.get(instance.work_item_id)
            if view is not None:
                self.engine.further(instance, {}, view)
            elif self._admitted(proposal):
                parent = None if proposal.parent_work_item_id is UNSET else proposal.parent_work_item_id
                self.engine.authorize(instance, proposal.contract, proposal_id=proposal.proposal_id, parent=parent)

    def _instance(self, proposal: WorkProposal) -> Instance:
        mission = self.engine.board.mission
        assert mission is not None, "work is proposed in Missions"
        identifier = work_item_id(mission.mission_id, f"proposal {proposal.proposal_id}")
        view = self.engine.board.views.get(identifier)
        given = proposal.contract if view is None else view.item.contract
        return Instance(f"proposal-{identifier[-8:]}", identifier, given=given)

    @property
    def settled(self) -> bool:
        """Whether nothing that was proposed still has to be authorized."""
        return not any(
            self._instance(proposal).work_item_id not in self.engine.board.views and self._admitted(proposal)
            for proposal in self.engine.board.proposals.values()
        )

    def results(self) -> list[str]:
        """Content hashes of what came out of proposed work."""
        found: list[str] = []
        for proposal in self.engine.board.proposals.values():
            view = self.engine.board.views.get(self._instance(proposal).work_item_id)
            if view is not None and view.state == "verified" and view.item.submission is not UNSET:
                found.extend(view.item.submission.artifact_hashes)
        return found

    def _admitted(self, proposal: WorkProposal) -> bool:
        """Whether the Coordinator authorizes a proposal by itself; the owner is told why not."""
        if proposal.status != "open" or proposal.proposal_id in self.engine.board.taken_proposals:
            return False
        why = self._fault(proposal.contract)
        if why is None:
            return True
        text = f"{proposal.proposed_by.id} proposes {proposal.contract.goal!r}, which is not authorized: {why}."
        self.engine.say(f"proposal {proposal.proposal_id} {why}", text[:4000])
        return False

    def _fault(self, contract: WorkContract) -> str | None:
        mission = self.engine.board.mission
        assert mission is not None, "work is proposed in Missions"
        if contract.side_effect_risk not in UNASKED_RISKS and contract.execution_approval != "human_required":
            return f"its risk is {contract.side_effect_risk}, and no human would be asked before it runs"
        if parse(contract.deadline) > parse(mission.deadline):
            return "its deadline lies after the Mission's"
        for limit in LIMITS:
            left = self._left(limit)
            asked = getattr(contract.budget, limit)
            if left is not None and asked is not UNSET and asked > left:
                return f"it asks for {limit} {asked:g}, and the plan leaves {max(0, left):g}"
        return None

    def _left(self, limit: str) -> float | None:
        """What the Mission's budget leaves in one dimension beside everything authorized and everything planned;
        ``None`` without a limit."""
        engine = self.engine
        board = engine.board
        ceiling = UNSET if board.budget is None else getattr(board.budget, limit)
        if ceiling is UNSET:
            return None
        given = 0.0
        for view in board.views.values():
            allotted = _amount(view.item.contract.budget, limit)
            if view.state in ("verified", "cancelled") and limit in _USED:
                # What an ended WorkItem did not use is free again (decision D21).
                allotted = 0.0 if view.used is None else float(getattr(view.used, _USED[limit]))
            given += allotted
        for instance in engine.graph.instances().values():
            if instance.work_item_id not in board.views and instance.work is not None:
                given += _amount(engine.plan.work_budget(instance.work), limit)
        return float(ceiling) - given


def _amount(budget: Budget, limit: str) -> float:
    amount = getattr(budget, limit)
    return 0.0 if amount is UNSET else float(amount)
