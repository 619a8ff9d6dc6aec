"""A Group's Events as they come, by long polling."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

from mwnode.cli.missions import PAGE
from mwnode.cli.reach import Reach, at

WAIT_SECONDS = 20


def follow(node: Reach, group_id: str, *, after: int) -> Iterator[dict[str, Any]]:
    """Every Event of a Group above a sequence, for as long as anybody listens."""
    while True:
        page = node.get(at("groups", group_id, "events"), after=after, limit=PAGE, wait=WAIT_SECONDS)
        for event in page["events"]:
            after = event["sequence"]
            yield event
