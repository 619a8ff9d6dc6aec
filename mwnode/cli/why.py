"""`mwnode why`: the chain of facts that makes a WorkItem or a Mission be where it is."""

from __future__ import annotations

import click

from mwnode.cli.exits import Failure
from mwnode.cli.missions import names_of
from mwnode.cli.output import emit, table
from mwnode.cli.reach import Reach, at, reach
from mwnode.cli.target import Target, at_node


@click.command()
@click.argument("item", metavar="ITEM")
@at_node
def why(target: Target, item: str) -> None:
    """Tell the facts that brought a WorkItem or a Mission to where it is, each with its Event and the rule behind it.

    ITEM is an identifier, an unmistakable part of one, or a WorkItem's name in its plan.
    """
    with reach(target, target.key("owner")) as node:
        facts = node.get(at("why"), on=item if ":" in item else find(node, item))["why"]
    rows = [[fact["sequence"], fact["fact"], fact["rule"]] for fact in facts]
    emit(target.as_json, facts, table(["seq", "fact", "rule"], rows))


def find(node: Reach, item: str) -> str:
    """The identifier that a name or a part of an identifier means; Failure unless it means exactly one."""
    names = names_of(node)
    exact = [identifier for identifier, name in names.items() if name == item]
    matches = exact or [identifier for identifier in names if item in identifier]
    if len(matches) == 1:
        return matches[0]
    if not matches:
        raise Failure(f"nothing of yours is called {item!r}: see `mwnode mission list` and `mwnode mission show ID`")
    raise Failure(f"{item!r} means {len(matches)} things: give the identifier, or more of it")
