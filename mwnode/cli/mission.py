"""`mwnode mission`: Missions, from creation to approval, as their MissionOwner sees them."""

from __future__ import annotations

import sys
from pathlib import Path
from typing import Any

import click

from mwnode.cli.compose import new_id, now, principal
from mwnode.cli.exits import REFUSED, Failure
from mwnode.cli.follow import follow
from mwnode.cli.missions import TERMINAL, act, archive_group, find_mission, missions, submission_of
from mwnode.cli.output import emit, facts, line, table
from mwnode.cli.principals import identifier
from mwnode.cli.reach import reach
from mwnode.cli.target import Target, at_node
from mwnode.coordinator.plan import Plan, PlanError, load_plan
from mwnode.home import HomeError, load_key
from mwnode.narrative import Narrator, mission_title, short, work_item_name
from mwnode.protocol.identifiers import mission_conversation_id
from mwnode.trust.keys import SigningKey, sign_mapping


@click.group()
def mission() -> None:
    """Create, watch, direct and approve Missions."""


@mission.command()
@click.argument("plan", metavar="PLAN.toml", type=click.Path(path_type=Path))
@click.option("--coordinator", metavar="NAME|URI", help="The Agent that coordinates; default: what the plan says.")
@at_node
def create(target: Target, plan: Path, coordinator: str | None) -> None:
    """Create a Mission from a plan, as its MissionOwner."""
    loaded = read_plan(plan)
    named = coordinator or loaded.coordinator
    if named is None:
        raise click.UsageError(f"{plan} names no coordinator: give --coordinator NAME, or `coordinator` in [mission]")
    key = target.key("owner")
    mission_id, group_id = new_id(), new_id()
    payload = loaded.mission_payload(mission_id, group_id, _agent_id(target, named), now())
    with reach(target, key) as node:
        answer = node.send("mission.create", payload, group_id=group_id, extensions=loaded.extensions)
    created = answer["events"][0]["payload"]
    document = {
        "missionId": mission_id,
        "groupId": group_id,
        "state": created["state"],
        "revision": created["revision"],
        "planHash": loaded.plan_hash,
    }
    emit(target.as_json, document, facts(document))


@mission.command("list")
@at_node
def list_(target: Target) -> None:
    """List the Missions that you take part in."""
    with reach(target, target.key("owner")) as node:
        listed = missions(node)
    rows = [
        [
            entry["missionId"],
            entry["state"],
            entry["revision"],
            short(entry["coordinator"]["agentId"]),
            entry["objective"][:50],
        ]
        for entry in listed
    ]
    heads = ["missionId", "state", "revision", "coordinator", "objective"]
    emit(target.as_json, {"missions": listed}, table(heads, rows))


@mission.command()
@click.argument("name", metavar="ID")
@at_node
def show(target: Target, name: str) -> None:
    """Show a Mission, its WorkItems and its derived progress. ID may be an unmistakable part of the identifier."""
    with reach(target, target.key("owner")) as node:
        view = find_mission(node, name)
    emit(target.as_json, view, _shown(view))


@mission.command()
@click.argument("name", metavar="ID")
@click.option("--until", metavar="STATE", default=None, help="Stop at this state too, not only at the Mission's end.")
@at_node
def watch(target: Target, name: str, until: str | None) -> None:
    """Follow a Mission's Events until it ends; exit 0 when it is approved, or reached the state of --until."""
    narrator, state = Narrator(), ""
    with reach(target, target.key("owner")) as node:
        view = find_mission(node, name)
        for event in follow(node, view["mission"]["groupId"], after=0):
            line(event) if target.as_json else click.echo(narrator.tell(event))
            if event["kind"].startswith("mission."):
                state = event["payload"]["state"]
            if state in TERMINAL or (state == until and event["sequence"] >= view["headSequence"]):
                break
    if state not in {"approved", until}:
        sys.exit(REFUSED)


