"""Requests for Cooperation Override Grants that nobody has answered: read off Messages, which decide nothing."""

from __future__ import annotations

from collections.abc import Iterator, Mapping

from mwnode.authority.state import MESSAGES, OVERRIDES, MissionRow
from mwnode.authority.view import View
from mwnode.protocol.documents import Actor, DataBlock, Message
from mwnode.protocol.identifiers import OVERRIDE_SCHEMA
from mwnode.protocol.instants import Instant, parse


def requested(view: View, row: MissionRow, now: Instant) -> Iterator[tuple[Message, str]]:
    """The Coordinator's Messages that ask for a Grant, and why; without those that have one or no longer need it."""
    coordinator = Actor(type="agent", id=row.mission.coordinator.agent_id)
    asked = {}
    for held in view.in_group(MESSAGES, row.mission.group_id):
        message = held.message
        if message.kind != "message" or message.author != coordinator:
            continue
        for block in message.content:
            if isinstance(block, DataBlock) and block.schema == OVERRIDE_SCHEMA and isinstance(block.data, Mapping):
                asked[str(block.data.get("targetActionId"))] = (message, str(block.data.get("reason", "")))
    open_ones = {name: one for name, one in asked.items() if not view.accepted(coordinator.id, name)}
    if not open_ones:
        return
    for override in view.all(OVERRIDES):
        if parse(override.grant.expires_at) > now:
            open_ones.pop(override.grant.target_action_id, None)
    yield from open_ones.values()
