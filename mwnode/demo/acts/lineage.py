"""A WorkItem that is too large for one: it becomes a child Mission, whose result is its result."""

from __future__ import annotations

from mwnode.demo.acts import Act
from mwnode.demo.agents import in_seconds, new_id
from mwnode.demo.documents import DAY_SECONDS
from mwnode.demo.drill import Drill
from mwnode.demo.stage import Stage
from mwnode.protocol.errors import MissionWeaveError


def child(stage: Stage) -> None:
    """Promote a WorkItem, do the child's work, and have the Parent Coordinator approve it."""
    planner, understudy, ann = stage.agent("planner"), stage.agent("understudy"), stage.agent("ann")
    parent = Drill(stage, "Parent Mission", planner)
    item = parent.authorize("Translate the manual", budget={"wallClockSecondsLimit": 600})
    nested = Drill.child_of(
        parent,
        item,
        understudy,
        "Child Mission",
        budget={"wallClockSecondsLimit": 300},
        deadline=in_seconds(DAY_SECONDS // 2),
        approvalPolicy={"finalHumanApproval": False, "highRiskExecutionApproval": False},
    )
    promoted = parent.item(item)
    stage.check(
        "a WorkItem becomes a child Mission: a Group, a Coordinator and a log of its own",
        promoted["state"] == "blocked" and nested.view()["mission"]["coordinator"]["agentId"] == understudy.id,
        f"the parent's WorkItem is {promoted['state']}; child {nested.mission_id}",
    )
    nested.add(ann)
    inner = nested.authorize(
        "Translate the first chapter", budget={"wallClockSecondsLimit": 60}, deadline=in_seconds(3600)
    )
    too_much = nested.coordinator.answer(
        "work.authorize",
        {
            "workItemId": new_id(),
            "contract": {**_contract_of(nested, inner), "budget": {"wallClockSecondsLimit": 9000}},
        },
        nested.group_id,
        coordinator_epoch=1,
    )
    stage.check("a child cannot give away more than its parent gave it", too_much == "BUDGET_EXCEEDED", too_much)
    content = nested.finish(nested.take(inner, ann), ann, b"Chapter one\n")
    try:
        ann.http.events(parent.group_id)
        seen = "served"
    except MissionWeaveError as error:
        seen = error.code.value
    stage.check("who works in the child sees nothing of the parent", seen == "GROUP_NOT_FOUND", seen)
    submitted = nested.submit_mission()
    document = {
        "approvalId": new_id(),
        "kind": "child_mission",
        "decision": "approved",
        "missionId": nested.mission_id,
        "groupId": nested.group_id,
        "workItemId": item,
        "missionRevision": submitted["missionRevision"],
        "artifactHashes": submitted["artifactHashes"],
        "acceptancePolicyVersion": "1.0.0",
        "approver": planner.principal,
        "comments": "",
        "conditions": [],
        "occurredAt": in_seconds(0),
    }
    planner.send("mission.approve", {"approval": planner.sign(**document)}, nested.group_id)
    adopted = parent.item(item)
    accepted = parent.read().of_kind("work.result.accepted")[-1]
    stage.check(
        "the Parent Coordinator's Approval of the child completes the parent's WorkItem with the child's result",
        adopted["state"] == "verified"
        and accepted["payload"]["childMissionId"] == nested.mission_id
        and content in accepted["payload"]["submission"]["artifactHashes"],
        f"Event {accepted['sequence']} of the parent, cause {accepted['cause']['type']}",
    )
    mine = stage.human.principal.id
    root = next(one["role"] for one in nested.view()["memberships"] if one["member"]["id"] == mine)
    stage.check("the root owner may look into the child", root == "observer", root)
    final = parent.submit_mission()
    stage.check("the parent submits what its child achieved", content in final["artifactHashes"], content[:18])
    stage.cli("mission", "approve", parent.mission_id, "--yes")


def _contract_of(drill: Drill, item: str) -> dict[str, object]:
    contract: dict[str, object] = drill.item(item)["contract"]
    return contract


ACTS = (Act("child-mission", "a WorkItem becomes a Mission of its own", child),)
