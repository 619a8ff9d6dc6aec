"""The requirements tool counts a row as proven by passing tests only, and says what is missing by issue."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.requirements import REQUIREMENTS, Collector, Row, load_rows, missing_by_issue, render

ROWS = (
    Row("R-1-01", "MAY", "worker", "one", "how", issue=6),
    Row("R-2-01", "MUST", "codec", "two", "how", issue=1),
    Row("R-2-02", "MUST", "store", "three", "how", issue=1),
)


def report(nodeid: str, outcome: str, *ids: str, when: str = "call") -> pytest.TestReport:
    return pytest.TestReport(
        nodeid=nodeid,
        location=("test_file.py", 1, nodeid),
        keywords={},
        outcome=outcome,
        longrepr=None,
        when=when,
        user_properties=[("req", list(ids))],
    )


def test_the_table_holds_both_tables_of_the_protocol_and_gives_each_row_to_one_issue() -> None:
    rows = load_rows(REQUIREMENTS)
    assert len(rows) == 792
    assert {row.issue for row in rows} == set(range(1, 8))
    assert sum(row.issue == 1 for row in rows) >= 200
    assert all(row.level in {"MUST", "MUST NOT", "SHOULD", "SHOULD NOT", "MAY"} for row in rows)


def test_a_repeated_id_and_a_foreign_header_are_refused(tmp_path: Path) -> None:
    table = tmp_path / "rows.tsv"
    table.write_text("id\tlevel\trole\trequirement\tverify\tissue\n" + 2 * "R-1-01\tMAY\tworker\ta\tb\t1\n")
    with pytest.raises(ValueError, match="R-1-01"):
        load_rows(table)
    table.write_text("id\tlevel\n")
    with pytest.raises(ValueError, match="columns"):
        load_rows(table)


def test_a_row_is_proven_by_a_pass_and_unproven_by_a_failure_beside_it() -> None:
    collector = Collector()
    collector.pytest_runtest_logreport(report("a", "passed", "R-1-01", "R-2-01"))
    collector.pytest_runtest_logreport(report("b", "failed", "R-2-01"))
    collector.pytest_runtest_logreport(report("c", "skipped", "R-2-02"))
    collector.pytest_runtest_logreport(report("d", "passed", "R-2-02", when="setup"))
    assert collector.proven() == {"R-1-01"}
    assert [row.id for row in missing_by_issue(ROWS, collector.proven())[1]] == ["R-2-01", "R-2-02"]


def test_a_failing_setup_counts_as_a_failure() -> None:
    collector = Collector()
    collector.pytest_runtest_logreport(report("a", "passed", "R-1-01"))
    collector.pytest_runtest_logreport(report("a", "failed", "R-1-01", when="teardown"))
    assert collector.proven() == set()


def test_the_text_lists_missing_rows_of_the_issues_asked_for_and_counts_all() -> None:
    text = render(ROWS, {"R-2-01"}, listed={1})
    assert "R-2-02" in text
    assert "R-1-01" not in text
    assert text.splitlines()[-1].split() == ["all", "3", "1", "2"]


def test_a_report_read_back_says_the_same(tmp_path: Path) -> None:
    collector = Collector(report=tmp_path / "report.json")
    collector.pytest_runtest_logreport(report("a", "passed", "R-1-01", "R-2-01"))
    collector.pytest_runtest_logreport(report("b", "failed", "R-2-01"))
    collector.pytest_sessionfinish()
    again = Collector.read(tmp_path / "report.json")
    assert again.proven() == collector.proven() == {"R-1-01"}
    assert again.outcomes == collector.outcomes
