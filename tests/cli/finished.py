"""A HOME whose Mission was worked on in process, by the real clock, so that commands go on from there."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from mwnode import testing
from mwnode.protocol.identifiers import CORE_EXTENSION
from mwnode.system import SystemClock


def harness(home: Path) -> testing.Harness:
    """A node in process on HOME, whose time is the present."""
    return testing.Harness(home, clock=testing.ManualClock(SystemClock().now().text()))


def named(*paths: str) -> dict[str, Any]:
    """What a Worker states of an Artifact: under which names it was written."""
    data = {"deliverables": [{"deliverableId": "report", "path": path} for path in paths]}
    return {CORE_EXTENSION: {"version": "1.0.0", "critical": False, "data": data}}
