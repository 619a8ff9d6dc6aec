"""`mwnode verify`, `backup` and `compact`: the file itself."""

from __future__ import annotations

import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path

import click
from rich.console import Console
from rich.progress import Progress, TaskID

from mwnode.cli.exits import REFUSED
from mwnode.cli.output import emit, facts
from mwnode.cli.target import Target, at_home
from mwnode.store import carry
from mwnode.store.verify import verify as verify_store


@click.command()
@at_home
def verify(target: Target) -> None:
    """Prove HOME's file again: every signature, hash, sequence, chain value, index, Artifact and row.

    Exit 1 when anything is not as it must be; each finding names its place. The file may be in use by its node.
    """
    with _progress() as progress:
        report = verify_store(target.home.store_path, progress=progress)
    lines = [f"{finding.kind}: {finding.where}: {finding.detail}" for finding in report.findings]
    counted = f"{report.groups} Groups, {report.events} Events, {report.artifacts} Artifacts"
    emit(target.as_json, report, [*lines, f"{'all good' if report.ok else f'{len(lines)} findings'}: {counted}"])
    if not report.ok:
        sys.exit(REFUSED)


@click.command()
@click.argument("file", type=click.Path(dir_okay=False, path_type=Path))
@click.option("--compact", is_flag=True, help="Leave free pages out.")
@at_home
def backup(target: Target, file: Path, compact: bool) -> None:
    """Copy HOME's file to FILE, as of one moment, also while a node serves it.

    The copy is a store of its own: put it in the place of node.mdb to restore it. Keys are not in it; copy keys/ too.
    """
    made = carry.backup(target.home.store_path, file.absolute(), compact=compact)
    document = {"file": str(made.path), "bytes": made.bytes, "groups": made.groups, "events": made.events}
    emit(target.as_json, document, facts(document))


@click.command()
@at_home
def compact(target: Target) -> None:
    """Rewrite HOME's file without its free pages; refused while a node serves it."""
    before, after = carry.compact(target.home.store_path)
    document = {"bytesBefore": before, "bytesAfter": after}
    emit(target.as_json, document, facts(document))


@contextmanager
def _progress() -> Iterator[Callable[[str, int, int], None]]:
    """A bar for each thing that is worked through, on a terminal; nothing in a pipe."""
    console = Console(stderr=True)
    with Progress(console=console, transient=True, disable=not console.is_terminal) as bars:
        tasks: dict[str, TaskID] = {}

        def show(what: str, done: int, total: int) -> None:
            if what not in tasks:
                tasks[what] = bars.add_task(what, total=total)
            bars.update(tasks[what], completed=done, total=total)

        yield show
