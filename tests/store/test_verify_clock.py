"""A clock that was set back damages nothing."""

from __future__ import annotations

from pathlib import Path

from mwnode.store.verify import verify
from mwnode.testing import Harness


def test_a_clock_that_was_set_back_is_no_damage(tmp_path: Path) -> None:
    harness = Harness(tmp_path / "home")
    mission = harness.mission()
    harness.clock.step(-45)
    harness.workers[0].connect()
    mission.authorize()
    report = verify(harness.node.store)
    harness.close()
    assert report.ok, report.findings
