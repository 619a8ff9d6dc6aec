"""What a check of a file has in common: findings, the Registry, and documents that verify."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, Final, TypeVar

import msgspec
from msgspec import Struct

from mwnode.protocol import strict_json
from mwnode.protocol.documents import Command, Event
from mwnode.protocol.plain_words import plain
from mwnode.store.environment import LmdbReading
from mwnode.store.errors import StoreCorrupt
from mwnode.store.examining import Asked, Examined
from mwnode.store.port import Trim
from mwnode.store.proving import Prover
from mwnode.store.resuming import StateRefused
from mwnode.trust.registry import Registry

T = TypeVar("T")
Progress = Callable[[str, int, int], None]
"""Told what is being checked, how much of it is done, and how much there is."""

FINDINGS_MAX: Final = 1000
"""Findings kept; a file damaged beyond that is not made clearer by more of them."""
REPORT_EVERY: Final = 256
_TICKS: Final = 4096


class Finding(Struct, frozen=True):
    """One thing that is not as it must be."""

    kind: str
    where: str
    detail: str


class Report(Struct, frozen=True):
    """What was checked and what was found."""

    ok: bool
    groups: int
    events: int
    artifacts: int
    findings: tuple[Finding, ...]
    warnings: tuple[Finding, ...] = ()
    """What is right as it is and still needs doing."""


class Checking:
    """One verification of one consistent view."""

    def __init__(
        self,
        view: LmdbReading,
        progress: Progress | None,
        organization_id: str | None,
        on_finding: Callable[[Finding], None] | None,
        renew: Callable[[], None],
    ) -> None:
        """``renew`` lets the view read on after damage, which ends a transaction for LMDB."""
        self.view = view
        self.organization_id = organization_id
        self.progress = progress or (lambda what, done, total: None)
        self.on_finding = on_finding
        self.renew = renew
        self.findings: list[Finding] = []
        self.events = 0
        self.artifacts = 0
        self.unread_trims: set[str] = set()
        self.erased: set[int] = set()
        """Commands whose Events were erased: of them only the hash is kept."""
        self.unclean: dict[int, Examined] = {}
        """What was found about Events, by position, that are not clean."""
        self.admitted: set[bytes] = set()
        """Signing hashes of the documents that accepted Commands carry."""
        self._looked_at = 0
        self.registry: Registry | None = None
        self.prover: Prover | None = None

    def tick(self, what: str = "entries") -> None:
        """Count one entry that was looked at, so that whoever waits knows that the check goes on."""
        self._looked_at += 1
        if self._looked_at % _TICKS == 0:
            self.progress(what, self._looked_at, 0)

    def part(self, what: str, check: Callable[[], T], *, told: bool = True) -> T | None:
        """Run one part of the check: bytes that nobody foresaw are a finding, and the other parts still run."""
        if told:
            self.progress(what, 0, 0)
        try:
            return check()
        except StateRefused:
            raise
        except StoreCorrupt as error:
            self.find("structure", error.where or what, str(error))
            self.renew()
        except Exception as error:
            self.find("structure", what, f"the check cannot go on here ({error!r}): restore a backup")
        return None

    def find(self, kind: str, where: str, detail: str) -> None:
        if len(self.findings) < FINDINGS_MAX:
            self.findings.append(Finding(kind, where, plain(detail)))
            if self.on_finding is not None:
                self.on_finding(self.findings[-1])

    def trim_of(self, group_id: str) -> Trim | None:
        """What remains of a Group's trimmed beginning; a finding, once, when that cannot be read."""
        if group_id in self.unread_trims:
            return None
        try:
            return self.view.trimmed(group_id)
        except StoreCorrupt as error:
            self.unread_trims.add(group_id)
            self.find("snapshot", f"group {group_id}", str(error))
            return None

    def told_of(self, where: str, examined: Examined) -> bool:
        """Report what is wrong with a document's bytes; whether it may be read at all."""
        for fault in examined.faults:
            self.find(fault[0], where, fault[1])
        return examined.verified

    def told_late(self, where: str, examined: Examined, accepted_at: str) -> None:
        """Report a document that was accepted when its key was not valid."""
        if not examined.in_time:
            self.find("admission", where, f"the key was not valid when the document was accepted ({accepted_at})")

    def read_event(self, group_id: str, sequence: int) -> dict[str, Any] | None:
        """An Event's members, as far as they can be read; its own place is where damage is reported."""
        try:
            stored = self.view.event(group_id, sequence)
            return None if stored is None else msgspec.json.decode(stored.event, type=dict[str, Any])
        except (StoreCorrupt, msgspec.MsgspecError, UnicodeDecodeError):
            return None


def read_verified(asked: Asked) -> Command | Event:
    """A document that was found to verify."""
    kind: type[Command] | type[Event] = Event if asked.kind == "event" else Command
    try:
        return msgspec.json.decode(asked.raw, type=kind)
    except msgspec.MsgspecError:
        # What only the exact parser reads.
        return strict_json.decode(asked.raw, kind, bytes_max=len(asked.raw))
