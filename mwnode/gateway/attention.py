"""The attention filter, exactly in the order in which the first match decides. It narrows live delivery only. Pure."""

from __future__ import annotations

from collections.abc import Collection

from msgspec import UNSET

from mwnode.protocol.commands import Payload
from mwnode.protocol.events import MessageCommitted
from mwnode.protocol.frames import AttentionFilter


class Attention:
    """One subscription's filter, made ready (R-8-18). An empty array is a present member that matches nothing."""

    def __init__(self, wanted: AttentionFilter, agent_id: str) -> None:
        self._agent_id = agent_id
        self._announcements = wanted.announcements is True
        self._mentions_only = wanted.mentions_only is True
        self._kinds = _collection(wanted.event_kinds)
        self._conversations = _collection(wanted.conversation_ids)
        self._work_items = _collection(wanted.work_item_ids)

    def passes(self, kind: str, conversation_id: str | None, work_item_id: str | None, payload: Payload) -> bool:
        """Whether an Event is to be delivered live."""
        message = payload if isinstance(payload, MessageCommitted) else None
        if self._announcements and message is not None and message.announcement is True:
            return True
        if self._kinds is not None and kind not in self._kinds:
            return False
        if self._conversations is not None and conversation_id not in self._conversations:
            return False
        if self._work_items is not None and work_item_id not in self._work_items:
            return False
        return not self._mentions_only or (message is not None and self._mentioned(message))

    def _mentioned(self, committed: MessageCommitted) -> bool:
        mentions = committed.message.mentions
        # Only the ID counts, so a human or service of the same ID matches too, as wire facts 2.3 has it.
        return mentions is not UNSET and any(principal.id == self._agent_id for principal in mentions)


def _collection(values: object) -> Collection[str] | None:
    return frozenset(values) if isinstance(values, tuple) else None
