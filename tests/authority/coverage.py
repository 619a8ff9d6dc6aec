"""`python -m tests.authority.coverage`: what the tests of the core have tried, kind by kind and row by row.

``World`` notes every Command that it decides: the kind, what came of it, which Events, which moves of the two tables,
which states refused which kind. Each test's notes travel in its report, so that workers of a parallel run add up. A
whole run of ``tests/authority`` fails when a Command kind was never accepted or never refused, an Event kind was never
appended or no fault in it ever refused, or a row of section 7.1 or 10.2 or its complement was never tried (R-22-10).
"""

from __future__ import annotations

import argparse
import subprocess
import sys
from collections import Counter, defaultdict
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import pytest
from msgspec import UNSET

from mwnode.authority.aggregates import DECIDERS
from mwnode.authority.request import Decision, EventFact
from mwnode.authority.state import MISSIONS, WORK_ITEMS
from mwnode.authority.table import (
    MISSION,
    MISSION_MOVES,
    MISSION_STATES,
    WORK_ITEM,
    WORK_ITEM_ADMITS,
    WORK_ITEM_COMMANDS,
    WORK_ITEM_MOVES,
    WORK_ITEM_STATES,
)
from mwnode.authority.view import View
from mwnode.protocol.documents import CORE_COMMAND_KINDS, CORE_EVENT_KINDS, Command
from mwnode.protocol.errors import Rejection
from mwnode.protocol.events import EVENT_PAYLOADS

HERE = Path(__file__).resolve().parent
ACCEPTED = "accepted"
STATE = "INVALID_STATE_TRANSITION"
LIFECYCLE = frozenset(row.command for row in MISSION if row.command is not None)

Note = tuple[str, str, str, str]
"""What was noted: a heading (``command``, ``event``, ``fault``, ``move`` or ``barred``) and up to three words."""


@dataclass(eq=False)
class Notes:
    """What one or more tests have tried; each note with the number of tests that made it."""

    counts: Counter[Note] = field(default_factory=Counter)

    def add(self, heading: str, *words: str) -> None:
        """Note something once."""
        first, second, third = (*words, "", "", "")[:3]
        self.counts[heading, first, second, third] = 1

    def under(self, heading: str) -> dict[tuple[str, str, str], int]:
        """All notes under a heading, with their numbers of tests."""
        return {note[1:]: number for note, number in self.counts.items() if note[0] == heading}


CURRENT = Notes()
"""What the running test has tried so far."""


def note_outcome(view: View, command: Command, outcome: Decision | Rejection) -> None:
    """Note one decision; ``view`` is the state before it."""
    if isinstance(outcome, Rejection):
        CURRENT.add("command", command.kind, outcome.code.value)
        if outcome.code.value == STATE:
            CURRENT.add("barred", command.kind, _state_of(view, command))
        return
    CURRENT.add("command", command.kind, ACCEPTED)
    note_facts(view, outcome.facts)


def _state_of(view: View, command: Command) -> str:
    """The state of what a Command is about: its WorkItem, else the Mission of its Group."""
    payload = command.payload
    places = (payload, payload.get("artifact"), payload.get("approval"))
    named = [place["workItemId"] for place in places if isinstance(place, dict) and "workItemId" in place]
    for work_item_id in (*named, payload.get("parentWorkItemId")):
        row = view.get(WORK_ITEMS, work_item_id) if isinstance(work_item_id, str) else None
        if row is not None:
            return row.item.state
    return next((m.mission.state for m in view.all(MISSIONS) if m.mission.group_id == command.group_id), "")


