"""`mwnode waiting`: who must act next, on what, since when, by when, and what happens otherwise."""

from __future__ import annotations

from typing import Any

import click

from mwnode.cli.missions import Names
from mwnode.cli.output import emit, table
from mwnode.cli.reach import at, reach
from mwnode.cli.target import Target, at_node
from mwnode.narrative import moment, short, short_id
from mwnode.protocol.commands import CORE

VERBS = {
    "mission.approve": "mission approve",
    f"{CORE}.root_approval_grant": "mission approve",
    "approval.grant_execution": "mission permit",
    "mission.assign_coordinator": "mission replace-coordinator",
    "message.post": "mission direct",
}
"""By which command of ours a human does what a wait is for."""


def _how(entry: dict[str, Any]) -> str:
    """What the human who is awaited may type; empty for Agents, who know."""
    verb = VERBS.get(entry["action"].split(" ")[0].rstrip(",:"))
    return f"mwnode {verb}" if verb is not None and entry["who"]["type"] == "human" else ""


@click.command()
@click.option("--mine", is_flag=True, help="Only what waits for you.")
@at_node
def waiting(target: Target, mine: bool) -> None:
    """List what waits for whom in your Missions: since when, until when, and what happens if nobody does anything."""
    key = target.key("owner")
    with reach(target, key) as node:
        entries = node.get(at("waiting"))["waiting"]
        names = None if target.as_json else Names(node)
    if mine:
        entries = [entry for entry in entries if entry["who"]["id"] == key.principal.id]
    if names is None:
        emit(True, entries, "")
        return
    rows = [
        [
            short(entry["who"]["id"]),
            names.of(entry["on"]["id"]),
            names.missions.get(entry["on"]["id"]),
            short_id(entry["on"]["id"]),
            moment(entry["since"]),
            moment(entry["deadline"]),
            entry["action"],
            _how(entry),
            entry["ifNothing"],
        ]
        for entry in entries
    ]
    heads = ["who", "on", "mission", "id", "since", "deadline", "action", "by", "if nothing is done"]
    emit(False, entries, table(heads, rows) if rows else "Nothing waits for anybody.")
