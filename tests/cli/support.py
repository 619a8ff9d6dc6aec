"""Running commands: in this process where it is quick, as processes where that is the point."""

from __future__ import annotations

import io
import json
import os
import signal
import subprocess
import sys
from contextlib import redirect_stderr, redirect_stdout
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from mwnode.cli import mwnode
from mwnode.cli.exits import run
from tests.patience import PATIENCE_SECONDS

CHECKOUT = Path(__file__).resolve().parents[2]


@dataclass(frozen=True)
class Done:
    """What a command left: exit status and everything it printed."""

    status: int
    out: str
    err: str

    @property
    def json(self) -> Any:
        """The one JSON document on stdout; fails the test when the command did."""
        assert self.status == 0, self.err
        return json.loads(self.out)

    @property
    def lines(self) -> list[Any]:
        """Every JSON line on stdout."""
        assert self.status == 0, self.err
        return [json.loads(line) for line in self.out.splitlines()]


def cli(*arguments: str | Path) -> Done:
    """Run one command in this process."""
    out, err = io.TextIOWrapper(io.BytesIO(), write_through=True), io.StringIO()
    with redirect_stdout(out), redirect_stderr(err):
        try:
            status = run(mwnode, [str(argument) for argument in arguments])
        except SystemExit as ended:
            status = int(ended.code or 0)
    out.seek(0)
    return Done(status, out.buffer.getvalue().decode(), err.getvalue())


def environment() -> dict[str, str]:
    """An environment for processes: this checkout, and nothing of the caller's own mwnode."""
    clean = {name: value for name, value in os.environ.items() if not name.startswith("MWNODE_")}
    return {**clean, "PYTHONPATH": str(CHECKOUT)}


class ServedHome:
    """`mwnode serve` on a HOME, as a process of its own."""

    def __init__(self, home: Path, *arguments: str) -> None:
        self.home = home
        self.process = subprocess.Popen(
            [
                sys.executable,
                "-m",
                "mwnode",
                "serve",
                "--home",
                str(home),
                "--json",
                *(arguments or ("--port", "0")),
            ],
            env=environment(),
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            stdin=subprocess.DEVNULL,
            text=True,
        )
        assert self.process.stdout is not None
        line = self.process.stdout.readline()
        if not line:
            _, err = self.process.communicate(timeout=PATIENCE_SECONDS)
            raise AssertionError(f"serve ended with {self.process.returncode}: {err}")
        self.listening = json.loads(line)

    def stop(self, number: signal.Signals = signal.SIGTERM) -> tuple[int, str]:
        """End it by a signal; exit status and what else it printed on stdout."""
        if self.process.poll() is None:
            self.process.send_signal(number)
        rest, self.errors = self.process.communicate(timeout=PATIENCE_SECONDS)
        return self.process.returncode, rest
