"""Many WorkItems while Workers, the node and the links between them are killed again and again."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import pytest

from tests.worker.soak import Size, soak

SAMPLE = Size(missions=2, works=6, workers=3, worker_kills=4, node_kills=2, cuts=2, seconds_max=1800)


@pytest.mark.long
@pytest.mark.timeout(4 * 3600)
@pytest.mark.req("R-16-62", "R-16-63", "R-19-04")
def test_every_result_is_accepted_once_whatever_is_killed(tmp_path: Path, scale: Callable[[int, int], int]) -> None:
    size = Size() if scale(0, 1) else SAMPLE
    seen = soak(tmp_path, size)
    assert seen["results"] == size.missions * size.works
