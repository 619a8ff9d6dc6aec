"""``verify`` in a process of its own: pages that are damaged badly enough end a process inside LMDB, or make it run in
circles, and whoever asked still gets a report.

The child says on its standard output, one JSON line each, what it looks at, what it found and the report.
"""

from __future__ import annotations

import selectors
import signal
import subprocess
import sys
import time
from pathlib import Path
from typing import IO, Any, Final

import msgspec
from msgspec import Struct

from mwnode.store import errors
from mwnode.store.checking import Finding, Progress, Report
from mwnode.store.errors import StoreError
from mwnode.store.ownership import drop_readers
from mwnode.store.verify import unreadable, verify

STALLED_SECONDS: Final = 180.0
"""How long a check may say nothing: it tells of every few thousand entries."""
TELL_SECONDS: Final = 0.1
_RESTORE: Final = "restore a backup, or export what can still be read"


class _Line(Struct, omit_defaults=True):
    """One thing that the child says."""

    progress: tuple[str, int, int] | None = None
    finding: Finding | None = None
    report: Report | None = None
    error: tuple[str, str] | None = None


_LINE: Final = msgspec.json.Decoder(_Line)


def verify_apart(
    path: Path,
    *,
    progress: Progress | None = None,
    organization_id: str | None = None,
    stalled_seconds: float = STALLED_SECONDS,
    jobs: int = 1,
    resume: Path | None = None,
) -> Report:
    """As ``verify`` for the file at a path; a check that ends or stalls is a finding of kind ``structure``.

    Raises the StoreError of a file that cannot be opened for another reason than damage.
    """
    command = [sys.executable, "-m", "mwnode.store.apart", str(path), organization_id or "", str(jobs)]
    command += [] if resume is None else [str(resume)]
    try:
        with subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.DEVNULL) as child:
            try:
                assert child.stdout is not None
                return _listen(child, child.stdout, path, progress, stalled_seconds)
            finally:
                if child.poll() is None:
                    child.kill()
    finally:
        # A child that was ended could not do so itself.
        drop_readers(path)


def _listen(
    child: subprocess.Popen[bytes], said: IO[bytes], path: Path, progress: Progress | None, stalled_seconds: float
) -> Report:
    findings: list[Finding] = []
    doing = "its root"
    for raw in _lines(said, stalled_seconds):
        if raw is None:
            detail = f"the check of {doing} said nothing for {stalled_seconds:.0f} s: its pages lead in circles"
            return unreadable(str(path), f"{detail}; {_RESTORE}", tuple(findings))
        line = _LINE.decode(raw)
        if line.report is not None:
            return line.report
        if line.error is not None:
            raise _error(*line.error)
        if line.finding is not None:
            findings.append(line.finding)
        if line.progress is not None:
            doing = line.progress[0]
            if progress is not None:
                progress(*line.progress)
    detail = f"the check was ended by {_ending(child.wait())} at {doing}: pages of the file are damaged"
    return unreadable(str(path), f"{detail}; {_RESTORE}", tuple(findings))


def _lines(said: IO[bytes], stalled_seconds: float) -> Any:
    """The child's lines; ``None`` when it said nothing for too long."""
    pending = b""
    with selectors.DefaultSelector() as selector:
        selector.register(said, selectors.EVENT_READ)
        while True:
            if not selector.select(stalled_seconds):
                yield None
                return
            piece = said.read1(1 << 16)  # type: ignore[attr-defined]  # a buffered reader has it, the protocol does not
            if not piece:
                return
            *whole, pending = (pending + piece).split(b"\n")
            yield from whole


def _ending(code: int) -> str:
    try:
        return signal.Signals(-code).name if code < 0 else f"status {code}"
    except ValueError:
        return f"signal {-code}"


def _error(kind: str, text: str) -> StoreError:
    """The child's StoreError again, as far as its kind and words go."""
    known = getattr(errors, kind, StoreError)
    made: StoreError = known.__new__(known)
    made.args = (text,)
    return made


def _say(line: _Line) -> None:
    sys.stdout.buffer.write(msgspec.json.encode(line) + b"\n")
    sys.stdout.buffer.flush()


def main(arguments: list[str]) -> None:
    """The child: ``apart PATH ORGANIZATION JOBS [STATE]``."""
    path, organization_id, jobs, *state = arguments
    told = ("", 0.0)

    def show(what: str, done: int, total: int) -> None:
        nonlocal told
        now = time.monotonic()
        if what != told[0] or now - told[1] >= TELL_SECONDS:
            told = what, now
            _say(_Line(progress=(what, done, total)))

    try:
        report = verify(
            Path(path),
            progress=show,
            organization_id=organization_id or None,
            on_finding=lambda finding: _say(_Line(finding=finding)),
            jobs=int(jobs),
            resume=Path(state[0]) if state else None,
        )
        _say(_Line(report=report))
    except StoreError as error:
        _say(_Line(error=(type(error).__name__, str(error))))


if __name__ == "__main__":
    main(sys.argv[1:])
