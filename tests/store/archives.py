"""Ended and archived Missions, for tests about what becomes of their Groups."""

from __future__ import annotations

from typing import Any

import msgspec

from mwnode.protocol.commands import EXT
from mwnode.testing import Harness, MissionHandle

ARCHIVE = f"{EXT}.core.group_archive"


def approved(harness: Harness, content: bytes = b"result\n") -> MissionHandle:
    """A Mission that went its whole way, with something said in it."""
    mission = harness.mission()
    content_hash = mission.authorize().run(content=content)
    say(mission, "done")
    mission.submit([content_hash])
    mission.approve()
    return mission


def say(mission: MissionHandle, text: str) -> dict[str, Any]:
    """A Message of the owner in the Mission's Conversation; its Event."""
    harness = mission.harness
    payload = {
        "messageId": harness.new_id(),
        "conversationId": f"{mission.group_id}:mission",
        "content": text,
    }
    return harness.owner.send("message.post", payload, group_id=mission.group_id)[0]


def snapshot_of(mission: MissionHandle) -> dict[str, Any]:
    """The newest snapshot that the node has of the Group."""
    found: dict[str, Any] = msgspec.json.decode(mission.harness.node.snapshots(mission.group_id)[-1])
    return found


def archive(mission: MissionHandle, payload: dict[str, Any] | None = None) -> list[dict[str, Any]]:
    """Archive the Group as the Organization's service; the Events, receipt first."""
    payload = payload or {"snapshot": snapshot_of(mission)}
    return mission.harness.organization.send(ARCHIVE, payload, group_id=mission.group_id)


def archived(harness: Harness, content: bytes = b"result\n") -> MissionHandle:
    """A Mission that went its whole way and whose Group was archived."""
    mission = approved(harness, content)
    archive(mission)
    return mission
