"""A scene in which whole Missions come and go: submission, Approvals, children, replacements."""

from __future__ import annotations

from typing import Any

from msgspec import UNSET

from mwnode.authority.request import Decision
from mwnode.authority.state import APPROVALS, WORK_ITEMS, ApprovalRow
from mwnode.authority.table import UNFINISHED
from mwnode.protocol.documents import Actor
from mwnode.protocol.errors import ErrorCode
from tests.authority.scene import GROUP, MISSION, Scene, later, work_id

CHILD = "urn:example:mission:child"
CHILD_GROUP = "urn:example:group:child"


class Stage(Scene):
    """A ``Scene`` with one call for every usual step of a Mission as a whole."""

    # --- Approvals ---

    def approval(
        self, hashes: list[str], *, signer: Actor | None = None, mission_id: str = MISSION, **changes: Any
    ) -> dict[str, Any]:
        """A signed decision about what the Mission submitted."""
        signer = signer or self.owner
        row = self.mission_row(mission_id)
        document = {
            "approvalId": f"urn:example:approval:{self.number()}",
            "kind": "mission_final",
            "decision": "approved",
            "missionId": mission_id,
            "groupId": row.mission.group_id,
            "missionRevision": row.submitted_revision or row.mission.revision,
            "artifactHashes": hashes,
            "acceptancePolicyVersion": "1.0.0",
            "approver": {"type": signer.type, "id": signer.id},
            "comments": "",
            "conditions": [],
            "occurredAt": self.now.text(),
            **changes,
        }
        return self.sign(signer, document, at=document["occurredAt"])

    def approval_row(self, approval_id: str) -> ApprovalRow:
        row = self.view.get(APPROVALS, approval_id)
        assert row is not None
        return row

    def results(self, *items: str) -> list[str]:
        """The content hashes that WorkItems have submitted."""
        found = []
        for item in items:
            submission = self.item(item).item.submission
            assert submission is not UNSET
            found += submission.artifact_hashes
        return found

    def submitted(self, name: str = "one") -> list[str]:
        """Do one WorkItem and submit the Mission; gives the Artifact set."""
        item = self.bring(self.authorize(name), "verified", self.workers["anna"])
        hashes = self.results(item)
        self.ok(self.coordinator, "mission.submit_for_approval", {"artifactHashes": hashes})
        return hashes

    def approved(self) -> str:
        """Bring the Mission to ``approved``; gives the Approval ID."""
        approval = self.approval(self.submitted())
        self.ok(self.owner, "mission.approve", {"approval": approval})
        return str(approval["approvalId"])

    # --- children ---

    def child_payload(self, item: str, coordinator: Actor, **changes: Any) -> dict[str, Any]:
        payload = self.mission_payload(
            CHILD,
            CHILD_GROUP,
            coordinatorAgentId=coordinator.id,
            parentWorkItemId=item,
            budget={"wallClockSecondsLimit": 60},
            deadline=later(self, 86_400),
            approvalPolicy={"finalHumanApproval": False, "highRiskExecutionApproval": False},
        )
        payload.update(changes)
        return payload

    def promote(self, item: str, coordinator: Actor, **changes: Any) -> Decision:
        """Promote a WorkItem to the child Mission."""
        payload = self.child_payload(item, coordinator, **changes)
        return self.ok(self.coordinator, "mission.create_child", payload)

    def in_child(self, actor: Actor, kind: str, payload: dict[str, Any], **envelope: Any) -> Decision:
        """Send a Command in the child's Group that must be accepted."""
        return self.ok(actor, kind, payload, **{"groupId": CHILD_GROUP, **envelope})

    def child_refused(self, actor: Actor, kind: str, payload: dict[str, Any], **envelope: Any) -> ErrorCode:
        return self.refused(actor, kind, payload, **{"groupId": CHILD_GROUP, **envelope}).code

    def child_item(self, coordinator: Actor, worker: Actor, name: str = "inner", state: str = "verified") -> str:
        """A WorkItem inside the child, done by a worker that joins for it."""
        member = {"principal": {"type": "agent", "id": worker.id}, "role": "worker"}
        self.in_child(coordinator, "membership.change", member)
        contract = self.contract(deadline=later(self, 3600), budget={"wallClockSecondsLimit": 10})
        self.in_child(coordinator, "work.authorize", {"workItemId": work_id(name), "contract": contract})
        item = work_id(name)
        if state == "open":
            return item
        self.in_child(coordinator, "work.offer", self.offer_payload(item, worker))
        self.in_child(worker, "work.accept_offer", {"workItemId": item})
        epoch = self.item(item).ownership_epoch
        self.in_child(worker, "work.start", {"workItemId": item, "ownershipEpoch": epoch})
        if state == "active":
            return item
        artifact = self.artifact(item, worker)
        three = self.three(item)
        held = {name: value for name, value in three.items() if name != "workItemId"}
        self.in_child(worker, "artifact.publish", {"artifact": artifact, **held})
        content = artifact["contentHash"]
        evidence = [self.evidence(item, worker, artifactHashes=[content])]
        self.in_child(worker, "work.submit", {**three, "artifactHashes": [content], "evidence": evidence})
        review = [self.review(item, coordinator)]
        self.in_child(coordinator, "work.accept_result", {"workItemId": item, "evidence": review})
        return item

    def child_submitted(self, coordinator: Actor, worker: Actor) -> list[str]:
        """Do the child's work and submit it; gives the Artifact set."""
        hashes = self.results(self.child_item(coordinator, worker))
        self.in_child(coordinator, "mission.submit_for_approval", {"artifactHashes": hashes})
        return hashes

    # --- replacement ---

    def replace(self, successor: Actor, **changes: Any) -> Decision:
        payload = {"coordinatorAgentId": successor.id, "leaseSeconds": 3600, **changes}
        return self.ok(self.owner, "mission.assign_coordinator", payload)

    def reconcile(self, coordinator: Actor) -> Decision:
        items = [{"workItemId": item.work_item_id, "revision": item.revision} for item in self.open_items()]
        payload = {"contextPackage": self.context_package(coordinator), "workItems": items}
        return self.ok(coordinator, "ext.mwnode.core.coordinator_reconcile", payload)

    def open_items(self) -> list[Any]:
        return [row.item for row in self.view.in_group(WORK_ITEMS, GROUP) if row.item.state in UNFINISHED]
