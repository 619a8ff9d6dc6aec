"""Shell: run one executor in its slot, watch its reports, and end it with everything that it started."""

from __future__ import annotations

import asyncio
import os
import shlex
import shutil
import signal
import time
from collections.abc import Awaitable, Callable, Mapping
from contextlib import suppress
from pathlib import Path
from typing import Any, Protocol

import msgspec
from msgspec import Struct

from mwnode.protocol.ports import Clock
from mwnode.system import SystemClock
from mwnode.worker.capability import usable
from mwnode.worker.effects import Exit
from mwnode.worker.slots import TAIL_CHARACTERS, Slot

_SHELL_CHARACTERS = frozenset("|&;<>()$`*?[]{}~#!\n\\")
_LINE_BYTES_MAX = 256 * 1024
_POLL_SECONDS = 0.1
_SAMPLE_SECONDS = 2.0
_TICKS = os.sysconf("SC_CLK_TCK")

Report = Callable[[Mapping[str, Any]], None]
Sample = Callable[[float], None]


class ExecutorError(Exception):
    """The executor cannot be run at all; one line that says what to do."""


class ExecutorLimits(Struct, frozen=True, kw_only=True):
    """What one run may take; ``None`` leaves a limit to the operating system."""

    cpu_seconds: int | None = None
    memory_bytes: int | None = None
    """Address space of each process."""
    file_bytes: int | None = 16 * 1024**3
    """Largest file that can be written."""
    open_files: int | None = 1024
    output_bytes: int = 4 * 1024**3
    """All deliverables together."""


class Stop:
    """How a run is ended from outside: asked once, with a grace in seconds, or at once."""

    def __init__(self) -> None:
        self.asked = asyncio.Event()
        self.killed = asyncio.Event()
        self.grace_seconds = 10.0

    def ask(self, grace_seconds: float) -> None:
        self.grace_seconds = grace_seconds
        self.asked.set()

    def kill(self) -> None:
        self.killed.set()


class Executor(Protocol):
    """Does one WorkItem in its slot."""

    async def run(self, slot: Slot, stop: Stop, report: Report, sample: Sample) -> Exit:
        """Run to the end. Never raises for what the executor does wrong: that is in the Exit."""
        ...


def command_line(command: str, directory: Path) -> list[str]:
    """The argument vector of an executor command.

    Words that name a file relative to ``directory`` are made absolute, because the executor runs elsewhere; what needs
    a shell is handed to one. Raises ExecutorError when there is no such program.
    """
    try:
        words = shlex.split(command)
    except ValueError as error:
        raise ExecutorError(f"the executor command {command!r} cannot be read: {error}") from None
    if not words:
        raise ExecutorError("the executor command is empty")
    if _SHELL_CHARACTERS & set(command) or "=" in words[0]:
        shell = shutil.which("sh")
        if shell is None:
            raise ExecutorError("the executor command needs a shell, and there is no sh")
        return [shell, "-c", command]
    # Not resolved: a virtual environment's interpreter is a link, and works only by its own name.
    absolute = [os.path.abspath(directory / word) if _names_a_file(word, directory) else word for word in words]
    program = shutil.which(absolute[0])
    if program is None:
        raise ExecutorError(f"no program {words[0]!r}: check the path in --exec, and that it may be executed")
    return [program, *absolute[1:]]


def _names_a_file(word: str, directory: Path) -> bool:
    """Whether a word of a command means a file: it looks like a path or a file name, and there is such a file."""
    return ("/" in word or "." in word) and (directory / word).is_file()


