"""`mwnode coordinator`: a Coordinator that follows plans."""

from __future__ import annotations

import asyncio
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import click

from mwnode.cli.failure import Failure
from mwnode.cli.output import log_line
from mwnode.cli.plans import read_plan
from mwnode.cli.target import Target, at_node
from mwnode.cli.where import address_of
from mwnode.coordinator.runner import CoordinatorError, CoordinatorOptions, run_coordinator


@click.command()
@click.option(
    "--plan",
    "plans",
    required=True,
    multiple=True,
    type=click.Path(path_type=Path),
    metavar="PLAN.toml",
    help="What is to be done; may be given more than once.",
)
@click.option("--mission", metavar="ID", help="Only this Mission, to its end; default: every Mission of the plans.")
@at_node
def coordinator(target: Target, plans: tuple[Path, ...], mission: str | None) -> None:
    """Coordinate Missions as the Agent of --key: authorize and offer the plan's work, review results, submit.

    Everything it knows is in the Groups' logs: stopped and started again, it goes on where it was.
    """
    read = tuple(read_plan(plan) for plan in plans)
    key = target.agent_key()
    url, ca = address_of(target)

    def log(event: str, details: Mapping[str, Any]) -> None:
        log_line(target.as_json, event, details)

    options = CoordinatorOptions(url=url, ca=ca, key=key, plans=read, mission=mission, log=log)
    try:
        asyncio.run(run_coordinator(options))
    except CoordinatorError as error:
        raise Failure(str(error)) from error
