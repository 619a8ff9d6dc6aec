"""`python -m tests.requirements`: which rows of fixtures/requirements.tsv no passing test proves, by issue.

`--report PAGE` writes what is proven for people to read instead: rule, where it is enforced, which tests.

Runs the suite once with a plugin that collects the `req` marks of every test and its outcome, or reads what an earlier
run left (`pytest --requirements-report FILE`, then `--from FILE`). A row is proven when at least one test that names it
passed and none that names it failed.
"""

from __future__ import annotations

import argparse
import csv
import json
import sys
from collections import Counter, defaultdict
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field
from pathlib import Path

import pytest

from tests.requirements_page import page, places

REQUIREMENTS = Path(__file__).resolve().parent.parent / "fixtures" / "requirements.tsv"


@dataclass(frozen=True)
class Row:
    """One rule of the protocol: how binding it is, who keeps it, how to verify it, and the issue it belongs to."""

    id: str
    level: str
    role: str
    requirement: str
    verify: str
    issue: int


def load_rows(path: Path) -> tuple[Row, ...]:
    """Every row of the table, in its order; ValueError for a repeated id or a malformed line."""
    with path.open(encoding="utf-8", newline="") as file:
        reader = csv.reader(file, delimiter="\t", quoting=csv.QUOTE_NONE)
        header = next(reader)
        if header != ["id", "level", "role", "requirement", "verify", "issue"]:
            raise ValueError(f"{path}: unexpected columns {header}")
        rows = tuple(Row(*line[:5], issue=int(line[5])) for line in reader)
    repeated = [row_id for row_id, count in Counter(row.id for row in rows).items() if count > 1]
    if repeated:
        raise ValueError(f"{path}: repeated ids {repeated}")
    return rows


@dataclass(eq=False)  # pytest keeps plugins in sets, so one is equal to itself only
class Collector:
    """A pytest plugin: which tests, by outcome, name which rows. Works under xdist: marks travel in the reports."""

    report: Path | None = None
    """Where to leave the result when the session ends."""
    passed: dict[str, set[str]] = field(default_factory=lambda: defaultdict(set))
    failed: dict[str, set[str]] = field(default_factory=lambda: defaultdict(set))
    outcomes: Counter[str] = field(default_factory=Counter)

    def pytest_runtest_logreport(self, report: pytest.TestReport) -> None:
        if report.when != "call" and not report.failed:
            return
        self.outcomes[report.outcome] += 1
        for name, ids in report.user_properties:
            if name == "req" and not report.skipped:
                side = self.failed if report.failed else self.passed
                for row_id in ids:
                    side[row_id].add(report.nodeid)

    def pytest_sessionfinish(self) -> None:
        if self.report is not None:
            sides = {
                name: {row_id: sorted(tests) for row_id, tests in sorted(side.items())}
                for name, side in (("passed", self.passed), ("failed", self.failed))
            }
            self.report.write_text(json.dumps({**sides, "outcomes": dict(self.outcomes)}, indent=1), encoding="utf-8")

    @classmethod
    def read(cls, report: Path) -> Collector:
        """What an earlier run found."""
        found = json.loads(report.read_text(encoding="utf-8"))
        passed, failed = (
            {row_id: set(tests) for row_id, tests in found[name].items()} for name in ("passed", "failed")
        )
        return cls(passed=passed, failed=failed, outcomes=Counter(found["outcomes"]))

    def proven(self) -> set[str]:
        """Ids that some test proved and no test contradicted."""
        return {row_id for row_id, tests in self.passed.items() if tests and not self.failed.get(row_id)}


def missing_by_issue(rows: Iterable[Row], proven: set[str]) -> dict[int, list[Row]]:
    """The rows without a proof, under the issue they belong to."""
    missing: dict[int, list[Row]] = defaultdict(list)
    for row in rows:
        if row.id not in proven:
            missing[row.issue].append(row)
    return dict(missing)


def render(rows: Sequence[Row], proven: set[str], *, listed: set[int], report: Collector | None = None) -> str:
    """The text that the command prints: rows per issue of `listed`, then the counts of every issue."""
    missing = missing_by_issue(rows, proven)
    lines: list[str] = []
    for issue in sorted(listed & missing.keys()):
        lines.append(f"issue {issue}: rows without a passing test")
        lines += [f"  {row.id:<11}{row.level:<11}{row.role:<12}{row.requirement}" for row in missing[issue]]
        lines.append("")
    totals = Counter(row.issue for row in rows)
    lines.append("issue  rows  proven  missing")
    for issue, total in sorted(totals.items()):
        absent = len(missing.get(issue, ()))
        lines.append(f"{issue:>5}{total:>6}{total - absent:>8}{absent:>9}")
    proven_rows = sum(row.id in proven for row in rows)
    lines.append(f"  all{len(rows):>6}{proven_rows:>8}{len(rows) - proven_rows:>9}")
    if report is not None and report.outcomes["failed"]:
        lines.append(f"{report.outcomes['failed']} test(s) failed; what they name counts as missing")
    return "\n".join(lines)


def main(arguments: Sequence[str] | None = None) -> int:
    """Run the suite and print the rows; exit 0 when it ran and nothing failed."""
    parser = argparse.ArgumentParser(prog="python -m tests.requirements", description=main.__doc__)
    parser.add_argument("--issue", type=int, action="append", help="list only this issue's rows (repeatable)")
    parser.add_argument("--counts", action="store_true", help="only the table of counts")
    parser.add_argument(
        "--report",
        dest="page",
        type=Path,
        metavar="PAGE",
        nargs="?",
        const=Path("-"),
        help="write a page for people: each rule, where it is enforced, what proves it",
    )
    parser.add_argument("--from", dest="report", type=Path, metavar="FILE", help="read a report; run nothing")
    parser.add_argument("pytest_arguments", nargs="*", help="passed on to pytest, after --")
    options = parser.parse_args(arguments)
    rows = load_rows(REQUIREMENTS)
    if options.report is not None:
        collector, status = Collector.read(options.report), 0
    else:
        collector = Collector()
        status = int(pytest.main(["-q", "--no-header", *options.pytest_arguments], plugins=[collector]))
    if options.page is not None:
        text = page(rows, collector, places())
        if options.page == Path("-"):
            print(text, end="")
        else:
            options.page.write_text(text, encoding="utf-8")
        return status
    issues = {row.issue for row in rows}
    listed = set() if options.counts else set(options.issue) if options.issue else issues
    print()
    print(render(rows, collector.proven(), listed=listed, report=collector))
    return status


if __name__ == "__main__":
    sys.exit(main())
