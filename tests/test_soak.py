"""The long soak: what it takes for flat, and a short one that really runs."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import pytest

from tests.soak import COLUMNS, Curve, drawn, soak


def test_a_curve_that_rises_is_told_from_one_that_has_settled() -> None:
    settled = [10.0, 40.0, 60.0, 61.0, 60.0, 62.0, 61.0, 60.0, 61.0]
    assert Curve("memory", "MiB", settled).flat, "the way there does not count"
    leak = [50.0 + 3 * at for at in range(30)]
    assert not Curve("memory", "MiB", leak).flat
    assert "RISES" in Curve("memory", "MiB", leak).text()
    assert not Curve("open files", "files", [20.0 + at for at in range(60)]).flat
    assert Curve("bytes for each Event", "KiB", [14.0, 12.0, 10.0]).flat, "falling is no fault"


def test_a_curve_is_drawn_in_one_line() -> None:
    assert drawn([float(at) for at in range(8)]).rstrip() == "▁▂▃▄▅▆▇█"
    assert drawn([5.0, 5.0]).rstrip() == "▁▁"
    assert len(drawn([float(at) for at in range(1000)])) == COLUMNS


@pytest.mark.long
@pytest.mark.timeout(2 * 3600)
def test_missions_one_after_the_other_leave_nothing_behind(tmp_path: Path, scale: Callable[[int, int], int]) -> None:
    """Flat curves are asked for of the whole hour only: a few seconds are all way there."""
    seconds = scale(8, 3600)
    it = soak(tmp_path, seconds / 60, workers=1, every=1.0 if seconds < 60 else 5.0)
    assert it.missions >= 1
    assert {"node: memory of its own", "worker-1: open files", "store: bytes for each Event so far"} <= set(it.curves)
    rising = [curve.text() for curve in it.curves.values() if not curve.flat]
    assert seconds < 60 or rising == []
