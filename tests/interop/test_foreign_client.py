"""A client made from the published documents alone drives a whole Mission on a real node."""

from __future__ import annotations

import asyncio
import json
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from tests.cli.support import environment
from tests.interop.foreign import Agent, Document, Http, Identity, Keys, Schemas, content_hash, new_id, now
from tests.patience import PATIENCE_SECONDS

CAPABILITY = {"id": "example.words.sort", "version": "1.2.0"}
RESULT = b"alpha\nbeta\ngamma\n"


def mwnode(home: Path, *arguments: str) -> Document:
    """A command of the node's operator."""
    ran = subprocess.run(
        [sys.executable, "-m", "mwnode", *arguments, "--home", str(home), "--json"],
        capture_output=True,
        text=True,
        env=environment(),
        check=True,
        timeout=PATIENCE_SECONDS,
    )
    document: Document = json.loads(ran.stdout)
    return document


@pytest.fixture
def node(tmp_path: Path) -> Iterator[tuple[Document, Path]]:
    """What a served node announces, and its HOME."""
    home = tmp_path / "home"
    command = [sys.executable, "-m", "mwnode", "serve", "--home", str(home), "--port", "0", "--json"]
    process = subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.DEVNULL, text=True, env=environment())
    try:
        assert process.stdout is not None
        yield json.loads(process.stdout.readline()), home
    finally:
        process.terminate()
        process.wait(PATIENCE_SECONDS)
        assert process.stdout is not None
        process.stdout.close()


def enrol(home: Path, who: Identity, *more: str) -> None:
    """The operator registers a public key that was made elsewhere."""
    kind = who.principal["type"]
    name = who.id.rpartition(":")[2]
    mwnode(home, kind, "add", name, "--id", who.id, "--key-id", who.key_id, "--public-key", who.public_key, *more)


def contract(resource: str) -> Document:
    return {
        "contractVersion": 1,
        "goal": "Sort the words",
        "requiredDeliverables": [
            {
                "deliverableId": "sorted",
                "description": "The words in order",
                "mediaType": "text/plain",
                "schema": "urn:example:schema:lines",
            }
        ],
        "acceptanceCriteria": [
            {"criterionId": "ordered", "description": "In order", "evidenceRequired": ["deterministic_test"]}
        ],
        "inputArtifacts": [],
        "dependencyWorkItemIds": [],
        "allowedResources": [{"resource": resource, "operations": ["read"]}],
        "requiredCapabilities": [CAPABILITY],
        "deadline": now(80_000),
        "requestedUrgency": "high",
        "businessImpact": "Nobody finds anything in a heap",
        "retryPolicy": {"maxAttempts": 2, "backoff": "none", "maxDelay": "PT1M", "retryableFailures": ["CRASHED"]},
        "budget": {"wallClockSecondsLimit": 600},
        "sideEffectRisk": "none",
        "executionApproval": "not_required",
    }


@pytest.mark.req(
    "R-2-19", "R-6.3-02", "R-17.1-01", "R-17.1-03", "R-17.1-05", "R-17.1-06", "R-17.1-07", "R-17.1-08", "R-17.1-09"
)
@pytest.mark.req("R-17.1-10", "R-17.1-11", "R-17.2-02", "R-16-01", "R-15.1-01", "R-7.1-01")
def test_a_whole_mission(node: tuple[Document, Path], protocol_bundle: Path) -> None:
    announced, home = node
    owner = Identity("human", "olga")
    coordinator, worker = Identity("agent", "planner"), Identity("agent", "sorter")
    enrol(home, owner)
    enrol(home, coordinator)
    enrol(home, worker, "--capability", f"{CAPABILITY['id']}@{CAPABILITY['version']}")
    asyncio.run(_mission(announced, Schemas(protocol_bundle / "schemas"), owner, coordinator, worker))


