"""Showing the demonstration: JSON lines for programs, a live board for people."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, Protocol

import msgspec
from msgspec import Struct
from rich.console import Console
from rich.live import Live
from rich.table import Table

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


class Check(Struct, frozen=True):
    """Something that was claimed and looked at: whether it held, and what was seen."""

    name: str
    passed: bool
    evidence: str


class Summary(Struct, frozen=True, rename="camel"):
    """How the demonstration ended."""

    checks: tuple[Check, ...]
    passed: bool
    home: str
    seconds: float
    paths: dict[str, str]
    try_next: tuple[str, ...]


class Report(Protocol):
    """Takes what happens, as it happens."""

    def step(self, text: str, **facts: Any) -> None:
        """The demonstration does something."""

    def event(self, text: str, event: Mapping[str, Any], board: Mapping[str, tuple[str, str]]) -> None:
        """The node accepted something; `board` gives each WorkItem's state and owner by its name."""

    def check(self, check: Check) -> None:
        """Something was looked at."""

    def end(self, summary: Summary) -> None:
        """It is over."""


class JsonLines:
    """One JSON document a line; the last one is the summary."""

    def __init__(self, console: Console) -> None:
        self._console = console

    def _line(self, document: Any) -> None:
        self._console.file.write(msgspec.json.encode(document).decode() + "\n")
        self._console.file.flush()

    def step(self, text: str, **facts: Any) -> None:
        self._line({"step": text, **facts})

    def event(self, text: str, event: Mapping[str, Any], board: Mapping[str, tuple[str, str]]) -> None:
        payload = event["payload"]
        self._line(
            {
                "event": event["kind"],
                "groupId": event["groupId"],
                "sequence": event["sequence"],
                "state": payload.get("state"),
                "workItemId": event.get("workItemId") or payload.get("workItemId"),
            }
        )

    def check(self, check: Check) -> None:
        self._line({"check": check.name, "passed": check.passed, "evidence": check.evidence})

    def end(self, summary: Summary) -> None:
        self._line(summary)


class Board:
    """Lines as they come, and below them, on a terminal, who does what now."""

    def __init__(self, console: Console) -> None:
        self._console = console
        self._live: Live | None = None

    def step(self, text: str, **facts: Any) -> None:
        shown = "  ".join(f"[dim]{value}[/dim]" for value in facts.values())
        self._console.print(f"[bold]{text}[/bold]  {shown}".rstrip(), highlight=False, soft_wrap=True)

    def event(self, text: str, event: Mapping[str, Any], board: Mapping[str, tuple[str, str]]) -> None:
        self._console.print(f"[dim]{text}[/dim]", highlight=False, soft_wrap=True)
        if not self._console.is_terminal:
            return
        table = Table("WorkItem", "state", "owner", box=None, padding=(0, 2))
        for name, (state, owner) in board.items():
            table.add_row(name, f"[{STATE_STYLES.get(state, 'default')}]{state}[/]", owner)
        if self._live is None:
            self._live = Live(table, console=self._console, transient=True, refresh_per_second=8)
            self._live.start()
        self._live.update(table)

    def check(self, check: Check) -> None:
        self._rest()
        mark = "[green]held[/green]  " if check.passed else "[bold red]FAILED[/bold red]"
        self._console.print(f"  {mark}  {check.name}  [dim]{check.evidence}[/dim]", highlight=False, soft_wrap=True)

    def end(self, summary: Summary) -> None:
        self._rest()
        held = sum(check.passed for check in summary.checks)
        style = "bold green" if summary.passed else "bold red"
        self._console.print(
            f"\n[{style}]{held} of {len(summary.checks)} checks held[/] in {summary.seconds:.0f} s", soft_wrap=True
        )
        for name, path in summary.paths.items():
            self._console.print(f"  {name:<10} {path}", highlight=False, soft_wrap=True)
        self._console.print("\nTry next:")
        for command in summary.try_next:
            self._console.print(f"  {command}", highlight=False, soft_wrap=True)

    def _rest(self) -> None:
        """Take the board away: what follows is no longer about work in progress."""
        if self._live is not None:
            self._live.stop()
            self._live = None
