"""`mwnode waiting`: who must act next, on what, since when, by when, and what happens otherwise."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import click

from mwnode.cli.compose import now
from mwnode.cli.missions import TERMINAL, missions
from mwnode.cli.output import emit, table
from mwnode.cli.reach import at, reach
from mwnode.cli.target import Target, at_node
from mwnode.narrative import short, work_item_name
from mwnode.protocol import instants
from mwnode.protocol.instants import Instant

FINISHED = frozenset({"verified", "cancelled"})


@click.command()
@click.option("--mine", is_flag=True, help="Only what waits for you.")
@at_node
def waiting(target: Target, mine: bool) -> None:
    """List what waits for whom in your Missions: since when, until when, and what happens if nobody does anything."""
    key = target.key("owner")
    names: dict[str, str] = {}
    entries: list[dict[str, Any]] = []
    with reach(target, key) as node:
        for listed in missions(node):
            if listed["state"] in TERMINAL:
                continue
            view = node.get(at("missions", listed["missionId"]))
            names |= {item["workItemId"]: work_item_name(item) for item in view["workItems"]}
            entries += outlook(view, now())
    if mine:
        entries = [entry for entry in entries if entry["who"]["id"] == key.principal.id]
    rows = [
        [
            short(entry["who"]["id"]),
            entry["action"],
            names.get(entry["on"]["id"], short(entry["on"]["id"])),
            entry["since"],
            entry["deadline"],
            entry["ifNothing"],
        ]
        for entry in entries
    ]
    heads = ["who", "action", "on", "since", "deadline", "if nothing is done"]
    emit(target.as_json, entries, table(heads, rows) if rows else "Nothing waits for anybody.")


def outlook(view: dict[str, Any], at_time: Instant) -> list[dict[str, Any]]:
    """Everything that waits for somebody in one Mission, from its view alone."""
    mission = view["mission"]
    if mission["state"] in TERMINAL:
        return []
    found = [*_mission(view, at_time)]
    if mission["state"] == "active":
        finished = {item["workItemId"] for item in view["workItems"] if item["state"] == "verified"}
        for item in view["workItems"]:
            found += _work_item(view, item, finished, at_time)
    return found


def _entry(
    who: dict[str, str], action: str, on: tuple[str, str], since: str | None, deadline: str | None, otherwise: str
) -> dict[str, Any]:
    return {
        "who": who,
        "action": action,
        "on": {"kind": on[0], "id": on[1]},
        "since": since,
        "deadline": deadline,
        "ifNothing": otherwise,
    }


def _agent(agent_id: str) -> dict[str, str]:
    return {"type": "agent", "id": agent_id}


def _mission(view: dict[str, Any], at_time: Instant) -> Iterator[dict[str, Any]]:
    mission = view["mission"]
    on = ("mission", mission["missionId"])
    owner, coordinator = mission["missionOwner"], _agent(mission["coordinator"]["agentId"])
    if mission["state"] == "awaiting_approval":
        since = next((entry["since"] for entry in view["progress"]["approvals"] if "missionId" in entry), None)
        yield _entry(owner, "approve or request changes", on, since, mission["deadline"], "it stays as it is")
        return
    lease = next((each for each in view["leases"] if each["leaseType"] == "coordinator"), None)
    if lease is None or instants.parse(lease["expiresAt"]) <= at_time:
        since = lease["expiresAt"] if lease else None
        yield _entry(owner, "replace the Coordinator", on, since, mission["deadline"], "nobody coordinates the Mission")
    elif view["workItems"] and all(item["state"] in FINISHED for item in view["workItems"]):
        since = max(item.get("updatedAt", item["createdAt"]) for item in view["workItems"])
        yield _entry(coordinator, "submit for approval", on, since, mission["deadline"], "it stays active")


def _work_item(
    view: dict[str, Any], item: dict[str, Any], finished: set[str], at_time: Instant
) -> Iterator[dict[str, Any]]:
    on, since = ("workItem", item["workItemId"]), item.get("updatedAt", item["createdAt"])
    mission = view["mission"]
    coordinator, deadline = _agent(mission["coordinator"]["agentId"]), item["contract"]["deadline"]
    owner = _agent(item["owner"]["agentId"]) if "owner" in item else coordinator
    leases = {
        each["leaseType"]: each["expiresAt"] for each in view["leases"] if each.get("workItemId") == item["workItemId"]
    }
    match item["state"]:
        case "open" if finished >= set(item["contract"]["dependencyWorkItemIds"]):
            yield _entry(coordinator, "offer it", on, since, deadline, "nobody does it")
        case "offered":
            pending = [
                offer
                for offer in item.get("offers", ())
                if offer["status"] == "pending" and instants.parse(offer["expiresAt"]) > at_time
            ]
            for offer in pending:
                who, until = _agent(offer["agentId"]), offer["expiresAt"]
                yield _entry(who, "accept or decline", on, since, until, "the offer expires")
            if not pending:
                yield _entry(coordinator, "offer it again", on, since, deadline, "nobody does it")
        case "queued":
            gate = next(
                (each for each in view["progress"]["approvals"] if each.get("workItemId") == item["workItemId"]), None
            )
            until = item["owner"]["startBy"]
            if gate is not None:
                human = mission["missionOwner"]
                yield _entry(human, "approve its execution", on, gate["since"], until, "its owner may not start it")
            else:
                yield _entry(owner, "start it", on, since, until, "it can be offered to somebody else")
        case "active":
            until = leases.get("execution")
            yield _entry(owner, "submit it", on, since, until, "its lease runs out and it can be offered again")
        case "blocked":
            blocker = next(
                (each for each in view["progress"]["blockers"] if each["workItemId"] == item["workItemId"]), None
            )
            action = f"resolve: {blocker['reason']}" if blocker else "resolve what blocks it"
            until = leases.get("blocked")
            yield _entry(coordinator, action, on, since, until, "its owner loses it")
        case "submitted":
            yield _entry(coordinator, "review it", on, since, deadline, "it stays submitted")
        case "failed":
            yield _entry(coordinator, "offer it again or replace it", on, since, deadline, "the Mission cannot finish")
