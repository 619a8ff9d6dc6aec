"""`mwnode mission`: Missions, from creation to approval, as their MissionOwner sees them."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import click

from mwnode.authority.table import MISSION_STATES
from mwnode.cli.asking import Consent, sign_exactly, sure
from mwnode.cli.compose import new_id, now, principal
from mwnode.cli.deciding import VERBS, consent_options
from mwnode.cli.failure import Failure
from mwnode.cli.follow import follow
from mwnode.cli.missions import (
    TERMINAL,
    act,
    archive_group,
    events_of,
    find_mission,
    missions,
    told,
)
from mwnode.cli.output import emit, facts, line, plain_line, table
from mwnode.cli.overriding import override
from mwnode.cli.plans import read_plan
from mwnode.cli.principals import find_agent, human_key, identifier, organization_key
from mwnode.cli.reach import reach
from mwnode.cli.submissions import Submission, mission_shown, submission_of
from mwnode.cli.target import Target, at_node
from mwnode.cli.where import is_served, nobody_serves
from mwnode.coordinator.plan import Plan
from mwnode.coordinator.plan_format import deadline_text
from mwnode.coordinator.plan_text import line_of
from mwnode.home import HomeError, load_key
from mwnode.narrative import Narrator, mission_title, short, short_id, work_item_name, work_item_round
from mwnode.protocol.commands import CORE
from mwnode.protocol.identifiers import mission_conversation_id
from mwnode.protocol.instants import parse
from mwnode.trust.keys import SigningKey, sign_mapping


@click.group()
def mission() -> None:
    """Create, watch, direct and approve Missions."""


for verb in (*VERBS, override):
    mission.add_command(verb)


@mission.command()
@click.argument("plan", metavar="PLAN.toml", type=click.Path(path_type=Path))
@click.option("--coordinator", metavar="NAME|URI", help="The Agent that coordinates; default: what the plan says.")
@click.option("--dry-run", is_flag=True, help="Only check the plan; needs neither HOME nor node.")
@at_node
def create(target: Target, plan: Path, coordinator: str | None, dry_run: bool) -> None:
    """Create a Mission from a plan, as its MissionOwner. With --dry-run nothing is created: the plan is checked."""
    loaded = read_plan(plan)
    _refuse_past(loaded)
    if dry_run:
        document = _summary(loaded)
        emit(target.as_json, document, facts(document))
        return
    named = coordinator or loaded.coordinator
    if named is None:
        raise click.UsageError(f"{plan} names no coordinator: give --coordinator NAME, or `coordinator` in [mission]")
    key = target.key("owner")
    mission_id, group_id = new_id(), new_id()
    with reach(target, key) as node:
        try:
            agent_id = find_agent(node, named, _agent_id(target, named))
        except Failure as error:
            where = "--coordinator" if coordinator else place_of(plan, "mission", "coordinator")
            raise Failure(f"{where}: {error}") from None
        payload = loaded.mission_payload(mission_id, group_id, agent_id, now())
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
            short_id(entry["missionId"]),
            entry["title"] or entry["objective"],
            entry["state"],
            entry["revision"],
            entry["priority"],
            short(entry["coordinator"]["agentId"]),
            entry["missionId"],
        ]
        for entry in listed
    ]
    heads = ["id", "title", "state", "revision", "priority", "coordinator", "missionId"]
    emit(target.as_json, {"missions": listed}, table(heads, rows))


@mission.command()
@click.argument("name", metavar="ID")
@at_node
def show(target: Target, name: str) -> None:
    """Show a Mission, its WorkItems and its derived progress. ID may be a part of the identifier, or the title."""
    with reach(target, target.key("owner")) as node:
        view = find_mission(node, name)
    emit(target.as_json, view, _shown(view))


@mission.command()
@click.argument("name", metavar="ID")
@click.option(
    "--until",
    type=click.Choice(MISSION_STATES),
    help="Stop at this state too, not only at the Mission's end.",
)
@at_node
def watch(target: Target, name: str, until: str | None) -> None:
    """Follow a Mission's Events until it ends; exit 0 when it is approved, or reached the state of --until.

    Where no node serves, nothing can happen: what is there is printed, and exit 1 follows unless that was enough.
    """
    narrator, state = Narrator(), ""
    alive = is_served(target)
    with reach(target, target.key("owner")) as node:
        view = find_mission(node, name)
        group_id = view["mission"]["groupId"]
        for event in follow(node, group_id, after=0) if alive else events_of(node, group_id):
            line(event) if target.as_json else click.echo(plain_line(narrator.tell(event)))
            if event["kind"].startswith("mission."):
                state = event["payload"]["state"]
            if state in TERMINAL or (state == until and event["sequence"] >= view["headSequence"]):
                break
    if state not in {"approved", until}:
        raise Failure(_unmet(target, view["mission"]["missionId"], state, until))


def _unmet(target: Target, mission_id: str, state: str, until: str | None) -> str:
    wanted = until or "approved"
    if state in TERMINAL:
        return f"the Mission ended as {state}, not as {wanted}: `mwnode why {short_id(mission_id)}` tells how"
    return f"the Mission is {state}, not {wanted}, and {nobody_serves(target)}"


@mission.command()
@click.argument("name", metavar="ID")
@click.option("--comment", default="", help="A remark that is signed with the Approval.")
@consent_options
@at_node
def approve(target: Target, name: str, comment: str, consent: Consent) -> None:
    """Approve exactly the revision and Artifact set that was submitted, after showing them.

    Asks first. Without a terminal there is nobody to ask: then --yes must say so, or --revision the revision that you
    have looked at.
    """
    key = human_key(target, "approving")
    with reach(target, key) as node:
        view = find_mission(node, name)
        child = "parent" in view["mission"]
        submitted = submission_of(node, view)
        shown = mission_shown(view, submitted)
        sign_exactly(target, shown, "Approve exactly this?", consent, submitted.mission_revision)
        approval = _approval(key, view, submitted, "approved", comment)
        # A child is its Parent Coordinator's to approve; a human at the root adds a decision of its own (R-14-15).
        kind = f"{CORE}.root_approval_grant" if child else "mission.approve"
        receipt = act(node, key, view, kind, {"approval": approval})
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
@consent_options
@at_node
def request_changes(target: Target, name: str, feedback: str, consent: Consent) -> None:
    """Send a submitted Mission back, saying what is to change. Shows what was submitted, and asks on a terminal.

    Work whose name in the plan stands in TEXT is done again, and so is all that depends on it. Without such a name,
    the last work is: that on which nothing depends.
    """
    key = human_key(target, "requesting changes")
    with reach(target, key) as node:
        view = find_mission(node, name)
        submitted = submission_of(node, view)
        shown = [*mission_shown(view, submitted), f"To be changed: {plain_line(feedback)}"]
        sign_exactly(target, shown, "Send exactly this back?", consent, submitted.mission_revision, optional=True)
        approval = _approval(key, view, submitted, "changes_requested", feedback)
        payload = {"approval": approval, "feedback": feedback}
        receipt = act(node, key, view, "mission.request_changes", payload)
    told(target, view, receipt)


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
@click.option("--yes", is_flag=True, help="Cancel without being asked.")
@at_node
def cancel(target: Target, name: str, reason: str, yes: bool) -> None:
    """Cancel a Mission: its open WorkItems end, its leases are revoked. There is no way back.

    Takes the whole identifier, its short id or the whole title, and asks on a terminal.
    """
    key = target.key("owner")
    with reach(target, key) as node:
        view = find_mission(node, name, whole=True)
        sure(f"Cancel {mission_title(view['mission'])} ({view['mission']['missionId']}) for good?", yes)
        receipt = act(node, key, view, "mission.cancel", {"reason": reason})
    told(target, view, receipt)


@mission.command("replace-coordinator")
@click.argument("name", metavar="ID")
@click.argument("agent", metavar="AGENT")
@at_node
def replace_coordinator(target: Target, name: str, agent: str) -> None:
    """Give a Mission another Coordinator; the present one is fenced at once."""
    key = target.key("owner")
    with reach(target, key) as node:
        view = find_mission(node, name)
        payload = {"coordinatorAgentId": find_agent(node, agent, _agent_id(target, agent))}
        receipt = act(node, key, view, "mission.assign_coordinator", payload)
    told(target, view, receipt)


@mission.command()
@click.argument("name", metavar="ID")
@at_node
def archive(target: Target, name: str) -> None:
    """Archive the Group of an ended Mission under its signed snapshot, as the Organization. It stays readable."""
    with reach(target, organization_key(target, "archiving")) as node:
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


def _refuse_past(plan: Plan) -> None:
    """Failure where a new Mission would be late from the start; a Coordinator may still follow such a plan."""
    for one in plan.every():
        if parse(deadline_text(one.mission.deadline, now())) <= now():
            place = place_of(one.source, "mission", "deadline")
            raise Failure(f"{place}: {one.mission.deadline} is in the past: give a later one, or such as P2D")
        for number, work in enumerate(one.work):
            if work.deadline is not None and parse(deadline_text(work.deadline, now())) <= now():
                place = place_of(one.source, "work", number, "deadline")
                raise Failure(
                    f"{place}: {work.deadline} of {work.id!r} is in the past: give a later one, or such as P1D"
                )


def _summary(plan: Plan) -> dict[str, Any]:
    return {
        "plan": str(plan.source),
        "planHash": plan.plan_hash,
        "title": plan.mission.title,
        "coordinator": plan.coordinator,
        "work": [item.id for item in plan.order()],
    }


def place_of(plan: Path, *path: str | int) -> str:
    """File, line and key of something in a plan, as its mistakes are reported."""
    line_number = line_of(plan.read_text(encoding="utf-8"), path)
    key = "".join(f"[{one}]" if isinstance(one, int) else f".{one}" for one in path).lstrip(".")
    return f"{plan}:{line_number}: {key}" if line_number else f"{plan}: {key}"


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
    key: SigningKey, view: dict[str, Any], submitted: Submission, decision: str, comments: str
) -> dict[str, Any]:
    """A signed Approval of exactly what was submitted. [R-7.3-06]"""
    occurred_at, mission = now().text(), view["mission"]
    document = {
        "approvalId": new_id(),
        "kind": "mission_final",
        "decision": decision,
        "missionId": mission["missionId"],
        "groupId": mission["groupId"],
        "missionRevision": submitted.mission_revision,
        "artifactHashes": submitted.artifact_hashes,
        "acceptancePolicyVersion": mission["approvalPolicy"].get("policyVersion", "1.0.0"),
        "approver": principal(key),
        "comments": comments,
        "conditions": [],
        "occurredAt": occurred_at,
    }
    return sign_mapping(document, key, occurred_at)


def _shown(view: dict[str, Any]) -> list[str]:
    mission, progress = view["mission"], view["progress"]
    coordinator = mission["coordinator"]
    rounds = [work_item_round(item) for item in view["workItems"]]
    # After a change request work stands there twice: as it was, and as it is done again.
    several = ["round"] if any(number > 1 for number in rounds) else []
    items = [
        [
            work_item_name(item),
            *([number] if several else []),
            item["state"],
            short(item["owner"]["agentId"]) if "owner" in item else None,
            item["revision"],
            item["workItemId"],
        ]
        for item, number in zip(view["workItems"], rounds, strict=True)
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
        *table(["work", *several, "state", "owner", "revision", "workItemId"], items),
    ]
