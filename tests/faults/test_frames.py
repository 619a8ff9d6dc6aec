"""What is wrong with a Command is answered, on the same connection, in the protocol's words and without quoting it."""

from __future__ import annotations

import json
import re
from collections.abc import Callable
from typing import Any

import pytest

from mwnode.protocol.commands import EXT
from mwnode.testing import Harness, WorkHandle, assert_events, assert_refused
from tests.gateway.conftest import Served
from tests.gateway.test_frames_socket import alive, message

MARK = "urn:example:what-nobody-should-read-again"

Payload = dict[str, Any]
Make = Callable[[WorkHandle], tuple[str, Payload]]


def offer(**changes: Any) -> Make:
    def make(work: WorkHandle) -> tuple[str, Payload]:
        basis = {
            "requiredCapabilities": [],
            "verifiedMatches": [],
            "authorizationEligible": True,
            "availabilityEstimate": "2030-01-01T00:00:00Z",
            "expectedCost": 0,
            "reliabilityEvidence": [],
            "policyRulesApplied": ["by hand"],
        }
        agent = work.harness.workers[0].id
        ordinary = {"workItemId": work.work_item_id, "candidateAgentIds": [agent], "selectionBasis": basis}
        return "work.offer", {**ordinary, **changes}

    return make


def authorize(**contract: Any) -> Make:
    def make(work: WorkHandle) -> tuple[str, Payload]:
        return "work.authorize", {
            "workItemId": work.harness.new_id(),
            "contract": work.harness.contract(**contract),
        }

    return make


def held(kind: str, **members: Any) -> Make:
    """A Command of the owner under its lease."""

    def make(work: WorkHandle) -> tuple[str, Payload]:
        return kind, {**work.held, **members}

    return make


RETRY = {"maxAttempts": 3, "backoff": "none", "maxDelay": "PT1M", "retryableFailures": ["EXECUTOR_FAILED"]}
MISFITS: dict[str, tuple[Make, set[str]]] = {
    "no candidates": (offer(candidateAgentIds=[]), {"INVALID_COMMAND"}),
    "one candidate twice": (offer(candidateAgentIds=[f"{MARK}:a", f"{MARK}:a"]), {"INVALID_COMMAND"}),
    "no deliverables": (authorize(requiredDeliverables=[]), {"WORK_CONTRACT_INCOMPLETE"}),
    "no criteria": (authorize(acceptanceCriteria=[]), {"WORK_CONTRACT_INCOMPLETE"}),
    "no operations": (authorize(allowedResources=[{"resource": MARK, "operations": []}]), {"WORK_CONTRACT_INCOMPLETE"}),
    "one operation twice": (
        authorize(allowedResources=[{"resource": MARK, "operations": ["read", "read"]}]),
        {"INVALID_COMMAND"},
    ),
    "risk without a human": (
        authorize(sideEffectRisk="high_risk", executionApproval="not_required"),
        {"INVALID_COMMAND", "WORK_CONTRACT_INCOMPLETE"},
    ),
    "a delay that is none": (authorize(retryPolicy={**RETRY, "maxDelay": MARK}), {"INVALID_COMMAND"}),
    "no Artifacts": (held("work.submit", artifactHashes=[], evidence=[]), {"INVALID_COMMAND"}),
    "one Artifact twice": (
        held("work.submit", artifactHashes=["sha256:" + "0" * 64] * 2, evidence=[]),
        {"INVALID_COMMAND"},
    ),
    "no usage": (held(f"{EXT}.core.resource_usage_record", usageDelta={}), {"INVALID_COMMAND"}),
    "half of a failure": (held("work.fail", reason="it failed"), {"INVALID_COMMAND"}),
    "an unknown member": (held("work.checkpoint", checkpoint={"mark": MARK}), {"INVALID_COMMAND"}),
    "a relative identifier": (
        lambda work: ("work.authorize", {"workItemId": "no-uri", "contract": work.harness.contract()}),
        {"INVALID_COMMAND"},
    ),
    "an identifier beyond ASCII": (
        lambda work: ("work.authorize", {"workItemId": "urn:example:wörk", "contract": work.harness.contract()}),
        {"INVALID_COMMAND"},
    ),
    "words for a Message that has authority": (
        lambda work: (
            "message.post",
            {
                "messageId": work.harness.new_id(),
                "conversationId": f"{work.mission.group_id}:mission",
                "content": MARK,
                "authority": True,
            },
        ),
        {"INVALID_COMMAND"},
    ),
}


