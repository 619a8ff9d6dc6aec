"""`mwnode waiting`: who must act next, on what, since when, by when, and what happens otherwise."""

from __future__ import annotations

import textwrap
from collections.abc import Iterator, Sequence
from typing import Any

import click

from mwnode.cli.missions import Names
from mwnode.cli.output import emit, plain_line, table, terminal_width
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
STILL_TO_SAY = {"mission direct": " TEXT", "mission replace-coordinator": " AGENT"}
"""What a command takes besides what it is about."""
HEADS = ("who", "what", "since", "deadline", "if nothing is done", "command")


def _command(entry: dict[str, Any], names: Names) -> str | None:
    """What the human who is awaited may type; none for Agents, whose processes know."""
    verb = VERBS.get(entry["action"].split(" ")[0].rstrip(",:"))
    if verb is None or entry["who"]["type"] != "human":
        return None
    identifier = entry["on"]["id"]
    mission = short_id(names.mission_ids.get(identifier, identifier))
    work = f" {short_id(identifier)}" if verb == "mission permit" else ""
    return f"mwnode {verb} {mission}{work}{STILL_TO_SAY.get(verb, '')}"


def _what(entry: dict[str, Any], names: Names) -> str:
    identifier = entry["on"]["id"]
    name, mission = names.of(identifier), names.missions.get(identifier)
    place = "" if mission is None or mission == name else f" of {mission}"
    return f"{name} ({short_id(identifier)}){place}: {entry['action']}"


def _blocks(rows: Sequence[Sequence[str | None]], width: int) -> Iterator[str]:
    """The rows where a line is too short for them: a block of lines for each, whole words on each line."""
    for number, (who, what, since, deadline, otherwise, command) in enumerate(rows):
        if number:
            yield ""
        yield from textwrap.wrap(f"{who}: {plain_line(what or '')}", width, subsequent_indent="  ")
        when = f"since {since}, until {deadline}; otherwise {otherwise}"
        yield from textwrap.wrap(when, width, initial_indent="  ", subsequent_indent="  ")
        if command is not None:
            yield f"  {command}"  # never broken: it is there to be copied


@click.command()
@click.option("--mine", is_flag=True, help="Only what waits for you.")
@at_node
def waiting(target: Target, mine: bool) -> None:
    """List what waits for whom in your Missions: since when, until when, and what happens if nobody does anything.

    On a terminal that is too narrow for a line each, the entries are told in blocks; in a pipe each is one whole line.
    """
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
        (
            short(entry["who"]["id"]),
            _what(entry, names),
            moment(entry["since"]),
            moment(entry["deadline"]),
            entry["ifNothing"],
            _command(entry, names),
        )
        for entry in entries
    ]
    if not rows:
        emit(False, entries, "Nothing waits for anybody.")
        return
    lines, width = table(HEADS, rows), terminal_width()
    emit(False, entries, lines if width is None or max(map(len, lines)) <= width else _blocks(rows, width))
