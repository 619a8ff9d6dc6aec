"""Every test of the core tells what it has tried; see ``tests.authority.coverage``."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from tests.authority import coverage


@pytest.fixture(autouse=True)
def tried(request: pytest.FixtureRequest) -> Iterator[None]:
    """Collect the notes of one test and hand them to its report."""
    coverage.CURRENT.counts.clear()
    yield
    request.node.user_properties.append(("tried", [list(note) for note in coverage.CURRENT.counts]))
