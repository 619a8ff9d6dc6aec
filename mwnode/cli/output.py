"""Printing: JSON for scripts, plain aligned text for people."""

from __future__ import annotations

import shutil
import sys
from collections.abc import Iterable, Mapping, Sequence
from typing import Any

import click
import msgspec


def emit(as_json: bool, document: Any, text: str | Iterable[str]) -> None:
    """Print one result: the document with --json, else the text or its lines."""
    if as_json:
        line(document)
        return
    for part in [text] if isinstance(text, str) else text:
        click.echo(part)


def line(document: Any) -> None:
    """Print one JSON document on a line of its own, at once, so that a reading program never waits for a buffer."""
    click.echo(msgspec.json.encode(document).decode())


LINES = "lastLines"
"""The detail of an event that holds somebody else's lines."""


def log_line(as_json: bool, event: str, details: Mapping[str, Any]) -> None:
    """Tell what a lasting process does, on stderr: one line an event, JSON with --json."""
    if as_json:
        text = msgspec.json.encode({"event": event, **details}).decode()
    else:
        told = {name: value for name, value in details.items() if name != LINES}
        text = f"{event}  {'  '.join(f'{name}={value}' for name, value in told.items())}".rstrip()
        # Somebody else's words stand below, each line marked: they are not ours.
        text = "\n".join((text, *(f"    | {plain_line(one)}" for one in details.get(LINES, ()))))
    click.echo(text, err=True)


def plain_line(text: str) -> str:
    """A line that somebody else wrote, without whatever would move the cursor or colour the terminal."""
    return "".join(character if character.isprintable() else " " for character in text)


def terminal_width() -> int | None:
    """The columns of the terminal that standard output is; None in a pipe or file, where lines may be of any length."""
    return shutil.get_terminal_size().columns if sys.stdout.isatty() else None


def table(heads: Sequence[str], rows: Sequence[Sequence[Any]]) -> list[str]:
    """Rows in aligned columns under their heads; just the heads when there are none."""
    cells = [list(heads), *([_cell(value) for value in row] for row in rows)]
    widths = [max(len(row[column]) for row in cells) for column in range(len(heads))]
    return ["  ".join(text.ljust(width) for text, width in zip(row, widths, strict=True)).rstrip() for row in cells]


def facts(values: Mapping[str, Any]) -> list[str]:
    """One `name: value` a line, the values aligned."""
    width = max(map(len, values), default=0) + 1
    return [f"{name + ':':<{width}} {_cell(value)}" for name, value in values.items()]


def _cell(value: Any) -> str:
    if value is None:
        return "-"
    if isinstance(value, (list, tuple)):
        return plain_line(" ".join(map(str, value))) or "-"
    return plain_line(str(value))
