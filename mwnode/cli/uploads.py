"""`mwnode artifact uploads`: what one put and nothing has published yet."""

from __future__ import annotations

import click

from mwnode.cli.output import emit, table
from mwnode.cli.reach import at, reach
from mwnode.cli.target import Target, at_node
from mwnode.narrative import moment

NEXT = (
    "It stays for as long as something names it: give its hash in `inputs` of a plan, in a Command or in a document. "
    "`mwnode artifact uploads` lists what you put and until when the rest stays."
)
"""What to do with the hash of an upload."""


@click.command()
@at_node
def uploads(target: Target) -> None:
    """List what you put and no Mission has published yet, newest first, and until when it stays.

    Whatever a Command, an Event or a document names stays after that time too.
    """
    with reach(target, target.key("owner")) as node:
        listed = node.get(at("uploads"))
    rows = [
        [one["contentHash"], one["sizeBytes"], moment(one["storedAt"]), moment(one["removedAfter"])]
        for one in listed["uploads"]
    ]
    heads = ["contentHash", "sizeBytes", "put", "unless named, removed after"]
    emit(target.as_json, listed, table(heads, rows) if rows else "You put nothing that is not published.")
