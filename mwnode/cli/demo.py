"""`mwnode demo`: see it work, over real processes, sockets and files."""

from __future__ import annotations

import shutil
import signal
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from tempfile import mkdtemp
from types import FrameType

import click
from rich.console import Console

from mwnode.cli.exits import REFUSED
from mwnode.cli.failure import Failure
from mwnode.cli.output import emit
from mwnode.cli.target import Target, at_home
from mwnode.demo.acts.table import ACTS, FAULTS
from mwnode.demo.board import Board
from mwnode.demo.processes import DemoFailure
from mwnode.demo.report import OneDocument
from mwnode.demo.scenario import kept, perform

_INTERRUPTS = (signal.SIGINT, signal.SIGTERM)
WIDTH_IN_A_PIPE = 240
"""Columns where nobody looks: every row of the table stays on one line."""


@click.command()
@click.option("--keep", is_flag=True, help="Keep HOME, the Workers' slots and the processes' logs to look at.")
@click.option("--fault", metavar="NAME", help="Only this fault, with what it needs; `list` names them all.")
@at_home
def demo(target: Target, keep: bool, fault: str | None) -> None:
    """See it work: two software Missions at once, and every fault that they have to survive.

    Makes a new HOME, a temporary one unless --home names it. A temporary one is gone at the end, unless --keep. Exit 0
    only when every check that it names held.
    """
    if fault == "list":
        named = [f"{name:<24} {act.about}" for name, act in FAULTS.items()]
        emit(target.as_json, {"faults": [{"name": act.name, "about": act.about} for act in FAULTS.values()]}, named)
        return
    if fault is not None and fault not in FAULTS:
        raise click.UsageError(f"there is no fault {fault!r}: `mwnode demo --fault list` names them")
    acts = ACTS if fault is None else (FAULTS[fault],)
    temporary = None if target.home_option else Path(mkdtemp(prefix="mwnode-demo-"))
    home = (target.home_option or Path(str(temporary)) / "home").absolute()
    console = Console() if sys.stdout.isatty() else Console(width=WIDTH_IN_A_PIPE)
    report = OneDocument(console) if target.as_json else Board(console)
    staying = keep or temporary is None
    try:
        with _ended_in_order():
            summary = perform(home, report, acts)
    except DemoFailure as error:
        told = f"HOME and logs: {home}" if staying else "with --keep its HOME and logs stay"
        raise Failure(f"{error} ({told})") from error
    finally:
        if not staying:
            shutil.rmtree(str(temporary), ignore_errors=True)
        elif not keep:
            shutil.rmtree(home / "demo" / "workers", ignore_errors=True)
    report.end(kept(summary, home) if staying else summary)
    if not summary.passed:
        sys.exit(REFUSED)


@contextmanager
def _ended_in_order() -> Iterator[None]:
    """SIGTERM ends the demonstration as Ctrl-C does, also where a script had it ignore that: all it started ends first.

    A second one while it ends changes nothing.
    """

    def interrupt(number: int, frame: FrameType | None) -> None:
        for one in _INTERRUPTS:
            signal.signal(one, signal.SIG_IGN)
        raise KeyboardInterrupt

    before = {number: signal.signal(number, interrupt) for number in _INTERRUPTS}
    try:
        yield
    finally:
        for number, handler in before.items():
            signal.signal(number, handler)
