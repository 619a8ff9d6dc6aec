"""The pytest plugin: the fixture ``mwnode``."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import TYPE_CHECKING

import pytest

from mwnode import testing

if TYPE_CHECKING:
    from mwnode.testing.harness import Harness


@pytest.fixture
def mwnode(tmp_path: Path) -> Iterator[Harness]:
    """A node on a temporary file with an owner, a coordinator and two workers."""
    harness = testing.Harness(tmp_path / "home")
    yield harness
    harness.close()
