"""A Mission under way: a ``World`` with an owner, a Coordinator and workers, and one call for every usual step."""

from __future__ import annotations

from typing import Any

from mwnode.authority.policy import Policy
from mwnode.authority.request import Decision
from mwnode.protocol.commands import CORE, EXT
from mwnode.protocol.documents import Actor
from mwnode.protocol.identifiers import artifact_uri
from tests.authority.memory import CAPABILITY, DAY, World

MISSION = "urn:example:mission:1"
GROUP = "urn:example:group:1"
RESOURCE = "urn:example:repository"
PERMISSIONS = [{"resource": RESOURCE, "operations": ["read", "write", "production.deploy"]}]
BUDGET = {"wallClockSecondsLimit": 100_000, "toolCallLimit": 1000, "currency": "EUR", "financialLimit": 100}
ITEM_BUDGET = {"wallClockSecondsLimit": 600}
USAGE = {
    "financialMicrounits": 0,
    "modelTokens": 0,
    "toolCalls": 0,
    "computeSeconds": 0,
    "wallClockSeconds": 0,
    "externalActions": 0,
}


def work_id(name: str) -> str:
    return f"urn:example:work:{name}"


def usage(**amounts: int) -> dict[str, int]:
    return {**USAGE, **amounts}


def later(world: World, seconds: int) -> str:
    return world.now.plus(seconds).text()


def approval_policy() -> dict[str, Any]:
    return {"finalHumanApproval": True, "highRiskExecutionApproval": True, "policyVersion": "1.0.0"}


def selection_basis(world: World) -> dict[str, Any]:
    return {
        "requiredCapabilities": [CAPABILITY],
        "verifiedMatches": [CAPABILITY],
        "authorizationEligible": True,
        "availabilityEstimate": world.now.text(),
        "expectedCost": 1,
        "reliabilityEvidence": [],
        "policyRulesApplied": ["least-loaded"],
    }


