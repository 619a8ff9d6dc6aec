"""Plans at the command line: all mistakes of one at once."""

from __future__ import annotations

from pathlib import Path

import click

from mwnode.cli.failure import Failure
from mwnode.coordinator.plan import Plan, PlanError, load_plan


def read_plan(path: Path) -> Plan:
    """A checked plan; Failure with file, line and key where it is wrong, a line for each mistake."""
    try:
        return load_plan(path)
    except PlanError as error:
        *others, last = error.all
        for other in others:
            click.echo(f"mwnode: {other}", err=True)
        raise Failure(str(last)) from error
