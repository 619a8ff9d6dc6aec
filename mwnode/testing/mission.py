"""One Mission in the hands of a test."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

import msgspec

from mwnode.authority.state import (
    MEMBERSHIPS,
    MISSIONS,
    WORK_ITEMS,
    MembershipRow,
    MissionRow,
    WorkItemRow,
    membership_key,
)
from mwnode.testing.people import Participant
from mwnode.testing.states import MISSION_STEPS, take_steps
from mwnode.testing.work import WorkHandle

if TYPE_CHECKING:
    from mwnode.testing.harness import Harness


class MissionHandle:
    """One Mission, with the Commands that its people send in the ordinary case.

    ``owner`` and ``coordinator`` are the Harness's, but for a child Mission.
    """

    def __init__(
        self,
        harness: Harness,
        mission_id: str,
        group_id: str,
        owner: Participant | None = None,
        coordinator: Participant | None = None,
    ) -> None:
        self.harness = harness
        self.owner = owner or harness.owner
        self.coordinator = coordinator or harness.coordinator
        self.mission_id = mission_id
        self.group_id = group_id
        self._authorized = 0

    @property
    def row(self) -> MissionRow:
        with self.harness.node.read() as view:
            row = view.get(MISSIONS, self.mission_id)
        assert row is not None
        return row

    @property
    def state(self) -> str:
        return self.row.mission.state

    @property
    def revision(self) -> int:
        return self.row.mission.revision

    def events(self) -> list[dict[str, Any]]:
        """The whole log of the Group."""
        with self.harness.node.read() as view:
            return [msgspec.json.decode(stored.event) for stored in view.events(self.group_id, 0, 1_000_000)]

    def membership(self, who: Participant) -> MembershipRow | None:
        with self.harness.node.read() as view:
            return view.get(MEMBERSHIPS, membership_key(self.group_id, who.principal))

    def add(self, who: Participant, role: str = "worker", **payload: Any) -> dict[str, Any]:
        """The Coordinator makes somebody an active Member; the receipt Event."""
        return self.coordinator.send(
            "membership.change",
            {"principal": msgspec.to_builtins(who.principal), "role": role, **payload},
            group_id=self.group_id,
        )[0]

    def package(self, **members: Any) -> dict[str, Any]:
        """A Context Package of the whole log, signed by the Coordinator, for whoever comes late."""
        events = self.events()
        span = {"fromSequence": 1, "toSequence": len(events), "eventIds": [event["eventId"] for event in events]}
        ordinary: dict[str, Any] = {
            "contextPackageId": self.harness.new_id(),
            "version": 1,
            "missionId": self.mission_id,
            "groupId": self.group_id,
            "sourceEventRange": span,
            "artifactHashes": [],
            "summary": "All that there is",
            "decisions": [],
            "constraints": [],
            "unresolvedQuestions": [],
            "generatedBy": msgspec.to_builtins(self.coordinator.principal),
            "generatedAt": self.harness.clock.now().text(),
        }
        return self.coordinator.sign(**{**ordinary, **members})

    def authorize(self, **contract: Any) -> WorkHandle:
        """The Coordinator authorizes a WorkItem; ``contract`` replaces members of the harness's default contract."""
        self._authorized += 1
        if self._authorized > 1:
            # The third of several equal contracts would be refused as a duplicate.
            contract = {"goal": f"Run the unit tests, part {self._authorized}", **contract}
        work_item_id = self.harness.new_id()
        self.coordinator.send(
            "work.authorize",
            {"workItemId": work_item_id, "contract": self.harness.contract(**contract)},
            group_id=self.group_id,
        )
        return WorkHandle(self, work_item_id)

    def work(self, state: str = "open", **contract: Any) -> WorkHandle:
        """A WorkItem in any state of its lifecycle: ``mission.work("submitted")``. ValueError for an unknown state."""
        return self.authorize(**contract).to(state)

    def promote(self, work_item_id: str, coordinator: Participant, **payload: Any) -> MissionHandle:
        """The Coordinator makes a child Mission of a WorkItem; it is the child's owner, and ``coordinator`` runs it."""
        mission_id, group_id = self.harness.new_id(), self.harness.new_id()
        ordinary = self.harness.mission_payload(mission_id, group_id, coordinator)
        child = {
            **ordinary,
            "parentWorkItemId": work_item_id,
            "budget": {"wallClockSecondsLimit": 600},
            "approvalPolicy": {"finalHumanApproval": False, "highRiskExecutionApproval": True},
            "deadline": self.harness.clock.now().plus(86_400).text(),
        }
        self.coordinator.send("mission.create_child", {**child, **payload}, group_id=self.group_id)
        return MissionHandle(self.harness, mission_id, group_id, self.coordinator, coordinator)

    def work_items(self) -> list[WorkItemRow]:
        """Every WorkItem of the Mission."""
        with self.harness.node.read() as view:
            return list(view.in_group(WORK_ITEMS, self.group_id))

    def post(self, who: Participant, content: str, **payload: Any) -> dict[str, Any]:
        """Somebody says something in the Group's own Conversation."""
        ordinary = {"messageId": self.harness.new_id(), "conversationId": f"{self.group_id}:mission"}
        return who.send("message.post", {**ordinary, "content": content, **payload}, group_id=self.group_id)[0]

    def submit(self, artifact_hashes: Sequence[str] | None = None) -> dict[str, Any]:
        """The Coordinator submits exactly these Artifacts for approval, or all that were verified.

        A Mission without any WorkItem gets one that is verified, since an empty one cannot be submitted (R-7.3-03).
        """
        if artifact_hashes is None:
            if not self.work_items():
                self.work("verified")
            artifact_hashes = self._verified()
        return self.coordinator.send(
            "mission.submit_for_approval",
            {"artifactHashes": list(artifact_hashes), "missionRevision": self.revision},
            group_id=self.group_id,
        )[0]

    def approval(self, decision: str = "approved", **members: Any) -> dict[str, Any]:
        """A signed final Approval by the owner of what was submitted."""
        row = self.row
        document = {
            "approvalId": self.harness.new_id(),
            "kind": "mission_final" if row.mission.parent is msgspec.UNSET else "child_mission",
            "decision": decision,
            "missionId": self.mission_id,
            "groupId": self.group_id,
            "missionRevision": row.submitted_revision if row.submitted_revision is not None else self.revision,
            "artifactHashes": list(row.submitted_artifacts),
            "acceptancePolicyVersion": "1.0.0",
            "approver": msgspec.to_builtins(self.owner.principal),
            "comments": "",
            "conditions": [],
            "occurredAt": self.harness.clock.now().text(),
        }
        if row.mission.parent is not msgspec.UNSET:
            document["workItemId"] = row.mission.parent.work_item_id
        return self.owner.sign(**{**document, **members})

    def approve(self) -> dict[str, Any]:
        """The owner approves exactly what was submitted."""
        return self.owner.send("mission.approve", {"approval": self.approval()}, group_id=self.group_id)[0]

    def cancel(self, **payload: Any) -> dict[str, Any]:
        """The owner calls the Mission off."""
        return self.owner.send("mission.cancel", {"reason": "No longer needed", **payload}, group_id=self.group_id)[0]

    def terminate(self, **payload: Any) -> dict[str, Any]:
        """The Coordinator gives the Mission up."""
        return self.coordinator.send(
            "mission.terminate", {"reason": "It cannot be done", **payload}, group_id=self.group_id
        )[0]

    def to(self, state: str) -> MissionHandle:
        """Go on to a state of the lifecycle by the ordinary Commands; itself. ValueError when no way leads there."""
        take_steps(self, self.state, state, MISSION_STEPS)
        return self

    def request_changes(self, feedback: str = "Please correct this") -> dict[str, Any]:
        """The owner sends the submission back."""
        return self.owner.send(
            "mission.request_changes",
            {"approval": self.approval("changes_requested"), "feedback": feedback},
            group_id=self.group_id,
        )[0]

    def _verified(self) -> list[str]:
        return sorted(
            {
                content_hash
                for row in self.work_items()
                if row.item.state == "verified" and row.item.submission is not msgspec.UNSET
                for content_hash in row.item.submission.artifact_hashes
            }
        )
