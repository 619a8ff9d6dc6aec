"""What a Coordinator has asked its MissionOwner for, in Messages, and nobody has answered yet. Pure.

A Message carries no authority (R-9-10): this only tells people what they were asked.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from msgspec import UNSET

from mwnode.authority.state import MESSAGES, WORK_ITEMS, MissionRow, WorkItemRow
from mwnode.authority.view import View
from mwnode.protocol import terms
from mwnode.protocol.documents import Actor, DataBlock, Message, TextBlock
from mwnode.protocol.instants import parse

_OVER = frozenset({"verified", "cancelled"})


def unanswered(view: View, row: MissionRow) -> dict[str | None, Message]:
    """The newest request about each WorkItem, and under ``None`` the newest about none: oldest first.

    A word of the owner about a WorkItem answers what was asked about that one, any other word whatever was asked
    before. Nobody needs an answer about a WorkItem that is over. Clarifications are questions of their own.
    """
    group_id = row.mission.group_id
    owner, coordinator = row.mission.mission_owner, Actor(type="agent", id=row.mission.coordinator.agent_id)
    said = [held.message for held in view.in_group(MESSAGES, group_id) if held.message.kind == "message"]
    said = [one for one in said if one.author == owner or (one.author == coordinator and _asks(one, owner))]
    if not said:
        return {}
    items = {item.item.work_item_id: item for item in view.in_group(WORK_ITEMS, group_id)}
    found: dict[str | None, Message] = {}
    for message in sorted(said, key=lambda one: parse(one.committed_at)):
        if message.author == owner:
            about = _told_about(message, items)
            found = {key: one for key, one in found.items() if about is not None and key not in (about, None)}
        else:
            named = _named(message, list(items.values()))
            found.pop(named, None)
            found[named] = message
    return {key: one for key, one in found.items() if key is None or items[key].item.state not in _OVER}


def text_of(message: Message) -> str:
    """What a Message says, to be put behind something; empty where it says nothing."""
    text = " ".join(block.text for block in message.content if isinstance(block, TextBlock))
    return f": {text}"[:500] if text else ""


def _asks(message: Message, owner: Actor) -> bool:
    mentioned = message.mentions is not UNSET and owner in message.mentions
    return mentioned and not any(isinstance(block, DataBlock) for block in message.content)


def _told_about(message: Message, items: Mapping[str, WorkItemRow]) -> str | None:
    """The WorkItem that the owner's word is about: another try, or Evidence."""
    for block in message.content:
        data = block.data if isinstance(block, DataBlock) else None
        about = data.get("workItemId") if isinstance(data, Mapping) else None
        if isinstance(about, str) and about in items:
            return about
    return None


def _named(message: Message, items: Sequence[WorkItemRow]) -> str | None:
    """The WorkItem that a request names, by its name in the plan or by its goal."""
    told = text_of(message)
    for item in items:
        local = terms.text(item.item.contract, "localId")
        if local is not None and told.startswith((f": {local} ", f": {local}:")):
            return item.item.work_item_id
    return next((item.item.work_item_id for item in items if item.item.contract.goal in told), None)


__all__ = ["text_of", "unanswered"]
