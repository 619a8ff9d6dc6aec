"""A small Mission that scripted Agents take through exactly the steps that an act needs."""

from __future__ import annotations

import time
from collections.abc import Callable
from typing import TYPE_CHECKING, Any

from mwnode.client.http import HttpClient
from mwnode.demo.agents import Agent, new_id
from mwnode.demo.documents import contract, evidence, manifest, mission_payload, selection_basis
from mwnode.demo.log import GroupLog
from mwnode.demo.processes import PATIENCE_SECONDS, Deadline

if TYPE_CHECKING:
    from mwnode.demo.stage import Stage


class Drill:
    """One Mission with a scripted Coordinator; every call is one signed Command of somebody."""

    def __init__(self, stage: Stage, title: str, coordinator: Agent, owner: HttpClient | None = None) -> None:
        """Have the human create the Mission."""
        payload = mission_payload(title, coordinator.id)
        self._take(stage, coordinator, payload)
        (owner or stage.human).send("mission.create", payload, group_id=payload["groupId"])
        self.log.read(self.reader, wait=0)

    def _take(self, stage: Stage, coordinator: Agent, payload: dict[str, Any]) -> None:
        self.stage = stage
        self.coordinator = coordinator
        self.coordinator_epoch = 1
        self.reader = stage.human
        self.mission_id: str = payload["missionId"]
        self.group_id: str = payload["groupId"]
        self.log: GroupLog = stage.watch(payload["title"], self.group_id)

    @classmethod
    def child_of(cls, parent: Drill, item: str, coordinator: Agent, title: str, **members: Any) -> Drill:
        """Have the parent's Coordinator promote a WorkItem to a child Mission."""
        payload = mission_payload(title, coordinator.id, parentWorkItemId=item, **members)
        parent.as_coordinator("mission.create_child", payload)
        child = cls.__new__(cls)
        child._take(parent.stage, coordinator, payload)
        child.log.read(child.reader, wait=0)
        return child

    # --- looking ------------------------------------------------------------------------------------------------------

    def read(self) -> GroupLog:
        """The Group's log as far as it goes now."""
        while self.log.read(self.reader, wait=0):
            pass
        return self.log

    def until(self, condition: Callable[[GroupLog], bool], what: str) -> GroupLog:
        """Follow the log until something is in it."""
        self.stage.follow(self.log, condition, Deadline(PATIENCE_SECONDS, what, self.stage.report.step), self.reader)
        return self.log

    def view(self) -> dict[str, Any]:
        """The node's view of the Mission."""
        return self.reader.mission(self.mission_id)

    def item(self, work_item_id: str) -> dict[str, Any]:
        """One WorkItem as the node shows it."""
        found: dict[str, Any] = next(item for item in self.view()["workItems"] if item["workItemId"] == work_item_id)
        return found

    def head(self) -> int:
        """The sequence of the last Event."""
        return int(self.view()["headSequence"])

    # --- the Coordinator's Commands -----------------------------------------------------------------------------------

    def as_coordinator(self, kind: str, payload: dict[str, Any], **envelope: Any) -> dict[str, Any]:
        """A Command of the Coordinator; its receipt."""
        envelope.setdefault("coordinator_epoch", self.coordinator_epoch)
        return self.coordinator.send(kind, payload, self.group_id, **envelope)

    def add(self, who: Agent | dict[str, str], role: str = "worker", **members: Any) -> dict[str, Any]:
        """Make somebody a Member."""
        principal = who.principal if isinstance(who, Agent) else who
        return self.as_coordinator("membership.change", {"principal": principal, "role": role, **members})

    def authorize(self, goal: str, **members: Any) -> str:
        """Authorize a WorkItem; its identifier."""
        work_item_id = new_id()
        envelope = {"workItemId": work_item_id, "contract": contract(goal, **members)}
        self.as_coordinator("work.authorize", envelope)
        return work_item_id

    def offer(self, item: str, *candidates: str, **members: Any) -> dict[str, Any]:
        """Offer a WorkItem to Agents, by their identifiers."""
        payload = {
            "workItemId": item,
            "candidateAgentIds": list(candidates),
            "selectionBasis": selection_basis(self.item(item)),
            **members,
        }
        return self.as_coordinator("work.offer", payload)

    def review(self, item: str) -> dict[str, Any]:
        """Accept a submitted result."""
        view = self.item(item)
        hashes = view["submission"]["artifactHashes"]
        found = [evidence(self.coordinator, view, "artifact_integrity", hashes)]
        return self.as_coordinator("work.accept_result", {"workItemId": item, "evidence": found})

    def submit_mission(self) -> dict[str, Any]:
        """Submit everything that was verified for approval; the payload of the Event."""
        view = self.view()
        verified = [item for item in view["workItems"] if item["state"] == "verified"]
        hashes = [one for item in verified for one in item["submission"]["artifactHashes"]]
        payload = {"artifactHashes": hashes, "missionRevision": view["mission"]["revision"]}
        submitted: dict[str, Any] = self.as_coordinator("mission.submit_for_approval", payload)["payload"]
        return submitted

    # --- a Worker's Commands ------------------------------------------------------------------------------------------

    def accept(self, item: str, who: Agent, **members: Any) -> int:
        """Take an offer; the Ownership Epoch."""
        receipt = who.send("work.accept_offer", {"workItemId": item, **members}, self.group_id)
        return int(receipt["payload"]["owner"]["ownershipEpoch"])

    def start(self, item: str, who: Agent, epoch: int, **members: Any) -> dict[str, Any]:
        """Start owned work; what later Commands cite: WorkItem, Ownership Epoch and Execution Lease."""
        payload = {"workItemId": item, "ownershipEpoch": epoch, **members}
        receipt = who.send("work.start", payload, self.group_id)
        lease = receipt["payload"]["executionLease"]["leaseId"]
        return {"workItemId": item, "ownershipEpoch": epoch, "executionLeaseId": lease}

    def take(self, item: str, who: Agent, **members: Any) -> dict[str, Any]:
        """Offer, accept and start in one go; what later Commands cite."""
        self.offer(item, who.id)
        return self.start(item, who, self.accept(item, who), **members)

    def publish(self, held: dict[str, Any], who: Agent, content: bytes, **members: Any) -> str:
        """Store some text and publish its manifest; its hash."""
        stored = who.http.put_artifact(content)["contentHash"]
        document = manifest(who, self.item(held["workItemId"]), content, **members)
        lease = {name: value for name, value in held.items() if name != "workItemId"}
        who.send("artifact.publish", {"artifact": document, **lease}, self.group_id)
        return str(stored)

    def submission(self, held: dict[str, Any], who: Agent, hashes: list[str]) -> dict[str, Any]:
        """The payload of ``work.submit``."""
        proof = evidence(who, self.item(held["workItemId"]), "deterministic_test", hashes)
        return {**held, "artifactHashes": hashes, "evidence": [proof]}

    def finish(self, held: dict[str, Any], who: Agent, content: bytes) -> str:
        """Publish, submit, and have it accepted; the hash of the result."""
        content_hash = self.publish(held, who, content)
        who.send("work.submit", self.submission(held, who, [content_hash]), self.group_id)
        self.review(held["workItemId"])
        return content_hash


def pause(seconds: float) -> None:
    """Let real time pass: what is shown happens by the clock."""
    time.sleep(seconds)
