"""After a change request the same work stands in a Mission twice: `mwnode mission show` tells which is which."""

from __future__ import annotations

from pathlib import Path

from tests.cli.finished import harness
from tests.cli.support import cli
from tests.coordinator.desk import coordinate
from tests.coordinator.test_engine import team, work_together


def test_rounds_are_told_apart(tmp_path: Path) -> None:
    node = harness(tmp_path / "home")
    coordinator = coordinate(node)
    workers = team(node)
    work_together(coordinator, *workers)
    node.close()
    show = ("mission", "show", coordinator.mission.mission_id, "--home", tmp_path / "home")
    assert "round" not in cli(*show).out

    node.restart()
    coordinator.mission.request_changes("The docs lack a date.")
    work_together(coordinator, *workers)
    node.close()
    lines = cli(*show).out.splitlines()
    rows = [line.split()[:2] for line in lines[lines.index("") + 1 :]]
    assert rows[0] == ["work", "round"]
    found = sorted(row for row in rows if row[0] in ("lint", "test", "docs", "ship"))
    assert found == [["docs", "1"], ["docs", "2"], ["lint", "1"], ["ship", "1"], ["ship", "2"], ["test", "1"]]
