"""Conversations and committed Messages."""

from __future__ import annotations

from typing import Any, Literal

from msgspec import UNSET, UnsetType

from mwnode.protocol.documents.base import Document, require_some, require_unique
from mwnode.protocol.documents.common import Actor, Extensions
from mwnode.protocol.scalars import Id, SafeInteger, Sha256, Text500, Text4000, Text100000, Timestamp, Uri


class ConversationAccess(Document):
    mode: Literal["group", "restricted"]
    members: tuple[Actor, ...] | UnsetType = UNSET

    def __post_init__(self) -> None:
        require_some("members", self.members)
        if self.mode == "restricted" and self.members is UNSET:
            raise ValueError("restricted access names its members")


class Conversation(Document):
    conversation_id: Id
    mission_id: Id
    group_id: Id
    type: Literal["group", "work_item", "review", "restricted"]
    title: Text500
    access: ConversationAccess
    created_by: Actor
    created_at: Timestamp
    state: Literal["active", "closed"]
    revision: SafeInteger
    primary_work_item_id: Id | UnsetType = UNSET
    extensions: Extensions | UnsetType = UNSET

    def __post_init__(self) -> None:
        if self.type == "work_item" and self.primary_work_item_id is UNSET:
            raise ValueError("a WorkItem's Conversation carries primaryWorkItemId")
        if self.type == "restricted" and self.access.mode != "restricted":
            raise ValueError("a restricted Conversation has restricted access")


class TextBlock(Document, tag_field="type", tag="text"):
    text: Text100000


class ArtifactBlock(Document, tag_field="type", tag="artifact_ref"):
    artifact_hash: Sha256


class DataBlock(Document, tag_field="type", tag="data_ref"):
    schema: Uri
    data: Any


ContentBlock = TextBlock | ArtifactBlock | DataBlock


class Message(Document):
    message_id: Id
    mission_id: Id
    group_id: Id
    conversation_id: Id
    author: Actor
    kind: Literal["message", "correction", "retraction", "redaction"]
    authority: bool
    content: tuple[ContentBlock, ...]
    committed_at: Timestamp
    target_message_id: Id | UnsetType = UNSET
    mentions: tuple[Actor, ...] | UnsetType = UNSET
    references: tuple[Id, ...] | UnsetType = UNSET
    reason: Text4000 | UnsetType = UNSET
    extensions: Extensions | UnsetType = UNSET

    def __post_init__(self) -> None:
        if self.authority:
            raise ValueError("a Message never carries authority")
        require_some("content", self.content)
        if self.mentions is not UNSET:
            require_unique("mentions", self.mentions)
        if self.references is not UNSET:
            require_unique("references", self.references)
        if self.kind != "message" and UNSET in (self.target_message_id, self.reason):
            raise ValueError(f"a {self.kind} carries targetMessageId and reason")
