"""Workers inside of the serving process: one box, one command, nothing else to start or to stop.

Each has a thread and an event loop of its own and is a client like any other, over the node's own socket: what it may
do is decided where everybody's Commands are decided.
"""

from __future__ import annotations

import asyncio
import logging
import threading
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from msgspec import Struct

from mwnode.cli.failure import Failure
from mwnode.client import ClientError
from mwnode.home import Served
from mwnode.protocol.errors import MissionWeaveError
from mwnode.trust.keys import SigningKey
from mwnode.worker.executor import ExecutorError, command_line
from mwnode.worker.runner import WorkerError, WorkerOptions, run_worker

STOP_SECONDS = 30.0
"""How long stopping Workers may take to bring what runs to a checkpoint."""
_log = logging.getLogger("mwnode.worker")


class Inside(Struct, frozen=True):
    """One Worker to run: its Agent's key and the command that does a WorkItem."""

    key: SigningKey
    command: str


def check(wanted: Sequence[Inside]) -> None:
    """Refuse what cannot work before anything is started: Failure with one line."""
    agents: set[str] = set()
    for one in wanted:
        who = one.key.principal
        if who.type != "agent":
            raise Failure(f"--worker: the key is {who.type} {who.id}'s: give an Agent's key")
        if who.id in agents:
            raise Failure(f"--worker: {who.id} is given twice; one Worker has as many slots as its Agent Card says")
        agents.add(who.id)
        try:
            command_line(one.command, Path.cwd())
        except ExecutorError as error:
            raise Failure(f"--worker: {error}") from error


class Workers:
    """The Workers of one serving process."""

    def __init__(self, wanted: Sequence[Inside], home: Path) -> None:
        self._wanted = wanted
        self._home = home
        self._running: list[_Thread] = []

    def start(self, served: Served) -> None:
        """Start all of them; they connect by themselves. What they keep lies in HOME, so that a restart goes on."""
        for one in self._wanted:
            name = one.key.principal.id.rpartition(":")[2]
            options = WorkerOptions(
                url=served.url.replace("//0.0.0.0:", "//127.0.0.1:").replace("//[::]:", "//[::1]:"),
                key=one.key,
                ca=None if served.ca is None else Path(served.ca),
                command=one.command,
                directory=self._home / "workers" / name,
                log=_Lines(name),
            )
            thread = _Thread(options, name)
            thread.start()
            self._running.append(thread)

    async def stop(self) -> None:
        """Bring what runs to a checkpoint; the node must still be there for that."""
        for thread in self._running:
            thread.stop()
        deadline = asyncio.get_running_loop().time() + STOP_SECONDS
        while any(thread.is_alive() for thread in self._running):
            if asyncio.get_running_loop().time() >= deadline:
                _log.error("a Worker does not stop; its work is taken up at the next start")
                return
            await asyncio.sleep(0.05)


class _Lines:
    """A Worker's log lines, in the node's log."""

    def __init__(self, name: str) -> None:
        self._name = name

    def __call__(self, event: str, details: Mapping[str, Any]) -> None:
        told = " ".join(f"{name}={value}" for name, value in details.items())
        _log.info("%s: %s %s", self._name, event, told)


class _Thread(threading.Thread):
    """One Worker's thread. It ends with the process: what a Worker knows is kept, and found again."""

    def __init__(self, options: WorkerOptions, name: str) -> None:
        super().__init__(name=f"mwnode worker {name}", daemon=True)
        self._options = options
        self._worker_name = name
        self._ready = threading.Event()
        self._loop: asyncio.AbstractEventLoop | None = None
        self._asked: asyncio.Event | None = None

    def run(self) -> None:
        try:
            asyncio.run(self._work())
        except (ExecutorError, WorkerError, ClientError, MissionWeaveError) as error:
            _log.error("%s ended: %s", self._worker_name, error)
        except Exception:
            _log.exception("%s ended", self._worker_name)
        finally:
            self._ready.set()

    async def _work(self) -> None:
        self._loop, self._asked = asyncio.get_running_loop(), asyncio.Event()
        self._ready.set()
        await run_worker(self._options, self._asked)

    def stop(self) -> None:
        """Ask it to stop. Idempotent; nothing happens to one that has ended."""
        self._ready.wait()
        if self._loop is not None and self._asked is not None and self.is_alive():
            try:
                self._loop.call_soon_threadsafe(self._asked.set)
            except RuntimeError:
                return  # its loop closed just now
