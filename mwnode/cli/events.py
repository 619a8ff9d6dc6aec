"""`mwnode events`: a Group's log."""

from __future__ import annotations

import click

from mwnode.cli.failure import Failure
from mwnode.cli.follow import follow
from mwnode.cli.missions import events_of, find_mission
from mwnode.cli.output import line, plain_line
from mwnode.cli.reach import reach
from mwnode.cli.target import Target, at_node
from mwnode.cli.where import is_served, nobody_serves
from mwnode.narrative import Narrator


@click.command()
@click.argument("group", metavar="GROUP")
@click.option(
    "--after", type=click.IntRange(min=0), default=0, show_default=True, help="Only Events above this sequence."
)
@click.option("--follow", "following", is_flag=True, help="Go on with new Events as they come.")
@at_node
def events(target: Target, group: str, after: int, following: bool) -> None:
    """Print a Group's Events, with --json one signed Event a line. GROUP may be a Mission too, or a part of either."""
    narrator = Narrator()
    if following and not is_served(target):
        raise Failure(f"nothing new can come, for {nobody_serves(target)}; without --follow you see what is there")
    with reach(target, target.key("owner")) as node:
        group_id = find_mission(node, group)["mission"]["groupId"]
        source = follow(node, group_id, after=after) if following else events_of(node, group_id, after)
        for event in source:
            line(event) if target.as_json else click.echo(plain_line(narrator.tell(event)))
