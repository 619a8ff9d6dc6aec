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
    """One Mission, with the Commands that its people send in the ordinary case."""

    def __init__(self, harness: Harness, mission_id: str, group_id: str) -> None:
        self.harness = harness
        self.mission_id = mission_id
        self.group_id = group_id

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
        return self.harness.coordinator.send(
            "membership.change",
            {"principal": msgspec.to_builtins(who.principal), "role": role, **payload},
            group_id=self.group_id,
        )[0]

    def authorize(self, **contract: Any) -> WorkHandle:
        """The Coordinator authorizes a WorkItem; ``contract`` replaces members of the harness's default contract."""
        work_item_id = self.harness.new_id()
        self.harness.coordinator.send(
            "work.authorize",
            {"workItemId": work_item_id, "contract": self.harness.contract(**contract)},
            group_id=self.group_id,
        )
        return WorkHandle(self, work_item_id)

    def work(self, state: str = "open", **contract: Any) -> WorkHandle:
        """A WorkItem in any state of its lifecycle: ``mission.work("submitted")``. ValueError for an unknown state."""
        return self.authorize(**contract).to(state)

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
        return self.harness.coordinator.send(
            "mission.submit_for_approval",
            {"artifactHashes": list(artifact_hashes), "missionRevision": self.revision},
            group_id=self.group_id,
        )[0]

    def approval(self, decision: str = "approved", **members: Any) -> dict[str, Any]:
        """A signed final Approval by the owner of what was submitted."""
        row = self.row
        document = {
            "approvalId": self.harness.new_id(),
            "kind": "mission_final",
            "decision": decision,
            "missionId": self.mission_id,
            "groupId": self.group_id,
            "missionRevision": row.submitted_revision if row.submitted_revision is not None else self.revision,
            "artifactHashes": list(row.submitted_artifacts),
            "acceptancePolicyVersion": "1.0.0",
            "approver": msgspec.to_builtins(self.harness.owner.principal),
            "comments": "",
            "conditions": [],
            "occurredAt": self.harness.clock.now().text(),
        }
        return self.harness.owner.sign(**{**document, **members})

    def approve(self) -> dict[str, Any]:
        """The owner approves exactly what was submitted."""
        return self.harness.owner.send("mission.approve", {"approval": self.approval()}, group_id=self.group_id)[0]

    def cancel(self, **payload: Any) -> dict[str, Any]:
        """The owner calls the Mission off."""
        return self.harness.owner.send(
            "mission.cancel", {"reason": "No longer needed", **payload}, group_id=self.group_id
        )[0]

    def terminate(self, **payload: Any) -> dict[str, Any]:
        """The Coordinator gives the Mission up."""
        return self.harness.coordinator.send(
            "mission.terminate", {"reason": "It cannot be done", **payload}, group_id=self.group_id
        )[0]

    def to(self, state: str) -> MissionHandle:
        """Go on to a state of the lifecycle by the ordinary Commands; itself. ValueError when no way leads there."""
        take_steps(self, self.state, state, MISSION_STEPS)
        return self

    def request_changes(self, feedback: str = "Please correct this") -> dict[str, Any]:
        """The owner sends the submission back."""
        return self.harness.owner.send(
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
