"""`mwnode why`: the chain of facts that makes a WorkItem or a Mission be where it is."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

import click

from mwnode.cli.exits import Failure
from mwnode.cli.missions import events_of, missions
from mwnode.cli.output import emit, table
from mwnode.cli.reach import Reach, at, reach
from mwnode.cli.target import Target, at_node
from mwnode.narrative import short, work_item_name, work_item_of
from mwnode.protocol.commands import CORE, EXT

RULES = {
    "mission.created": "R-15.2-05",
    "mission.coordinator.assigned": "R-15.2-06",
    "mission.coordinator.renewed": "R-15.2-07",
    "mission.submitted_for_approval": "R-15.2-08",
    "mission.approved": "R-15.2-09",
    "mission.changes_requested": "R-15.2-10",
    "mission.cancelled": "R-15.2-11",
    "mission.terminated": "R-15.2-12",
    "mission.child.created": "R-15.2-13",
    "mission.follow_up.created": "R-15.2-14",
    "work.proposed": "R-15.2-22",
    "work.authorized": "R-10.2-03",
    "work.contract.revised": "R-10.1-22",
    "work.offer.created": "R-10.2-05",
    "work.offer.accepted": "R-10.2-09",
    "work.started": "R-10.2-15",
    "work.progressed": "R-15.2-28",
    "work.checkpointed": "R-10.2-17",
    "work.blocked": "R-10.2-19",
    "work.unblocked": "R-10.2-21",
    "work.submitted": "R-10.2-23",
    "work.result.accepted": "R-10.2-25",
    "work.failed": "R-10.2-27",
    "work.cancelled": "R-10.2-29",
    "artifact.published": "R-15.2-36",
    "approval.execution.granted": "R-10.2-13",
    f"{EXT}.core.work_execution_lease_revoked": "R-11.3-17",
    f"{CORE}.lease_expired": "R-11.3-16",
    f"{CORE}.offer_declined": "R-10.3-09",
}
"""The rule behind each kind of Event that can move a WorkItem or a Mission, or that explains why it does not move."""
ROUTINE = frozenset({"mission.coordinator.renewed", "work.progressed"})
"""Renewals: facts, but of no help to somebody who asks why."""


@click.command()
@click.argument("item", metavar="ITEM")
@at_node
def why(target: Target, item: str) -> None:
    """Tell the facts that brought a WorkItem or a Mission to where it is, each with its Event and the rule behind it.

    ITEM is an identifier, an unmistakable part of one, or a WorkItem's name in its plan.
    """
    with reach(target, target.key("owner")) as node:
        view, work_item = find(node, item)
        facts = chain(view, work_item, events_of(node, view["mission"]["groupId"]))
    rows = [[fact["sequence"], fact["fact"], fact["rule"]] for fact in facts]
    emit(target.as_json, facts, table(["seq", "fact", "rule"], rows))


def find(node: Reach, item: str) -> tuple[dict[str, Any], dict[str, Any] | None]:
    """The Mission, and the WorkItem if it is one, that a name means; Failure unless it means exactly one."""
    exact: list[tuple[dict[str, Any], dict[str, Any] | None]] = []
    partial: list[tuple[dict[str, Any], dict[str, Any] | None]] = []
    for listed in missions(node):
        view = node.get(at("missions", listed["missionId"]))
        candidates: list[dict[str, Any] | None] = [None, *view["workItems"]]
        for candidate in candidates:
            identifier = candidate["workItemId"] if candidate else listed["missionId"]
            name = work_item_name(candidate) if candidate else ""
            if item in {identifier, name}:
                exact.append((view, candidate))
            elif item in identifier:
                partial.append((view, candidate))
    matches = exact or partial
    if len(matches) == 1:
        return matches[0]
    if not matches:
        raise Failure(f"nothing of yours is called {item!r}: see `mwnode mission list` and `mwnode mission show ID`")
    raise Failure(f"{item!r} means {len(matches)} things: give more of the identifier")


def chain(
    view: dict[str, Any], work_item: dict[str, Any] | None, events: Iterable[dict[str, Any]]
) -> list[dict[str, Any]]:
    """The facts about a Mission, or about one WorkItem of it, in the order in which they came to be."""
    item_id = work_item["workItemId"] if work_item else None
    facts = []
    states: dict[str, tuple[str, dict[str, Any]]] = {}
    for event in events:
        about = work_item_of(event)
        if about is not None and "state" in event["payload"]:
            states[about] = (event["payload"]["state"], event)
        relevant = about == item_id if item_id else event["kind"].startswith("mission.")
        rule = RULES.get(event["kind"])
        if relevant and rule is not None and event["kind"] not in ROUTINE:
            facts.append(_fact(_tell(event), event, rule))
    if work_item is not None and work_item["state"] == "open":
        names = {item["workItemId"]: work_item_name(item) for item in view["workItems"]}
        for dependency in work_item["contract"]["dependencyWorkItemIds"]:
            known = states.get(dependency)
            if known is not None and known[0] != "verified":
                state, event = known
                facts.append(
                    _fact(f"waits for {names.get(dependency, dependency)}, which is {state}", event, "R-10.4-03")
                )
    return facts


def _fact(text: str, event: dict[str, Any], rule: str) -> dict[str, Any]:
    return {"fact": text, "eventId": event["eventId"], "sequence": event["sequence"], "rule": rule}


def _tell(event: dict[str, Any]) -> str:
    payload = event["payload"]
    who, what = short(event["actor"]["id"]), event["kind"].removeprefix(f"{CORE}.").removeprefix(f"{EXT}.core.")
    because = payload.get("reason") or payload.get("feedback") or payload.get("resolution")
    told = f"{what} by {who}" if event["cause"]["type"] == "command" else f"{what}, by {event['cause']['type']}"
    state = f", now {payload['state']}" if "state" in payload else ""
    return f"{told}{state}{f': {because}' if because else ''}"
