"""`mwnode coordinator`: a Coordinator that follows a plan."""

from __future__ import annotations

import asyncio
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import click

from mwnode.cli.exits import Failure
from mwnode.cli.output import log_line
from mwnode.cli.target import Target, at_node
from mwnode.cli.where import address_of
from mwnode.coordinator.plan import PlanError
from mwnode.coordinator.runner import CoordinatorError, CoordinatorOptions, run_coordinator


@click.command()
@click.option("--plan", required=True, type=click.Path(path_type=Path), metavar="PLAN.toml", help="What is to be done.")
@click.option("--mission", metavar="ID", help="Only this Mission, to its end; default: every Mission of the plan.")
@at_node
def coordinator(target: Target, plan: Path, mission: str | None) -> None:
    """Coordinate Missions as the Agent of --key: authorize and offer the plan's work, review results, submit.

    Everything it knows is in the Groups' logs: stopped and started again, it goes on where it was.
    """
    key = target.agent_key()
    url, ca = address_of(target)

    def log(event: str, details: Mapping[str, Any]) -> None:
        log_line(target.as_json, event, details)

    options = CoordinatorOptions(url=url, ca=ca, key=key, plan=plan, mission=mission, log=log)
    try:
        asyncio.run(run_coordinator(options))
    except (PlanError, CoordinatorError) as error:
        raise Failure(str(error)) from error