def note_facts(view: View, facts: Iterable[EventFact]) -> None:
    """Note the Events of one decision and the moves that they are; each must be a row of the tables (R-10.2-42), and
    moves its WorkItem's revision by one, or not at all where it is a mere fact (decisions A24, A25)."""
    states: dict[str, str] = {}
    revisions: dict[str, int] = {}
    for fact in facts:
        CURRENT.add("event", fact.kind)
        payload: Any = fact.payload
        if fact.work_item_id is not None and fact.kind in _REVISED_BY:
            row = view.get(WORK_ITEMS, fact.work_item_id)
            revision = revisions.get(fact.work_item_id, 0 if row is None else row.item.revision)
            assert payload.revision - revision == _REVISED_BY[fact.kind], (fact.kind, revision, payload.revision)
            assert fact.aggregate_revision == payload.revision, fact.kind
            revisions[fact.work_item_id] = payload.revision
        if fact.work_item_id is not None and hasattr(payload, "state"):
            row = view.get(WORK_ITEMS, fact.work_item_id)
            before = states.get(fact.work_item_id, None if row is None else row.item.state)
            moved = getattr(payload, "work_item_state", UNSET)
            after = payload.state if moved is UNSET else moved
            if before is not None and fact.kind in _WORK_ITEM_EVENTS:
                assert after in WORK_ITEM_MOVES.get((before, fact.kind), ()), (before, fact.kind, after)
                CURRENT.add("move", before, fact.kind, after)
                states[fact.work_item_id] = after
        if fact.kind in _MISSION_EVENTS:
            group = fact.group_id or ""
            before = next((m.mission.state for m in view.all(MISSIONS) if m.mission.group_id == group), "")
            before = states.get(group, before)
            assert MISSION_MOVES.get((before, fact.kind)) == payload.state, (before, fact.kind, payload.state)
            CURRENT.add("move", before, fact.kind, payload.state)
            states[group] = payload.state


_WORK_ITEM_EVENTS = {row.event for row in WORK_ITEM}
_MISSION_EVENTS = {row.event for row in MISSION}
_FACTS = {
    "approval.execution.granted",
    "ext.mwnode.core.lease_expired",
    "ext.missionweaveprotocol.core.resource_usage_recorded",
}
_REVISED_BY = {kind: int(kind not in _FACTS) for kind in _WORK_ITEM_EVENTS - {"mission.child.created"}}
"""By how much each Event about a WorkItem moves its revision. A child's creation carries its Mission's."""


# --- what is missing --------------------------------------------------------------------------------------------------


def gaps(notes: Notes) -> list[str]:
    """What no test has tried, a line each; empty when full coverage can be claimed."""
    commands, events, faults = notes.under("command"), notes.under("event"), notes.under("fault")
    found = []
    for kind in sorted(DECIDERS):
        outcomes = {code for known, code, _ in commands if known == kind}
        if ACCEPTED not in outcomes:
            found.append(f"Command {kind}: never accepted")
        if not outcomes - {ACCEPTED}:
            found.append(f"Command {kind}: never refused")
    for kind in sorted(EVENT_PAYLOADS):
        if (kind, "", "") not in events:
            found.append(f"Event {kind}: never appended")
        if (kind, "", "") not in faults:
            found.append(f"Event {kind}: no fault in it was ever refused")
    moves = notes.under("move")
    for row in (*WORK_ITEM, *MISSION):
        if (row.state, row.event, row.next) not in moves:
            found.append(f"row {row.rule}: {row.state} - {row.event} -> {row.next}: never made")
    barred = notes.under("barred")
    for kind, state in complements():
        if (kind, state, "") not in barred:
            found.append(f"complement: {kind} while {state}: never refused")
    return found


def complements() -> list[tuple[str, str]]:
    """Every kind of sections 7.1 and 10.2 with every state that no row admits it in."""
    found = [
        (kind, state)
        for kind in sorted(WORK_ITEM_COMMANDS)
        for state in WORK_ITEM_STATES
        if (state, kind) not in WORK_ITEM_ADMITS
    ]
    admitted = {(row.state, row.command) for row in MISSION}
    found += [(kind, state) for kind in sorted(LIFECYCLE) for state in MISSION_STATES if (state, kind) not in admitted]
    return found


def claim(notes: Notes) -> str:
    """What may be said about the core kinds: all of them, or the verified subset and what it lacks (R-22-10)."""
    missing = gaps(notes)
    core = CORE_COMMAND_KINDS | CORE_EVENT_KINDS
    lacking = sorted({kind for kind in core if any(f" {kind}{end}" in line for line in missing for end in (":", " "))})
    if not missing:
        return (
            f"full: {len(CORE_COMMAND_KINDS)} core Command kinds, {len(CORE_EVENT_KINDS)} core Event kinds and every "
            "row of sections 7.1 and 10.2 with its complement, each tried and refused"
        )
    return f"subset: {len(core) - len(lacking)} of {len(core)} core kinds; missing: {', '.join(lacking) or 'rows only'}"