class SubprocessExecutor:
    """Runs a command as a process group of its own, with limits (design section 6)."""

    def __init__(
        self,
        command: str,
        *,
        directory: Path,
        environment: Mapping[str, str],
        limits: ExecutorLimits | None = None,
    ) -> None:
        self.argv = command_line(command, directory)
        self.limits = limits or ExecutorLimits()
        self._environment = dict(environment)

    def _limited(self) -> list[str]:
        """The command behind ``ulimit``: limits hold from its first instruction on."""
        limits = self.limits
        options = (
            ("-t", limits.cpu_seconds),
            ("-v", None if limits.memory_bytes is None else limits.memory_bytes // 1024),
            ("-f", None if limits.file_bytes is None else limits.file_bytes // 512),
            ("-n", limits.open_files),
            ("-c", 0),
        )
        # A limit that the system sets lower already cannot be raised, and need not be.
        script = "".join(f"ulimit {option} {value} 2>/dev/null; " for option, value in options if value is not None)
        return ["/bin/sh", "-c", f'{script}exec "$@"', "sh", *self.argv]

    async def run(self, slot: Slot, stop: Stop, report: Report, sample: Sample) -> Exit:
        started = time.monotonic()
        with open(slot.stdout_file, "wb") as stdout, open(slot.stderr_file, "wb") as stderr:
            try:
                process = await asyncio.create_subprocess_exec(
                    *self._limited(),
                    cwd=slot.path,
                    env=slot.environment(self._environment),
                    stdin=asyncio.subprocess.DEVNULL,
                    stdout=stdout,
                    stderr=stderr,
                    start_new_session=True,
                )
            except OSError as error:
                return Exit(-1, 0.0, 0.0, f"the executor cannot be started: {error.strerror or error}")
        watcher = _Watcher(slot, process.pid, report, sample)
        ending = asyncio.create_task(_end_when_asked(slot, process, stop))
        waiting = asyncio.create_task(process.wait())
        try:
            while not waiting.done():
                await asyncio.wait((waiting,), timeout=_POLL_SECONDS)
                watcher.look()
        finally:
            waiting.cancel()
            ending.cancel()
            with suppress(asyncio.CancelledError):
                await ending
            end_everything(slot, process.pid)
        watcher.look(last=True)
        status = process.returncode if process.returncode is not None else -signal.SIGKILL
        return Exit(status, time.monotonic() - started, watcher.compute_seconds, tail=slot.tail())


class _Watcher:
    """Reads what a running executor reports and uses."""

    def __init__(self, slot: Slot, pid: int, report: Report, sample: Sample) -> None:
        self._slot = slot
        self._pid = pid
        self._report = report
        self._sample = sample
        self._offset = 0
        self._sample_at = 0.0
        self._pause = 2 * _POLL_SECONDS
        self.compute_seconds = 0.0

    def look(self, *, last: bool = False) -> None:
        """Take new lines and, now and then, a sample of processor time."""
        self._lines(last)
        now = time.monotonic()
        if last or now >= self._sample_at:
            self._pause = min(2 * self._pause, _SAMPLE_SECONDS)
            self._sample_at = now + self._pause
            self.compute_seconds = max(self.compute_seconds, group_cpu_seconds(self._pid))
            self._sample(self.compute_seconds)

    def _lines(self, last: bool) -> None:
        with suppress(FileNotFoundError), open(self._slot.progress_file, "rb") as file:
            file.seek(self._offset)
            data = file.read(_LINE_BYTES_MAX)
            whole = len(data) if last or len(data) == _LINE_BYTES_MAX else data.rfind(b"\n") + 1
            self._offset += whole
            for line in data[:whole].splitlines():
                if line.strip():
                    self._take(line)

    def _take(self, line: bytes) -> None:
        try:
            value = self._slot.line(msgspec.json.decode(line))
        except (msgspec.DecodeError, RecursionError):
            value = None
        if isinstance(value, dict):
            self._report(value)
        else:
            self._report({"unreadable": self._slot.words(line.decode("utf-8", "replace"))[:200]})


async def _end_when_asked(slot: Slot, process: asyncio.subprocess.Process, stop: Stop) -> None:
    """SIGTERM to the group when asked, and the end of everything after the grace or at once when killed."""
    asked = asyncio.create_task(stop.asked.wait())
    killed = asyncio.create_task(stop.killed.wait())
    try:
        await asyncio.wait((asked, killed), return_when=asyncio.FIRST_COMPLETED)
        if not killed.done():
            with suppress(ProcessLookupError):
                os.killpg(process.pid, signal.SIGTERM)
            await asyncio.wait((killed,), timeout=stop.grace_seconds)
        end_everything(slot, process.pid)
    finally:
        asked.cancel()
        killed.cancel()


def end_everything(slot: Slot, pid: int) -> None:
    """Kill the process group, and whatever left it but still carries the run's mark in its environment."""
    with suppress(ProcessLookupError, PermissionError):
        os.killpg(pid, signal.SIGKILL)
    mark = f"MWNODE_RUN={slot.path.name}".encode()
    for _ in range(3):
        strays = [stray for stray in _processes() if _carries(stray, mark)]
        if not strays:
            return
        for stray in strays:
            with suppress(ProcessLookupError, PermissionError):
                os.kill(stray, signal.SIGKILL)


def _processes() -> list[int]:
    try:
        return [int(name) for name in os.listdir("/proc") if name.isdigit()]
    except OSError:
        return []  # no /proc here: the process group is all that can be ended


def _carries(pid: int, mark: bytes) -> bool:
    try:
        with open(f"/proc/{pid}/environ", "rb") as file:
            return mark in file.read().split(b"\0")
    except OSError:
        return False


def group_cpu_seconds(pgid: int) -> float:
    """Processor seconds of all processes of a group, with those of their ended children; 0 without /proc."""
    total = 0
    for pid in _processes():
        try:
            with open(f"/proc/{pid}/stat", "rb") as file:
                fields = file.read().rpartition(b")")[2].split()
        except OSError:
            continue
        if int(fields[2]) == pgid:
            total += sum(int(ticks) for ticks in fields[11:15])
    return total / _TICKS


Handler = Callable[["Work"], Awaitable[int | None]]


class Work:
    """What an embedded handler gets: its WorkItem, its directories, and the means to report."""

    def __init__(self, slot: Slot, stop: Stop, report: Report, clock: Clock | None = None) -> None:
        self.slot = slot
        self._clock = clock or SystemClock()
        self.assignment = slot.assignment
        self.contract = slot.assignment.contract
        self.idempotency_key = slot.assignment.idempotency_key
        self.inputs = slot.inputs
        self.outputs = slot.outputs
        self._stop = stop
        self._report = report

    def capability(self, operation: str, resource: str | None = None) -> str:
        """The Capability Token for what a tool is about to do. Ask each time, just before it is done: NotCapable is
        raised once the lease or the token is over, also while the node cannot be reached (R-11.5-07)."""
        return usable(self.slot.token(), self._clock.now(), operation, resource)

    @property
    def stopping(self) -> bool:
        """Whether a checkpoint and an end was asked for."""
        return self._stop.asked.is_set()

    def report(self, **line: Any) -> None:
        """What a line of the progress file says: ``progress``, ``checkpoint``, ``usage``, ``evidence``, ``blocked``."""
        self._report(self.slot.line(line))


class HandlerExecutor:
    """Runs an async function in place of a process. It returns an exit status, or ``None`` for 0."""

    def __init__(self, handler: Handler, limits: ExecutorLimits | None = None, clock: Clock | None = None) -> None:
        """``clock`` tells when a Capability Token is over."""
        self.handler = handler
        self._clock = clock
        self.limits = limits or ExecutorLimits()

    async def run(self, slot: Slot, stop: Stop, report: Report, sample: Sample) -> Exit:
        time_of = asyncio.get_running_loop().time
        started = time_of()
        work = asyncio.ensure_future(self.handler(Work(slot, stop, report, self._clock)))
        killed = asyncio.create_task(stop.killed.wait())
        asked = asyncio.create_task(stop.asked.wait())
        try:
            await asyncio.wait((work, killed, asked), return_when=asyncio.FIRST_COMPLETED)
            if not work.done() and not killed.done():
                await asyncio.wait((work, killed), timeout=stop.grace_seconds, return_when=asyncio.FIRST_COMPLETED)
            if not work.done():
                work.cancel()
                await asyncio.wait((work,))
        finally:
            killed.cancel()
            asked.cancel()
        spent = time_of() - started
        if work.cancelled():
            return Exit(-signal.SIGTERM, spent, 0.0)
        error = work.exception()
        if error is not None:
            return Exit(1, spent, 0.0, tail=slot.words(f"{type(error).__name__}: {error}")[:TAIL_CHARACTERS])
        return Exit(work.result() or 0, spent, 0.0)
