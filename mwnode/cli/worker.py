"""`mwnode worker`: any program as a Worker."""

from __future__ import annotations

import asyncio
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import click

from mwnode.cli.failure import Failure
from mwnode.cli.output import log_line
from mwnode.cli.target import Target, at_node
from mwnode.cli.where import address_of
from mwnode.worker.executor import ExecutorError
from mwnode.worker.runner import WorkerError, WorkerOptions, run_worker


@click.command()
@click.option("--exec", "command", required=True, metavar="CMD", help="The program that does a WorkItem.")
@click.option(
    "--slots", type=click.IntRange(min=1), metavar="N", help="WorkItems at a time; default: the Agent Card's."
)
@click.option(
    "--offline-grace",
    type=click.FloatRange(min=0),
    default=900.0,
    show_default=True,
    metavar="S",
    help="Seconds that reversible work goes on without a connection.",
)
@click.option(
    "--directory",
    type=click.Path(file_okay=False, path_type=Path),
    metavar="DIR",
    help="Where the slots are; default: a temporary directory.",
)
@click.option("--keep-failed", is_flag=True, help="Keep the directories of failed runs, and say where.")
@at_node
def worker(
    target: Target,
    command: str,
    slots: int | None,
    offline_grace: float,
    directory: Path | None,
    keep_failed: bool,
) -> None:
    """Take WorkItems as the Agent of --key, and have CMD do them, each in a directory of its own.

    CMD reads the contract from the file named by $MWNODE_WORK_ITEM and its inputs under inputs/, leaves deliverables in
    outputs/, may append JSON lines to the file named by $MWNODE_PROGRESS, and exits 0 when done, 75 to be tried again,
    anything else when it failed. SIGTERM asks it for a checkpoint.
    """
    key = target.agent_key()
    url, ca = address_of(target)

    def log(event: str, details: Mapping[str, Any]) -> None:
        log_line(target.as_json, event, details)

    options = WorkerOptions(
        url=url,
        ca=ca,
        key=key,
        command=command,
        slots=slots,
        offline_grace=offline_grace,
        directory=directory,
        keep_failed=keep_failed,
        log=log,
    )
    try:
        asyncio.run(run_worker(options))
    except (ExecutorError, WorkerError) as error:
        raise Failure(str(error)) from error
