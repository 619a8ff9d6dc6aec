"""The documents that scripted Agents and the demonstration's human sign: contracts, Evidence, manifests, Approvals."""

from __future__ import annotations

import hashlib
from collections.abc import Mapping, Sequence
from typing import Any

from mwnode.client.http import HttpClient
from mwnode.demo.agents import Agent, in_seconds, new_id
from mwnode.protocol import jcs
from mwnode.protocol.identifiers import ANY_SCHEMA, artifact_uri
from mwnode.system import SystemClock
from mwnode.trust.keys import sign_mapping

DAY_SECONDS = 86_400
RESOURCE = "urn:mwnode:demo:tally"
GENERIC = {"id": "mwnode.generic", "version": "1.0.0"}
HAUL = {"id": "demo.haul", "version": "1.0.0"}
DELIVERABLE = "result.txt"


def mission_payload(title: str, coordinator: str, **members: Any) -> dict[str, Any]:
    """An ordinary ``mission.create``; ``members`` by wire name replace parts of it."""
    ordinary = {
        "missionId": new_id(),
        "groupId": new_id(),
        "coordinatorAgentId": coordinator,
        "title": title,
        "objective": f"{title}, under observation",
        "definitionOfDone": [
            {"criterionId": "seen", "description": "It was seen to hold", "evidenceRequired": ["deterministic_test"]}
        ],
        "budget": {"wallClockSecondsLimit": 7200, "toolCallLimit": 1000},
        "deadline": in_seconds(2 * DAY_SECONDS),
        "approvalPolicy": {"finalHumanApproval": True, "highRiskExecutionApproval": True},
        "permissions": [{"resource": RESOURCE, "operations": ["read"]}],
        "coordinatorLeaseSeconds": 3600,
    }
    return {**ordinary, **members}


def contract(goal: str, **members: Any) -> dict[str, Any]:
    """An ordinary Work Contract with one text file as its deliverable; ``members`` by wire name replace parts of it."""
    constraints = {"deliverables": {"result": {"path": DELIVERABLE}}, "checks": {"done": "exit 0"}}
    ordinary = {
        "contractVersion": 1,
        "goal": goal,
        "requiredDeliverables": [
            {"deliverableId": "result", "description": goal, "mediaType": "text/plain", "schema": ANY_SCHEMA}
        ],
        "acceptanceCriteria": [
            {"criterionId": "done", "description": goal, "evidenceRequired": ["deterministic_test"]}
        ],
        "inputArtifacts": [],
        "dependencyWorkItemIds": [],
        "allowedResources": [{"resource": RESOURCE, "operations": ["read"]}],
        "requiredCapabilities": [GENERIC],
        "deadline": in_seconds(DAY_SECONDS),
        "requestedUrgency": "normal",
        "businessImpact": "the demonstration",
        "retryPolicy": {
            "maxAttempts": 3,
            "backoff": "none",
            "maxDelay": "PT1M",
            "retryableFailures": ["EXECUTOR_FAILED"],
        },
        "budget": {"wallClockSecondsLimit": 600},
        "sideEffectRisk": "none",
        "executionApproval": "not_required",
    }
    run = members.pop("run", None)
    return {**ordinary, "constraints": {**constraints, **({} if run is None else {"run": run})}, **members}


def selection_basis(item: Mapping[str, Any]) -> dict[str, Any]:
    """Why a candidate was chosen."""
    wanted = item["contract"]["requiredCapabilities"]
    return {
        "requiredCapabilities": wanted,
        "verifiedMatches": wanted,
        "authorizationEligible": True,
        "availabilityEstimate": in_seconds(0),
        "expectedCost": 0,
        "reliabilityEvidence": [],
        "policyRulesApplied": ["capability match"],
    }


def manifest(who: Agent, item: Mapping[str, Any], content: bytes, **members: Any) -> dict[str, Any]:
    """The signed manifest of some text that the owner of a WorkItem made."""
    owner, content_hash = item["owner"], sha256(content)
    document = {
        "artifactId": new_id(),
        "contentHash": content_hash,
        "uri": artifact_uri(content_hash),
        "sizeBytes": len(content),
        "mediaType": "text/plain",
        "schemaUri": ANY_SCHEMA,
        "producer": {
            "agentId": who.id,
            "agentCardVersion": owner["agentCardVersion"],
            "capabilities": owner["capabilityPins"],
        },
        "missionId": item["missionId"],
        "groupId": item["groupId"],
        "workItemId": item["workItemId"],
        "sourceArtifactHashes": [],
        "toolVersions": [],
        "modelVersions": [],
        "classification": "internal",
        "createdAt": in_seconds(0),
    }
    return who.sign(**{**document, **members})