@mission.command()
@click.argument("name", metavar="ID")
@click.option("--comment", default="", help="A remark that is signed with the Approval.")
@click.option("--yes", is_flag=True, help="Do not ask on a terminal.")
@at_node
def approve(target: Target, name: str, comment: str, yes: bool) -> None:
    """Approve exactly the revision and Artifact set that was submitted, after showing them."""
    key = target.key("owner")
    with reach(target, key) as node:
        view = find_mission(node, name)
        submitted = submission_of(node, view)
        if not target.as_json:
            _echo(_submitted(view, submitted))
        if not yes and sys.stdin.isatty():
            click.confirm("Approve exactly this?", abort=True, err=True)
        approval = _approval(key, view, submitted, "approved", comment)
        receipt = act(node, key, view, "mission.approve", {"approval": approval})
    document = {
        "missionId": approval["missionId"],
        "approvalId": approval["approvalId"],
        "missionRevision": approval["missionRevision"],
        "artifactHashes": approval["artifactHashes"],
        "state": receipt["payload"]["state"],
    }
    emit(target.as_json, document, f"approved: {document['approvalId']}")


@mission.command("request-changes")
@click.argument("name", metavar="ID")
@click.argument("feedback", metavar="TEXT")
@at_node
def request_changes(target: Target, name: str, feedback: str) -> None:
    """Send a submitted Mission back, saying what is to change."""
    key = target.key("owner")
    with reach(target, key) as node:
        view = find_mission(node, name)
        approval = _approval(key, view, submission_of(node, view), "changes_requested", feedback)
        payload = {"approval": approval, "feedback": feedback}
        receipt = act(node, key, view, "mission.request_changes", payload)
    _told(target, view, receipt)


@mission.command()
@click.argument("name", metavar="ID")
@click.argument("text", metavar="TEXT")
@at_node
def direct(target: Target, name: str, text: str) -> None:
    """Say something to the whole Group: an announcement. It informs; it never assigns work."""
    key = target.key("owner")
    with reach(target, key) as node:
        view = find_mission(node, name)
        payload = {
            "messageId": new_id(),
            "conversationId": mission_conversation_id(view["mission"]["groupId"]),
            "content": text,
            "announcement": True,
        }
        act(node, key, view, "message.post", payload)
    emit(target.as_json, {"messageId": payload["messageId"]}, f"posted: {payload['messageId']}")


@mission.command()
@click.argument("name", metavar="ID")
@click.option("--reason", default="cancelled by its MissionOwner", show_default=True)
@at_node
def cancel(target: Target, name: str, reason: str) -> None:
    """Cancel a Mission: its open WorkItems end, its leases are revoked. There is no way back."""
    key = target.key("owner")
    with reach(target, key) as node:
        view = find_mission(node, name)
        receipt = act(node, key, view, "mission.cancel", {"reason": reason})
    _told(target, view, receipt)


@mission.command("replace-coordinator")
@click.argument("name", metavar="ID")
@click.argument("agent", metavar="AGENT")
@at_node
def replace_coordinator(target: Target, name: str, agent: str) -> None:
    """Give a Mission another Coordinator; the present one is fenced at once."""
    key = target.key("owner")
    with reach(target, key) as node:
        view = find_mission(node, name)
        payload = {"coordinatorAgentId": _agent_id(target, agent)}
        receipt = act(node, key, view, "mission.assign_coordinator", payload)
    _told(target, view, receipt)


@mission.command()
@click.argument("name", metavar="ID")
@at_node
def archive(target: Target, name: str) -> None:
    """Archive the Group of an ended Mission under its signed snapshot, as the Organization. It stays readable."""
    with reach(target, target.key("organization")) as node:
        view = find_mission(node, name)
        events = archive_group(node, view)
    made = next(event["payload"] for event in events if event["kind"] == "group.snapshot.created")
    archived = next(event["payload"] for event in events if event["kind"] == "group.archived")
    document = {
        "missionId": view["mission"]["missionId"],
        "groupId": view["mission"]["groupId"],
        "archivedAt": archived["archivedAt"],
        "snapshotId": made["snapshotId"],
        "throughSequence": made["throughSequence"],
        "snapshotHash": made["snapshotHash"],
        "stateHash": made["stateHash"],
    }
    emit(target.as_json, document, facts(document))


