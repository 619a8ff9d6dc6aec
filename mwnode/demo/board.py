"""The demonstration for people: what is done and found as lines, and on a terminal, below them, the live board."""

from __future__ import annotations

import time
from collections.abc import Mapping
from typing import Any

from rich.columns import Columns
from rich.console import Console, Group, RenderableType
from rich.live import Live
from rich.table import Table
from rich.text import Text

from mwnode.demo.log import GroupLog
from mwnode.demo.report import Check, Summary
from mwnode.narrative import short

STATE_STYLES = {
    "open": "dim",
    "offered": "yellow",
    "queued": "yellow",
    "active": "bold cyan",
    "blocked": "magenta",
    "submitted": "blue",
    "verified": "green",
    "failed": "bold red",
    "cancelled": "dim strike",
}
WAITING_SECONDS = 1.0
"""How often a terminal is told anew what waits for whom."""
_SHOWN = 2


class Board:
    """Both Missions' graphs side by side, who works on what, and what waits for whom; only lines where nobody looks."""

    def __init__(self, console: Console) -> None:
        self._console = console
        self._live: Live | None = None
        self._logs: list[GroupLog] = []
        self._entries: list[dict[str, Any]] = []
        self._asked_at = 0.0

    def act(self, name: str, about: str) -> None:
        self._rest()
        self._logs, self._entries = [], []
        self._console.print(f"\n[bold]{name}[/bold]  {about}", highlight=False, soft_wrap=True)

    def step(self, text: str, **facts: Any) -> None:
        shown = "  ".join(f"{value}" for value in facts.values())
        self._console.print(Text.assemble("  ", text, ("  " + shown if shown else "", "dim")), soft_wrap=True)

    def event(self, log: GroupLog, event: Mapping[str, Any]) -> None:
        if not self._console.is_terminal:
            return
        if log not in self._logs:
            self._logs.append(log)
        self._show()

    @property
    def wants_waiting(self) -> bool:
        if not self._console.is_terminal or time.monotonic() < self._asked_at + WAITING_SECONDS:
            return False
        self._asked_at = time.monotonic()
        return True

    def waiting(self, entries: list[dict[str, Any]]) -> None:
        self._entries = entries
        self._show()

    def check(self, check: Check) -> None:
        mark = ("held    ", "green") if check.passed else ("FAILED  ", "bold red")
        self._console.print(
            Text.assemble("  ", mark, check.name, ("  " + check.evidence, "dim")), highlight=False, soft_wrap=True
        )

    def end(self, summary: Summary) -> None:
        self._rest()
        table = Table("", "check", "what was seen", box=None, padding=(0, 1), show_edge=False)
        for number, check in enumerate(summary.checks, 1):
            mark = Text("held", "green") if check.passed else Text("FAILED", "bold red")
            table.add_row(mark, Text(f"{number:>3}  {check.name}"), Text(check.evidence, "dim"))
        self._console.print()
        self._console.print(table)
        held = sum(check.passed for check in summary.checks)
        style = "bold green" if summary.passed else "bold red"
        self._console.print(
            f"\n[{style}]{held} of {len(summary.checks)} checks held[/] in {summary.seconds:.0f} s", soft_wrap=True
        )
        if isinstance(summary.paths, dict):
            for name, path in summary.paths.items():
                self._console.print(f"  {name:<10} {path}", highlight=False, soft_wrap=True)
        if isinstance(summary.try_next, tuple):
            self._console.print("\nTry next:")
            for command in summary.try_next:
                self._console.print(f"  {command}", highlight=False, soft_wrap=True)

    # --- the live part ------------------------------------------------------------------------------------------------

    def _show(self) -> None:
        if self._live is None:
            self._live = Live(console=self._console, transient=True, refresh_per_second=4)
            self._live.start()
        self._live.update(self.picture())

    def picture(self) -> RenderableType:
        """The board as it is now."""
        going_on = [log for log in self._logs if not log.over]
        graphs = [_graph(log) for log in (going_on or self._logs)[-_SHOWN:]]
        return Group(Columns(graphs, padding=(0, 4)), _waiting(self._entries))

    def _rest(self) -> None:
        """Take the board away: what follows is no longer about work in progress."""
        if self._live is not None:
            self._live.stop()
            self._live = None


def _graph(log: GroupLog) -> Table:
    """One Mission's WorkItems, each with what it waits for, its state, and who works on it."""
    table = Table("WorkItem", "after", "state", "owner", box=None, padding=(0, 1), title_justify="left")
    table.title = Text(f"{log.title}: {log.mission_state}", "bold")
    for name, (state, owner) in log.board.items():
        after = ", ".join(log.dependencies.get(name, ()))
        table.add_row(Text(name), Text(after, "dim"), Text(state, STATE_STYLES.get(state, "")), Text(owner))
    return table


def _waiting(entries: list[dict[str, Any]]) -> Table:
    """Who must act next, and what for."""
    table = Table("waits for", "to", "on", box=None, padding=(0, 1))
    for entry in entries[:6]:
        table.add_row(
            Text(short(entry["who"]["id"]), "bold"), Text(entry["action"]), Text(short(entry["on"]["id"]), "dim")
        )
    return table
