"""Shell: ``mwnode worker`` from its options to its end."""

from __future__ import annotations

import asyncio
import os
from pathlib import Path

import msgspec
from msgspec import Struct

from mwnode.client.running import first_session, stopped_by_signals
from mwnode.trust.keys import SigningKey
from mwnode.worker.errors import WorkerError
from mwnode.worker.executor import ExecutorLimits, SubprocessExecutor
from mwnode.worker.hands import Log
from mwnode.worker.settings import WorkerSettings
from mwnode.worker.worker import Worker

__all__ = ["Worker", "WorkerError", "WorkerOptions", "run_worker"]


class WorkerOptions(Struct, frozen=True, kw_only=True):
    """What ``mwnode worker`` was told. Seconds where a length of time is meant."""

    url: str
    key: SigningKey
    command: str
    ca: Path | None = None
    slots: int | None = None
    """Slots; the Agent Card's ``maxConcurrency`` unless given, and never more."""
    offline_grace: float = 900.0
    directory: Path | None = None
    """Where slots live; a temporary directory unless given."""
    working_directory: Path | None = None
    """What relative paths in the command are relative to; the present one unless given."""
    limits: ExecutorLimits = ExecutorLimits()
    settings: WorkerSettings = WorkerSettings()
    keep_failed: bool = False
    """Keep the directories of failed runs, and say where."""
    patient: bool = True
    """Keep trying when the node cannot be reached at first."""
    log: Log = lambda event, details: None


async def run_worker(options: WorkerOptions, stop: asyncio.Event | None = None) -> None:
    """Work until SIGTERM or SIGINT (or ``stop``); what runs then is brought to a checkpoint first.

    Raises ExecutorError when the command cannot be run, WorkerError, ClientError, or the MissionWeaveError of a refused
    handshake.
    """
    here = options.working_directory or Path.cwd()
    executor = SubprocessExecutor(options.command, directory=here, environment=os.environ, limits=options.limits)
    if options.key.principal.type != "agent":
        raise WorkerError(f"the key is {options.key.principal.type} {options.key.principal.id}: give an Agent's key")
    stop = stop or asyncio.Event()
    with stopped_by_signals(stop):
        client = await first_session(
            options.url, options.key, options.ca, patient=options.patient, log=options.log, stop=stop
        )
        if client is None:
            return
        async with client:
            settings = msgspec.structs.replace(
                options.settings, offline_grace_seconds=options.offline_grace, keep_failed=options.keep_failed
            )
            worker = Worker(
                client,
                executor=executor,
                key=options.key,
                slots=options.slots,
                settings=settings,
                directory=options.directory,
                log=options.log,
            )
            await worker.run(stop)