class Scene(World):
    """One Mission in one Group, with ``owner``, ``coordinator`` and Agents that joined as workers."""

    def __init__(
        self,
        policy: Policy | None = None,
        *,
        workers: tuple[str, ...] = ("anna",),
        budget: dict[str, Any] | None = None,
        checked: bool = True,
    ) -> None:
        super().__init__(policy, checked=checked)
        self.owner = self.human("owner")
        self.coordinator = self.agent("coordinator")
        self.found(MISSION, GROUP, budget=budget)
        self.workers = {name: self.worker(name) for name in workers}
        self._numbers = 0

    def number(self) -> int:
        self._numbers += 1
        return self._numbers

    # --- Mission and Members ---

    def mission_payload(self, mission_id: str, group_id: str, **changes: Any) -> dict[str, Any]:
        return {
            "missionId": mission_id,
            "groupId": group_id,
            "coordinatorAgentId": self.coordinator.id,
            "objective": "Build and check the archive",
            "definitionOfDone": [criterion("archive")],
            "budget": BUDGET,
            "deadline": later(self, 30 * DAY),
            "approvalPolicy": approval_policy(),
            "permissions": PERMISSIONS,
            "coordinatorLeaseSeconds": 3600,
            **changes,
        }

    def found(
        self, mission_id: str, group_id: str, *, budget: dict[str, Any] | None = None, **changes: Any
    ) -> Decision:
        payload = self.mission_payload(mission_id, group_id, **changes)
        if budget is not None:
            payload["budget"] = budget
        return self.ok(self.owner, "mission.create", payload, groupId=group_id)

    def keep_coordinator(self) -> None:
        """Renew the Coordinator's lease, which time has passed by."""
        self.ok(self.coordinator, "mission.renew_coordinator", {"leaseSeconds": 3600})

    def worker(self, name: str, role: str = "worker", **card: Any) -> Actor:
        actor = self.agent(name, **card)
        self.join(actor, role)
        return actor

    def join(self, actor: Actor, role: str = "worker", **changes: Any) -> Decision:
        payload = {"principal": {"type": actor.type, "id": actor.id}, "role": role, **changes}
        return self.ok(self.coordinator, "membership.change", payload)

    # --- WorkItems ---

    def contract(self, **changes: Any) -> dict[str, Any]:
        return {
            "contractVersion": 1,
            "goal": f"Build part {self.number()}",
            "requiredDeliverables": [
                {
                    "deliverableId": "part",
                    "description": "the part",
                    "mediaType": "application/octet-stream",
                    "schema": "urn:mwnode:schema:any",
                }
            ],
            "acceptanceCriteria": [criterion("green")],
            "inputArtifacts": [],
            "dependencyWorkItemIds": [],
            "allowedResources": [],
            "requiredCapabilities": [CAPABILITY],
            "deadline": later(self, 20 * DAY),
            "requestedUrgency": "normal",
            "businessImpact": "the release",
            "retryPolicy": {
                "maxAttempts": 3,
                "backoff": "none",
                "maxDelay": "PT1M",
                "retryableFailures": ["EXECUTOR_FAILED"],
            },
            "budget": ITEM_BUDGET,
            "sideEffectRisk": "none",
            "executionApproval": "not_required",
            **changes,
        }

    def authorize(self, name: str, *, actor: Actor | None = None, **contract: Any) -> str:
        """An ``open`` WorkItem; members of the payload beside the contract go through ``payload``."""
        extra = contract.pop("payload", {})
        payload = {"workItemId": work_id(name), "contract": self.contract(**contract), **extra}
        self.ok(actor or self.coordinator, "work.authorize", payload)
        return work_id(name)

    def offer_payload(self, item: str, *candidates: Actor, **changes: Any) -> dict[str, Any]:
        return {
            "workItemId": item,
            "candidateAgentIds": [candidate.id for candidate in candidates],
            "selectionBasis": selection_basis(self),
            **changes,
        }

    def offer(self, item: str, *candidates: Actor, **changes: Any) -> Decision:
        return self.ok(self.coordinator, "work.offer", self.offer_payload(item, *candidates, **changes))

    def accept(self, item: str, worker: Actor, **changes: Any) -> int:
        """Accept; gives the Ownership Epoch."""
        self.ok(worker, "work.accept_offer", {"workItemId": item, **changes})
        return self.item(item).ownership_epoch

    def start(self, item: str, worker: Actor, **changes: Any) -> str:
        """Start; gives the Execution Lease ID."""
        epoch = self.item(item).ownership_epoch
        self.ok(worker, "work.start", {"workItemId": item, "ownershipEpoch": epoch, **changes})
        return self.lease(item)

    def lease(self, item: str) -> str:
        lease = self.item(item).execution_lease
        return "urn:example:lease:none" if lease is None else lease.lease_id

    def three(self, item: str) -> dict[str, Any]:
        """``workItemId``, ``ownershipEpoch``, ``executionLeaseId`` as they are now."""
        return {
            "workItemId": item,
            "ownershipEpoch": max(1, self.item(item).ownership_epoch),
            "executionLeaseId": self.lease(item),
        }

    def checkpoint(self) -> dict[str, Any]:
        return {
            "checkpointId": f"urn:example:checkpoint:{self.number()}",
            "phase": "half way",
            "completedMilestones": ["one"],
            "createdAt": self.now.text(),
        }

    def artifact(self, item: str, worker: Actor, data: bytes | None = None, **changes: Any) -> dict[str, Any]:
        """A signed manifest of bytes that are stored."""
        number = self.number()
        data = data if data is not None else f"bytes {number}".encode()
        content = self.store(data)
        row = self.item(item)
        version = self.agent_row(worker).card.card_version
        manifest = {
            "artifactId": f"urn:example:artifact:{number}",
            "contentHash": content,
            "uri": artifact_uri(content),
            "sizeBytes": len(data),
            "mediaType": "application/octet-stream",
            "schemaUri": "urn:mwnode:schema:any",
            "producer": {"agentId": worker.id, "agentCardVersion": version, "capabilities": [CAPABILITY]},
            "missionId": row.item.mission_id,
            "groupId": row.item.group_id,
            "workItemId": item,
            "sourceArtifactHashes": [],
            "toolVersions": [],
            "modelVersions": [],
            "classification": "internal",
            "createdAt": self.now.text(),
            **changes,
        }
        return self.sign(worker, manifest, at=manifest["createdAt"])

    def publish(self, item: str, worker: Actor, data: bytes | None = None, **changes: Any) -> str:
        """Publish; gives the content hash."""
        artifact = self.artifact(item, worker, data, **changes)
        three = self.three(item)
        del three["workItemId"]
        self.ok(worker, "artifact.publish", {"artifact": artifact, **three})
        content: str = artifact["contentHash"]
        return content

    def evidence(self, item: str, signer: Actor, **changes: Any) -> dict[str, Any]:
        row = self.item(item)
        document = {
            "evidenceId": f"urn:example:evidence:{self.number()}",
            "missionId": row.item.mission_id,
            "groupId": row.item.group_id,
            "workItemId": item,
            "type": "deterministic_test",
            "subject": {"type": "work_item", "id": item},
            "criterionIds": [entry.criterion_id for entry in row.item.contract.acceptance_criteria],
            "method": "run the tests",
            "result": "passed",
            "artifactHashes": [],
            "generatedBy": {"type": signer.type, "id": signer.id},
            "createdAt": self.now.text(),
            **changes,
        }
        return self.sign(signer, document, at=document["createdAt"])

    def report(self, item: str, signer: Actor, **changes: Any) -> dict[str, Any]:
        return self.evidence(item, signer, type="failure_report", result="failed", method="read the log", **changes)

    def review(self, item: str, signer: Actor, **changes: Any) -> dict[str, Any]:
        return self.evidence(item, signer, **{"type": "reviewer_assessment", "method": "read it", **changes})

    def hand_in(self, item: str, worker: Actor) -> Decision:
        content = self.publish(item, worker)
        payload = {
            **self.three(item),
            "artifactHashes": [content],
            "evidence": [self.evidence(item, worker, artifactHashes=[content])],
        }
        return self.ok(worker, "work.submit", payload)

    def accept_result(self, item: str, reviewer: Actor | None = None) -> Decision:
        review = self.review(item, reviewer or self.coordinator)
        return self.ok(self.coordinator, "work.accept_result", {"workItemId": item, "evidence": [review]})

    def fail(self, item: str) -> Decision:
        report = self.report(item, self.coordinator)
        payload = {"workItemId": item, "reason": "it does not work", "evidence": [report]}
        return self.ok(self.coordinator, "work.fail", payload)

    def cancel(self, item: str) -> Decision:
        return self.ok(self.coordinator, "work.cancel", {"workItemId": item, "reason": "not needed"})

    def bring(self, item: str, state: str, worker: Actor) -> str:
        """Bring an ``open`` WorkItem into a state by the usual Commands."""
        path = {
            "open": (),
            "offered": ("offer",),
            "queued": ("offer", "accept"),
            "active": ("offer", "accept", "start"),
            "blocked": ("offer", "accept", "start", "block"),
            "submitted": ("offer", "accept", "start", "submit"),
            "verified": ("offer", "accept", "start", "submit", "review"),
            "failed": ("fail",),
            "cancelled": ("cancel",),
        }[state]
        for step in path:
            if step == "offer":
                self.offer(item, worker)
            elif step == "accept":
                self.accept(item, worker)
            elif step == "start":
                self.start(item, worker)
            elif step == "block":
                self.block(item, worker)
            elif step == "submit":
                self.hand_in(item, worker)
            elif step == "review":
                self.accept_result(item)
            elif step == "fail":
                self.fail(item)
            else:
                self.cancel(item)
        assert self.state(item) == state
        return item

    def block(self, item: str, worker: Actor, **changes: Any) -> Decision:
        payload = {
            **self.three(item),
            "reason": "the licence is missing",
            "requiredResolution": "get the licence",
            "checkpoint": self.checkpoint(),
            **changes,
        }
        return self.ok(worker, "work.block", payload)

    def renew(self, item: str, worker: Actor, seconds: int = 600) -> Decision:
        payload = {**self.three(item), "leaseSeconds": seconds}
        return self.ok(worker, f"{EXT}.core.work_execution_lease_renew", payload)

    def context_package(self, signer: Actor, item: str | None = None, **changes: Any) -> dict[str, Any]:
        """A signed Context Package about the whole history of the Group."""
        head = self.view.head(GROUP)
        package: dict[str, Any] = {
            "contextPackageId": f"urn:example:package:{self.number()}",
            "version": 1,
            "missionId": MISSION,
            "groupId": GROUP,
            "sourceEventRange": {
                "fromSequence": 1,
                "toSequence": head,
                "eventIds": self.view.event_ids(GROUP, 0, head),
            },
            "artifactHashes": [],
            "summary": "what happened",
            "decisions": [],
            "constraints": [],
            "unresolvedQuestions": [],
            "generatedBy": {"type": "agent", "id": signer.id},
            "generatedAt": self.now.text(),
            **changes,
        }
        if item is not None:
            package["workItemId"] = item
        return self.sign(signer, package, at=package["generatedAt"])


def criterion(name: str, *kinds: str) -> dict[str, Any]:
    return {
        "criterionId": name,
        "description": f"{name} holds",
        "evidenceRequired": list(kinds or ("deterministic_test",)),
    }


DECLINE = f"{CORE}.offer_decline"
RENEW_EXECUTION = f"{EXT}.core.work_execution_lease_renew"
RENEW_OWNERSHIP = f"{CORE}.ownership_lease_renew"
RECORD_USAGE = f"{EXT}.core.resource_usage_record"
ADD_DEPENDENCY = f"{EXT}.core.work_dependency_add"