async def _mission(
    announced: Document, schemas: Schemas, owner: Identity, coordinator: Identity, worker: Identity
) -> None:
    url, base, ca = announced["url"], announced["http"], announced["ca"]
    human, artifacts = (Http(base, ca, who, schemas) for who in (owner, worker))
    for each in (human, artifacts):
        each.open_session()
    keys = Keys(human.ask("GET", "/v0.1/registry"))
    card = human.ask("GET", f"/v0.1/agents/{worker.id.replace(':', '%3A')}")
    schemas.check("agent-card", card)
    keys.verify(card, by="service")

    planner = await Agent.connect(url, ca, coordinator, schemas, keys)
    sorter = await Agent.connect(url, ca, worker, schemas, keys)
    mission_id, group_id, resource = new_id(), new_id(), "urn:example:words"
    created = human.command(
        "mission.create",
        {
            "missionId": mission_id,
            "groupId": group_id,
            "coordinatorAgentId": coordinator.id,
            "objective": "Words in order",
            "definitionOfDone": [
                {"criterionId": "done", "description": "All sorted", "evidenceRequired": ["deterministic_test"]}
            ],
            "budget": {"wallClockSecondsLimit": 7200},
            "deadline": now(86_400),
            "approvalPolicy": {"finalHumanApproval": True, "highRiskExecutionApproval": True},
            "permissions": [{"resource": resource, "operations": ["read"]}],
            "coordinatorLeaseSeconds": 3600,
        },
        groupId=group_id,
    )
    assert created["kind"] == "mission.created"
    schemas.check("mission", created["payload"]["mission"])

    # The Coordinator learns of its Group by itself, and follows it.
    assert (await planner.until("mission.created"))["groupId"] == group_id
    await planner.follow(group_id)
    led: dict[str, Any] = {"groupId": group_id, "membershipEpoch": 1, "coordinatorEpoch": 1}
    await planner.command("membership.change", {"principal": worker.principal, "role": "worker"}, **led)
    work_id = new_id()
    authorized = await planner.command("work.authorize", {"workItemId": work_id, "contract": contract(resource)}, **led)
    schemas.check("work-item", authorized["payload"]["workItem"])
    basis = {
        "requiredCapabilities": [CAPABILITY],
        "verifiedMatches": [CAPABILITY],
        "authorizationEligible": True,
        "availabilityEstimate": now(),
        "expectedCost": 0,
        "reliabilityEvidence": [],
        "policyRulesApplied": ["capability match"],
    }
    offer = {"workItemId": work_id, "candidateAgentIds": [worker.id], "selectionBasis": basis}
    await planner.command("work.offer", offer, **led)

    # So does the Worker, and finds the contract in the offer.
    changed = await sorter.until("membership.changed")
    own = changed["payload"]["membership"]
    schemas.check("membership", own)
    await sorter.follow(group_id)
    offered = await sorter.until("work.offer.created")
    assert offered["payload"]["workItem"]["workItemId"] == work_id
    mine: dict[str, Any] = {"groupId": group_id, "membershipEpoch": own["membershipEpoch"]}
    accepted = await sorter.command("work.accept_offer", {"workItemId": work_id}, **mine)
    lease = accepted["payload"]["ownershipLease"]
    schemas.check("lease", lease)
    epoch = accepted["payload"]["owner"]["ownershipEpoch"]
    started = await sorter.command("work.start", {"workItemId": work_id, "ownershipEpoch": epoch}, **mine)
    execution = started["payload"]["executionLease"]
    schemas.check("lease", execution)
    held = {"workItemId": work_id, "ownershipEpoch": epoch, "executionLeaseId": execution["leaseId"]}

    stored = artifacts.store(RESULT)
    assert stored["contentHash"] == content_hash(RESULT)
    at = now()
    manifest = worker.sign(
        {
            "artifactId": new_id(),
            "contentHash": stored["contentHash"],
            "uri": stored["uri"],
            "sizeBytes": stored["sizeBytes"],
            "mediaType": "text/plain",
            "schemaUri": "urn:example:schema:lines",
            "producer": {"agentId": worker.id, "agentCardVersion": 1, "capabilities": [CAPABILITY]},
            "missionId": mission_id,
            "groupId": group_id,
            "workItemId": work_id,
            "sourceArtifactHashes": [],
            "toolVersions": [],
            "modelVersions": [],
            "classification": "internal",
            "createdAt": at,
        },
        at,
    )
    schemas.check("artifact", manifest)
    publication = {name: value for name, value in held.items() if name != "workItemId"}
    await sorter.command("artifact.publish", {"artifact": manifest, **publication}, **mine)

    def evidence(who: Identity, kind: str, hashes: list[str]) -> Document:
        at = now()
        document = who.sign(
            {
                "evidenceId": new_id(),
                "missionId": mission_id,
                "groupId": group_id,
                "workItemId": work_id,
                "type": kind,
                "subject": {"type": "work_item", "id": work_id},
                "criterionIds": ["ordered"],
                "method": "compared each line with the next",
                "result": "passed",
                "artifactHashes": hashes,
                "generatedBy": who.principal,
                "createdAt": at,
            },
            at,
        )
        schemas.check("evidence", document)
        return document

    hashes = [stored["contentHash"]]
    proof = evidence(worker, "deterministic_test", hashes)
    await sorter.command("work.submit", {**held, "artifactHashes": hashes, "evidence": [proof]}, **mine)
    await planner.until("work.submitted")
    review = evidence(coordinator, "reviewer_assessment", [])
    verified = await planner.command("work.accept_result", {"workItemId": work_id, "evidence": [review]}, **led)
    assert verified["payload"]["state"] == "verified"

    path = f"/v0.1/missions/{mission_id.replace(':', '%3A')}"
    view = human.ask("GET", path)
    assert [item["state"] for item in view["workItems"]] == ["verified"]
    revision = view["mission"]["revision"]
    submission = {"artifactHashes": hashes, "missionRevision": revision}
    await planner.command("mission.submit_for_approval", submission, **led)
    at = now()
    approval = owner.sign(
        {
            "approvalId": new_id(),
            "kind": "mission_final",
            "decision": "approved",
            "missionId": mission_id,
            "groupId": group_id,
            "missionRevision": revision,
            "artifactHashes": hashes,
            "acceptancePolicyVersion": "1.0.0",
            "approver": owner.principal,
            "comments": "Well done",
            "conditions": [],
            "occurredAt": at,
        },
        at,
    )
    schemas.check("approval", approval)
    human.command("mission.approve", {"approval": approval}, groupId=group_id, membershipEpoch=1)
    assert human.ask("GET", path)["mission"]["state"] == "approved"

    # Everybody has heard of it, in the same order; the Worker from where its Membership begins.
    await planner.until("mission.approved")
    await sorter.until("mission.approved")
    log = human.ask("GET", f"/v0.1/groups/{group_id.replace(':', '%3A')}/events?limit=1000")
    assert [event["sequence"] for event in log["events"]] == list(range(1, log["headSequence"] + 1))
    assert [planner.events[group_id][event["sequence"]] for event in log["events"]] == log["events"]
    start = own["visibilityStartSequence"]
    assert sorter.events[group_id] == {event["sequence"]: event for event in log["events"][start - 1 :]}

    # What was acknowledged is where it goes on from after a new connection.
    head = await sorter.acknowledge(group_id)
    assert head == log["headSequence"]
    await sorter.close()
    again = await Agent.connect(url, ca, worker, schemas, keys)
    assert again.session_epoch == sorter.session_epoch + 1
    cursors = artifacts_cursors(base, ca, worker, schemas)
    assert cursors == [{"groupId": group_id, "sequence": head}]
    await again.follow(group_id, after=start)
    assert min(again.events[group_id]) == start + 1
    await again.close()
    await planner.close()


def artifacts_cursors(base: str, ca: str, who: Identity, schemas: Schemas) -> list[Document]:
    """The Agent's durable Cursors, read under a token of its newest session."""
    http = Http(base, ca, who, schemas)
    http.open_session()
    cursors: list[Document] = http.ask("GET", "/v0.1/cursors")["cursors"]
    return cursors
