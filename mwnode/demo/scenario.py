"""One run of the demonstration: the founding act, the other acts or one of them, and the proof of the file."""

from __future__ import annotations

import shlex
import sys
import time
from collections.abc import Sequence
from pathlib import Path

import msgspec

from mwnode.client.errors import ClientError
from mwnode.demo.acts import Act, founding
from mwnode.demo.processes import DemoFailure, GaveUp
from mwnode.demo.proof import prove_file, prove_logs
from mwnode.demo.report import Report, Summary
from mwnode.demo.stage import HUMAN, Stage
from mwnode.protocol.errors import MissionWeaveError

_WENT_WRONG = (DemoFailure, ClientError, MissionWeaveError, TimeoutError, LookupError, OSError)
"""What an act may meet that ends it: the act has failed, the others are still worth playing."""


def perform(home: Path, report: Report, acts: Sequence[Act]) -> Summary:
    """Play the founding act and then the others in a HOME of their own. DemoFailure when the stage fails."""
    started = time.monotonic()
    with Stage(home, report) as stage:
        report.act("founding", "an Organization, its node, and who works in it")
        founding.play(stage)
        for act in acts:
            report.act(act.name, act.about)
            play(act, stage)
            stage.clear()
            if not stage.processes.alive("node"):
                raise DemoFailure(f"the node ended: {stage.processes.last_words('node')}")
        report.act("proof", "what everybody saw, and then the file with nothing running")
        if acts:
            prove_logs(stage)
    of_file = prove_file(str(home))
    report.check(of_file)
    held = (*stage.held, of_file)
    return Summary(
        checks=held,
        passed=all(check.passed for check in held),
        seconds=round(time.monotonic() - started, 1),
    )


def play(act: Act, stage: Stage) -> None:
    """Play one act; what ends it early is one more check, which failed."""
    try:
        act.play(stage)
    except _WENT_WRONG as error:
        stage.check(f"{act.name} was played to its end", False, f"{type(error).__name__}: {error}")
        if isinstance(error, GaveUp):
            stage.tell_waiting()


def kept(summary: Summary, home: Path) -> Summary:
    """The summary of a run whose HOME stays, with what there is to look at."""
    quoted = shlex.quote(str(home))
    reader = f"--home {quoted} --key {shlex.quote(str(home / 'keys' / f'{HUMAN}.key'))}"
    return msgspec.structs.replace(
        summary,
        home=str(home),
        paths={"store": str(home / "node.mdb"), "logs": str(home / "demo" / "logs")},
        try_next=tuple(
            f"{_program()} {command} {here}"
            for command, here in (
                ("verify", f"--home {quoted}"),
                ("mission list", reader),
                ("artifact list", reader),
                ("waiting", reader),
                ("serve", f"--home {quoted}"),
            )
        ),
    )


def _program() -> str:
    """How this very command was called, so that what is shown can be typed."""
    called = Path(sys.argv[0])
    return sys.argv[0] if called.name == "mwnode" else "mwnode"
