"""`mwnode why`: the chain of facts that makes a WorkItem or a Mission be where it is."""

from __future__ import annotations

import click

from mwnode.cli.missions import Names
from mwnode.cli.naming import pick
from mwnode.cli.output import emit, table
from mwnode.cli.reach import Reach, at, found, reach
from mwnode.cli.target import Target, at_node


@click.command()
@click.argument("item", metavar="ITEM")
@at_node
def why(target: Target, item: str) -> None:
    """Tell the facts that brought a WorkItem or a Mission to where it is, each with its Event and the rule behind it.

    ITEM is an identifier, an unmistakable part of one, or a WorkItem's name in its plan.
    """
    with reach(target, target.key("owner")) as node:
        facts = node.get(at("why"), on=find(node, item))["why"]
    rows = [[fact["sequence"], fact["rule"], fact["fact"]] for fact in facts]
    emit(target.as_json, facts, table(["seq", "rule", "fact"], rows))


def find(node: Reach, item: str) -> str:
    """The identifier that a name or a part of an identifier means; Failure unless it means exactly one."""
    if item.startswith("urn:") and found(node, at("why"), on=item) is not None:
        return item
    return pick("WorkItem or Mission", item, Names(node).candidates, "mwnode mission show ID")
