"""Every WorkItem state against every kind about WorkItems: what is accepted, and the code of every refusal."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest

from mwnode.authority.table import MISSION_MOVES, WORK_ITEM_MOVES, WORK_ITEM_STATES
from mwnode.protocol.documents import Actor
from tests.authority.scene import (
    ADD_DEPENDENCY,
    DECLINE,
    GROUP,
    RECORD_USAGE,
    RENEW_EXECUTION,
    RENEW_OWNERSHIP,
    Scene,
    later,
    usage,
    work_id,
)

Build = Callable[[Scene, str], tuple[Actor, str, dict[str, Any]]]


def approval(scene: Scene, item: str) -> dict[str, Any]:
    row = scene.item(item)
    epoch = max(1, row.ownership_epoch)
    expires = later(scene, 300)
    document = scene.sign(
        scene.owner,
        {
            "approvalId": f"urn:example:approval:{scene.number()}",
            "kind": "work_execution",
            "decision": "approved",
            "missionId": row.item.mission_id,
            "groupId": row.item.group_id,
            "workItemId": item,
            "missionRevision": 1,
            "artifactHashes": [],
            "acceptancePolicyVersion": "1.0.0",
            "approver": {"type": "human", "id": scene.owner.id},
            "comments": "",
            "conditions": ["operation:read", f"ownershipEpoch:{epoch}", f"expiresAt:{expires}"],
            "occurredAt": scene.now.text(),
        },
    )
    return {"approval": document, "ownershipEpoch": epoch, "operations": ["read"], "expiresAt": expires}


def child(scene: Scene, item: str) -> dict[str, Any]:
    number = scene.number()
    return {
        **scene.mission_payload(f"urn:example:mission:child-{number}", f"urn:example:group:child-{number}"),
        "parentWorkItemId": item,
        "coordinatorAgentId": scene.workers["bert"].id,
        "deadline": later(scene, 86_400),
        "budget": {"wallClockSecondsLimit": 10},
        "permissions": [],
        "approvalPolicy": {"finalHumanApproval": False, "highRiskExecutionApproval": True},
    }


def held(scene: Scene, item: str, **more: Any) -> dict[str, Any]:
    return {**scene.three(item), **more}


def publish(scene: Scene, item: str) -> dict[str, Any]:
    three = scene.three(item)
    return {
        "artifact": scene.artifact(item, scene.workers["anna"]),
        "ownershipEpoch": three["ownershipEpoch"],
        "executionLeaseId": three["executionLeaseId"],
    }


def submission(scene: Scene, item: str) -> dict[str, Any]:
    anna = scene.workers["anna"]
    artifacts = scene.item(item).artifacts
    hashes = [artifacts[0][1]] if artifacts else ["sha256:" + "0" * 64]
    return held(scene, item, artifactHashes=hashes, evidence=[scene.evidence(item, anna)])


def epoch_only(scene: Scene, item: str, **more: Any) -> dict[str, Any]:
    return {"workItemId": item, "ownershipEpoch": scene.three(item)["ownershipEpoch"], **more}


KINDS: dict[str, Build] = {
    "work.offer": lambda s, i: (s.coordinator, "work.offer", s.offer_payload(i, s.workers["bert"])),
    "work.accept_offer": lambda s, i: (s.workers["anna"], "work.accept_offer", {"workItemId": i}),
    "decline": lambda s, i: (s.workers["anna"], DECLINE, {"workItemId": i, "reason": "capacity"}),
    "approval.grant_execution": lambda s, i: (s.owner, "approval.grant_execution", approval(s, i)),
    "work.start": lambda s, i: (s.workers["anna"], "work.start", epoch_only(s, i)),
    "work.checkpoint": lambda s, i: (s.workers["anna"], "work.checkpoint", held(s, i, checkpoint=s.checkpoint())),
    "work.block": lambda s, i: (
        s.workers["anna"],
        "work.block",
        held(s, i, checkpoint=s.checkpoint(), reason="r", requiredResolution="q"),
    ),
    "work.unblock": lambda s, i: (s.coordinator, "work.unblock", {"workItemId": i}),
    "work.submit": lambda s, i: (s.workers["anna"], "work.submit", submission(s, i)),
    "work.accept_result": lambda s, i: (
        s.coordinator,
        "work.accept_result",
        {"workItemId": i, "evidence": [s.review(i, s.coordinator)]},
    ),
    "work.fail": lambda s, i: (
        s.coordinator,
        "work.fail",
        {"workItemId": i, "reason": "r", "evidence": [s.report(i, s.coordinator)]},
    ),
    "work.cancel": lambda s, i: (s.coordinator, "work.cancel", {"workItemId": i, "reason": "r"}),
    "mission.create_child": lambda s, i: (s.coordinator, "mission.create_child", child(s, i)),
    "artifact.publish": lambda s, i: (s.workers["anna"], "artifact.publish", publish(s, i)),
    "renew execution": lambda s, i: (s.workers["anna"], RENEW_EXECUTION, held(s, i, leaseSeconds=600)),
    "renew ownership": lambda s, i: (s.workers["anna"], RENEW_OWNERSHIP, epoch_only(s, i, leaseSeconds=5000)),
    "add dependency": lambda s, i: (s.coordinator, ADD_DEPENDENCY, {"workItemId": i, "dependencyId": work_id("other")}),
    "record usage": lambda s, i: (s.workers["anna"], RECORD_USAGE, held(s, i, usageDelta=usage(toolCalls=1))),
}

STATE, ACCEPTED = "INVALID_STATE_TRANSITION", "accepted"
_ADMITTED = {
    # An offer needs an item without a live owner; in the matrix every owner is live.
    "work.offer": "open offered failed",
    "work.accept_offer": "offered",
    "decline": "offered",
    "approval.grant_execution": "queued",
    "work.start": "queued",
    "work.checkpoint": "active",
    "work.block": "active",
    "work.unblock": "blocked",
    "work.submit": "active",
    "work.accept_result": "submitted",
    "work.fail": "open offered queued active blocked submitted",
    "work.cancel": "open offered queued active blocked submitted",
    "mission.create_child": "open offered queued active blocked",
    "artifact.publish": "active",
    "renew execution": "active",
    "renew ownership": "queued active blocked",
    "add dependency": "open offered failed",
    "record usage": "active",
}


def prepared(state: str) -> tuple[Scene, str]:
    scene = Scene(workers=("anna", "bert"))
    scene.authorize("other")
    item = scene.authorize("item", allowedResources=[])
    anna = scene.workers["anna"]
    if state == "active":
        scene.bring(item, "active", anna)
        scene.publish(item, anna)
    else:
        scene.bring(item, state, anna)
    return scene, item


@pytest.mark.req(
    *(f"R-10.2-{n:02}" for n in (6, 10, 14, 16, 18, 20, 22, 24, 26, 28, 30, 32, 39, 40, 42)),
    "R-19-20",
)
@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("state", WORK_ITEM_STATES)
def test_state_by_kind(state: str, kind: str) -> None:
    scene, item = prepared(state)
    actor, command, payload = KINDS[kind](scene, item)
    before, head = scene.item(item), scene.view.head(GROUP)
    expected = ACCEPTED if state in _ADMITTED[kind].split() else STATE
    assert scene.code(actor, command, payload) == expected
    if expected != ACCEPTED:
        assert scene.item(item) == before
        assert scene.view.head(GROUP) == head
    else:
        assert scene.view.head(GROUP) > head


@pytest.mark.req("R-10.2-42")
def test_every_event_in_the_matrix_is_a_move_of_the_tables() -> None:
    """What the Events say the state is, the tables allow after the state before."""
    for state in WORK_ITEM_STATES:
        for kind, admitted in _ADMITTED.items():
            if state not in admitted.split():
                continue
            scene, item = prepared(state)
            actor, command, payload = KINDS[kind](scene, item)
            scene.ok(actor, command, payload)
            assert_moves(scene)


def assert_moves(scene: Scene) -> None:
    """Fold the log by the tables alone and compare the states with what each Event says."""
    states: dict[str, str] = {}
    missions: dict[str, str] = {}
    for event in scene.events:
        payload = event.payload
        if event.kind in ("mission.created", "mission.follow_up.created"):
            missions[payload["mission"]["groupId"]] = payload["state"]
        elif event.kind.startswith("mission.") and (missions.get(str(event.group_id)), event.kind) in MISSION_MOVES:
            missions[str(event.group_id)] = MISSION_MOVES[missions[str(event.group_id)], event.kind]
            assert payload["state"] == missions[str(event.group_id)]
        if event.kind == "work.authorized":
            states[payload["workItem"]["workItemId"]] = "open"
        elif isinstance(event.work_item_id, str) and event.work_item_id in states:
            before = states[event.work_item_id]
            after = payload.get("workItemState", payload["state"])
            if (before, event.kind) not in WORK_ITEM_MOVES and event.kind.split(".")[0] in ("message", "membership"):
                continue
            assert after in WORK_ITEM_MOVES[before, event.kind], (before, event.kind, after)
            states[event.work_item_id] = after
    for item, state in states.items():
        assert scene.state(item) == state
