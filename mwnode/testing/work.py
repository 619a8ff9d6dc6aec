"""One WorkItem in the hands of a test."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any

import msgspec

from mwnode.authority.gate import EPOCH, EXPIRY, OPERATION
from mwnode.authority.state import WORK_ITEMS, WorkItemRow
from mwnode.protocol.commands import EXT
from mwnode.protocol.identifiers import artifact_uri
from mwnode.testing.people import Participant
from mwnode.testing.states import WORK_STEPS, take_steps

if TYPE_CHECKING:
    from mwnode.testing.mission import MissionHandle

NO_USAGE = {
    "financialMicrounits": 0,
    "modelTokens": 0,
    "toolCalls": 0,
    "computeSeconds": 0,
    "wallClockSeconds": 0,
    "externalActions": 0,
}
"""The usage of nothing; usage on the wire names all six."""


class WorkHandle:
    """One WorkItem and the ordinary steps from offer to verification."""

    def __init__(self, mission: MissionHandle, work_item_id: str) -> None:
        self.mission = mission
        self.harness = mission.harness
        self.work_item_id = work_item_id

    @property
    def row(self) -> WorkItemRow:
        with self.harness.node.read() as view:
            row = view.get(WORK_ITEMS, self.work_item_id)
        assert row is not None
        return row

    @property
    def state(self) -> str:
        return self.row.item.state

    @property
    def held(self) -> dict[str, Any]:
        """What every Command under the Execution Lease cites."""
        row = self.row
        assert row.execution_lease is not None, "the WorkItem was never started"
        return {
            "workItemId": self.work_item_id,
            "ownershipEpoch": row.ownership_epoch,
            "executionLeaseId": row.execution_lease.lease_id,
        }

    def offer(self, *candidates: Participant, **payload: Any) -> dict[str, Any]:
        """The Coordinator offers the WorkItem; candidates become Members first where they are none."""
        chosen = candidates or (self.harness.workers[0],)
        for candidate in chosen:
            if self.mission.membership(candidate) is None:
                self.mission.add(candidate)
        capabilities = [msgspec.to_builtins(ref) for ref in self.row.item.contract.required_capabilities]
        basis = {
            "requiredCapabilities": capabilities,
            "verifiedMatches": capabilities,
            "authorizationEligible": True,
            "availabilityEstimate": self.harness.clock.now().text(),
            "expectedCost": 0,
            "reliabilityEvidence": [],
            "policyRulesApplied": ["capability match"],
        }
        return self.mission.coordinator.send(
            "work.offer",
            {
                "workItemId": self.work_item_id,
                "candidateAgentIds": [candidate.id for candidate in chosen],
                "selectionBasis": basis,
                **payload,
            },
            group_id=self.mission.group_id,
        )[0]

    def accept(self, worker: Participant | None = None, **payload: Any) -> dict[str, Any]:
        """A candidate takes the offer."""
        return self._by(worker).send(
            "work.accept_offer", {"workItemId": self.work_item_id, **payload}, group_id=self.mission.group_id
        )[0]

    def approve_execution(
        self,
        human: Participant | None = None,
        operations: Sequence[str] = ("read",),
        seconds: int = 3600,
        **payload: Any,
    ) -> dict[str, Any]:
        """A human (the MissionOwner) approves the execution by the present owner, for so many seconds."""
        who = human or self.harness.owner
        epoch, end = self.row.ownership_epoch, self.harness.clock.now().plus(seconds).text()
        approval = who.sign(
            approvalId=self.harness.new_id(),
            kind="work_execution",
            decision="approved",
            missionId=self.mission.mission_id,
            groupId=self.mission.group_id,
            missionRevision=self.mission.revision,
            workItemId=self.work_item_id,
            artifactHashes=[],
            acceptancePolicyVersion="1.0.0",
            approver=msgspec.to_builtins(who.principal),
            comments="",
            conditions=[*(OPERATION + each for each in operations), f"{EPOCH}{epoch}", EXPIRY + end],
            occurredAt=self.harness.clock.now().text(),
        )
        payload = {"approval": approval, "ownershipEpoch": epoch, "operations": list(operations), "expiresAt": end}
        return who.send("approval.grant_execution", payload, group_id=self.mission.group_id)[0]

    def start(self, worker: Participant | None = None, **payload: Any) -> dict[str, Any]:
        """The owner starts under a new Execution Lease."""
        return self._by(worker).send(
            "work.start",
            {"workItemId": self.work_item_id, "ownershipEpoch": self.row.ownership_epoch, **payload},
            group_id=self.mission.group_id,
        )[0]

    def publish(self, content: bytes = b"result\n", worker: Participant | None = None, **members: Any) -> str:
        """The owner stores bytes and publishes their manifest; the content hash."""
        who = self._by(worker)
        content_hash = self.harness.store_bytes(content)
        owner = self.row.item.owner
        assert owner is not msgspec.UNSET
        manifest = {
            "artifactId": self.harness.new_id(),
            "contentHash": content_hash,
            "uri": artifact_uri(content_hash),
            "sizeBytes": len(content),
            "mediaType": "text/plain",
            "schemaUri": "urn:mwnode:schema:any",
            "producer": {
                "agentId": who.id,
                "agentCardVersion": owner.agent_card_version,
                "capabilities": [msgspec.to_builtins(pin) for pin in owner.capability_pins],
            },
            "missionId": self.mission.mission_id,
            "groupId": self.mission.group_id,
            "workItemId": self.work_item_id,
            "sourceArtifactHashes": [],
            "toolVersions": [],
            "modelVersions": [],
            "classification": "internal",
            "createdAt": self.harness.clock.now().text(),
            **members,
        }
        held = self.held
        del held["workItemId"]
        who.send("artifact.publish", {"artifact": who.sign(**manifest), **held}, group_id=self.mission.group_id)
        return content_hash

    def evidence(
        self, who: Participant, kind: str, result: str = "passed", artifact_hashes: Sequence[str] = (), **members: Any
    ) -> dict[str, Any]:
        """Signed Evidence for every criterion of the contract."""
        document = {
            "evidenceId": self.harness.new_id(),
            "missionId": self.mission.mission_id,
            "groupId": self.mission.group_id,
            "workItemId": self.work_item_id,
            "type": kind,
            "subject": {"type": "work_item", "id": self.work_item_id},
            "criterionIds": [criterion.criterion_id for criterion in self.row.item.contract.acceptance_criteria],
            "method": "as the contract says",
            "result": result,
            "artifactHashes": list(artifact_hashes),
            "generatedBy": msgspec.to_builtins(who.principal),
            "createdAt": self.harness.clock.now().text(),
        }
        return who.sign(**{**document, **members})

    def submit(self, artifact_hashes: Sequence[str] | None = None, worker: Participant | None = None) -> dict[str, Any]:
        """The owner submits with passing Evidence for each criterion; publishes a result first where none is named."""
        who = self._by(worker)
        if artifact_hashes is None:
            artifact_hashes = [self.publish(worker=who)]
        evidence = [self.evidence(who, "deterministic_test", artifact_hashes=artifact_hashes)]
        return who.send(
            "work.submit",
            {**self.held, "artifactHashes": list(artifact_hashes), "evidence": evidence},
            group_id=self.mission.group_id,
        )[0]

    def review(self) -> dict[str, Any]:
        """The Coordinator accepts the result."""
        coordinator = self.mission.coordinator
        evidence = [self.evidence(coordinator, "reviewer_assessment")]
        return coordinator.send(
            "work.accept_result",
            {"workItemId": self.work_item_id, "evidence": evidence},
            group_id=self.mission.group_id,
        )[0]

    def checkpoint(self, worker: Participant | None = None, **payload: Any) -> dict[str, Any]:
        """The owner saves where it is and gives its slot back: ``active`` to ``queued``."""
        return self._by(worker).send(
            "work.checkpoint",
            {**self.held, "checkpoint": self._checkpoint(), **payload},
            group_id=self.mission.group_id,
        )[0]

    def block(self, worker: Participant | None = None, **payload: Any) -> dict[str, Any]:
        """The owner cannot go on: ``active`` to ``blocked``."""
        ordinary = {
            "reason": "The data is missing",
            "requiredResolution": "Somebody supplies the data",
            "checkpoint": self._checkpoint(),
        }
        return self._by(worker).send(
            "work.block", {**self.held, **ordinary, **payload}, group_id=self.mission.group_id
        )[0]

    def unblock(self, **payload: Any) -> dict[str, Any]:
        """The Coordinator lets the owner go on: ``blocked`` to ``queued``."""
        return self._coordinator("work.unblock", {"resolution": "The data is there", **payload})

    def fail(self, **payload: Any) -> dict[str, Any]:
        """The Coordinator gives the WorkItem up, with a signed failure report."""
        report = self.evidence(self.mission.coordinator, "failure_report", "failed")
        return self._coordinator("work.fail", {"reason": "It cannot be done", "evidence": [report], **payload})

    def cancel(self, **payload: Any) -> dict[str, Any]:
        """The Coordinator calls the WorkItem off."""
        return self._coordinator("work.cancel", {"reason": "No longer needed", **payload})

    def report(self, phase: str, worker: Participant | None = None, **progress: Any) -> dict[str, Any]:
        """The owner reports progress with a renewal; ``progress`` replaces members of an ordinary report."""
        ordinary = {
            "currentPhase": phase,
            "completedMilestones": [],
            "nextCheckpoint": "the next phase",
            "blockers": [],
            "updatedCompletionEstimate": self.harness.clock.now().plus(600).text(),
            "evidenceIds": [],
        }
        return self.renew(worker, progress={**ordinary, **progress})

    def renew(self, worker: Participant | None = None, **payload: Any) -> dict[str, Any]:
        """The owner renews its Execution Lease, which must end later by that: let time pass first."""
        return self._by(worker).send(
            f"{EXT}.core.work_execution_lease_renew", {**self.held, **payload}, group_id=self.mission.group_id
        )[0]

    def use(self, worker: Participant | None = None, **usage: int) -> dict[str, Any]:
        """The owner books usage, by wire name: ``work.use(toolCalls=3)``."""
        payload = {**self.held, "usageDelta": {**NO_USAGE, **usage}}
        return self._by(worker).send(f"{EXT}.core.resource_usage_record", payload, group_id=self.mission.group_id)[0]

    def promote(self, coordinator: Participant, **payload: Any) -> MissionHandle:
        """The Coordinator makes a child Mission of the WorkItem, and owns it; ``coordinator`` runs it."""
        return self.mission.promote(self.work_item_id, coordinator, **payload)

    def to(self, state: str) -> WorkHandle:
        """Go on to a state of the lifecycle by the ordinary Commands; itself. ValueError when no way leads there."""
        take_steps(self, self.state, state, WORK_STEPS)
        return self

    def run(self, worker: Participant | None = None, content: bytes = b"result\n") -> str:
        """The whole ordinary way from ``open`` to ``verified``; the content hash of the one Artifact."""
        who = worker or self.harness.workers[0]
        self.offer(who)
        self.accept(who)
        self.start(who)
        content_hash = self.publish(content, who)
        self.submit([content_hash], who)
        self.review()
        return content_hash

    def _coordinator(self, kind: str, payload: Mapping[str, Any]) -> dict[str, Any]:
        return self.mission.coordinator.send(
            kind, {"workItemId": self.work_item_id, **payload}, group_id=self.mission.group_id
        )[0]

    def _checkpoint(self) -> dict[str, Any]:
        return {
            "checkpointId": self.harness.new_id(),
            "phase": "half-way",
            "completedMilestones": [],
            "createdAt": self.harness.clock.now().text(),
        }

    def _by(self, worker: Participant | None) -> Participant:
        if worker is not None:
            return worker
        owner = self.row.item.owner
        if owner is msgspec.UNSET:
            return self.harness.workers[0]
        return next(each for each in self.harness.workers if each.id == owner.agent_id)
