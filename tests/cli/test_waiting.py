"""Who must act next: every state of a WorkItem and of a Mission names somebody, a deadline and an outcome."""

from __future__ import annotations

from typing import Any

import pytest

from mwnode.cli.waiting import outlook
from mwnode.protocol.instants import parse

NOW = parse("2030-01-01T12:00:00Z")
LATER, EARLIER = "2030-01-01T13:00:00Z", "2030-01-01T11:00:00Z"
DEADLINE = "2030-01-02T00:00:00Z"
OWNER = {"type": "human", "id": "urn:mwnode:human:olivia"}
COORDINATOR = {"type": "agent", "id": "urn:mwnode:agent:coordinator"}
WORKER = {"type": "agent", "id": "urn:mwnode:agent:worker"}


def mission(state: str = "active", **more: Any) -> dict[str, Any]:
    return {
        "mission": {
            "missionId": "urn:m",
            "state": state,
            "deadline": DEADLINE,
            "missionOwner": OWNER,
            "coordinator": {"agentId": COORDINATOR["id"], "coordinatorEpoch": 1},
        },
        "workItems": [],
        "leases": [{"leaseType": "coordinator", "expiresAt": LATER}],
        "progress": {"approvals": [], "blockers": []},
        **more,
    }


def item(state: str, name: str = "urn:w", **more: Any) -> dict[str, Any]:
    owner = {"owner": {"agentId": WORKER["id"], "startBy": LATER}} if state in {"queued", "active", "blocked"} else {}
    return {
        "workItemId": name,
        "state": state,
        "createdAt": EARLIER,
        "updatedAt": EARLIER,
        "contract": {"deadline": DEADLINE, "dependencyWorkItemIds": []},
        **owner,
        **more,
    }


def lease(kind: str, expires_at: str = LATER) -> dict[str, Any]:
    return {"leaseType": kind, "workItemId": "urn:w", "expiresAt": expires_at}


def offer(status: str = "pending", expires_at: str = LATER) -> dict[str, Any]:
    return {"agentId": WORKER["id"], "status": status, "expiresAt": expires_at}


WORK = {
    "open": (item("open"), {}, COORDINATOR, "offer it", DEADLINE),
    "offered": (item("offered", offers=[offer()]), {}, WORKER, "accept or decline", LATER),
    "offered, all declined": (
        item("offered", offers=[offer("declined")]),
        {},
        COORDINATOR,
        "offer it again",
        DEADLINE,
    ),
    "offered, run out": (
        item("offered", offers=[offer(expires_at="2030-01-01T12:00:00Z")]),
        {},
        COORDINATOR,
        "offer it again",
        DEADLINE,
    ),
    "queued": (item("queued"), {}, WORKER, "start it", LATER),
    "queued behind an approval": (
        item("queued"),
        {"approvals": [{"kind": "work_execution", "workItemId": "urn:w", "since": EARLIER}]},
        OWNER,
        "approve its execution",
        LATER,
    ),
    "active": (item("active"), {}, WORKER, "submit it", LATER),
    "blocked": (
        item("blocked"),
        {"blockers": [{"workItemId": "urn:w", "reason": "no licence", "since": EARLIER}]},
        COORDINATOR,
        "resolve: no licence",
        LATER,
    ),
    "submitted": (item("submitted"), {}, COORDINATOR, "review it", DEADLINE),
    "failed": (item("failed"), {}, COORDINATOR, "offer it again or replace it", DEADLINE),
}


@pytest.mark.parametrize("name", WORK)
def test_a_work_item_waits_for_exactly_one(name: str) -> None:
    work, progress, who, action, deadline = WORK[name]
    leases = [{"leaseType": "coordinator", "expiresAt": LATER}, lease("execution"), lease("blocked")]
    view = mission(workItems=[work], leases=leases, progress={"approvals": [], "blockers": [], **progress})
    (entry,) = outlook(view, NOW)
    assert (entry["who"], entry["action"], entry["deadline"]) == (who, action, deadline)
    assert entry["on"] == {"kind": "workItem", "id": "urn:w"}
    assert entry["since"] == EARLIER
    assert entry["ifNothing"]


def test_work_that_depends_on_unfinished_work_waits_for_nobody() -> None:
    waits = item("open", "urn:later", contract={"deadline": DEADLINE, "dependencyWorkItemIds": ["urn:w"]})
    entries = outlook(mission(workItems=[item("active"), waits]), NOW)
    assert [entry["on"]["id"] for entry in entries] == ["urn:w"]
    entries = outlook(mission(workItems=[item("verified"), waits]), NOW)
    assert [(entry["on"]["id"], entry["action"]) for entry in entries] == [("urn:later", "offer it")]


def test_a_submitted_mission_waits_for_its_owner_since_it_was_submitted() -> None:
    progress = {"approvals": [{"kind": "mission_final", "missionId": "urn:m", "since": EARLIER}], "blockers": []}
    (entry,) = outlook(mission("awaiting_approval", workItems=[item("verified")], progress=progress), NOW)
    assert (entry["who"], entry["since"], entry["deadline"]) == (OWNER, EARLIER, DEADLINE)


def test_when_all_work_is_done_the_coordinator_submits() -> None:
    (entry,) = outlook(mission(workItems=[item("verified"), item("cancelled", "urn:x")]), NOW)
    assert (entry["who"], entry["action"]) == (COORDINATOR, "submit for approval")


@pytest.mark.parametrize("leases", [[], [{"leaseType": "coordinator", "expiresAt": "2030-01-01T12:00:00Z"}]])
def test_a_mission_without_a_living_coordinator_waits_for_its_owner(leases: list[dict[str, Any]]) -> None:
    (entry,) = outlook(mission(leases=leases), NOW)
    assert (entry["who"], entry["action"]) == (OWNER, "replace the Coordinator")


@pytest.mark.parametrize("state", ["approved", "failed", "cancelled"])
def test_a_mission_that_ended_waits_for_nobody(state: str) -> None:
    assert outlook(mission(state, workItems=[item("active")]), NOW) == []
