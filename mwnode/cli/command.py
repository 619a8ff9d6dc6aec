"""`mwnode command`: Commands made by hand: drafted here, signed by `mwnode sign`, sent here."""

from __future__ import annotations

import sys
from pathlib import Path
from typing import Any

import click
import msgspec

from mwnode.cli.compose import new_id, principal
from mwnode.cli.draft import draft_payload
from mwnode.cli.exits import Failure
from mwnode.cli.explain import refused
from mwnode.cli.missions import find_mission, membership_epoch
from mwnode.cli.output import emit
from mwnode.cli.reach import reach
from mwnode.cli.target import Target, at_node
from mwnode.narrative import Narrator
from mwnode.protocol.commands import PAYLOADS
from mwnode.protocol.errors import MissionWeaveError
from mwnode.protocol.identifiers import mission_conversation_id

INVENTED = {"messageId", "amendmentId", "proposalId", "approvalId"}
"""Identifiers that the sender makes up."""


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
    emit(target.as_json, answer, [narrator.tell(event) for event in answer["events"]])


@command.command()
@click.argument("kind", type=click.Choice(sorted(PAYLOADS)), metavar="KIND")
@click.option("--mission", metavar="ID", help="The Mission whose Group it is about: fills in groupId and your epoch.")
@at_node
def draft(target: Target, kind: str, mission: str | None) -> None:
    """Print the draft of a Command of KIND, ready to be filled in: what stands in <angle brackets> is yours to say.

    Members that may be left out are not in it: `mwnode schema DIR` writes the schema that names them all. Then
    `mwnode sign command DRAFT.json --key FILE -o COMMAND.json` and `mwnode command send COMMAND.json`.
    """
    key = target.key("owner")
    payload = draft_payload(PAYLOADS[kind])
    payload |= {name: new_id() for name in INVENTED & payload.keys()}
    document: dict[str, Any] = {
        "protocolVersion": "0.1",
        "actionId": new_id(),
        "actor": principal(key),
        "kind": kind,
        "correlationId": new_id(),
        "payload": payload,
    }
    if mission is not None:
        with reach(target, key) as node:
            view = find_mission(node, mission)
        document["groupId"] = view["mission"]["groupId"]
        if kind == "message.post":
            payload["conversationId"] = mission_conversation_id(document["groupId"])
        if key.principal.type != "service":
            document["membershipEpoch"] = membership_epoch(view, key)
        if kind.startswith("mission."):
            document["expectedRevision"] = view["mission"]["revision"]
    click.echo(msgspec.json.format(msgspec.json.encode(document), indent=2).decode())
