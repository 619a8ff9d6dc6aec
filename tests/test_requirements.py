"""The requirements tool counts a row as proven by passing tests only, and says what is missing by issue."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest

from tests.requirements import REQUIREMENTS, Collector, Row, load_rows, missing_by_issue, render
from tests.requirements_page import TOPICS, page, places

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


# --- the page for people ----------------------------------------------------------------------------------------------

DEMONSTRATIONS = (
    "tests/authority/test_mission_endings.py::test_an_ended_mission_has_no_way_out",
    "tests/authority/test_matrix.py::test_state_by_kind",
    "tests/client/test_feed.py",
    "tests/authority/test_execution.py::test_every_kind_compares_the_revision_that_it_states",
    "tests/authority/test_offers.py::test_a_lapsed_owner_is_fenced",
    "tests/authority/test_work_item.py::test_what_is_not_authorized",
    "tests/authority/test_messages.py::test_a_directive_moves_no_work",
)
"""Something of each topic of section 22; the whole suite holds much more."""


def page_of(collector: Collector, rows: tuple[Row, ...] = ROWS) -> str:
    return page(rows, collector, {"R-2-01": ["mwnode/a.py:1", "mwnode/a.py:9", "mwnode/b.py:1", "mwnode/c.py:3"]})


def test_the_page_tells_of_each_rule_where_it_is_enforced_and_what_proves_it() -> None:
    collector = Collector()
    for nodeid in ("t.py::a", "t.py::b", "t.py::c", "t.py::d"):
        collector.pytest_runtest_logreport(report(nodeid, "passed", "R-2-01"))
    collector.pytest_runtest_logreport(report("t.py::e", "failed", "R-2-02"))
    lines = page_of(collector).splitlines()
    proven = next(line for line in lines if line.startswith("| R-2-01 |"))
    assert proven.split(" | ")[1:3] == ["MUST", "two"]
    assert "`mwnode/a.py:1`, `mwnode/a.py:9`, `mwnode/b.py:1`, and 1 more" in proven
    assert "`t.py::a`, `t.py::b`, `t.py::c`, and 1 more" in proven
    broken = next(line for line in lines if line.startswith("| R-2-02 |"))
    assert "**not proven**; failed: `t.py::e`" in broken
    assert "Of 2 rules that bind (MUST, MUST NOT) 1 are proven" in "\n".join(lines)
    assert "* R-2-02 (MUST): three" in lines
    assert not any(line.startswith("* R-1-01") for line in lines), "what does not bind is not missed"


def test_places_are_those_that_the_product_names_itself(tmp_path: Path) -> None:
    package = tmp_path / "package"
    package.mkdir()
    (package / "one.py").write_text('"""Does it (R-2-01, R-10.2-03 to R-10.2-05)."""\n\nX = 1  # R-2-01\n')
    found = places(package)
    assert found["R-2-01"] == ["package/one.py:1", "package/one.py:3"]
    assert set(found) == {"R-2-01", "R-10.2-03", "R-10.2-04", "R-10.2-05"}
    real, known = places(), {row.id for row in load_rows(REQUIREMENTS)}
    assert set(real) <= known, "the code names no rule that there is not"
    assert len(set(real) & known) > 500


@pytest.mark.req("R-22-04")
def test_the_page_links_each_topic_of_section_22_to_tests_that_passed(tmp_path: Path) -> None:
    """A real run of some tests; a topic of which none has passed is not called demonstrated."""
    file = tmp_path / "run.json"
    command = [sys.executable, "-m", "pytest", "-q", "-p", "no:cacheprovider", "--requirements-report", str(file)]
    subprocess.run([*command, *DEMONSTRATIONS], check=True, capture_output=True, cwd=REQUIREMENTS.parent.parent)
    collector, rows = Collector.read(file), load_rows(REQUIREMENTS)
    assert len(TOPICS) == 8
    assert {rule for topic in TOPICS for rule in topic.rules} <= {row.id for row in rows}
    told = page_of(collector, rows).splitlines()
    for topic in TOPICS:
        line = next(line for line in told if line.startswith(f"| {topic.name} |"))
        assert "`tests/" in line, line
        assert set(topic.rules) & collector.proven(), topic.name
    for topic in TOPICS:
        without = Collector(passed={**collector.passed}, outcomes=collector.outcomes)
        for rule in topic.rules:
            without.passed.pop(rule, None)
        line = next(line for line in page_of(without, rows).splitlines() if line.startswith(f"| {topic.name} |"))
        assert "not demonstrated" in line
