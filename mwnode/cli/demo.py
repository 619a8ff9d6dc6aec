"""`mwnode demo`: see it work, over real processes, sockets and files."""

from __future__ import annotations

import shutil
import sys
from pathlib import Path
from tempfile import mkdtemp

import click
from rich.console import Console

from mwnode.cli.exits import REFUSED, Failure
from mwnode.cli.target import Target, at_home
from mwnode.demo.processes import DemoFailure
from mwnode.demo.report import Board, JsonLines
from mwnode.demo.scenario import Scenario


@click.command()
@click.option("--keep", is_flag=True, help="Keep the Workers' slots as well as HOME and the processes' logs.")
@at_home
def demo(target: Target, keep: bool) -> None:
    """See it work: a small release from order to Approval, and a node killed in the middle of a second Mission.

    Makes a new HOME, a temporary one unless --home names it, and leaves it for you to look at. Exit 0 only when every
    check that it names held.
    """
    home = target.home_option or Path(mkdtemp(prefix="mwnode-demo-")) / "home"
    console = Console()
    scenario = Scenario(home, JsonLines(console) if target.as_json else Board(console))
    try:
        summary = scenario.run()
    except DemoFailure as error:
        raise Failure(f"{error} (HOME and logs: {home})") from error
    if not keep:
        for name in scenario.slots:
            shutil.rmtree(name, ignore_errors=True)
    scenario.report.end(summary)
    if not summary.passed:
        sys.exit(REFUSED)
