"""`mwnode command`: Commands made by hand: drafted here, signed by `mwnode sign`, sent here."""

from __future__ import annotations

import sys
from pathlib import Path

import click
import msgspec

from mwnode.cli.compose import new_id, principal
from mwnode.cli.deciding import find_work
from mwnode.cli.draft import GROUP_KINDS, ITEM_KINDS, NEW_MISSIONS, About, draft_command
from mwnode.cli.explain import refused
from mwnode.cli.failure import Failure
from mwnode.cli.missions import find_mission, membership_epoch
from mwnode.cli.output import emit, plain_line
from mwnode.cli.reach import reach
from mwnode.cli.target import Target, at_node
from mwnode.narrative import Narrator
from mwnode.protocol.commands import PAYLOADS
from mwnode.protocol.errors import MissionWeaveError


@click.group()
def command() -> None:
    """Draft and send Commands by hand."""


@command.command()
@click.argument("file", metavar="FILE|-")
@at_node
def send(target: Target, file: str) -> None:
    """Send one signed Command document exactly as it is; prints its Events, receipt first, or the error."""
    raw = sys.stdin.buffer.read() if file == "-" else Path(file).read_bytes()
    if not raw.strip():
        raise Failure(f"{file} is empty: `mwnode sign command DRAFT.json --key FILE -o COMMAND.json` writes one")
    with reach(target, target.key("owner")) as node:
        try:
            answer = node.command(raw)
        except MissionWeaveError as error:
            raise Failure(refused(error, by_hand=True)) from error
    narrator = Narrator()
    emit(target.as_json, answer, [plain_line(narrator.tell(event)) for event in answer["events"]])


@command.command()
@click.argument("kind", type=click.Choice(sorted(PAYLOADS)), metavar="KIND")
@click.option("--mission", metavar="ID", help="The Mission that it is about: its identifiers and revision, your epoch.")
@click.option("--work", metavar="WORK", help="With --mission: the WorkItem, its revision, its owner's epoch and lease.")
@at_node
def draft(target: Target, kind: str, mission: str | None, work: str | None) -> None:
    """Print the draft of a Command of KIND, ready to be filled in: what stands in <angle brackets> is yours to say.

    Members that may be left out are not in it: `mwnode schema DIR` writes the schema that names them all. Then
    `mwnode sign command DRAFT.json --key FILE -o COMMAND.json` and `mwnode command send COMMAND.json`.
    """
    if mission is None and work is not None:
        raise click.UsageError("--work is looked for in a Mission: give --mission ID too")
    if mission is not None and kind not in GROUP_KINDS | NEW_MISSIONS:
        raise click.UsageError(f"{kind} is about the Organization, not about a Mission: leave --mission out")
    key = target.key("owner")
    about = None
    if mission is not None:
        with reach(target, key) as node:
            view = find_mission(node, mission)
        item = find_work(view, work) if work is not None else None
        about = About(view, item, None if key.principal.type == "service" else membership_epoch(view, key))
    document = draft_command(kind, principal(key), new_id, about)
    click.echo(msgspec.json.format(msgspec.json.encode(document), indent=2).decode())
    note = _missing(kind, mission, work)
    if note:
        click.echo(f"mwnode: note: {note}", err=True)


def _missing(kind: str, mission: str | None, work: str | None) -> str:
    """Which option would have filled in more."""
    if mission is None and kind in GROUP_KINDS:
        more = " and --work WORK" if kind in ITEM_KINDS else ""
        return f"{kind} is about a Mission: --mission ID{more} would fill in what is known of it"
    if work is None and kind in ITEM_KINDS:
        return f"{kind} is about a WorkItem: --work WORK would fill in what is known of it"
    return ""
