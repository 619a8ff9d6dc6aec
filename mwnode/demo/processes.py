"""The demonstration's processes: every actor is a `mwnode` command of its own, as it would be in earnest."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager, suppress
from pathlib import Path
from types import TracebackType
from typing import Any

import msgspec
from msgspec import Struct

PATIENCE_SECONDS = 300.0
"""Longest wait for anything that is to come about, on however slow a machine; usually it is a few seconds."""
STOP_SECONDS = 60.0
TELL_SECONDS = 10
"""Between one word about what is still waited for and the next."""
PAUSE_SECONDS = 0.1
_COMMAND = (sys.executable, "-m", "mwnode")
_OWN_VARIABLES = ("MWNODE_HOME", "MWNODE_PASSPHRASE_FILE")


class DemoFailure(Exception):
    """The demonstration cannot go on; the text says why, in one line."""


class GaveUp(DemoFailure):
    """Something did not happen in time."""


def _environment() -> dict[str, str]:
    """This process's environment less what would point the commands at another HOME."""
    return {name: value for name, value in os.environ.items() if name not in _OWN_VARIABLES}


@contextmanager
def _uninterrupted() -> Iterator[None]:
    """Let SIGINT and SIGTERM wait: whoever is being started must be known by then, or nobody would end it.

    Only the main thread is ever interrupted.
    """
    if threading.current_thread() is not threading.main_thread():
        yield
        return
    waiting: list[int] = []
    before = {
        number: signal.signal(number, lambda number, frame: waiting.append(number))
        for number in (signal.SIGINT, signal.SIGTERM)
    }
    try:
        yield
    finally:
        for number, handler in before.items():
            signal.signal(number, handler)
        for late in waiting:
            signal.raise_signal(late)


class Listening(Struct, frozen=True):
    """The line that a node prints when it is ready."""

    event: str
    url: str
    http: str
    ca: str | None
    pid: int


def run(*arguments: str) -> Any:
    """Run one command with --json to its end; what it printed. DemoFailure with its own words when it fails."""
    done = subprocess.run(
        [*_COMMAND, *arguments, "--json"],
        env=_environment(),
        stdin=subprocess.DEVNULL,
        capture_output=True,
        text=True,
        timeout=PATIENCE_SECONDS,
        check=False,
    )
    if done.returncode != 0:
        told = done.stderr.strip().splitlines() or ["it said nothing"]
        raise DemoFailure(f"`mwnode {' '.join(arguments[:2])}` failed: {told[-1]}")
    return msgspec.json.decode(done.stdout)


class Processes:
    """Every process that was started; each writes its own log, and all end with the context."""

    def __init__(self, logs: Path) -> None:
        self._logs = logs
        self._running: dict[str, subprocess.Popen[bytes]] = {}

    def __enter__(self) -> Processes:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, value: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.end()

    def end(self) -> None:
        """End everything, Agents first: they say good-bye to a node that still listens."""
        for name in sorted(self._running, key=lambda name: name == "node"):
            self.stop(name)

    def start(self, name: str, *arguments: str, module: str = "mwnode") -> subprocess.Popen[bytes]:
        """Start a command; its stdout and stderr go to `logs/NAME.log`."""
        self._logs.mkdir(parents=True, exist_ok=True)
        with (self._logs / f"{name}.log").open("ab") as log, _uninterrupted():
            process = self._running[name] = subprocess.Popen(
                [sys.executable, "-m", module, *arguments],
                env=_environment(),
                stdout=log,
                stderr=log,
                stdin=subprocess.DEVNULL,
                start_new_session=True,  # Ctrl-C is for the demonstration, which ends the others in order
            )
        return process

    @property
    def names(self) -> tuple[str, ...]:
        """What runs, as far as nobody ended it."""
        return tuple(self._running)

    def pid(self, name: str) -> int:
        """The process ID of what runs under a name."""
        return self._running[name].pid

    def serve(self, home: Path) -> Listening:
        """Start the node and wait until it listens."""
        self._logs.mkdir(parents=True, exist_ok=True)
        with (self._logs / "node.log").open("ab") as log, _uninterrupted():
            process = self._running["node"] = subprocess.Popen(
                [*_COMMAND, "serve", "--home", str(home), "--port", "0", "--json"],
                env=_environment(),
                stdout=subprocess.PIPE,
                stderr=log,
                stdin=subprocess.DEVNULL,
                start_new_session=True,
            )
        stdout = process.stdout
        assert stdout is not None, "its stdout is a pipe"
        with stdout:
            line = stdout.readline()
        if not line:
            raise DemoFailure(f"the node did not start: {self.last_words('node')}")
        return msgspec.json.decode(line, type=Listening)

    def kill(self, name: str) -> None:
        """End a process and all that it started by SIGKILL, as a power cut would, and see it dead."""
        process = self._running.pop(name)
        started = _descendants(process.pid)
        process.send_signal(signal.SIGKILL)
        for pid in started:
            with suppress(ProcessLookupError):
                os.kill(pid, signal.SIGKILL)
        if process.wait(STOP_SECONDS) != -signal.SIGKILL:
            raise DemoFailure(f"{name} ended by itself before it could be killed: {self.last_words(name)}")

    def stop(self, name: str) -> None:
        """Ask a process to end, and end it if it does not."""
        process = self._running.pop(name)
        if process.poll() is None:
            process.terminate()
        try:
            process.wait(STOP_SECONDS)
        except subprocess.TimeoutExpired:
            process.kill()
            process.wait(STOP_SECONDS)

    def alive(self, name: str) -> bool:
        """Whether a process runs."""
        return name in self._running and self._running[name].poll() is None

    def check_alive(self, names: Sequence[str]) -> None:
        """DemoFailure when one of these processes has ended."""
        for name in names:
            process = self._running[name]
            if process.poll() is not None:
                raise DemoFailure(f"{name} ended with status {process.returncode}: {self.last_words(name)}")

    def tail(self, name: str, lines: int = 10) -> list[str]:
        """The last lines of a process's log, if it has one."""
        path = self._logs / f"{name}.log"
        return path.read_text(encoding="utf-8", errors="replace").splitlines()[-lines:] if path.exists() else []

    def last_words(self, name: str) -> str:
        """The end of a process's log."""
        lines = (self._logs / f"{name}.log").read_text(encoding="utf-8", errors="replace").split("\n")
        return next((line.strip() for line in reversed(lines) if line.strip()), "it said nothing")


def _descendants(pid: int) -> list[int]:
    """What a process has started, directly or not; nothing where the system does not tell."""
    found: list[int] = []
    with suppress(OSError):
        for task in Path(f"/proc/{pid}/task").iterdir():
            for child in (task / "children").read_text(encoding="ascii").split():
                found += [int(child), *_descendants(int(child))]
    return found


class Deadline:
    """A limit on waiting, by the monotonic clock; says every few seconds what is still waited for."""

    def __init__(self, seconds: float, what: str, told: Callable[[str], None] = lambda text: None) -> None:
        """``told`` is given what is still waited for, every ten seconds."""
        self._ends = time.monotonic() + seconds
        self._tells = time.monotonic() + TELL_SECONDS
        self._what = what
        self._told = told

    def check(self) -> None:
        """GaveUp when the time is up."""
        now = time.monotonic()
        if now > self._ends:
            raise GaveUp(f"gave up waiting for {self._what}")
        if now >= self._tells:
            self._tells = now + TELL_SECONDS
            self._told(f"still waiting for {self._what}")

    def pause(self) -> None:
        """Let a moment pass before the next look."""
        time.sleep(PAUSE_SECONDS)
