"""Payloads as peers write them: explicit nulls, and faults told by the path of the member."""

from __future__ import annotations

from typing import Any

import pytest

from mwnode.store.verify import verify
from mwnode.testing import Harness


@pytest.mark.req("R-15.1-14")
def test_an_explicit_null_is_as_good_as_an_absent_member_and_folds_again(mwnode: Harness) -> None:
    mission = mwnode.mission(pinnedProfiles=None, coordinatorLeaseSeconds=None)
    conversation = f"{mission.group_id}:mission"
    mwnode.owner.send(
        "message.post",
        {
            "messageId": mwnode.new_id(),
            "conversationId": conversation,
            "content": "nothing else",
            "mentions": None,
            "references": None,
            "announcement": None,
            "authority": None,
        },
        group_id=mission.group_id,
    )
    work = mission.authorize()
    worker = mwnode.workers[0]
    mission.add(worker, provisional=None, scopes=None)
    work.offer(worker, offerExpiresInSeconds=None, contract=None)
    work.accept(worker, ownershipLeaseSeconds=None, startBySeconds=None)
    work.start(worker, executionLeaseSeconds=None)
    checkpoint = {
        "checkpointId": mwnode.new_id(),
        "phase": "half",
        "completedMilestones": [],
        "nextStep": None,
        "stateArtifactHash": None,
        "createdAt": mwnode.clock.now().text(),
    }
    payload = {**work.held, "checkpoint": checkpoint, "progress": None, "resumeWithinSeconds": None}
    worker.send("work.checkpoint", payload, group_id=mission.group_id)
    assert b"null" not in b"".join(stored.event for stored in _events(mwnode, mission.group_id))
    mwnode.node.close()
    report = verify(mwnode.home / "node.mdb")
    assert report.ok, report.findings


@pytest.mark.req("R-2-09", "R-5-02", "R-17.4-01")
@pytest.mark.parametrize("number", [1e20, 10**20, -(10**20), 2**53 + 1, 2**63 + 5, 2**64, 1e300])
def test_a_number_beyond_the_safe_integers_is_stored_and_folds_again(mwnode: Harness, number: float) -> None:
    mission = mwnode.mission()
    content = [{"type": "data_ref", "schema": "urn:example:schema:any", "data": {"n": [number]}}]
    (event,) = mwnode.owner.send(
        "message.post",
        {"messageId": mwnode.new_id(), "conversationId": f"{mission.group_id}:mission", "content": content},
        group_id=mission.group_id,
        extensions={"urn:example:extension": {"version": "1.0.0", "critical": False, "data": number}},
    )
    assert float(event["payload"]["message"]["content"][0]["data"]["n"][0]) == float(number)
    mission.authorize(constraints={"n": number})
    mwnode.node.close()
    report = verify(mwnode.home / "node.mdb")
    assert report.ok, report.findings


def _events(harness: Harness, group_id: str) -> list[Any]:
    with harness.node.read() as view:
        return list(view.events(group_id, 0, 1_000))


CASES: dict[str, tuple[dict[str, Any], str, str]] = {
    "an unknown member": ({"surprise": 1}, "/payload/surprise", "INVALID_COMMAND"),
    "an unknown member of the contract": (
        {"contract": {"surprise": 1}},
        "/payload/contract/surprise",
        "INVALID_COMMAND",
    ),
    "a wrong type": ({"exclusive": "yes"}, "/payload/exclusive", "INVALID_COMMAND"),
    "no deadline": ({"contract": {"deadline": ...}}, "/payload/contract/deadline", "WORK_CONTRACT_INCOMPLETE"),
    "no deliverable": (
        {"contract": {"requiredDeliverables": []}},
        "/payload/contract/requiredDeliverables",
        "WORK_CONTRACT_INCOMPLETE",
    ),
    "no contract": ({"contract": ...}, "/payload/contract", "WORK_CONTRACT_INCOMPLETE"),
    "prose for a contract": ({"contract": "please test"}, "/payload/contract", "WORK_CONTRACT_INCOMPLETE"),
    "an empty goal": ({"contract": {"goal": ""}}, "/payload/contract/goal", "WORK_CONTRACT_INCOMPLETE"),
}


@pytest.mark.req("R-19-19", "R-19-24", "R-10.1-01", "R-10.1-24")
@pytest.mark.parametrize("change,path,code", CASES.values(), ids=CASES.keys())
def test_a_fault_is_told_by_the_path_of_its_member(
    mwnode: Harness, change: dict[str, Any], path: str, code: str
) -> None:
    mission = mwnode.mission()
    payload: dict[str, Any] = {"workItemId": mwnode.new_id(), "contract": mwnode.contract()}
    for name, value in change.items():
        if name == "contract" and isinstance(value, dict):
            value = {**payload["contract"], **value}
            value = {member: part for member, part in value.items() if part is not ...}
        payload[name] = value
    payload = {name: value for name, value in payload.items() if value is not ...}
    error = mwnode.coordinator.refused("work.authorize", payload, group_id=mission.group_id)
    assert (error.code, (error.rejection.details or {}).get("path")) == (code, path), error.message
    assert len(mission.events()) == 1
