"""The attention filter, row by row (section 8, wire facts 2.3)."""

from __future__ import annotations

from typing import Any

import msgspec
import pytest

from mwnode.gateway.attention import Attention
from mwnode.protocol.commands import Payload
from mwnode.protocol.events import EVENT_PAYLOADS, MessageCommitted
from mwnode.protocol.frames import AttentionFilter

ME = "urn:example:agent:me"
OTHER = "urn:example:agent:other"


def posted(mentions: tuple[str, ...] = (), announcement: bool = False) -> MessageCommitted:
    message: dict[str, Any] = {
        "messageId": "urn:example:message",
        "missionId": "urn:example:mission",
        "groupId": "urn:example:group",
        "conversationId": "urn:example:conversation",
        "author": {"type": "agent", "id": OTHER},
        "kind": "message",
        "authority": False,
        "content": [{"type": "text", "text": "hello"}],
        "committedAt": "2030-01-01T00:00:00Z",
    }
    if mentions:
        message["mentions"] = [{"type": "agent", "id": who} for who in mentions]
    payload: dict[str, Any] = {"revision": 1, "state": "active", "message": message}
    if announcement:
        payload["announcement"] = True
    return msgspec.convert(payload, MessageCommitted)


class Plain(Payload):
    """Any payload that is no Message."""


def event(
    kind: str = "message.posted",
    conversation: str | None = None,
    work_item: str | None = None,
    payload: Payload | None = None,
) -> tuple[str, str | None, str | None, Payload]:
    return kind, conversation, work_item, payload or posted()


ROWS: dict[str, tuple[dict[str, Any], tuple[Any, ...], bool]] = {
    "nothing asked": ({}, event(), True),
    "a kind asked for": ({"eventKinds": ["message.posted"]}, event(), True),
    "another kind": ({"eventKinds": ["work.started"]}, event(), False),
    "no kind at all": ({"eventKinds": []}, event(), False),
    "a Conversation asked for": ({"conversationIds": ["urn:x:1"]}, event(conversation="urn:x:1"), True),
    "another Conversation": ({"conversationIds": ["urn:x:1"]}, event(conversation="urn:x:2"), False),
    "no Conversation on the Event": ({"conversationIds": ["urn:x:1"]}, event(), False),
    "no Conversation at all": ({"conversationIds": []}, event(conversation="urn:x:1"), False),
    "a WorkItem asked for": ({"workItemIds": ["urn:x:1"]}, event(work_item="urn:x:1"), True),
    "another WorkItem": ({"workItemIds": ["urn:x:1"]}, event(work_item="urn:x:2"), False),
    "no WorkItem on the Event": ({"workItemIds": ["urn:x:1"]}, event(), False),
    "both, and both fit": (
        {"eventKinds": ["message.posted"], "workItemIds": ["urn:x:1"]},
        event(work_item="urn:x:1"),
        True,
    ),
    "both, and one does not": (
        {"eventKinds": ["work.started"], "workItemIds": ["urn:x:1"]},
        event(work_item="urn:x:1"),
        False,
    ),
    "a mention": ({"mentionsOnly": True}, event(payload=posted((OTHER, ME))), True),
    "a mention of others": ({"mentionsOnly": True}, event(payload=posted((OTHER,))), False),
    "no mention": ({"mentionsOnly": True}, event(), False),
    "mentions, and no Message": ({"mentionsOnly": True}, event("work.started", payload=Plain()), False),
    "mentionsOnly false does nothing": ({"mentionsOnly": False}, event(), True),
    "an announcement passes everything": (
        {"announcements": True, "eventKinds": [], "mentionsOnly": True},
        event(payload=posted(announcement=True)),
        True,
    ),
    "an announcement nobody asked for": (
        {"announcements": False, "eventKinds": []},
        event(payload=posted(announcement=True)),
        False,
    ),
    "announcements asked for, and this is none": ({"announcements": True, "eventKinds": []}, event(), False),
}


@pytest.mark.req("R-8-18", "R-8-19")
@pytest.mark.parametrize("wanted, what, passes", ROWS.values(), ids=ROWS.keys())
def test_the_first_match_decides(wanted: dict[str, Any], what: tuple[Any, ...], passes: bool) -> None:
    attention = Attention(msgspec.convert(wanted, AttentionFilter), ME)
    assert attention.passes(*what) is passes


def test_messages_alone_can_be_mentions_or_announcements() -> None:
    carrying = {
        kind
        for kind, payload in EVENT_PAYLOADS.items()
        if {"announcement", "mentions"} & set(payload.__struct_fields__)
    }
    assert carrying == {kind for kind, payload in EVENT_PAYLOADS.items() if payload is MessageCommitted}
