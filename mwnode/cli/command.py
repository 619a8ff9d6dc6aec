"""`mwnode command send`: one signed Command, made elsewhere."""

from __future__ import annotations

import sys
from pathlib import Path

import click

from mwnode.cli.output import emit
from mwnode.cli.reach import reach
from mwnode.cli.target import Target, at_node
from mwnode.narrative import Narrator


@click.group()
def command() -> None:
    """Send Commands by hand."""


@command.command()
@click.argument("file", metavar="FILE|-")
@at_node
def send(target: Target, file: str) -> None:
    """Send one signed Command document exactly as it is; prints its Events, receipt first, or the error."""
    raw = sys.stdin.buffer.read() if file == "-" else Path(file).read_bytes()
    with reach(target, target.key("owner")) as node:
        answer = node.command(raw)
    narrator = Narrator()
    emit(target.as_json, answer, [narrator.tell(event) for event in answer["events"]])