@pytest.mark.parametrize("make, codes", MISFITS.values(), ids=MISFITS.keys())
async def test_every_misfit_is_answered_and_costs_nothing(served: Served, make: Make, codes: set[str]) -> None:
    harness = served.harness
    work = harness.work("active")
    worker, coordinator = harness.workers[0], harness.coordinator
    kind, payload = make(work)
    who = worker if "executionLeaseId" in payload else coordinator
    # A new Session would close the execution: for the worker the present one goes on below, over HTTP's door.
    if who is worker:
        error = worker.refused(kind, payload, group_id=work.mission.group_id)
        assert error.code.value in codes
        return
    wire = await served.agent(who)
    before = len(work.mission.events())
    raw = who.command(kind, payload, group_id=work.mission.group_id)
    await wire.command(raw)
    error = await wire.error()
    assert error["code"] in codes, error
    assert (error["fatal"], error["relatedActionId"]) == (False, json.loads(raw)["actionId"])
    assert MARK not in json.dumps(error), "what was refused is not quoted"
    assert all(re.fullmatch(r"[a-z]+([A-Z][a-z]*)*", name) for name in error.get("details", {}))
    await alive(wire)
    assert len(work.mission.events()) == before


@pytest.mark.parametrize("depth", [60, 200, 5000])
async def test_nesting_of_any_depth_is_answered(served: Served, depth: int) -> None:
    wire = await served.agent(served.harness.coordinator)
    nested = b"[" * depth + b"]" * depth
    frame = json.dumps(wire.frame("COMMAND", command={"actionId": "urn:example:deep", "payload": {"at": "@"}}))
    await wire.send_raw(frame.encode().replace(b'"@"', nested))
    error = await wire.error()
    assert error["code"] in {"PROTOCOL_VIOLATION", "SCHEMA_VALIDATION_FAILED"}
    assert error["fatal"] is False
    await alive(wire)


@pytest.mark.parametrize("principal_type, taken", [("service", True), ("system", False)])
def test_services_are_called_so_in_payloads_too(mwnode: Harness, principal_type: str, taken: bool) -> None:
    mission = mwnode.mission()
    mention = {"type": principal_type, "id": mwnode.organization.id}
    if taken:
        event = mission.post(mwnode.owner, "look", mentions=[mention])
        assert event["payload"]["message"]["mentions"] == [mention]
    else:
        assert_refused("INVALID_COMMAND", lambda: mission.post(mwnode.owner, "look", mentions=[mention]))
    assert '"system"' not in json.dumps(mission.events())


def test_prose_keeps_its_length_and_its_spaces(mwnode: Harness) -> None:
    mission = mwnode.mission()
    prose = "  " + "long words, " * 200 + " "
    work = mission.authorize(goal=prose)
    assert work.row.item.contract.goal == prose
    event = mission.post(mwnode.owner, prose)
    assert event["payload"]["message"]["content"] == [{"type": "text", "text": prose}]
    blocks = [{"type": "text", "text": "see"}, {"type": "data_ref", "schema": "urn:example:s", "data": {"n": 1}}]
    assert mission.post(mwnode.owner, blocks)["payload"]["message"]["content"] == blocks


async def test_a_group_with_an_identifier_of_any_kind_can_be_read(served: Served) -> None:
    harness = served.harness
    mission = harness.mission()
    odd = "urn:example:%C3%A9:;,!$&'()*+=@/?q#f"
    harness.coordinator.send(
        "work.authorize", {"workItemId": odd, "contract": harness.contract()}, group_id=mission.group_id
    )
    wire = await served.agent(harness.coordinator)
    events = await wire.follow(mission.group_id)
    assert events[-1]["payload"]["workItem"]["workItemId"] == odd
    assert_events(mission, "mission.created", "work.authorized")


async def test_a_refused_message_is_not_repeated_to_its_sender(served: Served) -> None:
    harness = served.harness
    mission = harness.mission()
    wire = await served.agent(harness.coordinator)
    for members in ({"unknown": MARK}, {"conversationId": MARK, "mentions": [MARK]}, {"content": {"secret": MARK}}):
        payload = {**message(served, mission.group_id), **members}
        await wire.command(harness.coordinator.command("message.post", payload, group_id=mission.group_id))
        error = await wire.error()
        assert error["code"] == "INVALID_COMMAND"
        assert MARK not in json.dumps(error)
