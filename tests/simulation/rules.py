"""What must hold among Missions: who may do gated work, who may assess, whose result a child's becomes, what an archive
closes. Read off the Events alone, without looking at any row."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Callable
from typing import Any

from msgspec import UNSET

from mwnode.protocol.commands import CORE
from mwnode.protocol.documents import Event, WorkContract
from mwnode.protocol.events import (
    ExecutionApproved,
    GroupArchived,
    MissionChildCreated,
    MissionCreated,
    OfferAccepted,
    OfferCreated,
    ResultAccepted,
    RootApprovalGranted,
    WorkAuthorized,
    WorkStarted,
)
from mwnode.protocol.instants import parse

AFTER_ARCHIVAL = frozenset({"message.redacted", f"{CORE}.event_tombstoned"})
BY_OTHERS = frozenset({"reviewer_assessment", "human_review"})
_OVER = frozenset({"approved", "cancelled", "failed"})


class Rules:
    """Every Event of every Group, in the order in which it was committed."""

    def __init__(self, fail: Callable[[str], None], *, rooted: bool) -> None:
        self._fail = fail
        self._rooted = rooted
        self.states: dict[str, str] = {}
        """Of each Mission."""
        self.parents: dict[str, tuple[str, str]] = {}
        """Of each child Mission: the Mission and the WorkItem that it is in."""
        self._groups: dict[str, str] = {}
        self._archived: set[str] = set()
        self._contracts: dict[str, WorkContract] = {}
        self._owners: dict[str, str] = {}
        self._permits: dict[tuple[str, int], list[ExecutionApproved]] = defaultdict(list)
        self._rooted_children: set[str] = set()
        self.starts = 0
        """Of work that a human had to permit."""
        self.assessed = 0

    def is_archived(self, group_id: str) -> bool:
        """Whether the Group's archival was committed."""
        return group_id in self._archived

    def event(self, group_id: str, event: Event, payload: Any) -> None:
        """One Event was committed."""
        if group_id in self._archived and event.kind not in AFTER_ARCHIVAL:
            self._fail(f"{event.kind} was committed in {group_id}, which is archived")
        mission_id = self._groups.get(group_id, "")
        if event.kind.startswith("mission.") and isinstance(event.payload.get("state"), str) and mission_id:
            self._moved(mission_id, event.payload["state"])
        work_item_id = "" if event.work_item_id is UNSET else event.work_item_id
        match payload:
            case MissionCreated():
                self._groups[group_id] = payload.mission.mission_id
                self.states[payload.mission.mission_id] = "active"
            case MissionChildCreated():
                self._born(mission_id, payload)
            case WorkAuthorized() | OfferCreated():
                self._contracts[payload.work_item.work_item_id] = payload.work_item.contract
            case OfferAccepted():
                if payload.owner is not UNSET:
                    self._owners[work_item_id] = payload.owner.agent_id
            case ExecutionApproved():
                self._permits[(payload.work_item_id, payload.ownership_epoch)].append(payload)
                if payload.approval.approver.type != "human":
                    self._fail(f"{payload.approval.approver.id} permitted work and is no human")
            case WorkStarted():
                self._started(work_item_id, event, payload)
            case ResultAccepted():
                self._accepted(work_item_id, payload)
            case RootApprovalGranted():
                self._rooted_children.add(mission_id)
            case GroupArchived():
                self._archived.add(group_id)
                if self.states.get(mission_id) not in _OVER:
                    self._fail(f"{group_id} was archived while its Mission was {self.states.get(mission_id)}")

    def _moved(self, mission_id: str, state: str) -> None:
        was = self.states.get(mission_id)
        if was in _OVER and state != was:
            self._fail(f"{mission_id} went from {was} to {state}")
        self.states[mission_id] = state
        parent = self.parents.get(mission_id)
        if state == "approved":
            if parent is not None and self._rooted and mission_id not in self._rooted_children:
                self._fail(f"{mission_id} was approved without its root owner")
            for child, (above, _) in self.parents.items():
                if above == mission_id and self.states.get(child) not in _OVER:
                    self._fail(f"{mission_id} was approved while its child {child} was {self.states.get(child)}")

    def _born(self, mission_id: str, payload: MissionChildCreated) -> None:
        for child, (_, work_item_id) in self.parents.items():
            if work_item_id == payload.parent_work_item_id and self.states.get(child) not in {"failed", "cancelled"}:
                self._fail(f"{work_item_id} got a second child while {child} is {self.states.get(child)}")
        self.parents[payload.child_mission_id] = (mission_id, payload.parent_work_item_id)
        self.states.setdefault(payload.child_mission_id, "active")

    def _started(self, work_item_id: str, event: Event, payload: WorkStarted) -> None:
        contract = self._contracts.get(work_item_id)
        if contract is None or contract.execution_approval != "human_required":
            return
        self.starts += 1
        now = parse(event.occurred_at)
        permits = self._permits[(work_item_id, payload.ownership_epoch)]
        if not any(parse(one.expires_at) > now for one in permits):
            self._fail(f"{work_item_id} was started under epoch {payload.ownership_epoch} and no human permitted it")

    def _accepted(self, work_item_id: str, payload: ResultAccepted) -> None:
        if payload.child_mission_id is not UNSET and self.states.get(payload.child_mission_id) != "approved":
            self._fail(f"{work_item_id} has the result of {payload.child_mission_id}, which was not approved")
        contract = self._contracts.get(work_item_id)
        evidence = () if payload.evidence is UNSET else payload.evidence
        for one in evidence:
            if one.type in BY_OTHERS:
                self.assessed += 1
                if one.generated_by.id == self._owners.get(work_item_id):
                    self._fail(f"{work_item_id} was assessed by its own owner")
        if contract is None or payload.child_mission_id is not UNSET:
            return
        for criterion in contract.acceptance_criteria:
            for kind in BY_OTHERS.intersection(criterion.evidence_required):
                given = [one for one in evidence if one.type == kind and criterion.criterion_id in one.criterion_ids]
                if not any(one.result == "passed" for one in given):
                    self._fail(f"{work_item_id} was accepted without {kind} of {criterion.criterion_id}")


__all__ = ["Rules"]
