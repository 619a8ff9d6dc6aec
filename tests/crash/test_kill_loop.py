"""kill -9 at random instants: a sample of what `python -m tests.crash.kill_loop` does at length."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import pytest

from tests.crash.kill_loop import run


@pytest.mark.long
@pytest.mark.timeout(3600)
@pytest.mark.req("R-5-02")
def test_what_was_acknowledged_survives_the_kill_and_nothing_is_doubled(
    tmp_path: Path, scale: Callable[[int, int], int]
) -> None:
    run(scale(20, 500), seed=2030, directory=tmp_path)
