"""What the demonstration tells while it runs, and at its end; who is told is the business of others."""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING, Any, Protocol

import msgspec
from msgspec import UNSET, Struct, UnsetType
from rich.console import Console

if TYPE_CHECKING:
    from mwnode.demo.log import GroupLog


class Check(Struct, frozen=True):
    """Something that was claimed and looked at: whether it held, and what was seen."""

    name: str
    passed: bool
    evidence: str


class Summary(Struct, frozen=True, rename="camel", omit_defaults=True):
    """How the demonstration ended. Without ``home`` nothing of it was kept."""

    checks: tuple[Check, ...]
    passed: bool
    seconds: float
    home: str | UnsetType = UNSET
    paths: dict[str, str] | UnsetType = UNSET
    try_next: tuple[str, ...] | UnsetType = UNSET


class Report(Protocol):
    """Takes what happens, as it happens."""

    def act(self, name: str, about: str) -> None:
        """Another part begins."""

    def step(self, text: str, **facts: Any) -> None:
        """The demonstration does something."""

    def event(self, log: GroupLog, event: Mapping[str, Any]) -> None:
        """The node accepted something; it is in the log already."""

    @property
    def wants_waiting(self) -> bool:
        """Whether it would like to know now what waits for whom."""

    def waiting(self, entries: list[dict[str, Any]]) -> None:
        """What the node says is waited for."""

    def check(self, check: Check) -> None:
        """Something was looked at."""

    def end(self, summary: Summary) -> None:
        """It is over."""


class OneDocument:
    """Nothing until the end; then the summary, as one JSON document on one line."""

    wants_waiting = False

    def __init__(self, console: Console) -> None:
        self._console = console

    def act(self, name: str, about: str) -> None:
        """Programs are told at the end."""

    def step(self, text: str, **facts: Any) -> None:
        """Programs are told at the end."""

    def event(self, log: GroupLog, event: Mapping[str, Any]) -> None:
        """Programs are told at the end."""

    def waiting(self, entries: list[dict[str, Any]]) -> None:
        """Programs are told at the end."""

    def check(self, check: Check) -> None:
        """Programs are told at the end."""

    def end(self, summary: Summary) -> None:
        self._console.file.write(msgspec.json.encode(summary).decode() + "\n")
        self._console.file.flush()