# --- the table --------------------------------------------------------------------------------------------------------


def render(notes: Notes) -> str:
    """The whole table: Commands by outcome, Events, rows, complements, gaps and the claim."""
    outcomes: dict[str, dict[str, int]] = defaultdict(dict)
    for (kind, code, _), number in notes.under("command").items():
        outcomes[kind][code] = number
    lines = ["Commands, and in how many tests each was accepted or refused with which code"]
    for kind in sorted(DECIDERS):
        codes = outcomes[kind]
        rest = ", ".join(f"{code} {codes[code]}" for code in sorted(codes) if code != ACCEPTED)
        lines.append(f"  {kind:<62}{codes.get(ACCEPTED, 0):>4}  {rest}")
    events, faults = notes.under("event"), notes.under("fault")
    lines.append("Events, in how many tests each was appended and a fault in it refused")
    for kind in sorted(EVENT_PAYLOADS):
        lines.append(f"  {kind:<62}{events.get((kind, '', ''), 0):>4}{faults.get((kind, '', ''), 0):>4}")
    moves, barred = notes.under("move"), notes.under("barred")
    lines.append("Rows of sections 7.1 and 10.2, and in how many tests each was made")
    for row in (*MISSION, *WORK_ITEM):
        step = f"{row.state} - {row.event} -> {row.next}"
        lines.append(f"  {row.rule:<10}{step:<90}{moves.get((row.state, row.event, row.next), 0):>4}")
    pairs = complements()
    tried = sum((kind, state, "") in barred for kind, state in pairs)
    lines.append(f"Complements refused: {tried} of {len(pairs)}")
    lines += [f"MISSING {line}" for line in gaps(notes)]
    lines.append(f"Claim: {claim(notes)}")
    return "\n".join(lines)


# --- in a pytest run --------------------------------------------------------------------------------------------------


class Plugin:
    """Adds up what the reports bring; after a whole run of the core's tests, gaps are a failure."""

    def __init__(self, config: pytest.Config) -> None:
        self.notes = Notes()
        self.shown = bool(config.getoption("--tried"))
        options = config.option
        self.chosen = any(
            (options.keyword, options.markexpr, options.deselect, any("::" in arg for arg in config.args))
        )
        """Whether somebody picked tests, so that gaps say nothing."""
        self.files: set[str] = set()

    def pytest_runtest_logreport(self, report: pytest.TestReport) -> None:
        if report.when != "teardown":
            return
        for name, notes in report.user_properties:
            if name == "tried":
                self.files.add(Path(report.nodeid.partition("::")[0]).name)
                self.notes.counts.update(tuple(note) for note in notes)

    def whole(self, session: pytest.Session | None) -> bool:
        """Whether every file of the core's tests has run to its end."""
        if self.chosen or (session is not None and session.exitstatus != pytest.ExitCode.OK):
            return False
        return self.files >= {file.name for file in HERE.glob("test_*.py")}

    def pytest_sessionfinish(self, session: pytest.Session) -> None:
        if self.whole(session) and gaps(self.notes):
            session.exitstatus = pytest.ExitCode.TESTS_FAILED

    def pytest_terminal_summary(self, terminalreporter: Any) -> None:
        if self.shown:
            terminalreporter.section("coverage of the core")
            terminalreporter.write_line(render(self.notes))
        elif self.whole(None):
            for line in gaps(self.notes):
                terminalreporter.write_line(f"the core's tests lack: {line}", red=True)


def main(arguments: Sequence[str] | None = None) -> int:
    """Run the core's tests and print what they tried; exit 0 when nothing is missing."""
    parser = argparse.ArgumentParser(prog="python -m tests.authority.coverage", description=main.__doc__)
    parser.add_argument("pytest_arguments", nargs="*", help="passed on to pytest, after --")
    options = parser.parse_args(arguments)
    command = [sys.executable, "-m", "pytest", "-q", "--no-header", "--tried", str(HERE), *options.pytest_arguments]
    return subprocess.call(command, cwd=HERE.parent.parent)


if __name__ == "__main__":
    sys.exit(main())
