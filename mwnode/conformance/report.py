"""What a run found."""

from __future__ import annotations

from typing import Literal

from msgspec import Struct, field

Section = Literal["structural", "cryptography", "admission"]
SECTIONS: tuple[Section, ...] = ("structural", "cryptography", "admission")


class Mismatch(Struct, frozen=True):
    """One evaluation that came out otherwise than the bundle says, or a reason why none could run."""

    section: Section
    case: str
    expected: str
    got: str


class Tally(Struct):
    """How many evaluations of a section passed and failed; those that could not run count as failed."""

    passed: int = 0
    failed: int = 0


class Report(Struct):
    """Tallies of the three sections, all zero for one that the bundle has not, and every mismatch."""

    structural: Tally = field(default_factory=Tally)
    cryptography: Tally = field(default_factory=Tally)
    admission: Tally = field(default_factory=Tally)
    failures: list[Mismatch] = field(default_factory=list)

    @property
    def ok(self) -> bool:
        """Whether something ran and nothing failed."""
        tallies = [getattr(self, section) for section in SECTIONS]
        return not self.failures and not any(t.failed for t in tallies) and any(t.passed for t in tallies)

    def judge(self, section: Section, case: str, expected: str, got: str) -> None:
        """Count one evaluation."""
        tally: Tally = getattr(self, section)
        if expected == got:
            tally.passed += 1
        else:
            tally.failed += 1
            self.failures.append(Mismatch(section, case, expected, got))

    def abort(self, section: Section, evaluations: int, reason: str) -> None:
        """Count a whole section as failed before any of it ran."""
        tally: Tally = getattr(self, section)
        tally.passed, tally.failed = 0, max(evaluations, 1)
        self.failures.append(Mismatch(section, "integrity", "an intact bundle", reason))