def evidence(who: Agent, item: Mapping[str, Any], kind: str, hashes: Sequence[str], **members: Any) -> dict[str, Any]:
    """Signed, passed Evidence for every criterion of a WorkItem's contract."""
    document = {
        "evidenceId": new_id(),
        "missionId": item["missionId"],
        "groupId": item["groupId"],
        "workItemId": item["workItemId"],
        "type": kind,
        "subject": {"type": "work_item", "id": item["workItemId"]},
        "criterionIds": [criterion["criterionId"] for criterion in item["contract"]["acceptanceCriteria"]],
        "method": "compared with the contract",
        "result": "passed",
        "artifactHashes": list(hashes),
        "generatedBy": who.principal,
        "createdAt": in_seconds(0),
    }
    return who.sign(**{**document, **members})


def context_package(
    who: Agent, mission_id: str, group_id: str, events: Sequence[Mapping[str, Any]], summary: str, **members: Any
) -> dict[str, Any]:
    """A signed Context Package made from some Events in a row."""
    document = {
        "contextPackageId": new_id(),
        "version": 1,
        "missionId": mission_id,
        "groupId": group_id,
        "sourceEventRange": {
            "fromSequence": events[0]["sequence"],
            "toSequence": events[-1]["sequence"],
            "eventIds": [event["eventId"] for event in events],
        },
        "artifactHashes": [],
        "summary": summary,
        "decisions": [{"description": summary, "sourceEventIds": [events[-1]["eventId"]]}],
        "constraints": [],
        "unresolvedQuestions": [],
        "generatedBy": who.principal,
        "generatedAt": in_seconds(0),
    }
    return who.sign(**{**document, **members})


def approval(
    human: HttpClient, view: Mapping[str, Any], submitted: Mapping[str, Any], **members: Any
) -> dict[str, Any]:
    """A human's signed Approval of what was submitted; ``members`` replace parts of it."""
    mission = view["mission"]
    document = {
        "kind": "mission_final",
        "decision": "approved",
        "missionId": mission["missionId"],
        "groupId": mission["groupId"],
        "missionRevision": submitted["missionRevision"],
        "artifactHashes": submitted["artifactHashes"],
        "acceptancePolicyVersion": mission["approvalPolicy"].get("policyVersion", "1.0.0"),
        "conditions": [],
    }
    return signed_by(human, **{**document, **members})


def execution_approval(
    human: HttpClient, view: Mapping[str, Any], item: Mapping[str, Any], seconds: int, **members: Any
) -> dict[str, Any]:
    """The payload of ``approval.grant_execution``: a human's word for one Ownership Epoch and so many seconds."""
    epoch, expires = item["owner"]["ownershipEpoch"], in_seconds(seconds)
    conditions = ["operation:read", f"expiresAt:{expires}", f"ownershipEpoch:{epoch}"]
    document = {
        "kind": "work_execution",
        "decision": "approved",
        "missionId": item["missionId"],
        "groupId": item["groupId"],
        "workItemId": item["workItemId"],
        "missionRevision": view["mission"]["revision"],
        "artifactHashes": [],
        "acceptancePolicyVersion": view["mission"]["approvalPolicy"].get("policyVersion", "1.0.0"),
        "conditions": conditions,
    }
    signed = signed_by(human, **{**document, **members})
    return {"approval": signed, "ownershipEpoch": epoch, "operations": ["read"], "expiresAt": expires}


def signed_by(human: HttpClient, **members: Any) -> dict[str, Any]:
    """An Approval by the human of this client."""
    key = human.key
    assert key is not None, "the demonstration's humans have keys"
    now = SystemClock().now().text()
    who = {"type": key.principal.type, "id": key.principal.id}
    document = {"approvalId": new_id(), "approver": who, "comments": "", "occurredAt": now, **members}
    return sign_mapping(document, key, now)


def sha256(content: bytes) -> str:
    """``sha256:`` and the digest of some bytes."""
    return f"sha256:{hashlib.sha256(content).hexdigest()}"


def hash_of(document: Mapping[str, Any]) -> str:
    """The hash of a document's canonical bytes."""
    return sha256(jcs.canonical(document))