def read_plan(path: Path) -> Plan:
    """A checked plan; Failure with file, line and key where it is wrong."""
    try:
        return load_plan(path)
    except PlanError as error:
        raise Failure(str(error)) from error


def _agent_id(target: Target, name: str) -> str:
    """The Agent that a name of the plan means: the one whose key HOME keeps, else the usual identifier."""
    if ":" not in name and (target.home_option or target.url is None):
        try:
            path = target.home.key_path(name)
        except HomeError:
            path = None
        if path is not None and path.exists() and b'"sealed"' not in path.read_bytes():
            return load_key(path).principal.id
    return identifier("agent", name)


def _approval(
    key: SigningKey, view: dict[str, Any], submitted: dict[str, Any], decision: str, comments: str
) -> dict[str, Any]:
    """A signed Approval of exactly what was submitted. [R-7.3-06]"""
    occurred_at, mission = now().text(), view["mission"]
    document = {
        "approvalId": new_id(),
        "kind": "child_mission" if "parent" in mission else "mission_final",
        "decision": decision,
        "missionId": mission["missionId"],
        "groupId": mission["groupId"],
        "missionRevision": submitted["missionRevision"],
        "artifactHashes": submitted["artifactHashes"],
        "acceptancePolicyVersion": mission["approvalPolicy"].get("policyVersion", "1.0.0"),
        "approver": principal(key),
        "comments": comments,
        "conditions": [],
        "occurredAt": occurred_at,
    }
    return sign_mapping(document, key, occurred_at)


def _told(target: Target, view: dict[str, Any], receipt: dict[str, Any]) -> None:
    payload = receipt["payload"]
    document = {
        "missionId": view["mission"]["missionId"],
        "eventId": receipt["eventId"],
        "state": payload["state"],
        "revision": payload["revision"],
    }
    emit(target.as_json, document, facts(document))


def _echo(lines: list[str]) -> None:
    for text in lines:
        click.echo(text)


def _submitted(view: dict[str, Any], submitted: dict[str, Any]) -> list[str]:
    mission = view["mission"]
    return [
        *facts(
            {
                "Mission": f"{mission_title(mission)} ({mission['missionId']})",
                "Revision": submitted["missionRevision"],
                "Artifacts": len(submitted["artifactHashes"]),
            }
        ),
        *(f"  {content_hash}" for content_hash in submitted["artifactHashes"]),
    ]


def _shown(view: dict[str, Any]) -> list[str]:
    mission, progress = view["mission"], view["progress"]
    coordinator = mission["coordinator"]
    items = [
        [
            work_item_name(item),
            item["state"],
            short(item["owner"]["agentId"]) if "owner" in item else None,
            item["revision"],
            item["workItemId"],
        ]
        for item in view["workItems"]
    ]
    return [
        *facts(
            {
                "Mission": f"{mission_title(mission)} ({mission['missionId']})",
                "Objective": mission["objective"],
                "State": f"{mission['state']} at revision {mission['revision']}",
                "Owner": mission["missionOwner"]["id"],
                "Coordinator": f"{coordinator['agentId']} (epoch {coordinator['coordinatorEpoch']})",
                "Deadline": mission["deadline"],
                "Evidence": f"{progress['evidence']['passed']} of {progress['evidence']['required']} passed",
                "Blockers": [blocker["reason"] for blocker in progress["blockers"]],
            }
        ),
        "",
        *table(["work", "state", "owner", "revision", "workItemId"], items),
    ]
